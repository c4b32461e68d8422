"""Distance from the theory against the learning rate: slope one is what Theorem 1's gradient flow leads to expect."""

from typing import TYPE_CHECKING, Any

import numpy as np

from qkdyn.figures import canvas
from qkdyn.results.frames import check_frame

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas

CELL = ("design", "parameterization", "r", "level")
_MARKERS = (".", "x", "+", "1")


def cell_of(frame: "pandas.DataFrame") -> list[str]:
    """The columns that name a cell; tables of a single design may leave it out."""
    return [name for name in CELL if name != "design" or name in frame.columns]


def check_differences(frame: "pandas.DataFrame", source: str = "the table") -> None:
    """Raise InputError unless `frame` is a table of differences, one row for each cell, scale and quantity."""
    key = [*cell_of(frame), "scale", "quantity"]
    do = "give the summary.csv of experiments.step_size"
    check_frame(frame, key=key, positive=("r", "level", "scale"), numbers=("difference",), source=source, do=do)


def draw_step_size(frame: "pandas.DataFrame") -> "matplotlib.figure.Figure":
    """One panel a quantity, one line for each design, parameterization, ratio and matched loss, coloured by the ratio.

    Args:
        frame: columns quantity, design (may be left out), parameterization, r, level, scale (factor on every rate) and
            difference (relative; blank where a level was not reached).

    Raises:
        InputError: `frame` is not such a table.
    """
    check_differences(frame)
    names = list(dict.fromkeys(frame["quantity"]))
    designs = list(dict.fromkeys(frame["design"])) if "design" in frame else [None]
    ratios = sorted(set(frame["r"].astype(float)))
    colours = dict(zip(ratios, canvas.ratio_colours(ratios), strict=True))
    scales = np.array(sorted(set(frame["scale"])), np.float64)
    figure = canvas.new_figure(max(3.4 * len(names) + 0.4, 5.5), 3.8)
    grid = figure.subplots(1, len(names), sharex=True, sharey=True, squeeze=False)
    found = np.abs(frame["difference"].to_numpy(np.float64))
    limits = canvas.log_limits(canvas.span(found, positive=True) or (1e-5, 1e-1))
    ordered = frame.sort_values("scale")
    for axes, name in zip(grid[0], names, strict=True):
        canvas.style(axes)
        title = canvas.LABELS.get(str(name), str(name))
        axes.set(xscale="log", yscale="log", title=title, xlabel="factor on every learning rate")
        own = ordered.loc[ordered["quantity"] == name, :]
        if own["difference"].isna().to_numpy().all():
            canvas.nothing_recorded(axes, what="no level reached")
        for _, line in own.groupby(cell_of(frame), sort=False):
            first = line.iloc[0]
            marker = _MARKERS[designs.index(first.get("design")) % len(_MARKERS)]
            x, y = line["scale"].to_numpy(np.float64), np.abs(line["difference"].to_numpy(np.float64))
            axes.plot(x, y, color=colours[float(first["r"])], linewidth=1, marker=marker, markersize=4)
        axes.plot(scales, 0.02 * scales, color=canvas.INK, linewidth=1.2, linestyle=canvas.DASHES)
        axes.set_xticks(scales, [f"{scale:g}" for scale in scales])
        axes.minorticks_off()
    low, high = min(limits[0], 0.02 * scales[0]), max(limits[1], 0.02 * scales[-1])
    grid[0, 0].set(xlim=canvas.log_limits((scales[0], scales[-1]), 0.06), ylim=canvas.log_limits((low, high), 0.02))
    canvas.log_ticks(grid[0, 0].yaxis, (low, high))
    grid[0, 0].set_ylabel("|simulation / theory - 1| at matched loss", fontsize=9)
    reached = np.isfinite(found).any()
    title = (
        "Distance of gradient descent from the flow as its step falls" if reached else "No level reached: no distance"
    )
    figure.suptitle(title, fontsize=11.5)
    _key(figure, colours, designs)
    return figure


def _key(figure: "matplotlib.figure.Figure", colours: dict[float, Any], designs: list[Any]) -> None:
    """A colour for each ratio, a marker for each design where there are several, and the slope to compare with."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, linewidth=3, label=f"r = {r:.4g}") for r, colour in colours.items()]
    if len(designs) > 1:
        for place, design in enumerate(designs):
            marker, label = _MARKERS[place % len(_MARKERS)], f"{design} design"
            handles.append(Line2D([], [], marker=marker, linestyle="none", color=canvas.INK, label=label))
    handles.append(Line2D([], [], color=canvas.INK, linewidth=1.2, linestyle=canvas.DASHES, label="slope 1"))
    canvas.legend(figure, handles)

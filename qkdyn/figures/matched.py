"""Attention and both circuits at equal loss, against the ratio of the learning rates."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from qkdyn.figures import canvas
from qkdyn.results.summary import summarize

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    import xarray


def draw_matched(ds: "xarray.Dataset") -> "matplotlib.figure.Figure":
    """Attention, mu_OV and mu_QK at matched losses against the ratio: markers are seeds, lines are the theory.

    Rows are the quantities, columns the parameterizations; colours are losses, filled and hollow markers the designs.

    Args:
        ds: a sweep (see `qkdyn.results.summarize`).

    Raises:
        InputError: `ds` is not a sweep or holds no run.
    """
    stats = summarize(ds).sortby("r")
    names = stats["parameterization"].to_numpy().tolist()
    figure = canvas.new_figure(max(2.7 * len(names) + 0.6, 5.5), 7.2)
    grid = figure.subplots(3, len(names), sharex=True, sharey="row", squeeze=False)
    ratios = stats["r"].to_numpy()
    limits = canvas.log_limits((float(ratios[0]), float(ratios[-1])), 0.06)
    for row, variable in enumerate(("alpha", "mu_ov", "mu_qk")):
        grid[row, 0].set_ylabel(canvas.LABELS[variable], fontsize=10)
        for column, name in enumerate(names):
            axes = grid[row, column]
            canvas.style(axes)
            axes.set_xscale("log")
            axes.set_xlim(*limits)
            canvas.log_ticks(axes.xaxis, limits)
            for marks in _marks(stats.isel(parameterization=column)):
                _matched_curve(axes, variable, theory=_theory(ds, variable, marks["cells"]), **marks)
            if not stats["reached"].isel(parameterization=column).any():
                canvas.nothing_recorded(axes, what="no level reached")
            if row == 0:
                axes.set_title(canvas.panel_title(name), fontsize=9.5)
                axes.set_ylim(-0.03, 1.03)
            if row == 2:
                axes.set_xlabel(canvas.RATIO_LABEL, fontsize=9)
    figure.suptitle("The circuits when training first reaches a given loss", fontsize=12)
    canvas.legend(figure, _matched_handles(stats))
    return figure


def _level_colours(stats: "xarray.Dataset") -> list[Any]:
    """One colour per level, from light to dark as the loss falls."""
    import matplotlib

    order = np.argsort(np.argsort(-stats["level"].to_numpy()))
    return [matplotlib.colormaps["plasma"](0.8 - 0.7 * place / max(len(order) - 1, 1)) for place in order]


def _marks(stats: "xarray.Dataset") -> Iterator[dict[str, Any]]:
    """How to draw each (design, level): its statistics over r, colour, marker, and whether it brings the theory."""
    for i in range(stats.sizes["design"]):
        for n, colour in enumerate(_level_colours(stats)):
            yield {"cells": stats.isel(design=i, level=n), "colour": colour, "place": i}


def _theory(ds: "xarray.Dataset", variable: str, cells: "xarray.Dataset") -> tuple[np.ndarray, np.ndarray]:
    """Ratios and the theory there, for one parameterization and level: at many ratios where `ds` has them."""
    if f"theory_curve_{variable}" not in ds:
        return cells["r"].to_numpy(), cells[f"{variable}_theory"].to_numpy()
    place = {"parameterization": cells["parameterization"].item(), "level": cells["level"].item()}
    return ds["curve_r"].to_numpy(), ds[f"theory_curve_{variable}"].sel(place).to_numpy()


def _matched_curve(
    axes: "matplotlib.axes.Axes",
    variable: str,
    *,
    theory: tuple[np.ndarray, np.ndarray],
    cells: "xarray.Dataset",
    colour: Any,
    place: int,
) -> None:
    """Means with the seeds' standard deviation as bars, and once per level the line of the theory."""
    r = cells["r"].to_numpy()
    if place == 0:
        # A single ratio makes no line: a dash stands for it.
        alone = {"marker": "_", "markersize": 18} if r.size == 1 else {}
        axes.plot(*theory, color=colour, linewidth=1.3, **alone)
    sd = np.nan_to_num(cells[f"{variable}_sd"].to_numpy())
    face = colour if place == 0 else "white"
    axes.errorbar(
        r,
        cells[f"{variable}_mean"].to_numpy(),
        yerr=sd,
        fmt="osD^"[place % 4],
        markersize=4.5 if place == 0 else 6.5,
        markerfacecolor=face,
        markeredgecolor=colour,
        ecolor=colour,
        elinewidth=1.2,
        zorder=4 if place == 0 else 3,
    )


def _matched_handles(stats: "xarray.Dataset") -> list[Any]:
    """The key: a colour per loss, a marker per design, a line for the theory."""
    from matplotlib.lines import Line2D

    pairs = zip(stats["level"].to_numpy(), _level_colours(stats), strict=True)
    handles = [Line2D([], [], color=colour, linewidth=4, label=f"loss {level:.4g}") for level, colour in pairs]
    for place, design in enumerate(stats["design"].to_numpy()):
        marker = {"marker": "osD^"[place % 4], "markersize": 4.5 if place == 0 else 6.5, "linestyle": "none"}
        face = canvas.INK if place == 0 else "white"
        handles.append(
            Line2D([], [], color=canvas.INK, markerfacecolor=face, label=f"trained, {design} design", **marker)
        )
    return [*handles, Line2D([], [], color=canvas.INK, linewidth=1.3, label="theory")]

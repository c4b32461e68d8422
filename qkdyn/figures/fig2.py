"""Figure 2: heat maps of attention against prediction for each arm, and attention against loss where it was read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkdyn.errors import InputError
from qkdyn.figures import canvas
from qkdyn.metrics.dtap import EDGES, mean_and_std

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

Record = Mapping[str, Any]
COLUMNS = 4
# The share of a class's own tokens in the context; uniform attention gives (L - 2) / (L - 1) of it.
SHARE = 5.5 / 15.5


def draw_fig2(records: Sequence[Record], folder: str | Path) -> list[Path]:
    """Draw `heatmaps.png` and `matched.png`, attention as the loss falls, in `folder`.

    Args:
        records: of finished arms, as `experiments.fig2_parameterizations` writes them.
        folder: an existing folder.

    Raises:
        InputError: there is no record. OutputError: a file cannot be written.
    """
    if not records:
        raise InputError("records must hold at least one finished arm, got none")
    figures = {"heatmaps.png": draw_heatmaps(records)}
    if any(record["trace"] for record in records):
        figures["matched.png"] = draw_matched_arms(records)
    return [canvas.save(figure, Path(folder) / name) for name, figure in figures.items()]


def draw_heatmaps(records: Sequence[Record]) -> "matplotlib.figure.Figure":
    """A panel for each arm and multiplier: percent of fresh sequences by attention and probability of the label."""
    panels = [(record, multiplier) for record in records for multiplier in record["arm"]["multipliers"]]
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = canvas.new_figure(3.0 * columns + 0.4, 2.85 * rows + 0.6)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, (record, multiplier) in zip(grid.ravel(), panels, strict=False):
        _heatmap(axes, record, multiplier)
    for axes in grid.ravel()[len(panels) :]:
        axes.set_axis_off()
    for axes in grid[-1]:
        axes.set_xlabel("attention on the class's own tokens", fontsize=8)
    for row in grid:
        row[0].set_ylabel("probability of the label", fontsize=8)
    figure.suptitle(
        "Percent of fresh sequences (mean over seeds); attention is uniform at the dotted line", fontsize=11
    )
    return figure


def _heatmap(axes: "matplotlib.axes.Axes", record: Record, multiplier: float) -> None:
    arm = record["arm"]
    runs = [run for run in record["runs"] if run["multiplier"] == multiplier]
    counts = np.array([run["counts"] for run in runs], float)
    mean, sd = mean_and_std(100 * counts / counts.sum((1, 2), keepdims=True))
    edges = np.array(EDGES)
    axes.pcolormesh(edges, edges, mean, cmap="cividis", vmin=0, vmax=100)
    for row, column in zip(*np.nonzero(mean >= 0.05), strict=True):
        spread = f"\n±{sd[row, column]:.1f}" if np.isfinite(sd[row, column]) else ""
        ink = "white" if mean[row, column] < 55 else "black"
        x, y = (float(edges[i : i + 2].mean()) for i in (column, row))
        axes.text(x, y, f"{mean[row, column]:.1f}{spread}", ha="center", va="center", fontsize=7, color=ink)
    uniform = SHARE * (arm["length"] - 2) / (arm["length"] - 1)
    axes.axvline(uniform, color="white", linewidth=1, linestyle=":")
    rate = f"{multiplier:g}" + (f"-{multiplier * arm['ramp']:g}" if arm["ramp"] != 1 else "")
    names = ("distinct", "query", "loss", "accuracy")
    own, query, loss, right = (np.mean([run[name] for run in runs]) for name in names)
    axes.set_title(
        f"{arm['name']}: {arm['form']}, QK x{rate}\nattention {own:.3f}, on query {query:.3f}\n"
        f"loss {loss:.2g}, accuracy {right:.4f}",
        fontsize=8,
    )
    axes.tick_params(labelsize=7)


def draw_matched_arms(records: Sequence[Record]) -> "matplotlib.figure.Figure":
    """Attention on the class's own tokens and (dashed) on the query's id against loss, a row for each start and rate.

    A colour is the ratio at the end, where it grows.
    """
    # Where some arms were read at matched losses the others have another purpose and another start.
    records = [record for record in records if record["matched"]] or records
    rows = sorted({(record["arm"]["eta_ov"], record["arm"]["scale"]) for record in records}, reverse=True)
    forms = list(dict.fromkeys(record["arm"]["form"] for record in records))
    ratios = sorted({r * record["arm"]["ramp"] for record in records for r in record["arm"]["multipliers"]})
    figure = canvas.new_figure(3.0 * len(forms) + 0.6, 2.9 * len(rows) + 1.0)
    grid = figure.subplots(len(rows), len(forms), sharex=True, sharey=True, squeeze=False)
    losses = [line["evaluation"] for record in records for line in record["trace"]]
    limits = canvas.log_limits(canvas.span(np.array(losses), positive=True) or (0.01, 4.0), 0.02)
    for record in records:
        arm = record["arm"]
        axes = grid[rows.index((arm["eta_ov"], arm["scale"])), forms.index(arm["form"])]
        canvas.style(axes)
        for r, colour in zip(ratios, canvas.ratio_colours(ratios), strict=True):
            _curves(axes, [line for line in record["trace"] if line["multiplier"] * arm["ramp"] == r], colour)
        axes.axhline(SHARE * (arm["length"] - 2) / (arm["length"] - 1), color=canvas.INK, linewidth=0.8, linestyle=":")
        axes.set(xscale="log", xlim=limits[::-1], ylim=(-0.03, 1.03))
        canvas.log_ticks(axes.xaxis, limits)
    for axes, form in zip(grid[0], forms, strict=True):
        axes.set_title(canvas.panel_title(form), fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("evaluation loss (falls to the right)", fontsize=8.5)
    for row, (eta_ov, scale) in zip(grid, rows, strict=True):
        start = f"start x{scale:g}" if records[0]["arm"]["qk"] == "common" else "the panels' starts"
        row[0].set_ylabel(f"attention; {start},\n" + rf"$\eta_{{OV}}$ = {eta_ov:g}", fontsize=9)
    title = "Attention on the class's own tokens (lines: seeds)\nand on the query's id (dashed) as the loss falls"
    figure.suptitle(title, fontsize=11)
    canvas.ratio_key(figure, grid, ratios, theory=True, dashes="on the query's id")
    return figure


def _curves(axes: "matplotlib.axes.Axes", lines: Sequence[Mapping[str, Any]], colour: Any) -> None:
    for seed in dict.fromkeys(line["seed"] for line in lines):
        own = [line for line in lines if line["seed"] == seed]
        loss = [line["evaluation"] for line in own]
        axes.plot(loss, [line["distinct"] for line in own], color=colour, linewidth=1.4, alpha=0.8)
        axes.plot(
            loss, [line["query"] for line in own], color=colour, linewidth=1.0, alpha=0.8, linestyle=canvas.DASHES
        )

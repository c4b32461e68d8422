"""Questions and answers: Figure 5's heat maps, learning curves, attention of the arms, confidence against threshold, tuning."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkdyn.errors import InputError
from qkdyn.figures import canvas
from qkdyn.figures.text import DOTS, heatmap, looks_of
from qkdyn.figures.text_records import as_numbers, measured, over_epochs
from qkdyn.figures.text_tuning import moved, shown

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

Record = Mapping[str, Any]
# The two probability axes of the heat maps.
AXES = (("dtap_unspaced", "answer without its space,\nas published"), ("dtap", "answer as learned"))
# Quantity, label, name of its uniform value, key of its baseline.
PANELS = (
    ("f1", "F1", None, "f1"),
    ("loss", "loss, nats per token of the answer", None, "loss"),
    ("entropy", "sharper: entropy of the rollout, nats", "uniform_entropy", None),
    ("head_entropy", "sharper: mean entropy of the heads, nats", "uniform_head_entropy", None),
    ("mass", "on the answer: MRTA (rollout)", "uniform_mass", None),
    ("ac", "on the answer: AC, %", "uniform_ac", None),
    ("comprehensiveness", "faithful: comprehensiveness", None, None),
    ("sufficiency", "faithful: sufficiency", None, None),
)
# Percent of questions: less is not seen in a figure.
SEEN = 0.5
WHEN = {"end": "after the last epoch", "best": "at each run's best epoch"}
CURVES = ("training_loss", "loss", "f1", "mass", "entropy")
LABELS = {
    "training_loss": "training loss (smoothed,\nwith dropout), nats",
    "loss": "loss, nats per\ntoken of the answer",
}
LABELS |= {"f1": "F1", "mass": "MRTA (rollout)", "entropy": "entropy of the\nrollout, nats"}


def label(arm: Mapping[str, Any]) -> str:
    """An arm by its rates: "5e-4, QK x20"; W_E has a tenth of the rate, as published, unless it is said to have it too."""
    rate = f"{arm['rate']:.0e}".replace("e-0", "e-") + (", W_E too" if arm["embed"] == 1 else "")
    return rate + (f", QK x{arm['qk']:g}" if arm["qk"] != 1 else "")


def draw_squad(arms: Sequence[Record], title: str, reading: str, folder: str | Path) -> list[Path]:
    """Draw dtap.png (Figure 5), learning.png, attention.png and curves.png.

    Args:
        arms: records of arms with a run for each seed, as `experiments.squad.readings.by_arm` joins them.
        title: protocol and sizes.
        reading: of the heat maps and curves over thresholds: end or best.
        folder: an existing folder.

    Raises:
        InputError: there is no record. OutputError: a file cannot be written.
    """
    if not arms:
        raise InputError("arms must hold at least one with a finished run, got none")
    figures = {
        "dtap.png": draw_dtap(arms, title, reading),
        "learning.png": draw_learning(arms, title),
        "attention.png": draw_attention(arms, title),
        "curves.png": draw_curves(arms, title, reading),
    }
    return [canvas.save(figure, Path(folder) / name) for name, figure in figures.items()]


def draw_dtap(arms: Sequence[Record], title: str, reading: str) -> "matplotlib.figure.Figure":
    """Figure 5: percent of dev questions by rollout mass on the answer and probability; mean and deviation over seeds."""
    edges = arms[0]["edges"]
    bins = [f"< {edges[1]:g}", *(f"to {edge:g}" for edge in edges[2:-1]), f"> {edges[-2]:g}"]
    figure = canvas.new_figure(max(2.8 * len(arms) + 1.0, 7.0), 2.9 * len(AXES) + 1.0)
    grid = figure.subplots(len(AXES), len(arms), squeeze=False)
    found = [[_maps(record, reading, name) for record in arms] for name, _ in AXES]
    most = max((float(maps.mean(0).max()) for line in found for maps in line if len(maps)), default=100.0)
    for line, maps, (_, whose) in zip(grid, found, AXES, strict=True):
        for axes, own in zip(line, maps, strict=True):
            heatmap(axes, own, most, bins)
        line[0].set_ylabel(f"probability, {whose}", fontsize=8)
    for axes, record in zip(grid[0], arms, strict=True):
        axes.set_title(label(record["arm"]), fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("rollout mass on the answer", fontsize=8)
    over = _over(arms, "mean ± standard deviation")
    _headed(figure, f"Percent of dev questions {WHEN[reading]}, {over}", title)
    return figure


def _maps(record: Record, reading: str, name: str) -> np.ndarray:
    """Heat maps of the runs that have one, (runs, k, k)."""
    known = [measured(run, reading, "dev").get(name) for run in record["runs"]]
    kept = [as_numbers(own) for own in known if own is not None]
    return np.array([own for own in kept if np.isfinite(own).all()])


def draw_learning(arms: Sequence[Record], title: str) -> "matplotlib.figure.Figure":
    """Training loss, and on the selection questions loss, F1, MRTA and entropy after each epoch; mean and range over seeds."""
    figure = canvas.new_figure(7.4, 2.0 * len(CURVES) + 1.6)
    grid = figure.subplots(len(CURVES), 1, sharex=True, squeeze=False)[:, 0]
    for axes, name in zip(grid, CURVES, strict=True):
        canvas.style(axes)
        for record, (colour, dashes) in zip(arms, looks_of(arms), strict=True):
            runs = [run for run in record["runs"] if run["epochs"]["training_loss"]]
            values = np.stack([over_epochs(run, "selection", name, record["arm"]["epochs"]) for run in runs])
            canvas.band(axes, np.arange(1, values.shape[1] + 1), values, colour, 1.5, canvas.PALE)
            axes.lines[-1].set_linestyle(dashes)
        axes.set_ylabel(LABELS[name], fontsize=8.5)
        if name in ("loss", "f1"):
            _floor(axes, arms[0], name, horizontal=True)
    grid[-1].set_xlabel("epoch", fontsize=9)
    grid[-1].xaxis.get_major_locator().set_params(integer=True)
    _headed(figure, f"Selection questions as training goes on, {_over(arms, 'mean and range')}", title)
    canvas.legend(figure, [*_key(arms), _line("the best answer without a model (dev)", canvas.INK, DOTS)])
    return figure


def draw_attention(arms: Sequence[Record], title: str) -> "matplotlib.figure.Figure":
    """Each quantity of each arm on dev with its 95% interval, at the best and the last epoch, beside uniform attention."""
    figure = canvas.new_figure(13.6, 0.75 * len(arms) + 4.4)
    grid = figure.subplots(2, 4, sharey=True, squeeze=False)
    looks = {"best": ("o", canvas.CATEGORIES[0], 0.14), "end": ("s", "white", -0.14)}
    for axes, (name, text, uniform, floor) in zip(grid.ravel(), PANELS, strict=True):
        canvas.style(axes)
        for reading, (marker, face, shift) in looks.items():
            found = [_of_runs(record, reading, name) for record in arms]
            y = [shift - place for place in range(len(arms))]
            style = {"color": canvas.CATEGORIES[0], "markerfacecolor": face, "markersize": 5, "elinewidth": 1.3}
            canvas.interval_or_runs(axes, y, found, along="y", fmt=marker, **style)
        if uniform is not None:
            flat = np.concatenate([_of_runs(record, "best", uniform) for record in arms])
            if np.isfinite(flat).any():
                axes.axvline(float(np.nanmean(flat)), color=canvas.INK, linewidth=1.0, linestyle=DOTS)
        if floor is not None:
            _floor(axes, arms[0], floor, horizontal=False)
        axes.set_title(text, fontsize=9.5)
        axes.locator_params(axis="x", nbins=5)
    for row in grid:
        row[0].set_yticks([-place for place in range(len(arms))], [label(record["arm"]) for record in arms])
        row[0].set_ylim(0.6 - len(arms), 0.6)
    _headed(figure, f"Dev questions, {_over(arms, 'mean and 95% interval')}", title)
    handles = [_mark("best epoch", *looks["best"][:2]), _mark("last epoch", *looks["end"][:2])]
    handles.append(_line("uniform attention; for F1 and loss, the best without a model", canvas.INK, DOTS))
    canvas.legend(figure, handles)
    return figure


def draw_curves(arms: Sequence[Record], title: str, reading: str) -> "matplotlib.figure.Figure":
    """AC against the threshold, dev: mean and range over seeds, beside uniform attention."""
    figure = canvas.new_figure(7.4, 4.4)
    axes = figure.subplots(1, 1)
    canvas.style(axes)
    x, last = np.array(arms[0]["thresholds"]), 0.0
    for record, (colour, dashes) in zip(arms, looks_of(arms), strict=True):
        heights = _heights(record, reading, "ac_curve", len(x))
        canvas.band(axes, x, heights, colour, 1.5, canvas.PALE)
        axes.lines[-1].set_linestyle(dashes)
        last = max(last, *(float(x[row >= SEEN][-1]) for row in heights if (row >= SEEN).any()), 0.1)
    flat = _heights(arms[0], reading, "uniform_ac_curve", len(x))
    axes.plot(
        x, flat[np.isfinite(flat).all(1)].mean(0) if np.isfinite(flat).all(1).any() else flat[0], color=canvas.INK
    )
    axes.lines[-1].set(linestyle=DOTS, linewidth=1.0)
    axes.axvline(0.1, color=canvas.INK, linewidth=0.7, alpha=0.6)
    # Beyond the last threshold that is reached there is nothing to be seen.
    end = min(1.0, 1.25 * last)
    axes.set(xlim=(0, end), ylim=(-2, 102))
    beyond = f"; beyond {end:.2g} all are below {SEEN:g}%" if end < 1 else ""
    axes.set_xlabel(f"threshold of rollout mass on the answer (upright: as published{beyond})", fontsize=9)
    axes.set_ylabel("% of dev questions that reach it", fontsize=9)
    _headed(figure, f"AC against its threshold, {WHEN[reading]}", title)
    canvas.legend(figure, [*_key(arms), _line("uniform attention", canvas.INK, DOTS)])
    return figure


def draw_squad_tuning(rates: Sequence[Record], multipliers: Sequence[Record], path: str | Path) -> Path:
    """F1 and loss of selection, MRTA and entropy of dev, against the base rate, and against QK's multiplier at that chosen.

    Args:
        rates: arms that differ in the base rate.
        multipliers: the chosen rate without a multiplier and with each; may be empty.
        path: the file.

    Raises:
        InputError: there is no record. OutputError: the file cannot be written.
    """
    if not rates:
        raise InputError("rates must hold at least one finished arm, got none")
    rows = (("selection", "f1", "F1, selection"), ("selection", "loss", "loss, selection"))
    rows += (("dev", "mass", "MRTA, dev"), ("dev", "entropy", "entropy of the\nrollout, nats, dev"))
    figure = canvas.new_figure(8.6, 8.4)
    grid = figure.subplots(len(rows), 2, sharex="col", sharey="row", squeeze=False)
    columns = ((rates, "rate", "base learning rate"), (multipliers, "qk", canvas.RATIO_LABEL))
    for column, (records, setting, text) in zip(grid.T, columns, strict=True):
        for axes, (split, name, _) in zip(column, rows, strict=True):
            canvas.style(axes)
            axes.set_xscale("log")
            # Moved apart, not to lie on each other.
            for reading, marker, face, shift in (
                ("best", "o", canvas.CATEGORIES[0], -0.016),
                ("end", "s", "white", 0.016),
            ):
                found = [_of_runs(r, reading, name, split) for r in records]
                style = {"color": canvas.CATEGORIES[0], "markerfacecolor": face, "markersize": 5, "elinewidth": 1.2}
                places = moved([r["arm"][setting] for r in records], shift)
                canvas.interval_or_runs(axes, places, found, fmt=marker, **style)
        column[-1].set_xlabel(text, fontsize=9)
    for row, (_, _, text) in zip(grid, rows, strict=True):
        row[0].set_ylabel(text, fontsize=9)
    at = f" at a rate of {multipliers[0]['arm']['rate']:g}" if multipliers else ": none trained"
    grid[0, 0].set_title("every parameter at one rate (W_E at a tenth)", fontsize=10)
    grid[0, 1].set_title(f"QK faster{at}", fontsize=10)
    what = f"({shown([*rates, *multipliers])})"
    figure.suptitle(f"What selection chooses, and the attention it brings along {what}", fontsize=11)
    canvas.legend(figure, [_mark("best epoch", "o", canvas.CATEGORIES[0]), _mark("last epoch", "s", "white")])
    return canvas.save(figure, path)


def _of_runs(record: Record, reading: str, name: str, split: str = "dev") -> np.ndarray:
    """A quantity of each run, (seeds,)."""
    return as_numbers([measured(run, reading, split).get(name) for run in record["runs"]])


def _heights(record: Record, reading: str, name: str, count: int) -> np.ndarray:
    """A curve of each run, (runs, thresholds), NaN where it has none."""
    known = [measured(run, reading, "dev").get(name) for run in record["runs"]]
    return np.stack([np.full(count, np.nan) if own is None else as_numbers(own) for own in known])


def _floor(axes: "matplotlib.axes.Axes", record: Record, name: str, *, horizontal: bool) -> None:
    """A line for the best answer that needs no model: least loss, highest F1."""
    known = [own[name] for own in record["baselines"].values() if own.get(name) is not None]
    if known:
        draw = axes.axhline if horizontal else axes.axvline
        draw(min(known) if name == "loss" else max(known), color=canvas.INK, linewidth=1.0, linestyle=DOTS)


def _key(arms: Sequence[Record]) -> list[Any]:
    return [_line(label(r["arm"]), colour, dashes) for r, (colour, dashes) in zip(arms, looks_of(arms), strict=True)]


def _line(text: str, colour: str, dashes: Any) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, linestyle=dashes, linewidth=1.5, label=text)


def _mark(text: str, marker: str, face: str) -> Any:
    from matplotlib.lines import Line2D

    style = {"linestyle": "", "color": canvas.CATEGORIES[0], "markerfacecolor": face, "markersize": 5}
    return Line2D([], [], marker=marker, label=text, **style)


def _over(arms: Sequence[Record], what: str) -> str:
    """Mean and spread over seeds, the runs where these are too few for an interval, or the one seed."""
    count = len(arms[0]["runs"])
    if count == 2 and "interval" in what:
        return "the 2 runs"
    return canvas.over_seeds(count, what)


def _headed(figure: "matplotlib.figure.Figure", what: str, title: str) -> None:
    """A title of two lines: what is shown, and of which protocol and sizes."""
    width = int(figure.get_figwidth() * 14)
    figure.suptitle("\n".join([what, *textwrap.wrap(title, width)]), fontsize=10)

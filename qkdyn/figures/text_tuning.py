"""Tuning on text: accuracy and attention against the base rate, and against the multiplier of QK at the chosen one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkdyn.errors import InputError
from qkdyn.figures import canvas
from qkdyn.figures.text_records import POSTS, Called, as_numbers, measured
from qkdyn.metrics.intervals import confidence_interval

if TYPE_CHECKING:
    import matplotlib.axes

Record = Mapping[str, Any]


def draw_tuning(
    rates: Sequence[Record],
    multipliers: Sequence[Record],
    path: str | Path,
    called: Called = POSTS,
    by: str = "accuracy",
) -> Path:
    """Draw the tuning in `path`, as PNG: mean and 95% interval over seeds after the last epoch and at the best one.

    Args:
        rates: records of the arms that differ in the base rate.
        multipliers: of those that differ in the multiplier of QK, at one rate; may be empty.
        path: the file.
        called: what the instances are.
        by: the measure of the validation split by which arms are chosen.

    Raises:
        InputError: there is no record. OutputError: the file cannot be written.
    """
    if not rates:
        raise InputError("rates must hold at least one finished arm, got none")
    rows = (
        (
            by,
            "validation",
            f"validation accuracy, all {called.every}" if by == "accuracy" else "validation accuracy,\nas is chosen by",
        ),
        ("entropy_marked", "test", f"sharper: entropy, nats,\n{called.marked}"),
        ("auprc", "test", f"on the relevant tokens: AUPRC,\n{called.marked}"),
    )
    figure = canvas.new_figure(8.6, 7.4)
    grid = figure.subplots(len(rows), 2, sharex="col", sharey="row", squeeze=False)
    columns = ((rates, "rate", "base learning rate"), (multipliers, "qk", canvas.RATIO_LABEL))
    for column, (records, name, label) in zip(grid.T, columns, strict=True):
        for axes, (quantity, split, _) in zip(column, rows, strict=True):
            canvas.style(axes)
            axes.set_xscale("log")
            for reading, marker, face in (("end", "o", canvas.CATEGORIES[0]), ("best", "s", "white")):
                _points(axes, records, name, (reading, split, quantity), marker, face)
        column[-1].set_xlabel(label, fontsize=9)
    for row, (_, _, label) in zip(grid, rows, strict=True):
        row[0].set_ylabel(label, fontsize=9)
    at = f" at a rate of {multipliers[0]['arm']['rate']:g}" if multipliers else ": none trained"
    grid[0, 0].set_title("every parameter at one rate", fontsize=10)
    grid[0, 1].set_title(f"QK faster{at}", fontsize=10)
    figure.suptitle("What validation chooses, and the attention it brings along (mean, 95% interval)", fontsize=11)
    canvas.legend(figure, [_key("last epoch", "o", canvas.CATEGORIES[0]), _key("best validation epoch", "s", "white")])
    return canvas.save(figure, path)


def _points(
    axes: "matplotlib.axes.Axes",
    records: Sequence[Record],
    name: str,
    where: tuple[str, str, str],
    marker: str,
    face: str,
) -> None:
    reading, split, quantity = where
    x, mean, half = [], [], []
    for record in sorted(records, key=lambda record: record["arm"][name]):
        own = as_numbers([measured(run, reading, split).get(quantity) for run in record["runs"]])
        interval = confidence_interval(own)
        x.append(record["arm"][name])
        mean.append(float(interval.mean))
        half.append(float(np.nan_to_num(interval.high - interval.mean)))
    colour = canvas.CATEGORIES[0]
    if x:
        axes.errorbar(x, mean, yerr=half, fmt=marker, color=colour, markerfacecolor=face, markersize=5, elinewidth=1.2)


def _key(label: str, marker: str, face: str) -> Any:
    from matplotlib.lines import Line2D

    style = {"linestyle": "", "color": canvas.CATEGORIES[0], "markerfacecolor": face, "markersize": 5}
    return Line2D([], [], marker=marker, label=label, **style)

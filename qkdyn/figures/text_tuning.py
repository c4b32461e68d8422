"""Tuning on text: accuracy and attention against the base rate, and against the multiplier of QK at the chosen one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkdyn.errors import InputError
from qkdyn.figures import canvas
from qkdyn.figures.text_records import POSTS, Called, as_numbers, measured

if TYPE_CHECKING:
    import matplotlib.axes

Record = Mapping[str, Any]

# Of each reading its marker, its face, and by what part of the logarithmic axis it is moved.
LOOKS = {"end": ("o", canvas.CATEGORIES[0], -0.016), "best": ("s", "white", 0.016)}


def shown(records: Sequence[Record]) -> str:
    """What is drawn of each arm, by its number of runs."""
    counts = {len(record["runs"]) for record in records}
    few = max((count for count in counts if count < canvas.FEWEST), default=0)
    parts = ["mean, 95% interval"] if max(counts) >= canvas.FEWEST else []
    return " or ".join(parts + ([f"each of {few} runs" if few > 1 else "one run"] if few else []))


def moved(places: Sequence[float], part: float) -> list[float]:
    """Places on a logarithmic axis, moved by a part of what they span, or of ten times the least."""
    by = max([max(places) / min(places), 10.0] if places else [1.0]) ** part
    return [place * by for place in places]


def draw_tuning(
    rates: Sequence[Record],
    multipliers: Sequence[Record],
    path: str | Path,
    called: Called = POSTS,
    by: str = "accuracy",
    chosen: str = "end",
) -> Path:
    """Draw the tuning in `path`, as PNG: mean and 95% interval over seeds after the last epoch and at the best one.

    Of fewer than three seeds the runs themselves. The best epoch stands a little to the right, not to lie on the last.

    Args:
        rates: records of the arms that differ in the base rate.
        multipliers: of those that differ in the multiplier of QK, at one rate; may be empty.
        path: the file.
        called: what the instances are.
        by: the measure of the validation split by which arms are chosen.
        chosen: the reading by which they are: end or best.

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
            for reading, look in LOOKS.items():
                _points(axes, records, name, (reading, split, quantity), *look)
        column[-1].set_xlabel(label, fontsize=9)
    for row, (_, _, label) in zip(grid, rows, strict=True):
        row[0].set_ylabel(label, fontsize=9)
    at = f" at a rate of {multipliers[0]['arm']['rate']:g}" if multipliers else ": none trained"
    grid[0, 0].set_title("every parameter at one rate", fontsize=10)
    grid[0, 1].set_title(f"QK faster{at}", fontsize=10)
    what = f"({shown([*rates, *multipliers])})"
    figure.suptitle(f"What validation chooses, and the attention it brings along {what}", fontsize=11)
    labels = {"end": "last epoch", "best": "best validation epoch"}
    labels[chosen] += ", by which is chosen"
    canvas.legend(figure, [_key(labels[reading], *look[:2]) for reading, look in LOOKS.items()])
    return canvas.save(figure, path)


def _points(
    axes: "matplotlib.axes.Axes",
    records: Sequence[Record],
    name: str,
    where: tuple[str, str, str],
    marker: str,
    face: str,
    shift: float,
) -> None:
    reading, split, quantity = where
    runs = [as_numbers([measured(run, reading, split).get(quantity) for run in r["runs"]]) for r in records]
    style = {"color": canvas.CATEGORIES[0], "markerfacecolor": face, "markersize": 5, "elinewidth": 1.2}
    places = moved([r["arm"][name] for r in records], shift)
    canvas.interval_or_runs(axes, places, runs, fmt=marker, **style)


def _key(label: str, marker: str, face: str) -> Any:
    from matplotlib.lines import Line2D

    style = {"linestyle": "", "color": canvas.CATEGORIES[0], "markerfacecolor": face, "markersize": 5}
    return Line2D([], [], marker=marker, label=label, **style)

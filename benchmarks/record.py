"""The record of the benchmarks: bench.csv, where a part measured again replaces its rows, its figure and its tables."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.measure import Row
from benchmarks.throughput import PART, count_in
from qkdyn.errors import reject
from qkdyn.figures import canvas
from qkdyn.results import check_frame, load_frame

if TYPE_CHECKING:
    import matplotlib.figure
    import rich.table

COLOURS = {"FAFO": "#0072b2", "CAFO": "#009e73", "FACO": "#cc79a7", "CACO": "#d55e00"}
MARKERS = {"FAFO": "o", "CAFO": "^", "FACO": "v", "CACO": "s"}


def read(path: Path) -> list[Row]:
    """The rows on record; none where there is no record yet.

    Raises:
        OutputError: the file is not CSV. InputError: it is not a record of benchmarks.
    """
    if not path.exists():
        return []
    do = "remove it, or choose another --out"
    frame = load_frame(path, do=do)
    numbers = ("value", "ratio", "ratio_low", "ratio_high", "spread", "repeats")
    check_frame(frame, key=("part", "name", "unit"), numbers=numbers, source=str(path), do=do)
    if "baseline" not in frame.columns:
        reject(f"the columns of {path}", list(frame.columns), "those of a record of benchmarks", do)
    blank = frame.fillna({"baseline": ""})
    return [Row(*values) for values in zip(*(blank[name].tolist() for name in Row._fields), strict=True)]


def merge(old: Sequence[Row], part: str, rows: Sequence[Row], order: Sequence[str]) -> list[Row]:
    """`old` with the rows of `part` replaced by `rows`; parts stand in `order`, those it does not know last."""
    place = {name: index for index, name in enumerate(order)}
    kept = [*(row for row in old if row.part != part), *rows]
    return sorted(kept, key=lambda row: place.get(row.part, len(place)))


def to_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV, numbers to six digits."""
    import pandas as pd

    return pd.DataFrame(rows, columns=list(Row._fields)).to_csv(index=False, float_format="%.6g")


def draw(record: Sequence[Row]) -> "matplotlib.figure.Figure":
    """Run-steps per second against the number of runs, a line for each parameterization, its range over the repeats."""
    figure = canvas.new_figure(5.2, 3.8)
    axes = figure.subplots()
    canvas.style(axes)
    axes.set(xscale="log", yscale="log", xlabel="runs trained together", ylabel="run-steps per second")
    lines: dict[str, list[tuple[int, float, float]]] = {}
    for row in record:
        if row.part == PART and (found := count_in(row.name)):
            lines.setdefault(found[0], []).append((found[1], row.value, row.spread))
    for form, points in lines.items():
        runs, rates, spread = np.array(sorted(points)).T
        half = np.nan_to_num(rates * spread) / 2
        style = {"color": COLOURS[form], "marker": MARKERS[form], "markersize": 5, "linewidth": 1.6, "capsize": 3}
        axes.errorbar(runs, rates, half, label=form, **style)
    if lines:
        counts = sorted({point[0] for points in lines.values() for point in points})
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.minorticks_off()
        rates = np.array([point[1] for points in lines.values() for point in points])
        bounds = canvas.log_limits((rates.min() / 1.3, rates.max() * 1.3))
        axes.set_ylim(bounds)
        canvas.log_ticks(axes.yaxis, bounds)
        axes.legend(frameon=False, fontsize=9)
    else:
        canvas.nothing_recorded(axes, what="nothing measured")
    axes.set_title("One program for many runs", fontsize=11)
    return figure


def table(record: Sequence[Row], part: str) -> "rich.table.Table":
    """The rows of one part, for the terminal."""
    from rich import box
    from rich.table import Table

    out = Table(title=part, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("what", "median", "", "spread", "ratio", "lowest-highest", "to", "repeats"):
        out.add_column(name, justify="left" if name in ("what", "", "to") else "right")
    for row in record:
        if row.part != part:
            continue
        spread = f"{row.spread:.1%}" if math.isfinite(row.spread) else ""
        some = math.isfinite(row.ratio)
        ratio = f"{row.ratio:.3g}" if some else ""
        limits = f"{row.ratio_low:.3g}-{row.ratio_high:.3g}" if some else ""
        against = "itself" if row.baseline == row.name else row.baseline
        value = f"{row.value:,.0f}" if row.value >= 1000 else f"{row.value:.3g}"
        out.add_row(row.name, value, row.unit, spread, ratio, limits, against, str(row.repeats))
    return out

"""Tables 1 and 4 to 6 whole: what was printed beside ours as Markdown, and what a faster QK circuit changes as a figure."""

import math
from typing import TYPE_CHECKING, Any

from qkdyn.figures import canvas
from qkdyn.results.frames import check_frame

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas

KEY = ("data", "arm", "column", "source")
VALUES = ("mean", "low", "high")
CHANGES = ("change_mean", "change_low", "change_high")
PRINTED = ("paper", "notebooks")
ARMS = {"baseline": "baseline", "faster": "faster QK"}
# Shares that the paper prints as percent.
PERCENT = ("train performance", "test performance")
DRAWN = {
    "MRTA": "MRTA",
    "test performance": "test performance, points",
    "comprehensiveness": "comprehensiveness",
    "sufficiency": "sufficiency",
}


def check_published(frame: "pandas.DataFrame", source: str = "the table") -> None:
    """Raise InputError unless `frame` has a row for each data set, arm, column and source, with means and intervals."""
    do = "give the summary.csv of experiments.table1"
    check_frame(frame, key=KEY, numbers=(*VALUES, *CHANGES), source=source, do=do)


def published_text(frame: "pandas.DataFrame") -> str:
    """A Markdown table for each data set: a row for each column of Table 1 and arm, a column for each source.

    Args:
        frame: data, arm, column, source, mean, low and high (of 95% intervals).

    Raises:
        InputError: `frame` is not such a table.
    """
    check_published(frame)
    parts = []
    for data in dict.fromkeys(frame["data"]):
        own: Any = frame[frame["data"] == data]
        sources = list(dict.fromkeys(own["source"]))
        lines = [f"| {data} | arm | " + " | ".join(sources) + " |", "|---" * (len(sources) + 2) + "|"]
        for column in dict.fromkeys(own["column"]):
            for arm, called in ARMS.items():
                found = own[(own["arm"] == arm) & (own["column"] == column)].set_index("source")
                cells = [_cell(found.loc[source], column) if source in found.index else "·" for source in sources]
                lines.append(f"| {column} | {called} | " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n\nMean ± half of its 95% interval; a dot is what was not printed or not run.\n"


def _cell(row: Any, column: str) -> str:
    mean, low, high = (float(row[name]) * (100 if column in PERCENT else 1) for name in VALUES)
    if not math.isfinite(mean):
        return "·"
    digits = 1 if column in (*PERCENT, "AC", "ACMC") else 3
    half = f" ± {(high - low) / 2:.{digits}f}" if math.isfinite(high - low) else ""
    return f"{mean:.{digits}f}{half}"


def draw_published(frame: "pandas.DataFrame") -> "matplotlib.figure.Figure":
    """What a faster QK circuit changes: a column for each data set, a row for each quantity, a point for each source.

    Changes of ours are means of differences within a seed, with 95% intervals; of printed numbers the difference of means.

    Args:
        frame: as for `published_text`, with change_mean, change_low and change_high of ours.

    Raises:
        InputError: `frame` is not such a table.
    """
    check_published(frame)
    sets = list(dict.fromkeys(frame["data"]))
    figure = canvas.new_figure(3.1 * len(sets) + 0.6, 2.0 * len(DRAWN) + 0.9)
    grid = figure.subplots(len(DRAWN), len(sets), squeeze=False)
    for column, data in enumerate(sets):
        own: Any = frame[frame["data"] == data]
        sources = list(dict.fromkeys(own["source"]))
        for axes, (name, label) in zip(grid[:, column], DRAWN.items(), strict=True):
            known = [_changed(own[own["column"] == name], source, name) for source in sources]
            for place, (source, change) in enumerate(zip(sources, known, strict=True)):
                _point(axes, place, change, source in PRINTED)
            if all(change is None for change in known):
                canvas.nothing_recorded(axes, what="nothing to compare")
            canvas.style(axes)
            axes.axvline(0.0, color=canvas.INK, linewidth=0.8)
            axes.set(yticks=range(len(sources)), yticklabels=sources, ylim=(len(sources) - 0.5, -0.5))
            axes.set_xlabel(f"change in {label}", fontsize=8)
        grid[0, column].set_title(data, fontsize=10)
    figure.suptitle("What a faster query-key circuit changes: as printed, and under each protocol", fontsize=12)
    return figure


def _point(axes: Any, place: int, change: tuple[float, float, float] | None, printed: bool) -> None:
    if change is None:
        style = {"fontsize": 7, "ha": "center", "va": "center", "color": "#888888"}
        axes.text(0.5, place, "none", transform=axes.get_yaxis_transform(), **style)
        return
    mean, low, high = change
    colour, marker = ("#888888", "D") if printed else (canvas.CATEGORIES[0], "o")
    axes.plot([mean], [place], marker=marker, color=colour, markersize=5, linestyle="none")
    if math.isfinite(low):
        axes.plot([low, high], [place, place], color=colour, linewidth=1.4)


def _changed(own: Any, source: str, column: str) -> tuple[float, float, float] | None:
    """Mean and ends of the change; of printed numbers and single seeds without ends; None where there is none."""
    here = own[own["source"] == source].set_index("arm")
    mean, low, high = (float(here.loc["faster", name]) for name in CHANGES)
    if not math.isfinite(mean):
        mean, low, high = float(here.loc["faster", "mean"]) - float(here.loc["baseline", "mean"]), math.nan, math.nan
    factor = 100.0 if column in PERCENT else 1.0
    return (mean * factor, low * factor, high * factor) if math.isfinite(mean) else None

"""Tables 1 and 4 to 6 whole: what was printed beside ours as Markdown, and what a faster QK circuit changes as a figure."""

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qkdyn.errors import InputError
from qkdyn.figures import canvas
from qkdyn.results.frames import check_frame

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas

KEY = ("data", "arm", "column", "source")
VALUES = ("mean", "low", "high")
CHANGES = ("change_mean", "change_low", "change_high")
PRINTED = ("paper", "notebooks")
# What a row says of how it was come by, and what it may leave blank.
SAID, BLANK = ("split", "instances", "quantity", "reading", "faster"), ("of", "note")
# Rows of the table that say of each source what its numbers are of.
HEADS = {"what is faster": "faster", "read": "reading", "instances": "of"}
READINGS = {"end": "last epoch", "best": "best epoch of each run"}
# Of measures that the name of the column does not say.
MEASURES = {
    "accuracy": "accuracy",
    "f1_first": "F1 by the first reference",
    "head_0_ac": "first head",
    "head_0_acmc": "first head",
    "acmc_unspaced": "answer without its space",
}
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
    do = "give the summary.csv of experiments.table1; an old one is written anew without --draw-only"
    check_frame(frame, key=(*KEY, *SAID), numbers=(*VALUES, *CHANGES), source=source, do=do)
    check_frame(frame, key=KEY, source=source, do=do)


def published_text(frame: "pandas.DataFrame") -> str:
    """A Markdown table for each data set: a row for each column of Table 1 and arm, a column for each source.

    Above them what is faster in each source and when it is read, below them what is read otherwise, and what was not run.

    Args:
        frame: data, arm, column, source, mean, low and high (of 95% intervals), split, instances, quantity, reading, faster,
            and where they are known `of`, the numbers of instances, and note.

    Raises:
        InputError: `frame` is not such a table.
    """
    check_published(frame)
    parts = []
    for data in dict.fromkeys(frame["data"]):
        own: Any = frame[frame["data"] == data]
        own = own.reindex(columns=frame.columns.union(BLANK, sort=False)).fillna(dict.fromkeys(BLANK, ""))
        known, unrun = _sources(own)
        lines = [f"| {data} | of | arm | " + " | ".join(known) + " |", "|---" * (len(known) + 3) + "|"]
        for label, name in HEADS.items():
            cells = [", ".join(dict.fromkeys(_said(own, source, name))) for source in known]
            lines.append(f"| *{label}* | | | " + " | ".join(cells) + " |")
        for column in dict.fromkeys(own["column"]):
            for arm, called in ARMS.items():
                found = own[(own["arm"] == arm) & (own["column"] == column)].set_index("source")
                cells = [_cell(found.loc[source], column) if source in found.index else "·" for source in known]
                lines.append(f"| {column} | {_instances(found)} | {called} | " + " | ".join(cells) + " |")
        parts += ["\n".join(lines), "\n".join([*_notes(own, known), *_unrun(unrun)])]
    parts.append(
        "Mean ± half of its 95% interval, of one run without it; a dot is what was not printed or not run. All are read after "
        "training, at the epoch that is named in the second row, on all instances of the split that is named, unless a line "
        "below the table says otherwise."
    )
    return "\n\n".join(filter(None, parts)) + "\n"


def _sources(own: Any) -> tuple[list[str], list[str]]:
    """Of the sources of a data set those that have a number, and those of ours that have none."""
    each = list(dict.fromkeys(own["source"]))
    known = [source for source in each if own.loc[own["source"] == source, "mean"].notna().any()]
    return known, [source for source in each if source not in (*known, *PRINTED)]


def _said(own: Any, source: str, name: str) -> list[str]:
    values = [str(value) for value in own.loc[own["source"] == source, name]]
    return [READINGS.get(value, value) for value in values] if name == "reading" else values


def _instances(found: Any) -> str:
    """What is measured on which instances of which split, as it was printed."""
    first = found.iloc[0]
    return ", ".join(filter(None, (MEASURES.get(first["quantity"], ""), first["split"], first["instances"])))


def _notes(own: Any, known: Sequence[str]) -> list[str]:
    """A line for each thing that is to be known of a source, with the columns that it is of where these are not all."""
    columns = list(dict.fromkeys(own["column"]))
    found: dict[tuple[str, str], list[str]] = {}
    for source in known:
        each: dict[str, list[str]] = {}
        there = own[(own["source"] == source) & own["mean"].notna()]
        for line in there.to_dict("records"):
            for note in filter(None, str(line["note"]).split("; ")):
                each.setdefault(note, []).append(str(line["column"]))
        for note, of in each.items():
            few = [column for column in columns if column in of] if set(of) < set(there["column"]) else []
            found.setdefault((note, ", ".join(few)), []).append(source)
    return [f"- {' and '.join(who)}{f' ({of})' if of else ''}: {note}." for (note, of), who in found.items()]


def _unrun(unrun: Sequence[str]) -> list[str]:
    return [f"- Not run: {', '.join(unrun)}."] if unrun else []


def _cell(row: Any, column: str) -> str:
    mean, low, high = (float(row[name]) * (100 if column in PERCENT else 1) for name in VALUES)
    if not math.isfinite(mean):
        return "·"
    digits = 1 if column in (*PERCENT, "AC", "ACMC") else 3
    half = f" ± {(high - low) / 2:.{digits}f}" if math.isfinite(high - low) else ""
    return f"{mean:.{digits}f}{half}"


def draw_published(frame: "pandas.DataFrame") -> "matplotlib.figure.Figure":
    """What a faster QK circuit changes: a row for each data set of which there is a run of ours, a column for each quantity.

    A point for each source that has a number; beside its name what is faster there. Changes of ours are means of differences
    within a seed, with 95% intervals; of printed numbers the difference of means.

    Args:
        frame: as for `published_text`, with change_mean, change_low and change_high of ours.

    Raises:
        InputError: `frame` is not such a table.
    """
    check_published(frame)
    sets = [data for data in dict.fromkeys(frame["data"]) if _has_ours(frame[frame["data"] == data])]
    if not sets:
        raise InputError("the table has nothing of ours to set beside what was printed; run one of the data sets first")
    known = {data: _sources(frame[frame["data"] == data])[0] for data in sets}
    heights = [len(sources) + 1.5 for sources in known.values()]
    figure = canvas.new_figure(2.9 * len(DRAWN) + 3.4, 0.34 * sum(heights) + 0.6)
    grid = figure.subplots(len(sets), len(DRAWN), squeeze=False, sharey="row", height_ratios=heights)
    for row, (data, sources) in zip(grid, known.items(), strict=True):
        own: Any = frame[frame["data"] == data]
        for axes, (name, label) in zip(row, DRAWN.items(), strict=True):
            found = [_changed(own[own["column"] == name], source, name) for source in sources]
            for place, (source, change) in enumerate(zip(sources, found, strict=True)):
                _point(axes, place, change, source in PRINTED)
            canvas.style(axes)
            axes.axvline(0.0, color=canvas.INK, linewidth=0.8)
            axes.set(ylim=(len(sources) - 0.5, -0.5))
            axes.set_xlabel(f"change in {label}", fontsize=8)
        # Beside each source what its faster arm has.
        names = [f"{source}: {', '.join(dict.fromkeys(_said(own, source, 'faster')))}" for source in sources]
        row[0].set_yticks(range(len(sources)), [textwrap.fill(name, 38) for name in names])
        row[0].tick_params(axis="y", labelsize=7.5)
        row[0].set_title(data, fontsize=10, loc="left")
    title = "What a faster query-key circuit changes: as printed (grey), and under each protocol (blue)"
    figure.suptitle(
        f"{title}\nlines: 95% intervals of the differences within a seed; none of a single seed", fontsize=11
    )
    return figure


def _has_ours(own: Any) -> bool:
    """Whether there is a change of ours to be drawn."""
    known = [source for source in _sources(own)[0] if source not in PRINTED]
    return any(_changed(own[own["column"] == name], source, name) for source in known for name in DRAWN)


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

"""Subject-verb agreement: accuracy and attention by the number of attractors, of arms and of single heads; Figure 6."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkdyn.figures import canvas
from qkdyn.figures.text import DASHDOTS, DOTS, bins_of, draw_text, heatmap, left_out, looks_by_name, words
from qkdyn.figures.text_records import MASSES, SENTENCES, as_numbers, measured, over_attractors
from qkdyn.text.sva import LABELS

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    import pandas as pd

Record = Mapping[str, Any]
Groups = Sequence[tuple[str, Sequence[Record]]]
NUMBERS = tuple(map(str, range(6)))
TICKS = (*NUMBERS[:-1], f"{NUMBERS[-1]} or more")
PLACES = {"subject": "the subject", "attractor": "attractors", "elsewhere": "elsewhere"}
# Rules that learn nothing but words, as they are called in the baselines of a record.
RULES = {
    "majority": ("the commonest label", DOTS),
    "subject": ("the subject's own number", canvas.DASHES),
    "inverse": ("the number the last noun between does not have", DASHDOTS),
}
BETWEEN = "nouns of the other number between"
# Rows of accuracy: the mean of the two labels', and each; a mean of both pooled moves with how often either is answered.
ACCURACIES = {"balanced": "balanced accuracy", **{label: f"accuracy on {label}" for label in LABELS}}
# Of fewer sentences of a label nothing is drawn, and in verdicts nothing is said.
FEWEST = 10


def draw_sva(groups: Groups, frames: "Mapping[str, pd.DataFrame]", folder: Path) -> list[Path]:
    """Draw what other text has, and agreement.png, heads.png, and of the published protocols dtap_first_head.png.

    Args:
        groups: compared arms by the name of the comparison; of the last one heads are drawn.
        frames: "effects", where there is a factorial.
        folder: an existing folder.

    Raises:
        InputError: there is no record. OutputError: a file cannot be written.
    """
    files = draw_text(groups, frames.get("effects"), folder, SENTENCES)
    figures = {"agreement.png": draw_agreement(groups), "heads.png": draw_heads(groups[-1][1], note=left_out(groups))}
    if (first := draw_first_head(groups[-1][1])) is not None:
        figures["dtap_first_head.png"] = first
    return [*files, *(canvas.save(figure, folder / name) for name, figure in figures.items())]


def draw_agreement(groups: Groups, split: str = "test") -> "matplotlib.figure.Figure":
    """Accuracy and attention by the number of attractors, a column for each comparison: mean and range over seeds.

    Accuracy is balanced, then of each label; of fewer than `FEWEST` sentences of a label there is none.
    """
    figure = canvas.new_figure(5.0 * len(groups) + 0.6, 13.4)
    rows = [*(("accuracy", label) for label in ACCURACIES), *((name, "both") for name in MASSES)]
    grid = figure.subplots(len(rows), len(groups), sharex=True, sharey="row", squeeze=False)
    x, looks = np.arange(len(NUMBERS)), looks_by_name(groups)
    for column, (title, records) in zip(grid.T, groups, strict=True):
        for axes, (name, label) in zip(column, rows, strict=True):
            canvas.style(axes)
            many = _many(records[0], split, label)
            for record in records:
                colour, dashes = looks[words(record["arm"]["name"])]
                found = np.where(many, by_number(record, split, name, label=label), np.nan)
                canvas.band(axes, x, found, colour, 1.5, canvas.PALE)
                axes.lines[-1].set_linestyle(dashes)
            beside = (
                [(f"uniform_{name}", DOTS)] if name in MASSES else [(rule, look) for rule, (_, look) in RULES.items()]
            )
            for key, dashes in beside:
                flat = np.where(many, of_data(records[0], split, key, label), np.nan)
                axes.plot(x, flat, color=canvas.INK, linewidth=1.0, linestyle=dashes)
        column[0].set_title(title, fontsize=10)
        column[-1].set_xticks(x, TICKS)
        column[-1].set_xlabel(BETWEEN, fontsize=9)
        column[-1].legend(
            handles=_arms(records, looks),
            loc="upper center",
            bbox_to_anchor=(0.5, -0.3),
            ncols=2,
            frameon=False,
            fontsize=8,
        )
    for row, label in zip(grid, ACCURACIES.values(), strict=False):
        row[0].set_ylabel(label, fontsize=9)
    for row, name in zip(grid[len(ACCURACIES) :], MASSES, strict=True):
        row[0].set_ylabel(f"attention on\n{PLACES[name]}".replace("on\nelsewhere", "\nelsewhere"), fontsize=9)
    canvas.letters(grid)
    over = canvas.over_seeds(len(groups[0][1][0]["runs"]), "mean and range")
    title = f"{split} split, last epoch, mean over heads; {over}"
    title += "\nattention in sentences of which it is known where the nouns stand"
    figure.suptitle(title, fontsize=10)
    handles = [_line("the commonest label (accuracy), uniform attention", DOTS)]
    canvas.legend(figure, [*handles, *(_line(*RULES[name]) for name in ("subject", "inverse"))])
    return figure


def draw_heads(records: Sequence[Record], split: str = "test", note: str = "") -> "matplotlib.figure.Figure":
    """Attention of single heads by the number of attractors, a column for each arm: mean and range over seeds.

    A `note` stands below the title.

    Heads have no order that runs share: each run's are put in that of their attention on the subject, in validation.
    """
    figure = canvas.new_figure(2.7 * len(records) + 1.0, 5.6)
    grid = figure.subplots(2, len(records), sharex=True, sharey=True, squeeze=False)
    x, size = np.arange(len(NUMBERS)), 0
    for column, record in zip(grid.T, records, strict=True):
        order = _by_subject(record)
        size = max(size, order.shape[1])
        for axes, place in zip(column, ("subject", "attractor"), strict=True):
            canvas.style(axes)
            for head, colour in zip(order.T, _head_colours(order.shape[1]), strict=True):
                canvas.band(axes, x, by_number(record, split, place, head), colour, 1.5, canvas.PALE)
            uniform = of_data(record, split, f"uniform_{place}")
            axes.plot(x, uniform, color=canvas.INK, linewidth=1.0, linestyle=DOTS)
        column[0].set_title(words(record["arm"]["name"]), fontsize=9)
        column[-1].set_xticks(x, (*NUMBERS[:-1], f"{NUMBERS[-1]}+"))
        column[-1].set_xlabel(BETWEEN, fontsize=8)
    for row, place in zip(grid, ("subject", "attractor"), strict=True):
        row[0].set_ylabel(f"attention on {PLACES[place]}", fontsize=9)
    over = canvas.over_seeds(len(records[0]["runs"]), "mean and range")
    canvas.titled(figure, f"Single heads: {split} split, last epoch, {over}", note)
    colours = _head_colours(size)
    heads = [_line(f"head {i + 1}", "-", c) for i, c in enumerate(colours)]
    canvas.legend(figure, [*heads, _line("uniform attention", DOTS)])
    return figure


def draw_first_head(records: Sequence[Record], split: str = "test") -> "matplotlib.figure.Figure | None":
    """Fig. 6: percent of sentences by attention of the first head on relevant tokens and probability; None of others."""
    found = [
        np.array(
            [as_numbers(m["dtap_first_head"]) for run in r["runs"] if "dtap_first_head" in (m := _end(run, split))]
        )
        for r in records
    ]
    if not any(map(len, found)):
        return None
    figure = canvas.new_figure(2.5 * len(records) + 1.0, 3.4)
    grid = figure.subplots(1, len(records), squeeze=False)[0]
    most = max(float(np.nanmax(maps.mean(0))) for maps in found if len(maps))
    for axes, record, maps in zip(grid, records, found, strict=True):
        heatmap(axes, maps, most, bins_of(records))
        axes.set_title(words(record["arm"]["name"]), fontsize=9)
        axes.set_xlabel("attention on relevant tokens", fontsize=8)
    grid[0].set_ylabel(f"{split}\nprobability of the label", fontsize=8)
    figure.suptitle("Percent of sentences, first head, mean ± standard deviation", fontsize=10)
    return figure


def by_number(
    record: Record, split: str, name: str, heads: Sequence[int] | np.ndarray | None = None, label: str = "both"
) -> np.ndarray:
    """A quantity for each number of attractors after the last epoch, (seeds, 6); of one head of each run, where given.

    Of the sentences of a `label`, of both, or balanced.
    """
    found = []
    for number, run in enumerate(record["runs"]):
        lines = _end(run, split).get("agreement") or ()
        own = name if heads is None else f"head.{int(heads[number])}.{name}"
        found.append([over_attractors(lines, f"{own}@{group}", label) for group in NUMBERS])
    return as_numbers(found)


def of_data(record: Record, split: str, name: str, label: str = "both") -> np.ndarray:
    """What a rule or uniform attention gets for each number of attractors, (6,)."""
    lines = (record.get("baselines") or {}).get(split) or ()
    return as_numbers([over_attractors(lines, f"{name}@{group}", label, rule=name in RULES) for group in NUMBERS])


def _many(record: Record, split: str, label: str) -> np.ndarray:
    """Whether there are enough sentences of each number of attractors to draw a label's accuracy, (6,)."""
    if label == "both":
        return np.ones(len(NUMBERS), bool)
    lines = (record.get("baselines") or {}).get(split) or ()
    wanted = LABELS if label == "balanced" else (label,)
    each = {(str(line["attractors"]), line["label"]): line["n"] for line in lines}
    return np.array([all(each.get((group, own), 0) >= FEWEST for own in wanted) for group in NUMBERS])


def _end(run: Mapping[str, Any], split: str) -> Mapping[str, Any]:
    return measured(run, "end", split)


def _by_subject(record: Record) -> np.ndarray:
    """Heads of each run by falling attention on the subject in validation, (seeds, heads)."""
    lines = [_end(run, "validation").get("agreement") or () for run in record["runs"]]
    size = max((len(line[0]["heads"]) for line in lines if line), default=0)
    each = as_numbers([[over_attractors(line, f"head.{h}.subject@all") for h in range(size)] for line in lines])
    return np.argsort(-np.nan_to_num(each.reshape(len(lines), size), nan=-1.0), axis=1, kind="stable")


def _head_colours(count: int) -> list[Any]:
    return canvas.ratio_colours([float(head) for head in range(count)])[::-1]


def _arms(records: Sequence[Record], looks: Mapping[str, tuple[Any, Any]]) -> list[Any]:
    names = [words(record["arm"]["name"]) for record in records]
    return [_line(name, looks[name][1], looks[name][0], 2.2) for name in names]


def _line(label: str, dashes: Any, colour: Any = canvas.INK, width: float = 1.0) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, linewidth=width, linestyle=dashes, label=label)

"""A verdict for each protocol, written from the numbers: what changed, by how much, and what of it is due to what."""

import functools
from collections.abc import Sequence

from experiments.text.arms import BASELINE, COMBINATION, LONG, Protocol
from experiments.text.claims import NAMES, change, claims, told
from experiments.text.collapsed import collapsed_in_short, collapsed_lines
from experiments.text.effects import effects_frame
from experiments.text.in_short import in_short
from experiments.text.published import compared_frame
from experiments.text.readings import Record, matched_level
from experiments.text.said import (
    Found,
    all_diverged,
    alone,
    as_markdown,
    beside_printed,
    data_of,
    pair,
    parts_of,
    title_of,
)
from experiments.text.tables import compared, firsts
from experiments.text.task import HATEXPLAIN
from qkdyn.figures.text import words
from qkdyn.figures.text_records import POSTS

# What may differ from the published runs.
OURS = (
    "What may differ from the published runs: the rationale of a training post is one mask in the data used here, the union, "
    "divided by three as if two annotators had marked nothing; the cleaning of the text approximates theirs; the tokens kept "
    "for sufficiency stood in an order that numpy's partition left and that is not known; the printed AC leaves out one seed "
    "of five."
)


def verdict(records: Sequence[Record], protocol: Protocol, name: str) -> str:
    """The verdict as Markdown: a title and one line for each thing that is said.

    Args:
        records: finished arms.
        protocol: theirs.
        name: of the protocol, for the title.
    """
    title = title_of(HATEXPLAIN.title, name, records, protocol, POSTS)
    if nothing := all_diverged(records):
        return as_markdown(title, nothing, data_of(records, POSTS))
    found, recipe = {record["arm"]["name"]: record for record in records}, protocol.recipe
    said = collapsed_lines(records, POSTS, firsts(records, protocol))
    if recipe.measured == "last_slot":
        compare = functools.partial(compared_frame, layers=recipe.n_layers)
        quantities = ("accuracy", "mrta_all", "ac_all")
        said += beside_printed(records, compare, (BASELINE, "faster"), quantities, OURS, POSTS)
    if len(protocol.comparisons) == 1:
        for _, there in compared(records, protocol):
            if there[0]["arm"]["name"] == BASELINE:
                said += [line for other in there[1:] for line in pair(there[0], other, POSTS)]
    else:
        said += _parts(records, protocol)
        said += _beside_baseline(found)
        said += _longer(found)
    said += data_of(records, POSTS)
    short = " ".join(filter(None, (in_short(records, protocol), collapsed_in_short(records))))
    return as_markdown(title, short, said)


def _parts(records: Sequence[Record], protocol: Protocol) -> list[str]:
    """What the published combination changes in ten epochs, and what of it is due to which of its parts."""
    factorial = next(comparison for comparison in protocol.comparisons if comparison.name == "factorial")
    rows = (
        ("sharper", ("entropy_marked", "top_mass_marked", "head_entropy")),
        ("sharper on the relevant tokens", ("mrta", "auprc")),
        ("prediction and faithfulness", ("accuracy", "comprehensiveness")),
    )
    first, seeds = "What the published changes do together in 10 epochs", len(protocol.recipe.seeds)
    return parts_of(effects_frame(records, factorial), first, factorial.factors, rows, seeds, POSTS)


def _beside_baseline(found: Found) -> list[str]:
    """One rate at a time, beside the baseline of equal epochs."""
    pairs = [(name, BASELINE) for name in ("qk30", "qk100", "ov30", "all30")] + [("qk30" + LONG, BASELINE + LONG)]
    said = alone(found, pairs, POSTS)
    both = [found[name + LONG] for name in (BASELINE, "qk30") if name + LONG in found]
    if len(both) == 2:
        level = matched_level(both)
        text = claims(both[1], both[0], "matched", level=level)
        said.append(f"At a training loss of {level:.2f}, in 30 epochs: {words('qk30')} {text}.")
    return said


def _longer(found: Found) -> list[str]:
    """Thirty epochs instead of ten."""
    said = []
    for name in (BASELINE, "qk30", COMBINATION):
        if name in found and name + LONG in found:
            long, short = found[name + LONG], found[name]
            accuracy, best = told(change(long, short, "accuracy")), told(change(long, short, "accuracy", "best"))
            text = f"Trained 30 epochs instead of 10, {words(name)} {claims(long, short)}; "
            text += f"{NAMES['accuracy']} {accuracy}, "
            said.append(f"{text}at the best validation epoch {best}.")
    return said

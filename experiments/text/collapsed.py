"""Runs that collapse: they end at a training loss far above their own least; the numbers of an arm with and without them."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.text.claims import UNITS, estimate, names_of, told
from experiments.text.readings import Record, values
from qkdyn.figures.text import words
from qkdyn.figures.text_records import Called, over_epochs

# A run has collapsed where it ends having given back this part of what it had learned, the fall of its training loss (mean of
# an epoch) from the first epoch to its least one; and at this many times the least. The first leaves out losses near 0, of
# which small differences are large parts; the second runs that learn nothing, whose losses differ by chance.
GIVEN_BACK, TIMES = 0.25, 1.25
# Said with them and without.
SAID = ("accuracy", "accuracy@1+:balanced", "entropy_marked", "top_mass_marked", "head_entropy", "mrta", "auprc")
SAID += ("comprehensiveness", "sufficiency")


class Collapse(NamedTuple):
    """Training loss of a run that collapsed: in its first epoch, at its least (in `epoch`, from 1), and in its last."""

    seed: int
    first: float
    least: float
    epoch: int
    last: float


def collapses(record: Record) -> list[Collapse]:
    """The runs of an arm that collapsed; those that diverged are known as such and are none of these."""
    found = []
    for run in record["runs"]:
        loss = over_epochs(run, "", "training_loss", len(run["epochs"]["training_loss"]))
        if run["diverged_at"] is not None or not loss.size or not np.isfinite(loss).all():
            continue
        first, least, last = float(loss[0]), float(loss.min()), float(loss[-1])
        if last - least >= GIVEN_BACK * (first - least) and last >= TIMES * least and last > least:
            found.append(Collapse(run["seed"], first, least, int(loss.argmin()) + 1, last))
    return found


def without(record: Record, seeds: Collection[int]) -> Record:
    """The arm without what these seeds' runs say; they keep their places, so that others are still paired by seed."""
    kept = [run | {"diverged_at": 1} if run["seed"] in seeds else run for run in record["runs"]]
    return {**record, "runs": kept}


def without_collapsed(records: Sequence[Record]) -> list[Record]:
    """All arms, each without its runs that collapsed."""
    return [without(record, [run.seed for run in collapses(record)]) for record in records]


def collapsed_lines(records: Sequence[Record], called: Called, firsts: Mapping[str, Record] | None = None) -> list[str]:
    """Which runs collapsed, the main numbers of their arms with them and without, and of all changes that they are part of.

    Args:
        records: of the arms.
        called: what the instances are.
        firsts: the arm that each one, by its name, is compared with; none for no changes.
    """
    said, rest = [], {record["arm"]["name"]: record for record in without_collapsed(records)}
    for record in records:
        name, gone = record["arm"]["name"], collapses(record)
        first = (firsts or {}).get(name, record)
        if gone:
            each = "; ".join(
                f"seed {run.seed}, whose training loss fell from {run.first:.3f} to {run.least:.3f} in epoch {run.epoch} and "
                f"ends at {run.last:.3f}"
                for run in gone
            )
            said.append(
                f"{words(name)}: {len(gone)} of {len(record['runs'])} runs collapsed, that is ended far above the least "
                f"training loss of their own ({each}). What else is said is with them; with | without: "
                f"{_both(record, rest[name], called)}."
            )
        if first is not record and (gone or collapses(first)):
            theirs = (first, rest[first["arm"]["name"]])
            changes = _both(record, rest[name], called, theirs)
            said.append(
                f"{words(name)} beside the {words(first['arm']['name'])}, with runs that collapsed | without: {changes}."
            )
    return said


def collapsed_in_short(records: Sequence[Record]) -> str:
    """One sentence for the first paragraph; empty where no run collapsed."""
    found = [(words(record["arm"]["name"]), run.seed) for record in records for run in collapses(record)]
    if not found:
        return ""
    each = ", ".join(f"{name} seed {seed}" for name, seed in found)
    return f"Collapsed and counted all the same: {each}; below, the numbers without."


def _both(record: Record, rest: Record, called: Called, firsts: tuple[Record, Record] | None = None) -> str:
    """The main numbers of an arm with all its runs and with the rest of them, or their changes from those of the first one."""
    said = []
    for name in SAID:
        own = [values(one, "end", "test", name) for one in (record, rest)]
        theirs = [None, None] if firsts is None else [values(one, "end", "test", name) for one in firsts]
        whole, kept = (estimate(*pair) for pair in zip(own, theirs, strict=True))
        if np.isfinite(whole.mean):
            ends = [told(part, sign=firsts is not None) for part in (whole, kept._replace(of=kept.seeds))]
            said.append(f"{names_of(called)[name]} {' | '.join(ends)}{UNITS.get(name, '')}")
    return ", ".join(said)

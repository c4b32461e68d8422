"""Arms of subject-verb agreement looked at closely: accuracy by attractors and label beside simple rules, single heads."""

from collections.abc import Sequence

import numpy as np

from experiments.text.claims import Estimate, alike, change, estimate, judged, told
from experiments.text.readings import Record
from experiments.text.sva_tables import NUMBERS, cell, count, of_heads, ranked, rule
from qkdyn.figures.sva import FEWEST
from qkdyn.figures.text import words
from qkdyn.text.sva import LABELS

ATTRACTORS = "nouns of the other number between subject and verb"
BALANCED = "balanced accuracy (the mean of the two labels' accuracies)"


def looked_at(record: Record, first: Record | None) -> list[str]:
    """Accuracy by the number of attractors beside simple rules and the first arm, and attention of single heads."""
    name = words(record["arm"]["name"])
    numbers = [group for group in NUMBERS if count(record, "test", group)]
    if not numbers or not np.isfinite(cell(record, "end", "test", "accuracy@all")).any():
        return []
    both = [group for group in numbers if count(record, "test", group, "balanced") >= FEWEST]
    rules = "; ".join(
        f"{label} " + ", ".join(f"{rule(record, 'test', which, group, 'balanced'):.2f}" for group in both)
        for which, label in (
            ("subject", "the subject's own number"),
            ("inverse", "the number that the last noun between does not have"),
        )
    )
    said = []
    if both:
        said.append(
            f"{name}, {BALANCED} by the number of {ATTRACTORS} ({_listed(both)}{_rest(both, numbers)}): "
            f"{_levels(record, both, 'balanced')}; beside it {rules}; either label alone 0.50. {_beyond(record)}"
        )
    each = []
    for label in LABELS:
        own = [group for group in numbers if count(record, "test", group, label) >= FEWEST]
        sizes = ", ".join(f"{count(record, 'test', group, label):,}" for group in own)
        each += [f"{label} {_levels(record, own, label)} (of {sizes} sentences)"] if own else []
    pooled = f"pooled {_levels(record, numbers, 'both')}"
    said.append(f"{name}, by label, from none up: {'; '.join((*each, pooled))}.")
    if first is not None and first is not record and both:
        beside = f"{name} beside the {words(first['arm']['name'])}, accuracy for {_listed(both)}"
        said.append(f"{beside}: {_by_label(record, first, both)}.")
    heads = _heads(record)
    return [*said, f"{name}, single heads in sentences with attractors ({placed(record)}): {heads}."] if heads else said


def _listed(numbers: Sequence[str]) -> str:
    """Numbers of attractors in words."""
    last = f"{numbers[-1]}{' or more' if numbers[-1] == NUMBERS[-1] else ''}"
    return f"{', '.join(numbers[:-1])} and {last}" if len(numbers) > 1 else last


def _rest(both: Sequence[str], numbers: Sequence[str]) -> str:
    """The numbers of attractors of which nothing balanced is said."""
    few = [group for group in numbers if group not in both]
    return f"; of {_listed(few)} one label has fewer than {FEWEST} sentences" if few else ""


def _levels(record: Record, numbers: Sequence[str], label: str) -> str:
    """Accuracy of a label for each number of attractors."""
    return ", ".join(mean_told(cell(record, "end", "test", f"accuracy@{group}", label)) for group in numbers)


def _by_label(record: Record, first: Record, numbers: Sequence[str]) -> str:
    """Changes of accuracy for each number of attractors, balanced and by label, and where the labels go opposite ways."""
    changes = {
        label: [change(record, first, f"accuracy@{group}:{label}") for group in numbers]
        for label in ("balanced", *LABELS)
    }
    if alike(*(each for own in changes.values() for each in own)):
        return f"{', '.join(changes)} do not differ to four decimals"
    said = [f"{label} {', '.join(map(told, own))}" for label, own in changes.items()]
    pairs = zip(numbers, changes[LABELS[0]], changes[LABELS[1]], strict=True)
    opposite = [group for group, *own in pairs if apart(*own)]
    said.append(
        f"the labels go opposite ways at {_listed(opposite)}" if opposite else "nowhere do the labels go opposite ways"
    )
    return "; ".join(said)


def _beyond(record: Record) -> str:
    """Whether accuracy with attractors is above that of the simple rules."""
    own = cell(record, "end", "test", "accuracy@1+", "balanced")
    parts = []
    for which, label in (("inverse", "inverting the last noun"), ("subject", "the subject's own number")):
        level = rule(record, "test", which, "1+", "balanced")
        gap = estimate(own - level)
        side = judged(gap, "above", "below", "not told from")
        parts.append(f"{side if np.isfinite(gap.low) else 'without an interval beside'} {label} ({level:.3f})")
    return f"With one or more it is {mean_told(own)}: {', '.join(parts)}."


def _heads(record: Record) -> str:
    """The head most on the subject and the one most on attractors, as validation has them."""
    parts = []
    for place, label in (("subject", "the subject"), ("attractor", "attractors")):
        order = ranked(record, "end", f"{place}@1+")
        if not order.shape[1]:
            return ""
        masses = [
            f"{mean_told(of_heads(record, 'end', 'test', f'{what}@1+', order[:, 0]))} {where}"
            for what, where in (
                ("subject", "on the subject"),
                ("attractor", "on attractors"),
            )
        ]
        parts.append(f"that most on {label} has {' and '.join(masses)}")
    return "; ".join(parts)


def apart(singular: Estimate, plural: Estimate) -> str:
    """Whether the labels go opposite ways, as where one of them is answered more often; nothing where they do not."""
    ways = [judged(own, "more", "less", "") for own in (singular, plural)]
    if sorted(ways) != ["less", "more"]:
        return ""
    oftener = LABELS[ways.index("more")]
    return f", but {LABELS[0]} {ways[0]} often right and {LABELS[1]} {ways[1]} often: {oftener} is answered more"


def placed(record: Record) -> str:
    """Of which sentences with attractors masses of attention are means."""
    known, every = (count(record, "test", "1+", known=only) for only in (True, False))
    return f"{known:,} of {every:,}: those of which it is known where the nouns stand"


def mean_told(own: np.ndarray) -> str:
    """Mean over seeds with its interval, of (seeds,)."""
    found: Estimate = estimate(own)
    return told(found, sign=False)

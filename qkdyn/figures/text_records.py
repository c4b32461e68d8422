"""What a run of a record says at a time, if it had not diverged by then."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkdyn.text.sva import LABELS

Run = Mapping[str, Any]
# Beginnings of the names of what is to be set beside a quantity.
# Of attention on the words of a sentence.
MASSES = ("subject", "attractor", "elsewhere")
FLOORS = ("uniform_", "random_", "position_")


@dataclass(frozen=True)
class Called:
    """How the instances of a data set are called where people read of them.

    Attributes:
        every: all of them, "posts".
        marked: those with relevant tokens, "toxic posts"; equal to `every` where each has some.
        ranked: those in which a ranking of tokens says something.
    """

    every: str
    marked: str
    ranked: str


POSTS = Called("posts", "toxic posts", "toxic posts with rationales")
SENTENCES = Called("sentences", "sentences", "sentences")


def measured(run: Run, reading: str, split: str) -> Mapping[str, Any]:
    """What was measured on a split after the last epoch ("end") or at the best one ("best").

    Nothing where the run had diverged by then: its parameters are frozen, and the numbers may look like any other.
    """
    known, diverged = run[reading] or {}, run["diverged_at"]
    if diverged is not None and known.get("epoch", np.inf) >= diverged:
        return {}
    return known.get(split) or {}


def value_of(known: Mapping[str, Any], name: str) -> float | None:
    """A quantity of what was measured; of "accuracy@1+" and the like that over sentences of so many attractors.

    What stands after @ is a number of attractors (5 are 5 or more), "1+" for one or more of them, or "all"; after that there
    may be a label, or "balanced": "accuracy@1+:VBZ", "accuracy@1+:balanced".
    """
    if "@" not in name:
        return known.get(name)
    own, _, label = name.partition(":")
    return over_attractors(known.get("agreement") or (), own, label or "both")


def over_attractors(
    lines: Sequence[Mapping[str, Any]], name: str, label: str = "both", *, rule: bool = False
) -> float | None:
    """The mean of a quantity over the sentences of some numbers of attractors, of lines with one for each; None without any.

    Masses of attention are means over the sentences of which it is known where attractors are; what is right by a `rule`,
    even where it has the name of a mass, is one over all of them. Of the label "balanced" it is the mean of the two labels'
    means, which does not move with how often either is answered; None unless both have sentences.
    """
    if label == "balanced":
        each = [over_attractors(lines, name, own, rule=rule) for own in LABELS]
        known = [mean for mean in each if mean is not None]
        return sum(known) / len(each) if len(known) == len(each) else None
    quantity, _, group = name.partition("@")
    total = count = 0.0
    for line in lines:
        inside = group == "all" or (line["attractors"] >= 1 if group == "1+" else str(line["attractors"]) == group)
        value = _in_line(line, quantity)
        if inside and line["label"] == label and value is not None:
            mass = quantity.removeprefix("uniform_").split(".")[-1] in MASSES and not rule
            n = line["n_known" if mass else "n"]
            total, count = total + n * value, count + n
    return total / count if count else None


def _in_line(line: Mapping[str, Any], quantity: str) -> float | None:
    """A number of a line, or of a head: "head.2.subject"."""
    if not quantity.startswith("head."):
        return line.get(quantity)
    _, head, name = quantity.split(".")
    return line["heads"][int(head)].get(name)


def of_posts(run: Run, split: str) -> Mapping[str, Any]:
    """What depends on the posts of a split alone, whatever became of the run: values of uniform attention, of rankings."""
    known = (run["end"] or {}).get(split) or {}
    # ACMC of uniform attention has the run's own probabilities.
    return {name: value for name, value in known.items() if name.startswith(FLOORS) and "acmc" not in name}


def over_epochs(run: Run, split: str, name: str, count: int) -> np.ndarray:
    """A quantity (or training_loss) after each of `count` epochs, (count,); NaN where unknown, and from divergence on."""
    columns = run["epochs"] if name == "training_loss" else run["epochs"].get(split, {})
    known = as_numbers(columns.get(name) or [])[:count]
    found = np.append(known, np.full(count - len(known), np.nan))
    if run["diverged_at"] is not None:
        found[run["diverged_at"] - 1 :] = np.nan
    return found


def as_numbers(values: Any) -> np.ndarray:
    """Numbers with None as NaN."""
    return np.array(values, dtype=object).astype(float)

"""What a run of a record says at a time, if it had not diverged by then."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Run = Mapping[str, Any]
# Beginnings of the names of what is to be set beside a quantity.
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

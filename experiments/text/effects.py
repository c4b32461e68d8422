"""The factorial: what each part of the published recipe does, alone, on average, with another, as a share of the whole."""

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations, product
from typing import Any

import numpy as np
import pandas as pd

from experiments.text.arms import Comparison
from experiments.text.readings import MAIN, READINGS, Quantity, Record, matched_level, values
from qkdyn.metrics.intervals import Interval, confidence_interval
from qkdyn.metrics.paired import factorial_effects, paired_difference

KINDS = ("total", "alone", "last", "main", "interaction", "share")


def effects_frame(
    records: Sequence[Record], comparison: Comparison, quantities: Sequence[Quantity] = MAIN
) -> pd.DataFrame:
    """One row for each reading, split, quantity, kind of effect and factor, with its interval over seeds.

    Kinds: total, all factors against none; alone, a factor against none; last, all against all but it; main, the mean over
    the others' levels; interaction, of two, half of what one changes in the effect of the other; share, a part of the
    total: the mean of what a factor adds, over all orders in which they may be added (Shapley), which sum to it. All of them
    are differences within a seed, over the same seeds: those of which every arm has a value. Under "matched" all arms of the
    factorial are read at one `loss_level`, which the slowest run of any of them sets: an effect is of all cells together.
    Empty unless every arm of the factorial is there.
    """
    found = {record["arm"]["name"]: record for record in records}
    if any(name not in found for name in comparison.arms):
        return pd.DataFrame()
    level, names = matched_level([found[name] for name in comparison.arms]), comparison.factors
    cases = list(product(READINGS, ("validation", "test"), quantities))
    results = np.stack(
        [
            cells({name: values(found[name], reading, split, quantity.name, level) for name in comparison.arms}, names)
            for reading, split, quantity in cases
        ]
    )
    lines = list(effects(results, names))
    seeds = complete(results, len(names)).sum(-1)
    rows = []
    for i, (reading, split, quantity) in enumerate(cases):
        head: dict[str, Any] = {"reading": reading, "split": split, "claim": quantity.claim, "quantity": quantity.name}
        head["loss_level"] = level if reading == "matched" else np.nan
        for kind, factor, interval in lines:
            mean, low, high = (float(part[i]) for part in interval)
            rows.append(
                head | {"kind": kind, "factor": factor, "mean": mean, "low": low, "high": high, "seeds": seeds[i]}
            )
    return pd.DataFrame(rows)


def cells(known: dict[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Values of the arms of a factorial by name, each (seeds,), as one array: an axis of (off, on) for each factor."""
    seeds = len(next(iter(known.values())))
    found = np.full((2,) * len(names) + (seeds,), np.nan)
    for name, own in known.items():
        found[tuple(int(factor in name.split("+")) for factor in names)] = own
    return found


def complete(found: np.ndarray, factors: int) -> np.ndarray:
    """Whether a seed has a value in every cell, (..., seeds) of (..., 2, ..., 2, seeds)."""
    return np.all(np.isfinite(found), axis=tuple(range(-1 - factors, -1)))


def effects(found: np.ndarray, names: Sequence[str]) -> Iterator[tuple[str, str, Interval]]:
    """Kind, factor and interval of every effect; see `effects_frame`.

    Args:
        found: results, (..., 2, ..., 2, seeds): an axis of (off, on) for each factor.
        names: of the factors.

    Yields:
        Kind, factor, and an interval whose arrays are (...).
    """
    k = len(names)
    # The parts sum to the total only if all are of the same seeds.
    found = np.where(complete(found, k)[(..., *(None,) * k, slice(None))], found, np.nan)
    none, every = (0,) * k, (1,) * k

    def at(on: tuple[int, ...]) -> np.ndarray:
        return found[(..., *on, slice(None))]

    yield "total", "all", paired_difference(at(every), at(none))
    for i, name in enumerate(names):
        yield "alone", name, paired_difference(at(_with(none, i, 1)), at(none))
    for i, name in enumerate(names):
        yield "last", name, paired_difference(at(every), at(_with(every, i, 0)))
    every_order = factorial_effects(found, names)
    for i, name in enumerate(every_order.names):
        if (order := name.count(" x ")) < 2:
            yield ("main", "interaction")[order], name, Interval(*(part[..., i] for part in every_order.interval))
    for i, name in enumerate(names):
        yield "share", name, confidence_interval(_share(at, i, k))


def _share(at: Callable[[tuple[int, ...]], np.ndarray], factor: int, k: int) -> np.ndarray:
    """What `factor` adds, averaged over all orders of the k factors, (..., seeds)."""
    added = []
    for order in permutations(range(k)):
        before = tuple(int(order.index(i) < order.index(factor)) for i in range(k))
        added.append(at(_with(before, factor, 1)) - at(before))
    return np.mean(added, 0)


def _with(on: tuple[int, ...], factor: int, value: int) -> tuple[int, ...]:
    return (*on[:factor], value, *on[factor + 1 :])

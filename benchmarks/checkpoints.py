"""What checkpoints cost: one of them over the interval between two, and whole jobs with and without."""

import itertools
import shutil
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.job import job_of, runs_of, start_of
from benchmarks.measure import NAN, Bench, Row, interleaved, rows, seconds_of
from experiments.sweep import Config, Options
from qkdyn.parameterization import Parameterization
from qkdyn.train.campaign import Campaign
from qkdyn.train.checkpoint import Arrays
from qkdyn.train.store import Store

PART = "checkpoints"
# Seconds that no job lasts.
NEVER = 1e9


@dataclass
class TimedStore(Store):
    """A store that remembers how long each checkpoint took."""

    spent: list[float] = field(default_factory=list)

    def save(self, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        """As `Store.save`."""
        self.spent.append(seconds_of(lambda: super(TimedStore, self).save(arrays, meta)))


def checkpoints(bench: Bench) -> list[Row]:
    """A checkpoint after every chunk, and at the default interval, against none."""
    config = Config()
    runs = 10 if bench.quick else config.grid.shape[0] * config.grid.shape[1] * config.grid.shape[2]
    every = tuple(map(str, Parameterization))
    largest, forms = ("CACO",), ("CACO",)
    if not bench.quick:
        largest, forms = ("FAFO",), every
    fresh = (bench.scratch / str(number) for number in itertools.count())
    spent: list[float] = []

    def work(which: tuple[str, ...], interval: float, count: int = runs) -> float:
        folder = next(fresh)
        folder.mkdir(parents=True)
        taken, costs = _train(config, which, count, folder, interval)
        spent.extend(costs if not interval else [])
        return taken

    for form in forms:
        bench.update(0.0, f"compiling {form}")
        work((form,), NEVER, 1)
    repeats, usual = 1 if bench.quick else 3, Options().checkpoint_seconds
    label = "+".join(largest)
    extreme = {f"{label}, none": lambda: work(largest, NEVER), f"{label}, after each chunk": lambda: work(largest, 0.0)}
    found = rows(PART, interleaved(extreme, repeats, bench.phase(0.15, 0.3)), "s", f"{label}, none")
    found = [_one(spent, usual), *found]
    whole = {"whole job, none": lambda: work(forms, NEVER), f"whole job, every {usual:g} s": lambda: work(forms, usual)}
    return found + rows(PART, interleaved(whole, repeats, bench.phase(0.3, 1.0)), "s", "whole job, none")


def _one(spent: list[float], interval: float) -> Row:
    """One checkpoint, as a share of the time between two; low and high are those of the fastest and of the slowest."""
    middle = statistics.median(spent)
    shares = (middle / interval, min(spent) / interval, max(spent) / interval)
    spread = (max(spent) - min(spent)) / middle if len(spent) > 1 else NAN
    return Row(PART, "one checkpoint", middle, "s", f"interval of {interval:g} s", *shares, spread, len(spent))


def _train(
    config: Config, forms: tuple[str, ...], count: int, folder: Path, interval: float
) -> tuple[float, list[float]]:
    """Wall seconds of the training of `count` runs of each of `forms`, and those of each checkpoint."""
    store = TimedStore(folder, interval)
    begun = time.perf_counter()
    for form in forms:
        Campaign(job_of(config), store).finish(start_of(form), runs_of(form, count), form, lambda standing: None)
    taken = time.perf_counter() - begun
    shutil.rmtree(folder)
    return taken, store.spent

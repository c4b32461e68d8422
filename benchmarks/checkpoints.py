"""What checkpoints cost: one of them over the interval between two, and whole jobs with and without."""

import functools
import itertools
import shutil
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.job import SWEEP, job_of, runs_of, start_of
from benchmarks.measure import NAN, Bench, Row, interleaved, rows, run_process, seconds_of
from experiments.sweep import Config, Options
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
    """One checkpoint against the default interval, one after every chunk against none, and whole processes."""
    designs, ratios, seeds = Config().grid.shape
    # The form with the largest states.
    form, count = ("CACO", 10) if bench.quick else ("FAFO", designs * ratios * seeds)
    fresh = (bench.scratch / str(number) for number in itertools.count())
    stores: list[TimedStore] = []

    def train(interval: float) -> float:
        stores.append(TimedStore(next(fresh), interval))
        return _train(form, count, stores[-1])

    bench.update(0.0, f"compiling {form}")
    train(0.0)
    stores.clear()  # the first checkpoint of a process also imports Orbax: see the whole processes
    actions = {f"{form}, none": lambda: train(NEVER), f"{form}, after each chunk": lambda: train(0.0)}
    found = interleaved(actions, 1 if bench.quick else 3, bench.phase(0.1, 0.25))
    one = _one([spent for store in stores for spent in store.spent], Options().checkpoint_seconds)
    return [one, *rows(PART, found, "s", f"{form}, none"), *_processes(bench)]


def _one(spent: list[float], interval: float) -> Row:
    """One checkpoint, as a share of the time between two; low and high are those of the fastest and of the slowest."""
    middle = statistics.median(spent)
    shares = (middle / interval, min(spent) / interval, max(spent) / interval)
    spread = (max(spent) - min(spent)) / middle if len(spent) > 1 else NAN
    return Row(PART, "one checkpoint", middle, "s", f"interval of {interval:g} s", *shares, spread, len(spent))


def _train(form: str, count: int, store: TimedStore) -> float:
    """Wall seconds of the training of `count` runs to their end."""
    store.folder.mkdir(parents=True)
    begun = time.perf_counter()
    Campaign(job_of(), store).finish(start_of(form), runs_of(form, count), form, lambda standing: None)
    taken = time.perf_counter() - begun
    shutil.rmtree(store.folder)
    return taken


def _processes(bench: Bench) -> list[Row]:
    """The sweep as a whole, its two longest parameterizations, which together train for longer than the interval."""
    small = ("CACO", "--r", "10", "--seeds", "0") if bench.quick else ("FACO", "CACO")
    fresh = (bench.scratch / f"process-{number}" for number in itertools.count())

    def sweep(*how: str) -> float:
        folder: Path = next(fresh)
        return run_process((*SWEEP, "--parameterizations", *small, *how, "--out", str(folder)), bench.cache).seconds

    usual, never = f"process, every {Options().checkpoint_seconds:g} s", "process, none"
    without = ("--checkpoint-seconds", f"{NEVER:g}")
    if not bench.quick:
        bench.update(0.25, "filling the compilation cache")
        sweep(*without)
    actions = {never: functools.partial(sweep, *without), usual: sweep}
    return rows(PART, interleaved(actions, 1 if bench.quick else 3, bench.phase(0.4, 1.0)), "s", never)

"""Memory: bytes that a run takes against those reckoned with, and a large grid by groups against a group alone."""

import itertools
import os
import statistics

from benchmarks.job import SWEEP, job_of, start_of
from benchmarks.measure import Bench, Row, interleaved, rows, run_process
from qkdyn.train.campaign import fitting_runs

PART = "memory"
FORM = "FAFO"
STEPS = 40
# Designs and ratios of the reference grid: so many runs for each seed.
PER_SEED = 10


def memory(bench: Bench) -> list[Row]:
    """Peak resident memory of whole processes: one group, a grid by such groups, and the same grid at once."""
    group, grid, repeats = (50, 200, 1) if bench.quick else (250, 2000, 2)
    fresh = (bench.scratch / str(number) for number in itertools.count())

    def peak(runs: int, at_once: int) -> float:
        seeds = map(str, range(runs // PER_SEED))
        plan = ("--max-steps", str(STEPS), "--chunk", str(STEPS), "--max-runs", str(at_once))
        job = ("--parameterizations", FORM, "--seeds", *seeds, *plan)
        return run_process((*SWEEP, *job, "--out", str(next(fresh))), bench.cache).peak / 1e6

    bench.update(0.0, "compiling")
    peak(group, group)
    alone, by_groups, at_once = f"{group} runs", f"{grid} runs by {group}", f"{grid} runs at once"
    actions = {
        alone: lambda: peak(group, group),
        by_groups: lambda: peak(grid, group),
        at_once: lambda: peak(grid, grid),
    }
    found = interleaved(actions, repeats, bench.phase(0.15, 1.0))
    held = [1e3 * (all_ - some) / (grid - group) for all_, some in zip(found[at_once], found[by_groups], strict=True)]
    grown = [1e3 * (some - one) / (grid - group) for some, one in zip(found[by_groups], found[alone], strict=True)]
    reckoned = _reckoned()
    per_run = {"a run, as reckoned": [reckoned] * repeats, "a run held": held, "a run on record": grown}
    return [*rows(PART, found, "MB", alone), *rows(PART, per_run, "kB", "a run, as reckoned")]


def _reckoned() -> float:
    """What `fitting_runs` allows (kB) for a run of this plan: a quarter of the free memory over the runs it lets in."""
    job, params = job_of(max_steps=STEPS, chunk=STEPS), start_of(FORM)
    counts = []
    for _ in range(5):  # other processes take and give memory in between
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        counts.append(free / 4 / fitting_runs(job, params))
    return statistics.median(counts) / 1e3

"""Memory: bytes that a run takes against those reckoned with, and a large grid by groups against a group alone."""

import itertools

from benchmarks.job import SWEEP, job_of, start_of
from benchmarks.measure import Bench, Row, interleaved, rows, run_process
from qkdyn.train.campaign import bytes_of_run

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
    reckoned = bytes_of_run(job_of(max_steps=STEPS, chunk=STEPS), start_of(FORM)) / 1e3
    per_run = {"a run, as reckoned": [reckoned] * repeats, "a run held": held}
    return [*rows(PART, found, "MB", alone), *rows(PART, per_run, "kB", "a run, as reckoned")]

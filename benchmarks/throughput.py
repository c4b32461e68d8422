"""Run-steps per second against the number of runs: what one program for many runs is worth, and the size of its blocks."""

import functools
import itertools
import math
import re
import time
from collections import deque
from collections.abc import Callable

from benchmarks.job import FORMS, endless_job, runs_of, start_of
from benchmarks.measure import Bench, Row, interleaved, rows, seconds_of
from qkdyn.train.engine import Job, advance_runs, start_runs
from qkdyn.train.state import Run, RunState

PART = "throughput"
COUNTS = (1, 8, 40, 200, 1000)
# Long enough for the clock and the scheduler to be nothing beside it.
SECONDS = 1.6


def throughput(bench: Bench) -> list[Row]:
    """Run-steps per second of `COUNTS` runs against one run, and of other blocks against the default."""
    counts, forms, repeats = ((1, 40), FORMS[1:], 2) if bench.quick else (COUNTS, FORMS, 5)
    found: list[Row] = []
    for place, form in enumerate(forms):
        job = endless_job()
        actions = {name_of(form, count): _measured(form, count, job, bench.quick) for count in counts}
        update = bench.phase(0.75 * place / len(forms), 0.75 * (place + 1) / len(forms))
        found += rows(PART, interleaved(actions, repeats, update), "run-steps/s", name_of(form, counts[0]))
    return found + _blocks(bench, counts[-1] if bench.quick else 200, forms[0], 2 if bench.quick else 3)


def _blocks(bench: Bench, count: int, form: str, repeats: int) -> list[Row]:
    """The same runs in blocks of other sizes, and all at once on each device."""
    usual = endless_job().plan.block
    jobs = {f"block {usual}": endless_job()}
    if not bench.quick:
        jobs |= {f"block {size}": endless_job(block=size) for size in (2 * usual, 5 * usual)}
    jobs["not exact"] = endless_job(exact=False)
    named = {f"{form} x {count}, {name}": _measured(form, count, job, bench.quick) for name, job in jobs.items()}
    return rows(PART, interleaved(named, repeats, bench.phase(0.75, 1.0)), "run-steps/s", next(iter(named)))


def name_of(form: str, count: int) -> str:
    """The name of a row, which the figure reads back."""
    return f"{form}, {count} run{'s' * (count > 1)}"


def count_in(name: str) -> tuple[str, int] | None:
    """Parameterization and number of runs in a row's name; None where it is not one of `name_of`."""
    found = re.fullmatch(r"([A-Z]{4}), (\d+) runs?", name)
    return (found[1], int(found[2])) if found else None


def _measured(form: str, count: int, job: Job, quick: bool) -> Callable[[], float]:
    """A measurement of run-steps per second, its program compiled, that takes `SECONDS` or a chunk, if that is longer."""
    runs = runs_of(form, count)
    states = start_runs(start_of(form), runs, job)
    first = functools.partial(_chunks, states, runs, job, 1)
    first()
    most = job.plan.max_steps // job.plan.chunk
    chunks = 1 if quick else min(most, math.ceil(SECONDS / seconds_of(first)))
    return functools.partial(_rate, states, runs, job, chunks)


def _chunks(states: RunState, runs: Run, job: Job, chunks: int) -> RunState:
    return deque(itertools.islice(advance_runs(states, runs, job), chunks), maxlen=1)[0]


def _rate(states: RunState, runs: Run, job: Job, chunks: int) -> float:
    begun = time.perf_counter()
    ended = _chunks(states, runs, job, chunks)
    spent = time.perf_counter() - begun
    return float(ended.step.sum()) / spent

"""One host device with all threads against one device for each of two cores: whole processes, their programs cached."""

import functools
import itertools

from benchmarks.job import SWEEP
from benchmarks.measure import Bench, Row, interleaved, rows, run_process

PART = "devices"


def devices(bench: Bench) -> list[Row]:
    """A shortened reference job on one and on two host devices, in the exact mode and not."""
    fresh = (bench.scratch / str(number) for number in itertools.count())
    job = ("--parameterizations", "CACO", *(("--r", "10", "--seeds", "0") if bench.quick else ()))

    def sweep(*how: str) -> float:
        return run_process((*SWEEP, *job, *how, "--out", str(next(fresh))), bench.cache).seconds

    ways = {
        "2 devices": ("--devices", "2"),
        "1 device": ("--devices", "1"),
        "2 devices, not exact": ("--devices", "2", "--no-exact"),
    }
    for place, (name, how) in enumerate({} if bench.quick else ways.items()):
        bench.update(0.25 * place / len(ways), f"compiling {name}")
        sweep(*how)
    actions = {name: functools.partial(sweep, *how) for name, how in ways.items()}
    return rows(PART, interleaved(actions, 1 if bench.quick else 3, bench.phase(0.25, 1.0)), "s", "2 devices")

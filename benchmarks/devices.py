"""One host device with all threads against one device for each of two cores: whole processes, their programs cached."""

import functools
import itertools

from benchmarks.job import SWEEP
from benchmarks.measure import Bench, Row, interleaved, rows, run_process

PART = "devices"


def devices(bench: Bench) -> list[Row]:
    """A shortened reference job on one and on two host devices."""
    fresh = (bench.scratch / str(number) for number in itertools.count())
    grid = ("--r", "10", "--seeds", "0") if bench.quick else ("--seeds", "0", "1", "2")

    def sweep(count: int) -> float:
        how = ("--parameterizations", "CACO", *grid, "--devices", str(count), "--out", str(next(fresh)))
        return run_process((*SWEEP, *how), bench.cache).seconds

    for count in () if bench.quick else (1, 2):
        bench.update(0.15 * (count - 1), "filling the compilation cache")
        sweep(count)
    actions = {"1 device": functools.partial(sweep, 1), "2 devices": functools.partial(sweep, 2)}
    return rows(PART, interleaved(actions, 1 if bench.quick else 3, bench.phase(0.3, 1.0)), "s", "1 device")

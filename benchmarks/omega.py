"""Omega applied through the SVD: against its Kronecker form where that fits, and how its time grows with the matrices."""

import math
import statistics

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import Bench, Row, interleaved, rows, seconds_of
from qkdyn.theory.omega import apply, kronecker, vec

PART = "omega"
# The largest that `kronecker` forms, 1 GiB; of 256 x 256 matrices the form would take 32 GiB.
KRONECKER_SIZE = 107
SIZES = (64, 128, 256, 512)


def omega(bench: Bench) -> list[Row]:
    """`apply` on square float64 matrices, the Kronecker form at the largest size that fits, and the exponent of growth."""
    sizes = SIZES[:2] if bench.quick else SIZES
    small = 16 if bench.quick else KRONECKER_SIZE
    with jax.enable_x64(True):
        actions = {f"apply, M = d = {size}": _applied(size) for size in sizes}
        growth = interleaved(actions, 3 if bench.quick else 5, bench.phase(0.0, 0.6))
        forms = {f"apply at {small}": _applied(small), f"Kronecker form at {small}": _kronecker(small)}
        against = interleaved(forms, 1 if bench.quick else 3, bench.phase(0.6, 1.0))
    found = rows(PART, growth, "s", f"apply, M = d = {sizes[0]}")
    found += rows(PART, against, "s", f"apply at {small}")
    middles = [statistics.median(values) for values in growth.values()]
    exponent = float(np.polyfit(np.log(sizes), np.log(middles), 1)[0])
    return [*found, Row(PART, f"exponent of time in M = d, {sizes[0]} to {sizes[-1]}", exponent, "1")]


def _matrices(size: int) -> tuple[jax.Array, jax.Array]:
    draw = np.random.default_rng(size)
    return jnp.asarray(draw.standard_normal((size, size))), jnp.asarray(draw.standard_normal((size, size)))


def _timed(function, arguments, repeats: int):
    """Seconds a call, the program compiled before."""
    jax.block_until_ready(function(*arguments))

    def calls() -> None:
        for _ in range(repeats):
            jax.block_until_ready(function(*arguments))

    return lambda: seconds_of(calls) / repeats


def _applied(size: int):
    return _timed(jax.jit(apply), _matrices(size), max(1, math.ceil(1e6 / size**2.5)))


def _kronecker(size: int):
    """The matrix formed and applied, as a flow would need it at every step."""

    @jax.jit
    def formed(C, G):
        return kronecker(C) @ vec(G)

    return _timed(formed, _matrices(size), 1)

"""What several tests share: comparisons of trees, quick compilation, a count of compilations, no integration."""

import contextlib
import logging

import jax
import numpy as np

from qkdyn.metrics import overlay

# Compiled quickly, not to be fast.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def quick(function, **static):
    """Jitted, compiled in a hurry; numpy out, so that nothing is compiled for looking at it."""
    compiled = jax.jit(function, compiler_options=QUICK, **static)
    return lambda *args, **kwargs: jax.device_get(compiled(*args, **kwargs))


def trees_equal(a, b) -> bool:
    """Same structure, dtypes, shapes and bits."""
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(map(np.asarray, jax.tree.leaves(a)), map(np.asarray, jax.tree.leaves(b)), strict=True)
    return all(x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in pairs)


def max_difference(a, b) -> float:
    """Largest absolute difference of two trees of the same structure."""
    return max(
        float(np.abs(np.asarray(x) - np.asarray(y)).max()) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True)
    )


def without_integration(patch):
    """Theory along the records of a sweep, which takes longer than a small sweep, is unknown while `patch` holds."""

    def unknown(ds, setting, r, start):
        return dict.fromkeys(overlay.AT_RECORD, np.full((r.size, ds.sizes["record"]), np.nan))

    patch.setattr(overlay, "_at_records", unknown)


@contextlib.contextmanager
def compilations():
    """A list that holds, after the block, a line for each program compiled in it."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record):
            if "Finished XLA compilation" in record.getMessage():
                found.append(record.getMessage())

    handler = Handler(logging.DEBUG)
    logger = logging.getLogger("jax._src.dispatch")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)

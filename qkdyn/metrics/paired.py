"""Arms compared seed by seed: paired differences, and the effects of a full factorial of switches, with Student's t."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Real

from qkdyn.errors import as_tuple, reject
from qkdyn.metrics.checks import as_reals, check_match, refuse_where
from qkdyn.metrics.intervals import Interval, confidence_interval


def paired_difference(
    first: Real[np.ndarray, "*#grid seeds"], second: Real[np.ndarray, "*#grid seeds"], level: float = 0.95
) -> Interval:
    """Confidence interval of the mean of `first` - `second` over seeds that both arms share (Student's t on the differences).

    Arms that start from the same parameters and see the same data have much in common within a seed, which cancels; that 0
    is outside the interval is the paired t-test at 1 - `level`.

    Args:
        first: one value for each seed along the last axis, in the same order as `second`; NaN marks a run without one, and
            leaves out its pair.
        second: likewise. Leading axes broadcast.
        level: as for `confidence_interval`.

    Returns:
        Interval(mean, low, high), in the unit of the values.

    Raises:
        InputError: another number of seeds, leading axes that do not broadcast, values or level as `confidence_interval`.
    """
    a, b = _runs("first", first), _runs("second", second)
    if a.shape[-1] != b.shape[-1]:
        reject("the numbers of seeds of first and second", (a.shape[-1], b.shape[-1]), "equal")
    check_match(first=a, second=b)
    return confidence_interval(a - b, level)


class Effects(NamedTuple):
    """Main effects and interactions of a factorial: their names, and an interval for each along the last axis."""

    names: tuple[str, ...]
    interval: Interval


def factorial_effects(values: Real[np.ndarray, "..."], factors: Sequence[str], level: float = 0.95) -> Effects:
    """Main effects and all interactions of a full 2^k factorial, with Student intervals over seeds.

    The effect of a set of factors is the mean of the values where an even number of them is off, less the mean of those
    where an odd number is off: for one factor, its effect averaged over all settings of the others; for two, half of how
    much the effect of one changes with the other. It is twice the coefficient of least squares with factors coded -1 and
    1. It is computed within each seed, so that what seeds have in common cancels, and the interval is that over seeds.

    Each interval covers its own effect with probability `level`; of 15 effects of 2^4, all 0, one in two experiments would
    show one outside. For all at once, use 1 - (1 - level)/15.

    Args:
        values: (..., 2, ..., 2, seeds): an axis of (off, on) for each factor, in their order, then the seeds. NaN marks a run
            without a value, and leaves out its seed from every effect.
        factors: the names of the k factors, all different.
        level: as for `confidence_interval`.

    Returns:
        Effects(names, interval): 2^k - 1 names, such as "QK", "embeddings", "QK x embeddings", by order and then as given;
        the interval's arrays are (..., 2^k - 1), in the unit of the values.

    Raises:
        InputError: no factor, names that are not strings or twice the same, axes that are not 2 long, values or level as
            `confidence_interval`.
    """
    names = as_tuple("factors", factors)
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        reject("factors", factors, "names, at least one and all different")
    array, k = _runs("values", values), len(names)
    if array.ndim < k + 1 or array.shape[-1 - k : -1] != (2,) * k:
        reject("the shape of values", array.shape, f"(..., {', '.join('2' * k)}, seeds), an axis for each of {names}")
    runs = array.reshape(*array.shape[: -1 - k], 2**k, array.shape[-1])
    sets = [chosen for order in range(1, k + 1) for chosen in itertools.combinations(range(k), order)]
    on = np.indices((2,) * k).reshape(k, -1)
    sign = np.array([np.prod(2 * on[list(chosen)] - 1, axis=0) for chosen in sets])
    effects = np.einsum("er,...rs->...es", sign, runs) / 2 ** (k - 1)
    return Effects(tuple(" x ".join(names[i] for i in chosen) for chosen in sets), confidence_interval(effects, level))


def _runs(name: str, values: np.ndarray) -> np.ndarray:
    """Values of runs as float64, none infinite: differences of those would look like runs without a value."""
    array = as_reals(name, values).astype(np.float64)
    refuse_where(np.isinf(array), name, array, "finite, or NaN for a run without a value")
    return array

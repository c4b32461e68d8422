"""Confidence intervals of a mean over a few seeds, by Student's t."""

import numbers
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Real

from qkdyn.errors import reject
from qkdyn.metrics.checks import as_reals, refuse_where
from qkdyn.results.summary import mean_and_sd

# Their squares stay in float64.
LARGEST_VALUE = 1e150


class Interval(NamedTuple):
    """A mean and the ends of its confidence interval, in the unit of the values."""

    mean: Float[np.ndarray, "*grid"]
    low: Float[np.ndarray, "*grid"]
    high: Float[np.ndarray, "*grid"]


def confidence_interval(values: Real[np.ndarray, "*values"], level: float = 0.95, axis: int = -1) -> Interval:
    """Confidence interval of the mean over seeds: mean -+ t s / sqrt(n), s with n - 1 in its denominator.

    t is the (1 + level)/2 quantile of Student's distribution with n - 1 degrees of freedom: exact if the seeds' values are
    independent and normal. It may reach beyond what a percentage can be.

    NaN marks a seed that gave no value (it diverged, or never reached a level): it is left out and n is the number of the
    others, so the interval is that of the seeds that did. Of one value `mean` is that value, `low` and `high` are NaN
    without a warning, as one seed tells nothing of the spread; of none all three are NaN.

    Args:
        values: numbers with the seeds along `axis`.
        level: the probability with which the interval covers the mean, in (0, 1).
        axis: the axis of the seeds.

    Returns:
        Interval(mean, low, high), float64, each of the shape of `values` without `axis`.

    Raises:
        InputError: values that are not numbers, empty, infinite or beyond 1e150; a level or an axis that is not one.
    """
    array = as_reals("values", values).astype(np.float64)
    refuse_where(np.abs(array) > LARGEST_VALUE, "values", array, f"NaN or at most {LARGEST_VALUE:g} in size")
    if not isinstance(level, numbers.Real) or not 0 < float(level) < 1:
        reject("level", level, "a number between 0 and 1", "for 95 % write 0.95")
    whole = isinstance(axis, numbers.Integral) and not isinstance(axis, bool)
    if not whole or not -array.ndim <= axis < array.ndim:
        reject("axis", axis, f"an integer from {-array.ndim} to {array.ndim - 1}, an axis of values")
    from scipy.special import stdtrit

    mean, sd, count = mean_and_sd(np.moveaxis(array, axis, -1))
    # The tail's own probability keeps its digits where level is next to 1.
    t = -stdtrit(np.maximum(count - 1, 1), (1 - float(level)) / 2)
    half = t * sd / np.sqrt(np.maximum(count, 1))
    return Interval(mean, np.asarray(mean - half), np.asarray(mean + half))

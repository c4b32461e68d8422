"""AC and ACMC (App. D.6) as whole curves over the threshold, and the areas under them, which need no threshold.

The published thresholds differ between data sets and choosing one chooses the result: the curve shows all of them. Its
counterpart for uniform attention is the same curve of `attention.uniform_mass`.
"""

import numpy as np
from jaxtyping import Float, Real

from qkdyn.errors import reject
from qkdyn.metrics.checks import as_reals, as_shares, check_match, check_share, refuse_where

# 0, 0.05, ..., 1, each the nearest float to its decimal.
THRESHOLDS = tuple(i / 20 for i in range(21))
Thresholds = tuple[float, ...] | list[float] | Real[np.ndarray, " thresholds"]


def ac_curve(
    mass: Float[np.ndarray, "*batch N"], thresholds: Thresholds = THRESHOLDS
) -> Float[np.ndarray, "*batch thresholds"]:
    """`attention_confidence` at each threshold: percent of N instances whose attention mass is at least that.

    Args:
        mass: `attention_mass` of the instances, (..., N), in [0, 1] give or take 1e-5.
        thresholds: increasing numbers in [0, 1], rounded to the precision of the masses.

    Returns:
        Percent, (..., thresholds), float64, falling from 100 at 0.

    Raises:
        InputError: masses that are NaN or out of range, no instance, thresholds that do not increase or leave [0, 1].
    """
    return _percent(_reach(as_shares("mass", mass), check_thresholds(thresholds)))


def acmc_curve(
    mass: Float[np.ndarray, "*#batch N"],
    probability: Float[np.ndarray, "*#batch N"],
    thresholds: Thresholds = THRESHOLDS,
    probability_threshold: float | None = 0.5,
) -> Float[np.ndarray, "*batch thresholds"]:
    """`acmc` at each threshold of the mass: percent of instances that reach it and the threshold of the probability.

    Args:
        mass: as for `ac_curve`.
        probability: predicted probability of the right answer, (..., N), likewise. Leading axes broadcast.
        thresholds: as for `ac_curve`.
        probability_threshold: one number in [0, 1]; or None for the mass's own threshold at each point.

    Returns:
        Percent, (..., thresholds), float64, at most `ac_curve`.

    Raises:
        InputError: as `ac_curve`; probabilities likewise, a threshold of theirs that is not in [0, 1].
    """
    masses, chance, levels = (
        as_shares("mass", mass),
        as_shares("probability", probability),
        check_thresholds(thresholds),
    )
    check_match(mass=masses, probability=chance)
    if probability_threshold is None:
        confident = _reach(chance, levels)
    else:
        confident = _reach(chance, np.array([check_share("probability_threshold", probability_threshold)]))
    return _percent(_reach(masses, levels) & confident)


def area(
    percent: Float[np.ndarray, "*batch thresholds"], thresholds: Thresholds = THRESHOLDS
) -> Float[np.ndarray, "*batch"]:
    """The area under a curve by trapezoids over the range of its thresholds: its mean height, in percent.

    Over [0, 1] the exact area under AC is 100 MRTA (the integral of the share of masses that reach t is the mean mass), and
    that under ACMC with one threshold for the probability is 100 times the mean of mass * (probability reaches it). By
    trapezoids it is off by at most half the widest step, in percent.

    Args:
        percent: a curve, (..., thresholds), finite.
        thresholds: those of the curve, at least two.

    Raises:
        InputError: a curve that is not finite or of another length, thresholds as for `ac_curve`, fewer than two.
    """
    levels = check_thresholds(thresholds)
    heights = as_shares("percent / 100", np.asarray(percent) / 100).astype(np.float64)
    if levels.size < 2:
        reject("thresholds", thresholds, "at least two numbers")
    if heights.shape[-1] != levels.size:
        reject("the shape of percent", heights.shape, f"(..., {levels.size}), one value for each threshold")
    return np.asarray(100 * np.trapezoid(heights, levels) / (levels[-1] - levels[0]))


def check_thresholds(thresholds: Thresholds) -> np.ndarray:
    """Return `thresholds` as float64, or raise InputError unless they are increasing numbers in [0, 1]."""
    levels = as_reals("thresholds", thresholds).astype(np.float64)
    if levels.ndim != 1:
        reject("thresholds", thresholds, "a list of numbers")
    refuse_where(~((levels >= 0) & (levels <= 1)), "thresholds", levels, "from 0 to 1")
    refuse_where(np.diff(levels, prepend=-1) <= 0, "thresholds", levels, "above the threshold before it")
    return levels


def _reach(values: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Where values are at least each level, (..., levels, N), compared in their own precision."""
    return values[..., None, :] >= levels.astype(values.dtype)[:, None]


def _percent(hits: np.ndarray) -> np.ndarray:
    """Percent of true values along the last axis."""
    return np.asarray(100.0 * hits.sum(-1) / hits.shape[-1])

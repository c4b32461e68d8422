"""Bounds of both circuits that meet at the start and at the end, where those of Lemma 3 stay a factor apart (CACO from zero).

Along every trajectory the margin A = alpha mu_ov obeys

    d/dt [e^A - 1 + (M-1) A] = (eta_ov / b) h,    h(q) = alpha^2 [1 + 2 (1-alpha)^2 (q + (m/n)(e^q - 1))],    q = mu_qk,

because dA = alpha (1 + (1-alpha)^2 K mu_ov^2) d mu_ov on the curve of Theorem 1, whose first integral turns K mu_ov^2 into
a function of q. So h depends on m/n alone - not on r, b or M - and alpha0^2 <= h(q) <= max of h up to q. The loss is a
function of A: it is squeezed whatever the ratio. At a given ratio A fixes mu_ov and mu_qk, both increasing in A.
"""

from typing import NamedTuple, cast

import numpy as np
from jaxtyping import Float64

from qkdyn.errors import reject
from qkdyn.theory.closed_form import check_loss, gain_at_margin
from qkdyn.theory.curve import Curve, lambert_root
from qkdyn.theory.setting import (
    Reals,
    Setting,
    check_array,
    check_duration,
    check_rate,
    check_ratio,
    check_setting,
    check_times,
)

# Each round turns an upper bound of mu_qk into a better one; it is within rounding of its limit long before.
ROUNDS = 8
# Parts of the time after which the pace at least reached is counted on for the rest of it.
SHARES = (0.5, 0.1, 0.01, 1e-4)


class SharpBounds(NamedTuple):
    """Bounds of Theorem 1's dynamics at given times; every field has the shape of r followed by that of t."""

    mu_ov_lower: Float64[np.ndarray, "*r t"]
    mu_ov_upper: Float64[np.ndarray, "*r t"]
    mu_qk_lower: Float64[np.ndarray, "*r t"]
    mu_qk_upper: Float64[np.ndarray, "*r t"]
    alpha_lower: Float64[np.ndarray, "*r t"]
    alpha_upper: Float64[np.ndarray, "*r t"]
    loss_lower: Float64[np.ndarray, "*r t"]
    loss_upper: Float64[np.ndarray, "*r t"]


class TimeBounds(NamedTuple):
    """When a loss is reached at the earliest and at the latest, whatever the ratio; of the shape of the loss."""

    earliest: Float64[np.ndarray, "..."]
    latest: Float64[np.ndarray, "..."]


def pace(setting: Setting, mu_qk: Reals) -> Float64[np.ndarray, "..."]:
    """h(mu_qk), of mu_qk's shape: how fast e^A - 1 + (M-1) A grows, in units of eta_ov / b. alpha0^2 at 0, 1 at infinity.

    Raises:
        InputError: mu_qk is negative or not finite.
    """
    q = check_array("mu_qk", mu_qk)
    if (q < 0).any():
        reject("mu_qk", float(q.min()), ">= 0")
    return _pace(check_setting(setting), q)


def _pace(setting: Setting, q: np.ndarray) -> np.ndarray:
    odds = setting.odds
    alpha, rest = setting.attention(q), setting.inattention(q)
    # (1-alpha) (m/n) e^q is alpha: written so, nothing overflows.
    return np.asarray(alpha**2 * (1 + 2 * rest * (alpha + rest * (q - odds))))


def fastest(setting: Setting) -> float:
    """The mu_qk at which h is largest, its only stationary point.

    h' = 4 alpha^2 (1-alpha)^2 (1 + 2 alpha - p), p = (2 alpha - 1)(q - m/n). Below alpha = 1/2, where m/n < 1, p < 1. Where
    p >= 1 + 2 alpha, therefore, q - m/n >= (1 + 2 alpha) / (2 alpha - 1) > 3, and there p - 2 alpha grows with q, at
    2 alpha - 1 + 2 alpha (1-alpha)(q - m/n - 1) > 0: h' changes its sign once, from + to -.
    """
    from scipy.optimize import brentq

    odds = check_setting(setting).odds

    def falling(q: float) -> float:
        alpha = float(setting.attention(q))
        return (2 * alpha - 1) * (q - odds) - 1 - 2 * alpha

    return cast(float, brentq(falling, 0.0, max(0.0, -np.log(odds)) + odds + 6, xtol=1e-12))


def progress(setting: Setting, margin: Reals) -> Float64[np.ndarray, "..."]:
    """e^A - 1 + (M-1) A of a margin A, of its shape: the time it takes at h = 1, in units of b / eta_ov.

    Infinite where it exceeds float64.

    Raises:
        InputError: a value is not allowed.
    """
    margin, others = check_array("margin", margin), check_setting(setting).M - 1
    with np.errstate(over="ignore"):
        return np.asarray(np.expm1(margin) + others * margin)


def sharp_bounds(setting: Setting, r: Reals, t: Reals, *, eta_ov: float | int = 1.0) -> SharpBounds:
    """Squeeze Theorem 1's dynamics, both circuits collapsed and started at zero, at all times and ratios.

    From above: e^A - 1 + (M-1) A <= h eta_ov t / b, with the largest pace h up to an upper bound of mu_qk, which this in
    turn improves. From below: the pace is at least alpha0^2, and after a part of the time at least the smallest pace
    beyond the mu_qk then reached for certain. The ratio of the bounds tends to 1 for t -> 0 and, for every r, for
    t -> infinity; Lemma 3's tend to 1/alpha0 for mu_ov and worse for mu_qk.

    Args:
        setting: sizes of the problem.
        r: learning-rate ratio eta_qk / eta_ov, any shape.
        t: strictly increasing times >= 0, 1-D, in units of 1/eta_ov where eta_ov = 1.
        eta_ov: OV learning rate.

    Returns:
        SharpBounds of shape r.shape + t.shape.

    Raises:
        InputError: a value is not allowed.
    """
    curve, times, eta = Curve.start(check_setting(setting), "CACO", None), check_times(t), check_rate("eta_ov", eta_ov)
    ratio = check_ratio(r)[..., None]
    tau = check_duration(eta, times) / setting.b
    top, peak = _peak(setting)
    slow = setting.alpha0**2
    achieved = np.array(np.broadcast_to(slow * tau, ratio.shape[:-1] + tau.shape))
    for share in SHARES:
        reached = _state(curve, ratio, slow * share * tau)[1]
        # h has one hump and ends at 1: beyond any point it stays above the lesser of its value there and 1.
        steady = np.minimum(_pace(setting, reached), 1.0)
        achieved = np.maximum(achieved, (slow * share + steady * (1 - share)) * tau)
    low = _state(curve, ratio, achieved)
    high = _state(curve, ratio, peak * tau)
    for _ in range(ROUNDS):
        high = _state(curve, ratio, _pace(setting, np.minimum(high[1], top)) * tau)
    pairs = zip(low, high, strict=True)
    mu_ov, mu_qk, alpha, loss = pairs
    return SharpBounds(*mu_ov, *mu_qk, *alpha, *loss[::-1])


def _state(curve: Curve, ratio: np.ndarray, achieved: np.ndarray) -> tuple[np.ndarray, ...]:
    """(mu_ov, mu_qk, alpha, loss) of each ratio where e^A - 1 + (M-1) A has reached a value."""
    shape = np.broadcast_shapes(ratio.shape, achieved.shape)
    others = curve.setting.M - 1
    margin = np.broadcast_to(lambert_root(achieved / others, 1 / others), shape)
    # Nothing has moved at t = 0, where the search for the margin has no bracket.
    gain = np.where(margin > 0, gain_at_margin(curve, ratio, margin), 0.0)
    q = np.asarray(curve.mu_qk(ratio, gain))
    return gain, q, curve.setting.attention(q), curve.setting.loss(margin)


def time_bounds(setting: Setting, loss: Reals, *, eta_ov: float | int = 1.0) -> TimeBounds:
    """The earliest and the latest time at which a loss can be reached, whatever the ratio (CACO from zero).

    b (e^A - 1 + (M-1) A) / eta_ov over the largest and the smallest h: no ratio gains more than h_max / alpha0^2.

    Args:
        setting: sizes of the problem.
        loss: in nats, any shape, between 0 and ln M.
        eta_ov: OV learning rate.

    Returns:
        TimeBounds of the loss's shape, in units of 1/eta_ov where eta_ov = 1; r -> 0 comes next to the latest. Infinite
        where they exceed float64.

    Raises:
        InputError: a value is not allowed. RangeError: a loss outside (0, ln M).
    """
    curve, eta = Curve.start(check_setting(setting), "CACO", None), check_rate("eta_ov", eta_ov)
    duration = progress(setting, setting.margin(check_loss(curve, loss)))
    with np.errstate(over="ignore"):
        early, late = (duration / h * setting.b / eta for h in (_peak(setting)[1], setting.alpha0**2))
    return TimeBounds(np.asarray(early), np.asarray(late))


def _peak(setting: Setting) -> tuple[float, float]:
    """(mu_qk, h) where h is largest."""
    top = fastest(setting)
    return top, float(_pace(setting, np.asarray(top)))

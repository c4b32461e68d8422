"""Attention at a matched loss, the same as a function of time, and which ratio gives an attention: no integration in t.

A loss fixes the margin alpha mu_ov = A = ln((M-1)/(e^loss - 1)); with the first integral of `curve` that is one scalar
equation with one root. numpy and scipy alone, float64.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from qkdyn.errors import STRONGEST, WEAKEST, RangeError, reject
from qkdyn.theory.clock import clock_for_times, elapsed
from qkdyn.theory.curve import Curve
from qkdyn.theory.roots import bracketed_newton
from qkdyn.theory.setting import (
    Numeric,
    Reals,
    Setting,
    check_array,
    check_duration,
    check_rate,
    check_ratio,
    check_together,
)


class MatchedState(NamedTuple):
    """Where a trajectory stands; every field has the shape of the broadcast arguments.

    Attributes:
        mu_ov: strength of the OV circuit.
        mu_qk: score gap of the QK circuit.
        alpha: attention on the class tokens.
        t: time, in units of 1/eta_ov where eta_ov = 1.
    """

    mu_ov: Float64[np.ndarray, "..."]
    mu_qk: Float64[np.ndarray, "..."]
    alpha: Float64[np.ndarray, "..."]
    t: Float64[np.ndarray, "..."]


def gain_at_margin(curve: Curve, r: np.ndarray, margin: np.ndarray) -> np.ndarray:
    """mu_ov - mu0 where alpha mu_ov = margin; arguments broadcast, margin above its value at the start.

    The root of ln alpha + ln mu_ov - ln A, whose slope in ln mu_ov is at least 1, in the bracket
    max(A, mu0) <= mu_ov <= A / alpha at the start.
    """
    shape = np.broadcast_shapes(r.shape, margin.shape)
    r, margin = (np.broadcast_to(part, shape).ravel() for part in (r, margin))
    # Rounding must not put it before the start, nor at zero.
    margin = np.maximum(margin, max(curve.alpha0 * curve.mu0, np.finfo(float).tiny))
    low, high = np.log(np.maximum(margin, curve.mu0)), np.log(margin / curve.alpha0)
    target = np.log(margin)

    def evaluate(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mu = np.exp(x)
        gain = np.maximum(mu - curve.mu0, 0.0)
        q = curve.mu_qk(r, gain)
        excess = x + np.log(curve.setting.attention(q)) - target
        return excess, excess / (1 + curve.setting.inattention(q) * mu * curve.slope(r, gain, q))

    x = bracketed_newton(evaluate, low, high, high, lambda step, _: step <= 1e-10)
    return np.maximum(np.exp(x) - curve.mu0, 0.0).reshape(shape)


def _per_ratio(r: np.ndarray, values: np.ndarray, compute: Callable[[float, np.ndarray], np.ndarray]) -> np.ndarray:
    """Apply `compute(ratio, values of that ratio)` to each distinct ratio: a clock is tabulated once for each."""
    r, values = np.broadcast_arrays(r, values)
    out, flat_r, flat = np.empty(r.size), r.ravel(), values.ravel()
    ratios, group = np.unique(flat_r, return_inverse=True)
    for index, ratio in enumerate(ratios.tolist()):
        mine = group.ravel() == index
        out[mine] = compute(ratio, flat[mine])
    return out.reshape(r.shape)


def _state(curve: Curve, r: np.ndarray, gain: Numeric, eta_ov: float, t: np.ndarray | None = None) -> MatchedState:
    """The full state where mu_ov has gained `gain`; the time is computed unless given."""
    r, gain = np.broadcast_arrays(r, gain)
    if t is None:
        with np.errstate(over="ignore"):
            t = _per_ratio(r, gain, lambda ratio, gains: elapsed(curve, ratio, gains)) / eta_ov
    q = np.asarray(curve.mu_qk(r, gain))
    mu = np.array(curve.mu0 + gain)
    return MatchedState(mu, q, curve.setting.attention(q), np.array(np.broadcast_to(t, r.shape)))


def check_loss(curve: Curve, loss: Reals) -> Float64[np.ndarray, "..."]:
    """Return losses that a trajectory from this start passes, or raise RangeError with the range."""
    losses = check_array("loss", loss)
    start = float(curve.setting.loss(curve.alpha0 * curve.mu0))
    bad = (losses <= 0) | (losses >= start)
    if bad.any():
        allowed = f"between 0 and the loss at the start, {start:.9g}, both excluded"
        reject("loss", float(losses[bad][0]), allowed, error=RangeError)
    return losses


def check_attention(curve: Curve, alpha: Reals, most: Numeric | float = 1.0) -> Float64[np.ndarray, "..."]:
    """Return attentions above the start and below `most`, or raise RangeError with the range."""
    alphas = check_array("alpha", alpha)
    bad = (alphas <= curve.alpha0) | (alphas >= most)
    if bad.any():
        wide, ceiling = np.broadcast_arrays(alphas, most)
        allowed = f"between {curve.alpha0:.9g}, attention at the start, and {ceiling[bad][0]:.9g}, both excluded"
        reject("alpha", float(wide[bad][0]), allowed, error=RangeError)
    return alphas


def at_loss(
    setting: Setting,
    r: Reals,
    loss: Reals,
    *,
    eta_ov: float | int = 1.0,
    parameterization: str = "CACO",
    initial: Reals | None = None,
) -> MatchedState:
    """The state of Theorem 1's dynamics when the loss reaches a given value.

    Args:
        setting: sizes of the problem.
        r: learning-rate ratio eta_qk / eta_ov, any shape.
        loss: stop loss in nats, broadcast against `r`, between 0 and the loss at the start.
        eta_ov: OV learning rate; it sets the clock alone.
        parameterization: which circuits are factorized (balanced factors).
        initial: (mu_ov, mu_qk) at t = 0; (0, 0) unless a circuit is factorized.

    Returns:
        MatchedState of the broadcast shape; t is infinite where eta_ov t exceeds float64 (losses below about 1e-300).
        Next to the start the state is that of a loss within rounding of the one given.

    Raises:
        InputError: a value is not allowed.
        RangeError: no trajectory passes the loss; the message names the range.
    """
    curve, eta = Curve.start(setting, parameterization, initial), check_rate("eta_ov", eta_ov)
    ratio, losses = check_ratio(r), check_loss(curve, loss)
    check_together(r=ratio, loss=losses)
    return _state(curve, ratio, gain_at_margin(curve, ratio, setting.margin(losses)), eta)


def at_time(
    setting: Setting,
    r: Reals,
    t: Reals,
    *,
    eta_ov: float | int = 1.0,
    parameterization: str = "CACO",
    initial: Reals | None = None,
) -> MatchedState:
    """The solution of Theorem 1's equations at given times, by inverting the clock of the curve.

    Args:
        setting: sizes of the problem.
        r: learning-rate ratio eta_qk / eta_ov, any shape.
        t: times >= 0 in any order, broadcast against `r`; in units of 1/eta_ov where eta_ov = 1.
        eta_ov: OV learning rate.
        parameterization: which circuits are factorized (balanced factors).
        initial: (mu_ov, mu_qk) at t = 0; (0, 0) unless a circuit is factorized.

    Returns:
        MatchedState of the broadcast shape; mu_qk is found from mu_ov - mu0, which mu_ov may round away.

    Raises:
        InputError: a value is not allowed.
    """
    curve, eta = Curve.start(setting, parameterization, initial), check_rate("eta_ov", eta_ov)
    ratio, times = check_ratio(r), check_array("t", t)
    if (times < 0).any():
        reject("t", float(times.min()), ">= 0")
    check_together(r=ratio, t=times)

    def invert(one: float, taus: np.ndarray) -> np.ndarray:
        def reach(margin: float) -> float:
            return float(gain_at_margin(curve, np.asarray(one), np.asarray(margin)))

        return clock_for_times(curve, one, float(taus.max()), reach).gain(taus)

    return _state(curve, ratio, _per_ratio(ratio, check_duration(eta, times), invert), eta, times)


def at_attention(
    setting: Setting,
    r: Reals,
    alpha: Reals,
    *,
    eta_ov: float | int = 1.0,
    parameterization: str = "CACO",
    initial: Reals | None = None,
) -> MatchedState:
    """The state when attention on the class tokens reaches `alpha`; its loss is `setting.loss(alpha * mu_ov)`.

    Arguments as in `at_loss`, with `alpha` between its value at the start and 1, broadcast against `r`. A slow
    attention circuit gets there only after the loss: t is infinite where eta_ov t exceeds float64 (alpha mu_ov above
    about 700), and the loss 0 where it falls below float64.

    Raises:
        InputError: a value is not allowed.
        RangeError: no trajectory passes this attention; the message names the range.
    """
    curve, eta = Curve.start(setting, parameterization, initial), check_rate("eta_ov", eta_ov)
    ratio, alphas = check_ratio(r), check_attention(curve, alpha)
    check_together(r=ratio, alpha=alphas)
    return _state(curve, ratio, curve.gain(ratio, _gap(curve, alphas)), eta)


def ratio_for(
    setting: Setting,
    alpha: Reals,
    loss: Reals,
    *,
    parameterization: str = "CACO",
    initial: Reals | None = None,
) -> Float64[np.ndarray, "..."]:
    """The learning-rate ratio that gives attention `alpha` at loss `loss`.

    mu_ov = A / alpha and mu_qk = ln(n alpha / (m (1-alpha))) fix a point, and the first integral the ratio of the curve
    through it; for CACO from zero r = 2 M b [q + (m/n)(e^q - 1)] / ((M-1) mu_ov^2).

    Args:
        setting: sizes of the problem.
        alpha: attention on the class tokens, any shape.
        loss: stop loss in nats, broadcast against `alpha`.
        parameterization: which circuits are factorized (balanced factors).
        initial: (mu_ov, mu_qk) at t = 0; (0, 0) unless a circuit is factorized.

    Returns:
        r of the broadcast shape.

    Raises:
        InputError: a value is not allowed.
        RangeError: no ratio from 1e-75 to 1e75 gives this attention at this loss; the message names what is reachable.
    """
    curve = Curve.start(setting, parameterization, initial)
    margin = setting.margin(check_loss(curve, loss))
    check_together(alpha=check_array("alpha", alpha), loss=margin)
    # mu_ov = A / alpha has to lie beyond its start.
    most = np.minimum(1.0, margin / curve.mu0) if curve.mu0 > 0 else 1.0
    alphas = check_attention(curve, alpha, most)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        ratio = np.asarray(curve.ratio(margin / alphas - curve.mu0, _gap(curve, alphas)))
    bad = ~((ratio >= WEAKEST) & (ratio <= STRONGEST))
    if bad.any():
        allowed = f"between {WEAKEST:g} and {STRONGEST:g}"
        do = "alpha or loss is within rounding of its start or its limit"
        reject("the ratio for this alpha and loss", float(ratio[bad][0]), allowed, do, RangeError)
    return ratio


def _gap(curve: Curve, alpha: np.ndarray) -> Numeric:
    """mu_qk at attention alpha; rounding must not put it before the start."""
    return np.maximum(np.log(alpha / (1 - alpha)) - np.log(curve.setting.odds), curve.q0)

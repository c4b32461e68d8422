"""Attention at a matched loss, the same as a function of time, and which ratio gives an attention: no integration in t.

A loss fixes the margin alpha mu_ov = A = ln((M-1)/(e^loss - 1)); with the first integral of `curve` that is one scalar
equation with one root. numpy and scipy alone, float64.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from qkdyn.errors import RangeError, check_positive, reject
from qkdyn.theory.clock import Clock, clock_for_times
from qkdyn.theory.curve import Curve
from qkdyn.theory.roots import bracketed_newton
from qkdyn.theory.setting import Numeric, Reals, Setting, check_array, check_ratio


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


def mu_at_margin(curve: Curve, r: np.ndarray, margin: np.ndarray) -> np.ndarray:
    """The mu_ov where alpha mu_ov = margin; arguments broadcast, margin above its value at the start.

    The root of ln alpha + ln mu_ov - ln A, whose slope in ln mu_ov is at least 1, in the bracket
    max(A, mu0) <= mu_ov <= A / alpha at the start.
    """
    shape = np.broadcast_shapes(r.shape, margin.shape)
    r, margin = (np.broadcast_to(part, shape).ravel() for part in (r, margin))
    low, high = np.log(np.maximum(margin, curve.mu0)), np.log(margin / curve.alpha0)
    target = np.log(margin)

    def evaluate(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mu = np.exp(x)
        q = curve.mu_qk(r, mu)
        excess = x + np.log(curve.setting.attention(q)) - target
        return excess, excess / (1 + curve.setting.inattention(q) * mu * curve.slope(r, mu, q))

    x = bracketed_newton(evaluate, low, high, high, lambda step, _: step <= 1e-10)
    return np.maximum(np.exp(x), curve.mu0).reshape(shape)


def _per_ratio(r: np.ndarray, values: np.ndarray, compute: Callable[[float, np.ndarray], np.ndarray]) -> np.ndarray:
    """Apply `compute(ratio, values of that ratio)` to each distinct ratio: a clock is tabulated once for each."""
    r, values = np.broadcast_arrays(r, values)
    out, flat_r, flat = np.empty(r.size), r.ravel(), values.ravel()
    ratios, group = np.unique(flat_r, return_inverse=True)
    for index, ratio in enumerate(ratios.tolist()):
        mine = group.ravel() == index
        out[mine] = compute(ratio, flat[mine])
    return out.reshape(r.shape)


def _state(curve: Curve, r: np.ndarray, mu: Numeric, eta_ov: float, t: np.ndarray | None = None) -> MatchedState:
    """The full state at mu_ov = mu; the time is computed unless given."""
    r, mu = np.broadcast_arrays(r, mu)
    if t is None:
        t = _per_ratio(r, mu, lambda ratio, mus: Clock(curve, ratio, float(mus.max()), eta_ov).time(mus))
    q = np.asarray(curve.mu_qk(r, mu))
    return MatchedState(np.array(mu), q, curve.setting.attention(q), np.array(np.broadcast_to(t, r.shape)))


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
        MatchedState of the broadcast shape; t is infinite where it exceeds float64 (losses below about 1e-300).

    Raises:
        InputError: a value is not allowed.
        RangeError: no trajectory passes the loss; the message names the range.
    """
    curve, eta = Curve.start(setting, parameterization, initial), check_positive("eta_ov", eta_ov)
    ratio, losses = check_ratio(r), check_loss(curve, loss)
    return _state(curve, ratio, mu_at_margin(curve, ratio, setting.margin(losses)), eta)


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
        MatchedState of the broadcast shape.

    Raises:
        InputError: a value is not allowed.
    """
    curve, eta = Curve.start(setting, parameterization, initial), check_positive("eta_ov", eta_ov)
    ratio, times = check_ratio(r), check_array("t", t)
    if (times < 0).any():
        reject("t", float(times.min()), ">= 0")

    def invert(one: float, ts: np.ndarray) -> np.ndarray:
        def reach(margin: float) -> float:
            return float(mu_at_margin(curve, np.asarray(one), np.asarray(margin)))

        return clock_for_times(curve, one, float(ts.max()), eta, reach).mu_ov(ts)

    return _state(curve, ratio, _per_ratio(ratio, times, invert), eta, times)


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

    Arguments as in `at_loss`, with `alpha` between its value at the start and 1, broadcast against `r`.

    Raises:
        InputError: a value is not allowed.
        RangeError: no trajectory passes this attention; the message names the range.
    """
    curve, eta = Curve.start(setting, parameterization, initial), check_positive("eta_ov", eta_ov)
    ratio, alphas = check_ratio(r), check_attention(curve, alpha)
    return _state(curve, ratio, curve.mu_ov(ratio, _gap(curve, alphas)), eta)


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
        RangeError: no ratio gives this attention at this loss; the message names the reachable range.
    """
    curve = Curve.start(setting, parameterization, initial)
    margin = setting.margin(check_loss(curve, loss))
    # mu_ov = A / alpha has to lie beyond its start.
    most = np.minimum(1.0, margin / curve.mu0) if curve.mu0 > 0 else 1.0
    alphas = check_attention(curve, alpha, most)
    return np.asarray(curve.ratio(margin / alphas, _gap(curve, alphas)))


def _gap(curve: Curve, alpha: np.ndarray) -> Numeric:
    """mu_qk at attention alpha; rounding must not put it before the start."""
    return np.maximum(np.log(alpha / (1 - alpha)) - np.log(curve.setting.odds), curve.q0)

"""When a point of the curve is reached: tau = eta_ov t = integral of d mu_ov / (d mu_ov/d tau), and its inverse.

With E = e^(alpha mu_ov), d mu_ov/d tau = alpha / (b (E + M-1)), times 2 sqrt(b) mu_ov where the OV circuit is
factorized. The integrand is analytic; its nearest singularities are where m e^q + n = 0, a distance pi in q = mu_qk.
Panels that are short in q, in alpha mu_ov and in the logarithms that a factorized circuit brings therefore make
Gauss-Legendre exact to rounding at every ratio, where one rule over the whole interval would miss a transition that
takes a millionth of it. Points are named by their gain, mu_ov - mu0, as on the curve.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from qkdyn.theory.curve import Curve
from qkdyn.theory.roots import bracketed_newton

ORDER = 24
PANEL = 0.5  # of mu_qk, and of ln mu_qk where that circuit is factorized
# tau grows like e^(alpha mu_ov), and e^710 is the end of float64: beyond this margin no time is finite.
LAST_MARGIN = 750.0


@cache
def _rule() -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(ORDER)
    return (1 + nodes) / 2, weights / 2


def slowness(curve: Curve, r: float, gain: np.ndarray) -> np.ndarray:
    """1 / (d mu_ov / d tau) on the curve, of gain's shape; infinite where e^(alpha mu_ov) exceeds float64."""
    alpha, mu = curve.setting.attention(curve.mu_qk(r, gain)), curve.mu0 + gain
    with np.errstate(over="ignore"):
        slow = curve.setting.b * (np.exp(alpha * mu) + (curve.setting.M - 1)) / alpha
    return slow / (2 * math.sqrt(curve.setting.b) * mu) if curve.parameterization.factorized_ov else slow


def _spans(curve: Curve, r: float, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Spans of tau from gain `low` to gain `high`, elementwise, each in one panel."""
    nodes, weights = _rule()
    width = high - low
    with np.errstate(over="ignore", invalid="ignore"):
        spans = width * (slowness(curve, r, low[:, None] + width[:, None] * nodes) @ weights)
    return np.where(width > 0, spans, 0.0)


def _panels(curve: Curve, r: float, end: float) -> np.ndarray:
    """Increasing gains from 0 to `end` between which the clock is smooth."""
    q_end = float(curve.mu_qk(r, end))
    levels = [np.linspace(curve.q0, q_end, math.ceil((q_end - curve.q0) / PANEL) + 1)]
    if curve.parameterization.factorized_qk:
        levels.append(np.geomspace(curve.q0, q_end, math.ceil(math.log(q_end / curve.q0) / PANEL) + 1))
    breaks = [np.array([0.0, end])]
    breaks += [curve.gain(r, level[1:-1]) for level in levels]
    margin = float(curve.setting.attention(q_end)) * end
    breaks.append(np.linspace(0.0, end, math.ceil(margin) + 1))
    if curve.parameterization.factorized_ov:
        growth = math.log1p(end / curve.mu0)
        breaks.append(curve.mu0 * np.expm1(np.linspace(0.0, growth, math.ceil(2 * growth) + 1)))
    return np.unique(np.clip(np.concatenate(breaks), 0.0, end))


class Clock:
    """The map between gain and tau along one curve at one ratio, tabulated up to gain `end`.

    alpha mu_ov at `end` is LAST_MARGIN at most, which bounds the number of panels.
    """

    def __init__(self, curve: Curve, r: float, end: float):
        self.curve, self.r = curve, r
        self.breaks = _panels(curve, r, end)
        self.elapsed = np.zeros(len(self.breaks))
        if len(self.breaks) > 1:
            with np.errstate(over="ignore"):
                self.elapsed[1:] = np.cumsum(_spans(curve, r, self.breaks[:-1], self.breaks[1:]))

    def time(self, gain: np.ndarray) -> np.ndarray:
        """The tau at which mu_ov has gained `gain` (1-D, 0 <= gain <= end)."""
        panel = np.searchsorted(self.breaks, gain, side="right") - 1
        return self.elapsed[panel] + _spans(self.curve, self.r, self.breaks[panel], gain)

    def gain(self, tau: np.ndarray) -> np.ndarray:
        """The gain at tau (1-D, 0 <= tau <= the last tabulated): the root inside its panel."""
        panel = np.clip(np.searchsorted(self.elapsed, tau, side="right") - 1, 0, len(self.breaks) - 2)
        low, high = self.breaks[panel], self.breaks[panel + 1]
        share = (tau - self.elapsed[panel]) / (self.elapsed[panel + 1] - self.elapsed[panel])

        def evaluate(gain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            late = self.elapsed[panel] + _spans(self.curve, self.r, low, gain) - tau
            slow = slowness(self.curve, self.r, gain)
            finite = np.isfinite(late) & np.isfinite(slow)
            # Where time exceeds float64, an endless step asks for a bisection.
            return late, np.where(finite, np.where(finite, late, 0.0) / slow, np.inf)

        def settled(step: np.ndarray, gain: np.ndarray) -> np.ndarray:
            return step <= 1e-10 * gain

        return bracketed_newton(evaluate, low, high, low + (high - low) * share, settled)


def elapsed(curve: Curve, r: float, gain: np.ndarray) -> np.ndarray:
    """The tau at which mu_ov has gained `gain` (1-D), infinite where it exceeds float64."""
    tau = np.full(gain.shape, np.inf)
    near = curve.setting.attention(curve.mu_qk(r, gain)) * (curve.mu0 + gain) <= LAST_MARGIN
    if near.any():
        tau[near] = Clock(curve, r, float(gain[near].max())).time(gain[near])
    return tau


def clock_for_times(curve: Curve, r: float, latest: float, gain_at_margin: Callable[[float], float]) -> Clock:
    """A clock that reaches tau = `latest`; `gain_at_margin(margin)` is the gain where alpha mu_ov = margin."""
    margin = curve.alpha0 * curve.mu0 + math.log1p(latest / curve.setting.b) + 1
    while True:
        clock = Clock(curve, r, gain_at_margin(min(margin, LAST_MARGIN)))
        if clock.elapsed[-1] >= latest or margin >= LAST_MARGIN:
            return clock
        # Late in training tau grows like e^margin, so two or three rounds do.
        margin += 3

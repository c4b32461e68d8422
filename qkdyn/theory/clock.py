"""When a point of the curve is reached: t = integral of d mu_ov / (d mu_ov/dt), and its inverse.

With E = e^(alpha mu_ov), d mu_ov/dt = eta_ov alpha / (b (E + M-1)), times 2 sqrt(b) mu_ov where the OV circuit is
factorized. The integrand is analytic; its nearest singularities are where m e^q + n = 0, a distance pi in q = mu_qk.
Panels that are short in q, in alpha mu_ov and in the logarithms that a factorized circuit brings therefore make
Gauss-Legendre exact to rounding at every ratio, where one rule over the whole interval would miss a transition that
takes a millionth of it.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from qkdyn.theory.curve import Curve
from qkdyn.theory.roots import bracketed_newton
from qkdyn.theory.setting import Reals

ORDER = 24
PANEL = 0.5  # of mu_qk, and of ln mu_qk where that circuit is factorized


@cache
def _rule() -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(ORDER)
    return (1 + nodes) / 2, weights / 2


def slowness(curve: Curve, r: Reals, mu: np.ndarray, eta_ov: float = 1.0) -> np.ndarray:
    """1 / (d mu_ov/dt) on the curve, of mu's shape; infinite where e^(alpha mu_ov) exceeds float64."""
    alpha = curve.setting.attention(curve.mu_qk(r, mu))
    with np.errstate(over="ignore"):
        slow = curve.setting.b * (np.exp(alpha * mu) + (curve.setting.M - 1)) / (eta_ov * alpha)
    return slow / (2 * math.sqrt(curve.setting.b) * mu) if curve.parameterization.factorized_ov else slow


def _spans(curve: Curve, r: float, low: np.ndarray, high: np.ndarray, eta_ov: float) -> np.ndarray:
    """Time from mu_ov = low to mu_ov = high, elementwise, each in one panel."""
    nodes, weights = _rule()
    mu = low[:, None] + (high - low)[:, None] * nodes
    return (high - low) * (slowness(curve, r, mu, eta_ov) @ weights)


def _panels(curve: Curve, r: float, end: float) -> np.ndarray:
    """Increasing breakpoints from mu0 to `end` between which the clock is smooth."""
    q_end = float(curve.mu_qk(r, end))
    levels = [np.linspace(curve.q0, q_end, math.ceil((q_end - curve.q0) / PANEL) + 1)]
    if curve.parameterization.factorized_qk:
        levels.append(np.geomspace(curve.q0, q_end, math.ceil(math.log(q_end / curve.q0) / PANEL) + 1))
    breaks = [np.array([curve.mu0, end])]
    breaks += [curve.mu_ov(r, level[1:-1]) for level in levels]
    margin = float(curve.setting.attention(q_end)) * (end - curve.mu0)
    breaks.append(np.linspace(curve.mu0, end, math.ceil(margin) + 1))
    if curve.parameterization.factorized_ov:
        breaks.append(np.geomspace(curve.mu0, end, math.ceil(2 * math.log(end / curve.mu0)) + 1))
    return np.unique(np.clip(np.concatenate(breaks), curve.mu0, end))


class Clock:
    """The map between mu_ov and time along one curve at one ratio, tabulated up to mu_ov = `end`."""

    def __init__(self, curve: Curve, r: float, end: float, eta_ov: float = 1.0):
        self.curve, self.r, self.eta_ov = curve, r, eta_ov
        self.breaks = _panels(curve, r, end)
        self.elapsed = np.zeros(len(self.breaks))
        if len(self.breaks) > 1:
            self.elapsed[1:] = np.cumsum(_spans(curve, r, self.breaks[:-1], self.breaks[1:], eta_ov))

    def time(self, mu: np.ndarray) -> np.ndarray:
        """Time to reach mu_ov = mu (1-D, mu0 <= mu <= end)."""
        panel = np.searchsorted(self.breaks, mu, side="right") - 1
        return self.elapsed[panel] + _spans(self.curve, self.r, self.breaks[panel], mu, self.eta_ov)

    def mu_ov(self, t: np.ndarray) -> np.ndarray:
        """mu_ov at time t (1-D, 0 <= t <= the last time): the root inside its panel."""
        panel = np.clip(np.searchsorted(self.elapsed, t, side="right") - 1, 0, len(self.breaks) - 2)
        low, high = self.breaks[panel], self.breaks[panel + 1]
        share = (t - self.elapsed[panel]) / (self.elapsed[panel + 1] - self.elapsed[panel])

        def evaluate(mu: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            late = self.elapsed[panel] + _spans(self.curve, self.r, low, mu, self.eta_ov) - t
            return late, late / slowness(self.curve, self.r, mu, self.eta_ov)

        def settled(step: np.ndarray, mu: np.ndarray) -> np.ndarray:
            return step <= 1e-10 * (mu - self.curve.mu0) + 1e-16 * mu

        return bracketed_newton(evaluate, low, high, low + (high - low) * share, settled)


def clock_for_times(
    curve: Curve, r: float, latest: float, eta_ov: float, mu_at_margin: Callable[[float], float]
) -> Clock:
    """A clock that reaches `latest`; `mu_at_margin(margin)` is mu_ov where alpha mu_ov = margin."""
    margin = curve.alpha0 * curve.mu0 + math.log1p(eta_ov * latest / curve.setting.b) + 1
    while True:
        clock = Clock(curve, r, mu_at_margin(margin), eta_ov)
        if clock.elapsed[-1] >= latest:
            return clock
        # Late in training time grows like e^margin, so two or three rounds do.
        margin += 3

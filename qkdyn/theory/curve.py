"""The curve that (mu_ov, mu_qk) follows: the first integral of the scalar equations of all four parameterizations.

Dividing d mu_qk/dt by d mu_ov/dt removes time and loss and leaves a separable equation, G(q) - G(q0) = rise(mu), where

    CACO: K (mu^2 - mu0^2) / 2           CAFO: K (mu - mu0) / (2 sqrt(b))     G = q + (m/n) e^q
    FACO: b K (mu^2 - mu0^2)             FAFO: sqrt(b) K (mu - mu0)           G = ln q + (m/n) Ei(q)

with mu = mu_ov, q = mu_qk and K = r (M-1) / (M b). The factorized rows hold for balanced factors.

A point of the curve is named by its gain, mu - mu0: next to a large mu0, mu itself keeps no digits of it.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import expi

from qkdyn.errors import RangeError, reject
from qkdyn.parameterization import Parameterization
from qkdyn.theory.setting import (
    Numeric,
    Reals,
    Setting,
    check_factor,
    check_initial,
    check_ratio,
    check_setting,
    check_together,
)

# Newton's method below starts above the root of an increasing convex function, so it comes down and takes about 5
# rounds. It converges quadratically: once a step is below SETTLED, what is left is below rounding.
ROUNDS = 60
SETTLED = 1e-9
# At margins alpha mu_ov above this the loss is below 1e-130 and next to nothing moves.
LARGEST_INITIAL_MARGIN = 300.0


@dataclass(frozen=True)
class Curve:
    """One start of one parameterization in one setting; the ratio r is an argument of every method.

    Arguments broadcast and are trusted: the public functions check them.
    """

    setting: Setting
    parameterization: Parameterization
    mu0: float
    q0: float

    @classmethod
    def start(cls, setting: Setting, parameterization: "str | Parameterization", initial: Reals | None) -> "Curve":
        """Check `setting`, `parameterization` and `initial` and build the curve."""
        which = Parameterization.parse(parameterization)
        curve = cls(check_setting(setting), which, *check_initial(initial, which))
        most = LARGEST_INITIAL_MARGIN / curve.alpha0
        if curve.mu0 > most:
            reject("initial mu_ov", curve.mu0, f"<= {most:g}", "the loss is next to zero long before")
        return curve

    def coupling(self, r: Reals) -> Numeric:
        """K = r (M-1) / (M b)."""
        return np.asarray(r) * ((self.setting.M - 1) / (self.setting.M * self.setting.b))

    @cached_property
    def coefficient(self) -> float:
        """The number c of rise = c K (mu^p - mu0^p), p = 1 where the OV circuit is factorized and 2 elsewhere."""
        root_b = math.sqrt(self.setting.b)
        ov = 0.5 / root_b if self.parameterization.factorized_ov else 0.5
        return ov * (2 * self.setting.b if self.parameterization.factorized_qk else 1)

    @cached_property
    def odds0(self) -> float:
        """(m/n) e^q0, the attention odds at the start."""
        return self.setting.odds * math.exp(self.q0)

    @cached_property
    def alpha0(self) -> float:
        """Attention at the start."""
        return float(self.setting.attention(self.q0))

    def rise(self, r: Reals, gain: Numeric) -> Numeric:
        """The right side of the first integral, zero at the start."""
        powers = gain if self.parameterization.factorized_ov else gain * (gain + 2 * self.mu0)
        return np.multiply(self.coefficient * self.coupling(r), powers)

    def potential(self, q: Reals) -> Numeric:
        """G(q) - G(q0), without cancellation near q0 where the QK circuit is collapsed."""
        q = np.asarray(q, np.float64)
        if self.parameterization.factorized_qk:
            # Ei holds a logarithm too: ln(q/q0) to full precision is worth taking out of the difference.
            entire = _entire(q) - _entire(self.q0)
            return (1 + self.setting.odds) * np.log(q / self.q0) + self.setting.odds * entire
        return (q - self.q0) + self.odds0 * np.expm1(q - self.q0)

    def mu_qk(self, r: Reals, gain: Reals) -> Numeric:
        """mu_qk on the curve where mu_ov has gained `gain` >= 0, to a few units in the last place of it.

        Of a factorized circuit ln(mu_qk / q0) is found to that precision.
        """
        rise = self.rise(r, np.asarray(gain, np.float64))
        return self._factorized_root(rise) if self.parameterization.factorized_qk else self._collapsed_root(rise)

    def _collapsed_root(self, rise: Numeric) -> Numeric:
        """Solve w + odds0 (e^w - 1) = rise for w = q - q0."""
        return lambert_root(rise, self.odds0) + np.float64(self.q0)

    def _factorized_root(self, rise: Numeric) -> Numeric:
        """Solve u + (m/n) (Ei(q0 e^u) - Ei(q0)) = rise for u = ln(q / q0): convex and increasing in u."""
        a, q0, entire0 = self.setting.odds, self.q0, _entire(self.q0)
        # From a (e^q - e^q0) / q <= a (Ei(q) - Ei(q0)) <= rise: an upper bound of q on the right gives one on the left.
        # The first one uses q e^(-q/2) < 1.
        log_slope = np.log(np.maximum(rise, np.finfo(float).tiny) / a)
        q = 2 * np.logaddexp(q0 / 2, log_slope)
        for _ in range(4):
            q = np.minimum(q, np.logaddexp(q0, log_slope + np.log(q)))
        u = np.minimum(np.log(np.maximum(q, q0) / q0), rise / (1 + self.odds0))
        for _ in range(ROUNDS):
            q = q0 * np.exp(u)
            step = ((1 + a) * u + a * (_entire(q) - entire0) - rise) / (1 + a * np.exp(q))
            u = np.maximum(u - step, 0.0)
            if (np.abs(step) <= SETTLED).all():
                break
        return q0 * np.exp(u)

    def gain(self, r: Reals, q: Reals) -> Numeric:
        """The gain of mu_ov on the curve at mu_qk = q >= q0."""
        powers = self.potential(q) / (self.coefficient * self.coupling(r))
        if self.parameterization.factorized_ov:
            return powers
        # gain (gain + 2 mu0) = powers, without the difference of two large numbers.
        return powers / np.maximum(np.sqrt(self.mu0**2 + powers) + self.mu0, np.finfo(float).tiny)

    def ratio(self, gain: Numeric, q: Numeric) -> Numeric:
        """The ratio r whose curve passes through (mu0 + gain, q)."""
        return np.divide(self.potential(q), self.rise(1.0, gain))

    def slope(self, r: Reals, gain: Numeric, q: Numeric) -> Numeric:
        """The derivative d mu_qk / d mu_ov at a point of the curve."""
        slope = self.coupling(r) * self.setting.inattention(q)
        if self.parameterization.factorized_qk:
            slope = slope * (2 * self.setting.b * q)
        if self.parameterization.factorized_ov:
            return slope / (2 * math.sqrt(self.setting.b))
        return slope * (self.mu0 + gain)


def lambert_root(rise: Numeric, odds: Numeric | float) -> Numeric:
    """The w >= 0 with w + odds (e^w - 1) = rise, for rise >= 0 and odds > 0, elementwise.

    The root is c - omega(c + ln odds) with Wright's omega and c = rise + odds, but that difference of large numbers loses
    every digit of a small w (8e-3 off at r = 1e-6, mu = 1e-3). Both terms on the left are positive, so either alone gives
    an upper bound.
    """
    w = np.minimum(rise / (1 + odds), np.log1p(rise / odds))
    for _ in range(ROUNDS):
        step = (w + odds * np.expm1(w) - rise) / (1 + odds * np.exp(w))
        w = w - step
        if (np.abs(step) <= SETTLED * w).all():
            break
    return w


_TERMS = np.array([0.0] + [1 / (k * math.factorial(k)) for k in range(1, 19)])


def _entire(x: Numeric | float) -> Numeric:
    """Ei(x) - ln x - gamma, the part of Ei that is smooth at zero, for x > 0."""
    x = np.asarray(x, np.float64)
    series = np.polynomial.polynomial.polyval(np.minimum(x, 1.0), _TERMS)
    return np.where(x < 1, series, expi(x) - np.log(x) - np.euler_gamma)


def mu_qk_of(
    setting: Setting,
    r: Reals,
    mu_ov: Reals,
    *,
    parameterization: str = "CACO",
    initial: Reals | None = None,
) -> np.ndarray:
    """mu_qk at a given mu_ov, from the first integral of Theorem 1's equations; no time is involved.

    Args:
        setting: sizes of the problem.
        r: learning-rate ratio eta_qk / eta_ov, any shape.
        mu_ov: strength of the OV circuit, broadcast against `r`; at least its value at the start.
        parameterization: which circuits are factorized (balanced factors).
        initial: (mu_ov, mu_qk) at t = 0; (0, 0) unless a circuit is factorized.

    Returns:
        float64 of the broadcast shape.

    Raises:
        InputError: a value is not allowed, or `mu_ov` lies before the start.
    """
    curve = Curve.start(setting, parameterization, initial)
    ratio, mu = check_ratio(r), check_factor("mu_ov", mu_ov, positive=False)
    check_together(r=ratio, mu_ov=mu)
    if (mu < curve.mu0).any():
        reject("mu_ov", float(mu.min()), f">= its start {curve.mu0:g}", error=RangeError)
    return np.asarray(curve.mu_qk(ratio, mu - curve.mu0))

"""The first integral: its root against Wright's omega and high precision, over all magnitudes."""

import math

import mpmath
import numpy as np
import pytest
from scipy.special import wrightomega

from qkdyn.errors import RangeError
from qkdyn.theory import Setting, mu_qk_of
from qkdyn.theory.curve import Curve

PAPER = Setting(5, 50, 50, 5)
STARTS = [("CACO", (0, 0)), ("CACO", (0.3, 0.7)), ("CAFO", (0.01, 0)), ("FACO", (0, 0.01)), ("FAFO", (1e-3, 1e-12))]


def exact_mu_qk(r, mu, which, initial):
    """The root in 60 digits, by bisection on the printed first integral."""
    with mpmath.workdps(60):
        mu0, q0 = (mpmath.mpf(value) for value in initial)
        b, a, mu = mpmath.mpf(50), mpmath.mpf(5) / 50, mpmath.mpf(float(mu))
        coupling = mpmath.mpf(float(r)) * 4 / (5 * b)
        rise = {
            "CACO": coupling * (mu**2 - mu0**2) / 2,
            "CAFO": coupling * (mu - mu0) / (2 * mpmath.sqrt(b)),
            "FACO": b * coupling * (mu**2 - mu0**2),
            "FAFO": mpmath.sqrt(b) * coupling * (mu - mu0),
        }[which]

        def potential(q):
            return mpmath.log(q) + a * mpmath.ei(q) if which.startswith("FA") else q + a * mpmath.exp(q)

        low, high = q0, q0 + rise + 1 if which.startswith("CA") else q0 + 200
        for _ in range(220):
            middle = (low + high) / 2
            low, high = (middle, high) if potential(middle) - potential(q0) < rise else (low, middle)
        return float(middle)


@pytest.mark.parametrize(("which", "initial"), STARTS)
@pytest.mark.parametrize("r", [1e-6, 1e-2, 1.0, 1e2, 1e6])
def test_root_to_last_places(which, initial, r):
    mu = initial[0] + np.array([1e-3, 0.5, 12.0])
    exact = [exact_mu_qk(r, value, which, initial) for value in mu]
    # A factorized circuit's gap is known through its logarithm: 28 to 1e-16 is 3e-15.
    rtol = 1e-14 if which.startswith("FA") else 2e-15
    np.testing.assert_allclose(mu_qk_of(PAPER, r, mu, parameterization=which, initial=initial), exact, rtol=rtol)


def test_wright_omega_is_the_same_root_where_it_keeps_its_digits():
    mu = np.linspace(1, 60, 50)
    c = 0.008 * mu**2 + 0.1
    np.testing.assert_allclose(mu_qk_of(PAPER, 1.0, mu), c - wrightomega(c + math.log(0.1)), rtol=1e-12)


def test_smallest_gaps_keep_every_digit():
    """The published form loses all digits at 1e-20; to first order mu_qk = K mu^2 / (2 (1 + m/n))."""
    mu = np.array([1e-10, 1e-13])
    np.testing.assert_allclose(mu_qk_of(PAPER, 1e-4, mu), 0.016e-4 * mu**2 / 2 / 1.1, rtol=1e-14)


@pytest.mark.parametrize(("which", "initial"), STARTS)
def test_curve_returns_to_where_it_came_from(which, initial):
    curve = Curve.start(PAPER, which, initial)
    mu = curve.mu0 + np.logspace(0, 1.5, 7)
    q = curve.mu_qk(3.0, mu)
    np.testing.assert_allclose(curve.mu_ov(3.0, q), mu, rtol=1e-12)
    np.testing.assert_allclose(curve.ratio(mu, q), 3.0, rtol=1e-12)
    step = 1e-6 * mu
    rise = (curve.mu_qk(3.0, mu + step) - curve.mu_qk(3.0, mu - step)) / (2 * step)
    np.testing.assert_allclose(curve.slope(3.0, mu, q), rise, rtol=1e-6)


def test_mu_before_the_start():
    with pytest.raises(RangeError, match=r"mu_ov must be >= its start 0\.5, got 0\.25"):
        mu_qk_of(PAPER, 1.0, [0.25, 0.75], initial=(0.5, 0.0))

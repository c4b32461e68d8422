"""The first integral: its root against Wright's omega and high precision, over all magnitudes."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy.special import wrightomega

from qkdyn.errors import RangeError
from qkdyn.theory import Setting, at_time, mu_qk_of
from qkdyn.theory.curve import Curve

PAPER = Setting(5, 50, 50, 5)
STARTS = [("CACO", (0, 0)), ("CACO", (0.3, 0.7)), ("CAFO", (0.01, 0)), ("FACO", (0, 0.01)), ("FAFO", (1e-3, 1e-12))]
LATE = [("CACO", (10.0, 0)), ("CAFO", (10.0, 0)), ("FACO", (10.0, 1e-12)), ("FAFO", (10.0, 0.3))]


def ei(x):
    """The exponential integral without Euler's constant: all terms are positive."""
    total, term, k = x.ln(), Decimal(1), 0
    while term > total.copy_abs() * Decimal("1e-60") or k < x:
        k += 1
        term = term * x / k
        total += term / k
    return total


def exact_mu_qk(r, mu, which, initial, odds=0.1):
    """The root in 60 digits, by bisection on the printed first integral."""
    with localcontext() as context:
        context.prec = 60
        mu0, q0 = (Decimal(value) for value in initial)
        b, a, mu = Decimal(50), Decimal(str(odds)), Decimal(float(mu))
        coupling = Decimal(float(r)) * 4 / (5 * b)
        rise = {
            "CACO": coupling * (mu**2 - mu0**2) / 2,
            "CAFO": coupling * (mu - mu0) / (2 * b.sqrt()),
            "FACO": b * coupling * (mu**2 - mu0**2),
            "FAFO": b.sqrt() * coupling * (mu - mu0),
        }[which]

        def potential(q):
            return q.ln() + a * ei(q) if which.startswith("FA") else q + a * q.exp()

        low, high = q0, q0 + rise + 1 if which.startswith("CA") else q0 + 200
        for _ in range(220):
            middle = (low * high).sqrt() if which.startswith("FA") else (low + high) / 2
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


@pytest.mark.parametrize(("which", "initial"), LATE)
def test_root_next_to_a_large_start(which, initial):
    mu = initial[0] + np.array([2.0**-40, 2.0**-20, 1.0])
    found = mu_qk_of(PAPER, 3.0, mu, parameterization=which, initial=initial)
    np.testing.assert_allclose(found, [exact_mu_qk(3.0, value, which, initial) for value in mu], rtol=4e-15)
    if which.startswith("CA"):
        curve, gain = Curve.start(PAPER, which, initial), np.array([1.23e-20, 1.23e-12, 1.23])
        np.testing.assert_allclose(curve.gain(3.0, curve.mu_qk(3.0, gain)), gain, rtol=1e-14)


@pytest.mark.parametrize("which", ["CACO", "CAFO"])
def test_earliest_gaps_after_a_large_start(which):
    """To first order mu_qk = t d mu_qk/dt, far below what mu_ov = 10 can tell from its start."""
    t, alpha = np.array([1e-12, 1e-10, 1e-9]), PAPER.alpha0
    f = alpha / (50 * (math.exp(10 * alpha) + 4))
    g = 3.0 * 4 / 250 * f * (1 - alpha) * 10
    state = at_time(PAPER, 3.0, t, parameterization=which, initial=(10.0, 0.0))
    np.testing.assert_allclose(state.mu_qk, g * t, rtol=1e-11)


def test_smallest_start_of_a_factorized_circuit():
    """ln(mu_qk / q0), 172 at most, is known to a rounding."""
    mu, start = np.linspace(0.1, 3.0, 9), (0.0, 1e-75)
    found = mu_qk_of(Setting(500, 50, 50, 5), 1e-3, mu, parameterization="FACO", initial=start)
    exact = [exact_mu_qk(1e-3, value, "FACO", start, odds=10) for value in mu]
    np.testing.assert_allclose(found, exact, rtol=2e-15)


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
    gain = np.logspace(0, 1.5, 7)
    q = curve.mu_qk(3.0, gain)
    np.testing.assert_allclose(curve.gain(3.0, q), gain, rtol=1e-12)
    np.testing.assert_allclose(curve.ratio(gain, q), 3.0, rtol=1e-12)
    step = 1e-6 * gain
    rise = (curve.mu_qk(3.0, gain + step) - curve.mu_qk(3.0, gain - step)) / (2 * step)
    np.testing.assert_allclose(curve.slope(3.0, gain, q), rise, rtol=1e-6)


def test_mu_before_the_start():
    with pytest.raises(RangeError, match=r"mu_ov must be >= its start 0\.5, got 0\.25"):
        mu_qk_of(PAPER, 1.0, [0.25, 0.75], initial=(0.5, 0.0))

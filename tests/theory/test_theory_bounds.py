"""Lemma 3 holds along the exact solution, and is as loose as it was measured to be."""

import numpy as np
import pytest

from qkdyn.errors import InputError
from qkdyn.theory import Setting, at_time, integrate, lemma3_bounds

PAPER = Setting(5, 50, 50, 5)
RATIOS = np.array([0.01, 0.1, 1.0, 10.0, 100.0])

# bound / value of (24) upper, (24) lower, (26), (28) at t = 1e4, 1e6, 1e8.
LOOSENESS = {
    0.01: "9.25 .437 85.6 .191 | 1.63 .116 2.67 .0134 | 1.66 .131 2.82 .0166",
    0.1: "9.23 .436 85.3 .190 | 2.28 .163 5.50 .0248 | 2.93 .231 9.44 .0463",
    1: "9.02 .426 81.7 .180 | 4.26 .304 22.5 .0664 | 5.75 .453 46.4 .121",
    10: "6.61 .312 49.3 .082 | 7.21 .515 119 .0898 | 8.58 .676 260 .115",
    100: "6.35 .300 151 .0219 | 8.23 .588 750 .0561 | 9.13 .719 1745 .0726",
}


def test_all_four_bounds_hold():
    t = np.logspace(-4, 8, 4000)
    run = integrate(PAPER, RATIOS, t)
    # Rounding: for t -> 0 the lower bound of (24) is the solution itself.
    for bounds in (lemma3_bounds(PAPER, RATIOS, t), lemma3_bounds(PAPER, RATIOS, t, delta=1 - run.alpha)):
        assert bounds.mu_ov_lower.shape == (5, 4000)
        assert (bounds.mu_ov_lower <= run.mu_ov * (1 + 1e-12)).all()
        assert (run.mu_ov <= bounds.mu_ov_upper).all()
        assert (bounds.mu_qk_lower <= run.mu_qk * (1 + 1e-12)).all()
        assert (run.mu_qk <= bounds.mu_qk_upper).all()


@pytest.mark.parametrize("r", LOOSENESS)
def test_looseness(r):
    t = [1e4, 1e6, 1e8]
    bounds, state = lemma3_bounds(PAPER, r, t), at_time(PAPER, r, t)
    for index, cell in enumerate(LOOSENESS[r].split("|")):
        measured = (
            bounds.mu_ov_upper[index] / state.mu_ov[index],
            bounds.mu_ov_lower[index] / state.mu_ov[index],
            bounds.mu_qk_upper[index] / state.mu_qk[index],
            bounds.mu_qk_lower[index] / state.mu_qk[index],
        )
        for value, printed in zip(measured, cell.split(), strict=True):
            assert abs(value - float(printed)) <= 1.01 * 10.0 ** -len(printed.partition(".")[2]), (index, printed)


def test_early_limits():
    """For t -> 0: upper/value M/a0 and its square, lower/value 1."""
    bounds, state = lemma3_bounds(PAPER, 1.0, [1e-3]), at_time(PAPER, 1.0, [1e-3])
    np.testing.assert_allclose(bounds.mu_ov_upper / state.mu_ov, 55, rtol=1e-5)
    np.testing.assert_allclose(bounds.mu_qk_upper / state.mu_qk, 55**2, rtol=1e-5)
    np.testing.assert_allclose(bounds.mu_ov_lower / state.mu_ov, 1, rtol=1e-5)
    np.testing.assert_allclose(bounds.mu_qk_lower / state.mu_qk, 1, rtol=1e-5)


def test_fixed_delta_fails_after_attention_has_passed_it():
    """(28) with delta = 1/2 at r = 100 first fails at log10 t = 5.13; attention passes 1/2 at 3.52."""
    t = np.logspace(3, 6, 3001)
    fails = lemma3_bounds(PAPER, 100.0, t, delta=0.5).mu_qk_lower > at_time(PAPER, 100.0, t).mu_qk
    assert np.log10(t[np.argmax(fails)]) == pytest.approx(5.13, abs=0.005)
    assert np.log10(t[np.argmax(at_time(PAPER, 100.0, t).alpha > 0.5)]) == pytest.approx(3.52, abs=0.005)


def test_shapes_zero_and_rate():
    bounds = lemma3_bounds(PAPER, np.ones((2, 3)), [0.0, 1.0], delta=np.full((3, 1), 0.5))
    assert all(bound.shape == (2, 3, 2) and (bound[..., 0] == 0).all() for bound in bounds)
    np.testing.assert_allclose(
        lemma3_bounds(PAPER, 1.0, [8.0], eta_ov=0.5, delta=0.3), lemma3_bounds(PAPER, 1.0, [4.0], delta=0.3), rtol=1e-15
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"delta": 0.0}, r"delta must be between 0 and 1, both excluded, got 0\.0"),
        ({"delta": [0.5, 1.0]}, r"delta must be between 0 and 1, both excluded, got 1\.0"),
        ({"delta": [0.1, 0.2, 0.3]}, r"delta must be a number or of a shape that broadcasts to \(2,\)"),
        ({"t": [3.0, 1.0]}, "t must be strictly increasing"),
        ({"t": [-1.0, 1.0]}, "t must be >= 0"),
        ({"r": -1.0}, "r must be positive"),
        ({"eta_ov": 0}, "eta_ov must be a finite number > 0, got 0"),
    ],
)
def test_wrong_input(arguments, message):
    with pytest.raises(InputError, match=message):
        lemma3_bounds(**{"setting": PAPER, "r": 1.0, "t": [1.0, 2.0], **arguments})

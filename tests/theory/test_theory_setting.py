"""Sizes, starts, ratios and times: what is accepted, and what each refusal says."""

import math
from fractions import Fraction

import numpy as np
import pytest

from qkdyn.errors import InputError, check_count, check_positive
from qkdyn.parameterization import Parameterization
from qkdyn.theory import Setting
from qkdyn.theory.setting import check_array, check_duration, check_initial, check_ratio, check_times


def test_properties():
    setting = Setting(5, 50, 50, 4)
    assert setting.alpha0 == 5 / 55
    assert setting.odds == 0.1
    assert setting.initial_loss == math.log(4)
    assert setting.attention(0.0) == pytest.approx(setting.alpha0, rel=1e-15)
    assert setting.inattention(40.0) == pytest.approx(10 * math.exp(-40), rel=1e-14)
    assert setting.loss(0.0) == pytest.approx(setting.initial_loss, rel=1e-15)
    losses = np.logspace(-12, 0, 5)
    np.testing.assert_allclose(setting.loss(setting.margin(losses)), losses, rtol=1e-13)


def test_numpy_integers_become_python_integers():
    setting = Setting(np.int64(5), np.int32(50), np.uint8(50), np.int16(5))  # pyright: ignore
    assert setting == Setting(5, 50, 50, 5)
    assert type(setting.m) is int


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 50, 50, 5), "m must be an integer >= 1, got 0"),
        ((5, -1, 50, 5), "n must be an integer >= 1, got -1"),
        ((5, 50, 2.5, 5), r"b must be an integer >= 1, got 2\.5"),
        ((5, 50, 50, 1), "M must be an integer >= 2, got 1"),
        ((True, 50, 50, 5), "m must be an integer >= 1, got True"),
        ((5, 50, "50", 5), "b must be an integer >= 1, got '50'"),
        ((5, 10**16, 50, 5), r"n must be an integer of at most 1e\+15, got 10000000000000000$"),
        ((10**400, 50, 50, 5), r"m must be an integer of at most 1e\+15, got an integer of about 401 digits"),
        ((5, 50, 50, 10**9000), r"M must be .*, got an integer of about 9001 digits"),
        ((5, 50, [10**9000], 5), r"b must be an integer >= 1, got a list of something too long to print"),
    ],
)
def test_wrong_sizes(sizes, message):
    with pytest.raises(InputError, match=message):
        Setting(*sizes)


@pytest.mark.parametrize(
    ("r", "message"),
    [
        (0.0, "r must be positive and finite, got 0.0"),
        ([1.0, -2.0], r"r must be positive and finite, got -2\.0"),
        (math.nan, "r must be positive and finite, got nan"),
        (math.inf, "r must be positive and finite, got inf"),
        ("fast", "r must be positive and finite: a number or an array of numbers, got 'fast'"),
        (True, "an array of numbers, got True"),
        (1j, "an array of numbers"),
        ([], r"r must be not empty, got \[\]"),
        ([[1.0], [1.0, 2.0]], "rectangular array"),
        (1e-76, r"r must be between 1e-75 and 1e\+75, got 1e-76"),
        ([1.0, 1e300], r"r must be between 1e-75 and 1e\+75, got 1e\+300"),
        (5e-324, r"r must be between 1e-75 and 1e\+75, got 5e-324"),
        (10**400, r"r must be between 1e-75 and 1e\+75, got an integer of about 401 digits"),
        ([1.0, 10**400], r"r must be between 1e-75 and 1e\+75, got"),
        (np.longdouble("1e4000"), "r must be positive and finite, got inf"),
        (np.array([1.0, None]), "r must be positive and finite: a number"),
        (None, "an array of numbers, got None"),
    ],
)
def test_wrong_ratios(r, message):
    with pytest.raises(InputError, match=message):
        check_ratio(r)


def test_ratios_of_any_shape_and_number_type():
    assert check_ratio(np.ones((2, 3), np.float32)).dtype == np.float64
    assert check_ratio(3).shape == ()


@pytest.mark.parametrize(
    ("t", "message"),
    [
        (1.0, "t must be one-dimensional, got 1.0; put a single time in a list"),
        ([[1.0, 2.0]], "t must be one-dimensional"),
        ([-1.0, 1.0], r"t must be >= 0, got -1\.0"),
        ([1.0, 1.0], r"t must be strictly increasing, got \(1\.0, 1\.0\)"),
        ([0.0, 3.0, 2.0], r"strictly increasing, got \(3\.0, 2\.0\); sort it"),
        ([1.0, math.nan], "t must be real and finite, got nan"),
        ([math.inf], "t must be real and finite, got inf"),
        ([], "t must be not empty"),
        ([0.0, 1e308], r"t must be 0 or of a size between 1e-300 and 1e\+300, got 1e\+308"),
        ([0.0, 1e-320], r"t must be 0 or of a size between 1e-300 and 1e\+300, got 1e-320"),
    ],
)
def test_wrong_times(t, message):
    with pytest.raises(InputError, match=message):
        check_times(t)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (10**400, r"x must be between 1e-300 and 1e\+300, got an integer of about 401 digits"),
        (Fraction(1, 10**400), r"x must be between 1e-300 and 1e\+300, got Fraction"),
        (1e-320, r"x must be between 1e-300 and 1e\+300, got 1e-320"),
        (1e301, r"x must be between 1e-300 and 1e\+300, got 1e\+301"),
        (math.inf, "x must be a finite number > 0, got inf"),
        (-(10**400), "x must be a finite number > 0, got an integer of about 401 digits"),
    ],
)
def test_single_numbers_beyond_reach(value, message):
    with pytest.raises(InputError, match=message):
        check_positive("x", value)


def test_what_lies_in_reach():
    assert check_positive("x", 1e-300) == 1e-300
    assert check_positive("x", 10**300) == 1e300
    assert check_positive("x", 0, zero=True) == 0
    assert check_count("x", 10**15) == 10**15
    np.testing.assert_array_equal(check_array("x", [10**20, -1]), [1e20, -1.0])
    np.testing.assert_array_equal(check_duration(1e10, np.array([1e290])), [1e300])
    assert check_duration(1e-75, np.array([1e300])) == 1e225
    with pytest.raises(InputError, match=r"t must be at most 1e\+290, got 1e\+300; eta_ov t may not exceed 1e\+300"):
        check_duration(1e10, np.array([0.0, 1e300]))


def test_long_values_are_cut_in_messages():
    with pytest.raises(InputError) as caught:
        check_count("x", "y" * 10**6)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("sizes", [(1, 10**15, 10**15, 10**15), (10**15, 1, 1, 2)])
def test_largest_settings(sizes):
    setting = Setting(*sizes)
    assert 0 < setting.alpha0 < 1
    losses = np.array([1e-300, 1e-250, 1e-150, 1e-3])
    margins = setting.margin(losses)
    assert np.isfinite(margins).all()
    assert (np.diff(margins) < 0).all()
    np.testing.assert_allclose(setting.loss(margins), losses, rtol=1e-12)


def test_start_defaults_to_zero_only_where_both_circuits_are_collapsed():
    assert check_initial(None, Parameterization.CACO) == (0.0, 0.0)
    for which in (Parameterization.FAFO, Parameterization.FACO, Parameterization.CAFO):
        with pytest.raises(InputError, match=r"given where a circuit is factorized.*saddle.*initial=\(0.1, 0.1\)"):
            check_initial(None, which)


def test_collapsed_circuits_may_start_at_zero_beside_factorized_ones():
    assert check_initial((0, 0.5), Parameterization.FACO) == (0.0, 0.5)
    assert check_initial([0.5, 0], Parameterization.CAFO) == (0.5, 0.0)


@pytest.mark.parametrize(
    ("initial", "which", "message"),
    [
        ((0.1, 0.0), Parameterization.FACO, "initial mu_qk must be > 0, got 0.0; zero is a saddle"),
        ((0.0, 0.1), Parameterization.CAFO, "initial mu_ov must be > 0, got 0.0; zero is a saddle"),
        ((-0.1, 0.1), Parameterization.CACO, "initial mu_ov must be >= 0, got -0.1"),
        ((0.1, math.nan), Parameterization.CACO, "initial must be real and finite, got nan"),
        ((0.1, 0.1, 0.1), Parameterization.CACO, r"initial must be a pair \(mu_ov, mu_qk\)"),
        (0.1, Parameterization.CACO, r"initial must be a pair \(mu_ov, mu_qk\)"),
        (
            (1e-320, 1e-320),
            Parameterization.FAFO,
            r"initial must be 0 or of a size between 1e-75 and 1e\+75, got 1e-320",
        ),
        ((0.0, 400.0), Parameterization.CACO, "initial mu_qk must be <= 300, got 400.0"),
    ],
)
def test_wrong_starts(initial, which, message):
    with pytest.raises(InputError, match=message):
        check_initial(initial, which)

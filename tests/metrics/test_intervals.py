"""Intervals against scipy.stats and closed forms of Student's t; how often they cover; what is left out and refused."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from qkdyn.errors import InputError
from qkdyn.metrics.intervals import confidence_interval

RNG = np.random.default_rng(11)


@pytest.mark.parametrize("level", [0.5, 0.95, 0.99, 1 - 1e-9])
@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_against_scipy(n, level):
    values = RNG.normal(3, 2, n)
    mean, low, high = confidence_interval(values, level)
    expected = stats.t.interval(level, n - 1, loc=values.mean(), scale=stats.sem(values))
    np.testing.assert_allclose([mean, low, high], [values.mean(), *expected], rtol=1e-6 if level > 0.999 else 1e-12)


def test_closed_forms_of_two_and_three_values():
    """One degree of freedom is Cauchy's, t = tan(pi level / 2); of two, t = level sqrt(2 / (1 - level^2))."""
    for level in (0.2, 0.9, 0.999):
        pair = confidence_interval(np.array([1.0, 5.0]), level)
        assert float(pair.mean) == 3
        assert float(pair.high) - 3 == pytest.approx(2 * math.tan(math.pi * level / 2), rel=1e-12)
        three = confidence_interval(np.array([1.0, 2.0, 3.0]), level)
        half = level * math.sqrt(2 / (1 - level**2)) / math.sqrt(3)
        assert (float(three.low), float(three.high)) == pytest.approx((2 - half, 2 + half), rel=1e-12)


def test_covers_the_mean_as_often_as_it_says():
    _, low, high = confidence_interval(RNG.normal(7, 3, (20_000, 4)), 0.9)
    # Five standard deviations of the share of 20 000 tries.
    assert np.mean((low < 7) & (high > 7)) == pytest.approx(0.9, abs=5 * math.sqrt(0.09 / 20_000))


def test_axis_is_the_seeds():
    values = RNG.random((2, 5, 3))
    for axis in range(-3, 3):
        found = confidence_interval(values, axis=axis)
        rows = np.moveaxis(values, axis, -1)
        assert found.mean.shape == rows.shape[:-1]
        for place in np.ndindex(rows.shape[:-1]):
            one = confidence_interval(rows[place])
            np.testing.assert_allclose([part[place] for part in found], one, rtol=1e-13)


def test_nan_is_left_out_and_one_value_has_no_width():
    values = np.array([[1.0, 2.0, 4.0], [1.0, np.nan, 4.0], [np.nan, np.nan, 4.0], [np.nan, np.nan, np.nan]])
    mean, low, high = confidence_interval(values)
    np.testing.assert_allclose([part[1] for part in (mean, low, high)], confidence_interval(values[1, ::2]))
    np.testing.assert_array_equal(mean[2:], [4, np.nan])
    assert np.isnan(low[2:]).all() and np.isnan(high[2:]).all()
    assert np.isfinite([low[:2], high[:2]]).all()
    one = confidence_interval(np.array([0.25]))
    assert one.mean == 0.25 and np.isnan(one.low) and np.isnan(one.high)


@given(arrays(np.float64, st.integers(2, 8), elements=st.floats(-1e3, 1e3)), st.data())
def test_properties(values, data):
    mean, low, high = confidence_interval(values)
    assert low <= mean <= high
    order = data.draw(st.permutations(range(values.size)))
    near = {"rtol": 1e-9, "atol": 1e-9}
    np.testing.assert_allclose(confidence_interval(values[order]), [mean, low, high], **near)
    np.testing.assert_allclose(confidence_interval(5 - 2 * values), [5 - 2 * mean, 5 - 2 * high, 5 - 2 * low], **near)
    narrow = confidence_interval(values, 0.5)
    assert low <= narrow.low and narrow.high <= high


def test_integers_and_float32_are_taken_in_float64():
    found = confidence_interval(np.array([1, 2, 4]))
    assert all(part.dtype == np.float64 for part in found)
    np.testing.assert_array_equal(confidence_interval(np.float32([1, 2, 4])), found)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (([1.0, 2.0], 95), "level must be a number between 0 and 1, got 95; for 95 % write 0.95"),
        (([1.0, 2.0], 0.0), "level must be a number between 0 and 1, got 0.0"),
        (([1.0, 2.0], 1.0), "level must be"),
        (([1.0, 2.0], np.nan), "level must be .*got nan"),
        (([1.0, 2.0], "0.95"), "level must be .*got '0.95'"),
        (([1.0, 2.0], True), "level must be .*got True"),
        (([1.0, 2.0], 0.95, 1), "axis must be an integer from -1 to 0, an axis of values, got 1"),
        (([1.0, 2.0], 0.95, 0.0), r"axis must be an integer .*got 0\.0"),
        (([],), "shape of values must be one of at least one value"),
        (([1.0, np.inf],), r"values\[1\] must be NaN or at most 1e\+150 in size, got inf"),
        (([1.0, -1.1e150],), r"values\[1\] must be NaN or at most .*got -1\.1e\+150"),
        ((3.0,), "values must be a rectangular array of real numbers, got 3.0; put a single value in a list"),
        ((["a"],), "values must be a rectangular array of real numbers"),
    ],
)
def test_refused(arguments, message, unchecked):
    with pytest.raises(InputError, match=message):
        confidence_interval(*arguments)

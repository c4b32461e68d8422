"""Paired differences against scipy, factorial effects against least squares; what is left out and refused."""

import itertools

import numpy as np
import pytest
from scipy import stats

from qkdyn.errors import InputError
from qkdyn.metrics.intervals import confidence_interval
from qkdyn.metrics.paired import factorial_effects, paired_difference

RNG = np.random.default_rng(2)
FACTORS = ("QK", "embeddings", "frozen MLP", "decay")


def test_paired_difference_against_scipy():
    seeds = 10 * RNG.normal(size=6)
    first, second = 3 + seeds + RNG.normal(size=6), seeds + RNG.normal(size=6)
    for level in (0.95, 0.8):
        found = paired_difference(first, second, level)
        expected = stats.ttest_rel(first, second).confidence_interval(level)
        np.testing.assert_allclose([found.low, found.high], expected, rtol=1e-9)
        assert float(found.mean) == pytest.approx((first - second).mean())
    # What the seeds have in common cancels: apart, the two means would tell nothing.
    assert found.low > 0 > confidence_interval(first).low - confidence_interval(second).high


def test_pairs_without_a_value_are_left_out():
    first, second = RNG.random((2, 3, 5))
    first[0, 1], second[0, 3] = np.nan, np.nan
    found = paired_difference(first, second)
    some = paired_difference(first[0, [0, 2, 4]], second[0, [0, 2, 4]])
    np.testing.assert_allclose([part[0] for part in found], some, rtol=1e-12)
    assert paired_difference(first, second[1]).mean.shape == (3,)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_effects_against_least_squares(k):
    """Twice the coefficients of a regression of each seed's values on products of factors coded -1 and 1."""
    values = RNG.normal(size=(*(2,) * k, 5))
    names, interval = factorial_effects(values, FACTORS[:k])
    rows = list(itertools.product((-1, 1), repeat=k))
    sets = [set(s) for order in range(k + 1) for s in itertools.combinations(range(k), order)]
    design = np.array([[np.prod([row[i] for i in s]) for s in sets] for row in rows], float)
    assert names == tuple(" x ".join(FACTORS[i] for i in sorted(s)) for s in sets[1:])
    flat = values.reshape(2**k, 5)
    coefficients = np.linalg.lstsq(design, flat, rcond=None)[0]
    expected = confidence_interval(2 * coefficients[1:])
    for found, wanted in zip(interval, expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_effects_of_a_known_factorial():
    """Y = 3 a + 2 b + 8 a b in factors of 0 and 1, a seed's own level added."""
    a, b, seed = np.ix_([0, 1], [0, 1], RNG.normal(size=4))
    names, (mean, low, high) = factorial_effects(3 * a + 2 * b + 8 * a * b + seed, ("a", "b"))
    assert names == ("a", "b", "a x b")
    np.testing.assert_allclose(mean, [3 + 4, 2 + 4, 4])
    np.testing.assert_allclose(high - low, 0, atol=1e-12)


def test_leading_axes_and_missing_runs():
    values = RNG.normal(size=(3, 2, 2, 6))
    whole = factorial_effects(values, ["a", "b"]).interval
    assert whole.mean.shape == (3, 3)
    np.testing.assert_allclose(whole.low[1], factorial_effects(values[1], ["a", "b"]).interval.low)
    values[1, 0, 1, 2] = np.nan
    kept = factorial_effects(np.delete(values[1], 2, -1), ["a", "b"]).interval
    np.testing.assert_allclose(factorial_effects(values, ["a", "b"]).interval.high[1], kept.high)


CUBE = np.zeros((2, 2, 5))


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: paired_difference([1.0, 2.0], [1.0]),
            r"numbers of seeds of first and second must be equal, got \(2, 1\)",
        ),
        (lambda: paired_difference(np.zeros((2, 3)), np.zeros((3, 3))), "shapes of first and second"),
        (lambda: paired_difference([1.0, np.inf], [1.0, np.inf]), r"first\[1\] must be finite, or NaN .*got inf"),
        (lambda: paired_difference([1.0, 2.0], [0.0, 0.0], 95), "level must be a number between 0 and 1, got 95"),
        (lambda: factorial_effects(CUBE, "ab"), "factors must be a list of values, got 'ab'"),
        (lambda: factorial_effects(CUBE, ()), "factors must be names, at least one and all different"),
        (lambda: factorial_effects(CUBE, ("a", "a")), "factors must be names"),
        (lambda: factorial_effects(CUBE, ("a", 1)), "factors must be names"),
        (lambda: factorial_effects(CUBE, ("a", "b", "c")), r"shape of values must be \(\.\.\., 2, 2, 2, seeds\)"),
        (lambda: factorial_effects(CUBE[:, :1], ("a", "b")), r"shape of values must be .*got \(2, 1, 5\)"),
        (lambda: factorial_effects(CUBE + np.inf, ("a", "b")), r"values\[0, 0, 0\] must be finite, or NaN"),
    ],
)
def test_refused(call, message, unchecked):
    with pytest.raises(InputError, match=message):
        call()

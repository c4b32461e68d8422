"""Curves of AC and ACMC point by point, and the areas under them against the integrals that they approximate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from qkdyn.errors import InputError
from qkdyn.metrics.attention import acmc, attention_confidence, mrta
from qkdyn.metrics.curves import THRESHOLDS, ac_curve, acmc_curve, area

MASS, CHANCE = (np.random.default_rng(4).random((2, 3, 40)) for _ in range(2))
shares = arrays(np.float32, (2, 6), elements=st.sampled_from([0, 0.05, 0.1, 0.33, 0.35, 0.6, 0.7, 1]))


@given(shares, shares)
def test_points_are_ac_and_acmc(mass, chance):
    curve, half, own = ac_curve(mass), acmc_curve(mass, chance), acmc_curve(mass, chance, probability_threshold=None)
    assert curve.shape == half.shape == own.shape == (2, 21)
    for i, threshold in enumerate(THRESHOLDS):
        np.testing.assert_array_equal(curve[:, i], attention_confidence(mass, threshold))
        np.testing.assert_array_equal(half[:, i], acmc(mass, chance, threshold))
        np.testing.assert_array_equal(own[:, i], acmc(mass, chance, threshold, threshold))
    assert THRESHOLDS[6] == 0.3 and THRESHOLDS[7] == 0.35 and THRESHOLDS[-1] == 1


@given(shares, shares)
def test_area_is_mrta_but_for_half_a_step(mass, chance):
    assert np.abs(area(ac_curve(mass)) - 100 * mrta(mass)).max() <= 2.5 + 1e-4
    both = 100 * (mass * (chance >= np.float32(0.5))).mean(-1)
    assert np.abs(area(acmc_curve(mass, chance)) - both).max() <= 2.5 + 1e-4
    least = 100 * np.minimum(mass, chance).mean(-1)
    assert np.abs(area(acmc_curve(mass, chance, probability_threshold=None)) - least).max() <= 2.5 + 1e-4


def test_area_by_hand_and_in_the_limit():
    thresholds = [0.1, 0.2, 0.5]
    percent = np.array([[100.0, 50.0, 10.0]])
    assert area(percent, thresholds)[0] == pytest.approx((0.1 * 75 + 0.3 * 30) / 0.4)
    fine = np.linspace(0, 1, 4001)
    np.testing.assert_allclose(area(ac_curve(MASS, fine), fine), 100 * mrta(MASS), atol=0.0126)
    assert acmc_curve(MASS, CHANCE[0], fine[:3]).shape == (2, 3, 3)
    assert area(ac_curve(MASS[0, 0])).shape == ()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: ac_curve(MASS, [0.5, 0.2]), r"thresholds\[1\] must be above the threshold before it, got 0\.2"),
        (lambda: ac_curve(MASS, [0.5, 0.5]), r"thresholds\[1\] must be above"),
        (lambda: ac_curve(MASS, [0.5, 1.1]), r"thresholds\[1\] must be from 0 to 1, got 1\.1"),
        (lambda: ac_curve(MASS, [np.nan]), r"thresholds\[0\] must be from 0 to 1, got nan"),
        (lambda: ac_curve(MASS, []), "shape of thresholds"),
        (lambda: ac_curve(MASS, 0.5), "thresholds must be a rectangular array"),
        (lambda: ac_curve(MASS, [[0.5]]), r"thresholds must be a list of numbers, got \[\[0\.5\]\]"),
        (lambda: ac_curve(3 * MASS), r"mass\[0, 0, \d+\] must be from 0 to 1"),
        (lambda: acmc_curve(MASS, CHANCE[..., :1]), "shapes of mass and probability"),
        (
            lambda: acmc_curve(MASS, CHANCE, probability_threshold=2),
            "probability_threshold must be a number from 0 to 1",
        ),
        (lambda: area([[1.0, 2.0]], [0.1, 0.2, 0.3]), r"shape of percent must be \(\.\.\., 3\), .*got \(1, 2\)"),
        (lambda: area([[50.0]], [0.1]), "thresholds must be at least two numbers"),
        (lambda: area([[50.0, 101.0]], [0.1, 0.2]), r"percent / 100\[0, 1\] must be from 0 to 1 .*got 1\.01"),
    ],
)
def test_refused(call, message, unchecked):
    with pytest.raises(InputError, match=message):
        call()

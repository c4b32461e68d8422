"""Grids of settings against the closed form of each, and wrong input."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkdyn.errors import InputError, RangeError
from qkdyn.theory import Setting, at_loss
from qkdyn.theory.landscape import landscape

RATIOS, LOSSES = np.geomspace(1e-6, 1e6, 13)[:, None], np.array([0.6, 0.1, 1e-3, 1e-8])


@given(st.integers(1, 10**4), st.integers(1, 10**4), st.integers(1, 200), st.integers(2, 10**4))
def test_each_setting_as_by_itself(m, n, b, M):
    found, exact = landscape(RATIOS, LOSSES, odds=m / n, M=M, b=b), at_loss(Setting(m, n, b, M), RATIOS, LOSSES)
    for name in ("mu_ov", "mu_qk", "alpha"):
        np.testing.assert_allclose(getattr(found, name), getattr(exact, name), rtol=1e-10, err_msg=name)


def test_all_settings_at_once():
    odds, M = np.array([0.01, 0.1, 1.0])[:, None, None], np.array([2, 5])[:, None]
    found = landscape([0.1, 1, 10], 0.1, odds=odds, M=M, b=50)
    assert found.alpha.shape == (3, 2, 3)
    for i, (m, n) in enumerate([(1, 100), (1, 10), (1, 1)]):
        for j, classes in enumerate([2, 5]):
            exact = at_loss(Setting(m, n, 50, classes), [0.1, 1, 10], 0.1).alpha
            np.testing.assert_allclose(found.alpha[i, j], exact, rtol=1e-12)


def test_one_setting_gives_arrays_of_no_dimension():
    found = landscape(1.0, 0.1, odds=0.1, M=5, b=50)
    assert all(isinstance(part, np.ndarray) and part.shape == () for part in found)
    np.testing.assert_allclose(found.alpha, at_loss(Setting(1, 10, 50, 5), 1.0, 0.1).alpha, rtol=1e-12)


@pytest.mark.parametrize(
    "changed, error, told",
    [
        ({"loss": 1.7}, RangeError, r"loss must be below ln M = 1\.60943791"),
        ({"loss": -1.0}, InputError, "loss must be"),
        ({"M": 1}, InputError, "M must be >= 2"),
        ({"b": 0.5}, InputError, "b must be >= 1"),
        ({"b": 1e16}, InputError, "b must be"),
        ({"odds": 0.0}, InputError, "odds must be"),
        ({"r": [1.0, 2.0], "M": [5, 6, 7]}, InputError, "broadcast"),
    ],
)
def test_wrong_input_is_refused(changed, error, told):
    arguments = {"r": 1.0, "loss": 0.1, "odds": 0.1, "M": 5, "b": 50} | changed
    with pytest.raises(error, match=told):
        landscape(arguments.pop("r"), arguments.pop("loss"), **arguments)

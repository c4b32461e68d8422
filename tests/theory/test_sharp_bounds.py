"""The sharp bounds against the exact solution, the integral they rest on, and Lemma 3."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkdyn.errors import InputError, RangeError
from qkdyn.theory import Setting, at_loss, at_time, lemma3_bounds
from qkdyn.theory.sharp_bounds import fastest, pace, progress, sharp_bounds, time_bounds

PAPER = Setting(m=5, n=50, b=50, M=5)
RATIOS = np.array([1e-4, 0.01, 1, 100, 1e4])
TIMES = np.geomspace(1e-2, 1e100, 40)
ROUNDING = 1e-12
settings = st.builds(Setting, m=st.integers(1, 30), n=st.integers(1, 1000), b=st.integers(1, 60), M=st.integers(2, 30))


@given(settings, st.floats(-5, 5), st.floats(0.1, 10))
def test_the_exact_solution_lies_between_them(setting, log_r, eta):
    r = 10.0**log_r
    exact, bounds = at_time(setting, r, TIMES, eta_ov=eta), sharp_bounds(setting, r, TIMES, eta_ov=eta)
    loss = setting.loss(exact.alpha * exact.mu_ov)
    for name, value in [("mu_ov", exact.mu_ov), ("mu_qk", exact.mu_qk), ("alpha", exact.alpha), ("loss", loss)]:
        assert (getattr(bounds, f"{name}_lower") <= value * (1 + ROUNDING)).all(), name
        assert (getattr(bounds, f"{name}_upper") >= value * (1 - ROUNDING)).all(), name


@pytest.mark.parametrize("r", [0.01, 1.0, 100.0])
def test_progress_is_the_integral_of_the_pace(r):
    # Gauss-Legendre in ln t on pieces between neighbouring times: nothing of the closed form's own clock is used.
    t = np.geomspace(1e2, 1e7, 40)
    nodes, weights = np.polynomial.legendre.leggauss(12)
    middle, half = np.log(t[1:] * t[:-1]) / 2, np.diff(np.log(t)) / 2
    inner = np.exp(middle[:, None] + half[:, None] * nodes)
    h = pace(PAPER, at_time(PAPER, r, inner).mu_qk)
    integral = (half[:, None] * weights * h * inner).sum(1) / PAPER.b
    state = at_time(PAPER, r, t)
    np.testing.assert_allclose(np.diff(progress(PAPER, state.alpha * state.mu_ov)), integral, rtol=1e-10)


def test_the_bounds_meet_at_both_ends_where_lemma_3_stays_apart():
    t = np.array([1e-3, 1e300])
    bounds, lemma = sharp_bounds(PAPER, RATIOS, t), lemma3_bounds(PAPER, RATIOS, t)
    for name in ("mu_ov", "mu_qk"):
        ratio = getattr(bounds, f"{name}_upper") / getattr(bounds, f"{name}_lower")
        assert (ratio[:, 0] < 1 + 1e-6).all() and (ratio[:, 1] < 1.01).all()
        assert (getattr(lemma, f"{name}_upper") / getattr(lemma, f"{name}_lower") > 10).all()


def test_they_are_nowhere_weaker_than_lemma_3():
    # At r = 1,000 and more the lower bounds of Lemma 3 are up to a third higher for a while around t = 1,000.
    bounds, lemma = (of(PAPER, RATIOS[:-1], TIMES) for of in (sharp_bounds, lemma3_bounds))
    for name in ("mu_ov", "mu_qk"):
        assert (getattr(bounds, f"{name}_lower") >= getattr(lemma, f"{name}_lower") * (1 - ROUNDING)).all()
        assert (getattr(bounds, f"{name}_upper") <= getattr(lemma, f"{name}_upper") * (1 + ROUNDING)).all()


@given(st.integers(1, 1000), st.integers(1, 10**6))
def test_the_pace_is_largest_where_it_says(m, n):
    setting = Setting(m=m, n=n, b=3, M=4)
    top = fastest(setting)
    grid = pace(setting, np.linspace(0, 60, 20_001))
    assert grid.min() >= setting.alpha0**2 * (1 - ROUNDING)
    assert grid.max() <= (pace(setting, top) if np.isfinite(top) else 1.0) * (1 + 1e-9)
    # One hump: rising before, falling after.
    rises = np.diff(grid) > ROUNDING
    assert not np.isfinite(top) or not rises[np.linspace(0, 60, 20_001)[:-1] > top].any()


@pytest.mark.parametrize("setting", [PAPER, Setting(1, 1, 1, 2), Setting(40, 1, 7, 30)])
def test_no_ratio_is_faster_or_slower_than_the_time_bounds(setting):
    losses = np.array([0.5, 0.1, 1e-3])
    early, late = time_bounds(setting, losses, eta_ov=2.0)
    times = at_loss(setting, np.geomspace(1e-8, 1e8, 33)[:, None], losses, eta_ov=2.0).t
    assert (times >= early * (1 - ROUNDING)).all() and (times <= late * (1 + ROUNDING)).all()
    # The slowest circuit comes next to the latest time: the bound cannot be improved.
    np.testing.assert_allclose(times[0], late, rtol=1e-4)


def test_nothing_has_moved_at_the_start():
    bounds = sharp_bounds(PAPER, [1.0, 10.0], [0.0, 1.0])
    assert bounds.mu_ov_upper.shape == (2, 2) and (bounds.mu_ov_upper[:, 0] == 0).all()
    assert (bounds.mu_qk_upper[:, 0] == 0).all()
    np.testing.assert_allclose(bounds.alpha_lower[:, 0], PAPER.alpha0, rtol=1e-15)
    np.testing.assert_allclose(bounds.loss_upper[:, 0], np.log(5), rtol=1e-15)


@pytest.mark.parametrize("odds", [1e-6, 0.1, 1.0, 8.0, 28.0, 500.0, 1e15])
def test_the_fastest_place_is_a_stationary_point(odds):
    # In 60 digits: for large m/n the maximum exceeds 1 by less than float64 sees.
    setting = Setting(*((1, round(1 / odds)) if odds < 1 else (round(odds), 1)), b=3, M=4)
    with mpmath.workdps(60 if odds < 100 else 1000):

        def h(q):
            weight = mpmath.mpf(setting.m) / setting.n * mpmath.exp(q)
            alpha = weight / (1 + weight)
            return alpha**2 * (1 + 2 * (1 - alpha) ** 2 * (q + weight - mpmath.mpf(setting.m) / setting.n))

        if odds <= 500:
            top = mpmath.mpf(fastest(setting))
            assert h(top - mpmath.mpf("1e-4")) < h(top) > h(top + mpmath.mpf("1e-4"))
    assert fastest(setting) > odds


def test_times_beyond_float64_are_infinite():
    # e^A is, already at M = 10^15.
    bounds = time_bounds(Setting(3, 1, 1, 10**15), [1e-300, 0.5])
    assert np.isinf(bounds.earliest).tolist() == np.isinf(bounds.latest).tolist() == [True, False]
    assert np.isinf(time_bounds(PAPER, 1e-300, eta_ov=1e-75).latest)


@pytest.mark.parametrize(
    "call",
    [
        lambda: pace(PAPER, -1.0),
        lambda: pace(PAPER, np.nan),
        lambda: pace(3, 1.0),
        lambda: fastest(None),
        lambda: progress(PAPER, "x"),
        lambda: progress(3, 1.0),
    ],
)
def test_parts_refuse_what_they_cannot_take(unchecked, call):
    with pytest.raises(InputError, match="must be"):
        call()


def test_wrong_input_is_refused():
    with pytest.raises(InputError, match="strictly increasing"):
        sharp_bounds(PAPER, 1.0, [2.0, 1.0])
    with pytest.raises(InputError, match="r must be"):
        sharp_bounds(PAPER, -1.0, [1.0])
    with pytest.raises(RangeError, match=r"1\.6094"):
        time_bounds(PAPER, 2.0)

"""Matched states: published digits, inverse questions, symmetries, orderings and refusals."""

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from qkdyn.errors import InputError, RangeError
from qkdyn.theory import Setting, at_attention, at_loss, at_time, clock, mu_qk_of, ratio_for

PAPER = Setting(5, 50, 50, 5)
STARTS = {"CACO": (0, 0), "CAFO": (0.01, 0), "FACO": (0, 0.01), "FAFO": (0.01, 0.01)}
LOSSES = [1, 0.5, 0.1, 0.01, 0.001]

# alpha / mu_ov / mu_qk at LOSSES, from an independent integration with event detection.
REFERENCE = {
    0.01: """.091423676043 / 9.24234884308 / .00621068031325 | .093220819071 / 19.5133073149 / .0276572107992
        | .099272542497 / 36.6512504932 / .0972513922565 | .110095337868 / 54.3752396458 / .212817455512
        | .122107287758 / 67.9201851969 / .329960768586""",
    1.0: """.122941712987 / 6.87292771492 / .337722005915 | .175014485686 / 10.3936910340 / .752088011065
        | .263114553789 / 13.8284362068 / 1.27274214852 | .361182530136 / 16.5746122278 / 1.73234978328
        | .444760815494 / 18.6472128603 / 2.08072275340""",
    100.0: """.450027146188 / 1.87759674870 / 2.10202407850 | .700610555044 / 2.59637323131 / 3.15279205199
        | .897643810779 / 4.05334808581 / 4.47389965395 | .962291375571 / 6.22104752512 / 5.54201355002
        | .980793912602 / 8.45595541721 / 6.23572017083""",
}


def agrees(value, printed):
    """True where `value` rounds to the printed decimal within one unit of its last digit."""
    return abs(float(value) - float(printed)) <= 1.01 * 10.0 ** -len(printed.partition(".")[2])


@pytest.mark.parametrize("r", REFERENCE)
def test_reference_digits(r):
    state = at_loss(PAPER, r, LOSSES)
    for index, column in enumerate(REFERENCE[r].split("|")):
        for name, printed in zip(("alpha", "mu_ov", "mu_qk"), column.split("/"), strict=True):
            assert agrees(getattr(state, name)[index], printed.strip()), (name, LOSSES[index])


@pytest.mark.parametrize(
    ("r", "expected"),
    [
        (0.01, ("81.6687", "0.55878", "0.148830", "2553944")),
        (0.1, ("42.2815", "1.39489", "0.287471", "4895587")),
    ],
)
def test_twenty_classes(r, expected):
    state = at_loss(Setting(5, 50, 50, 20), r, 1e-4)
    # The last column is time in units of 1/min(eta_qk, eta_ov).
    for value, printed in zip((state.mu_ov, state.mu_qk, state.alpha, state.t * r), expected, strict=True):
        assert agrees(value, printed)


def test_five_classes_at_the_lowest_stop_loss():
    state = at_loss(PAPER, 0.01, 1e-4)
    for value, printed in zip(state, ("78.774", "0.44100", "0.134519"), strict=False):
        assert agrees(value, printed)
    assert agrees(state.t * 0.01, "729767")


@pytest.mark.parametrize(
    ("which", "printed"),
    [
        ("FACO", ("0.952226", "0.998698")),
        ("CACO", ("0.263115", "0.544305")),
        ("FAFO", ("0.114452", "0.602017")),
        ("CAFO", ("0.094238", "0.119736")),
    ],
)
def test_order_of_the_four_parameterizations(which, printed):
    alpha = at_loss(PAPER, [1, 10], 0.1, parameterization=which, initial=STARTS[which]).alpha
    assert all(agrees(value, digits) for value, digits in zip(alpha, printed, strict=True))


@pytest.mark.parametrize("which", STARTS)
def test_states_satisfy_the_loss_and_invert(which):
    r, loss = np.logspace(-6, 6, 7)[:, None], np.array([1.0, 0.1, 1e-3, 1e-8])
    options = {"parameterization": which, "initial": STARTS[which]}
    state = at_loss(PAPER, r, loss, **options)
    assert state.alpha.shape == state.t.shape == (7, 4)
    np.testing.assert_allclose(PAPER.loss(state.alpha * state.mu_ov), np.broadcast_to(loss, (7, 4)), rtol=1e-12)
    later = at_time(PAPER, r, state.t, **options)
    for name in ("mu_ov", "mu_qk", "alpha"):
        np.testing.assert_allclose(getattr(later, name), getattr(state, name), rtol=1e-12)
    # Next to its start, and next to 1, attention holds few digits of the ratio.
    digits = 1e-14 * np.maximum(1 / (state.alpha - PAPER.attention(STARTS[which][1])), 1 / (1 - state.alpha))
    found = ratio_for(PAPER, state.alpha, loss, **options)
    assert (np.abs(found / r - 1) <= 1e-12 + 10 * digits).all()
    middle = np.s_[3:5, 1:3]
    again = at_attention(PAPER, r[3:5], state.alpha[middle], **options)
    np.testing.assert_allclose(again.t, state.t[middle], rtol=1e-9)
    np.testing.assert_allclose(again.mu_ov, state.mu_ov[middle], rtol=1e-9)


def test_time_against_adaptive_quadrature():
    """The clock int_0^mu b (e^(alpha u) + M-1) / (eta_ov alpha) du, alpha by plain bisection."""

    def alpha(u):
        low, high = 0.0, 50.0
        for _ in range(100):
            q = (low + high) / 2
            low, high = (q, high) if q + 0.1 * math.expm1(q) < 0.008 * u**2 else (low, q)
        return math.exp(q) / (math.exp(q) + 10)

    end = 13.8284362068262
    expected = quad(lambda u: 50 * (math.exp(alpha(u) * u) + 4) / (0.5 * alpha(u)), 0, end, epsrel=1e-12)[0]
    assert at_loss(PAPER, 1.0, 0.1, eta_ov=0.5).t == pytest.approx(expected, rel=1e-10)


def test_rates_and_class_size_only_set_the_clock():
    """Settings of equal m/n, M and K = r (M-1)/(M b) have equal paths."""
    one = at_loss(PAPER, [0.1, 10.0], 0.05, eta_ov=1)
    other = at_loss(Setting(7, 70, 25, 5), [0.05, 5.0], 0.05, eta_ov=0.25)
    for name in ("mu_ov", "mu_qk", "alpha"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-14)
    np.testing.assert_allclose(other.t, one.t * 4 / 2, rtol=1e-13)


def test_asymptotes():
    """mu_qk -> 2 ln ln(eta_ov t/b) + ln(r n (M-1)/(2 M b m)): r enters only through its logarithm."""
    r = np.array([0.01, 0.1, 1.0, 10.0, 100.0])

    def limit(log_time):
        return 2 * math.log(log_time) + np.log(r * 50 * 4 / (2 * 5 * 50 * 5))

    # mu_ov = ln(eta_ov t/b) + O(1/(K ln t)): the curve can be asked far beyond float64's times.
    errors = [np.abs(mu_qk_of(PAPER, r, log_time) - limit(log_time)) for log_time in (1e3, 1e4, 1e5)]
    assert (errors[1] < errors[0] / 10).all()
    assert (errors[2] < errors[1] / 10).all()
    np.testing.assert_allclose(
        mu_qk_of(PAPER, r, 1e5 - math.log(50)), [15.8949, 18.1975, 20.5000, 22.8026, 25.1052], atol=6e-5
    )
    state = at_time(PAPER, r, 1e300)
    np.testing.assert_allclose(state.mu_qk[2:], limit(math.log(1e300 / 50))[2:], atol=0.01)
    np.testing.assert_allclose(state.mu_ov[2:], math.log(1e300 / 50), rtol=1e-3)


@settings(max_examples=25, deadline=None)
@given(
    r=st.floats(1e-4, 1e4),
    more=st.floats(1.01, 100),
    loss=st.floats(1e-6, 1.5),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 80), st.integers(1, 60), st.integers(5, 30)),
    which=st.sampled_from(sorted(STARTS)),
)
def test_faster_attention_circuit_means_more_attention_at_equal_loss(r, more, loss, sizes, which):
    setting = Setting(*sizes)
    state = at_loss(setting, [r, r * more], loss, parameterization=which, initial=STARTS[which])
    # A margin of a few roundings; where attention has not moved in float64 the two runs are the same.
    assert state.mu_qk[1] >= state.mu_qk[0] * (1 - 1e-13)
    assert state.mu_ov[1] <= state.mu_ov[0] * (1 + 1e-13)
    if state.alpha[0] - setting.attention(STARTS[which][1]) > 1e-9 and state.alpha[1] < 1 - 1e-9:
        assert state.mu_qk[1] > state.mu_qk[0]
        assert state.mu_ov[1] < state.mu_ov[0]


@pytest.mark.parametrize("which", STARTS)
def test_extremes_stay_finite(which):
    r, t = np.logspace(-6, 6, 5)[:, None], np.array([0.0, 1e-12, 1.0, 1e12])
    state = at_time(PAPER, r, t, parameterization=which, initial=STARTS[which])
    assert all(np.isfinite(field).all() for field in state)
    assert (np.diff(state.mu_ov, axis=1) >= 0).all()
    np.testing.assert_array_equal(state.mu_ov[:, 0], STARTS[which][0])
    np.testing.assert_array_equal(state.mu_qk[:, 0], STARTS[which][1])


@pytest.mark.parametrize("which", STARTS)
def test_attention_that_takes_for_ever(which):
    """Beyond alpha mu_ov = 710 no time fits float64: infinite, at once, and never nan."""
    options = {"parameterization": which, "initial": STARTS[which]}
    begun = time.process_time()
    state = at_attention(PAPER, [1e-75, 1e-6, 1.0, 1e20], 1 - 1e-14, **options)
    assert time.process_time() - begun < 2
    assert state.t[:3].tolist() == [math.inf] * 3
    assert 0 < state.t[3] < math.inf
    assert np.isfinite(state.mu_ov).all()
    assert PAPER.loss(state.alpha * state.mu_ov)[:3].tolist() == [0.0] * 3
    # On both sides of the limit in one call.
    both = at_attention(PAPER, 1e-6, PAPER.attention([STARTS[which][1] + 1e-6, 4.0]), **options).t
    assert 0 < both[0] < both[1] == math.inf


@pytest.mark.parametrize("which", STARTS)
@pytest.mark.parametrize("sizes", [(5, 50, 50, 5), (1, 10**15, 10**15, 10**15), (10**15, 1, 1, 2)])
def test_no_corner_of_what_is_allowed_gives_nan_or_a_warning(which, sizes):
    setting, tiny = Setting(*sizes), 1e-75
    r, start = np.array([[1e-75], [1e-30], [1e30], [1e75]]), tuple(tiny if value else 0.0 for value in STARTS[which])
    options = {"parameterization": which, "initial": start}
    loss = np.array([1e-300, 1e-3, setting.initial_loss * (1 - 1e-9)])
    matched = at_loss(setting, r, loss, **options)
    later = at_time(setting, r, [0.0, 1e-300, 1.0, 1e300], **options)
    alpha = setting.alpha0 + np.array([0.5, 1e-3]) * (1 - setting.alpha0)
    attained = at_attention(setting, r, alpha[alpha < 1], **options)
    for state in (matched, later, attained):
        assert np.isfinite(state.mu_ov).all()
        assert np.isfinite(state.mu_qk).all()
        assert (state.alpha > 0).all()
        assert (state.t >= 0).all()  # infinite, but not nan


@pytest.mark.parametrize("which", STARTS)
def test_panels_are_bounded(which, monkeypatch):
    """However far attention is away: a panel for each unit of margin, up to the last that has a time."""
    counts, panels = [], clock._panels

    def count(*arguments):
        breaks = panels(*arguments)
        counts.append(len(breaks))
        return breaks

    monkeypatch.setattr(clock, "_panels", count)
    options = {"parameterization": which, "initial": STARTS[which]}
    for alpha in (0.1, 0.15, 0.3, 0.9, 1 - 1e-14):
        at_attention(PAPER, np.logspace(-8, 8, 9), alpha, **options)
    assert 300 < max(counts) < 1500


def test_starts_without_a_future():
    with pytest.raises(InputError, match=r"initial mu_ov must be <= 3300, got 4000\.0; the loss is next to zero"):
        at_time(PAPER, 1.0, 1.0, initial=(4000.0, 0.0))


@pytest.mark.parametrize("start", [(0.0, 0.0), (0.3, 0.7), (50.0, 0.1)])
def test_losses_within_rounding_of_the_start(start):
    for sizes in ((5, 50, 50, 5), (5, 50, 50, 20), (3, 7, 2, 10**6)):
        setting = Setting(*sizes)
        loss = float(setting.loss(setting.attention(start[1]) * start[0]))
        for _ in range(5):
            loss = math.nextafter(loss, 0.0)
            state = at_loss(setting, [1e-3, 1e30], loss, initial=start)
            assert np.isfinite(state).all()
            assert (state.t >= 0).all()
            np.testing.assert_allclose(state.mu_ov, start[0], rtol=1e-10, atol=1e-10)


def test_ratio_out_of_reach():
    alpha = np.nextafter(np.nextafter(PAPER.alpha0, 1), 1)
    with pytest.raises(RangeError, match=r"the ratio for this alpha and loss must be between 1e-75 and 1e\+75"):
        ratio_for(PAPER, [0.5, alpha], [0.1, 1e-3], parameterization="FACO", initial=(0.0, 1e-75))


def test_scalars_and_broadcasting():
    assert at_loss(PAPER, 1, 0.1).alpha.shape == ()
    assert at_time(PAPER, [1.0, 2.0], 5.0).t.tolist() == [5.0, 5.0]
    assert ratio_for(PAPER, [[0.2], [0.3]], [0.1, 0.2, 0.3]).shape == (2, 3)
    unsorted = at_time(PAPER, 1.0, [[1e4, 1.0], [1e2, 1e4]])
    assert unsorted.mu_ov[0, 0] == unsorted.mu_ov[1, 1] > unsorted.mu_ov[1, 0] > unsorted.mu_ov[0, 1]


@pytest.mark.parametrize("loss", [0.0, -1.0, math.log(5), 2.0])
def test_unreachable_losses(loss):
    with pytest.raises(RangeError, match=r"loss must be between 0 and the loss at the start, 1\.60943791"):
        at_loss(PAPER, 1.0, [0.1, loss])


def test_unreachable_attention():
    with pytest.raises(RangeError, match=r"alpha must be between 0\.0909090909, .* and 1, both excluded, got 0\.05"):
        ratio_for(PAPER, 0.05, 0.1)
    with pytest.raises(RangeError, match=r"alpha must be between .*, got 1\.0"):
        at_attention(PAPER, 1.0, 1.0)
    # mu_ov = A / alpha would lie before its start 4: A = ln(4/expm1(1)) = 0.845.
    with pytest.raises(RangeError, match=r"and 0\.211\d+, both excluded, got 0\.5"):
        ratio_for(PAPER, 0.5, 1.0, initial=(4.0, 0.0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: at_loss(PAPER, -1.0, 0.1), "r must be positive and finite, got -1.0"),
        (lambda: at_loss(PAPER, 1.0, math.nan), "loss must be real and finite, got nan"),
        (lambda: at_loss(PAPER, 1.0, 0.1, eta_ov=0.0), "eta_ov must be a finite number > 0, got 0.0"),
        (lambda: at_loss(PAPER, 1.0, 0.1, parameterization="CAFE"), "parameterization must be one of FAFO, CAFO"),
        (lambda: at_loss(PAPER, 1.0, 0.1, parameterization="FAFO"), "initial must be given.*saddle"),
        (lambda: at_time(PAPER, 1.0, [1.0, -2.0]), r"t must be >= 0, got -2\.0"),
        (lambda: at_time(PAPER, 1.0, "soon"), "t must be real and finite: a number"),
        (lambda: ratio_for(PAPER, math.nan, 0.1), "alpha must be real and finite, got nan"),
    ],
)
def test_wrong_input(call, message):
    with pytest.raises(InputError, match=message):
        call()

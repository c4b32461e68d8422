"""Interventions: scalars against the flow of all matrices, closed forms, zero gradients, matched losses, refusals."""

import functools
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from qkdyn.circuits import on_ansatz
from qkdyn.errors import InputError, QkdynError, RangeError
from qkdyn.interventions import FLOOR, Intervention, OnCircuit, Schedule
from qkdyn.parameterization import Parameterization
from qkdyn.tasks.designs import Population
from qkdyn.theory import Setting, at_loss, at_time
from qkdyn.theory.curve import Curve
from qkdyn.theory.intervened import imbalance, integrate_intervened, intervened_at_loss

SMALL, SETTING = Population(), Setting(m=2, n=2, b=2, M=3)
R = np.array([0.5, 5.0])
STARTS = {"CACO": (0, 0), "CAFO": (0.1, 0), "FACO": (0, 0.1), "FAFO": (0.1, 0.1)}
# Two ratios and 200 times wherever it does not matter how many there are: one compilation.


def until(last):
    return np.geomspace(1e-3, 1, 200) * last


def both(**on):
    return Intervention(OnCircuit(**on), OnCircuit(**on))


@pytest.mark.parametrize("which", STARTS)
def test_no_intervention_is_theorem_1(which):
    options = {"parameterization": which, "initial": STARTS[which]}
    run = integrate_intervened(SETTING, R, until(1e4), Intervention(), eta_ov=2.0, **options)
    state = at_time(SETTING, R[:, None], until(1e4), eta_ov=2.0, **options)
    for name in ("mu_ov", "mu_qk", "alpha"):
        np.testing.assert_allclose(getattr(run, name), getattr(state, name), rtol=1e-11)
    matched = intervened_at_loss(SETTING, R, [1.0, 0.1, 1e-3], Intervention(), until=1e5, **options)
    state = at_loss(SETTING, R[:, None], [1.0, 0.1, 1e-3], **options)
    for name in ("mu_ov", "mu_qk", "alpha", "t"):
        np.testing.assert_allclose(getattr(matched, name), getattr(state, name), rtol=1e-10)


ARMS = {
    "start": (100.0, Intervention()),
    "ramps": (300.0, Intervention(OnCircuit(Schedule.ramp(0.1, 3.0, 40.0)), OnCircuit(Schedule.ramp(2.0, 0.5, 90.0)))),
    "late": (100.0, Intervention(ov=OnCircuit(Schedule(0.5, 1.0, 30.0, 10.0)))),
    "delayed qk": (100.0, Intervention(qk=OnCircuit(Schedule.delayed(30.0)))),
    "delayed ov": (100.0, Intervention(ov=OnCircuit(Schedule.delayed(30.0)))),
    "decay of qk": (300.0, Intervention(OnCircuit(decay=0.01))),
    "decay of ov": (100.0, Intervention(ov=OnCircuit(Schedule.ramp(1.0, 2.0, 50.0), decay=0.01))),
    "decoupled": (100.0, both(decay=0.01, decoupled=True)),
    "normalized": (1.2, both(gradient="normalized")),
    "half": (1.5, Intervention(OnCircuit(gradient="normalized", decay=0.1), OnCircuit(momentum=0.5))),
    "clipped": (100.0, both(gradient="clipped", threshold=0.02)),
    "momentum": (50.0, Intervention(OnCircuit(momentum=0.9, decay=0.02), OnCircuit(momentum=0.5))),
    "sign": (3.0, both(gradient="sign")),
    "sign of ov": (20.0, Intervention(ov=OnCircuit(gradient="sign", threshold=0.05))),
    "sign of qk": (5.0, Intervention(qk=OnCircuit(gradient="sign", threshold=0.05))),
}
# (mu_ov, mu_qk) at t = 0: the usual ones, and others.
USUAL, OTHER = (0.2, 0.1), {"start": (0.02, 1.0)}
# Signs mean something where the circuit is collapsed.
SIGNED = {"sign": ("CACO",), "sign of ov": ("CACO", "FACO"), "sign of qk": ("CACO", "CAFO")}


@functools.cache
def flowing(which, arm, scales=(1.0, 1.0)):
    """(scalars, matrices) of an arm at three times, r = 5; factors scaled by `scales` (OV, QK) and divided by them."""
    from qkdyn.theory.intervened_matrices import intervened_flow, unbalance

    last, on = ARMS[arm]
    mu_ov, mu_qk = initial = OTHER.get(arm, USUAL)
    times = until(last)
    params = on_ansatz(SMALL.enumerated().directions(), which, mu_ov=mu_ov, mu_qk=mu_qk, dtype=jnp.float64)
    if apart := {circuit: scale for circuit, scale in zip(("ov", "qk"), scales, strict=True) if scale != 1.0}:
        params = unbalance(params, apart)
        ov, qk = imbalance(SETTING, "ov", mu_ov, scales[0]), imbalance(SETTING, "qk", mu_qk, scales[1])
        on = Intervention(replace(on.qk, imbalance=qk), replace(on.ov, imbalance=ov))
    run = integrate_intervened(SETTING, R, times, on, parameterization=which, initial=initial)
    flow = intervened_flow(SMALL.enumerated(), params, times[[60, 130, -1]], on, eta_qk=5.0, eta_ov=1.0)
    return [{name: getattr(run, name)[1, [60, 130, -1]] for name in ("mu_ov", "mu_qk", "alpha", "loss")}, flow]


CASES = [(which, arm, (1.0, 1.0)) for which in STARTS for arm in ARMS if which in SIGNED.get(arm, STARTS)]
CASES += [
    (which, arm, scales)
    for which, scales in (("FAFO", (1.3, 0.6)), ("FACO", (1.0, 0.6)), ("CAFO", (1.3, 1.0)))
    for arm in ("delayed ov", "decoupled", "decay of qk", "normalized", "clipped")
]


@pytest.mark.parametrize(("which", "arm", "scales"), CASES)
def test_matrices_follow_the_scalars(which, arm, scales):
    scalars, flow = flowing(which, arm, scales)
    for name, value in scalars.items():
        np.testing.assert_allclose(getattr(flow, name), value, rtol=1e-8, err_msg=name)


def test_factors_that_do_not_point_alike_are_out_of_balance():
    """Lengths 0.9 and 0.6 at an angle of 70 degrees along every pair: delta = |a + c| |a - c|."""
    from qkdyn.theory.intervened_matrices import intervened_flow

    S = SMALL.enumerated().directions()
    U, _, Vh = np.linalg.svd(S["ov"], full_matrices=False)
    vectors = np.linalg.eigh(S["qk"])[1][:, -3:]
    cos, sin = np.cos(np.radians(70)), np.sin(np.radians(70))
    inner = np.eye(8)
    W_O = 0.9 * U[:, :2] @ inner[:2]
    W_V = 0.6 * (cos * inner[:, :2] + sin * inner[:, 2:4]) @ Vh[:2]
    W_K, W_Q = 0.9 * vectors @ inner[:3], 0.6 * vectors @ (cos * inner[:3] + sin * inner[3:6])
    params = {"qk": {"W_K": W_K, "W_Q": W_Q}, "ov": {"W_O": W_O, "W_V": W_V}}
    both_lengths, along = 0.9**2 + 0.6**2, 2 * 0.9 * 0.6 * cos
    delta = np.sqrt(both_lengths**2 - along**2)
    decaying = both(decay=0.02)
    on = both(decay=0.02, imbalance=delta)
    start = along / 2 / np.sqrt(2), along / 2 / 2
    run = integrate_intervened(SETTING, R, until(60.0), on, parameterization="FAFO", initial=start)
    flow = intervened_flow(SMALL.enumerated(), params, run.t[[60, 130, -1]], decaying, eta_qk=5.0, eta_ov=1.0)
    np.testing.assert_allclose(flow.mu_ov, run.mu_ov[1, [60, 130, -1]], rtol=1e-8)
    np.testing.assert_allclose(flow.mu_qk, run.mu_qk[1, [60, 130, -1]], rtol=1e-8)


# Closed forms


def test_normalized_circuits_move_along_a_line():
    """Both normalized, collapsed: d mu_ov/dt = eta_ov/sqrt(b(M-1)), d mu_qk/dt = eta_qk/(b sqrt(M))."""
    run = integrate_intervened(SETTING, R, until(8.0), both(gradient="normalized"), initial=(0.1, 0.2))
    np.testing.assert_allclose(run.mu_ov[0], 0.1 + run.t / 2, rtol=1e-12)
    np.testing.assert_allclose(run.mu_qk, 0.2 + R[:, None] * run.t / (2 * np.sqrt(3)), rtol=1e-12)


def test_normalized_products_move_along_a_line_of_roots():
    on = both(gradient="normalized")
    run = integrate_intervened(SETTING, R, until(2.0), on, parameterization="FAFO", initial=(0.1, 0.2))
    gained = R[:, None] * np.sqrt(2 / 3) / 2**0.25 * (np.sqrt(run.mu_ov) - np.sqrt(0.1))
    np.testing.assert_allclose(np.sqrt(run.mu_qk) - np.sqrt(0.2), gained, rtol=1e-10)


def test_a_zero_gradient_normalized_is_zero():
    """At mu_ov = 0 the QK circuit has none, so that it leaves zero as if it had been normalized from the first."""
    on = Intervention(qk=OnCircuit(gradient="normalized"))
    still = integrate_intervened(SETTING, R, until(8.0), Intervention(qk=on.qk, ov=OnCircuit(Schedule.delayed(50.0))))
    assert not still.mu_ov.any() and not still.mu_qk.any()
    run = integrate_intervened(SETTING, R, until(8.0), on)
    np.testing.assert_allclose(run.mu_qk, R[:, None] * run.t / (2 * np.sqrt(3)), rtol=2e-4)
    # Until its norm b sqrt(M) G, G = mu_ov/72 at first, is the floor: at t = 12 * 72 * FLOOR / (2 sqrt(3)).
    early = integrate_intervened(SETTING, R, until(12 * 72 * FLOOR / 2 / np.sqrt(3)), on)
    np.testing.assert_allclose(early.mu_qk[0], early.mu_qk[0, -1] * (early.t / early.t[-1]) ** 2, rtol=1e-5)


def test_signs_move_the_margin_twice_as_fast():
    run = integrate_intervened(SETTING, R, until(2.0), both(gradient="sign"), initial=(0.1, 0.2))
    np.testing.assert_allclose(run.mu_ov[0], 0.1 + 2 * run.t, rtol=1e-12)
    np.testing.assert_allclose(run.mu_qk, 0.2 + R[:, None] * run.t, rtol=1e-12)


def test_unbalanced_factors_conserve_their_first_integral():
    """With s = sqrt(delta^2 + 4 b^2 q^2): integral of (1 + (m/n) e^q)/s dq = (K/(4b)) sqrt(delta_ov^2 + 4 b mu^2)."""
    from scipy.integrate import quad

    on = Intervention(OnCircuit(imbalance=0.7), OnCircuit(imbalance=-1.3))
    run = integrate_intervened(SETTING, R, until(500.0), on, parameterization="FAFO")
    mu, q = run.mu_ov[1, -1], run.mu_qk[1, -1]
    left, _ = quad(lambda x: (1 + np.exp(x)) / np.sqrt(0.49 + 16 * x**2), 0, q, epsabs=1e-13)
    K = 5 * 2 / (3 * 2)
    assert left == pytest.approx(K / 8 * (np.sqrt(1.69 + 8 * mu**2) - 1.3), rel=1e-10)


def test_factors_far_out_of_balance_are_a_single_matrix_at_another_rate():
    """Delta >> product: FAFO is CACO with eta_ov delta_ov, eta_qk delta_qk."""
    on = Intervention(OnCircuit(imbalance=3e5), OnCircuit(imbalance=1e5))
    run = intervened_at_loss(SETTING, R, [0.5, 0.1], on, until=1.0, parameterization="FAFO")
    state = at_loss(SETTING, 3 * R[:, None], [0.5, 0.1])
    np.testing.assert_allclose(run.alpha, state.alpha, rtol=1e-8)
    np.testing.assert_allclose(run.t * 1e5, state.t, rtol=1e-8)


def test_a_delay_of_ov_costs_a_collapsed_start_time_alone():
    """From mu_ov = 0 nothing pulls on QK; from mu_ov > 0 QK sharpens meanwhile."""
    on = Intervention(ov=OnCircuit(Schedule.delayed(40.0)))
    for initial, gains in (((0, 0), False), ((0.3, 0), True)):
        late = intervened_at_loss(SETTING, R, [0.5, 0.1], on, until=1e4, initial=initial)
        plain = at_loss(SETTING, R[:, None], [0.5, 0.1], initial=initial)
        if gains:
            assert (late.alpha > plain.alpha * 1.003).all() and (late.t < plain.t + 40).all()
        else:
            np.testing.assert_allclose(late.alpha, plain.alpha, rtol=1e-10)
            np.testing.assert_allclose(late.t, plain.t + 40, rtol=1e-10)


def test_a_delay_of_qk_starts_its_curve_later():
    """With q at rest until mu_ov = mu1: G(q) - G(0) = K (mu^2 - mu1^2)/2."""
    on = Intervention(qk=OnCircuit(Schedule.delayed(15.0)))
    run = integrate_intervened(SETTING, R, until(60.0), on)
    mu1 = float(at_time(Setting(2, 2, 2, 3), 1e-60, [15.0]).mu_ov[0])
    curve = Curve.start(SETTING, "CACO", None)
    expected = curve.rise(R, run.mu_ov[:, -1]) - curve.rise(R, np.float64(mu1))
    np.testing.assert_allclose(curve.potential(run.mu_qk[:, -1]), expected, rtol=1e-10)


def test_decay_at_rest():
    """Without a gradient (eta ~ 0) a single matrix fades like e^-lambda t, a product like e^-2 lambda t."""
    on = both(decay=0.1, decoupled=True)
    for which, copies in (("CACO", 1), ("FAFO", 2)):
        run = integrate_intervened(SETTING, R, until(9.0), on, eta_ov=1e-30, parameterization=which, initial=(0.3, 0.2))
        np.testing.assert_allclose(run.mu_ov[0], 0.3 * np.exp(-0.1 * copies * run.t), rtol=1e-11)
        np.testing.assert_allclose(run.mu_qk[0], 0.2 * np.exp(-0.1 * copies * run.t), rtol=1e-11)


def test_a_loss_out_of_reach_is_nan():
    """Where f = lambda mu_ov the OV circuit stands still: at loss 0.3 for alpha -> 1, and earlier for less."""
    mu = float(SETTING.margin(0.3))
    most = 1 / (2 * (np.exp(mu) + 2)) / mu
    on = Intervention(ov=OnCircuit(decay=most))
    state = intervened_at_loss(SETTING, R, [0.9, 0.29], on, until=1e5)
    assert np.isfinite(state.alpha[:, 0]).all()
    assert all(np.isnan(part[:, 1]).all() for part in state)
    closer = Intervention(ov=OnCircuit(decay=most * 0.9))
    assert np.isfinite(intervened_at_loss(SETTING, R, [0.3], closer, until=1e5).alpha[1])


@pytest.mark.parametrize("threshold", [None, 0.01])
def test_thresholds_are_the_norms_that_matrices_have(threshold):
    """Clipping at t is normalization with floor t, t times as fast."""
    clipped = both(gradient="clipped", threshold=threshold or FLOOR)
    scale = threshold or FLOOR
    normalized = both(gradient="normalized", threshold=threshold)
    slow = integrate_intervened(SETTING, R, until(30.0), clipped, initial=(0.2, 0.1), eta_ov=1 / scale)
    fast = integrate_intervened(SETTING, R, until(30.0), normalized, initial=(0.2, 0.1))
    np.testing.assert_allclose(slow.mu_qk, fast.mu_qk, rtol=1e-11)


# Refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OnCircuit(decay=-0.1), r"decay must be a finite number >= 0, got -0\.1"),
        (lambda: OnCircuit(decay=float("nan")), "decay must be a finite number >= 0, got nan"),
        (lambda: OnCircuit(decay=1e80), "decay must be 0 or between 1e-75 and 1e"),
        (lambda: OnCircuit(decoupled=True), "decoupled must be False where decay is 0"),
        (lambda: OnCircuit(momentum=1.0), r"momentum must be at least 0 and below 1, got 1\.0"),
        (lambda: OnCircuit(momentum=-0.5), r"momentum must be a finite number >= 0"),
        (lambda: OnCircuit(gradient="clipped"), "threshold must be given for a clipped gradient, got None"),
        (lambda: OnCircuit(gradient="clipped", threshold=0.0), "threshold must be a finite number > 0, got 0"),
        (lambda: OnCircuit(threshold=1.0), "threshold must be None for a plain gradient"),
        (lambda: OnCircuit(imbalance=float("inf")), "the size of imbalance must be a finite number >= 0, got inf"),
        (lambda: Schedule(start=-1.0), "schedule start must be a finite number >= 0"),
        (lambda: Schedule(0.0, 0.0), r"schedule start and end must be not both 0"),
        (lambda: Schedule.delayed(-3.0), "schedule begin must be a finite number >= 0"),
        (lambda: imbalance(SETTING, "qk", 0.1, 0.0), "scale must be a finite number > 0, got 0"),
        (lambda: imbalance(SETTING, "mlp", 0.1, 2.0), "circuit must be qk or ov, got 'mlp'"),
    ],
)
def test_strengths_out_of_range(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OnCircuit(gradient="unit"), "gradient must be one of plain, clipped, normalized, sign, got 'unit'"),
        (lambda: OnCircuit(schedule=0.5), r"schedule must be a Schedule, got 0\.5; e\.g\. Schedule\.delayed"),
        (lambda: OnCircuit(decoupled=1), "decoupled must be True or False, got 1"),
        (lambda: OnCircuit(imbalance="much"), "the size of imbalance must be a finite number"),
        (lambda: Intervention(qk=0.1), r"qk must be an OnCircuit, got 0\.1"),
        (lambda: integrate_intervened(SETTING, R, until(1.0), "decay"), "intervention must be an Intervention"),
    ],
)
def test_other_kinds(make, message, unchecked):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("on", "which", "message"),
    [
        (
            Intervention(qk=OnCircuit(imbalance=0.5)),
            "CAFO",
            r"imbalance of the qk circuit must be 0, got 0\.5; the single matrix of a collapsed circuit has no factors; "
            "CAFO is collapsed there",
        ),
        (Intervention(ov=OnCircuit(imbalance=0.5)), "FACO", "imbalance of the ov circuit must be 0"),
        (
            Intervention(ov=OnCircuit(gradient="sign")),
            "CAFO",
            "gradient of the ov circuit must not be 'sign'.*collapse",
        ),
    ],
)
def test_what_means_nothing_in_a_parameterization(on, which, message):
    with pytest.raises(InputError, match=message):
        integrate_intervened(SETTING, 1.0, [1.0], on, parameterization=which, initial=(0.1, 0.1))
    assert on.check(Parameterization("FAFO" if "imbalance" in message else "CACO")) is on


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: intervened_at_loss(SETTING, 1.0, [2.0], both(), until=9.0), RangeError, "loss must be between 0"),
        (
            lambda: intervened_at_loss(SETTING, 1.0, 0.5, both(), until=9.0),
            InputError,
            "losses must be one-dimensional",
        ),
        (
            lambda: intervened_at_loss(SETTING, 1.0, [0.5], both(), until=0.0),
            InputError,
            "until must be a finite number >",
        ),
        (
            lambda: integrate_intervened(
                SETTING, 1.0, [1.0], Intervention(qk=OnCircuit(imbalance=1.0)), parameterization="FAFO", initial=(0, 0)
            ),
            InputError,
            "initial mu_ov must be > 0",
        ),
    ],
)
def test_wrong_questions(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_what_matrices_refuse():
    from qkdyn.theory.intervened_matrices import unbalance

    params = on_ansatz(SMALL.enumerated().directions(), "FACO", mu_ov=0.0, mu_qk=0.1)
    with pytest.raises(InputError, match=r"scales\['ov'\] must be left out where the circuit is collapsed, got 2\.0"):
        unbalance(params, {"ov": 2.0})
    with pytest.raises(InputError, match=r"scales\['qk'\] must be a finite number > 0, got 0"):
        unbalance(params, {"qk": 0.0})
    with pytest.raises(InputError, match="scales must be of the circuits qk and ov, got 'mlp'"):
        unbalance(params, {"mlp": 2.0})


def test_giving_up_names_ratio_and_time(monkeypatch):
    from qkdyn.theory import intervened_ode

    def halfway(r, t, *_):
        nothing = np.ones((*t.shape, 4))
        return nothing, nothing, r / 50, r < 5

    monkeypatch.setattr(intervened_ode, "solve", halfway)
    with pytest.raises(QkdynError, match=r"to t = 2 failed at r = 10 \(stopped at t = 0\.2\); ask for less time"):
        integrate_intervened(SETTING, [1.0, 10.0], [1.0, 2.0], Intervention())


def test_a_level_is_found_where_the_loss_turns_at_a_jump():
    """OV stops at t = 40 and decays from there on: whether its level is found does not depend on how long is looked."""
    on = Intervention(ov=OnCircuit(schedule=Schedule(1.0, 0.0, 40.0, 0.0), decay=0.05, decoupled=True))
    setting, level = Setting(m=4, n=8, b=4, M=4), [0.142447]
    times = [
        intervened_at_loss(setting, [1.0, 2.0], level, on, until=until, eta_ov=20.0, initial=(0.1, 0.1)).t[0, 0]
        for until in (39.0, 200.0, 8e3, 1e6)
    ]
    np.testing.assert_allclose(times, 38.4777, rtol=1e-5)

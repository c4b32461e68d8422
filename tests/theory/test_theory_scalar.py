"""The integrated equations against the closed form, the first integral, scipy, and full matrices; and compilations."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from qkdyn.errors import InputError, QkdynError
from qkdyn.theory import Setting, at_time, integrate, ode
from qkdyn.theory.curve import Curve

PAPER = Setting(5, 50, 50, 5)
STARTS = {"CACO": (0, 0), "CAFO": (0.01, 0), "FACO": (0, 0.01), "FAFO": (0.01, 0.01)}
RATIOS = np.array([0.01, 0.1, 1.0, 10.0, 100.0])
TIMES = np.concatenate([[0.0], np.logspace(-6, 8, 199)])
# Five ratios and 200 times wherever it does not matter how many there are: one compilation.


@pytest.mark.parametrize("which", STARTS)
def test_closed_form_agrees(which):
    options = {"parameterization": which, "initial": STARTS[which]}
    for ratios, times in ((RATIOS, TIMES), (np.logspace(-6, 6, 5), np.concatenate([[0.0], np.logspace(-3, 12, 199)]))):
        run = integrate(PAPER, ratios, times, **options)
        state = at_time(PAPER, ratios[:, None], times, **options)
        assert run.mu_ov.shape == (5, 200)
        assert run.mu_ov.dtype == run.mu_qk.dtype == run.loss.dtype == np.float64
        np.testing.assert_allclose(run.mu_ov, state.mu_ov, rtol=1e-12)
        np.testing.assert_allclose(run.mu_qk, state.mu_qk, rtol=1e-12)
        np.testing.assert_allclose(run.alpha, state.alpha, rtol=1e-12)
        np.testing.assert_allclose(run.loss, PAPER.loss(state.alpha * state.mu_ov), rtol=1e-11)


@pytest.mark.parametrize("which", STARTS)
def test_first_integral_is_conserved(which):
    run = integrate(PAPER, RATIOS, TIMES, parameterization=which, initial=STARTS[which])
    curve = Curve.start(PAPER, which, STARTS[which])
    rise = curve.rise(RATIOS[:, None], run.mu_ov - curve.mu0)
    error = np.abs(curve.potential(run.mu_qk) - rise)
    if which == "CACO":
        # From zero: relative to K mu_ov^2 / 2 at every time, also where mu_qk is 1e-21.
        assert run.mu_qk[0, 1] < 1e-21
        assert (error[:, 1:] < 1e-10 * rise[:, 1:]).all()
    else:
        assert (error < 1e-12 * (1 + rise)).all()


@pytest.mark.parametrize("which", ["CACO", "FAFO"])
def test_scipy_agrees(which):
    """The equations as printed, integrated by someone else."""
    m, n, b, classes, r = 5, 50, 50, 5, 10.0

    def printed(_, y):
        mu, q = y
        alpha = m * math.exp(q) / (m * math.exp(q) + n)
        f = alpha / (b * (math.exp(alpha * mu) + classes - 1))
        g = r * (classes - 1) * alpha * (1 - alpha) * mu / (classes * b**2 * (math.exp(alpha * mu) + classes - 1))
        return [f * 2 * math.sqrt(b) * mu, g * 2 * b * q] if which == "FAFO" else [f, g]

    t = np.concatenate([[1.0, 1e2, 1e4, 1e5], np.geomspace(2e5, 1e8, 196)])
    theirs = solve_ivp(printed, (0, 1e5), STARTS[which], method="DOP853", t_eval=t[:4], rtol=1e-12, atol=1e-16).y
    run = integrate(PAPER, r * RATIOS, t, parameterization=which, initial=STARTS[which])
    np.testing.assert_allclose(run.mu_ov[2, :4], theirs[0], rtol=1e-9)
    np.testing.assert_allclose(run.mu_qk[2, :4], theirs[1], rtol=1e-9)


def test_learning_rate_is_the_unit_of_time():
    slow, fast = (integrate(PAPER, 3 * RATIOS, TIMES / eta, eta_ov=eta) for eta in (0.25, 4))
    np.testing.assert_allclose(slow.mu_qk, fast.mu_qk, rtol=1e-12)
    np.testing.assert_array_equal(slow.t, TIMES / 0.25)


@pytest.fixture(scope="module")
def in_few_steps():
    """`ode.solve`, giving up after 3,000 steps; 200 of them end on the times."""
    solve = ode.solve.__wrapped__
    compiled = jax.jit(lambda *arguments: solve(*arguments))
    with pytest.MonkeyPatch.context() as patch, jax.enable_x64(True):
        patch.setattr(ode, "MAX_STEPS", 3_000)
        sizes = RATIOS.shape, TIMES.shape, (2,), (4,)
        return compiled.lower(*map(np.ones, sizes), np.ones(2, bool)).compile()


@pytest.mark.parametrize("which", STARTS)
def test_every_ratio_is_integrated_in_few_steps(which, in_few_steps, monkeypatch):
    r = np.array([1e-75, 1e-30, 1.0, 1e12, 1e30])
    monkeypatch.setattr(ode, "solve", in_few_steps)
    run = integrate(PAPER, r, TIMES, parameterization=which, initial=STARTS[which])
    state = at_time(PAPER, r[:, None], TIMES, parameterization=which, initial=STARTS[which])
    np.testing.assert_allclose(run.mu_ov, state.mu_ov, rtol=1e-11)
    np.testing.assert_allclose(run.mu_qk, state.mu_qk, rtol=1e-11)


def test_shapes():
    run = integrate(PAPER, RATIOS[:, None], TIMES)
    assert run.t.shape == (200,)
    assert run.mu_ov.shape == run.alpha.shape == (5, 1, 200)
    assert (np.diff(run.mu_qk[:, 0, 100]) > 0).all()
    at_start = integrate(PAPER, 1, [0.0])
    assert at_start.mu_ov.shape == (1,)
    assert at_start.mu_ov[0] == at_start.mu_qk[0] == 0
    assert at_start.loss[0] == pytest.approx(math.log(5), rel=1e-15)


def test_nothing_is_compiled_twice_and_float32_stays_float32(caplog):
    @jax.jit
    def ours(x):
        return x * 2 + 1

    def compilations():
        return [record.getMessage() for record in caplog.records if "Compiling" in record.getMessage()]

    with jax.log_compiles():
        before = ours(jnp.ones(3))
        assert compilations()
        integrate(PAPER, RATIOS, TIMES)
        caplog.clear()
        for which, start in STARTS.items():
            integrate(Setting(4, 8, 4, 4), RATIOS[::-1], TIMES * 2, parameterization=which, initial=start, eta_ov=0.5)
        after = ours(jnp.ones(3))
        assert compilations() == []
    assert before.dtype == after.dtype == jnp.ones(3).dtype == jnp.float32
    assert not jax.config.jax_enable_x64


def test_giving_up_names_the_ratios(monkeypatch):
    def halfway(r, t, start, scalars, factorized):
        return jnp.ones((r.size, t.size, 2), r.dtype), r / 50, r < 5

    monkeypatch.setattr(ode, "solve", halfway)
    with pytest.raises(
        QkdynError, match=r"to t = 2 failed at r = 10 \(stopped at t = 0\.2\), 100 \(stopped at t = 2\); at_time gives"
    ):
        integrate(PAPER, RATIOS, [1.0, 2.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: integrate(PAPER, 0.0, [1.0]), "r must be positive and finite, got 0.0"),
        (lambda: integrate(PAPER, 1.0, [2.0, 1.0]), "t must be strictly increasing"),
        (lambda: integrate(PAPER, 1.0, 1.0), "t must be one-dimensional"),
        (lambda: integrate(PAPER, 1.0, [1.0], eta_ov=-1), "eta_ov must be a finite number > 0, got -1"),
        (lambda: integrate(PAPER, 1.0, [1.0], parameterization="FACO"), "initial must be given.*saddle"),
        (lambda: integrate(PAPER, 1.0, [1.0], parameterization="OV"), "parameterization must be one of"),
    ],
)
def test_wrong_input(call, message):
    with pytest.raises(InputError, match=message):
        call()

"""The flow of all parameters: Theorem 1's gradient, the scalars of all four parameterizations, its variants, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import compilations, quick
from qkdyn.circuits import on_ansatz
from qkdyn.errors import InputError, QkdynError, RangeError
from qkdyn.tasks.designs import Population
from qkdyn.theory import Setting, at_loss, at_time
from qkdyn.theory.matrix_flow import at_losses, matrix_flow, population_gradient

SMALL, SETTING = Population(), Setting(m=2, n=2, b=2, M=3)
STARTS = {"CACO": (0.0, 0.0), "CAFO": (0.1, 0.0), "FACO": (0.0, 0.1), "FAFO": (0.1, 0.1)}
T = [1.0, 100.0, 3000.0]


def start(design, which="CACO", initial=None):
    mu_ov, mu_qk = initial or STARTS[which]
    return on_ansatz(design.directions(), which, mu_ov=mu_ov, mu_qk=mu_qk, dtype=jnp.float64)


def close(flow, state, rtol, ov=1.0, gap=1.0):
    np.testing.assert_allclose(ov * flow.mu_ov, state.mu_ov, rtol=rtol)
    np.testing.assert_allclose(gap * flow.mu_qk, state.mu_qk, rtol=rtol)
    np.testing.assert_allclose(flow.alpha, state.alpha, rtol=rtol)


def velocities(m, n, b, M, margin_per_mu, gap, mu):
    """Theorem 1's f and g at eta = 1, where the margin is alpha * margin_per_mu * mu."""
    alpha = m * np.exp(gap) / (m * np.exp(gap) + n)
    E = np.exp(alpha * margin_per_mu * mu)
    f = alpha / (b * (E + M - 1))
    return f, f * (M - 1) * (1 - alpha) * margin_per_mu * mu / (M * b)


@pytest.mark.parametrize(
    ("p", "make", "inside"),
    [
        (SMALL, "enumerated", 0),
        (Population(m=2, n=3, b=3, M=3, backgrounds=2), "balanced", 0),
        (Population(m=3, n=2, b=2, M=2, backgrounds=1, query="mean"), "enumerated", 0),
        (Population(query="mean", included=True), "balanced", 1),
        (SMALL, "antithetic", 0),
        (Population(norm=1.5), "balanced", 0),
    ],
    ids=str,
)
def test_gradient_on_the_ansatz_is_theorem_1s(p, make, inside, x64):
    design = getattr(p, make)(*([jax.random.key(3)] if make == "antithetic" else []))
    D, Sbar, c = *(design.directions()[k] for k in ("qk", "ov")), p.norm
    gradient = quick(population_gradient)
    for mu, q, scale in ((0.0, 0.0, 1.0), (0.7, 0.4, 1.0), (2.0, 1.5, 0.5)):
        f, g = velocities(p.m + inside, p.n, p.b, p.M, c**2, scale * c**4 * q, mu)
        loss, moves = gradient(start(design, initial=(mu, q)), design, scale)
        np.testing.assert_allclose(-moves["ov"]["W_OV"], f * Sbar, atol=1e-14)
        np.testing.assert_allclose(-moves["qk"]["W_QK"], scale * g * D, atol=1e-14)
        alpha = p.m + inside
        alpha /= alpha + p.n * np.exp(-scale * c**4 * q)
        assert float(loss) == pytest.approx(np.log1p((p.M - 1) * np.exp(-alpha * c**2 * mu)), abs=1e-14)


def test_one_hot_backgrounds_share_the_gap(x64):
    """W_QK = q sum_y (S_y - (b/K) sum_k v_k) S_y^T is a manifold of its own, with gap (1 + b/K) q."""
    p = Population(m=2, n=3, b=3, M=3, backgrounds=2, signed=False)
    design = p.balanced()
    assert design.reflection is None
    v = p.embedding()[p.M * p.b :].sum(0)
    direction = sum(np.outer(S - p.b / p.backgrounds * v, S) for S in design.S)
    mu, q = 1.3, 0.6
    params = {"qk": {"W_QK": jnp.asarray(q * direction)}, "ov": {"W_OV": jnp.asarray(mu * design.directions()["ov"])}}
    f, g = velocities(2, 3, 3, 3, 1.0, (1 + p.b / p.backgrounds) * q, mu)
    _, moves = quick(population_gradient)(params, design)
    np.testing.assert_allclose(-moves["ov"]["W_OV"], f * design.directions()["ov"], atol=1e-14)
    np.testing.assert_allclose(-moves["qk"]["W_QK"], g * direction, atol=1e-14)


def test_query_attending_to_itself_adds_a_token_diagonal(x64):
    """At q = 0 the attended tokens are m independent ones and the query: W_QK moves along (m/b^2) D + (1/b) sum s s^T."""
    p = Population(included=True)
    design = p.enumerated()
    _, moves = quick(population_gradient)(start(design, initial=(0.5, 0.0)), design)
    tokens = p.embedding()[: p.M * p.b]
    expected = p.m / p.b**2 * design.directions()["qk"] + tokens.T @ tokens / p.b
    W = -np.asarray(moves["qk"]["W_QK"])
    np.testing.assert_allclose(W / W[0, 0], expected / expected[0, 0], atol=1e-14)


def test_listed_half_has_the_gradient_of_all(x64):
    design = SMALL.enumerated()
    params = start(design, "FAFO")
    params["ov"]["W_V"] = params["ov"]["W_V"].at[:, :6].add(0.1 * np.sin(np.arange(48.0)).reshape(8, 6))
    half, full = (quick(population_gradient)(params, d) for d in (design, design.unfolded()))
    for a, b in zip(*map(jax.tree.leaves, (half, full)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-15)
    assert not np.any(half[1]["ov"]["W_V"][:, 6:]) and not np.any(half[1]["qk"]["W_K"][6:])


def test_weight_counts_like_repetition(x64):
    design = SMALL.sample(jax.random.key(0), 3)
    params = jax.tree.map(jnp.asarray, random_start(SMALL.enumerated()))
    twice = np.array([0, 0, 1, 2])
    listed = design._replace(X=design.X[twice], x_T=design.x_T[twice], y=design.y[twice], weight=np.full(4, 0.25))
    weighted = design._replace(weight=np.array([0.5, 0.25, 0.25]))
    for a, b in zip(*(jax.tree.leaves(quick(population_gradient)(params, d)) for d in (listed, weighted)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-15)


@pytest.mark.parametrize("which", STARTS)
def test_matrices_follow_the_scalars(which):
    design = SMALL.enumerated()
    initial = start(design, which)
    for r in (0.1, 5.0):
        flow = matrix_flow(design, initial, T, eta_qk=2 * r, eta_ov=2.0)
        close(flow, at_time(SETTING, r, T, eta_ov=2.0, parameterization=which, initial=STARTS[which]), 1e-11)
        assert flow.off_ov.max() < 1e-9 and flow.off_qk.max() < 1e-8
        np.testing.assert_allclose(flow.loss, SETTING.loss(flow.alpha * flow.mu_ov), rtol=1e-11)
    losses = [1.0, 0.1, 1e-3]
    flow = at_losses(design, initial, losses, eta_qk=1.0, eta_ov=1.0)
    state = at_loss(SETTING, 1.0, losses, parameterization=which, initial=STARTS[which])
    close(flow, state, 1e-11)
    np.testing.assert_allclose(flow.t, state.t, rtol=1e-11)
    np.testing.assert_allclose(flow.loss, losses, rtol=1e-11)


def test_scales_and_norms_rescale_the_rates():
    """Gap s c^4 mu_qk and margin c^2 alpha mu_ov obey the theorem at eta_ov c^2 and r c^2 s^2."""
    for c, s, r, eta in ((1.0, 8**-0.5, 1.0, 1.0), (1.5, 1.0, 1.0, 1.0), (0.5, 3.0, 2.0, 0.7)):
        design = Population(norm=c).enumerated()
        flow = matrix_flow(design, start(design), T, eta_qk=r * eta, eta_ov=eta, scale=s)
        close(flow, at_time(SETTING, r * c**2 * s**2, T, eta_ov=eta * c**2), 1e-11, ov=c**2, gap=s * c**4)


def test_tokens_that_overlap_leave_the_constants():
    """The printed form at t = 1e4 has mu_ov 9.17 and loss 4.13e-4; sin .3 within a class 7.16, across classes 5.15e-4."""
    sine = float(np.sin(0.3))
    same, cross = (
        matrix_flow(design, start(design), [1.0, 100.0, 1e4], eta_qk=1.0, eta_ov=1.0)
        for design in (Population(same_overlap=sine).enumerated(), Population(cross_overlap=sine).enumerated())
    )
    assert same.off_ov[-1] < 1e-12 and same.off_qk[-1] < 1e-12
    assert same.mu_ov[-1] == pytest.approx(7.16, abs=0.005)
    assert 0.1 < cross.off_ov[-1] < 0.2
    assert cross.loss[-1] == pytest.approx(5.15e-4, abs=1e-6)


def random_start(design):
    keys = jax.random.split(jax.random.key(0))
    shapes = (design.S.shape[1],) * 2, design.S.shape
    qk, ov = (np.array(jax.random.normal(k, shape)) for k, shape in zip(keys, shapes, strict=True))
    own = design.reflection > 0
    return {"qk": {"W_QK": qk * own[:, None] * own[None, :]}, "ov": {"W_OV": ov * own[None, :]}}


def test_loss_falls_everywhere_and_background_stays_zero():
    design = SMALL.enumerated()
    flow = matrix_flow(design, random_start(design), [0.0, 10.0, 1000.0], eta_qk=3.0, eta_ov=1.0)
    assert (np.diff(flow.loss) < 0).all() and flow.off_ov[-1] > 0.1
    assert not np.any(flow.params["ov"]["W_OV"][..., 6:])
    assert not np.any(flow.params["qk"]["W_QK"][:, 6:]) and not np.any(flow.params["qk"]["W_QK"][..., 6:])
    # Where a loss is reached does not depend on the clock.
    same = at_losses(design, random_start(design), [*flow.loss[1:], 1e-3], eta_qk=3.0, eta_ov=1.0)
    np.testing.assert_allclose(same.t[:2], flow.t[1:], rtol=1e-9)
    np.testing.assert_allclose(same.params["qk"]["W_QK"][:2], flow.params["qk"]["W_QK"][1:], atol=1e-9)


def test_descent_approaches_the_flow_like_its_step(x64):
    design = SMALL.enumerated()
    initial = random_start(design)
    flow = matrix_flow(design, initial, [1.0, 2.0, 4.0], eta_qk=3.0, eta_ov=1.0)
    rates = {"qk": 3.0, "ov": 1.0}

    @jax.jit
    def descend(params, step):
        _, moves = population_gradient(params, design)
        return {c: jax.tree.map(lambda W, G, c=c: W - rates[c] * step * G, params[c], moves[c]) for c in rates}

    errors = []
    for steps in (40, 80, 160):
        params = jax.tree.map(jnp.asarray, initial)
        for _ in range(steps):
            params = descend(params, 4.0 / steps)
        errors.append(np.linalg.norm(params["qk"]["W_QK"] - flow.params["qk"]["W_QK"][-1]))
    np.testing.assert_allclose(np.divide(errors[:2], errors[1:]), 2, atol=0.15)


def test_rates_share_a_compilation_and_float32_is_left_alone():
    design = SMALL.enumerated()
    initial = start(design)
    matrix_flow(design, initial, T, eta_qk=1.0, eta_ov=1.0)
    with compilations() as found:
        matrix_flow(design, initial, T, eta_qk=7.0, eta_ov=0.5, scale=0.25)
        at_losses(design, initial, [0.5, 0.4, 0.3], eta_qk=2.0, eta_ov=1.0)
    assert not [line for line in found if "_solve" in line or "_start" in line]
    assert jnp.ones(2).dtype == jnp.float32


def test_wrong_input():
    design = SMALL.enumerated()
    initial, rates = start(design), {"eta_qk": 1.0, "eta_ov": 1.0}
    with pytest.raises(InputError, match=r"t must be >= 0, got -1\.0"):
        matrix_flow(design, initial, [-1.0, 1.0], **rates)
    with pytest.raises(InputError, match=r"t must be strictly increasing, got \(2\.0, 1\.0\)"):
        matrix_flow(design, initial, [2.0, 1.0], **rates)
    with pytest.raises(InputError, match=r"eta_qk must be a finite number > 0, got 0"):
        matrix_flow(design, initial, T, eta_qk=0.0, eta_ov=1.0)
    with pytest.raises(InputError, match=r"scale must be a finite number > 0, got -1"):
        matrix_flow(design, initial, T, **rates, scale=-1.0)
    with pytest.raises(InputError, match=r"shape of W_OV must be \(3, 8\) for this design, got \(3, 12\)"):
        matrix_flow(design, start(Population(b=3, backgrounds=3).balanced()), T, **rates)
    spoilt = {"qk": initial["qk"], "ov": {"W_OV": np.full((3, 8), np.nan)}}
    with pytest.raises(InputError, match=r"initial W_OV must be finite"):
        matrix_flow(design, spoilt, T, **rates)
    with pytest.raises(InputError, match=r"initial must not depend on the background.*design\.unfolded\(\)"):
        matrix_flow(design, {"qk": initial["qk"], "ov": {"W_OV": np.ones((3, 8))}}, T, **rates)
    still = {
        "qk": {"W_K": np.zeros((8, 8)), "W_Q": np.zeros((8, 8))},
        "ov": {"W_O": np.zeros((3, 8)), "W_V": np.eye(8)},
    }
    still["ov"]["W_V"] *= 0
    with pytest.raises(InputError, match=r"descent of the loss at initial must be positive.*stationary point"):
        matrix_flow(design, still, T, **rates)
    with pytest.raises(RangeError, match=r"losses must be below the loss at the start, 1\.09861229, got 1\.2"):
        at_losses(design, initial, [1.2, 0.1], **rates)
    with pytest.raises(InputError, match="losses must be one-dimensional and strictly decreasing"):
        at_losses(design, initial, [0.1, 0.2], **rates)
    with pytest.raises(InputError, match=r"losses must be positive and finite, got 0\.0"):
        at_losses(design, initial, [0.1, 0.0], **rates)


def test_other_kinds_are_refused(unchecked):
    with pytest.raises(
        InputError, match=r"design must be a Design, got .*Population\(m=2, n=2, b=2, M=3\)\.enumerated"
    ):
        matrix_flow(SMALL, start(SMALL.enumerated()), T, eta_qk=1.0, eta_ov=1.0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"initial must be a tree of parameters, got \[1\.0\]; e\.g\. on_ansatz"):
        matrix_flow(SMALL.enumerated(), [1.0], T, eta_qk=1.0, eta_ov=1.0)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("leaf", [None, "x", [[1.0], [1.0, 2.0]], np.ones((8, 8), complex), np.ones(8)])
def test_matrices_that_are_none_are_refused(unchecked, leaf):
    design = SMALL.enumerated()
    with pytest.raises(InputError, match="initial W_QK must be a"):
        matrix_flow(design, {"qk": {"W_QK": leaf}, "ov": start(design)["ov"]}, T, eta_qk=1.0, eta_ov=1.0)


def test_giving_up_tells_the_time_reached(monkeypatch):
    # Later than the last time that it was asked for and reached.
    monkeypatch.setattr("qkdyn.theory.matrix_flow.MAX_STEPS", 37)
    design = Population(m=1, n=1, b=1, M=2, backgrounds=1).enumerated()
    with pytest.raises(QkdynError, match=r"gave up at t = (?!0;|1;)\d"):
        matrix_flow(design, start(design), [1.0, 1e7], eta_qk=1.0, eta_ov=1.0)


def test_a_loss_out_of_reach_is_told_in_words():
    """Every seventh sequence has another label than its tokens say: no parameters bring the loss to 0.01."""
    design = SMALL.enumerated()
    y = design.y.copy()
    y[::7] = (y[::7] + 1) % 3
    with pytest.raises(QkdynError, match=r"the flow at r = 2 gave up at loss = 0\.[2-9]"):
        at_losses(design._replace(y=y), start(design), [1.0, 0.1, 0.01], eta_qk=2.0, eta_ov=1.0)

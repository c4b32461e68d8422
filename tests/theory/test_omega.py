"""Omega against its Kronecker form; its flow against the flow of balanced factors; what either refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkdyn.circuits import collapse
from qkdyn.errors import InputError, QkdynError
from qkdyn.theory import omega, omega_flow
from qkdyn.theory.identities import random_problem, sequence_loss

SHAPES = {"M<d": (4, 6), "M=d": (6, 6), "M>d": (9, 6)}
TIMES = np.array([1.0, 5.0, 20.0])


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float64)


@functools.cache
def problem(shape):
    """Softmax attention on a batch of random sequences; cached, so that one loss has one compilation."""
    M, d = SHAPES[shape]
    drawn = random_problem(1, M=M, d=d, T=7, batch=8)

    def loss(params):
        return sequence_loss(params, drawn.X, drawn.x_T, drawn.y)

    return loss, drawn.params


def collapsed(params):
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, collapse(jax.tree.map(jnp.asarray, params)))


# The operator


@pytest.mark.parametrize("rank", [1, 3, 6])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_apply_is_the_kronecker_form(x64, shape, rank):
    M, d = shape
    C, G = draw(0, M, rank) @ draw(1, rank, d), draw(2, M, d)
    true = omega.kronecker(C) @ omega.vec(G)
    np.testing.assert_allclose(omega.vec(omega.apply(C, G)), true, rtol=0, atol=1e-12 * float(jnp.linalg.norm(true)))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_kronecker_is_built_from_the_square_roots(x64, shape):
    """Entry by entry, from roots by polar decomposition: Omega[(i, j), (k, l)] = R_jl [i = k] + L_ik [j = l]."""
    import scipy.linalg

    M, d = shape
    C = np.asarray(draw(0, M, d))
    L, R = (scipy.linalg.polar(C, side)[1] for side in ("left", "right"))
    true = np.einsum("jl,ik->jilk", R, np.eye(M)) + np.einsum("jl,ik->jilk", np.eye(d), L)
    np.testing.assert_allclose(omega.kronecker(jnp.asarray(C)), true.reshape(M * d, M * d), rtol=0, atol=1e-13)


def test_apply_maps_over_leading_axes(x64):
    C, G = draw(0, 2, 3, 4, 6), draw(1, 2, 3, 4, 6)
    np.testing.assert_allclose(omega.apply(C, G)[1, 2], omega.apply(C[1, 2], G[1, 2]), rtol=0, atol=1e-14)


def test_apply_forms_nothing_larger_than_its_matrices(x64):
    def sizes(jaxpr):
        for equation in jaxpr.eqns:
            yield from (v.aval.size for v in equation.outvars if hasattr(v.aval, "size"))
            for inner in jax.tree.leaves(equation.params, is_leaf=lambda p: hasattr(p, "jaxpr")):
                if hasattr(inner, "jaxpr"):
                    yield from sizes(inner.jaxpr)

    C = jnp.ones((20, 30))
    assert max(sizes(jax.make_jaxpr(omega.apply)(C, C).jaxpr)) <= 30 * 30


shapes = st.sampled_from(sorted(SHAPES.values()))
seeds = st.integers(0, 2**31)


@given(shapes, seeds, st.floats(-1e3, 1e3))
def test_omega_is_homogeneous_of_degree_one(shape, seed, c):
    with jax.enable_x64(True):
        C, G = draw([seed, 0], *shape), draw([seed, 1], *shape)
        true = abs(c) * omega.apply(C, G)
        assert jnp.linalg.norm(omega.apply(c * C, G) - true) <= 1e-13 * jnp.linalg.norm(true)


@given(shapes, seeds, st.integers(1, 3))
def test_omega_is_symmetric_and_positive_semidefinite(shape, seed, rank):
    with jax.enable_x64(True):
        C = draw([seed, 0], shape[0], rank) @ draw([seed, 1], rank, shape[1])
        G, H = draw([seed, 2], *shape), draw([seed, 3], *shape)
        scale = float(jnp.linalg.norm(C) * jnp.linalg.norm(G) * jnp.linalg.norm(H))
        assert abs(jnp.vdot(G, omega.apply(C, H)) - jnp.vdot(omega.apply(C, G), H)) <= 1e-13 * scale
        # Of G in the kernel of C on both sides nothing is left, up to rounding.
        assert jnp.vdot(G, omega.apply(C, G)) >= -1e-13 * scale


@given(shapes, seeds)
def test_omega_turns_with_its_argument(shape, seed):
    with jax.enable_x64(True):
        C, G = draw([seed, 0], *shape), draw([seed, 1], *shape)
        U, V = (jnp.linalg.qr(draw([seed, 2 + i], size, size))[0] for i, size in enumerate(shape))
        true = U @ omega.apply(C, G) @ V
        assert jnp.linalg.norm(omega.apply(U @ C @ V, U @ G @ V) - true) <= 1e-13 * jnp.linalg.norm(true)


# The flows


@pytest.mark.parametrize(
    ("shape", "form", "rates"),
    [
        *((shape, "FAFO", (eta, 1.0)) for shape in ("M<d", "M>d") for eta in (10.0, 0.1)),
        ("M<d", "FAFO", ((2.0, 0.5), (4.0, 1.0))),
        ("M>d", "FAFO", ((0.5, 3.0), (0.2, 1.7))),
        ("M<d", "CAFO", (1.0, 1.0)),
        ("M=d", "FACO", (1.0, 1.0)),
    ],
    ids=str,
)
def test_omega_gives_the_flow_of_balanced_factors(shape, form, rates):
    loss, params = problem(shape)
    eta = {"eta_qk": rates[0], "eta_ov": rates[1]}
    start = omega.factorize_at_rates(params, form, **eta)
    found = omega_flow.compare_flows(loss, start, TIMES, **eta)
    assert max(difference.max() for difference in found.difference.values()) < 1e-9
    # And they moved: equal because both stood still would be no test.
    for circuit, name in (("qk", "W_QK"), ("ov", "W_OV")):
        W = found.preconditioned.params[circuit][name]
        assert np.linalg.norm(W[-1] - W[0]) > 0.05 * np.linalg.norm(W[0])


@pytest.mark.parametrize("shape", ["M<d", "M>d"])
def test_unbalanced_factors_do_not_follow_omega(shape):
    loss, params = problem(shape)
    factors = collapsed(omega_flow.factorized_flow(loss, params, TIMES).params)
    products = omega_flow.preconditioned_flow(loss, collapsed(params), TIMES).params
    for circuit, name in (("qk", "W_QK"), ("ov", "W_OV")):
        W = products[circuit][name][-1]
        assert np.linalg.norm(factors[circuit][name][-1] - W) > 0.01 * np.linalg.norm(W)


def test_balance_for_equal_rates_is_not_balance_for_others():
    loss, params = problem("M<d")
    start = omega.factorize_at_rates(params)
    eta = {"eta_ov": (4.0, 1.0)}
    assert max(omega.balance_defect(start).values()) < 1e-14
    with pytest.raises(InputError, match=r"W_O and W_V must be balanced .* ov circuit is 0\.6, .*factorize_at_rates"):
        omega_flow.compare_flows(loss, start, TIMES, **eta)
    found = omega_flow.compare_flows(loss, start, TIMES, **eta, tolerance=1.0)
    assert found.difference["ov"][-1] > 0.01


def test_factorize_at_rates_keeps_the_products_and_balances():
    _, params = problem("M<d")
    eta = {"eta_qk": (2.0, 0.5), "eta_ov": (4.0, 1.0)}
    factors = omega.factorize_at_rates(params, **eta)
    for circuit, name in (("qk", "W_QK"), ("ov", "W_OV")):
        np.testing.assert_allclose(collapsed(factors)[circuit][name], collapsed(params)[circuit][name], atol=1e-14)
    ov, qk = factors["ov"], factors["qk"]
    np.testing.assert_allclose(ov["W_O"].T @ ov["W_O"] / 4.0, ov["W_V"] @ ov["W_V"].T, atol=1e-14)
    np.testing.assert_allclose(qk["W_K"].T @ qk["W_K"] / 2.0, qk["W_Q"].T @ qk["W_Q"] / 0.5, atol=1e-14)


def test_descent_follows_the_flow_to_first_order():
    loss, params = problem("M<d")
    flow = omega_flow.factorized_flow(loss, params, TIMES, eta_qk=0.5).params
    end = jax.tree.map(lambda leaf: leaf[-1], flow)

    def error(steps):
        found = omega_flow.gradient_descent(loss, params, TIMES[-1], steps, eta_qk=0.5)
        return np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(*map(jax.tree.leaves, (found, end)), strict=True)))

    errors = [error(steps) for steps in (800, 1600, 3200)]
    slopes = -np.diff(np.log2(errors))
    assert ((slopes > 0.85) & (slopes < 1.15)).all(), slopes


def test_flow_starts_at_its_start_and_loses_loss():
    loss, params = problem("M<d")
    flow = omega_flow.factorized_flow(loss, params, [0.0, 1.0, 20.0])
    assert all(
        np.array_equal(leaf[0], start) for leaf, start in zip(*map(jax.tree.leaves, (flow.params, params)), strict=True)
    )
    with jax.enable_x64(True):
        losses = [float(loss(jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), flow.params))) for i in range(3)]
    assert losses[0] > losses[1] > losses[2]


# What is refused

EYE = {"qk": {"W_QK": np.eye(2)}, "ov": {"W_OV": np.eye(2)}}


FACTORS = {"W_K": np.eye(3), "W_Q": np.eye(2)}
OTHERS = {"W_O": np.ones((4, 3)), "W_V": np.eye(2)}


def quadratic(params):
    return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))


def unbounded(params):
    return -sum(jnp.sum(leaf**4) for leaf in jax.tree.leaves(params))


def test_a_flow_that_ends_is_told_with_its_ratio_and_time():
    # dw/dt = 4 w^3 from w = 1 ends at t = 1/8; with eta = 10 at 1/80.
    with pytest.raises(QkdynError, match=r"to t = 20 at r = 10 stopped at t = 0\.0125 after \d{1,4} steps"):
        omega_flow.factorized_flow(unbounded, EYE, [20.0], eta_qk=10.0)


def test_a_descent_that_diverges_is_told_with_its_step():
    with pytest.raises(QkdynError, match=r"descent in 9 steps of 1 at r = 10 diverged"):
        omega_flow.gradient_descent(unbounded, EYE, 9.0, 9, eta_qk=10.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: omega.apply(jnp.ones((2, 3)), jnp.ones((3, 2))), r"shapes of C and G must be equal"),
        (lambda: omega.apply(jnp.ones(3), jnp.ones(3)), r"shapes of C and G"),
        (lambda: omega.kronecker(jnp.ones(3)), r"shape of C must be \(M, d\)"),
        (lambda: omega.kronecker(jnp.ones((256, 256), jnp.float32)), r"1073741824 bytes, got 65536; 17179869184 here"),
        (lambda: omega_flow.preconditioned_flow(quadratic, problem("M<d")[1], [1.0]), r"initial must be collapsed"),
        (
            lambda: omega_flow.preconditioned_flow(quadratic, EYE, [1.0], factorized=("qv",)),
            r"factorized must be circuits",
        ),
        (lambda: omega_flow.preconditioned_flow(quadratic, EYE, [1.0], factorized="qk"), r"factorized must be a list"),
        (lambda: omega_flow.preconditioned_flow(quadratic, EYE, [1.0], eta_qk=-1.0), r"eta_qk must be .* got -1\.0"),
        (lambda: omega_flow.preconditioned_flow(quadratic, EYE, [2.0, 1.0]), r"t must be strictly increasing"),
        (
            lambda: omega_flow.preconditioned_flow(quadratic, EYE | {"ov": {"W_OV": np.zeros((2, 2))}}, [1.0]),
            r"initial W_OV must be not all zero, .* Omega\(0\) = 0",
        ),
        (
            lambda: omega_flow.factorized_flow(quadratic, EYE, [1.0], eta_ov=(1.0, 2.0)),
            r"eta_ov must be a number, or a pair",
        ),
        (
            lambda: omega_flow.factorized_flow(quadratic, problem("M<d")[1], [1.0], eta_ov=(1, 2, 3)),
            r"eta_ov must be a number",
        ),
        (lambda: omega_flow.factorized_flow(3.0, EYE, [1.0]), r"loss must be a function of Params, got 3\.0"),
        (lambda: omega_flow.factorized_flow(lambda p: p["ov"]["W_OV"], EYE, [1.0]), r"loss must be .* one real number"),
        (lambda: omega_flow.factorized_flow(quadratic, {"qk": 1}, [1.0]), r"initial must be Params"),
        (lambda: omega_flow.factorized_flow(quadratic, {"qk": {"W_A": np.eye(2)}, "ov": {}}, [1.0]), r"params must be"),
        (
            lambda: omega_flow.factorized_flow(quadratic, EYE | {"ov": {"W_OV": np.full((2, 2), np.nan)}}, [1.0]),
            r"initial W_OV must be finite",
        ),
        (
            lambda: omega_flow.factorized_flow(quadratic, EYE | {"ov": {"W_OV": np.ones(2)}}, [1.0]),
            r"W_OV must be a matrix",
        ),
        (lambda: omega.balance_defect({"qk": FACTORS, "ov": OTHERS}), r"the shapes in params must be .* \(d, d\)"),
        (
            lambda: omega_flow.factorized_flow(quadratic, {"qk": FACTORS, "ov": EYE["ov"]}, [1.0]),
            r"the shapes in initial",
        ),
        (lambda: omega.factorize_at_rates({"qk": EYE["qk"], "ov": OTHERS}), r"the shapes in params"),
        (lambda: omega.balance_defect(EYE | {"qk": {"W_QK": np.ones((0, 0))}}), r"W_QK must be a matrix .* not empty"),
        (lambda: omega.balance_defect(EYE | {"qk": {"W_QK": [[1], [1, 2]]}}), r"W_QK must be a rectangular matrix"),
        (lambda: omega_flow.gradient_descent(quadratic, EYE, 1.0, 0), r"steps must be an integer >= 1, got 0"),
        (
            lambda: omega_flow.compare_flows(quadratic, problem("M<d")[1], [1.0]),
            r"W_K and W_Q must be balanced .* is 0\.\d+",
        ),
        (lambda: omega_flow.compare_flows(quadratic, EYE, [1.0], tolerance=0.0), r"tolerance must be"),
    ],
)
def test_wrong_input_is_told(unchecked, call, message):
    with pytest.raises(InputError, match=message):
        call()

"""Every matrix statement of Sec. 6 and Appendix D: holds to rounding as corrected, and fails as printed where it does."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkdyn.circuits import collapse
from qkdyn.errors import InputError
from qkdyn.theory import identities, omega, omega_flow

SHAPES = [(4, 6), (6, 6), (9, 6)]
SEEDS = range(3)
PAIRS = {"eta_qk": (2.0, 0.5), "eta_ov": (4.0, 1.0)}


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


@functools.cache
def batch():
    """Loss of a batch of sequences, and unbalanced factors."""
    drawn = identities.random_problem(0, M=4, d=6, T=7, batch=8)

    def loss(params):
        return identities.sequence_loss(params, drawn.X, drawn.x_T, drawn.y)

    return loss, drawn.params


def float64(params):
    with jax.enable_x64(True):
        return jax.tree.map(jnp.asarray, params)


def flat(params):
    with jax.enable_x64(True):
        return collapse(params)


def arrays(*values):
    with jax.enable_x64(True):
        return tuple(jnp.asarray(value, jnp.float64) for value in values)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_propositions_hold_as_corrected(shape, seed):
    problem = identities.random_problem(seed, M=shape[0], d=shape[1], T=7)
    first, second = identities.proposition_1(*problem), identities.proposition_2(*problem)
    assert set(first) == {"(3) W_O", "(3) W_V", "(30)", "(31)", "(32)"} and set(second) == {"(45)", "(46)", "(47)"}
    assert max(*first.values(), *second.values()) < 1e-12
    # As printed G is transposed, and what is built from it wrong too.
    assert min(identities.proposition_2(*problem, printed=True).values()) > 0.5


def test_residuals_notice_a_wrong_gradient(monkeypatch):
    problem = identities.random_problem(0, M=4, d=6, T=7)
    true = identities.sequence_loss
    monkeypatch.setattr(identities, "sequence_loss", lambda *args: 1.01 * true(*args))
    residuals = identities.proposition_1(*problem) | identities.proposition_2(*problem)
    wrong = [residuals[name] for name in ("(30)", "(31)", "(32)", "(45)", "(46)", "(47)")]
    np.testing.assert_allclose(wrong, 0.01 / 1.01, rtol=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_flows_descend_with_a_minus_and_ascend_as_printed(seed):
    problem = identities.random_problem(seed, M=4, d=6, T=7)
    descent, ascent = identities.flow_signs(*problem), identities.flow_signs(*problem, printed=True)
    assert set(descent) == {"(33)", "(34)", "(35)", "(48)", "(49)", "(50)"}
    assert max(descent.values()) < 0 < min(ascent.values())
    # At the rate of gradient flow: d loss/dt = -||gradient||^2.
    with jax.enable_x64(True):
        gradient = jax.grad(identities.sequence_loss)(problem.params, *problem[1:])
        np.testing.assert_allclose(descent["(50)"], -jnp.sum(gradient["qk"]["W_K"] ** 2), rtol=1e-12)


@pytest.mark.parametrize("rates", [{}, {"eta_qk": 10.0, "eta_ov": 0.3}, PAIRS], ids=["equal", "circuits", "factors"])
def test_products_of_balanced_factors_move_as_omega_says(rates):
    loss, params = batch()
    balanced = float64(omega.factorize_at_rates(params, **rates))
    assert max(identities.product_velocity(loss, balanced, **rates).values()) < 1e-12
    assert min(identities.product_velocity(loss, params, **rates).values()) > 0.05


def test_equal_balance_is_not_enough_for_factors_with_different_rates():
    loss, params = batch()
    balanced = float64(omega.factorize_at_rates(params))
    assert min(identities.product_velocity(loss, balanced, **PAIRS).values()) > 0.01


@pytest.mark.parametrize("rates", [{}, PAIRS], ids=["equal", "factors"])
def test_flow_conserves_and_descent_drifts_with_its_step(rates):
    loss, params = batch()
    assert max(identities.flow_drift(loss, params, 20.0, **rates).values()) < 1e-11
    coarse, fine = (identities.descent_drift(loss, params, 20.0, steps, **rates) for steps in (1600, 3200))
    for circuit in ("qk", "ov"):
        assert 0.85 < np.log2(coarse[circuit] / fine[circuit]) < 1.15


def test_what_is_conserved_depends_on_the_rates_of_the_factors():
    loss, params = batch()
    flow = omega_flow.factorized_flow(loss, params, [20.0], **PAIRS)
    end = float64(jax.tree.map(lambda leaf: leaf[-1], flow.params))
    for rates, conserved in ((PAIRS, True), ({}, False)):
        found = [identities.conserved(at, **rates) for at in (params, end)]
        for before, after in (map(np.asarray, (at[circuit] for at in found)) for circuit in ("qk", "ov")):
            assert (np.linalg.norm(after - before) < 1e-11 * np.linalg.norm(before)) == conserved


def test_conserved_is_zero_at_balance():
    _, params = batch()
    found = identities.conserved(float64(omega.factorize_at_rates(params, **PAIRS)), **PAIRS)
    assert max(float(abs(np.asarray(value)).max()) for value in found.values()) < 1e-14


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_omega_is_for_columns_and_homogeneous_in_size(shape):
    C, G = arrays(draw(0, *shape), draw(1, *shape))
    order = identities.vec_order(C, G)
    assert order["columns"] < 1e-12 and order["rows"] > 0.1
    shrunk, turned = identities.homogeneity(C, G, 0.3), identities.homogeneity(C, G, -0.3)
    assert max(*shrunk.values(), turned["|c|"]) < 1e-12
    # The paper's Omega(c C) = c Omega(C) has the wrong sign where c < 0.
    assert turned["c"] == pytest.approx(2.0)
    assert identities.kronecker_sum(C) < 1e-12
    assert identities.omega_at_zero(G) == 0.0


@pytest.mark.parametrize("shape", [(4, 6), (6, 4)], ids=str)
def test_square_root_by_svd_keeps_the_digits_that_sqrtm_loses(shape):
    found = identities.square_roots(*shape, rank=3)
    assert found["svd"] < 1e-14 and found["sqrtm"] > 1e-11


def test_omega_is_a_multiple_of_the_identity_only_where_all_singular_values_are_equal():
    square = np.linalg.qr(draw(0, 5, 5))[0]
    s = np.array([1.0, 1.0, 1.0, 1.0, 1.5])
    equal, unequal, wide = arrays(3.0 * square, square * s, 3.0 * square[:3])
    assert identities.scalar_multiple(equal) < 1e-14
    # Eigenvalues s_i + s_j; for three equal rows of five columns s and 2 s in the proportion 2 to 3.
    sums = np.add.outer(s, s)
    assert identities.scalar_multiple(unequal) == pytest.approx(np.std(sums) / np.sqrt(np.mean(sums**2)), rel=1e-12)
    assert identities.scalar_multiple(wide) == pytest.approx(np.sqrt(0.24 / 2.8), rel=1e-12)


def test_nothing_against_nothing_is_no_residual():
    # A gradient that is zero is rightly claimed to be zero.
    problem = identities.random_problem(0, M=4, d=6, T=5)
    still = jax.tree.map(jnp.zeros_like, problem.params)
    assert identities.proposition_1(still, *problem[1:])["(31)"] == 0
    assert identities.vec_order(jnp.zeros((2, 3)), jnp.ones((2, 3))) == {"columns": 0, "rows": 0}
    assert identities.scalar_multiple(jnp.zeros((2, 3))) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda p, loss: identities.proposition_1(p, jnp.ones((2, 7, 6)), jnp.ones((2, 6)), jnp.zeros(2, int)),
            r"X, x_T and y must be \(T, 6\)",
        ),
        (
            lambda p, loss: identities.proposition_2(p, jnp.ones((7, 6)), jnp.ones(5), jnp.asarray(0)),
            "x_T and y must be",
        ),
        (lambda p, loss: identities.flow_signs(p, jnp.ones((7, 6)), jnp.ones(6), jnp.asarray(9)), "y must be from 0"),
        (lambda p, loss: identities.conserved(None), "params must be factorized"),
        (lambda p, loss: identities.product_velocity(lambda q: jnp.ones(3), p), "loss must be"),
        (lambda p, loss: identities.homogeneity(jnp.eye(2), jnp.eye(2), float("nan")), "c must be"),
        (lambda p, loss: identities.kronecker_sum(jnp.zeros((2, 3))), "not all zero"),
        (lambda p, loss: identities.square_roots(4, 6, 2, -1), "seed must be"),
        (lambda p, loss: identities.product_velocity(loss, flat(p)), "params must be factorized in both circuits"),
        (lambda p, loss: identities.conserved(p, eta_qk=0.0), "eta_qk must be"),
        (lambda p, loss: identities.random_problem(0, M=0, d=3, T=2), "M must be an integer >= 1"),
        (lambda p, loss: identities.random_problem(-1, M=2, d=3, T=2), "seed must be an integer >= 0"),
        (lambda p, loss: identities.random_problem(0, M=2, d=3, T=2, scale=0.0), "scale must be"),
        (lambda p, loss: identities.square_roots(4, 6, rank=5), "rank must be"),
    ],
)
def test_wrong_input_is_told(unchecked, call, message):
    loss, params = batch()
    with pytest.raises(InputError, match=message):
        call(params, loss)

"""The layer against plain loops, its masks, its broadcasting, and the loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import max_difference
from qkdyn.attention import cross_entropy, forward
from qkdyn.circuits import Parameterization, collapse, init_params

NORMAL = jax.nn.initializers.normal(0.5)


def layer(form="FAFO", d=5, M=3, seed=0):
    return init_params(jax.random.key(seed), form, d=d, M=M, qk=NORMAL, ov=NORMAL)


def by_loops(params, X, x_T, mask, scale):
    """Eq. (1) written out for one sequence, in float64."""
    flat = jax.tree.map(lambda leaf: np.asarray(leaf, float), collapse(params))
    W_QK, W_OV = flat["qk"]["W_QK"], flat["ov"]["W_OV"]
    weight = [np.exp(scale * X[j] @ W_QK @ x_T) if mask[j] else 0.0 for j in range(len(X))]
    attention = np.array(weight) / sum(weight)
    return W_OV @ sum(a * x for a, x in zip(attention, X, strict=True)), attention


@pytest.mark.parametrize("form", list(Parameterization))
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_forward_is_eq_1(form, scale):
    rng = np.random.default_rng(0)
    X, x_T = rng.normal(size=(4, 7, 5)).astype("f4"), rng.normal(size=(4, 5)).astype("f4")
    mask = rng.random((4, 7)) < 0.7
    mask[:, 0] = True
    logits, attention = forward(layer(form), jnp.asarray(X), jnp.asarray(x_T), mask=jnp.asarray(mask), scale=scale)
    for i in range(4):
        expected, weights = by_loops(layer(form), X[i].astype(float), x_T[i].astype(float), mask[i], scale)
        np.testing.assert_allclose(logits[i], expected, atol=2e-5)
        np.testing.assert_allclose(attention[i], weights, atol=2e-6)
    assert not np.asarray(attention)[~mask].any()


def test_leading_axes_broadcast():
    params, rng = layer(), np.random.default_rng(1)
    X = jnp.asarray(rng.normal(size=(2, 1, 6, 5)), jnp.float32)
    x_T = jnp.asarray(rng.normal(size=(1, 3, 5)), jnp.float32)
    with jax.numpy_rank_promotion("allow"):
        logits, attention = forward(params, X, x_T)
    assert logits.shape == (2, 3, 3) and attention.shape == (2, 3, 6)
    one, _ = forward(params, X[1, 0], x_T[0, 2])
    np.testing.assert_allclose(logits[1, 2], one, atol=1e-6)


@given(st.integers(0, 2**16), st.integers(1, 9))
def test_attention_is_a_distribution_and_permutes_with_the_context(seed, T):
    rng = np.random.default_rng(seed)
    X, x_T = jnp.asarray(rng.normal(size=(T, 5)), jnp.float32), jnp.asarray(rng.normal(size=5), jnp.float32)
    mask = jnp.asarray(rng.random(T) < 0.5)
    logits, attention = forward(layer(), X, x_T, mask=mask)
    order = rng.permutation(T)
    permuted_logits, permuted = forward(layer(), X[order], x_T, mask=mask[order])
    assert float(attention.sum()) == pytest.approx(1.0 if mask.any() else 0.0, abs=1e-6)
    assert (np.asarray(attention) >= 0).all()
    np.testing.assert_allclose(permuted, attention[order], atol=1e-6)
    np.testing.assert_allclose(permuted_logits, logits, atol=1e-5)


def test_nothing_to_attend_to_is_zero_and_has_finite_gradients():
    X, x_T = jnp.ones((2, 4, 5)), jnp.ones((2, 5))
    mask = jnp.array([[True] * 4, [False] * 4])
    logits, attention = forward(layer(), X, x_T, mask=mask)
    assert not np.asarray(attention[1]).any() and not np.asarray(logits[1]).any()
    gradient = jax.grad(lambda p: forward(p, X, x_T, mask=mask)[0].sum())(layer())
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_a_masked_token_has_exactly_no_influence():
    X, x_T = jax.random.normal(jax.random.key(0), (4, 5)), jnp.ones(5)
    mask = jnp.array([True, True, False, True])
    influence = jax.jacobian(lambda X: forward(layer(), X, x_T, mask=mask)[0])(X)
    assert not np.asarray(influence[:, 2]).any() and np.asarray(influence[:, 1]).any()


@pytest.mark.parametrize("form", list(Parameterization))
def test_parameterizations_of_one_function_agree(form, x64):
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), layer(form))
    X, x_T = jax.random.normal(jax.random.key(2), (3, 6, 5)), jax.random.normal(jax.random.key(3), (3, 5))
    assert max_difference(forward(params, X, x_T), forward(collapse(params), X, x_T)) < 1e-13


def test_cross_entropy_is_the_mean_negative_log_likelihood():
    logits = np.random.default_rng(3).normal(size=(2, 5, 4)) * 30
    y = np.random.default_rng(4).integers(0, 4, (2, 5))
    shifted = logits - logits.max(-1, keepdims=True)
    likelihood = np.exp(shifted) / np.exp(shifted).sum(-1, keepdims=True)
    expected = -np.mean([np.log(likelihood[i, j, y[i, j]]) for i in range(2) for j in range(5)])
    assert float(cross_entropy(jnp.asarray(logits, jnp.float32), jnp.asarray(y))) == pytest.approx(expected, rel=1e-5)
    assert float(cross_entropy(jnp.array([1e4, 0.0]), jnp.array(1))) == 1e4

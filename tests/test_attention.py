"""The layer against plain loops, its masks, its broadcasting, and the loss."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import max_difference, quick
from qkdyn.attention import cross_entropy, forward
from qkdyn.circuits import Parameterization, collapse, init_params

NORMAL = jax.nn.initializers.normal(0.5)
run = quick(forward)


@functools.cache
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
    logits, attention = run(layer(form), X, x_T, mask=mask, scale=scale)
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
        logits, attention = run(params, X, x_T)
    assert logits.shape == (2, 3, 3) and attention.shape == (2, 3, 6)
    one, _ = run(params, X[1, 0], x_T[0, 2])
    np.testing.assert_allclose(logits[1, 2], one, atol=1e-6)


@given(st.integers(0, 2**16), st.integers(1, 9))
def test_attention_is_a_distribution_and_permutes_with_the_context(seed, T):
    rng = np.random.default_rng(seed)
    X, x_T = rng.normal(size=(T, 5)).astype("f4"), rng.normal(size=5).astype("f4")
    mask = rng.random(T) < 0.5
    logits, attention = run(layer(), X, x_T, mask=mask)
    order = rng.permutation(T)
    permuted_logits, permuted = run(layer(), X[order], x_T, mask=mask[order])
    assert float(attention.sum()) == pytest.approx(1.0 if mask.any() else 0.0, abs=1e-6)
    assert (np.asarray(attention) >= 0).all()
    np.testing.assert_allclose(permuted, attention[order], atol=1e-6)
    np.testing.assert_allclose(permuted_logits, logits, atol=1e-5)


def test_nothing_to_attend_to_is_zero_and_has_finite_gradients():
    X, x_T = np.ones((2, 4, 5), "f4"), np.ones((2, 5), "f4")
    mask = np.array([[True] * 4, [False] * 4])
    logits, attention = run(layer(), X, x_T, mask=mask)
    assert not attention[1].any() and not logits[1].any()
    gradient = quick(jax.grad(lambda p, *of: forward(p, *of[:2], mask=of[2])[0].sum()))(layer(), X, x_T, mask)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_a_masked_token_has_exactly_no_influence():
    X, x_T = np.random.default_rng(0).normal(size=(4, 5)).astype("f4"), np.ones(5, "f4")
    mask = np.array([True, True, False, True])
    influence = quick(jax.jacobian(lambda X, x_T, mask, p: forward(p, X, x_T, mask=mask)[0]))(X, x_T, mask, layer())
    assert not influence[:, 2].any() and influence[:, 1].any()


@pytest.mark.parametrize("form", list(Parameterization))
def test_parameterizations_of_one_function_agree(form, x64):
    params, rng = jax.tree.map(np.float64, layer(form)), np.random.default_rng(2)
    X, x_T = rng.normal(size=(3, 6, 5)), rng.normal(size=(3, 5))
    both = quick(lambda params, *of: (forward(params, *of), forward(collapse(params), *of)))
    assert max_difference(*both(params, X, x_T)) < 1e-13


def test_cross_entropy_is_the_mean_negative_log_likelihood():
    logits = np.random.default_rng(3).normal(size=(2, 5, 4)) * 30
    y = np.random.default_rng(4).integers(0, 4, (2, 5))
    shifted = logits - logits.max(-1, keepdims=True)
    likelihood = np.exp(shifted) / np.exp(shifted).sum(-1, keepdims=True)
    expected = -np.mean([np.log(likelihood[i, j, y[i, j]]) for i in range(2) for j in range(5)])
    assert float(cross_entropy(jnp.asarray(logits, jnp.float32), jnp.asarray(y))) == pytest.approx(expected, rel=1e-5)
    assert float(cross_entropy(jnp.array([1e4, 0.0]), jnp.array(1))) == 1e4

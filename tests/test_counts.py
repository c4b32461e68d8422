"""The token-count form is the dense form on the sequence written out, in value and in gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import max_difference, quick
from qkdyn import attention, counts
from qkdyn.circuits import Parameterization, init_params

NORMAL = jax.nn.initializers.normal(0.5)
V, D, M, MOST = 6, 5, 4, 3


def case(seed, form):
    """Random parameters, embedding, counts of two sequences and queries."""
    rng = np.random.default_rng(seed)
    params = init_params(jax.random.key(seed), form, d=D, M=M, qk=NORMAL, ov=NORMAL)
    E = jnp.asarray(rng.normal(size=(V, D)), jnp.float32)
    n = rng.integers(0, MOST + 1, size=(2, V)) * (rng.random((2, V)) < 0.6)
    return params, E, n, jnp.asarray(rng.normal(size=(2, D)), jnp.float32)


def dense(params, E, n, x_T, scale):
    """`attention.forward` with every token `MOST` times, as many of them unmasked as are counted."""
    X = jnp.repeat(E, MOST, axis=0)
    mask = (np.arange(MOST)[None, None, :] < n[..., None]).reshape(len(n), V * MOST)
    logits, weights = attention.forward(params, X, x_T, mask=jnp.asarray(mask), scale=scale)
    return logits, weights.reshape(len(n), V, MOST).sum(-1)


@quick
def both(params, E, n, x_T, scale):
    """In tokens counted, and written out."""
    return counts.forward(params, E, jnp.asarray(n, jnp.float32), x_T, scale=scale), dense(params, E, n, x_T, scale)


@pytest.mark.parametrize("form", list(Parameterization))
@given(st.integers(0, 2**16), st.sampled_from([1.0, 0.3, 30.0]))
def test_counts_are_the_sequence_written_out(form, seed, scale):
    params, E, n, x_T = case(seed, form)
    counted, written_out = both(params, E, n, x_T, scale)
    assert max_difference(counted, written_out) < 2e-5 * max(1.0, scale)
    assert not counted[1][n == 0].any()
    np.testing.assert_allclose(counted[1].sum(-1), n.any(-1), atol=1e-6)


@pytest.mark.parametrize("form", list(Parameterization))
def test_gradients_agree_and_nothing_to_attend_to_has_none(form):
    params, E, n, x_T = case(3, form)
    n[1] = 0

    def loss(params, counted):
        form = counts.forward(params, E, jnp.asarray(n, jnp.float32), x_T) if counted else dense(params, E, n, x_T, 1.0)
        return (form[0] ** 2).sum() + form[1][:, 0].sum()

    found, expected = (quick(jax.grad(loss), static_argnums=1)(params, counted) for counted in (True, False))
    assert max_difference(found, expected) < 1e-5 * max(np.abs(x).max() for x in jax.tree.leaves(expected))
    (logits, weights), _ = both(params, E, n, x_T, 1.0)
    assert not logits[1].any() and not weights[1].any()

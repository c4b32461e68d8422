"""The loss at labelled positions against the whole head, and label smoothing by its definition."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_reference as reference
from qkdyn.errors import InputError
from qkdyn.train.language import language_loss
from qkdyn.transformer import TransformerConfig, forward
from qkdyn.transformer_config import is_shape, shapes

SIZES = {
    "vocabulary": 6,
    "n_ctx": 7,
    "n_outputs": 6,
    "n_layers": 2,
    "d_model": 3,
    "n_heads": 2,
    "d_head": 2,
    "d_mlp": 4,
}
TIED = TransformerConfig(**SIZES, layer_norm="pre", mask_padding=False, tied=True, activation="gelu")
OWN = TransformerConfig(**SIZES, biases=False)
TOKENS = np.array([[1, 4, 2, 0, 0], [3, 1, 5, 2, 2], [5, 0, 0, 0, 0]], np.int32)
LENGTH = np.array([3, 5, 1], np.int32)
# Post 1 has labels at two positions, post 0 at one, post 2 at none; three of the places for labels are free.
QUERIES = np.array([[2, 2], [3, 4], [0, 0]], np.int32)
ROW = np.array([0, 2, 3, 0, 0, 0], np.int32)
LABEL = np.array([4, 2, 5, 0, 0, 0], np.int32)
WEIGHT = np.array([1, 1, 1, 0, 0, 0], np.float32)
LABELLED = [(0, np.array([[2]]), np.array([[4]])), (1, np.array([[3, 4]]), np.array([[2, 5]]))]


# Compiled quickly, not to be fast.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
quick = functools.partial(jax.jit, static_argnums=1, compiler_options=QUICK)


def drawn(config):
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda shape: rng.normal(0.2, 0.6, shape), shapes(config), is_leaf=is_shape)


@quick
def ours(params, config, smoothing, weight):
    """The loss and its gradient."""
    loss = lambda p: language_loss(p, config, TOKENS, LENGTH, QUERIES, ROW, LABEL, weight, smoothing=smoothing)  # noqa: E731
    return jax.value_and_grad(loss)(params)


@quick
def full_head(params, config, smoothing):
    """The same with logits everywhere, against a distribution over all tokens written out."""
    target = np.zeros((3, 5, 6))
    for post, positions, labels in LABELLED:
        target[post, positions, labels] = 1
    asked = target.sum(-1)

    def loss(params):
        logits = forward(params, config, TOKENS, LENGTH, every=True).logits
        goal = (1 - smoothing) * target + smoothing / 6
        losses = -(goal * jax.nn.log_softmax(logits)).sum(-1)
        return jnp.where(asked > 0, losses, 0).sum() / 3

    return jax.value_and_grad(loss)(params)


def test_the_loss_of_the_whole_head_and_its_gradient(x64):
    params = drawn(TIED)
    for smoothing in (0.1, 0.0):
        loss, gradient = jax.device_get(ours(params, TIED, smoothing, WEIGHT))
        wanted, wanted_gradient = jax.device_get(full_head(params, TIED, smoothing))
        assert loss == pytest.approx(wanted, rel=1e-12)
        for got, right in zip(jax.tree.leaves(gradient), jax.tree.leaves(wanted_gradient), strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-9, atol=1e-14)
    # No question in the batch.
    loss, gradient = jax.device_get(ours(params, TIED, 0.1, 0 * WEIGHT))
    assert loss == 0 and not any(leaf.any() for leaf in jax.tree.leaves(gradient))


def test_a_head_of_its_own_without_biases(x64):
    params = drawn(OWN)
    loss = quick(language_loss)(params, OWN, TOKENS, LENGTH, QUERIES, ROW, LABEL, WEIGHT)
    wanted = [reference.loss(params, OWN, TOKENS[b : b + 1], LENGTH[b : b + 1], q, y) for b, q, y in LABELLED]
    assert loss == pytest.approx((wanted[0] + 2 * wanted[1]) / 3, rel=1e-12)


def test_bfloat16_is_the_same_roughly_and_stays_bfloat16(x64):
    """The loss is in float32 and near, gradients are near, and no product of the model is in float32."""
    params = jax.tree.map(lambda leaf: leaf / 3, drawn(TIED))
    half = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), params)
    (loss, found), (wanted, right) = (ours(p, TIED, 0.1, WEIGHT) for p in (half, params))
    assert loss.dtype == jnp.float32 and loss == pytest.approx(float(wanted), rel=0.02)
    flat = lambda tree: np.concatenate([np.float32(leaf).ravel() for leaf in jax.tree.leaves(tree)])  # noqa: E731
    assert np.linalg.norm(flat(found) - flat(right)) < 0.05 * np.linalg.norm(flat(right))
    dropped = dataclasses.replace(TIED, dropout=0.1)
    slope = jax.grad(lambda p, key: language_loss(p, dropped, TOKENS, LENGTH, QUERIES, ROW, LABEL, WEIGHT, key=key))
    products = re.findall(r"(\w+)\[[^]]*\] = dot_general", str(jax.make_jaxpr(slope)(half, jax.random.key(0))))
    assert set(products) == {"bf16"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": np.array([4, 6, 5, 0, 0, 0])}, r"label\[1\] must be an integer from 0 to 5, got 6"),
        ({"label": np.array([4, 2, -1, 0, 0, 0])}, r"label\[2\] must be an integer from 0 to 5, got -1"),
        ({"row": np.array([6, 2, 3, 0, 0, 0])}, r"row\[0\] must be an integer from 0 to 5, got 6"),
        ({"row": np.array([0, 2, -3, 0, 0, 0])}, r"row\[2\] must be an integer from 0 to 5, got -3"),
        ({"smoothing": 2.0}, "smoothing must be at most 1, got 2.0"),
        ({"smoothing": -0.1}, "smoothing must be a finite number >= 0, got -0.1"),
    ],
)
def test_labels_that_are_not_there_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        language_loss({}, OWN, TOKENS, LENGTH, QUERIES, **({"row": ROW, "label": LABEL, "weight": WEIGHT} | change))

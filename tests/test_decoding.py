"""Decoding with a cache against decoding without: the whole model on the whole text for every token."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from helpers import compilations
from qkdyn.decoding import decode
from qkdyn.errors import InputError
from qkdyn.metrics.rollout import rollout
from qkdyn.transformer import TransformerConfig, forward
from qkdyn.transformer_config import is_shape, shapes

CONFIG = TransformerConfig(
    vocabulary=7,
    n_ctx=14,
    n_outputs=7,
    n_layers=2,
    d_model=6,
    n_heads=2,
    d_head=3,
    d_mlp=8,
    activation="gelu",
    layer_norm="pre",
    mask_padding=False,
    tied=True,
)
# All that the other experiments have otherwise.
CHAIN = dataclasses.replace(
    CONFIG,
    n_layers=1,
    d_mlp=None,
    layer_norm="none",
    residual=False,
    mask_padding=True,
    positions=False,
    biases=False,
    tied=False,
)
TOKENS = np.array([[1, 4, 2, 0, 0], [3, 1, 5, 2, 2], [5, 0, 0, 0, 0], [6, 6, 1, 1, 0]], np.int32)
LENGTH = np.array([3, 5, 1, 4], np.int32)
MOST = 10


def drawn(config, seed):
    """Parameters all away from zero; the head's bias small, so that there is more than one likeliest token."""
    rng = np.random.default_rng(seed)
    params = jax.tree.map(lambda shape: rng.normal(0, 0.8, shape).astype(np.float32), shapes(config), is_leaf=is_shape)
    if config.biases:
        params["head"]["b_U"] *= 0.1
        params["rest"]["b_f"] *= 0.1
    return params


# Compiled quickly, not to be fast.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@functools.partial(jax.jit, static_argnums=1, compiler_options=QUICK)
def whole(params, config, tokens, length):
    """Logits and attention at every position."""
    return forward(params, config, tokens, length, every=True)


def without_cache(params, config, end, residual):
    """For each prompt: its tokens with the end, their probabilities, the rows of attention and rollout that chose them."""
    answers = [[] for _ in LENGTH]
    text = np.zeros((len(LENGTH), TOKENS.shape[1] + MOST), np.int32)
    text[:, : TOKENS.shape[1]] = np.where(np.arange(TOKENS.shape[1]) < LENGTH[:, None], TOKENS, 0)
    for step in range(MOST):
        # One width for all: what follows a position says nothing to it.
        out = jax.device_get(whole(params, config, text[:, : config.n_ctx], LENGTH + step))
        for b, answer in enumerate(answers):
            if answer and answer[-1][0] == end:
                continue
            at = LENGTH[b] + step - 1
            p = np.exp(np.float64(out.logits[b, at]))
            maps = [np.float64(layer[b, :, : at + 1, : at + 1]) for layer in out.attention]
            maps = [layer / layer.sum(-1, keepdims=True) for layer in maps]
            rows = np.zeros((len(maps), text.shape[1]))
            rows[:, : at + 1] = [layer.mean(0)[-1] for layer in maps]
            rolled = np.pad(rollout(maps, residual)[-1], (0, text.shape[1] - at - 1))
            token = int(p.argmax())
            answer.append((token, p.max() / p.sum(), rows, rolled))
            text[b, at + 1] = token
    return answers


@pytest.mark.parametrize(("config", "seed", "end", "residual"), [(CONFIG, 35, 6, 0.5), (CHAIN, 3, 4, None)])
def test_token_for_token_as_without_cache(config, seed, end, residual):
    params = drawn(config, seed)
    wanted = without_cache(params, config, end, residual or 1.0)
    got = jax.device_get(decode(params, config, TOKENS, LENGTH, most=MOST, end=end, residual=residual))
    for b, answer in enumerate(wanted):
        tokens, probability, rows, rolled = map(np.array, zip(*answer, strict=True))
        n = len(tokens)
        assert got.tokens[b].tolist() == tokens.tolist() + [end] * (MOST - n)
        assert got.steps[b] == n and got.count[b] == n - (tokens[-1] == end)
        np.testing.assert_allclose(got.probability[b, :n], probability, rtol=2e-4)
        if residual:
            np.testing.assert_allclose(got.rows[b, :n], rows, atol=2e-5)
            np.testing.assert_allclose(got.rollout[b, :n], rolled, atol=2e-5)
        for part in (got.probability, got.rows, got.rollout)[: 3 if residual else 1]:
            assert not part[b, n:].any()
    # Prompts that end, early and late, and prompts that do not; different words.
    assert min(got.steps) < MOST == max(got.steps) and len(np.unique(got.tokens)) > 2
    assert (got.rows is None) == (residual is None)


def test_prompts_do_not_touch_each_other_nor_pads():
    params = drawn(CONFIG, 35)
    first = jax.device_get(decode(params, CONFIG, TOKENS, LENGTH, most=MOST, end=6, residual=0.5))
    other = np.where(np.arange(5) < LENGTH[:, None], TOKENS, 4)[::-1].copy()
    with compilations() as compiled:
        again = jax.device_get(decode(params, CONFIG, other, LENGTH[::-1].copy(), most=MOST, end=6, residual=0.5))
        decode(drawn(CONFIG, 36), CONFIG, TOKENS, LENGTH, most=MOST, end=6, residual=0.5)
    assert not compiled
    np.testing.assert_array_equal(first.tokens, again.tokens[::-1])
    np.testing.assert_allclose(first.rollout, again.rollout[::-1], atol=1e-6)


def test_what_cannot_be_decoded_is_refused(unchecked):
    params = drawn(CONFIG, 35)
    call = functools.partial(decode, params, CONFIG, TOKENS, LENGTH)
    for change, message in (
        ({"most": 11}, "most must be at most 10 after a prompt of 5 tokens, got 11; cut prompts"),
        ({"most": 0}, "most must be an integer >= 1"),
        ({"end": 7}, "end must be a token, from 0 to 6, got 7"),
        ({"residual": 1.5}, r"residual must be a share in \[0, 1\], got 1.5"),
    ):
        with pytest.raises(InputError, match=message):
            call(**({"most": 3, "end": 2} | change))
    with pytest.raises(InputError, match="causal must be True for a model that writes, got False"):
        decode(params, dataclasses.replace(CONFIG, causal=False), TOKENS, LENGTH, most=3, end=2)
    with pytest.raises(InputError, match="tokens.* must be an integer from 0 to 6"):
        decode(params, CONFIG, TOKENS + 2, LENGTH, most=3, end=2)

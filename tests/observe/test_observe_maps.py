"""Measures of attention maps inside jit, against loops over single queries and against `qkdyn.metrics`."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import quick
from qkdyn import observe
from qkdyn.errors import InputError
from qkdyn.metrics import attention as of_tokens
from qkdyn.metrics import sharpness

BATCH, HEADS, QUERIES, KEYS = SHAPE = (2, 3, 2, 4)


@pytest.fixture(scope="module")
def measured():
    """One program for all examples: measures by head, and by query."""
    return quick(
        lambda maps, mask, relevant, queries: (
            observe.measure({"a": maps}, mask=mask, relevant=relevant, queries=queries, k=(1, 3))["a"],
            observe.row_measures(maps, mask=mask, relevant=relevant, k=(1, 3)),
        )
    )


def by_hand(row, allowed, relevant):
    """The measures of one query."""
    if not allowed.any():
        return {"entropy": 0, "entropy_share": 1, "effective_tokens": 0, "top_1_mass": 0, "top_3_mass": 0} | {
            "relevant_mass": 0
        }
    entropy = -sum(a * math.log(a) for a in row if a > 0)
    count = int(allowed.sum())
    return {
        "entropy": entropy,
        "entropy_share": entropy / math.log(count) if count > 1 else 1,
        "effective_tokens": math.exp(entropy),
        "top_1_mass": max(row),
        "top_3_mass": sum(sorted(row)[-3:]),
        "relevant_mass": sum(a for a, is_relevant in zip(row, relevant, strict=True) if is_relevant),
    }


def softmax_over(score, mask):
    weight = np.exp(
        score - score.max(-1, keepdims=True, initial=-1e9, where=mask), where=mask, out=np.zeros(score.shape)
    )
    return (weight / np.where(mask.any(-1, keepdims=True), weight.sum(-1, keepdims=True), 1)).astype(np.float32)


@given(st.integers(0, 2**32 - 1))
def test_every_query_and_every_head_by_hand(measured, seed):
    rng = np.random.default_rng(seed)
    # Some batches without any key, some masks that hide no key; scores so far apart that some attention is 0.
    mask = rng.random((BATCH, 1, QUERIES, KEYS)) < rng.choice([0.2, 0.6, 1])
    maps = softmax_over(rng.normal(size=SHAPE) * rng.choice([1, 100]), np.broadcast_to(mask, SHAPE))
    relevant, queries = rng.random((BATCH, 1, 1, KEYS)) < 0.5, rng.random((BATCH, 1, QUERIES)) < 0.8
    heads, rows = measured(maps, mask, relevant, queries)
    expected = {name: [[] for _ in range(HEADS)] for name in rows}
    for b, h, q in np.ndindex(BATCH, HEADS, QUERIES):
        hand = by_hand(maps[b, h, q].astype(float), mask[b, 0, q], relevant[b, 0, 0])
        assert rows.keys() == hand.keys()
        for name, value in hand.items():
            assert rows[name][b, h, q] == pytest.approx(value, abs=2e-6)
            if mask[b, 0, q].any() and queries[b, 0, q]:
                expected[name][h].append(value)
    for name, lists in expected.items():
        mean = [np.mean(values) if values else np.nan for values in lists]
        np.testing.assert_allclose(heads[name], mean, atol=2e-6)


def test_the_same_as_the_checked_measures():
    rng = np.random.default_rng(1)
    mask = np.tril(np.ones((6, 6), bool))[None]
    everywhere, relevant = np.broadcast_to(mask, (5, 6, 6)), rng.random(6)
    maps = softmax_over(2 * rng.normal(size=(5, 6, 6)), everywhere)
    rows = quick(lambda maps: observe.row_measures(maps, mask=mask, relevant=relevant, k=2))(maps)
    known = {
        "entropy": sharpness.attention_entropy(maps),
        "entropy_share": sharpness.entropy_share(maps, everywhere),
        "effective_tokens": sharpness.effective_tokens(maps),
        "top_2_mass": sharpness.top_k_mass(maps, 2),
        "relevant_mass": of_tokens.attention_mass(maps, np.broadcast_to(relevant, maps.shape)),
    }
    assert rows.keys() == known.keys()
    for name, value in known.items():
        np.testing.assert_allclose(rows[name], value, atol=3e-6, err_msg=name)
        assert rows[name].dtype == np.float32


def test_uniform_attention_to_n_keys_is_that_to_n_tokens(measured):
    mask = (np.arange(KEYS) < np.array([[1, 2], [3, 4]])[..., None])[:, None]
    maps = np.broadcast_to(mask / mask.sum(-1, keepdims=True), SHAPE).astype(np.float32)
    heads, rows = measured(maps, mask, np.ones((BATCH, 1, 1, KEYS), bool), np.ones((BATCH, 1, QUERIES), bool))
    np.testing.assert_allclose(rows["effective_tokens"][:, 0], [[1, 2], [3, 4]], rtol=1e-6)
    np.testing.assert_allclose(rows["entropy_share"], 1, rtol=1e-6)
    # The mean over queries of exp(entropy), which is not exp of the mean.
    np.testing.assert_allclose(heads["effective_tokens"], 2.5, rtol=1e-6)


def test_axes_of_heads_and_maps_of_several_layers():
    maps = softmax_over(np.random.default_rng(2).normal(size=SHAPE), np.ones(SHAPE, bool))
    # One mask for each layer.
    masks = {"layer_0": np.ones(KEYS, bool), "layer_1": np.arange(KEYS) < KEYS}

    def of(maps):
        several = observe.measure([maps, maps[:, :2]], mask=masks)
        first = observe.measure({"a": maps.swapaxes(0, 1)}, head_axis=0)["a"]
        return several["layer_0"], several["layer_1"], first, observe.measure(maps, head_axis=None)["layer_0"]

    entropy = sharpness.attention_entropy(maps)
    heads = entropy.mean((0, 2))
    for found, expected in zip(quick(of)(maps), (heads, heads[:2], heads, [entropy.mean()]), strict=True):
        np.testing.assert_allclose(found["entropy"], expected, rtol=1e-5)


def test_rows_that_do_not_sum_to_one_are_nan_inside_jit_and_alone(measured):
    maps, every = np.full(SHAPE, 0.25, np.float32), np.ones((BATCH, 1, QUERIES, KEYS), bool)
    bad = np.zeros(SHAPE[:-1], bool)
    bad[1, 2, 0] = True
    queries = np.ones((BATCH, 1, QUERIES), bool)
    for wrong in (maps * np.float32(1.001), maps * np.nan):
        given = np.where(bad[..., None], wrong, maps)
        heads, rows = measured(given, every, every[:, :, :1], queries)
        for value in rows.values():
            np.testing.assert_array_equal(np.isnan(value), bad)
        np.testing.assert_allclose(heads["entropy"], [math.log(4), math.log(4), np.nan], rtol=1e-6)
        # Left out of what counts, it does no harm.
        heads, _ = measured(given, every, every[:, :, :1], queries & ~bad.any(1, keepdims=True))
        np.testing.assert_allclose(heads["entropy"], math.log(4), rtol=1e-6)


def test_what_is_no_share_is_nan_inside_jit(measured):
    maps, every = np.full(SHAPE, 0.25, np.float32), np.ones((BATCH, 1, QUERIES, KEYS), bool)
    maps[1, 2, 0] = [1.5, -0.5, 0, 0]
    _, rows = measured(maps, every, every[:, :, :1], every[..., 0])
    for value in rows.values():
        np.testing.assert_array_equal(np.isnan(value), np.arange(12).reshape(SHAPE[:3]) == 10)


def test_weights_of_relevance_above_one_are_nan_inside_jit():
    relevant = np.array([[[[1.0, 0, 0, 0]]], [[[2.0, 0, 0, 0]]]], np.float32)
    rows = quick(lambda relevant: observe.row_measures(GOOD, relevant=relevant))(relevant)
    np.testing.assert_array_equal(rows["relevant_mass"][0], 0.25)
    assert np.isnan(rows["relevant_mass"][1]).all() and np.isfinite(rows["entropy"]).all()


@pytest.mark.parametrize("dtype, missing", [(jnp.bfloat16, 0.1), (jnp.float16, 0.01)])
def test_the_rounding_of_the_type_is_allowed_and_no_more(dtype, missing):
    maps = softmax_over(np.random.default_rng(3).normal(size=(2, 50, 200)), np.ones((2, 50, 200), bool))
    assert np.abs(maps.astype(dtype).astype(np.float64).sum(-1) - 1).max() > 2e-5
    entropy = quick(lambda maps: observe.row_measures(maps)["entropy"])(maps.astype(dtype))
    np.testing.assert_allclose(entropy, sharpness.attention_entropy(maps), rtol=0.01)
    assert entropy.dtype == np.float32
    with pytest.raises(InputError, match="must be 1"):
        observe.row_measures(((1 - missing) * maps).astype(dtype))


GOOD = np.full((2, 3, 4, 4), 0.25, np.float32)
HALF = np.broadcast_to(np.arange(4) < 2, (2, 3, 4, 4))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: observe.measure(2 * GOOD), "from 0 to 1|must be 1"),
        (lambda: observe.measure({"a": GOOD / 2}), r"maps\['a'\]\.sum\(-1\).*\[0, 0, 0\] must be 1, got 0\.5.*softmax"),
        (lambda: observe.measure(GOOD, mask=HALF), "may be attended to.* must be 1, got 0.5"),
        (lambda: observe.row_measures(GOOD - 0.5), "from 0 to 1"),
        (lambda: observe.measure(GOOD.astype(int)), "floating array"),
        (lambda: observe.measure(GOOD[0, 0, 0]), "floating array"),
        (lambda: observe.measure({"a": "maps"}), "floating array"),
        (lambda: observe.measure([]), "maps must be attention maps"),
        (lambda: observe.measure(GOOD, mask=np.ones((2, 4), bool)), r"shape of mask.*mask\[:, None, None, :\]"),
        (lambda: observe.measure(GOOD, mask=np.ones((2, 2, 4, 4), bool)), "shape of mask"),
        (lambda: observe.measure(GOOD, mask=np.ones(4)), "type of mask must be bool"),
        (lambda: jax.jit(observe.measure)(GOOD, mask=np.ones(4)), "type of mask must be bool"),
        (lambda: observe.measure(GOOD, relevant=np.full(4, 2.0)), r"relevant\[0\] must be from 0 to 1"),
        (lambda: observe.measure(GOOD, relevant=np.ones((2, 4))), r"shape of relevant.*relevant\[:, None, None, :\]"),
        (lambda: observe.measure(GOOD, queries=np.ones((2, 4), bool)), r"shape of queries.*queries\[:, None, :\]"),
        (lambda: observe.measure(GOOD, mask={"layer_1": np.ones(4, bool)}), "layers of mask must be .*'layer_0'"),
        (lambda: observe.measure(GOOD, k=5), r"k\[0\] must be integers from 1 to 4"),
        (lambda: observe.measure(GOOD, k=0), "k must be an integer >= 1"),
        (lambda: observe.measure(GOOD, k=1.0), "k must be an integer"),
        (lambda: observe.measure(GOOD, head_axis=-2), "head_axis must be an axis of"),
        (lambda: observe.measure(GOOD[0, 0]), r"head_axis must be.*got -3; head_axis=None"),
    ],
)
def test_refused(call, message, unchecked):
    with pytest.raises(InputError, match=message):
        call()

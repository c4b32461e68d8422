"""The transformer against a reference by hand, Flax, and what must be exactly zero."""

import dataclasses
import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_reference as reference
from helpers import compilations, max_difference, quick, trees_equal
from qkdyn.attention import cross_entropy
from qkdyn.circuits import circuit_labels
from qkdyn.errors import InputError
from qkdyn.few_rows import attend_few
from qkdyn.transformer import TransformerConfig, forward, init_transformer, readout_positions
from qkdyn.transformer_config import is_shape, shapes

TINY = {"vocabulary": 6, "n_ctx": 7, "n_outputs": 3, "d_model": 3, "n_heads": 2, "d_head": 2, "d_mlp": 4}
CONFIGS = {
    "controlled": {},
    "as_coded": {"mask_padding": False, "readout": "first_pad"},
    "sva": {"residual": False, "d_mlp": None, "readout": "last"},
    "squad": {
        "n_layers": 2,
        "layer_norm": "pre",
        "activation": "gelu",
        "mask_padding": False,
        "tied": True,
        "n_outputs": 6,
    },
    "chain": {"n_layers": 2, "residual": False, "causal": False, "mask_padding": False, "biases": False},
    "bare": {"causal": False, "positions": False, "layer_norm": "pre", "d_mlp": None, "biases": False, "d_head": 5},
}
# The second post fills all slots.
TOKENS = np.array([[1, 4, 2, 0, 0], [3, 1, 5, 2, 2], [5, 0, 0, 0, 0]], np.int32)
LENGTH = np.array([3, 5, 1], np.int32)

run = quick(forward, static_argnames=("config", "every"))


def drawn(config, rng, mean=0.0):
    """Parameters of one size, all away from zero."""
    return jax.tree.map(lambda shape: rng.normal(mean, 0.6, shape), shapes(config), is_leaf=is_shape)


def case(name):
    """A configuration, parameters all away from zero, rows to read and their labels."""
    config = TransformerConfig(**(TINY | CONFIGS[name]))
    rng = np.random.default_rng(0)
    params = drawn(config, rng, 0.6)
    queries = np.asarray(readout_positions(LENGTH, config, 5))[:, None]
    if config.tied:
        queries = np.array([[1, 2], [3, 4], [0, 2]])
    return config, params, queries, rng.integers(0, config.n_outputs, queries.shape)


@functools.partial(quick, static_argnames="config")
def gradient(params, config, queries, labels):
    """What `forward` returns, and the gradient of the loss; the readout rows are its own choice unless there are two."""

    def loss(params):
        out = forward(params, config, TOKENS, LENGTH, queries=queries if config.tied else None)
        return cross_entropy(out.logits, labels), out

    found, out = jax.grad(loss, has_aux=True)(params)
    return out, found


def slope(params, direction, *given, step=1e-5):
    """Derivative of the reference's loss along `direction`, by central differences."""
    ends = [jax.tree.map(lambda leaf, d, h=h: leaf + h * d, params, direction) for h in (step, -step)]
    return np.subtract(*(reference.loss(end, *given) for end in ends)) / (2 * step)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_reference_by_hand(x64, name):
    config, params, queries, labels = case(name)
    out, found = gradient(params, config, queries, labels)
    logits, maps = reference.forward(params, config, TOKENS, LENGTH, queries)
    maps[-1] = np.take_along_axis(maps[-1], queries[:, None, :, None], 2)
    np.testing.assert_allclose(out.logits, logits, rtol=1e-10, atol=1e-12)
    for ours, wanted in zip(out.attention, maps, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-10, atol=1e-13)
    # The gradient along a direction in each group of parameters, and along one in all of them.
    groups = circuit_labels(params)
    rng = np.random.default_rng(1)
    for group in (*sorted(set(jax.tree.leaves(groups))), None):
        chosen = jax.tree.map(lambda own, group=group: group in (own, None), groups)
        direction = jax.tree.map(lambda leaf, own: rng.normal(size=leaf.shape) * own, params, chosen)
        along = sum(jax.tree.leaves(jax.tree.map(lambda g, d: float((g * d).sum()), found, direction)))
        wanted = slope(params, direction, config, TOKENS, LENGTH, queries, labels)
        assert along == pytest.approx(wanted, rel=1e-6, abs=1e-9), group


def test_one_step_of_every_parameter(x64):
    """Gradient descent's step on a tiny model, each entry by central differences of the reference."""
    config, params, queries, labels = case("controlled")
    _, found = gradient(params, config, queries, labels)
    leaves, structure = jax.tree.flatten(params)
    for number, (leaf, ours) in enumerate(zip(leaves, jax.tree.leaves(found), strict=True)):
        wanted = np.empty(leaf.shape)
        for index in np.ndindex(leaf.shape):
            unit = [np.zeros(other.shape) for other in leaves]
            unit[number][index] = 1
            wanted[index] = slope(params, jax.tree.unflatten(structure, unit), config, TOKENS, LENGTH, queries, labels)
        np.testing.assert_allclose(leaf - 0.1 * ours, leaf - 0.1 * wanted, rtol=0, atol=1e-9)


def test_flax_as_an_oracle():
    """Linen's attention, with its masks and its names."""
    config = TransformerConfig(**(TINY | CONFIGS["sva"] | {"d_model": 8, "positions": False, "d_head": 5}))
    params = jax.tree.map(np.float32, drawn(config, np.random.default_rng(1)))
    layer = params["layers"][0]
    names = {"query": ("qk", "Q"), "key": ("qk", "K"), "value": ("ov", "V")}
    flax = {
        n: {"kernel": layer[c]["W_" + s].transpose(1, 0, 2), "bias": layer[c]["b_" + s]} for n, (c, s) in names.items()
    }
    flax["out"] = {"kernel": layer["ov"]["W_O"], "bias": layer["ov"]["b_O"]}
    mask = np.tril(np.ones((5, 5), bool))[None, None] & (np.arange(5) < LENGTH[:, None, None, None])
    module = nn.MultiHeadDotProductAttention(num_heads=2, qkv_features=10, out_features=8)
    attended = quick(lambda x: module.apply({"params": flax}, x, mask=mask))(params["embed"]["W_E"][TOKENS])
    logits = np.asarray(attended) @ params["head"]["W_U"] + params["head"]["b_U"]
    every = run(params, config, TOKENS, LENGTH, every=True).logits
    np.testing.assert_allclose(every, logits, rtol=1e-4, atol=1e-5)
    last = run(params, config, TOKENS, LENGTH).logits[:, 0]
    np.testing.assert_allclose(last, logits[np.arange(3), LENGTH - 1], rtol=1e-4, atol=1e-5)


def wide(**changes):
    """A model on posts of 12 slots, large enough for few rows to be worth it."""
    sizes = {"vocabulary": 9, "n_ctx": 16, "n_outputs": 3, "d_model": 8, "n_heads": 2, "d_head": 4, "d_mlp": 8}
    config = TransformerConfig(**(sizes | changes))
    rng = np.random.default_rng(3)
    params = jax.tree.map(lambda leaf: np.float32(0.6 * leaf), drawn(config, rng))
    return config, params, rng.integers(1, 9, (3, 12)).astype(np.int32)


LONG = np.array([12, 5, 8], np.int32)


def test_few_rows_are_all_rows(x64):
    """The same logits, attention and gradients whether two rows are read of few or of all."""
    config, params, tokens = wide(n_layers=2, d_mlp=None)
    params = jax.tree.map(np.float64, params)
    queries = np.array([[11, 3], [4, 11], [0, 7]])

    def read(params, every):
        out = forward(params, config, tokens, LONG, **({"every": True} if every else {"queries": queries}))
        rows = np.arange(3)[:, None], queries
        logits = out.logits[rows] if every else out.logits
        attention = out.attention[-1].transpose(0, 2, 1, 3)[rows] if every else out.attention[-1].transpose(0, 2, 1, 3)
        return jnp.sum(jnp.sin(logits)) + jnp.sum(jnp.cos(3 * attention)), (logits, attention)

    read = quick(jax.value_and_grad(read, has_aux=True), static_argnums=1)
    few, every = read(params, False), read(params, True)
    assert max_difference(few, every) < 1e-11


def test_one_layer_has_no_square_of_attention():
    config, params, tokens = wide()
    text = str(jax.make_jaxpr(jax.grad(lambda p: forward(p, config, tokens, LONG).logits.sum()))(params))
    assert re.search(r"\[3,2,12\]", text)
    # Neither attention of all rows, nor keys and values of all tokens, nor an MLP at all rows.
    assert not re.search(r"\[3,2,12,12\]|\[3,2,12,4\]|\[36,8\]|\[3,12,2,4\]", text)


def test_rows_with_their_gradient_written_out():
    """attend_few against autodiff of the same formula, with masks, dropout and a gradient into the attention."""
    rng = np.random.default_rng(5)
    direction, x, d_mean = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((2, 3, 4), (2, 6, 4), (2, 3, 4)))
    d_attention = jnp.asarray(rng.normal(size=(2, 3, 6)), jnp.float32)
    allowed = (rng.random((2, 3, 6)) < 0.7) | (np.arange(6) == 0)
    kept = np.float32(2 * (rng.random((2, 3, 6)) < 0.5))

    def plain(direction, x, allowed, kept):
        score = jnp.einsum("brd,btd->brt", direction, x)
        attention = jax.nn.softmax(score if allowed is None else jnp.where(allowed, score, -1e9))
        return attention, jnp.einsum("brt,btd->brd", attention if kept is None else attention * kept, x)

    def pulled(function, *masks):
        out, pull = jax.vjp(lambda direction, x: function(direction, x, *masks), direction, x)
        return out, pull((d_attention, d_mean))

    for masks in ((allowed, kept), (None, None)):
        assert max_difference(*(quick(pulled, static_argnums=0)(f, *masks) for f in (attend_few, plain))) < 1e-5


def gradient_of_row(config, params, tokens, row):
    """Gradients of one row's logits in the token vectors, positions and all else."""
    embedded = params["embed"]["W_E"][tokens]
    rest = params | {"embed": {"W_pos": params["embed"]["W_pos"]}}

    def read(embedded, rest):
        out = forward(rest, config, tokens, LONG, embedded=embedded, queries=np.full((3, 1), row))
        return jnp.sum(jnp.sin(out.logits))

    return quick(jax.grad(read, (0, 1)))(embedded, rest)


def test_what_must_have_no_gradient():
    # Causal, padding attended to: nothing after the row read.
    config, params, tokens = wide(n_layers=2, d_mlp=None, mask_padding=False)
    embedded, rest = gradient_of_row(config, params, tokens, 6)
    assert np.all(embedded[:, 7:] == 0) and np.all(np.abs(embedded[:, :7]).max(-1) > 0)
    positions = rest["embed"]["W_pos"]
    assert np.all(positions[7:] == 0) and np.all(np.abs(positions[:7]).max(-1) > 0)
    # Bidirectional, padding masked: nothing in the padding, and no position that no post has.
    config, params, tokens = wide(n_layers=2, d_mlp=None, causal=False)
    embedded, rest = gradient_of_row(config, params, tokens, 4)
    real = np.arange(12)[None] < LONG[:, None]
    assert np.all(embedded[~real] == 0) and np.all(np.abs(embedded[real]).max(-1) > 0)
    assert np.all(rest["embed"]["W_pos"][12:] == 0)
    # A bias of the keys shifts all scores of a row: not up to rounding, exactly nothing.
    assert all(np.all(layer["qk"]["b_K"] == 0) for layer in rest["layers"])


def test_token_vectors_from_outside():
    """The same function, and W_E may be left out of the tree."""
    config, params, tokens = wide()
    outside = params | {"embed": {"W_pos": params["embed"]["W_pos"]}}
    found = run(outside, config, tokens, LONG, embedded=jnp.asarray(params["embed"]["W_E"][tokens]))
    assert max_difference(found, run(params, config, tokens, LONG)) < 1e-6


def test_arms_together_are_single_runs():
    config, _, tokens = wide(n_layers=2, d_mlp=None)
    params = [jax.tree.map(np.float32, drawn(config, np.random.default_rng(seed))) for seed in range(3)]

    def loss(params, embedded):
        return cross_entropy(
            forward(params, config, tokens, LONG, embedded=embedded).logits[:, 0], jnp.array([0, 2, 1])
        )

    runs = [(p, p["embed"]["W_E"][tokens]) for p in params]
    step = jax.value_and_grad(loss, (0, 1))
    together = quick(jax.vmap(step))(*jax.tree.map(lambda *leaves: np.stack(leaves), *runs))
    single = quick(step)
    for number, given in enumerate(runs):
        assert max_difference(jax.tree.map(lambda leaf, n=number: leaf[n], together), single(*given)) < 1e-5


def test_attention_is_a_distribution_over_what_is_allowed():
    config, params, tokens = wide(n_layers=2)
    for attention in run(params, config, tokens, LONG, every=True).attention:
        np.testing.assert_allclose(attention.sum(-1), 1, rtol=1e-6)
        later = np.arange(12)[None] > np.arange(12)[:, None]
        padding = np.arange(12)[None] >= LONG[:, None]
        hidden = later[None, None] | padding[:, None, None]
        assert np.all(np.asarray(attention)[np.broadcast_to(hidden, attention.shape)] == 0)


def test_readouts():
    for readout, wanted in (("query", [2, 4, 0]), ("last", [2, 4, 0]), ("first_pad", [3, 0, 1])):
        config = TransformerConfig(**(TINY | {"readout": readout}))
        assert readout_positions(LENGTH, config, 5).tolist() == wanted


@pytest.mark.parametrize(
    ("part", "silent"), [("attention", ("qk", "W_Q")), ("bias", ("ov", "W_V")), ("mlp", ("ov", "W_V"))]
)
def test_dropout_keeps_the_mean(part, silent):
    """Where the logits are linear in what is dropped, their mean over keys is what they are without.

    That is so for even attention without MLP; for attention to values that are their bias; for an MLP that reads one vector.
    """
    config, params, tokens = wide(d_mlp=8 if part == "mlp" else None, residual=False, dropout=0.4)
    layer = params["layers"][0]
    layer[silent[0]][silent[1]] *= 0
    layer["ov"]["b_V"] *= part != "mlp"
    many = quick(jax.vmap(lambda key: forward(params, config, tokens, LONG, key=key)))
    keys = jax.random.split(jax.random.key(4), 4000)
    logits, attention = many(keys)
    without = run(params, config, tokens, LONG)
    error = logits.std(0) / np.sqrt(len(keys))
    assert np.all(error > 0) and np.all(np.abs(logits.mean(0) - without.logits) < 4.5 * error)
    # Attention is returned as it was before anything was dropped; a key decides what is.
    np.testing.assert_allclose(attention[0].sum(-1), 1, rtol=1e-5)
    assert trees_equal(many(keys)[0], logits)
    if part == "attention":
        plain = dataclasses.replace(config, dropout=0.0)
        assert trees_equal(without, run(params, plain, tokens, LONG, key=keys[0]))


def test_other_values_compile_nothing():
    config, params, tokens = wide()
    step = quick(jax.grad(lambda p, tokens, length: forward(p, config, tokens, length).logits.sum()))
    step(params, tokens, LONG)
    other = jax.tree.map(lambda leaf: leaf + 1, params)
    with compilations() as found:
        step(other, tokens[::-1].copy(), LONG[::-1].copy())
    assert not found


def test_the_start():
    """Every leaf lies below the name of its part; matrices are as wide as asked, biases 0, gains 1."""
    config = TransformerConfig(vocabulary=50, n_ctx=20, n_outputs=3, layer_norm="pre", init_std=0.1)
    params = quick(init_transformer, static_argnums=1)(jax.random.key(0), config)
    labels = circuit_labels(params)
    assert labels["layers"][0] == {
        part: dict.fromkeys(params["layers"][0][part], part) for part in ("qk", "ov", "mlp", "rest")
    }
    assert all(set(labels[part].values()) == {part} for part in ("embed", "head", "rest"))
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = path[-1].key
        if name.startswith("W_"):
            assert abs(leaf.std() / 0.1 - 1) < 5 / np.sqrt(leaf.size)
        else:
            assert np.all(leaf == name.startswith("g_"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d_head": 0}, "d_head must be an integer >= 1, got 0"),
        ({"n_layers": 1.5}, "n_layers must be an integer"),
        ({"d_mlp": 0}, "d_mlp must be .* got 0; for a model without MLP write None"),
        ({"readout": "first"}, "readout must be one of query, last, first_pad, got 'first'"),
        ({"layer_norm": "post"}, "layer_norm must be one of none, pre"),
        ({"dropout": 1.0}, r"dropout must be a share in \[0, 1\)"),
        ({"causal": 1}, "causal must be True or False"),
        ({"tied": True}, "n_outputs must be the vocabulary, 6"),
    ],
)
def test_wrong_configurations(unchecked, change, message):
    with pytest.raises(InputError, match=message):
        TransformerConfig(**(TINY | change))


def zeros(**changes):
    return jax.tree.map(np.zeros, shapes(TransformerConfig(**(TINY | changes))), is_leaf=is_shape)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": np.zeros((3, 8), int)}, r"tokens must be of at most n_ctx = 7 slots, got \[3, 8\]; truncate"),
        ({"tokens": np.full((3, 5), 6)}, r"tokens\[0, 0\] must be an integer from 0 to 5, got 6"),
        ({"tokens": np.zeros((3, 5))}, "tokens must be an array of integers, got dtype"),
        ({"tokens": np.zeros(5, int)}, r"tokens must be of shape \(posts, slots\)"),
        ({"length": np.array([3, 0, 1])}, r"length\[1\] must be an integer from 1 to 5, got 0"),
        ({"length": np.array([3, 6, 1])}, r"length\[1\] must be an integer from 1 to 5, got 6"),
        ({"length": np.array([3, 1])}, r"length must be of shape \(3,\)"),
        ({"queries": np.array([[0], [5], [1]])}, r"queries\[1, 0\] must be an integer from 0 to 4, got 5"),
        ({"queries": np.array([0, 1, 1])}, r"queries must be of shape \(3, rows\)"),
        ({"queries": np.zeros((3, 1), int), "every": True}, "queries must be None where every position is read"),
        ({"embedded": jnp.zeros((3, 5, 4))}, r"embedded must be of shape \(3, 5, 3\)"),
        (
            {"params": zeros(d_head=3)},
            "W_Q.*init_transformer",
        ),
        ({"params": {}}, "params must be .*init_transformer"),
    ],
)
def test_wrong_input(unchecked, change, message):
    config = TransformerConfig(**TINY)
    given = {"params": zeros(), "tokens": TOKENS, "length": LENGTH} | change
    with pytest.raises(InputError, match=message):
        forward(given.pop("params"), config, given.pop("tokens"), given.pop("length"), **given)

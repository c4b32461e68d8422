"""Fused models step for step as unfused ones, decay, clipping, layers and heads, and the libraries' own modules."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers import max_difference, quick
from qkdyn.circuits import circuit_labels
from qkdyn.optim import circuit_optimizer
from qkdyn.slices import Slices, fused
from qkdyn.splitting import merge, part_labels, split

ONES = {"qk": 1.0, "ov": 1.0, "rest": 1.0}
FAST = {"qk": 7.0, "ov": 0.5, "rest": 1.0}
ADAMW = functools.partial(optax.adamw, weight_decay=0.1)
MOMENTUM = functools.partial(optax.sgd, momentum=0.9)
OPTIMIZERS = {
    "adamw": ADAMW,
    "momentum": MOMENTUM,
    "lion": optax.lion,
    "adafactor": functools.partial(optax.adafactor, min_dim_size_to_factor=4),
}


def drawn(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda s: rng.standard_normal(s).astype(np.float32), shapes, is_leaf=lambda n: isinstance(n, tuple)
    )


def drawn_like(tree):
    """Numbers where `tree` has shapes of arrays."""
    shapes, others = eqx.partition(tree, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    return eqx.combine(drawn(jax.tree.map(lambda leaf: leaf.shape, shapes)), others)


def gradients(shapes):
    """Of three steps, drawn beforehand."""
    return [drawn(shapes, seed=i + 1) for i in range(3)]


def steps(tx, params, given):
    """The parameters after each update; one program for all of them."""
    return stacked(
        quick(functools.partial(scanned, tx))(params, jax.tree.map(lambda *leaves: np.stack(leaves), *given))
    )


def scanned(tx, params, given):
    def step(state, gradient):
        params, inner = state
        updates, inner = tx.update(gradient, inner, params)
        params = optax.apply_updates(params, updates)
        return (params, inner), params

    return jax.lax.scan(step, (params, tx.init(params)), given)[1]


def stacked(trees):
    leaves, structure = jax.tree.flatten(trees)
    return [jax.tree.unflatten(structure, of) for of in zip(*leaves, strict=True)]


UNFUSED = {name: {"kernel": (4, 8), "bias": (8,)} for name in ("q_proj", "k_proj", "v_proj")}
MODEL = {"attn": {**UNFUSED, "o_proj": {"kernel": (8, 4), "bias": (4,)}}, "fc": {"kernel": (4, 5)}}
# One parameter of each circuit and the rest, where nothing depends on there being more.
SMALL = {"attn": {"qk": (4, 8), "ov": (8, 4)}, "fc": (4, 5)}


def fuse(params, layout):
    """The same parameters with q, k, v in one leaf."""
    attn = params["attn"]
    three = [attn[name] for name in ("q_proj", "k_proj", "v_proj")]
    made = {part: FUSE[layout]([leaves[part] for leaves in three]) for part in ("kernel", "bias")}
    return {"attn": {"qkv": made, "o_proj": attn["o_proj"]}, "fc": params["fc"]}


FUSE = {
    "in a row": lambda leaves: np.concatenate(leaves, -1),
    "axis of its own": lambda leaves: np.stack(leaves, -2),
    "head by head": lambda leaves: np.stack([x.reshape(*x.shape[:-1], 2, 4) for x in leaves], -2).reshape(
        *leaves[0].shape[:-1], 24
    ),
}
RULES = {"head by head": {"qkv": fused("qkv", axis=-1, heads=2)}}


@functools.cache
def unfused(name):
    """The unfused model, to which all layouts are compared."""
    tx = circuit_optimizer(OPTIMIZERS[name], multipliers=FAST, learning_rate=0.01)
    return steps(tx, drawn(MODEL), gradients(MODEL))


@pytest.mark.parametrize(
    "name,layout",
    [
        *((name, "in a row") for name in ("adamw", "lion", "adafactor")),
        ("adafactor", "axis of its own"),
        ("momentum", "head by head"),
    ],
)
def test_a_fused_model_equals_the_unfused_step_for_step(name, layout):
    labels = functools.partial(circuit_labels, rules=RULES.get(layout))
    params = fuse(drawn(MODEL), layout)
    tx = circuit_optimizer(OPTIMIZERS[name], multipliers=FAST, learning_rate=0.01, labels=labels)
    ours = steps(tx, params, [fuse(gradient, layout) for gradient in gradients(MODEL)])
    for mine, theirs in zip(ours, unfused(name), strict=True):
        assert max_difference(mine, fuse(theirs, layout)) < 1e-6
    assert max_difference(ours[-1], params) > 1e-3


@pytest.mark.parametrize("name", ["lion", "adafactor"])
def test_multipliers_of_one_are_the_plain_optimizer_on_any_model(name):
    params, base = drawn(SMALL), OPTIMIZERS[name]
    plain = optax.chain(optax.clip_by_global_norm(0.5), base(0.01))
    made = circuit_optimizer(base, multipliers=ONES, learning_rate=0.01, clip=0.5)
    ready = circuit_optimizer(base(0.01), multipliers=ONES, clip=0.5)
    found = [steps(tx, params, gradients(SMALL)) for tx in (plain, made, *([ready] if name == "lion" else []))]
    assert max(max_difference(found[0], other) for other in found[1:]) < 1e-6
    assert max_difference(found[0][-1], params) > 1e-3


def test_decay_is_adamw_s_of_each_circuit():
    rate, decay = optax.linear_schedule(0.01, 0.02, 3), {"qk": 0.3, "ov": 0.1}
    by_hand = {name: functools.partial(optax.adamw, weight_decay=decay.get(name, 0.0)) for name in FAST}

    @quick
    def run(params, given, decay):
        tx = circuit_optimizer(optax.adam, multipliers=FAST, learning_rate=rate, decay=decay)
        return scanned(tx, params, given)

    given = jax.tree.map(lambda *leaves: np.stack(leaves), *gradients(SMALL))
    ours, without = (stacked(run(drawn(SMALL), given, own)) for own in (decay, dict.fromkeys(decay, 0.0)))
    theirs = steps(circuit_optimizer(by_hand, multipliers=FAST, learning_rate=rate), drawn(SMALL), gradients(SMALL))
    assert max_difference(ours, theirs) < 1e-6
    assert max_difference(ours[-1]["attn"]["ov"], without[-1]["attn"]["ov"]) > 1e-4
    assert max_difference(ours[-1]["fc"], without[-1]["fc"]) == 0


def test_clipping_counts_what_is_trained_and_nothing_else():
    gradient = {
        "q": np.full(4, 3.0, np.float32),
        "k": np.zeros(4, np.float32),
        "v": np.full(4, 4.0, np.float32),
        "norm": np.full(9, 50.0, np.float32),
    }
    rates = {"qk": 1.0, "ov": 10.0}
    tx = circuit_optimizer(optax.sgd, multipliers=rates, clip=5.0, freeze=("rest",))
    updates = quick(lambda given: tx.update(given, tx.init(given), given)[0])(gradient)
    np.testing.assert_allclose(-updates["q"], np.full(4, 1.5), rtol=1e-6)  # the norm is 10
    np.testing.assert_allclose(-updates["v"], np.full(4, 20.0), rtol=1e-6)
    assert not np.any(updates["norm"])


def test_one_compilation_for_all_multipliers_clips_decays_layers_and_heads():
    params = drawn(MODEL)
    traces = []

    @quick
    def step(params, qk, clip, decay, layer, heads):
        traces.append(qk)
        tx = circuit_optimizer(
            optax.sgd,
            multipliers={**FAST, "qk": qk},
            clip=clip,
            decay={"ov": decay},
            layers={"qk": layer},
            heads={"ov": heads},
        )
        return tx.update(params, tx.init(params), params)[0]

    for i in (1.0, 2.0):
        updates = step(params, i, 1e9, i / 10, i * jnp.ones(1), i * jnp.ones(2))
        np.testing.assert_allclose(
            -updates["attn"]["q_proj"]["kernel"], i * i * params["attn"]["q_proj"]["kernel"], rtol=1e-6
        )
        wanted = i * (0.5 + 0.5 * i / 10) * params["attn"]["v_proj"]["kernel"]
        np.testing.assert_allclose(-updates["attn"]["v_proj"]["kernel"], wanted, rtol=1e-6)
    assert len(traces) == 1


def rates_of(params, **options):
    """By what each element's gradient of one is multiplied."""
    tx = circuit_optimizer(optax.sgd, multipliers=ONES, **options)
    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), params)
    return jax.tree.map(np.negative, quick(lambda ones: tx.update(ones, tx.init(ones))[0])(ones))


def test_layers_by_number_or_along_the_scanned_axis():
    shapes = dict.fromkeys(("q", "k", "v", "o"), (4, 4))
    listed = rates_of(
        drawn({"layers": [shapes] * 3, "emb": (4,)}), layers={"qk": [1.0, 2.0, 3.0], "ov": jnp.array([4.0, 5.0, 6.0])}
    )
    named = rates_of(drawn({f"Block_{2 * i}": {"attn_1": shapes} for i in range(3)}), layers={"qk": (1, 2, 3)})
    whole = {name: (3, *shape) for name, shape in shapes.items()}
    scanned = rates_of(drawn({"Stack_0": whole}), layers={"qk": [1.0, 2.0, 3.0], "ov": [4.0, 5.0, 6.0]})
    for i in range(3):
        for name, wanted in (("q", 1 + i), ("k", 1 + i), ("v", 4 + i), ("o", 4 + i)):
            assert np.all(listed["layers"][i][name] == wanted)
            assert np.all(named[f"Block_{2 * i}"]["attn_1"][name] == (wanted if name in "qk" else 1))
            assert np.all(scanned["Stack_0"][name][i] == wanted)
    assert np.all(listed["emb"] == 1)
    seeds = {name: (5, 3, *shape) for name, shape in shapes.items()}
    assert np.all(rates_of(drawn(seeds), layers={"qk": [1, 2, 3]}, layer_axis=1)["k"][:, 2] == 3)


LINEN = {
    "query": {"kernel": (4, 2, 3), "bias": (2, 3)},
    "key": {"kernel": (4, 2, 3)},
    "value": {"kernel": (4, 2, 3)},
    "out": {"kernel": (2, 3, 4), "bias": (4,)},
}
HEADS = {
    "linen": (LINEN, {"query/kernel": 1, "query/bias": 0, "key/kernel": 1, "value/kernel": 1, "out/kernel": 0}, {}),
    "flat": (
        {**UNFUSED, "o_proj": {"kernel": (8, 4), "bias": (4,)}, "q_norm": (4,)},
        dict.fromkeys([f"{n}_proj/{p}" for n in "qkv" for p in ("kernel", "bias")], -1) | {"o_proj/kernel": 0},
        {},
    ),
    "equinox": (
        {f"{n}_proj": {"weight": (8, 8)} for n in ("query", "key", "value", "output")},
        {f"{n}_proj/weight": 0 for n in ("query", "key", "value")} | {"output_proj/weight": 1},
        {},
    ),
    "paper": (
        {
            "qk": {"W_Q": (2, 5, 3), "W_K": (2, 5, 3), "b_Q": (2, 3)},
            "ov": {"W_V": (2, 5, 3), "W_O": (2, 3, 5), "b_O": (5,)},
        },
        dict.fromkeys(("qk/W_Q", "qk/W_K", "qk/b_Q", "ov/W_V", "ov/W_O"), 0),
        {},
    ),
    "told": (dict.fromkeys("qkvo", (8, 8)), {"q": 1, "k": 1, "v": 1, "o": 0}, {"^[qkv]$": 1, "^o$": 0}),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_of_unfused_parameters(name):
    shapes, axes, told = HEADS[name]
    found = rates_of(drawn(shapes), heads={"qk": [2.0, 5.0], "ov": [3.0, 7.0]}, head_axes=told)
    for path, leaf in jax.tree_util.tree_leaves_with_path(found):
        path = jax.tree_util.keystr(path, simple=True, separator="/")
        if path not in axes:
            assert np.all(leaf == 1)
            continue
        first, second = np.split(np.moveaxis(leaf, axes[path], 0), 2)
        qk = path.split("/")[0].lower()[0] in "qk" and "ov/" not in path
        assert np.all(first == (2 if qk else 3)) and np.all(second == (5 if qk else 7))


@pytest.mark.parametrize("layout", FUSE)
def test_heads_of_fused_parameters(layout):
    heads = {"qk": [2.0, 5.0], "ov": [3.0, 7.0]}
    wanted = fuse(rates_of(drawn(MODEL), heads=heads), layout)
    if layout == "axis of its own":
        heads = {"qk": [2.0, 5.0]}
        wanted = fuse(rates_of(drawn(MODEL), heads=heads), layout)
    labels = functools.partial(circuit_labels, rules=RULES.get(layout))
    found = rates_of(fuse(drawn(MODEL), layout), heads=heads, labels=labels)
    assert max_difference(found, wanted) == 0 and found["attn"]["qkv"]["kernel"].max() >= 5


def test_heads_and_layers_of_scanned_grouped_queries():
    shapes = {"q_proj": (3, 4, 8), "k_proj": (3, 4, 4), "v_proj": (3, 4, 4), "o_proj": (3, 8, 4)}
    values = np.arange(1.0, 13.0).reshape(3, 4)
    found = rates_of(drawn(shapes), heads={"qk": values, "ov": values[0]}, layers={"ov": [1.0, 2.0, 3.0]})
    np.testing.assert_allclose(found["q_proj"][:, 0], np.repeat(values, 2, 1))
    # Two query heads share a key: the mean of theirs.
    np.testing.assert_allclose(found["k_proj"][:, 1], np.repeat(values.reshape(3, 2, 2).mean(-1), 2, 1))
    np.testing.assert_allclose(found["v_proj"][:, 0], np.outer([1, 2, 3], [1.5, 1.5, 3.5, 3.5]))
    np.testing.assert_allclose(found["o_proj"][:, :, 0], np.outer([1, 2, 3], np.repeat(values[0], 2)))
    both = {"qkv": (3, 4, 16), "o_proj": (3, 8, 4)}
    one = rates_of(drawn(both), heads={"qk": values, "ov": values[0]}, layers={"ov": [1.0, 2.0, 3.0]})
    np.testing.assert_allclose(one["qkv"], np.concatenate([found[f"{n}_proj"] for n in "qkv"], -1))


class Fused(nnx.Module):
    def __init__(self, rngs):
        self.c_attn = nnx.Linear(4, 12, rngs=rngs)
        self.c_proj = nnx.Linear(4, 4, rngs=rngs)


class Model(nnx.Module):
    def __init__(self, rngs):
        self.attn = nnx.MultiHeadAttention(2, 4, 4, decode=False, rngs=rngs)
        self.fused = Fused(rngs)
        self.out = nnx.Linear(4, 2, rngs=rngs)


@pytest.mark.parametrize("labels", ["a function", "a tree"])
def test_nnx_optimizer_from_given_weights(labels):
    # Labels by a function, and as a tree of them, boxed as the parameters are.
    graph, shapes = nnx.split(nnx.eval_shape(lambda: Model(nnx.Rngs(0))), nnx.Param)
    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), shapes)
    given = {"labels": circuit_labels(shapes)} if labels == "a tree" else {}
    tx = circuit_optimizer(MOMENTUM, multipliers={"qk": 4.0, "ov": 2.0, "rest": 1.0}, learning_rate=0.1, **given)

    @quick
    def run(ones):
        model, gradient = nnx.merge(graph, ones), jax.tree.map(jnp.ones_like, ones)
        optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
        for _ in range(2):
            optimizer.update(model, gradient)
        return nnx.as_pure(nnx.state(model, nnx.Param))

    # Momentum: the second step is 1.9 times the first.
    moved = jax.tree.map(lambda leaf: (1 - leaf) / 0.29, run(ones))
    wanted = {"query": 4.0, "key": 4.0, "value": 2.0, "out": 2.0}
    for name, rate in wanted.items():
        np.testing.assert_allclose(moved["attn"][name]["kernel"], rate, rtol=1e-4)
    np.testing.assert_allclose(moved["fused"]["c_attn"]["bias"], np.repeat([4.0, 4.0, 2.0], 4), rtol=1e-4)
    np.testing.assert_allclose(moved["out"]["kernel"], 1.0, rtol=1e-4)


def test_equinox_with_fused_leaves_and_none():
    class Attention(eqx.Module):
        qkv: eqx.nn.Linear
        proj: eqx.nn.Linear
        heads: int = eqx.field(static=True)

    def made(key):
        return Attention(eqx.nn.Linear(4, 12, use_bias=False, key=key), eqx.nn.Linear(4, 4, key=key), 2)

    model = drawn_like(eqx.filter_eval_shape(made, jax.random.key(0)))
    params = eqx.filter(model, eqx.is_inexact_array)
    tx = circuit_optimizer(ADAMW, multipliers={"qk": 4.0, "ov": 1.0}, learning_rate=0.1)
    updates = quick(lambda some: tx.update(jax.tree.map(jnp.ones_like, some), tx.init(some), some)[0])(params)
    moved = jax.tree.map(lambda a, b: np.asarray(b + 0.1 * a * 0.1), params, updates)
    np.testing.assert_allclose(
        np.asarray(updates.qkv.weight)[:8] + 0.4 * 0.1 * np.asarray(model.qkv.weight)[:8], -0.4, rtol=1e-4
    )
    np.testing.assert_allclose(moved.qkv.weight[8:], -0.1, rtol=1e-4)


@settings(max_examples=6)
@example(sizes=[1, 1, 1], repeats=1, before=[2], after=[3])
@example(sizes=[2, 1], repeats=3, before=[2], after=[3])
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    repeats=st.integers(1, 3),
    before=st.lists(st.integers(1, 3), max_size=2),
    after=st.lists(st.integers(1, 3), max_size=2),
)
def test_splitting_loses_nothing_on_random_trees(sizes, repeats, before, after):
    stops = np.cumsum(sizes).tolist()
    parts = tuple((f"l{i}", stop - size, stop) for i, (size, stop) in enumerate(zip(sizes, stops, strict=True)))
    slices = Slices(-1 - len(after), parts, repeats)
    shape = (*before, slices.size, *after)
    leaf = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    labels, tree = {"a": [slices, "rest"]}, {"a": [leaf, np.ones(2)]}
    found = split(labels, tree)
    flat = found["a"][0]
    assert len(flat) == len(sizes) == len(part_labels(labels)["a"][0])
    axis = len(before)
    rows = np.moveaxis(leaf, axis, 0).reshape(repeats, stops[-1], -1)
    for part, (_, start, stop) in zip(flat, parts, strict=True):
        own = np.asarray(part)
        own = own[None] if own.ndim < leaf.ndim else np.moveaxis(own, axis, 0)
        np.testing.assert_array_equal(own.reshape(repeats, stop - start, -1), rows[:, start:stop])
    np.testing.assert_array_equal(merge(labels, found)["a"][0], leaf)


PARAMS = drawn({"attn": {"qkv": (4, 12), "proj": (4, 4)}, "mlp": {"w": (4, 4)}, "norm": (4,)})

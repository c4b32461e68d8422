"""Maps out of real attention modules of Linen, NNX and Equinox, against the softmax computed from their parameters."""

import contextlib

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from helpers import compilations, quick
from qkdyn import observe
from qkdyn.errors import InputError

T, D, HEADS = 4, 6, 2
X = np.random.default_rng(0).normal(size=(3, T, D)).astype(np.float32)
CAUSAL = np.tril(np.ones((T, T), bool))


def drawn(shapes):
    """Arrays of the given shapes; nothing is compiled for it, as it is for an initializer."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)


def softmax(score, mask=CAUSAL):
    weight = np.exp(score - score.max(-1, keepdims=True)) * mask
    return weight / weight.sum(-1, keepdims=True)


def maps_by_hand(query, key, x=X):
    """Of kernels and biases of heads, (d, heads, size) and (heads, size)."""
    q, k = (np.einsum("btd,dhs->bhts", x, kernel) + bias[:, None] for kernel, bias in (query, key))
    return softmax(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5)


class LinenLayer(nn.Module):
    """Attention called twice, so that there are two maps."""

    @nn.compact
    def __call__(self, x, _=None):
        attention = nn.MultiHeadDotProductAttention(HEADS, name="attention")
        x = attention(x, mask=CAUSAL[None, None], sow_weights=True)
        return attention(x, mask=CAUSAL[None, None], sow_weights=True), None


class LinenModel(nn.Module):
    scanned: bool = False

    @nn.compact
    def __call__(self, x):
        if self.scanned:
            axes = {"params": 0, "intermediates": 0}
            layers = nn.scan(LinenLayer, variable_axes=axes, split_rngs={"params": True}, length=2)
            return layers(name="layers")(x, None)[0]
        for i in range(2):
            x, _ = LinenLayer(name=f"layers_{i}")(x)
        return x


class NnxModel(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List(nnx.MultiHeadAttention(HEADS, D, decode=False, rngs=rngs) for _ in range(2))

    def __call__(self, x, sow=True):
        for layer in self.layers:
            x = layer(x, mask=jnp.broadcast_to(CAUSAL, (1, 1, T, T)), sow_weights=sow)
        return x


@pytest.fixture(scope="module")
def linen():
    """Parameters of two layers; the maps from `sown` of the plain and the scanned model with the same parameters."""
    model, scanned = LinenModel(), LinenModel(scanned=True)
    params = drawn(jax.eval_shape(model.init, jax.random.key(0), X)["params"])
    stacked = {"layers": jax.tree.map(lambda *leaves: np.stack(leaves), params["layers_0"], params["layers_1"])}
    run = {
        name: quick(
            lambda params, x, of=of: observe.sown(of.apply({"params": params}, x, mutable=["intermediates"])[1])
        )
        for name, of in (("plain", model), ("scanned", scanned))
    }
    return params, run["plain"](params, X), run["scanned"](stacked, X)


def test_linen_sows_the_softmax_of_its_parameters_by_module_and_call(linen):
    params, maps, _ = linen
    assert set(maps) == {f"layers_{i}/attention/{call}" for i in range(2) for call in range(2)}
    of = {name: (leaf["kernel"], leaf["bias"]) for name, leaf in params["layers_0"]["attention"].items()}
    np.testing.assert_allclose(maps["layers_0/attention/0"], maps_by_hand(of["query"], of["key"]), atol=1e-5)
    # The second call reads what the first wrote.
    assert np.abs(maps["layers_0/attention/1"] - maps["layers_0/attention/0"]).max() > 0.01


def test_scanned_layers_are_taken_apart(linen):
    _, maps, scanned = linen
    assert scanned["layers/attention/0"].shape == (2, 3, HEADS, T, T)
    apart = observe.by_layer(scanned)
    assert set(apart) == {f"layers/attention/{call}/{i}" for call in range(2) for i in range(2)}
    for name, value in apart.items():
        call, i = name.split("/")[-2:]
        np.testing.assert_allclose(value, maps[f"layers_{i}/attention/{call}"], atol=1e-6)


def test_nnx_captures_the_softmax_of_its_parameters():
    graph, state = nnx.split(nnx.eval_shape(lambda: NnxModel(nnx.Rngs(0))), ...)
    state = drawn(state)
    model = nnx.merge(graph, state)

    def run(state, x):
        _, sown = nnx.capture(nnx.merge(graph, state), nnx.Intermediate)(x)
        return observe.sown(sown)

    maps = quick(run)(state, X)
    assert set(maps) == {"layers/0", "layers/1"}
    of = [(part.kernel[...], part.bias[...]) for part in (model.layers[0].query, model.layers[0].key)]
    np.testing.assert_allclose(maps["layers/0"], maps_by_hand(*of), atol=1e-5)
    assert maps["layers/1"].shape == (3, HEADS, T, T)


def test_equinox_output_is_that_of_the_maps():
    options = {"use_query_bias": True, "use_output_bias": True, "key": jax.random.key(0)}
    shapes = eqx.filter_eval_shape(eqx.nn.MultiheadAttention, HEADS, D, **options)
    shapes, static = eqx.partition(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    params = drawn(shapes)
    layer = eqx.combine(params, static)

    def turn(query, key, value):
        return query[::-1], 2 * key, value

    def run(params, x, mask, turned):
        hook = turn if turned else None
        of = eqx.combine(params, static)
        known = jax.vmap(lambda one: of(one, one, one, mask, process_heads=hook))(x)
        return known, *jax.vmap(lambda one: observe.attend_with_maps(of, one, one, one, mask, process_heads=hook))(x)

    run = quick(run, static_argnums=3)
    per_head = np.stack([CAUSAL, np.ones((T, T), bool)])
    for mask, turned in ((CAUSAL, False), (per_head, False), (CAUSAL, True)):
        known, output, maps = run(params, X, mask, turned)
        np.testing.assert_array_equal(output, known)
        value = (X @ np.asarray(layer.value_proj.weight).T).reshape(3, T, HEADS, -1)
        mixed = np.einsum("bhqk,bkhd->bqhd", maps, value).reshape(3, T, -1)
        by_hand = mixed @ np.asarray(layer.output_proj.weight).T + np.asarray(layer.output_proj.bias)
        np.testing.assert_allclose(by_hand, known, atol=1e-5)
        assert (maps[:, ~np.broadcast_to(mask, (HEADS, T, T))] == 0).all()


def test_equinox_takes_arrays_and_masks_of_numpy():
    def run(key):
        layer = eqx.nn.MultiheadAttention(HEADS, D, key=key)
        masks = CAUSAL, np.stack([CAUSAL] * HEADS)
        return [observe.attend_with_maps(layer, X[0], X[0], X[0], mask)[1] for mask in masks]

    assert [maps.shape for maps in jax.eval_shape(run, jax.random.key(0))] == [(HEADS, T, T)] * 2


def test_an_nnx_model_that_sows_outside_of_a_capture_is_compiled_anew_at_every_call():
    """What the docstring warns of, and that it is not so where `sow_weights` is only true in the capture."""
    graph, state = nnx.split(nnx.eval_shape(lambda: NnxModel(nnx.Rngs(0))), ...)
    call = nnx.jit(lambda model, x, sow: model(x, sow), static_argnums=2)
    for sow, programs in ((True, 2), (False, 1)):
        model = nnx.merge(graph, drawn(state))
        with compilations() as compiled:
            for _ in range(2):
                # Flax warns too, but where Python shows no warning.
                with pytest.warns(DeprecationWarning, match="outside of") if sow else contextlib.nullcontext():
                    call(model, X, sow)
        assert len([line for line in compiled if "jit(<lambda>)" in line]) == programs
        assert len(jax.tree.leaves(nnx.state(model, nnx.Intermediate))) == (4 if sow else 0)


def test_names_of_returned_maps():
    a = np.zeros((2, 3, T, T), np.float32)
    assert set(observe.named(a)) == {"layer_0"}
    assert list(observe.named([a, a])) == ["layer_0", "layer_1"] == list(observe.named((a, a)))
    assert set(observe.named({"encoder": [a, a], "cross": a})) == {"encoder/0", "encoder/1", "cross"}
    assert list(jax.eval_shape(observe.by_layer, a)) == ["layer_0", "layer_1"]
    stacked = np.arange(3.0)[None, :, None, None] + a[:, :1]
    apart = quick(lambda maps: observe.by_layer({"cross": maps}, axis=1))(stacked)
    assert {name: value.max() for name, value in apart.items()} == {f"cross/{i}": i for i in range(3)}


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: observe.sown({"intermediates": {"mlp": (X,)}}), "'attention_weights', got .*mlp.*sow_weights=True"),
        (lambda: observe.sown({}), "got nothing; call"),
        (lambda: observe.named(None), "attention maps: an array"),
        (lambda: observe.by_layer({"a": X}, axis=1), r"axis of a must be .*\(3, 4, 6\), got 1"),
        (lambda: observe.by_layer([X], axis=3), "axis of layer_0"),
        (lambda: observe.attend_with_maps(lambda *args, **options: 0, X[0], X[0], X[0]), "process_heads"),
    ],
)
def test_refused(call, message, unchecked):
    with pytest.raises(InputError, match=message):
        call()

"""What shapes do not tell apart, decay hidden in a base, other trees than were meant: refused by the optimizer, not guessed."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from helpers import max_difference, quick
from qkdyn.circuit_table import circuit_table
from qkdyn.circuits import circuit_labels
from qkdyn.errors import InputError, LabelError
from qkdyn.optim import circuit_optimizer
from qkdyn.slices import Slices, fused
from test_circuit_optimizer import FAST, ONES, PARAMS, drawn, rates_of

WRONG = [
    ({"decay": {"qk": -0.1}}, r"decay\['qk'\] must be a finite number >= 0"),
    ({"decay": {"mlp": 0.1}}, r"decay must be of labels that have a multiplier, got \['mlp'\]"),
    ({"base": optax.adamw, "decay": {"qk": 0.1}}, "base must be without decay of its own beside decay, got.*0.0001"),
    ({"clip": 0.0}, "clip must be a finite number > 0"),
    ({"clip": lambda count: 1.0}, "clip must be a number"),
    ({"freeze": ("qk",)}, r"freeze must be labels without a multiplier, got \['qk'\]"),
    ({"freeze": ("nose",)}, "freeze 'nose' match no parameter"),
    ({"freeze": "mlp"}, "freeze must be a list of values"),
    (
        {"multipliers": {"qk": 1.0}},
        "no multiplier for attn/proj -> 'ov', attn/qkv -> qk 0:4, qk 4:8, ov 8:12 of axis -1",
    ),
    ({"labels": lambda params: jax.tree.map(lambda _: "kq", params)}, "no multiplier for attn/proj -> 'kq'"),
    ({"labels": lambda params: jax.tree.map(lambda _: None, params)}, "labels must be a tree, or a prefix"),
    ({"labels": lambda params: {"attn": "qk"}}, "labels must be a tree, or a prefix .*: no label for mlp/w, norm"),
    (
        {
            "labels": {
                "attn": {"qkv": Slices(-1, (("qk", 0, 8), ("ov", 8, 13))), "proj": "ov"},
                "mlp": "rest",
                "norm": "rest",
            }
        },
        "slices of attn/qkv do not divide its axis -1: they end at 13, the axis has 12",
    ),
    ({"layers": {"qk": [1.0, 0.0]}}, r"layers\['qk'\] must be finite numbers > 0"),
    ({"layers": {"qk": [1.0, -1.0]}}, r"layers\['qk'\] must be finite numbers > 0"),
    (
        {"layers": {"qk": [1.0, 2.0, 3.0]}},
        r"3 multipliers of layers for 'qk', but its parameters are attn/qkv \(4, 4\)",
    ),
    ({"layers": {"nose": [1.0]}}, "layers must be a mapping from labels of multipliers"),
    ({"layers": {"qk": 2.0}}, r"layers\['qk'\] must be multipliers of shape \(L,\)"),
    ({"heads": {"qk": np.ones((1, 1, 1))}}, r"heads\['qk'\] must be of shape \(H,\) or \(L, H\)"),
    ({"heads": {"qk": [1.0, 2.0, 3.0]}}, r"no axis of attn/qkv \(shape \(4, 4\)\) can be cut into 3 heads"),
    ({"heads": {"rest": [1.0, 2.0]}}, "which axis of .* holds 2 heads cannot be told"),
    ({"heads": {"qk": [[1.0]] * 2}, "layers": {"qk": [1.0]}}, "2 layers"),
    ({"heads": {"qk": [1.0, 2.0]}, "head_axes": {"(": 1}}, "head_axes must have regular expressions as keys"),
    ({"heads": {"qk": [1.0, 2.0]}, "head_axes": {"qkv": "b"}}, r"head_axes\['qkv'\] must be an integer"),
    ({"heads": {"qk": [1.0, 2.0]}, "head_axes": {"nose": 1}}, r"axes that they have, got 'nose'; .* attn/qkv \(4, 4\)"),
    ({"heads": {"qk": [1.0, 2.0]}, "head_axes": {"qkv": 5}}, "axes that they have, got 'qkv'"),
    ({"head_axes": {"qkv": 1}}, "head_axes must be .* of parameters whose label has heads"),
    *(
        ({"multipliers": value}, "multipliers must be a rate for each label")
        for value in (None, 3.0, "qk", [("qk", 1)])
    ),
    ({"decay": 3}, "decay must be a rate for each label"),
    *(({"base": value}, "base must be a function of the rate") for value in (None, "adam")),
    ({"learning_rate": lambda: 1.0}, "learning_rate must be a schedule of one argument"),
]


@pytest.mark.parametrize("options,said", WRONG)
def test_wrong_input(options, said, unchecked):
    options = {"base": optax.sgd, "multipliers": ONES} | options
    with pytest.raises((InputError, LabelError), match=said):
        circuit_optimizer(**options).init(PARAMS)
    circuit_optimizer(optax.sgd, multipliers=ONES).init(PARAMS)


class Called(eqx.Module):
    """A model that is called, so that the tree of its labels is callable too."""

    query: jax.Array
    key: jax.Array
    value: jax.Array
    out: jax.Array

    def __call__(self, x):
        return x


def test_a_tree_of_labels_that_is_callable_is_no_function():
    model = Called(*(jnp.full((4, 4), 1.0 + i) for i in range(4)))
    labels = circuit_labels(model)
    assert callable(labels)
    by_tree, by_function = (
        circuit_optimizer(optax.sgd, multipliers=FAST, learning_rate=0.1, labels=own)
        for own in (labels, circuit_labels)
    )
    steps = [tx.update(model, tx.init(model))[0] for tx in (by_tree, by_function)]
    assert float(steps[0].query[0, 0]) == pytest.approx(-0.7) and float(steps[0].value[0, 0]) == pytest.approx(-0.15)
    assert max_difference(*steps) == 0
    assert circuit_table(model, labels=labels) == circuit_table(model)


FLAT = {name: np.ones((16, 16), np.float32) for name in ("wq", "wk", "wv", "wo")}
QKV = {"qkv": np.ones((16, 48), np.float32), "o": np.ones((16, 16), np.float32)}


def made(params, base=optax.sgd, multipliers=ONES, **options):
    """The shapes of the state: nothing is computed."""
    tx = circuit_optimizer(base, multipliers=multipliers, **options)
    return tx, jax.eval_shape(tx.init, params)


@pytest.mark.parametrize("label", ["qk", "ov"])
@pytest.mark.parametrize("last", [("weight",), ()])
def test_as_many_stacked_layers_as_heads_are_not_taken_for_heads(label, last):
    stacked = dict.fromkeys(("query_proj", "key_proj", "value_proj", "output_proj"), (4, 16, 16))
    params = drawn({name: dict.fromkeys(last, shape) or shape for name, shape in stacked.items()})
    with pytest.raises(LabelError, match=r"\(shape \(4, 16, 16\)\) holds 4 heads cannot be told"):
        made(params, heads={label: (1.0, 2.0, 3.0, 4.0)})
    made(
        drawn(dict.fromkeys(("W_Q", "W_K", "W_V"), (4, 16, 4)) | {"W_O": (4, 4, 16)}),
        heads={label: (1.0, 2.0, 3.0, 4.0)},
    )


@pytest.mark.parametrize(
    "parts, right",
    [
        ((("off", 0, 4), ("qk", 4, 32), ("ov", 32, 48)), False),
        ((("qk", 0, 32), ("ov", 32, 48)), False),
        ((("off", 0, 4), ("qk", 4, 16), ("qk", 16, 32), ("ov", 32, 48)), False),
        ((("off", 0, 16), ("qk", 16, 32), ("ov", 32, 48)), True),
        ((("qk", 0, 16), ("ov", 16, 32), ("qk", 32, 48)), True),
    ],
)
def test_heads_of_hand_made_slices_lie_in_single_queries_keys_and_values(parts, right):
    options = {"multipliers": {"qk": 1.0, "ov": 1.0}, "labels": {"qkv": Slices(-1, parts), "o": "ov"}}
    options |= {"freeze": ("off",) if parts[0][0] == "off" else (), "heads": {"qk": (1.0, 2.0, 3.0, 4.0)}}
    if right:
        made(QKV, **options)
        return
    with pytest.raises(LabelError, match="heads of qkv lie in its queries, keys and values"):
        made(QKV, **options)


@pytest.mark.parametrize(
    "base, own",
    [
        (optax.chain(optax.add_decayed_weights(0.5), optax.scale(-1.0)), True),
        (lambda rate: optax.chain(optax.sgd(rate), optax.add_decayed_weights(-0.5)), True),
        (functools.partial(optax.sgd, momentum=0.9), False),
        (optax.chain(optax.add_decayed_weights(0.5), optax.scale_by_schedule(lambda count: -1.0 * count)), True),
    ],
)
def test_decay_hidden_in_the_base_is_seen(base, own):
    options = {"multipliers": ONES, "decay": {"qk": 0.1}}
    if not own:
        circuit_optimizer(base, **options)
        return
    with pytest.raises(InputError, match="base must be without decay of its own beside decay"):
        circuit_optimizer(base, **options)


def test_layers_are_no_rows_and_no_stages():
    with pytest.raises(LabelError, match=r"16 multipliers of layers for 'qk' .* wk \(16, 16\) is one matrix"):
        made(FLAT, layers={"qk": np.arange(1.0, 17.0)})
    linen = {"query": (16, 4, 4), "key": (16, 4, 4), "value": (16, 4, 4), "out": (4, 4, 16)}
    with pytest.raises(LabelError, match=r"out \(4, 4, 16\) has no such axis"):
        made(drawn(linen), layers={"qk": np.arange(1.0, 17.0)})
    small = dict.fromkeys(("wq", "wk", "wv", "wo"), (4, 4))
    named = {f"stage_{i}": {f"block_{j}": small for j in range(2)} for i in range(2)}
    found = rates_of(drawn(named), layers={"qk": (1.0, 2.0)})
    assert [np.unique(found[f"stage_{i}"][f"block_{j}"]["wq"]).tolist() for i in range(2) for j in range(2)] == [
        [1],
        [2],
    ] * 2
    unnamed = {f"stage_{i}": {f"part_{j}": small for j in range(2)} for i in range(2)}
    with pytest.raises(LabelError, match="which are layers cannot be told"):
        made(drawn(unnamed), layers={"qk": (1.0, 2.0)})


def test_what_is_no_tree_of_arrays_is_refused_with_what_to_pass():
    rates = {"labels": lambda tree: jax.tree.map(lambda _: "qk", tree), "multipliers": {"qk": 1.0}}
    with pytest.raises(LabelError, match=r"f is no array: .*eqx.filter\(model, eqx.is_inexact_array\)"):
        circuit_optimizer(optax.sgd, **rates).init({**FLAT, "f": jax.nn.relu})
    module = nnx.eval_shape(lambda: nnx.MultiHeadAttention(2, 4, 4, decode=False, rngs=nnx.Rngs(0)))
    with pytest.raises(LabelError, match=r"pass nnx.state\(model, nnx.Param\)"):
        circuit_optimizer(optax.sgd, multipliers=ONES).init(module)


def test_rules_of_fused_parameters_in_a_tree_of_labels():
    labels = {"qkv": fused("qkv", axis=-1), "o": "ov"}
    found = circuit_optimizer(optax.sgd, multipliers={"qk": 1.0, "ov": 3.0}, labels=labels)
    update = quick(lambda given: found.update(given, found.init(given))[0])(QKV)
    np.testing.assert_array_equal(update["qkv"][0], -np.repeat([1.0, 1.0, 3.0], 16))
    by_function = circuit_table(QKV, labels=functools.partial(circuit_labels, rules={"qkv": labels["qkv"]}))
    assert circuit_table(QKV, labels=labels) == by_function


@pytest.mark.parametrize("gradient", [{**FLAT, "wo": None}, {name: FLAT[name] for name in ("wq", "wk", "wv")}])
def test_gradients_of_other_parameters_are_named(gradient):
    tx, state = made(FLAT)
    with pytest.raises(InputError, match="gradients must be of the same tree .* for wo; give zeros"):
        tx.update(gradient, state, FLAT)


def test_line_searches_are_refused_and_schedule_free_goes_around():
    with pytest.raises(InputError, match="base must be without a line search"):
        made(FLAT, optax.lbfgs)
    tx = circuit_optimizer(optax.sgd, multipliers={"qk": 2.0, "ov": 1.0}, learning_rate=0.1)
    tx = optax.contrib.schedule_free(tx, learning_rate=1.0, b1=0.5)

    @quick
    def run(params):
        state = tx.init(params)
        change, state = tx.update(params, state, params)
        params = optax.apply_updates(params, change)
        return optax.contrib.schedule_free_eval_params(state, params)

    ones = {name: np.ones((2, 2), np.float32) for name in FLAT}
    found = run(ones)
    np.testing.assert_allclose(found["wq"], 0.8, rtol=1e-6)
    np.testing.assert_allclose(found["wv"], 0.9, rtol=1e-6)

"""Labels where names alone would be wrong: output projections, heads as modules, adapters; trees that have none are refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from qkdyn.circuits import circuit_labels
from qkdyn.errors import LabelError
from qkdyn.labels import labels_for
from qkdyn.slices import fused
from test_labels import EQUINOX, FLAX, KEY, THIRDS, Net, expected, flat, labelled, qkv, shaped

# What stands beside query, key and value, 16 wide: the head of a model, or an MLP, in the same folder; and what it is.
BESIDE = {
    "head called out": ({"proj": (16, 16), "out": (16, 50)}, "proj"),
    "head called output": ({"dense": (16, 16), "output": (16, 50)}, "dense"),
    "head called out, stored as PyTorch does": ({"proj": (16, 16), "out": (50, 16)}, "proj"),
    "an MLP": ({"out": (16, 16), "Dense_0": (16, 64), "Dense_1": (64, 16)}, "out"),
    "a head of its own name": ({"o_proj": (16, 16), "out": (16, 16)}, "o_proj"),
    "the paper's W_O, of as many rows as classes": ({"W_O": (50, 16)}, "W_O"),
    "two that fit": ({"proj": (16, 16), "out": (16, 16)}, None),
    "the head alone": ({"out": (16, 50)}, None),
    "none that fits": ({"proj": (16, 9), "out": (16, 50)}, None),
    "a head surely called, beside one that fits": ({"o": (16, 50), "proj": (16, 16)}, None),
}
TRIPLES = {
    "plain": {"q": (16, 16), "k": (16, 16), "v": (16, 16)},
    "grouped": {"q": (16, 16), "k": (16, 4), "v": (16, 4)},
    "scanned": {"q": (3, 16, 16), "k": (3, 16, 16), "v": (3, 16, 16)},
    "fused": {"qkv": (16, 48)},
}


@pytest.mark.parametrize("triple", TRIPLES)
@pytest.mark.parametrize("name", BESIDE)
def test_the_output_projection_is_the_one_whose_shape_fits(name, triple):
    beside, which = BESIDE[name]
    lead = (3,) if triple == "scanned" else ()
    shapes = {"attn": TRIPLES[triple] | {name: (*lead, *shape) for name, shape in beside.items()}}
    if which is None or (triple == "fused" and which == "W_O"):
        said = {"out": "rest", "o": "ov", "proj": "ov", "W_O": "ov", "qkv": fused("qkv", axis=-1)}
        with pytest.raises(LabelError, match="output projection") as caught:
            labelled(shapes)
        assert " ?\n" in str(caught.value)
        labels = labelled(shapes, rules=lambda path, leaf: said.get(path.split("/")[-1]))
    else:
        labels = labelled(shapes)
    for part in beside:
        assert labels[f"attn/{part}"] == ("rest" if part not in (which, *"o", *("proj",) * (which is None)) else "ov")


def test_outputs_wider_than_the_input_on_installed_modules():
    module = eqx.nn.MultiheadAttention(2, 6, output_size=10, key=KEY)
    labels = flat(circuit_labels(eqx.filter(module, eqx.is_inexact_array)))
    assert labels == expected(labels, **EQUINOX) and "rest" not in labels.values()
    flax = nn.MultiHeadDotProductAttention(2, qkv_features=8, out_features=10)
    labels = flat(circuit_labels(jax.eval_shape(lambda: flax.init(KEY, jnp.ones((1, 3, 6))))["params"]))
    assert labels == expected(labels, **FLAX) and "rest" not in labels.values()


def test_heads_that_are_modules_share_an_output_projection_above():
    head = dict.fromkeys("qkv", (16, 4))
    labels = labelled({"sa": {"heads": [head, head], "proj": {"w": (8, 16), "bias": (16,)}}, "proj": (16, 16)})
    assert labels["sa/proj/w"] == labels["sa/proj/bias"] == labels["sa/heads/1/v"] == "ov"
    assert (labels["sa/heads/0/k"], labels["proj"]) == ("qk", "rest")
    numbered = labelled({"head_0": head, "head_1": head, "out": (8, 16)})
    assert numbered["out"] == "ov"
    with pytest.raises(LabelError, match="sa/proj: may be the output projection"):
        labelled({"sa": {"heads": [head, head], "proj": (5, 16)}})
    square = dict.fromkeys("qkv", (16, 16))
    for above in ({"attn": square, "proj": (16, 16)}, {"block": {"x": {"attn": square}, "Dense_0": (16, 16)}}):
        with pytest.raises(LabelError, match="stands above the attention in"):
            labelled(above)
    labels = labelled({"blocks": [{"attn": square}, {"attn": square}], "out": (16, 50)})
    assert labels["out"] == "rest" and labels["blocks/1/attn/v"] == "ov"


def test_adapters_and_what_lies_deeper_belong_to_their_part():
    adapted = {"base_layer": {"weight": (16, 16)}, **{f"lora_{x}": {"default": {"weight": (4, 16)}} for x in "AB"}}
    names = {"q_proj": "qk", "k_proj": "qk", "v_proj": "ov", "o_proj": "ov"}
    labels = labelled({"attn": dict.fromkeys(names, adapted), "mlp": {"up_proj": adapted}})
    circuits = {path: label for path, label in labels.items() if "attn" in path}
    assert circuits == expected(circuits, **names) and len(circuits) == 12
    alone = labelled({"x": {name: {"lora_A": {"default": {"weight": (4, 16)}}} for name in names}})
    assert alone == expected(alone, **names)
    deep = {"w": (16, 16), "a": {"b": {"c": {"scale": (16,)}}}}
    labels = labelled(dict.fromkeys(names, deep))
    assert labels == expected(labels, **names)
    with pytest.raises(LabelError, match="lora_A/default/weight: fused, but no axis"):
        labelled({"c_attn": {"base": (16, 48), "lora_A": {"default": {"weight": (16, 4)}}}, "c_proj": (16, 16)})


@pytest.mark.parametrize(
    "params,said",
    [
        ({}, "must be a tree with an attention's, got"),
        (None, "must be a tree with an attention's, got"),
        ({"embed": (5, 4), "mlp": {"w": (4, 4)}, "head": (4, 5)}, "no attention found"),
        ({"rest": (4, 4)}, "no attention found"),
    ],
)
def test_a_tree_without_attention_has_no_labels(params, said):
    with pytest.raises(LabelError, match=said):
        circuit_labels(shaped(params))
    assert labelled({"ov": {"W_OV": (4, 4)}, "embed": (5, 4)}) == {"ov/W_OV": "ov", "embed": "embed"}


@pytest.mark.parametrize("leaf", [jax.nn.relu, "text", True, 1j])
def test_leaves_that_are_no_arrays_are_refused(leaf):
    square = {name: np.zeros((4, 4)) for name in "qkvo"}
    with pytest.raises(LabelError, match=r"mlp/f is no array.*eqx\.filter\(model, eqx\.is_inexact_array\)"):
        circuit_labels({"attn": square, "mlp": {"f": leaf}})
    with pytest.raises(LabelError, match=r"is no array.*eqx\.filter"):
        circuit_labels(eqx.nn.MultiheadAttention(2, 4, key=KEY))


def test_an_nnx_module_is_no_tree_for_an_optimizer():
    with pytest.raises(LabelError, match=r"nnx\.state\(model, nnx\.Param\)"):
        labels_for(circuit_labels, Net(nnx.Rngs(0)))


def test_fused_in_a_tree_of_labels():
    params = shaped({"qkv": {"kernel": (8, 24), "bias": (24,)}, "o": (8, 8)})
    labels = labels_for({"qkv": fused("qkv", axis=-1), "o": "ov"}, params)
    assert labels == {"qkv": {"kernel": THIRDS, "bias": THIRDS}, "o": "ov"}
    assert labels_for(lambda tree: {"qkv": fused("qkv", axis=-1), "o": "ov"}, params) == labels
    with pytest.raises(LabelError, match="slices of qkv/kernel do not divide its axis 0"):
        labels_for({"qkv": fused("qkv", axis=0), "o": "ov"}, params)


@pytest.mark.parametrize(
    "labels,said",
    [
        ({"a": "qk"}, "no label for b/c, b/d$"),
        ({"a": "qk", "b": {"c": "ov"}}, "no label for b/d$"),
        ({"a": "qk", "b": {"c": "ov", "d": None}}, "no label for b/d$"),
        ({"a": "qk", "b": "ov", "e": "ov"}, "a label for e, where no parameter is"),
        ({"a": {"x": "qk"}, "b": "ov"}, "no label for a; a label for a/x, where no parameter is"),
    ],
)
def test_labels_that_miss_parameters_say_which(labels, said):
    params = shaped({"a": (2,), "b": {"c": (2,), "d": (2,)}})
    with pytest.raises(LabelError, match="labels must be a tree, or a prefix of the tree, of the parameters: " + said):
        labels_for(lambda tree: labels, params)


def test_a_named_whole_beside_other_parts():
    assert labelled({"attn": {"qk": (8, 16), "v": (8, 8), "o": (8, 8)}}) == {
        "attn/qk": "qk",
        "attn/v": "ov",
        "attn/o": "ov",
    }
    named = labelled({"qk": (8, 8), "ov": (8, 8), "embedding": (8, 8)})
    assert named == {"qk": "qk", "ov": "ov", "embedding": "rest"}


def test_biases_fused_beside_matrices_that_are_not_and_the_other_way_round():
    torch = {f"{x}_proj_weight": (6, n) for x, n in {"q": 6, "k": 5, "v": 4}.items()}
    own = {
        "in_proj_bias": (18,),
        "bias_k": (1, 1, 6),
        "bias_v": (1, 1, 6),
        "out_proj": {"weight": (6, 6), "bias": (6,)},
    }
    labels = labelled({"attn": torch | own})
    assert labels.pop("attn/in_proj_bias") == qkv(-1, 6, 6, 6)
    names = {"q_proj_weight": "qk", "k_proj_weight": "qk", "bias_k": "qk"}
    assert labels == {path: names.get(path.split("/")[1], "ov") for path in labels}
    whole = labelled({"attn": own | {"in_proj_weight": (18, 6)}})
    assert whole["attn/in_proj_weight"] == qkv(-2, 6, 6, 6) and whole["attn/in_proj_bias"] == qkv(-1, 6, 6, 6)
    assert (whole["attn/bias_k"], whole["attn/bias_v"]) == ("qk", "ov")
    with pytest.raises(LabelError, match="in_proj_bias: a fused bias, but not of the widths"):
        labelled({"attn": torch | own | {"in_proj_bias": (17,)}})

"""Labels on instances of the installed libraries' own modules and on trees of the usual names; doubts are refused."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from qkdyn.circuits import circuit_labels
from qkdyn.errors import InputError, LabelError
from qkdyn.slices import Slices, fused

KEY = jax.random.key(0)
NORMS = {"q_norm": (3,), "k_norm": (3,)}


def shaped(tree):
    """Arrays of the shapes of a tree whose leaves are tuples."""
    return jax.tree.map(lambda shape: np.zeros(shape, np.float32), tree, is_leaf=lambda node: isinstance(node, tuple))


def flat(tree):
    """{path: leaf}, without the "value" of boxed parameters."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        names = [jax.tree_util.keystr((part,), simple=True) for part in path]
        found["/".join(names[:-1] if names[-1] == "value" and len(names) > 2 else names)] = leaf
    return found


def labelled(shapes, **options):
    return flat(circuit_labels(shaped(shapes), **options))


def qkv(axis, *sizes, repeats=1):
    return fused("qkv", axis=axis, sizes=sizes, heads=repeats).of(tuple([sum(sizes) * repeats] * -axis), "")


def expected(labels, **circuits):
    """Every path of `labels` below a component named in `circuits`, all others rest."""
    found = {}
    for path in labels:
        names = [circuit for name, circuit in circuits.items() if name in path.split("/")]
        found[path] = names[0] if names else "rest"
    return found


FLAX = {"query": "qk", "key": "qk", "value": "ov", "out": "ov", "query_ln": "qk", "key_ln": "qk"}
EQUINOX = {"query_proj": "qk", "key_proj": "qk", "value_proj": "ov", "output_proj": "ov"}


class Block(nn.Module):
    """Linen: attention with norms of queries and keys, an MLP whose second layer is called as an output may be."""

    @nn.compact
    def __call__(self, x, _=None):
        x = x + nn.MultiHeadDotProductAttention(2, normalize_qk=True)(nn.LayerNorm()(x))
        return x + nn.Dense(4, name="out")(nn.relu(nn.Dense(8)(x))), None


@functools.cache
def linen(scanned):
    made = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3) if scanned else Block
    return jax.eval_shape(lambda: made().init(KEY, jnp.ones((1, 3, 4)), None))["params"]


@pytest.mark.parametrize("scanned", [False, True])
def test_linen(scanned):
    labels = flat(circuit_labels(linen(scanned)))
    assert set(labels.values()) == {"qk", "ov", "rest"} and len(labels) == 10 + 2 + 4
    inside = {path: label for path, label in labels.items() if "Attention" in path}
    assert inside == expected(inside, **FLAX) and "rest" not in inside.values()
    assert {label for path, label in labels.items() if path not in inside} == {"rest"}


class Net(nnx.Module):
    """NNX: two attentions in a list, dropout with a state of its own, a module that stands in two places."""

    def __init__(self, rngs):
        self.layers = nnx.List(
            [nnx.MultiHeadAttention(2, 4, 4, dropout_rate=0.1, normalize_qk=True, rngs=rngs, decode=False)]
        )
        self.again = self.layers[0]
        self.out = nnx.Linear(4, 4, rngs=rngs)


def test_nnx_state_module_and_pure_tree():
    net = Net(nnx.Rngs(0))
    state = nnx.state(net, nnx.Param)
    for tree in (state, net, nnx.as_pure(state)):
        labels = flat(circuit_labels(tree))
        assert len(labels) == 12  # the shared attention once
        circuits = {path: label for path, label in labels.items() if not path.startswith("out")}
        assert circuits == expected(circuits, **FLAX) and "rest" not in circuits.values()
        assert {labels["out/kernel"], labels["out/bias"]} == {"rest"}


def test_equinox():
    attention = eqx.nn.MultiheadAttention(2, 4, use_query_bias=True, use_value_bias=True, use_output_bias=True, key=KEY)
    model = {"blocks": [attention, {"mlp": eqx.nn.MLP(4, 4, 8, 1, key=KEY), "norm": eqx.nn.LayerNorm(4)}]}
    params = eqx.filter(model, eqx.is_inexact_array)
    labels = flat(circuit_labels(params))
    ours = {path: label for path, label in labels.items() if path.startswith("blocks/0")}
    assert len(ours) == 7 and ours == expected(ours, **EQUINOX) and "rest" not in ours.values()
    assert {label for path, label in labels.items() if "mlp" in path} == {"mlp"} and labels[
        "blocks/1/norm/weight"
    ] == "rest"


@functools.partial(jax.tree_util.register_dataclass, data_fields=["q", "k", "v", "o"], meta_fields=[])
@dataclasses.dataclass
class Four:
    q: jax.Array
    k: jax.Array
    v: jax.Array
    o: jax.Array


def test_dataclasses_lists_and_seeds():
    four = Four(*(np.zeros((5, 4, 4)) for _ in range(4)))
    assert circuit_labels([four, {"w": np.zeros(5)}]) == [Four("qk", "qk", "ov", "ov"), {"w": "rest"}]


NAMES = {
    "q_proj k_proj v_proj o_proj": "qk qk ov ov",
    "query key value out": "qk qk ov ov",
    "wq wk wv wo": "qk qk ov ov",
    "W_Q W_K W_V W_O": "qk qk ov ov",
    "to_q to_k to_v to_out": "qk qk ov ov",
    "q_lin k_lin v_lin out_lin": "qk qk ov ov",
    "queries keys values fc_out": "qk qk ov ov",
    "w_qs w_ks w_vs fc": "qk qk ov ov",
    "c_q c_k c_v c_proj": "qk qk ov ov",
    "q k v Dense_0": "qk qk ov ov",
    "queryProj keyProj valueProj outProj": "qk qk ov ov",
}


@given(
    names=st.sampled_from(sorted(NAMES)),
    depth=st.integers(0, 3),
    lead=st.integers(0, 2),
    heads=st.sampled_from([4, 2, 1]),
)
def test_usual_names_at_any_depth_with_grouped_queries(names, depth, lead, heads):
    q, k, v, o = names.split()
    before = (7, 5)[:lead]
    kernels = {q: (8, 8), k: (8, 2 * heads), v: (8, 2 * heads), o: (8, 8)}
    tree = {name: {"kernel": (*before, *shape)} for name, shape in kernels.items()}
    for i in range(depth):
        tree = {f"layers_{i}": tree, "c_proj": (*before, 8, 8), "dense": {"out": (*before, 8)}}
    labels = labelled({"model": tree, "value_head": (8, 1), "key_embed": (8,)})
    inside = {path: label for path, label in labels.items() if path.endswith("kernel")}
    assert inside == expected(inside, **dict(zip((q, k, v, o), NAMES[names].split(), strict=True)))
    assert {label for path, label in labels.items() if path not in inside} == {"rest"} and len(inside) == 4


THIRDS = qkv(-1, 8, 8, 8)
GPT2 = {"c_attn": {"kernel": (8, 24), "bias": (24,)}, "c_proj": {"kernel": (8, 8), "bias": (8,)}}
FUSED = {
    "gpt2": ({"attn": GPT2, "mlp": {"c_fc": {"kernel": (8, 32)}, "c_proj": {"kernel": (32, 8)}}}, THIRDS, -1),
    "gpt2 scanned": ({"c_attn": {"kernel": (3, 8, 24), "bias": (3, 24)}, "c_proj": {"kernel": (3, 8, 8)}}, THIRDS, -1),
    "gpt2 flax": ({"c_attn": {"kernel": (24, 8), "bias": (24,)}, "c_proj": {"kernel": (8, 8)}}, THIRDS, -2),
    "torch": (
        {"self_attn": {"in_proj_weight": (24, 8), "in_proj_bias": (24,), "out_proj": {"weight": (8, 8)}}},
        THIRDS,
        -2,
    ),
    "vit": ({"attn": {"qkv": {"weight": (24, 8), "bias": (24,)}, "proj": {"weight": (8, 8)}}}, THIRDS, -2),
    "grouped": ({"qkv_proj": {"kernel": (8, 16)}, "o_proj": {"kernel": (8, 8)}}, qkv(-1, 8, 4, 4), -1),
    "narrow": ({"to_qkv": {"kernel": (8, 12)}, "to_out": {"kernel": (4, 8)}}, qkv(-1, 4, 4, 4), -1),
    "general": (
        {"qkv": {"kernel": (8, 3, 2, 4), "bias": (3, 2, 4)}, "out": {"kernel": (2, 4, 8)}},
        qkv(-1, 1, 1, 1),
        -3,
    ),
    "heads first": (
        {"qkv": {"kernel": (8, 2, 12), "bias": (2, 12)}, "out": {"kernel": (2, 4, 8)}},
        qkv(-1, 4, 4, 4),
        -1,
    ),
    "stacked": ({"W_qkv": (3, 8, 8), "W_O": (8, 8)}, qkv(-1, 1, 1, 1), -3),
    "seeds of layers": ({"Wqkv": (7, 2, 8, 24), "Wo": (7, 2, 8, 8)}, THIRDS, -1),
    "alone": ({"qkv": {"kernel": (8, 24)}}, THIRDS, -1),
}


@pytest.mark.parametrize("name", FUSED)
def test_fused_by_the_axis_that_shapes_single_out(name):
    shapes, slices, axis = FUSED[name]
    found = {path: label for path, label in labelled(shapes).items() if isinstance(label, Slices)}
    kernel = next(label for path, label in found.items() if "bias" not in path)
    assert kernel == dataclasses.replace(slices, axis=axis)
    own = slices.parts[-1][2] == 3
    assert all(
        label == dataclasses.replace(slices, axis=-3 if own else -1) for path, label in found.items() if "bias" in path
    )
    others = {label for label in labelled(shapes).values() if not isinstance(label, Slices)}
    assert others <= {"ov", "rest", "mlp"} and ("ov" in others) == (name != "alone")


def test_keys_and_values_fused_beside_a_query():
    half = fused("kv", axis=-1, sizes=(2, 2)).of((8, 4), "")
    labels = labelled({"to_q": (8, 8), "to_kv": (8, 4), "to_out": {"0": (8, 8)}})
    assert labels == {"to_q": "qk", "to_kv": half, "to_out/0": "ov"}
    cross = labelled({"q_attn": {"kernel": (8, 8)}, "c_attn": {"kernel": (8, 16)}, "c_proj": {"kernel": (8, 8)}})
    assert cross["c_attn/kernel"] == fused("kv", axis=-1).of((8, 16), "") and cross["q_attn/kernel"] == "qk"


def test_norms_biases_and_outputs_elsewhere():
    bert = {
        "attention": {
            "self": {name: {"kernel": (4, 4), "bias": (4,)} for name in ("query", "key", "value")},
            "output": {"dense": {"kernel": (4, 4)}, "LayerNorm": {"scale": (4,)}},
        },
        "output": {"dense": {"kernel": (8, 4)}},
    }
    labels = labelled(bert)
    assert labels == expected(labels, query="qk", key="qk", value="ov") | {"attention/output/dense/kernel": "ov"}
    torch = {
        "q_proj_weight": (4, 4),
        "k_proj_weight": (4, 3),
        "v_proj_weight": (4, 3),
        "bias_k": (1, 4),
        "bias_v": (1, 4),
    }
    assert set(labelled({"attn": torch}).items()) == {
        (f"attn/{name}", "ov" if "v" in name.split("_") else "qk") for name in torch
    }
    normed = labelled({"attn": {**GPT2, **NORMS, "rotary": {"freqs": (2,)}}})
    assert (normed["attn/q_norm"], normed["attn/k_norm"], normed["attn/rotary/freqs"]) == ("qk", "qk", "rest")


def test_a_state_space_model_s_projections_are_no_attention():
    mamba = {"mixer": {"in_proj": {"kernel": (8, 32)}, "out_proj": {"kernel": (16, 8)}}}
    labels = labelled({**mamba, "attn": GPT2})
    assert labels["mixer/in_proj/kernel"] == labels["mixer/out_proj/kernel"] == "rest"


NEOX = {"attention": {"query_key_value": {"kernel": (8, 24), "bias": (24,)}, "dense": {"kernel": (8, 8)}}}


def test_interleaved_heads_are_refused_until_a_rule_says_how():
    with pytest.raises(LabelError, match=r"query_key_value/kernel: .*head by head .*fused\('qkv', axis=..., heads="):
        labelled(NEOX)
    labels = labelled(NEOX, rules={"query_key_value": fused("qkv", axis=-1, heads=2)})
    assert labels["attention/query_key_value/kernel"] == Slices(-1, (("qk", 0, 4), ("qk", 4, 8), ("ov", 8, 12)), 2)
    assert labels["attention/dense/kernel"] == "ov"


# What CodeGen and InternLM2 have behind plain names, 8 wide: 4 blocks of 2 queries, values, keys; 2 key-value heads of size 2
# with two queries each. Beside them which row is what, as these models' code takes them apart.
PLAIN = {
    "codegen": ({"attn": {"qkv_proj": (8, 24), "out_proj": (8, 8)}}, fused("qvk", axis=-1, heads=4), "qqvvkk" * 4),
    "internlm2": (
        {"attention": {"wqkv": (8, 16), "wo": (8, 8)}},
        fused("qkv", axis=-1, sizes=(4, 2, 2), heads=2),
        "qqqqkkvv" * 2,
    ),
    "megatron": (
        {"self_attention": {"linear_qkv": (8, 16), "linear_proj": (8, 8)}},
        fused("qkv", axis=-1, sizes=(4, 2, 2), heads=2),
        "qqqqkkvv" * 2,
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_blocks_behind_plain_names_are_refused_until_a_rule_says_how(name):
    shapes, rule, rows = PLAIN[name]
    said = {
        "codegen": r"in 4 or 8 blocks \(CodeGen.*fused\('qvk', axis=..., heads=",
        "internlm2": r"by key-value head \(InternLM2",
        "megatron": r"head by head \(GPT-NeoX",
    }
    with pytest.raises(LabelError, match=f"qkv.*: .*{said[name]}"):
        labelled(shapes)
    labels = labelled(shapes, rules={"qkv": rule})
    (slices,) = (label for label in labels.values() if isinstance(label, Slices))
    found = "".join(label[0] * (b - a) for _ in range(slices.repeats) for label, a, b in slices.parts)
    assert found == "".join({"q": "q", "k": "q", "v": "o"}[row] for row in rows)
    assert {label for label in labels.values() if label is not slices} == {"ov"}
    in_a_row = qkv(-1, 8, len(rows) // 2 - 4, len(rows) // 2 - 4)
    rule = fused("qkv", axis=-1, sizes=[b - a for _, a, b in in_a_row.parts])
    assert in_a_row in labelled(shapes, rules={"qkv": rule}).values()
    # The same names beside others, and fused along an axis of its own, leave no doubt.
    assert labelled({"qkv_proj": (8, 24), "o_proj": (8, 8)})["qkv_proj"] == THIRDS
    assert labelled({"Wqkv": (8, 24), "out_proj": (8, 8)})["Wqkv"] == THIRDS
    assert labelled({"qkv_proj": (3, 8, 8), "out_proj": (8, 8)})["qkv_proj"] == qkv(-3, 1, 1, 1)


DOUBTS = {
    "which axis": ({"qkv": (12, 12), "proj": (4, 12)}, "qkv: fused, of shape .* in more than one way"),
    "no axis": ({"qkv": (8, 20), "proj": (8, 8)}, r"qkv: fused, but no axis of \(8, 20\)"),
    "no value": ({"attn": {"query": (4, 4), "key": (4, 4)}}, "part of an attention of which only k, q stand in attn"),
    "lone value": ({"policy": (4, 4), "value": (4, 1), "attn": GPT2}, "value: part of an attention of which only v"),
    "two outputs": (
        {"q": (4, 4), "k": (4, 4), "v": (4, 4), "Dense_0": (4, 4), "Dense_1": (4, 4)},
        "one of 2 that may be",
    ),
    "which output": (
        {"q": (4, 4), "k": (4, 4), "v": (4, 4), "merge": (4, 4)},
        "merge: stands beside query, key and value",
    ),
    "a weak name and one that says nothing": (
        {"q": (4, 4), "k": (4, 4), "v": (4, 4), "merge": (4, 4), "proj": (4, 4)},
        "merge: one of several of one shape that may be the output projection: merge, proj",
    ),
    "latent": ({"q_proj": (8, 8), "kv_a_proj": (8, 4), "kv_b_proj": (4, 16), "o_proj": (8, 8)}, "kv_b_proj: "),
    "latent query": (
        {"q_a_proj": (8, 4), "q_b_proj": (4, 8), "o_proj": (8, 8)},
        "q_a_proj: names a query, key or value, but",
    ),
}


@pytest.mark.parametrize("name", DOUBTS)
def test_doubts_show_the_tree_and_how_to_name_it(name):
    shapes, said = DOUBTS[name]
    with pytest.raises(LabelError, match=said) as caught:
        labelled(shapes)
    assert " ?\n" in str(caught.value) and "rules=" in str(caught.value)


def test_no_attention_shows_the_tree():
    with pytest.raises(LabelError, match=r"no attention found.*\n.*\n  Dense_0/kernel  4x4 +rest\n(.*\n)*.*rules=\{"):
        labelled({"Dense_0": {"kernel": (4, 4)}, "Dense_1": {"kernel": (4, 4)}})
    many = {f"w{i}": (2,) for i in range(100)}
    with pytest.raises(LabelError, match=r"\.\.\. and 40 more"):
        labelled(many)


def test_rules_name_what_names_do_not():
    shapes = {"attn": {"Dense_0": (4, 12), "Dense_1": (4, 4)}, "query_embed": (4,)}
    labels = labelled(shapes, rules={"Dense_0": fused("qkv", axis=-1), "Dense_1": "ov", "Dense": "rest"})
    assert labels == {"attn/Dense_0": qkv(-1, 4, 4, 4), "attn/Dense_1": "ov", "query_embed": "rest"}
    by = lambda path, leaf: "qk" if leaf.shape == (4, 12) else None  # noqa: E731
    assert labelled(shapes, rules=by)["attn/Dense_0"] == "qk"
    assert labelled(NEOX, rules={"query_key": "own"})["attention/query_key_value/kernel"] == "own"


@pytest.mark.parametrize(
    "rules,said",
    [
        ({"Dense_7": "qk"}, "rules 'Dense_7' match no parameter"),
        ({"(": "qk"}, "rules must be regular expressions"),
        ({"w": 3}, "the label of w must be a string"),
        ({"w": fused("qkv", axis=-1)}, r"slices of w do not divide its axis -1: 3 equal parts of 4 \(shape \(4, 4\)\)"),
        ({"w": fused("qkv", axis=2)}, "3 equal parts of no such axis"),
        (
            {"w": fused("qk", axis=0, sizes=(1, 2))},
            "slices of w do not divide its axis 0: they end at 3, the axis has 4",
        ),
        ({"w": Slices(0, (("qk", 0, 5),))}, "they end at 5, the axis has 4"),
        (3, "rules must be {regular expression"),
    ],
)
def test_wrong_rules(rules, said, unchecked):
    with pytest.raises(InputError, match=said):
        labelled({"w": (4, 4)}, rules=rules)


@pytest.mark.parametrize(
    "call,said",
    [
        (lambda: fused("qqv", axis=0), "letters must be parts of q, k, v, o"),
        (lambda: fused("qkv", axis=0.5), "axis must be an integer"),
        (lambda: fused("qkv", axis=0, sizes=(1, 2)), "sizes must be one for each of 'qkv'"),
        (lambda: fused("qkv", axis=0, sizes=(1, 2, 0)), "each of sizes must be an integer >= 1"),
        (lambda: fused("qkv", axis=0, heads=0), "heads must be an integer >= 1"),
        (lambda: Slices(0, (("qk", 0, 2), ("ov", 3, 4))), "parts must be"),
        (lambda: Slices(-1, "qkv"), "parts must be"),
        (lambda: Slices(-1, (("qk", 1),)), r"parts must be \(label, start, stop\)"),
        (lambda: Slices(-1, (("qk", 0, 1.5),)), "parts must be"),
        (lambda: Slices(-1, ((3, 0, 1),)), "parts must be"),
        (lambda: Slices("a", (("qk", 0, 1),)), "axis must be an integer"),
    ],
)
def test_wrong_slices(call, said, unchecked):
    with pytest.raises(InputError, match=said):
        call()

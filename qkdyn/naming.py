"""What the name of a parameter says: query, key, value, output, or several fused. Strings alone; neither JAX nor PyTorch."""

import re
from collections.abc import Collection
from typing import NamedTuple

# Words that say nothing of the circuit, alone or beside one that does (q_proj, attn_q, linear_q, to_q, W_Q).
_FILL = frozenset(
    (
        *("w", "c", "proj", "projection", "linear", "lin", "layer", "to", "attn", "attention", "self", "cross", "net"),
        *("fc", "mat", "matrix", "kernel", "weight", "weights", "bias", "dense"),
    )
)
_NORM = frozenset(("norm", "ln", "layernorm", "rmsnorm", "rms", "l2norm"))
_LETTER = {
    **dict.fromkeys(("q", "query", "queries", "qs"), "q"),
    **dict.fromkeys(("k", "key", "keys", "ks"), "k"),
    **dict.fromkeys(("v", "value", "values", "vs"), "v"),
    **dict.fromkeys(("o", "out", "output", "outputs"), "o"),
}
_FUSED = frozenset(("qkv", "qvk", "kqv", "kvq", "vqk", "vkq", "kv", "vk", "qk", "kq", "ov"))
# Fused names that models in wide use fill in blocks, where others have one part after the other: what a block is, in which
# models, and the rule that says so.
BLOCKS = {
    "head": (
        "queries, keys and values head by head (GPT-NeoX, BLOOM, Falcon)",
        "fused('qkv', axis=..., heads=number of heads)",
    ),
    "device": (
        "queries, values and keys, in this order, in 4 or 8 blocks (CodeGen, ProGen2, MOSS)",
        "fused('qvk', axis=..., heads=number of blocks)",
    ),
    "group": (
        "queries, keys and values by key-value head (InternLM2)",
        "fused('qkv', axis=..., sizes=(queries of a group x head size, head size, head size), heads=key-value heads)",
    ),
}


class Part(NamedTuple):
    """What one component of a path says.

    Attributes:
        letters: of q, k, v, o, in the order of the name: "q", "kv", "qkv"; "" where the name only hints at one.
        norm: whether it is a normalization of these.
        rank: how surely an output is meant, 0 best: o_proj; out; c_proj, proj; dense. Also 1 for in_proj, which need not be
            attention's. 0 for everything else.
    """

    letters: str
    norm: bool = False
    rank: int = 0


class Place(NamedTuple):
    """Where in a path the part stands: the folder, the component, what it says."""

    folder: tuple[str, ...]
    name: str
    part: Part


def words(component: str) -> list[str]:
    """`component` in lower-case words, its number at the end left out: "SelfAttention_0" is self, attention."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", component)
    return [word for word in re.split(r"[^a-z0-9]+", re.sub(r"_\d+$", "", spaced).lower()) if word]


def part_of(component: str) -> Part | None:
    """What a component says; None where it says nothing of attention's parts."""
    said = words(component)
    name = "_".join(said)
    if re.sub("_(weight|bias|kernel)$", "", name) == "c_attn":
        return Part("qkv")
    if re.sub("_(weight|bias|kernel)$", "", name) == "in_proj":
        return Part("qkv", rank=0 if len(said) == 3 else 1)
    # wq, bq, wqkv: a matrix or bias, without a dash between.
    said = [word[1:] if word[:1] in "wb" and word[1:] in (*_FUSED, *"qkvo") else word for word in said]
    said = said[1:] if said[:1] == ["b"] else said
    core = [word for word in said if word not in _FILL and word not in _NORM]
    norm = any(word in _NORM for word in said)
    if not core:
        if norm or not {"proj", "projection", "dense", "linear", "fc"} & set(said):
            return None
        return Part("o", rank=2 if {"proj", "projection"} & set(said) else 3)
    letters = [_LETTER.get(word, word if word in _FUSED else None) for word in core]
    joined = "".join(letter for letter in letters if letter)
    if None not in letters and (joined in _FUSED or joined in tuple("qkvo")):
        return Part(joined, norm, int(joined == "o" and core != ["o"]))
    return Part("") if set(joined) & set("qkv") else None


def blocks_of(name: str, outputs: Collection[str]) -> tuple[str, str] | None:
    """What of `BLOCKS` a fused parameter of this name may be, beside outputs of these names; None: one part after the other.

    Case tells some apart: wqkv beside wo is InternLM2's (and others'), Wqkv ModernBERT's, MPT's and FlashAttention's.
    """
    joined, beside = "_".join(words(name)), {"_".join(words(output)) for output in outputs}
    if joined in ("query_key_value", "linear_qkv"):
        return BLOCKS["head"]
    if joined == "qkv_proj" and "out_proj" in beside:
        return BLOCKS["device"]
    return BLOCKS["group"] if name == "wqkv" and "wo" in outputs else None


def is_bias(path: tuple[str, ...]) -> bool:
    """Whether the last component says bias: bias, in_proj_bias, b_O, bq."""
    said = words(path[-1]) if path else []
    return bool({"bias", "b"} & set(said)) or any(w[:1] == "b" and w[1:] in (*_FUSED, *"qkvo") for w in said)


def place_of(path: tuple[str, ...]) -> Place | None:
    """The part that a parameter belongs to, by the nearest of the last three components that says one.

    A plain "dense" or "proj" below says less than the "query" or "output" above it. Of an adapter
    (q_proj/lora_A/default/weight) the components above it count where its own say nothing.
    """
    place = _nearest(path)
    adapter = next((i for i, component in enumerate(path) if "lora" in words(component)), 0)
    return _nearest(path[:adapter]) if place is None and adapter else place


def _nearest(path: tuple[str, ...]) -> Place | None:
    weak, norm = None, False
    for i in reversed(range(max(0, len(path) - 3), len(path))):
        said = words(path[i])
        norm = norm or (said[-1:] != ["layer"] and bool(said) and set(said) <= {*_NORM, "layer"})
        part = part_of(path[i])
        if part is None:
            continue
        place = Place(path[:i], path[i], part._replace(norm=part.norm or norm))
        if part.rank < 2:
            return place
        weak = weak or place
    return weak

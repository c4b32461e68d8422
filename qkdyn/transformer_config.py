"""What a transformer of the text experiments is made of: one frozen, hashable description; and the checks against it."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qkdyn.errors import check_count, check_positive, reject

_CHOICES = {
    "activation": ("gelu_new", "gelu"),
    "layer_norm": ("none", "pre"),
    "readout": ("query", "last", "first_pad"),
}
_SWITCHES = ("residual", "causal", "mask_padding", "positions", "biases", "tied")


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes and switches of a transformer; static under jit.

    Attributes:
        vocabulary: number of tokens.
        n_ctx: rows of the position embedding, the longest post in tokens.
        n_outputs: logits at a position: classes, or the vocabulary where `tied`.
        n_layers: blocks of attention and MLP.
        d_model: width of the residual stream.
        n_heads: heads of a layer.
        d_head: width of a head, independent of the others; scores are scaled by d_head**-0.5.
        d_mlp: width of the MLP; None for attention alone.
        activation: of the MLP, "gelu_new" (GPT-2's tanh form) or "gelu" (exact).
        layer_norm: "none", or "pre": before attention, before the MLP and before the head.
        residual: add what each part computes to what it read; else it replaces it.
        causal: tokens attend to those before them and to themselves only.
        mask_padding: positions from a post's length on get no attention; else they are tokens like all others.
        positions: add a learned embedding of the position.
        biases: of the heads, the MLP, the head of the model and LayerNorm.
        dropout: share dropped of embeddings, attention, and the MLP after its activation and after its output.
        readout: position whose output is the prediction: "query" (a token appended to the post) and "last" (real token)
            are both the last before the padding; "first_pad" is the one after it, see `readout_positions`.
        init_std: standard deviation of every matrix at the start.
        tied: the head is the transpose of the token embedding.

    Raises:
        InputError: a value that is not as said.
    """

    vocabulary: int
    n_ctx: int
    n_outputs: int
    n_layers: int = 1
    d_model: int = 64
    n_heads: int = 4
    d_head: int = 64
    d_mlp: int | None = 256
    activation: str = "gelu_new"
    layer_norm: str = "none"
    residual: bool = True
    causal: bool = True
    mask_padding: bool = True
    positions: bool = True
    biases: bool = True
    dropout: float = 0.0
    readout: str = "query"
    init_std: float = 0.02
    tied: bool = False

    def __post_init__(self) -> None:
        for name in ("vocabulary", "n_ctx", "n_outputs", "n_layers", "d_model", "n_heads", "d_head"):
            check_count(name, getattr(self, name))
        if self.d_mlp is not None:
            check_count("d_mlp", self.d_mlp, do="for a model without MLP write None")
        for name, allowed in _CHOICES.items():
            value: Any = getattr(self, name)
            if value not in allowed:
                reject(name, value, "one of " + ", ".join(allowed))
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                reject(name, getattr(self, name), "True or False")
        if check_positive("dropout", self.dropout, zero=True) >= 1:
            reject("dropout", self.dropout, "a share in [0, 1)", "0 drops nothing")
        check_positive("init_std", self.init_std, zero=True)
        if self.tied and self.n_outputs != self.vocabulary:
            reject("n_outputs", self.n_outputs, f"the vocabulary, {self.vocabulary}, where the head is tied to it")


def shapes(config: TransformerConfig) -> dict[str, Any]:
    """The shape of every parameter, in the tree that `init_transformer` returns."""
    V, d, M = config.vocabulary, config.d_model, config.n_outputs
    H, dh, m = config.n_heads, config.d_head, config.d_mlp
    layer: dict[str, Any] = {
        "qk": {"W_Q": (H, d, dh), "W_K": (H, d, dh), "b_Q": (H, dh), "b_K": (H, dh)},
        "ov": {"W_V": (H, d, dh), "W_O": (H, dh, d), "b_V": (H, dh), "b_O": (d,)},
    }
    norms = ("1", "2") if m else ("1",)
    if m:
        layer["mlp"] = {"W_in": (d, m), "b_in": (m,), "W_out": (m, d), "b_out": (d,)}
    tree: dict[str, Any] = {
        "embed": {"W_E": (V, d)} | ({"W_pos": (config.n_ctx, d)} if config.positions else {}),
        "head": ({} if config.tied else {"W_U": (d, M)}) | {"b_U": (M,)},
    }
    if config.layer_norm == "pre":
        layer["rest"] = {f"{name}_{number}": (d,) for number in norms for name in ("g", "b")}
        tree["rest"] = {"g_f": (d,), "b_f": (d,)}
    tree["layers"] = (layer,) * config.n_layers
    return tree if config.biases else _without_biases(tree)


def _without_biases(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _without_biases(part) for name, part in tree.items() if not name.startswith("b_")}
    return tuple(map(_without_biases, tree)) if tree and isinstance(tree[0], dict) else tree


def parameter_names(config: TransformerConfig) -> list[str]:
    """The names of all parameters, each once, such as W_Q."""
    leaves = jax.tree_util.tree_leaves_with_path(shapes(config), is_leaf=is_shape)
    return list(dict.fromkeys(path[-1].key for path, _ in leaves))


def is_shape(node: Any) -> bool:
    """Whether a node of `shapes` is a leaf."""
    return isinstance(node, tuple) and all(isinstance(size, int) for size in node)


def check_shapes(
    params: Any, config: TransformerConfig, tokens: Any, length: Any, embedded: Any, queries: Any, every: bool
) -> None:
    """Raise InputError unless all arrays fit each other and the configuration."""
    wanted = shapes(config)
    found = jax.tree.map(jnp.shape, params)
    if embedded is not None and not config.tied and "W_E" not in found.get("embed", {}):
        wanted["embed"].pop("W_E")
    if found != wanted:
        _reject_params(found, wanted)
    for name, array in (("tokens", tokens), ("length", length), ("queries", queries)):
        if array is not None and not jnp.issubdtype(getattr(array, "dtype", type(array)), jnp.integer):
            reject(name, getattr(array, "dtype", array), "an array of integers")
    if tokens.ndim != 2 or 0 in tokens.shape:
        reject("tokens", list(tokens.shape), "of shape (posts, slots), none of them 0")
    B, T = tokens.shape
    if config.n_ctx < T:
        reject(
            "tokens", list(tokens.shape), f"of at most n_ctx = {config.n_ctx} slots", "truncate posts or raise n_ctx"
        )
    if length.shape != (B,):
        reject("length", list(length.shape), f"of shape ({B},), one for each post of tokens")
    if embedded is not None and embedded.shape != (B, T, config.d_model):
        reject("embedded", list(embedded.shape), f"of shape {(B, T, config.d_model)}, a vector for each token")
    if queries is not None and every:
        reject("queries", list(queries.shape), "None where every position is read", "leave out one of the two")
    if queries is not None and (queries.ndim != 2 or len(queries) != B or 0 in queries.shape):
        reject("queries", list(queries.shape), f"of shape ({B}, rows), positions of each post of tokens")


def _reject_params(found: Any, wanted: Any) -> None:
    def flat(tree: Any) -> dict[str, Any]:
        leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_shape)
        return {jax.tree_util.keystr(path, simple=True, separator="/"): shape for path, shape in leaves}

    found, wanted = flat(found), flat(wanted)
    differing = {name: found.get(name) for name in sorted(found | wanted) if found.get(name) != wanted.get(name)}
    reject(
        "params",
        differing,
        str({name: wanted.get(name) for name in differing}),
        "make them with init_transformer(key, config)",
    )


def check_values(config: TransformerConfig, tokens: Any, length: Any, queries: Any) -> None:
    """Raise InputError for values out of range; only numpy arrays are looked at, traced and device arrays are trusted."""
    T = tokens.shape[1]
    for name, array, least, most in (
        ("tokens", tokens, 0, config.vocabulary - 1),
        ("length", length, 1, T),
        ("queries", queries, 0, T - 1),
    ):
        if isinstance(array, np.ndarray) and (array.min() < least or array.max() > most):
            where = np.argwhere((array < least) | (array > most))[0].tolist()
            reject(f"{name}{where}", int(array[tuple(where)]), f"an integer from {least} to {most}")

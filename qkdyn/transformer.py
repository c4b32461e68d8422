"""The transformer of the text experiments: many heads, many layers, the two circuits of `attention` in each.

Pure functions over one tree whose keys name the parts, so that `circuits.circuit_labels` labels all of it:
{"embed": {W_E, W_pos}, "layers": ({"qk": {W_Q, W_K, b_Q, b_K}, "ov": {W_V, W_O, b_V, b_O}, "mlp": {W_in, b_in, W_out, b_out},
"rest": {LayerNorm}}, ...), "rest": {LayerNorm}, "head": {W_U, b_U}}; parts that a configuration lacks have no keys.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from qkdyn.few_rows import attend_few
from qkdyn.transformer_config import TransformerConfig, check_shapes, check_values, is_shape, shapes
from qkdyn.transformer_parts import (
    attend,
    dropped,
    keys_of,
    mlp,
    normed,
    picked,
    plus,
    queries_of,
    split,
    values_of,
    wide,
    written,
)

__all__ = ["Output", "TransformerConfig", "forward", "head", "init_transformer", "readout_positions", "states"]

Tree = dict[str, Any]


class Output(NamedTuple):
    """What a transformer returns.

    Attributes:
        logits: (B, Q, n_outputs) at the rows read.
        attention: of each layer (B, n_heads, rows, T), each row summing to one; rows are all T positions, in the last layer
            the Q that are read.
    """

    logits: Any
    attention: tuple[Any, ...]


def init_transformer(key: Key[Array, ""], config: TransformerConfig) -> Tree:
    """Matrices N(0, init_std^2), each by a key of its own; biases 0, gains of LayerNorm 1. float32."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes(config), is_leaf=is_shape)

    def draw(number: int, name: str, shape: tuple[int, ...]) -> Array:
        if name.startswith("W_"):
            return config.init_std * jax.random.normal(jax.random.fold_in(key, number), shape, jnp.float32)
        return jnp.full(shape, float(name.startswith("g_")), jnp.float32)

    drawn = [draw(number, path[-1].key, shape) for number, (path, shape) in enumerate(leaves)]
    return jax.tree.unflatten(structure, drawn)


def readout_positions(
    length: Int[Array | np.ndarray, "*batch"], config: TransformerConfig, width: int
) -> Int[Array, "*batch"]:
    """The position whose output is the prediction.

    Args:
        length: real tokens of each post, the query token included.
        config: `readout` decides: length - 1 for "query" and "last"; length for "first_pad".
        width: slots of each post, T. A post that fills them all has no pad: "first_pad" then gives 0, as the published
            code's argmax does. Trim batches read at the first pad no narrower than one slot more than their longest post.
    """
    length = jnp.asarray(length)
    if config.readout == "first_pad":
        return jnp.where(length < width, length, 0)
    return length - 1


def forward(
    params: Tree,
    config: TransformerConfig,
    tokens: Int[Array | np.ndarray, "B T"],
    length: Int[Array | np.ndarray, " B"],
    *,
    embedded: Float[Array, "B T d"] | None = None,
    queries: Int[Array | np.ndarray, "B Q"] | None = None,
    every: bool = False,
    key: Key[Array, ""] | None = None,
) -> Output:
    """Logits and attention of a batch of posts; only what is read is computed.

    Args:
        params: as `init_transformer` returns them.
        config: static.
        tokens: padded on the right.
        length: real tokens of each post, 1 to T.
        embedded: the token vectors W_E[tokens], without positions, if the caller has gathered them: W_E is then not touched
            and may be missing from params (unless the head is tied to it), and its gradient is the caller's to scatter.
        queries: positions read, i.e. the rows that the last layer computes; None for the readout position alone (Q = 1).
        every: read every position (Q = T).
        key: for dropout, which is off without one.

    Raises:
        InputError: shapes that do not fit each other or the configuration; token ids, lengths or queries out of range
            (where they are numpy arrays).
    """
    x, maps = states(params, config, tokens, length, embedded=embedded, queries=queries, every=every, key=key)
    return Output(head(params, config, x), maps)


def states(
    params: Tree,
    config: TransformerConfig,
    tokens: Int[Array | np.ndarray, "B T"],
    length: Int[Array | np.ndarray, " B"],
    *,
    embedded: Float[Array, "B T d"] | None = None,
    queries: Int[Array | np.ndarray, "B Q"] | None = None,
    every: bool = False,
    key: Key[Array, ""] | None = None,
) -> tuple[Float[Array, "B Q d"], tuple[Float[Array, "B H _ T"], ...]]:
    """`forward` up to its head: what the last layer leaves at the rows read, and the attention of every layer.

    A head of many outputs is best computed, by `head`, at the rows that are asked for. Arguments and errors as of `forward`.
    """
    check_shapes(params, config, tokens, length, embedded, queries, every)
    check_values(config, tokens, length, queries)
    params = jax.tree.map(jnp.asarray, params)
    tokens, length = jnp.asarray(tokens), jnp.asarray(length)
    T = tokens.shape[1]
    if queries is None and not every:
        queries = readout_positions(length, config, T)[:, None]
    x = params["embed"]["W_E"][tokens] if embedded is None else embedded
    if config.positions:
        x = x + params["embed"]["W_pos"][None, :T]
    keys = split(key if config.dropout else None, config.n_layers + 1)
    x = dropped(x, config.dropout, keys[-1])
    maps = []
    for number, layer in enumerate(params["layers"]):
        rows = None if queries is None or number < config.n_layers - 1 else jnp.asarray(queries)
        x, attention = _block(layer, config, x, length, rows, keys[number])
        maps.append(attention)
    return x, tuple(maps)


def head(params: Tree, config: TransformerConfig, x: Float[Array, "B Q d"]) -> Float[Array, "B Q M"]:
    """Logits of rows of `states`: the last LayerNorm and the head."""
    params = jax.tree.map(jnp.asarray, {name: part for name, part in params.items() if name != "layers"})
    x = normed(params, config, "f", x)
    if config.tied:
        logits = jnp.einsum("bqd,md->bqm", x, params["embed"]["W_E"])
    else:
        logits = jnp.einsum("bqd,dm->bqm", x, params["head"]["W_U"])
    return plus(wide(logits), params["head"].get("b_U"))


def _block(
    layer: Tree,
    config: TransformerConfig,
    x: Float[Array, "B T d"],
    length: Int[Array, " B"],
    queries: Int[Array, "B Q"] | None,
    key: Key[Array, ""] | None,
) -> tuple[Float[Array, "B rows d"], Float[Array, "B H rows T"]]:
    """One layer at the rows `queries`, or at every row."""
    keys = split(key, 3)
    read = normed(layer, config, "1", x)
    rows, asking = (x, read) if queries is None else (picked(x, queries), picked(read, queries))
    attended, attention = _attend(layer, config, read, asking, _allowed(config, length, queries, x.shape[1]), keys[0])
    x = rows + attended if config.residual else attended
    return mlp(layer, config, x, (keys[1], keys[2])), attention


def _allowed(
    config: TransformerConfig, length: Int[Array, " B"], queries: Int[Array, "B Q"] | None, T: int
) -> Bool[Array, "#B #Q T"] | None:
    """Which key each row may attend to; None for all. A row always has one: lengths are at least 1."""
    allowed = None
    position = jnp.arange(T)
    if config.causal:
        row = position[None] if queries is None else queries
        allowed = position[None, None] <= row[:, :, None]
    if config.mask_padding:
        real = position[None, None] < length[:, None, None]
        allowed = real if allowed is None else allowed & real
    return allowed


def _attend(
    layer: Tree,
    config: TransformerConfig,
    x: Float[Array, "B T d"],
    rows: Float[Array, "B Q d"],
    allowed: Bool[Array, "#B #Q T"] | None,
    key: Key[Array, ""] | None,
) -> tuple[Float[Array, "B Q d"], Float[Array, "B H Q T"]]:
    """Multi-head attention of `rows` to x.

    With few rows, keys and values of all T tokens are not worth computing: x W_K q = x (W_K q) and a (x W_V) = (a x) W_V are
    the same by associativity.
    """
    (B, T, d), Q, H, dh = x.shape, rows.shape[1], config.n_heads, config.d_head
    allowed = None if allowed is None else jnp.broadcast_to(allowed[:, None], (B, H, Q, T))
    kept = None if key is None else dropped(jnp.ones((B, H, Q, T), x.dtype), config.dropout, key)
    q = queries_of(layer, config, rows)
    # Multiplications of one head, the same for scores and for values.
    if Q * d * dh + Q * T * d < T * d * dh + Q * T * dh:
        direction = jnp.einsum("bhqe,hde->bhqd", q, layer["qk"]["W_K"])
        flat = [None if part is None else part.reshape(B, H * Q, -1) for part in (direction, allowed, kept)]
        attention, mean = attend_few(flat[0], x, flat[1], flat[2])
        attention = attention.reshape(B, H, Q, T)
        mixed = jnp.einsum("bhqd,hde->bhqe", mean.reshape(B, H, Q, d), layer["ov"]["W_V"])
    else:
        attention, mixed = attend(q, keys_of(layer, x), values_of(layer, x), allowed, kept)
    total = None if kept is None else (attention * kept).sum(-1, keepdims=True).astype(x.dtype)
    return written(layer, mixed, total), attention

"""The parts of a transformer's layer: of the model that reads whole texts and of decoding, which keeps keys and values.

Computed in the precision of the parameters, but for the statistics of LayerNorm, softmax and the logits, which are in float32
at least.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from qkdyn.dropout import survivors
from qkdyn.transformer_config import TransformerConfig

_EPSILON = 1e-5  # Added to the variance by LayerNorm.
# The parameters of a layer, or the whole tree.
Tree = Any


def normed(params: Tree, config: TransformerConfig, name: str, x: Float[Array, "B T d"]) -> Float[Array, "B T d"]:
    """LayerNorm over the last axis, by the parameters of that name in `rest`; x itself in a model without."""
    if config.layer_norm == "none":
        return x
    norm = params["rest"]
    centred = wide(x) - wide(x).mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + _EPSILON)
    return plus(scaled.astype(x.dtype) * norm[f"g_{name}"][None, None], norm.get(f"b_{name}"))


def queries_of(layer: Tree, config: TransformerConfig, rows: Float[Array, "B Q d"]) -> Float[Array, "B H Q dh"]:
    """What each row looks for, scaled: scores are its products with the keys."""
    return config.d_head**-0.5 * biased(to_heads(rows, layer["qk"]["W_Q"]), layer["qk"].get("b_Q"))


def keys_of(layer: Tree, x: Float[Array, "B T d"]) -> Float[Array, "B H T dh"]:
    """Keys without b_K: it adds one number to all scores of a row, which softmax does not see.

    Its gradient is exactly the zero that it would be up to rounding.
    """
    return to_heads(x, layer["qk"]["W_K"])


def values_of(layer: Tree, x: Float[Array, "B T d"]) -> Float[Array, "B H T dh"]:
    """Values without b_V, which `written` adds to their mean: attention sums to one."""
    return to_heads(x, layer["ov"]["W_V"])


def attend(
    q: Float[Array, "B H Q dh"],
    keys: Float[Array, "B H T dh"],
    values: Float[Array, "B H T dh"],
    allowed: Bool[Array, "B #H #Q T"] | None,
    kept: Float[Array, "B H Q T"] | None = None,
) -> tuple[Float[Array, "B H Q T"], Float[Array, "B H Q dh"]]:
    """Attention, and the mean of the values weighted by it, times `kept` where there is dropout."""
    score = wide(jnp.einsum("bhqe,bhte->bhqt", q, keys))
    attention = jax.nn.softmax(score if allowed is None else jnp.where(allowed, score, -jnp.inf))
    weight = attention if kept is None else attention * kept
    return attention, jnp.einsum("bhqt,bhte->bhqe", weight.astype(values.dtype), values)


def written(
    layer: Tree, mixed: Float[Array, "B H Q dh"], total: Float[Array, "B H Q 1"] | None = None
) -> Float[Array, "B Q d"]:
    """What the heads write together; `total` is the weight of the values, None for one."""
    ov = layer["ov"]
    return plus(from_heads(biased(mixed, ov.get("b_V"), total), ov["W_O"]), ov.get("b_O"))


def mlp(
    layer: Tree, config: TransformerConfig, x: Float[Array, "B Q d"], keys: tuple[Any, Any] = (None, None)
) -> Float[Array, "B Q d"]:
    """Rows x after the MLP, or as they are in a model without; keys are for dropout."""
    if config.d_mlp is None:
        return x
    part = layer["mlp"]
    hidden = plus(jnp.einsum("bqd,dm->bqm", normed(layer, config, "2", x), part["W_in"]), part.get("b_in"))
    hidden = dropped(jax.nn.gelu(hidden, approximate=config.activation == "gelu_new"), config.dropout, keys[0])
    out = dropped(plus(jnp.einsum("bqm,md->bqd", hidden, part["W_out"]), part.get("b_out")), config.dropout, keys[1])
    return x + out if config.residual else out


# One product with the heads side by side: measured faster on CPUs than one for each head.
def to_heads(x: Float[Array, "B T d"], W: Float[Array, "H d dh"]) -> Float[Array, "B H T dh"]:
    """X W of every head."""
    (B, T, d), (H, _, dh) = x.shape, W.shape
    side_by_side = x.reshape(B * T, d) @ W.transpose(1, 0, 2).reshape(d, H * dh)
    return side_by_side.reshape(B, T, H, dh).transpose(0, 2, 1, 3)


def from_heads(z: Float[Array, "B H Q dh"], W: Float[Array, "H dh d"]) -> Float[Array, "B Q d"]:
    """The sum over heads of z W."""
    (B, H, Q, dh), d = z.shape, W.shape[-1]
    return (z.transpose(0, 2, 1, 3).reshape(B * Q, H * dh) @ W.reshape(H * dh, d)).reshape(B, Q, d)


def biased(
    z: Float[Array, "B H Q dh"], bias: Float[Array, "H dh"] | None, total: Float[Array, "B H Q 1"] | None = None
) -> Float[Array, "B H Q dh"]:
    """A bias of each head added, times `total`; none where there is none."""
    if bias is None:
        return z
    return z + (bias[None, :, None] if total is None else total * bias[None, :, None])


def picked(x: Float[Array, "B T d"], queries: Int[Array, "B Q"]) -> Float[Array, "B Q d"]:
    """The rows of x at `queries`."""
    return jnp.take_along_axis(x, queries[:, :, None], axis=1)


def plus(x: Float[Array, "B Q n"], bias: Float[Array, " n"] | None) -> Float[Array, "B Q n"]:
    """A bias added, if there is one."""
    return x if bias is None else x + bias[None, None]


def wide(x: Array) -> Array:
    """In float32, unless in more."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def split(key: Key[Array, ""] | None, count: int) -> list[Any]:
    """So many keys, or None of each."""
    return [None] * count if key is None else list(jax.random.split(key, count))


def dropped(x: Array, share: float, key: Key[Array, ""] | None) -> Array:
    """Zero a share of x and scale up the rest, so that the mean stays; x itself without a key."""
    if key is None:
        return x
    return jnp.where(survivors(key, share, x.shape), x / (1 - share), 0.0)

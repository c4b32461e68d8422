"""A language model of ten million parameters, fused or not, on which optimizer and watching are measured."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

HEADS = 5
# (width, layers, vocabulary, posts, tokens of each): 10.2 million parameters, and next to nothing.
FULL, QUICK = (320, 8, 1000, 4, 64), (20, 1, 30, 2, 8)


def begun(sizes: tuple[int, ...], fused: bool) -> tuple[Any, Any]:
    """Parameters and token ids."""
    d, layers, vocabulary, posts, length = sizes
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, np.float32) / np.sqrt(d))

    attention = ({"qkv": (d, 3 * d)} if fused else dict.fromkeys(("q", "k", "v"), (d, d))) | {"o": (d, d)}
    shapes = {"attn": attention, "fc": {"in": (d, 4 * d), "out": (4 * d, d)}}
    blocks = [jax.tree.map(lambda s: drawn(*s), shapes, is_leaf=lambda n: isinstance(n, tuple)) for _ in range(layers)]
    params = {"blocks": blocks, "tokens": drawn(vocabulary, d)}
    return params, jnp.asarray(rng.integers(0, vocabulary, (posts, length)))


def loss(params: Any, ids: Any) -> tuple[Any, list[Any]]:
    """Mean cross-entropy of the next token, and the attention of each layer, (posts, heads, queries, keys)."""
    x, maps = params["tokens"][ids], []
    mask = causal(ids)
    for block in params["blocks"]:
        own = block["attn"]
        normed = jax.nn.standardize(x)
        q, k, v = jnp.split(normed @ own["qkv"], 3, -1) if "qkv" in own else (normed @ own[name] for name in "qkv")
        q, k, v = (part.reshape(*part.shape[:2], HEADS, -1).swapaxes(1, 2) for part in (q, k, v))
        maps.append(jax.nn.softmax(jnp.where(mask, q @ k.mT / np.sqrt(q.shape[-1]), -jnp.inf)))
        x = x + (maps[-1] @ v).swapaxes(1, 2).reshape(x.shape) @ own["o"]
        x = x + jax.nn.gelu(jax.nn.standardize(x) @ block["fc"]["in"]) @ block["fc"]["out"]
    logits = jax.nn.log_softmax(x[:, :-1] @ params["tokens"].T)
    return -jnp.take_along_axis(logits, ids[:, 1:, None], -1).mean(), maps


def causal(ids: Any) -> Any:
    """True at the keys that a query may attend to, (1, 1, queries, keys)."""
    return jnp.tril(jnp.ones((ids.shape[1],) * 2, bool))[None, None]

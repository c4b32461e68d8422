"""Attention maps by the name of their layer: out of what a Flax module sowed, what a function returned, or an Equinox module.

A map is (..., queries, keys), as it comes from the softmax; nothing here computes on it or leaves the device.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from qkdyn.errors import InputError, reject

Maps = dict[str, Any]
AnyArray = Array | np.ndarray


def sown(intermediates: Any, name: str = "attention_weights") -> Maps:
    """The maps that attention modules sowed, by the path of their module.

    Linen: `output, variables = model.apply(params, x, mutable=["intermediates"])`, with `sow_weights=True` where the model
    calls `MultiHeadDotProductAttention`, and `sown(variables)`. NNX: `output, state = nnx.capture(model,
    nnx.Intermediate)(x)`, with `sow_weights=True` where it calls `MultiHeadAttention`, and `sown(state)`. A module that is
    called several times has a number for each call after its name.

    NNX modules that sow outside of `nnx.capture`, in the training step for example, keep the maps of every call: the model
    grows, and `nnx.jit` compiles each step anew. Pass `sow_weights=True` where it is captured and False everywhere else.

    Args:
        intermediates: Linen's variables or their "intermediates"; an NNX state.
        name: under which the maps were sowed; both libraries say "attention_weights".

    Returns:
        {"layers_0/attention": (..., queries, keys), ...}; of layers in an `nn.scan` one array, for which see `by_layer`.

    Raises:
        InputError: nothing was sowed under `name`; the message says what was.
    """
    found: dict[str, list[Any]] = {}
    others = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(intermediates)[0]:
        parts = [jax.tree_util.keystr((part,), simple=True) for part in path]
        if name not in parts:
            others.append("/".join(parts))
            continue
        above = parts[: parts.index(name)]
        found.setdefault("/".join(above[1:] if above[:1] == ["intermediates"] else above) or "layer_0", []).append(leaf)
    if not found:
        raise InputError(
            f"intermediates must hold maps under {name!r}, got {', '.join(others) or 'nothing'}; call the attention module "
            'with sow_weights=True and the model with mutable=["intermediates"] (Linen) or in nnx.capture(model, '
            "nnx.Intermediate) (NNX), or pass the name that your module sows them under"
        )
    maps = {}
    for layer, leaves in found.items():
        maps |= {layer: leaves[0]} if len(leaves) == 1 else {f"{layer}/{i}": leaf for i, leaf in enumerate(leaves)}
    return maps


def named(maps: Any) -> Maps:
    """Returned maps by the names of their layers.

    Args:
        maps: one array; a list or tuple of them, one for each layer; or a tree of them, whose keys are the names.

    Returns:
        {"layer_0": ..., "layer_1": ...}, or {"encoder/0": ...} by the path in the tree.

    Raises:
        InputError: no array.
    """
    leaves = jax.tree_util.tree_flatten_with_path(maps)[0]
    if not leaves:
        reject("maps", maps, "attention maps: an array, a list of arrays or a tree of them")
    if len(leaves) == 1 and not leaves[0][0]:
        return {"layer_0": maps}
    prefix = "layer_" if isinstance(maps, Sequence) else ""
    return {prefix + jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def by_layer(maps: Any, axis: int = 0) -> Maps:
    """Maps of layers that were scanned, which lie stacked in one array, as maps of single layers.

    Args:
        maps: as for `named`; every array has an axis of layers.
        axis: which one; 0 as in `nn.scan(..., variable_axes={"intermediates": 0})` and `jax.lax.scan`.

    Returns:
        {"layer_0": ..., "layer_1": ...} of a bare array; else {"blocks/attention/0": ..., "blocks/attention/1": ...}.

    Raises:
        InputError: no array, or one without that axis in front of (queries, keys).
    """
    bare = not isinstance(maps, Sequence | dict) and hasattr(maps, "shape")
    apart = {}
    for name, stacked in named(maps).items():
        if not -stacked.ndim <= axis < stacked.ndim or axis % stacked.ndim >= stacked.ndim - 2:
            reject(
                f"axis of {name}", axis, f"an axis in front of (queries, keys), of an array of shape {stacked.shape}"
            )
        for i in range(stacked.shape[axis]):
            apart[f"layer_{i}" if bare else f"{name}/{i}"] = jax.lax.index_in_dim(stacked, i, axis, keepdims=False)
    return apart


def attend_with_maps(
    attention: Callable[..., Any],
    query: Float[AnyArray, "queries q_size"],
    key_: Float[AnyArray, "keys k_size"],
    value: Float[AnyArray, "keys v_size"],
    mask: Bool[AnyArray, "queries keys"] | Bool[AnyArray, "heads queries keys"] | None = None,
    *,
    process_heads: Callable[..., Any] | None = None,
    **options: Any,
) -> tuple[Any, Float[Array, "heads queries keys"]]:
    """Call an `equinox.nn.MultiheadAttention`, which keeps its maps to itself, and return them with its output.

    The maps are computed from the query and key heads that the module hands to its `process_heads`, as the module computes
    them: without dropout. Under jit XLA computes scores only once where it sees that they are the same.

    Args:
        attention: the module, of one sequence as Equinox has it; `jax.vmap` goes around this function.
        query: as the module takes it.
        key_: likewise.
        value: likewise.
        mask: likewise, True where attention may go.
        process_heads: likewise; the maps are those of the heads that it returns.
        options: handed on to the module.

    Returns:
        (output, maps), maps (heads, queries, keys).

    Raises:
        InputError: the module does not call `process_heads`.
    """
    seen: list[Any] = []
    query, key_, value = (jnp.asarray(of) for of in (query, key_, value))
    mask = None if mask is None else jnp.asarray(mask)

    def look(query_heads: Any, key_heads: Any, value_heads: Any) -> Any:
        if process_heads is not None:
            query_heads, key_heads, value_heads = process_heads(query_heads, key_heads, value_heads)
        scores = jnp.einsum("qhd,khd->hqk", query_heads / query_heads.shape[-1] ** 0.5, key_heads)
        if mask is not None:
            allowed = jnp.broadcast_to(mask if mask.ndim == 3 else mask[None], scores.shape)
            scores = jnp.where(allowed, scores, jnp.finfo(scores.dtype).min)
        wide = jnp.promote_types(scores.dtype, jnp.float32)
        seen.append(jax.nn.softmax(scores.astype(wide)).astype(scores.dtype))
        return query_heads, key_heads, value_heads

    output = attention(query, key_, value, mask, process_heads=look, **options)
    if not seen:
        reject("attention", type(attention).__name__, "a module that calls process_heads, as equinox's does")
    return output, seen[0]

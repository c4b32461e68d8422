"""What is measured of attention maps (..., queries, keys), by query or by head: the formulas of `qkdyn.metrics` inside jit.

Of every query: `entropy` in nats; `entropy_share`, over that of uniform attention to the keys that it may attend to;
`effective_tokens`, exp(entropy), the effective number of attended tokens; `top_k_mass`, on the k most attended keys;
`relevant_mass`, on the keys that are told to be relevant. Of a head: the mean of each over batch and queries, so
`effective_tokens` is the mean of exp(entropy), which is not exp of the mean.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from qkdyn.errors import check_count, reject
from qkdyn.metrics import cores
from qkdyn.metrics.checks import ROUNDING, as_counts, as_mask, as_shares, refuse_where
from qkdyn.observe.collect import named

__all__ = ["measure", "row_measures"]

# {layer: {measure: (heads,)}}
Measures = dict[str, dict[str, Any]]
AnyArray = Array | np.ndarray


def row_measures(
    attention: Float[AnyArray, "*batch queries keys"],
    *,
    mask: AnyArray | None = None,
    relevant: AnyArray | None = None,
    k: int | tuple[int, ...] = 1,
) -> dict[str, Float[Array, "*batch queries"]]:
    """The measures of every query's attention.

    Args:
        attention: after the softmax and before dropout; any floating type, computed in float32 at least.
        mask: bool, True where a query may attend to a key. As many axes as `attention`, each of its size or 1; or (keys,).
            Of a (batch, keys) padding mask for maps of (batch, heads, queries, keys) write mask[:, None, None, :].
        relevant: True at relevant keys, or weights in [0, 1] as for `qkdyn.metrics.attention.attention_mass`; axes as
            `mask`. None leaves `relevant_mass` out.
        k: one number of keys or several; `top_1_mass`, `top_5_mass`.

    Returns:
        {measure: (..., queries)}. Queries that may attend to nothing - no key in `mask`, or without `mask` a row of
        zeros - have 0 in all but `entropy_share`, which is 1.

        Inside jit, where values cannot be looked at, a row that does not sum to 1 over the keys it may attend to (give or
        take 1e-5, in 16 bits four units of rounding), or has an entry outside [0, 1], has NaN in all measures, and one of
        `relevant` outside [0, 1] makes its `relevant_mass` NaN.

    Raises:
        InputError: shapes or types that do not fit, a k that is not from 1 to the number of keys; outside jit also maps
            that are negative, not finite or do not sum to 1.
    """
    _check_map("attention", attention)
    return _rows("attention", attention, mask, relevant, k)[0]


def _rows(name: str, attention: Any, mask: Any, relevant: Any, k: Any) -> tuple[dict[str, Array], Array]:
    """The measures of every query, and which queries may attend to something."""
    ks = _numbers(k, attention.shape[-1])
    mask = _placed("mask", mask, attention.shape, boolean=True)
    share = _placed("relevant", relevant, attention.shape)
    _check_sums(name, attention, mask)
    given = jnp.asarray(attention)
    dtype = jnp.promote_types(given.dtype, jnp.float32)
    allowed = jnp.ones(given.shape, bool) if mask is None else mask
    weights = jnp.where(allowed, given.astype(dtype), 0)
    counted = weights.any(-1) if mask is None else allowed.any(-1)
    entropy = cores.entropy(jnp, weights)
    found = {
        "entropy": entropy,
        "entropy_share": cores.entropy_share(jnp, weights, allowed),
        "effective_tokens": jnp.exp(entropy),
        # XLA's top_k: all pairs of keys, as in `cores`, are too many for every query of a long sequence.
        **{f"top_{n}_mass": jnp.minimum(jax.lax.top_k(weights, n)[0].sum(-1), 1) for n in ks},
    }
    if share is not None:
        right = True if share.dtype == jnp.bool_ else _shares(share)
        found["relevant_mass"] = jnp.where(right, jnp.minimum(cores.mass(jnp, weights, share), 1), jnp.nan)
    whole = (jnp.abs(weights.sum(-1) - 1) <= _slack(given.dtype)) & _shares(weights)
    empty = {"entropy_share": 1.0}
    rows = {
        measure: jnp.where(counted, jnp.where(whole, value, jnp.nan), empty.get(measure, 0.0)).astype(dtype)
        for measure, value in found.items()
    }
    return rows, counted


def measure(
    maps: Any,
    *,
    mask: AnyArray | Mapping[str, AnyArray] | None = None,
    relevant: AnyArray | Mapping[str, AnyArray] | None = None,
    queries: AnyArray | Mapping[str, AnyArray] | None = None,
    k: int | tuple[int, ...] = 1,
    head_axis: int | None = -3,
) -> Measures:
    """The measures of every head of every layer: means over batch and queries.

    Args:
        maps: {layer: (..., queries, keys)} as from `sown`, or a tree of returned maps as for `named`.
        mask: as for `row_measures`, for all layers; or {layer: mask}. Queries that may attend to nothing are left out.
        relevant: likewise. Queries without a relevant key count as 0; choose others by `queries`.
        queries: True at the queries that count, so not at padding: as many axes as the maps but the last, or (queries,).
        k: as for `row_measures`.
        head_axis: the axis of heads, (batch, heads, queries, keys) unless told; None where there is none, which is one head.

    Returns:
        {layer: {measure: (heads,)}}; NaN where no query counts, or one that counts has NaN in `row_measures`.

    Raises:
        InputError: as for `row_measures`; a head axis that is not there; a layer that `mask`, `relevant` or `queries` lack.
    """
    values = {}
    for layer, attention in named(maps).items():
        told, seen, chosen = (
            _of(layer, name, given) for name, given in (("mask", mask), ("relevant", relevant), ("queries", queries))
        )
        _check_map(f"maps[{layer!r}]", attention)
        axis = _head_axis(layer, attention.shape, head_axis)
        chosen = _placed("queries", chosen, attention.shape[:-1], boolean=True)
        rows, counted = _rows(f"maps[{layer!r}]", attention, told, seen, k)
        counted = counted if chosen is None else counted & chosen
        means = tuple(i for i in range(counted.ndim) if i != axis)
        number = counted.sum(means)
        values[layer] = {
            name: (jnp.where(counted, value, 0).sum(means) / number).reshape(-1) for name, value in rows.items()
        }
    return values


def _of(layer: str, name: str, given: Any) -> Any:
    if not isinstance(given, Mapping):
        return given
    if layer not in given:
        reject(f"the layers of {name}", sorted(given), f"those of the maps, {layer!r} among them")
    return given[layer]


def _head_axis(layer: str, shape: tuple[int, ...], axis: int | None) -> int | None:
    if axis is None:
        return None
    if not -len(shape) <= axis < len(shape) or axis % len(shape) >= len(shape) - 2:
        do = "head_axis=None where maps have no axis of heads"
        reject("head_axis", axis, f"an axis of maps[{layer!r}], of shape {shape}, in front of (queries, keys)", do)
    return axis % len(shape)


def _numbers(k: Any, keys: int) -> tuple[int, ...]:
    ks = tuple(check_count("k", one) for one in (k if isinstance(k, tuple | list) else (k,)))
    as_counts("k", ks, keys)
    return ks


# How to write what would be taken for (queries, keys) by broadcasting, and is refused for that.
HINTS = {
    "queries": "of a (batch, queries) mask write queries[:, None, :]",
    "mask": "of a (batch, keys) mask write mask[:, None, None, :], of a (queries, keys) mask mask[None, None]",
    "relevant": "of (batch, keys) write relevant[:, None, None, :], of (queries, keys) relevant[None, None]",
}


def _placed(name: str, values: Any, shape: tuple[int, ...], boolean: bool = False) -> Any:
    """A mask in the shape of the maps."""
    if values is None:
        return None
    if not isinstance(values, jax.core.Tracer):
        as_mask(name, values) if boolean else as_shares(name, values)
    array = jnp.asarray(values)
    if boolean and array.dtype != jnp.bool_:
        reject(f"the type of {name}", str(array.dtype), "bool", "write e.g. mask != 0")
    fits = array.ndim == len(shape) and all(mine in (1, size) for mine, size in zip(array.shape, shape, strict=True))
    if not fits and array.shape != shape[-1:]:
        allowed = f"{shape}, with 1 for any of them, or {shape[-1:]}"
        reject(f"the shape of {name}", array.shape, allowed, HINTS[name])
    return jnp.broadcast_to(array.reshape((1,) * (len(shape) - array.ndim) + array.shape), shape)


def _slack(dtype: Any) -> float:
    """By how much a row may miss a sum of one."""
    return max(ROUNDING, 4 * float(jnp.finfo(dtype).eps))


def _shares(values: Any) -> Any:
    """Which rows have all values in [0, 1], give or take rounding."""
    return ((values >= -ROUNDING) & (values <= 1 + ROUNDING)).all(-1)


def _check_map(name: str, attention: Any) -> None:
    if getattr(attention, "ndim", 0) < 2 or not jnp.issubdtype(attention.dtype, jnp.floating):
        reject(name, attention, "a floating array (..., queries, keys)")


def _check_sums(name: str, attention: Any, mask: Any) -> None:
    """Raise InputError unless concrete maps sum to 1 where they may; traced ones are not looked at."""
    if isinstance(attention, jax.core.Tracer) or isinstance(mask, jax.core.Tracer):
        return
    weights = as_shares(name, attention)
    kept = weights if mask is None else weights * np.asarray(mask)
    total, counted = kept.sum(-1, dtype=np.float64), (weights if mask is None else np.asarray(mask)).any(-1)
    off = counted & (np.abs(total - 1) > _slack(attention.dtype))
    do = "keys are the last axis; take the maps after the softmax and before dropout, and the mask that the model used"
    refuse_where(off, f"{name}.sum(-1) over the keys that may be attended to", total, "1", do)

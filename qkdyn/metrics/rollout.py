"""Attention through several layers: rollout (Abnar & Zuidema, 2020), and the rows of single layers and heads."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from qkdyn.errors import reject
from qkdyn.metrics import cores
from qkdyn.metrics.checks import ROUNDING, as_counts, as_mask, as_shares, check_match, check_share

# One array of all layers, or for each layer one, the last of which may hold the measured row alone.
Maps = Float[np.ndarray, "*batch layers heads T T"] | Sequence[Float[np.ndarray, "..."]]
Position = int | np.integer | Int[np.ndarray, "*batch"]
Padding = Bool[np.ndarray, "*#batch T"] | None


def rollout(attentions: Maps, residual: float, *, padding: Padding = None) -> Float[np.ndarray, "*batch T T"]:
    """Attention rollout: A'_L ... A'_1, where A' = w mean_heads(A) + (1 - w) I with its rows summing to 1.

    Args:
        attentions: maps from queries (rows) to keys, from the first layer to the last: one array (..., layers, heads, T, T)
            or a list of (..., heads, T, T). Every row sums to 1 give or take 1e-5.
        residual: w, the weight of attention against the residual stream's identity, in [0, 1]: 0.5 in Abnar & Zuidema
            (2020); 1, as the published notebooks have it for HateXplain and SVA, is attention alone.
        padding: True at padding, (..., T): the rows of padding may also be all 0. They stay the identity's, or 0 if w is 1.

    Returns:
        (..., T, T), float64, each row the attention of a token of the last layer to the tokens of the input.

    Raises:
        InputError: no layer, maps that are not square or differ in shape, attention that is negative or NaN, a row that
            does not sum to 1 (names its layer, head and row), a residual outside [0, 1], padding that is not bool.
    """
    maps = _checked(attentions, padding, square=True)
    weight = check_share("residual", residual)
    T = maps[0].shape[-1]
    product = np.broadcast_to(np.eye(T), (*maps[0].shape[:-3], T, T))
    for layer in maps:
        mixed = weight * layer.mean(-3) + (1 - weight) * np.eye(T)
        total = mixed.sum(-1, keepdims=True)
        product = np.divide(mixed, total, out=np.zeros_like(mixed), where=total > 0) @ product
    return product


def rollout_row(
    attentions: Maps, position: Position, residual: float, *, padding: Padding = None
) -> Float[np.ndarray, "*batch T"]:
    """One row of `rollout` for each instance, without the other rows: what the token at `position` attends to.

    Args:
        attentions: as for `rollout`; the last layer's map may be (..., heads, 1, T), the row at `position` alone, as
            `qkdyn.transformer.forward` returns it.
        position: the measured row, one for all instances or one for each, (...): that of the prediction, for the attention
            that makes it. The published notebooks measure -1, the last slot, which for HateXplain and SVA is padding.
        residual: as for `rollout`.
        padding: as for `rollout`.

    Returns:
        (..., T), float64.

    Raises:
        InputError: as `rollout`; a position that is not a token.
    """
    maps = _checked(attentions, padding, square=False)
    weight = check_share("residual", residual)
    return cores.rollout_row(np, maps, _position(position, maps[-1]), weight)


def head_rows(
    attentions: Maps, position: Position, *, padding: Padding = None
) -> Float[np.ndarray, "layers *batch heads T"]:
    """The measured row of every layer and head by itself; its mean over heads is the layer's reading.

    Args:
        attentions: as for `rollout_row`.
        position: as for `rollout_row`.
        padding: as for `rollout`.

    Returns:
        (layers, ..., heads, T), float64: attention within each layer, between the positions of that layer's own inputs.

    Raises:
        InputError: as `rollout_row`; layers that differ in their number of heads.
    """
    maps = _checked(attentions, padding, square=False)
    heads = [layer.shape[-3] for layer in maps]
    if len(set(heads)) > 1:
        reject("the heads of attentions", heads, "as many in every layer", "read layers of other heads one by one")
    where = _position(position, maps[-1])
    rows = []
    for layer in maps:
        place = np.broadcast_to(where, layer.shape[:-3])[..., None, None, None]
        rows.append(np.take_along_axis(layer, place if layer.shape[-2] > 1 else place * 0, -2)[..., 0, :])
    return np.stack(rows)


def _position(position: Position, last: np.ndarray) -> np.ndarray:
    """Checked, and counted from the front."""
    T, lead = last.shape[-1], last.shape[:-3]
    where = as_counts("position", position, T - 1, least=-T)
    if where.ndim and where.shape != lead:
        reject("the shape of position", where.shape, f"() or {lead}, one for each instance")
    return np.broadcast_to(where % T, lead)


def _checked(attentions: Maps, padding: Padding, *, square: bool) -> list[np.ndarray]:
    """The maps as one float64 array (..., heads, rows, T) for each layer, all checked."""
    if isinstance(attentions, list | tuple):
        layers = [as_shares(f"attentions[{i}]", maps).astype(np.float64) for i, maps in enumerate(attentions)]
    else:
        whole = as_shares("attentions", attentions).astype(np.float64)
        if whole.ndim < 4:
            reject("the shape of attentions", whole.shape, "(..., layers, heads, T, T)", "or pass a list of layers")
        layers = list(np.moveaxis(whole, -4, 0))
    if not layers:
        reject("attentions", attentions, "maps of at least one layer")
    T, lead = layers[0].shape[-1], layers[0].shape[:-3]
    last = len(layers) - 1
    for i, maps in enumerate(layers):
        rows = (T, 1) if i == last and not square else (T,)
        if maps.ndim < 3 or maps.shape[:-3] != lead or maps.shape[-1] != T or maps.shape[-2] not in rows:
            one = "" if square else ", the last layer's perhaps (..., heads, 1, T)"
            shapes = [maps.shape for maps in layers]
            reject("the shapes of attentions", shapes, f"(..., heads, T, T) with the same T{one}")
    _check_rows(layers, padding)
    return layers


def _check_rows(layers: list[np.ndarray], padding: Padding) -> None:
    """Raise InputError for the first row that sums neither to 1 nor, at padding, to 0."""
    T, lead = layers[0].shape[-1], layers[0].shape[:-3]
    empty = np.zeros((*lead, T), bool)
    if padding is not None:
        told = as_mask("padding", padding)
        check_match(padding=told, attentions=empty)
        empty = told | empty
        if empty.shape != (*lead, T):
            reject("the shape of padding", told.shape, f"{(*lead, T)}, or such that it broadcasts to it")
    for number, maps in enumerate(layers):
        total = maps.sum(-1)
        # Where there is one row, it is not known here whether it is padding's.
        allowed = empty if maps.shape[-2] == T else np.asarray(empty.any(-1, keepdims=True))
        off = (np.abs(total - 1) > ROUNDING) & ~((total == 0) & allowed[..., None, :])
        if off.any():
            place = np.argwhere(off)[0].tolist()
            names = (*("instance",) * len(lead), "head", "row")
            where = ", ".join(f"{name} {index}" for name, index in zip(names, place, strict=True))
            reject(
                f"the sum over keys of layer {number}, {where}",
                float(total[tuple(place)]),
                "1 (or 0, at padding alone)",
                "pass maps after the softmax, and padding where its rows are empty",
            )

"""A printed table of what is trained at which rate."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np

from qkdyn.circuits import circuit_labels
from qkdyn.errors import as_tuple
from qkdyn.factors import Factors, Spot, plan
from qkdyn.labels import arrays_of, labels_for, paths_of
from qkdyn.optim import check_arrays, check_labels, check_options, full_labels
from qkdyn.slices import Slices
from qkdyn.splitting import split

_HEAD = ("parameter", "shape", "circuit", "number", "rate")
# Factors of heads or layers that a line shows.
_SHOWN = 16


def circuit_table(
    params: Any,
    *,
    multipliers: Mapping[str, Any] | None = None,
    learning_rate: Any = 1.0,
    labels: Any = circuit_labels,
    decay: Mapping[str, Any] | None = None,
    clip: Any = None,
    freeze: Sequence[str] = (),
    layers: Mapping[str, Any] | None = None,
    heads: Mapping[str, Any] | None = None,
    layer_axis: int = 0,
    head_axes: Mapping[str, int] | None = None,
) -> str:
    """What is trained at which rate: a line for each parameter, and one for each circuit.

    Takes the arguments of `circuit_optimizer` other than `base`, and refuses what that refuses.

    Args:
        params: the parameters, or an NNX module.
        multipliers: as there; without them the table shows the labels alone.
        learning_rate: as there; of schedules the rate of the first update is shown.
        labels: as there.
        decay: as there.
        clip: as there.
        freeze: as there.
        layers: as there; the rate is that of the parameter's layer, or has what multiplies it in each.
        heads: as there; beside the rate, what multiplies it in each head, and the axis.
        layer_axis: as there.
        head_axes: as there.

    Returns:
        Lines of path, shape, circuit (slices of fused parameters), number of entries, and rate.

    Raises:
        InputError: as `circuit_optimizer` does.
        LabelError: as `circuit_labels` and `circuit_optimizer` do.
    """
    params = arrays_of(params)
    frozen = as_tuple("freeze", freeze) if multipliers is None else ()
    if multipliers is not None:
        frozen = check_options(multipliers, learning_rate, decay, clip, freeze)
    check_arrays(params)
    full = full_labels(labels_for(labels, params), params, multipliers or {}, frozen)
    factors = Factors(layers or {}, heads or {}, layer_axis, head_axes or {})
    factors.check(multipliers or {})
    if multipliers is not None:
        check_labels(full, params, multipliers, frozen)
    base = {name: _Rate(learning_rate, value, (decay or {}).get(name)) for name, value in (multipliers or {}).items()}
    rates = {name: rate.shown() for name, rate in base.items()} | dict.fromkeys(frozen, "frozen")
    spots = iter(_spots(full, params, factors))
    lines: list[tuple[str, ...]] = [_HEAD]
    totals: dict[str, int] = {}
    for path, label, leaf in zip(paths_of(full), jax.tree.leaves(full), jax.tree.leaves(params), strict=True):
        shape = tuple(np.shape(leaf))
        own = label.labels if isinstance(label, Slices) else (label,)
        size = math.prod(shape)
        shares = [b - a for _, a, b in label.parts] if isinstance(label, Slices) else [1]
        told = []
        for name, share in zip(own, shares, strict=True):
            totals[name] = totals.get(name, 0) + size * share // sum(shares)
            spot = next(spots)
            told.append(rates.get(name, "") if spot is None else base[name].shown(*_of_spot(spot, factors)))
        rate = ("; " if any(", " in one for one in told) else ", ").join(dict.fromkeys(told))
        lines.append(("/".join(path), "x".join(map(str, shape)) or "scalar", str(label), f"{size:,}", rate))
    rates |= {name: f"{rates[name]}, x factors as above" for name in {*factors.layers, *factors.heads}}
    lines += [("", "", name, f"{size:,}", rates.get(name, "")) for name, size in sorted(totals.items())]
    table = _aligned(lines, len(totals))
    return table if clip is None else f"{table}\ngradients clipped to a global norm of {_number(clip)}"


class _Rate(NamedTuple):
    """Of a label."""

    rate: Any
    multiplier: Any
    decay: Any

    def shown(self, factor: Any = 1.0, beside: str = "") -> str:
        """Times the factor of a layer, with what stands beside it."""
        first = _number(self.rate, self.multiplier, factor)
        if callable(self.rate) and not callable(self.multiplier):
            first += f", then {_number(self.multiplier, factor)} x schedule"
        elif callable(self.rate) or callable(self.multiplier):
            first += ", then as scheduled"
        decay = "" if self.decay is None else f", decay {_number(self.decay)}"
        changing = " at first" if callable(self.decay) else ""
        return f"{first}{beside}{decay}{changing}"


def _number(*factors: Any) -> str:
    """The product, at the first update."""
    values: list[Any] = [value(0) if callable(value) else value for value in factors]
    if any(isinstance(value, jax.core.Tracer) for value in values):
        return "traced"
    return f"{math.prod(float(value) for value in values):g}"


def _spots(full: Any, params: Any, factors: Factors) -> list[Spot | None]:
    """Of every part of every parameter."""
    if factors:
        return plan(full, jax.eval_shape(functools.partial(split, full), params), factors)
    return [None for label in jax.tree.leaves(full) for _ in (label.labels if isinstance(label, Slices) else (label,))]


def _of_spot(spot: Spot, factors: Factors) -> tuple[Any, str]:
    """(the factor of the parameter's own layer, what is told of those of scanned layers and of heads)."""
    factor, beside = 1.0, ""
    if spot.label in factors.layers:
        values = factors.layers[spot.label]
        if spot.layer is None:
            beside += f", x {_each(values)} by layer (axis {spot.layer_axis})"
        else:
            factor = values[spot.layer]
    if spot.heads is not None:
        values = factors.heads[spot.label]
        if np.ndim(values) == 2 and spot.layer is not None:
            values = values[spot.layer]
        own = "" if spot.heads.number == np.shape(values)[-1] else f", {spot.heads.number} with the mean of theirs"
        by = "layer and head" if np.ndim(values) == 2 else "head"
        beside += f", x {_each(values)} by {by} (axis {spot.heads.axis}{own})"
    return factor, beside


def _each(values: Any) -> str:
    if any(isinstance(value, jax.core.Tracer) for value in jax.tree.leaves(values)):
        return "traced"
    return " ".join(f"{value:g}" for value in np.ravel(np.asarray(values))[:_SHOWN]) + (
        " ..." if np.size(values) > _SHOWN else ""
    )


def _aligned(lines: list[tuple[str, ...]], totals: int) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = (str.ljust, str.ljust, str.ljust, str.rjust, str.ljust)
    texts = [
        "  ".join(align(cell, width) for align, cell, width in zip(aligned, line, widths, strict=True))
        for line in lines
    ]
    rule = "-" * max(len(text.rstrip()) for text in texts)
    body = [texts[0], rule, *texts[1 : len(texts) - totals], rule, *texts[len(texts) - totals :]]
    return "\n".join(text.rstrip() for text in body)

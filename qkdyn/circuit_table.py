"""A printed table of what is trained at which rate."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.core
import numpy as np

from qkdyn.circuits import circuit_labels
from qkdyn.labels import labels_for, paths_of
from qkdyn.optim import full_labels
from qkdyn.slices import Slices

_HEAD = ("parameter", "shape", "circuit", "number", "rate")


def circuit_table(
    params: Any,
    *,
    multipliers: Mapping[str, Any] | None = None,
    learning_rate: Any = 1.0,
    labels: Any = circuit_labels,
    freeze: Sequence[str] = (),
) -> str:
    """What is trained at which rate: a line for each parameter, and one for each circuit.

    Args:
        params: as for `circuit_optimizer`.
        multipliers: as there; without them the table shows the labels alone.
        learning_rate: as there; of schedules the rate of the first update is shown.
        labels: as there.
        freeze: as there.

    Returns:
        Lines of path, shape, circuit (slices of fused parameters), number of entries, and rate.

    Raises:
        LabelError: as `circuit_labels` does, or a tree of labels that is no prefix of the parameters'.
    """
    found = labels_for(labels, params)
    full = full_labels(found, params, multipliers or {}, freeze)
    leaves = jax.tree.leaves(params)
    rates = {name: _rate(learning_rate, value) for name, value in (multipliers or {}).items()} | dict.fromkeys(
        freeze, "frozen"
    )
    lines: list[tuple[str, ...]] = [_HEAD]
    totals: dict[str, int] = {}
    for path, label, leaf in zip(paths_of(full), jax.tree.leaves(full), leaves, strict=True):
        shape = tuple(np.shape(leaf))
        own = label.labels if isinstance(label, Slices) else (label,)
        size = math.prod(shape)
        shares = [b - a for _, a, b in label.parts] if isinstance(label, Slices) else [1]
        for name, share in zip(own, shares, strict=True):
            totals[name] = totals.get(name, 0) + size * share // sum(shares)
        rate = ", ".join(dict.fromkeys(rates.get(name, "") for name in own))
        lines.append(("/".join(path), "x".join(map(str, shape)) or "scalar", str(label), f"{size:,}", rate))
    lines += [("", "", name, f"{size:,}", rates.get(name, "")) for name, size in sorted(totals.items())]
    return _aligned(lines, len(totals))


def _rate(rate: Any, multiplier: Any) -> str:
    values: list[Any] = [value(0) if callable(value) else value for value in (rate, multiplier)]
    changing = ", then as scheduled" if callable(rate) or callable(multiplier) else ""
    if any(isinstance(value, jax.core.Tracer) for value in values):
        return "traced"
    return f"{float(values[0]) * float(values[1]):g}{changing}"


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

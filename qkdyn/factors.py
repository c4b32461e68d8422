"""Multipliers of single layers and single heads: where they stand in a model's parameters, and how updates take them up."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from qkdyn.errors import InputError, LabelError, check_count, reject
from qkdyn.heads import HeadAxis, entries_of, head_axes_of
from qkdyn.labels import CIRCUITS, Path, paths_of
from qkdyn.slices import Shape, Slices
from qkdyn.splitting import own_axis

_DO = "layers are told apart by a number in the path (layers/3/..., Block_3/...) or lie along layer_axis of scanned parameters"

_OWN = "give each layer a label of its own (circuit_labels' rules) and a multiplier"


@dataclass(frozen=True)
class Factors:
    """What a caller gives: {label: (L,)}, {label: (H,) or (L, H)}, the axis of scanned layers, axes of heads by path."""

    layers: Mapping[str, Any]
    heads: Mapping[str, Any]
    layer_axis: int = 0
    head_axes: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.layers) or bool(self.heads)

    def check(self, multipliers: Mapping[str, Any]) -> None:
        """Raise InputError for factors of the wrong shape or sign, or of a label without a multiplier."""
        for what, given, dims in (("layers", self.layers, (1,)), ("heads", self.heads, (1, 2))):
            if not isinstance(given, Mapping) or set(given) - set(multipliers):
                reject(what, given, f"a mapping from labels of multipliers ({', '.join(map(repr, multipliers))})")
            for name, values in given.items():
                _check_values(f"{what}[{name!r}]", values, dims)
        check_count("layer_axis", self.layer_axis, minimum=0)
        _check_rules(self.head_axes, self.heads)


def _check_rules(rules: Any, heads: Mapping[str, Any]) -> None:
    if not isinstance(rules, Mapping) or (rules and not heads):
        reject("head_axes", rules, "{regular expression of a path: axis}, of parameters whose label has heads")
    for rule, axis in rules.items():
        try:
            re.compile(rule)
        except (re.error, TypeError) as error:
            raise InputError(f"head_axes must have regular expressions as keys, got {rule!r}: {error}") from error
        if isinstance(axis, bool) or not isinstance(axis, int):
            reject(f"head_axes[{rule!r}]", axis, "an integer, the axis of heads")


def _check_values(name: str, values: Any, dims: tuple[int, ...]) -> None:
    shown = "(L,)" if dims == (1,) else "(H,) or (L, H)"
    if not isinstance(values, list | tuple) and not hasattr(values, "shape"):
        reject(name, values, f"multipliers of shape {shown}")
    for value in jax.tree.leaves(values):
        if isinstance(value, jax.core.Tracer):
            continue
        numbers = np.asarray(value)
        if numbers.dtype.kind not in "iuf" or not np.all(np.isfinite(numbers)) or not np.all(numbers > 0):
            what = "a traced zero holds one still; what freeze names is a whole label" if np.any(numbers == 0) else ""
            reject(name, values, "finite numbers > 0", what)
    try:
        shape = jnp.asarray(values).shape
    except (ValueError, TypeError) as error:
        raise InputError(f"{name} must be of shape {shown}: {error}") from error
    if len(shape) not in dims or 0 in shape:
        reject(name, f"shape {shape}", f"of shape {shown}")


class Spot(NamedTuple):
    """Where one parameter, or one part of a fused one, has its layers and heads.

    Attributes:
        label: of the part.
        layer: its layer, where the path says it.
        layer_axis: else the axis along which its layers lie.
        heads: the axis of its heads, None where it has none.
    """

    label: str
    layer: int | None
    layer_axis: int | None
    heads: HeadAxis | None


def scaled(full: Any, parts: Any, factors: Factors) -> Any:
    """The updates `parts` (as `splitting.split` gives them), each layer and head multiplied by its factor."""
    if not factors:
        return parts
    spots = plan(full, parts, factors)
    leaves, structure = jax.tree.flatten(parts)
    made = [leaf if spot is None else _times(leaf, spot, factors) for leaf, spot in zip(leaves, spots, strict=True)]
    return jax.tree.unflatten(structure, made)


def _times(leaf: Any, spot: Spot, factors: Factors) -> Any:
    for given, heads in ((factors.layers, False), (factors.heads, True)):
        if spot.label not in given or (heads and spot.heads is None):
            continue
        values = jnp.asarray(given[spot.label], leaf.dtype)
        per_layer = values.ndim == 1 + heads
        if per_layer and spot.layer is not None:
            values = values[spot.layer]
            per_layer = False
        shape = [1] * leaf.ndim
        if heads and spot.heads is not None:
            axis, count = spot.heads
            # Query heads that share a key and a value: the mean of theirs.
            values = values.reshape(*values.shape[:-1], count, -1).mean(-1)
            values = jnp.repeat(values, leaf.shape[axis] // count, axis=-1)
            shape[axis] = leaf.shape[axis]
            if per_layer and spot.layer_axis is not None and axis < spot.layer_axis:
                values = values.T
        if per_layer and spot.layer_axis is not None:
            shape[spot.layer_axis] = leaf.shape[spot.layer_axis]
        leaf = leaf * values.reshape(shape)
    return leaf


def plan(full: Any, parts: Any, factors: Factors) -> list[Spot | None]:
    """The spot of every leaf of `parts`; None where its label has no factors.

    Raises:
        LabelError: layers or heads that paths and shapes do not show.
    """
    shapes = [tuple(leaf.shape) for leaf in jax.tree.leaves(parts)]
    owners, names, labels, axes = [], [], [], []
    for path, label in zip(paths_of(full), jax.tree.leaves(full), strict=True):
        for name in label.labels if isinstance(label, Slices) else (label,):
            owners, names, labels = [*owners, path], [*names, name], [*labels, label]
            fused = isinstance(label, Slices) and not own_axis(label)
            axes.append(label.axis % len(shapes[len(axes)]) if fused else None)
    spots: list[Spot | None] = [None] * len(names)
    unused = set(factors.head_axes)
    for name in sorted({*factors.layers, *factors.heads}):
        own = [i for i, label in enumerate(names) if label == name]
        layer, scanned = _layer_of([owners[i] for i in own], [shapes[i] for i in own], factors, name)
        if scanned is not None:
            _check_scanned(
                [i for i, label in enumerate(names) if label in (name, *CIRCUITS)], owners, shapes, factors, name
            )
        found: dict[int, HeadAxis | None] = {}
        if name in factors.heads:
            heads = np.shape(factors.heads[name])[-1]
            kept = [shape if scanned is None else (*shape[:scanned], *shape[scanned + 1 :]) for shape in shapes]
            inside = [axis if axis is None or scanned is None or axis < scanned else axis - 1 for axis in axes]
            found = head_axes_of(entries_of(owners, kept, labels, inside), heads, own, factors.head_axes)
            unused -= {
                rule
                for rule, axis in factors.head_axes.items()
                if any(re.search(rule, "/".join(owners[i])) and -len(kept[i]) <= axis < len(kept[i]) for i in own)
            }
        for i in own:
            at = found.get(i)
            if at is not None and scanned is not None and at.axis >= scanned:
                at = at._replace(axis=at.axis + 1)
            spots[i] = Spot(name, layer.get(owners[i]), scanned, at)
    if unused:
        shown = [f"{'/'.join(owners[i])} {shapes[i]}" for i, name in enumerate(names) if name in factors.heads][:12]
        raise LabelError(
            f"head_axes must be of parameters with heads and of axes that they have, got "
            f"{', '.join(map(repr, sorted(unused)))}; the parameters are {', '.join(shown)}"
        )
    return spots


def _layers(factors: Factors, name: str) -> int | None:
    """How many layers the factors of a label tell apart; None if none."""
    own = np.shape(factors.layers[name])[0] if name in factors.layers else None
    heads = np.shape(factors.heads[name]) if name in factors.heads else ()
    if own and len(heads) == 2 and heads[0] != own:
        reject(f"heads[{name!r}]", f"{heads[0]} layers", f"of as many layers as layers[{name!r}], {own}")
    return own or (heads[0] if len(heads) == 2 else None)


def _layer_of(
    paths: list[Path], shapes: list[Shape], factors: Factors, name: str
) -> tuple[dict[Path, int], int | None]:
    """(the layer of each path, None) where paths are numbered; ({}, axis) where layers are scanned; ({}, None) without."""
    count, axis = _layers(factors, name), factors.layer_axis
    numbers = {path: _numbers(path) for path in paths}
    most = max(map(len, numbers.values()), default=0)
    levels = []
    for k in range(most if count is not None else 0):
        own = {path: found[k] for path, found in numbers.items() if k < len(found)}
        seen = sorted({number for number, _ in own.values()})
        if len(seen) == count and len(own) == len(numbers):
            called = all(re.search("layer|block", name) for _, name in own.values())
            levels.append(({path: seen.index(number) for path, (number, _) in own.items()}, called))
        elif len(seen) > 1 and not levels:
            most = 0  # numbered, but otherwise
            break
    if len(levels) > 1:
        levels = [level for level in levels if level[1]]
        if len(levels) != 1:
            shown = ", ".join("/".join(path) for path in paths[:12])
            raise LabelError(
                f"several numbers in the paths of {name!r} count to {count} ({shown}): which are layers cannot be told; {_OWN}"
            )
    if levels:
        return levels[0][0], None
    if count is None or (count == 1 and not any(numbers.values())):
        return dict.fromkeys(paths, 0), None
    scanned = [axis < len(shape) and shape[axis] == count for shape in shapes]
    if all(scanned) and (most or not any(numbers.values())):
        return {}, axis
    shown = [f"{'/'.join(path)} {shape}" for path, shape in zip(paths, shapes, strict=True)][:12]
    raise LabelError(f"{count} multipliers of layers for {name!r}, but its parameters are {', '.join(shown)}: {_DO}")


def _numbers(path: Path) -> list[tuple[int, str]]:
    """The numbers in a path, each with what it counts, in lower case: "layers/3" 3 layers, "Block_3" 3 block_3."""
    found = []
    for i, part in enumerate(path):
        if m := re.fullmatch(r"(?:.*\D)?(\d+)", part):
            found.append((int(m.group(1)), (path[i - 1] if part.isdigit() and i else part).lower()))
    return found


def _check_scanned(of: list[int], paths: list[Path], shapes: list[Shape], factors: Factors, name: str) -> None:
    """Raise LabelError unless all of attention has the axis of layers, and is more than a matrix with it."""
    count, axis = _layers(factors, name), factors.layer_axis
    without = [i for i in of if axis >= len(shapes[i]) or shapes[i][axis] != count]
    flat = max(len(shapes[i]) for i in of) < 3
    if without or flat:
        i = without[0] if without else of[0]
        why = "has no such axis" if without else "is one matrix"
        raise LabelError(
            f"{count} multipliers of layers for {name!r} along axis {axis} of scanned parameters, but {'/'.join(paths[i])} "
            f"{shapes[i]} {why}: {_DO}"
        )

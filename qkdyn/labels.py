"""`circuit_labels`: which leaves of a tree of parameters are which circuit, for any model."""

import sys
from typing import Any

import jax
import numpy as np

from qkdyn.errors import LabelError, reject
from qkdyn.grouping import CIRCUITS, NAMED, Label, Path, Rules, label_paths
from qkdyn.slices import Fused, Slices, fused

__all__ = [
    "CIRCUITS",
    "NAMED",
    "Fused",
    "Label",
    "Path",
    "Rules",
    "Slices",
    "circuit_labels",
    "fused",
    "labels_for",
    "paths_of",
]


def circuit_labels(params: Any, *, rules: Rules | None = None) -> Any:
    """Label every leaf by the circuit it belongs to, found by structure and names.

    Query and key are "qk", value and output "ov", everything else "rest". Known are the names of Flax Linen and NNX, Equinox
    and the usual others (q_proj, query, wq, W_Q, to_q, ...), and adapters below them (lora_A). An output projection counts
    beside query, key and value (above them where heads are modules of their own, or as in BERT) and by its shape, since an
    MLP's or a model's head may be called alike; what shape and name leave open is an error. A leaf that fuses several
    (c_attn, qkv, in_proj) gets `Slices`, along the axis that shapes single out. Normalizations of queries and keys are "qk".
    A key "qk", "ov", "rest", "embed", "mlp" or "head" above a leaf names it as it says.

    Args:
        params: any pytree of arrays (or of shapes): Linen's variables["params"], `nnx.state(model, nnx.Param)` or the NNX
            module, `eqx.filter(model, eqx.is_inexact_array)`, dicts, lists, dataclasses; leading axes of layers or seeds may
            be there. The labels depend on paths and shapes alone, so they are the same for parameters, gradients and updates,
            for a fresh model and for given weights.
        rules: see `qkdyn.grouping.label_paths`; e.g. {"query_key_value": fused("qkv", axis=-1, heads=12)}.

    Returns:
        A tree of the same structure with a string or `Slices` at every leaf.

    Raises:
        LabelError: a leaf that is no array, no attention, a doubt, or slices that do not divide their axis; the message shows
            the tree with its guesses and how to name them.
    """
    params = arrays_of(params)
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    paths = [_names(path) for path, _ in leaves]
    shapes = {path: _shape(path, leaf) for path, (_, leaf) in zip(paths, leaves, strict=True)}
    labels = label_paths(shapes, rules, {path: leaf for path, (_, leaf) in zip(paths, leaves, strict=True)})
    return jax.tree.unflatten(structure, [labels[path] for path in paths])


def labels_for(labels: Any, tree: Any) -> Any:
    """The labels of `tree`: given as a tree of them, or as a function of it.

    A tree of labels may itself be callable, as a labelled Equinox model is: a function is what is a leaf. A label
    `fused(...)` becomes the slices of every parameter below it.

    Raises:
        LabelError: parameters without a label, labels without a parameter, `fused` that does not divide an axis, or a module
            in place of its parameters.
    """
    if is_module(tree):
        do = "nnx.state(model, nnx.Param)"
        reject("the parameters", f"the NNX module {type(tree).__name__}", "a tree of arrays", do, LabelError)
    made = labels(tree) if callable(labels) and jax.tree_util.all_leaves([labels]) else _unboxed(labels)
    try:
        full = jax.tree.map(lambda label, part: jax.tree.map(lambda _: label, part), made, tree)
    except (ValueError, TypeError) as error:
        raise LabelError(
            f"labels must be a tree, or a prefix of the tree, of the parameters: {_misfit(made, tree) or error}"
        ) from error
    if not any(isinstance(label, Fused) for label in jax.tree.leaves(made)):
        return made
    return jax.tree_util.tree_map_with_path(
        lambda path, label, leaf: (
            label.of(tuple(np.shape(leaf)), "/".join(_names(path))) if isinstance(label, Fused) else label
        ),
        full,
        tree,
    )


def _misfit(labels: Any, tree: Any) -> str:
    """Which parameters have no label, and which labels no parameter."""
    given, paths = paths_of(labels), paths_of(tree)
    missing = [path for path in paths if not any(path[: len(label)] == label for label in given)]
    beyond = [label for label in given if not any(path[: len(label)] == label for path in paths)]

    def shown(some: list[Path]) -> str:
        return ", ".join("/".join(path) for path in some[:20]) + (
            f" and {len(some) - 20} more" if len(some) > 20 else ""
        )

    said = [f"no label for {shown(missing)}"] * bool(missing)
    said += [f"a label for {shown(beyond)}, where no parameter is"] * bool(beyond)
    return "; ".join(said)


def paths_of(tree: Any) -> list[Path]:
    """The components of every leaf's path."""
    return [_names(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def arrays_of(params: Any) -> Any:
    """The parameters of an NNX module; every other tree as it is."""
    return sys.modules["flax.nnx"].state(params, sys.modules["flax.nnx"].Param) if is_module(params) else params


def is_module(tree: Any) -> bool:
    """Whether it is an NNX module; no library is imported to find out."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(tree, nnx.Module)


def _unboxed(labels: Any) -> Any:
    """Labels without the boxes of `nnx.Param`: a prefix of the parameters and of the pure tree of nnx.Optimizer alike."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return labels

    def boxed(node: Any) -> bool:
        return isinstance(node, nnx.Variable)

    return jax.tree.map(lambda node: jax.tree.leaves(node)[0] if boxed(node) else node, labels, is_leaf=boxed)


def _names(path: tuple[Any, ...]) -> Path:
    return tuple(jax.tree_util.keystr((part,), simple=True) for part in path)


def _shape(path: Path, leaf: Any) -> tuple[int, ...]:
    if isinstance(leaf, int | float) and not isinstance(leaf, bool):  # JAX takes numbers for arrays
        return ()
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        do = "pass arrays alone, of an Equinox model eqx.filter(model, eqx.is_inexact_array)"
        raise LabelError(f"{'/'.join(path)} is no array: {leaf!r:.200}; {do}")
    return tuple(np.shape(leaf))

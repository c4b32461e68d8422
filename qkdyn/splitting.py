"""Fused leaves cut into their parts before an optimizer sees them, and put together again after it."""

from typing import Any

import jax
import jax.numpy as jnp

from qkdyn.slices import Slices


def part_labels(labels: Any) -> Any:
    """The labels of the parts: a tuple of strings at every leaf that has `Slices`."""
    return jax.tree.map(lambda label: label.labels if isinstance(label, Slices) else label, labels)


def split(labels: Any, tree: Any) -> Any:
    """The tree with a tuple of its parts at every leaf that has `Slices`; all other leaves as they are.

    Parts are what an unfused model would have: where parts lie along an axis of their own (d, 3, heads, size), it is gone.
    """
    return jax.tree.map(lambda label, leaf: cut(leaf, label) if isinstance(label, Slices) else leaf, labels, tree)


def merge(labels: Any, tree: Any) -> Any:
    """The inverse of `split`."""
    return jax.tree.map(lambda label, leaf: joined(leaf, label) if isinstance(label, Slices) else leaf, labels, tree)


def own_axis(slices: Slices) -> bool:
    """Whether the parts lie along an axis of their own, each of length one."""
    return slices.repeats == 1 and len(slices.parts) > 1 and slices.parts[-1][2] == len(slices.parts)


def cut(leaf: Any, slices: Slices) -> tuple[Any, ...]:
    """The parts of one leaf."""
    axis = slices.axis % leaf.ndim
    if own_axis(slices):
        return tuple(jax.lax.index_in_dim(leaf, i, axis, keepdims=False) for i in range(len(slices.parts)))
    before, after = leaf.shape[:axis], leaf.shape[axis + 1 :]
    if slices.repeats == 1:
        return tuple(jax.lax.slice_in_dim(leaf, start, stop, axis=axis) for _, start, stop in slices.parts)
    grouped = leaf.reshape(*before, slices.repeats, -1, *after)
    parts = (jax.lax.slice_in_dim(grouped, start, stop, axis=axis + 1) for _, start, stop in slices.parts)
    return tuple(part.reshape(*before, -1, *after) for part in parts)


def joined(parts: tuple[Any, ...], slices: Slices) -> Any:
    """The leaf that has these parts."""
    if own_axis(slices):
        return jnp.stack(parts, slices.axis)
    axis = slices.axis % parts[0].ndim
    if slices.repeats == 1:
        return jnp.concatenate(parts, axis)
    before, after = parts[0].shape[:axis], parts[0].shape[axis + 1 :]
    grouped = [part.reshape(*before, slices.repeats, -1, *after) for part in parts]
    return jnp.concatenate(grouped, axis + 1).reshape(*before, -1, *after)

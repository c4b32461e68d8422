"""Records of attention, and of losses beside it, on the device: a buffer of a fixed size, carried through scans.

A plain pytree: it can be donated, sharded, saved and mapped over seeds as any other part of a training state, and nothing
of it goes to the host until it is read (`qkdyn.observe.reading`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qkdyn.errors import InputError, check_count, reject

# The axes of the dataset, which no scalar may be called.
AXES = ("step", "layer", "head")


class Records(NamedTuple):
    """A ring of records: once it is full, a new one replaces the oldest.

    Attributes:
        count: () int32, records written so far.
        step: (capacity,) int32.
        values: {layer: {measure: (capacity, heads)}} and {scalar: (capacity,)}, float32, NaN where nothing was written.
    """

    count: Any
    step: Any
    values: Any


def start(capacity: int, like: Any) -> Records:
    """An empty buffer.

    Args:
        capacity: how many records it holds; each takes 4 bytes a layer, head and measure.
        like: measures as `measure` returns them, with named scalars beside them where wanted, such as
            {"loss": loss, **measure(maps)}; or the shapes of these: `jax.eval_shape(function, *arguments)`.

    Raises:
        InputError: a capacity that is no positive integer, `like` is not {layer: {measure: (heads,)}} and scalars, or a scalar
            has the name of a measure or of an axis.
    """
    check_count("capacity", capacity)
    allowed = "{layer: {measure: (heads,)}}, as measure() returns it, and {name: scalar} beside that"
    layers = {name: of for name, of in like.items() if isinstance(of, dict)} if isinstance(like, dict) else {}
    if not layers or not all(layers.values()):
        reject("like", like, allowed)
    for layer, of in layers.items():
        for name, value in of.items():
            if getattr(value, "ndim", None) != 1:
                reject(f"like[{layer!r}][{name!r}]", value, f"one array; like is {allowed}")
    taken = {*AXES, *(name for of in layers.values() for name in of)}
    for name in like.keys() - layers.keys():
        if getattr(like[name], "ndim", 0 if isinstance(like[name], int | float) else None) != 0:
            reject(f"like[{name!r}]", like[name], f"one number; like is {allowed}")
        if name in taken:
            reject("each scalar", name, f"called otherwise than {', '.join(sorted(taken))}")
    values = jax.tree.map(lambda value: jnp.full((capacity, *np.shape(value)), jnp.nan, jnp.float32), like)
    return Records(jnp.zeros((), jnp.int32), jnp.full((capacity,), -1, jnp.int32), values)


def write(records: Records, step: Any, values: Any) -> Records:
    """The buffer with one record more, inside jit or out of it.

    Args:
        records: the buffer.
        step: the number of the step, () integer from 0 to 2^31 - 1, traced or not; that of a JAX array, which is on the
            device, is not looked at.
        values: measures of the layers, measures and heads, and the scalars, that it was started with.

    Raises:
        InputError: other layers, measures, scalars or numbers of heads; a step that is no such integer; records of several
            runs, which are written inside the `jax.vmap` that made them.
    """
    _check_step(step)
    if records.step.ndim != 1:
        reject(
            "the shape of records.step",
            records.step.shape,
            "(capacity,), of one run",
            "write inside jax.vmap over runs",
        )
    _check_same(records.values, values)
    capacity = records.step.shape[0]
    place = records.count % capacity

    def put(buffer: Any, value: Any) -> Any:
        return jax.lax.dynamic_update_index_in_dim(buffer, jnp.asarray(value).astype(buffer.dtype), place, 0)

    return Records(records.count + 1, put(records.step, step), jax.tree.map(put, records.values, values))


def write_every(records: Records, step: Any, every: int, values: Callable[[], Any]) -> Records:
    """`write(records, step, values())` at steps that `every` divides; at others nothing, and `values` is not computed.

    Under vmap over seeds keep `step` out of it: a condition that differs between them is computed for all.

    Args:
        records: the buffer.
        step: () integer, traced or not.
        every: steps from one record to the next.
        values: returns the measures, such as `lambda: observe.measure(maps)`.

    Raises:
        InputError: `every` is no positive integer, `values` no function; what `write` refuses.
    """
    check_count("every", every)
    _check_step(step)
    if not callable(values):
        reject("values", values, "a function that returns the measures", "e.g. lambda: observe.measure(maps)")
    return jax.lax.cond(step % every == 0, lambda: write(records, step, values()), lambda: records)


def _check_step(step: Any) -> None:
    if isinstance(step, jax.Array):
        if step.shape != () or not jnp.issubdtype(step.dtype, jnp.integer):
            reject("step", f"{step.dtype} of shape {step.shape}", "one integer")
        return
    step = step[()] if isinstance(step, np.ndarray) and step.ndim == 0 else step
    if check_count("step", step, minimum=0) >= 2**31:
        reject("step", step, "below 2^31: records hold int32")


def _check_same(buffer: Any, values: Any) -> None:
    def shapes(tree: Any, axis: int) -> dict[str, tuple[int, ...]]:
        leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
        return {jax.tree_util.keystr(path, simple=True, separator="/"): np.shape(leaf)[axis:] for path, leaf in leaves}

    mine, given = shapes(buffer, 1), shapes(values, 0)
    wrong = sorted(name for name in mine.keys() | given.keys() if mine.get(name) != given.get(name))
    if wrong:
        told = "; ".join(
            f"{name}: {mine.get(name, 'none')} in the buffer, {given.get(name, 'none')} given" for name in wrong
        )
        raise InputError(
            f"values must be those that the records were started with, got other shapes ({told}); start() anew"
        )

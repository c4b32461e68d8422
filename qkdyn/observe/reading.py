"""Records brought to the host: told to a logger, or as a dataset with named axes (step, layer, head)."""

import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from qkdyn.errors import OutputWarning, check_count, reject
from qkdyn.observe.records import AXES, Records

if TYPE_CHECKING:
    import xarray

UNITS = {"entropy": "nats", "effective_tokens": "tokens"}


def emit(
    records: Records, on_record: Callable[[int, dict[str, float]], Any], *, seen: int = 0, heads: bool = False
) -> int:
    """Call `on_record(step, {"loss": 2.34, "layer_0/entropy": 1.23, ...})` for every record, the oldest first.

    One transfer to the host for all of them. In a loop over chunks of steps: `seen = emit(records, log, seen=seen)`.

    Args:
        records: of one run.
        on_record: takes the step, the scalars and the means over heads, plain Python numbers, as any logger does.
        seen: how many records were told before; they are left out.
        heads: also every head's own, under "layer_0/head_1/entropy".

    Returns:
        How many records were written so far: the next `seen`.

    Raises:
        InputError: `on_record` cannot be called, `seen` is no count, or `records` are of several runs.

    Warns:
        OutputWarning: records that had not been seen were replaced by later ones.
    """
    if not callable(on_record):
        reject("on_record", on_record, "a function of (step, {name: number})")
    check_count("seen", seen, minimum=0)
    if records.step.ndim != 1:
        do = "take one run, e.g. jax.tree.map(lambda leaf: leaf[0], records)"
        reject("the shape of records.step", records.step.shape, "(capacity,), of one run", do)
    count, step, values = _in_order(records, seen)
    scalars, layers = _apart(values)
    for i, number in enumerate(step):
        told = {name: float(value[i]) for name, value in scalars.items()}
        for layer, of in layers.items():
            told |= {f"{layer}/{name}": float(value[i].mean()) for name, value in of.items()}
            if heads:
                told |= {f"{layer}/head_{h}/{n}": float(v) for n, value in of.items() for h, v in enumerate(value[i])}
        on_record(int(number), told)
    return count


def to_dataset(records: Records, *, axes: tuple[str, ...] = ()) -> "xarray.Dataset":
    """The records as a dataset: one variable for each measure, axes (step, layer, head), and for each scalar, axis step.

    Args:
        records: of one run, or of several that went through `jax.vmap` together and recorded the same steps.
        axes: names of the axes in front, such as ("seed",).

    Returns:
        Layers stand in the order of their names, numbers in them by size; where a layer has fewer heads than another the
        rest is NaN. `qkdyn.results.save_dataset` takes it. The attribute "replaced" says how many records are no more.

    Raises:
        InputError: axes that are not those of the records, or runs that recorded different steps.

    Warns:
        OutputWarning: the buffer was too small, so that the first records are gone.
    """
    import xarray

    lead = records.step.ndim - 1
    if len(axes) != lead or len({*axes, *AXES}) != lead + 3:
        reject(
            "axes",
            axes,
            f"names for the {lead} axes of records.step in front of the last, other than step, layer, head",
        )
    if lead:
        runs = np.asarray(jax.device_get(records.step)).reshape(-1, records.step.shape[-1])
        if (runs != runs[0]).any():
            reject("records", runs[:, :5], "of runs that recorded the same steps", "make a dataset of each")
    count, step, values = _in_order(records, 0)
    scalars, layers = _apart(values)
    names = list(dict.fromkeys(name for of in layers.values() for name in of))
    most = max(value.shape[-1] for of in layers.values() for value in of.values())
    front = records.step.shape[:-1]
    variables: dict[str, Any] = {name: ((*axes, "step"), value) for name, value in scalars.items()}
    for name in names:
        whole = np.full((*front, len(step), len(layers), most), np.nan, np.float32)
        for i, of in enumerate(layers.values()):
            if name in of:
                whole[..., i, : of[name].shape[-1]] = of[name]
        variables[name] = ((*axes, *AXES), whole, {"units": UNITS.get(name, "1")})
    coordinates = {"step": step.astype(np.int64), "layer": np.array(list(layers)), "head": np.arange(most)}
    return xarray.Dataset(variables, coordinates, {"replaced": max(0, count - records.step.shape[-1])})


def _apart(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Scalars, and layers in their order."""
    scalars = {name: value for name, value in values.items() if not isinstance(value, dict)}
    return scalars, {layer: values[layer] for layer in sorted(values.keys() - scalars.keys(), key=_natural)}


def _in_order(records: Records, seen: int) -> tuple[int, np.ndarray, dict[str, Any]]:
    """(records written, steps, values) from the oldest record that is left and not seen on; leading axes stay."""
    records = jax.device_get(records)
    capacity = records.step.shape[-1]
    count = int(np.max(records.count))
    first = max(seen, count - capacity)
    if first > seen:
        warnings.warn(
            f"{first - seen} records were replaced by later ones before they were read; start() with a capacity above "
            f"{capacity}, or read more often",
            OutputWarning,
            stacklevel=3,
        )
    place = np.arange(first, count) % capacity
    # The axis of records is that of `step`, the last of these.
    axis = records.step.ndim - 1
    values = jax.tree.map(lambda value: np.take(value, place, axis), records.values)
    # Runs that went through vmap recorded the same steps: the first one's.
    return count, records.step.reshape(-1, capacity)[0, place], values


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Order of names with the numbers in them by size: layer_2 before layer_10."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]

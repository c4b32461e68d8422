"""What the measures ask of the arrays they are given; each refusal names the value and where it stands."""

import numbers
from typing import Any

import numpy as np

from qkdyn.errors import reject

# Shares computed in float32 may leave [0, 1], and attention may miss a sum of one, by this much. Lower precision may not.
ROUNDING = 1e-5


def as_reals(name: str, values: Any) -> np.ndarray:
    """Return `values` as a non-empty array of real numbers with at least one axis.

    float32 stays float32, which also takes lower precision; everything else becomes float64.

    Raises:
        InputError: not numbers, ragged, traced by JAX, empty, or a single number.
    """
    allowed = "a rectangular array of real numbers"
    try:
        array = np.asarray(values)
    except ValueError:
        reject(name, values, allowed)
    except TypeError:  # What JAX raises for a traced value.
        reject(name, values, allowed, "inside jit there is only dtap_counts, with concrete edges")
    # numpy has no bfloat16 of its own: to it, JAX's is an array of kind V.
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        reject(name, values, allowed)
    if array.ndim == 0:
        reject(name, values, allowed, "put a single value in a list")
    if array.size == 0:
        reject(f"the shape of {name}", array.shape, "one of at least one value")
    small = array.dtype.kind in "fV" and array.dtype.itemsize <= 4
    return array.astype(np.float32 if small else np.float64)


def refuse_where(bad: np.ndarray, name: str, array: np.ndarray, allowed: str, do: str = "") -> None:
    """Raise InputError for the first element of `array` at which `bad` is true, if there is one."""
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        reject(f"{name}[{', '.join(map(str, place))}]" if place else name, array[place].item(), allowed, do)


def as_shares(name: str, values: Any) -> np.ndarray:
    """Return `values` as `as_reals` does, all in [0, 1]; what leaves it by at most 1e-5 is put on the end that it passed.

    Raises:
        InputError: names the first value that is NaN or further outside, and its place.
    """
    array = as_reals(name, values)
    inside = (array >= -ROUNDING) & (array <= 1 + ROUNDING)
    refuse_where(~inside, name, array, f"from 0 to 1 (give or take {ROUNDING:g})")
    return np.clip(array, 0, 1)


def as_attention(name: str, values: Any) -> np.ndarray:
    """Return `values` as `as_shares` does; along the last axis they sum to 1, or are all 0, each give or take 1e-5.

    Raises:
        InputError: what `as_shares` refuses, or names the first row with another sum.
    """
    weights = as_shares(name, values)
    total = np.atleast_1d(weights.sum(-1, dtype=np.float64))
    off = (np.abs(total - 1) > ROUNDING) & (total > 0)
    refuse_where(off, f"{name}.sum(-1)", total, "1 or 0", "tokens are the last axis, after the softmax")
    return weights


def as_finite(name: str, values: Any) -> np.ndarray:
    """Return `values` as `as_reals` does, or raise InputError that names the first that is NaN or infinite."""
    array = as_reals(name, values)
    refuse_where(~np.isfinite(array), name, array, "finite")
    return array


def as_counts(name: str, values: Any, most: int, least: int = 1) -> np.ndarray:
    """Return an integer or an array of integers as an array, or raise InputError unless all are from `least` to `most`."""
    allowed = f"integers from {least} to {most}"
    array = np.asarray(values)
    if array.dtype.kind not in "iu" or array.size == 0:
        reject(name, values, allowed)
    refuse_where(np.asarray((array < least) | (array > most)), name, array, allowed)
    return array


def as_mask(name: str, values: Any) -> np.ndarray:
    """Return `values` as a bool array, or raise InputError unless they are an array of bools."""
    as_reals(name, values)
    array = np.asarray(values)
    if array.dtype != np.bool_:
        reject(f"the type of {name}", str(array.dtype), "bool", "write e.g. mask != 0")
    return array


def check_match(**arrays: np.ndarray) -> None:
    """Raise InputError unless the named arrays have the same last axis and leading axes that broadcast."""
    shapes = tuple(array.shape for array in arrays.values())
    try:
        np.broadcast_shapes(*(shape[:-1] for shape in shapes))
        match = len({shape[-1] for shape in shapes}) == 1
    except ValueError:
        match = False
    if not match:
        names = " and ".join(arrays)
        reject(f"the shapes of {names}", shapes, "equal in the last axis and such that the others broadcast")


def check_share(name: str, value: Any, *, least: float = 0.0, zero: bool = True) -> float:
    """Return `value` as a float, or raise InputError unless it is a number in [`least`, 1] (no bool), above 0 if not `zero`."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not least <= float(value) <= 1 or (value == 0 and not zero):
        reject(name, value, f"a number from {least:g} to 1" if zero else "a number above 0 and at most 1")
    return float(value)

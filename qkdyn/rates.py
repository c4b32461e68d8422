"""Learning rates and what multiplies them: numbers, traced scalars, schedules."""

import inspect
import math
import numbers
from typing import Any

import jax
import jax.core
import optax

from qkdyn.errors import InputError, reject

# The largest rate that single precision holds with room for a gradient.
MOST = 1e30
Rate = int | float | jax.Array | optax.Schedule


def check_rate(name: str, value: Any, instead_of_zero: str | None = None, *, schedule: bool = True) -> None:
    """Raise InputError unless `value` is a rate: a finite number >= 0, a scalar array, a schedule of one argument.

    Traced values pass, and so does what schedules return: there is no looking at these.

    Args:
        name: for the message.
        value: what a caller gave.
        instead_of_zero: what to do instead, where zero is not allowed.
        schedule: whether a function of the update count is allowed.
    """
    if callable(value):
        if schedule and _takes_count(value):
            return None
        reject(
            name, value, "a schedule of one argument, the update count" if schedule else "a number or a scalar array"
        )
    least = f"a finite number {'> 0' if instead_of_zero else '>= 0'}, at most {MOST:g}"
    if isinstance(value, jax.core.Tracer):
        shape = value.shape
    elif isinstance(value, numbers.Real) and not isinstance(value, bool):
        shape = ()
        if not math.isfinite(value) or not 0 <= float(value) <= MOST or (value == 0 and instead_of_zero):
            reject(name, value, least, (instead_of_zero or "") if value == 0 else "")
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        shape = tuple(value.shape)
        if shape == ():
            return check_rate(name, value.item(), instead_of_zero)
    else:
        reject(
            name,
            value,
            "a number, a scalar array" + (" or a schedule (a function of the update count)" if schedule else ""),
        )
    if shape != ():
        raise InputError(f"{name} must be a scalar, got an array of shape {shape}; vmap over its entries instead")
    return None


def _takes_count(schedule: Any) -> bool:
    try:
        inspect.signature(schedule).bind(0)
    except TypeError:
        return False
    except ValueError:  # a built-in without a signature
        return True
    return True


def product(rate: Rate, multiplier: Rate) -> Rate:
    """The rate times the multiplier, a schedule where either is one."""
    if callable(rate) or callable(multiplier):

        def schedule(count: Any) -> Any:
            value = rate(count) if callable(rate) else rate
            return value * (multiplier(count) if callable(multiplier) else multiplier)

        return schedule
    return rate * multiplier

"""Errors that name the value, what is allowed, and what to do; and the checks that raise them."""

import math
import numbers
from typing import Any, NoReturn


class QkdynError(ValueError):
    """Base of every error this package raises on purpose."""


class InputError(QkdynError):
    """A value that a caller gave is not allowed."""


class RangeError(InputError):
    """A value is well formed but no trajectory reaches it; the message names the reachable range."""


class LabelError(InputError):
    """Parameters without a circuit label, or labels and multipliers that do not match."""


class OutputError(QkdynError):
    """Results cannot be read from, or written to, where they were asked for."""


def reject(name: str, value: Any, allowed: str, do: str = "", error: type[QkdynError] = InputError) -> NoReturn:
    """Raise `error` as "name must be <allowed>, got <value>; <do>"."""
    raise error(f"{name} must be {allowed}, got {value!r}{'; ' + do if do else ''}")


def check_count(name: str, value: Any, *, minimum: int = 1, do: str = "") -> int:
    """Return `value` as an int, or raise InputError unless it is an integer >= `minimum` (bool is refused)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < minimum:
        reject(name, value, f"an integer >= {minimum}", do)
    return int(value)


def check_positive(name: str, value: Any, *, zero: bool = False, do: str = "") -> float:
    """Return `value` as a float, or raise InputError unless it is a finite real number > 0 (>= 0 with `zero`)."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        reject(name, value, f"a finite number {'>=' if zero else '>'} 0", do)
    return float(value)

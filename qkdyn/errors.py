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


class DataError(QkdynError):
    """Data are missing, damaged, or not as their schema says."""


class CheckpointError(QkdynError):
    """A checkpoint is not what was written, or not of the run that wants it."""


class ConflictError(OutputError):
    """A folder holds results of another configuration, or another process is writing to it."""


class PeerError(QkdynError):
    """Another process of a distributed run is gone."""


class OutputWarning(UserWarning):
    """Something about files that does not stop the work, such as a damaged checkpoint with a good one before it."""


class Interrupted(Exception):
    """The process was asked to end, and has saved what it needs to go on."""


# What every float and every count that a caller gives must lie between: products of a few of them stay in float64.
SMALLEST, LARGEST = 1e-300, 1e300
# Ratios, rates and strengths are multiplied and squared: within these limits every intermediate stays in float64.
WEAKEST, STRONGEST = 1e-75, 1e75
LARGEST_COUNT = 10**15


def _shown(value: Any) -> str:
    """`value` for a message: its repr, unless that is a page long."""
    if isinstance(value, numbers.Integral) and abs(int(value)) >= 10**40:
        return f"an integer of about {int(abs(int(value)).bit_length() * math.log10(2)) + 1} digits"
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print an integer of thousands of digits.
        return f"a {type(value).__name__} of something too long to print"
    return text if len(text) <= 500 else f"{text[:500]}..."


def reject(name: str, value: Any, allowed: str, do: str = "", error: type[QkdynError] = InputError) -> NoReturn:
    """Raise `error` as "name must be <allowed>, got <value>; <do>"."""
    raise error(f"{name} must be {allowed}, got {_shown(value)}{'; ' + do if do else ''}")


def as_tuple(name: str, values: Any) -> tuple[Any, ...]:
    """Return a list, tuple or one-dimensional array as a tuple; raise InputError for anything else, a string included."""
    if isinstance(values, str) or getattr(values, "ndim", 1) != 1 or not hasattr(values, "__len__"):
        reject(name, values, "a list of values", f"for one value write ({values!r},)")
    return tuple(values.tolist() if hasattr(values, "tolist") else values)


def check_count(name: str, value: Any, *, minimum: int = 1, do: str = "") -> int:
    """Return `value` as an int, or raise InputError unless it is an integer from `minimum` to 10^15 (no bool)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < minimum:
        reject(name, value, f"an integer >= {minimum}", do)
    if int(value) > LARGEST_COUNT:
        reject(name, value, f"an integer of at most {LARGEST_COUNT:.0e}", do)
    return int(value)


def check_positive(
    name: str, value: Any, *, zero: bool = False, do: str = "", least: float = SMALLEST, most: float = LARGEST
) -> float:
    """Return `value` as a float, or raise InputError.

    Allowed are real numbers from `least` to `most` (no bool), and 0 with `zero`.
    """
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or value != value or value in (math.inf, -math.inf) or value < 0 or (value == 0 and not zero):
        reject(name, value, f"a finite number {'>=' if zero else '>'} 0", do)
    # Compared as it is: an integer may be beyond float64.
    exact: Any = value
    if exact != 0 and not least <= exact <= most:
        reject(name, value, f"{'0 or ' if zero else ''}between {least:g} and {most:g}", do)
    return float(value)

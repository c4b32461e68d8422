"""What a theory question is asked about: the problem's four sizes, the start, and the checks of ratios and times."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy.typing import ArrayLike

from qkdyn.errors import LARGEST, SMALLEST, STRONGEST, WEAKEST, check_count, check_positive, reject
from qkdyn.parameterization import Parameterization

# What callers may pass for numbers of any shape; what else it lets through is refused by value, below. (ArrayLike names
# complex scalars and leaves it to static checkers to promote float and int.)
Reals = float | int | Sequence | ArrayLike
# numpy's arithmetic turns arrays of no dimension into scalars.
Numeric = np.ndarray | np.float64
# Any: a size of the wrong type is refused by __post_init__, in words, and not by whoever checks types at run time.
Size = int | Any

# Above this gap the background holds less than 1e-300 of the attention and exp(mu_qk) nears the end of float64.
LARGEST_INITIAL_GAP = 300.0
NOT_TRACED = "the theory is numpy and scipy: call it outside jit, grad and vmap, with concrete numbers"


@dataclass(frozen=True)
class Setting:
    """The sizes that Theorem 1 depends on.

    Attributes:
        m: class tokens in a context.
        n: background tokens in a context.
        b: tokens that a class owns.
        M: classes, at least 2.

    Raises:
        InputError: a size is not an integer, too small, or above 10^15.
    """

    m: Size
    n: Size
    b: Size
    M: Size

    def __post_init__(self):
        for name, least in (("m", 1), ("n", 1), ("b", 1), ("M", 2)):
            object.__setattr__(self, name, check_count(name, getattr(self, name), minimum=least))

    @property
    def odds(self) -> float:
        """Attention odds of the class tokens while every score is equal, m / n."""
        return self.m / self.n

    @property
    def alpha0(self) -> float:
        """The class tokens' share of uniform attention, m / (m + n)."""
        return self.m / (self.m + self.n)

    @property
    def initial_loss(self) -> float:
        """The loss where mu_ov = 0, ln M."""
        return math.log(self.M)

    def attention(self, mu_qk: Reals) -> np.ndarray:
        """Attention alpha = m e^mu_qk / (m e^mu_qk + n), of mu_qk's shape, without overflow."""
        from scipy.special import expit

        return np.asarray(expit(np.asarray(mu_qk, np.float64) + math.log(self.odds)))

    def inattention(self, mu_qk: Reals) -> np.ndarray:
        """1 - alpha, of mu_qk's shape, to full relative precision where alpha is next to 1."""
        from scipy.special import expit

        return np.asarray(expit(-np.asarray(mu_qk, np.float64) - math.log(self.odds)))

    def loss(self, margin: Reals) -> np.ndarray:
        """Cross entropy ln(1 + (M-1) e^-margin), of margin's shape, where margin = alpha mu_ov."""
        margin, others = np.asarray(margin, np.float64), self.M - 1
        # Where e^-margin nears the end of float64, M - 1 may bring it back.
        small = np.where(margin > 600, np.exp(math.log(others) - margin), others * np.exp(-margin))
        return np.asarray(np.log1p(small))

    def margin(self, loss: Reals) -> np.ndarray:
        """The inverse of `loss`: A = ln((M-1)/(e^loss - 1)), of loss's shape."""
        return margin_at(np.asarray(loss, np.float64), np.float64(self.M - 1))


def margin_at(loss: Numeric, others: Numeric) -> np.ndarray:
    """ln(others / (e^loss - 1)), elementwise: the margin at a loss, where `others` = M - 1."""
    excess = np.expm1(loss)
    # The quotient keeps the digits of a small margin, and overflows where the margin is large.
    return np.asarray(
        np.where(excess < 1e-200, np.log(others) - np.log(excess), np.log(others / np.maximum(excess, 1e-200)))
    )


def check_setting(setting: Any) -> Setting:
    """Return `setting`, or raise InputError unless it is a Setting."""
    if not isinstance(setting, Setting):
        reject("setting", setting, "a Setting", "pass Setting(m, n, b, M)")
    return setting


def check_untraced(name: str, value: Any) -> None:
    """Raise InputError where `value` is traced by JAX."""
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.core.Tracer):
        reject(name, value, "a number or an array of numbers", NOT_TRACED)


def check_array(
    name: str, value: Any, *, positive: bool = False, least: float = SMALLEST, most: float = LARGEST
) -> Float64[np.ndarray, "..."]:
    """Return `value` as a non-empty float64 array of numbers that are 0 or of a size from `least` to `most`.

    With `positive`, all > 0.

    Raises:
        InputError: names the first element that is not allowed.
    """
    allowed = f"{'positive' if positive else 'real'} and finite"
    size = f"{'' if positive else '0 or of a size '}between {least:g} and {most:g}"
    check_untraced(name, value)
    try:
        array = np.asarray(value)
    except ValueError:
        reject(name, value, "a number or a rectangular array of numbers")
    except OverflowError:
        reject(name, value, size)
    except TypeError:  # Among them, what JAX raises for a list with a traced value in it.
        reject(name, value, f"{allowed}: a number or an array of numbers", NOT_TRACED)
    if array.dtype.kind == "O" and all(type(item) in (int, float) for item in array.flat):
        beyond = [item for item in array.flat if abs(item) > most]
        if beyond:
            reject(name, beyond[0], size)
    elif array.dtype.kind not in "iuf":
        reject(name, value, f"{allowed}: a number or an array of numbers")
    if array.size == 0:
        reject(name, value, "not empty")
    with np.errstate(over="ignore"):  # An extended float may be beyond float64.
        array = array.astype(np.float64)
    bad = ~np.isfinite(array) | ((array <= 0) if positive else False)
    if bad.any():
        reject(name, float(array[bad][0]), allowed)
    far = (array != 0) & ((np.abs(array) < least) | (np.abs(array) > most))
    if far.any():
        reject(name, float(array[far][0]), size)
    return array


def check_matrix(name: str, value: Any) -> Float64[np.ndarray, "rows columns"]:
    """Return `value` as a float64 matrix of finite numbers below 1e150, not empty, or raise InputError."""
    try:
        matrix = np.asarray(value)
    except ValueError:
        reject(name, value, "a rectangular matrix of real numbers")
    if matrix.ndim != 2 or matrix.dtype.kind not in "iuf" or matrix.size == 0:
        reject(name, f"{matrix.dtype} of shape {matrix.shape}", "a matrix of real numbers, not empty")
    with np.errstate(over="ignore"):
        matrix = matrix.astype(np.float64)
    if not (np.abs(matrix) <= math.sqrt(LARGEST)).all():
        reject(name, float(np.abs(matrix).max()), "finite, its entries below 1e150")
    return matrix


def check_factor(name: str, value: Any, *, positive: bool = True) -> Float64[np.ndarray, "..."]:
    """Return ratios or strengths as float64: `check_array` within 1e-75 to 1e75."""
    return check_array(name, value, positive=positive, least=WEAKEST, most=STRONGEST)


def check_rate(name: str, value: Any) -> float:
    """Return a learning rate: one number from 1e-75 to 1e75."""
    check_untraced(name, value)
    return check_positive(name, value, least=WEAKEST, most=STRONGEST)


def check_together(**arrays: np.ndarray) -> None:
    """Raise InputError unless the named arrays broadcast."""
    try:
        np.broadcast_shapes(*(array.shape for array in arrays.values()))
    except ValueError:
        names, shapes = list(arrays), tuple(array.shape for array in arrays.values())
        reject(
            f"the shapes of {' and '.join(names)}",
            shapes,
            "such that they broadcast",
            f"for all pairs, {names[0]}[:, None]",
        )


def check_duration(eta_ov: float, t: np.ndarray) -> Float64[np.ndarray, "..."]:
    """Return tau = eta_ov t, of t's shape, or raise InputError where it exceeds float64's reach."""
    if float(t.max()) > LARGEST / max(eta_ov, 1.0):
        reject("t", float(t.max()), f"at most {LARGEST / max(eta_ov, 1.0):g}", f"eta_ov t may not exceed {LARGEST:g}")
    return np.asarray(eta_ov * t)


def check_ratio(r: Any) -> Float64[np.ndarray, "..."]:
    """Return the learning-rate ratios r = eta_qk / eta_ov as float64, of any shape.

    Raises:
        InputError: `r` is empty, not numeric, or holds a value that is not between 1e-75 and 1e75.
    """
    return check_factor("r", r)


def check_times(t: Any) -> Float64[np.ndarray, " t"]:
    """Return times as float64.

    Raises:
        InputError: `t` is empty, not 1-D, not finite, negative, or not strictly increasing.
    """
    times = check_array("t", t)
    if times.ndim != 1:
        reject("t", t, "one-dimensional", "put a single time in a list")
    if times[0] < 0:
        reject("t", float(times[0]), ">= 0")
    if (np.diff(times) <= 0).any():
        at = int(np.argmax(np.diff(times) <= 0))
        reject("t", (float(times[at]), float(times[at + 1])), "strictly increasing", "sort it and drop repeated times")
    return times


def check_initial(initial: Any, parameterization: Parameterization) -> tuple[float, float]:
    """Return (mu_ov, mu_qk) at t = 0.

    A factorized circuit is at rest at zero, because its velocity is Omega(W) applied to the gradient and Omega(0) = 0
    (Lemmas 2 and 5), so there the start has no default.

    Raises:
        InputError: the start is missing, malformed, negative, or puts a factorized circuit on its saddle.
    """
    way_out = f"zero is a saddle of a factorized circuit ({parameterization}); pass e.g. initial=(0.1, 0.1)"
    factorized = (parameterization.factorized_ov, parameterization.factorized_qk)
    if initial is None:
        if any(factorized):
            reject("initial", initial, "given where a circuit is factorized", way_out)
        return 0.0, 0.0
    pair = check_factor("initial", initial, positive=False)
    if pair.shape != (2,):
        reject("initial", initial, "a pair (mu_ov, mu_qk)")
    for name, value, is_factorized in zip(("mu_ov", "mu_qk"), pair.tolist(), factorized, strict=True):
        if value < 0:
            reject(f"initial {name}", value, ">= 0")
        if is_factorized and value == 0:
            reject(f"initial {name}", value, "> 0", way_out)
    if pair[1] > LARGEST_INITIAL_GAP:
        reject("initial mu_qk", float(pair[1]), f"<= {LARGEST_INITIAL_GAP:g}", "attention is saturated long before")
    return float(pair[0]), float(pair[1])

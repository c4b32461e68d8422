"""Attention at a matched loss over whole grids of settings at once: r, m/n, M and b are arrays (CACO from zero).

At a loss the margin A = alpha mu_ov is known, and with the first integral G(q) = q + (m/n)(e^q - 1) = K mu_ov^2 / 2 one
equation is left for q = mu_qk: 2 ln alpha(q) + ln G(q) = ln(K A^2 / 2), increasing and concave in q. Newton's method from the
left climbs to its root, all settings together.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from qkdyn.errors import LARGEST_COUNT, RangeError, reject
from qkdyn.theory.setting import Numeric, Reals, check_array, check_factor, check_ratio, check_together, margin_at

ROUNDS, SETTLED = 60, 1e-9


class Landscape(NamedTuple):
    """States at a matched loss; every field has the shape of the broadcast arguments."""

    mu_ov: Float64[np.ndarray, "..."]
    mu_qk: Float64[np.ndarray, "..."]
    alpha: Float64[np.ndarray, "..."]


def landscape(r: Reals, loss: Reals, *, odds: Reals, M: Reals, b: Reals) -> Landscape:
    """The state of Theorem 1's dynamics, both circuits collapsed and started at zero, when the loss reaches a value.

    `closed_form.at_loss` for many settings at once and without the time; sizes may be any numbers.

    Args:
        r: learning-rate ratio eta_qk / eta_ov.
        loss: stop loss in nats, between 0 and ln M.
        odds: m / n, class tokens over background tokens of a context.
        M: classes, from 2 to 10^15.
        b: tokens of a class, from 1 to 10^15.

    Returns:
        Landscape of the broadcast shape.

    Raises:
        InputError: a value is not allowed, or the shapes do not broadcast. RangeError: a loss outside (0, ln M).
    """
    ratio, losses = check_ratio(r), check_array("loss", loss, positive=True)
    sizes = check_factor("odds", odds), *(check_array(n, v, most=float(LARGEST_COUNT)) for n, v in (("M", M), ("b", b)))
    for name, value, least in (("M", sizes[1], 2), ("b", sizes[2], 1)):
        if (value < least).any():
            reject(name, float(value.min()), f">= {least}")
    check_together(r=ratio, loss=losses, odds=sizes[0], M=sizes[1], b=sizes[2])
    ratio, losses, share, classes, own = np.broadcast_arrays(ratio, losses, *sizes)
    highest = np.log(classes)
    if (losses >= highest).any():
        at = np.argmax((losses >= highest).ravel())
        allowed = f"below ln M = {highest.ravel()[at]:.9g}, where training starts"
        reject("loss", float(losses.ravel()[at]), allowed, error=RangeError)
    margin = margin_at(losses, classes - 1)
    half = np.asarray(ratio * (classes - 1) / (2 * classes * own) * margin**2)
    q = _gap(share, half)
    rest = 1 / (1 + share * np.exp(q))
    return Landscape(*map(np.asarray, (margin / (1 - rest), q, 1 - rest)))


def _gap(odds: np.ndarray, half: np.ndarray) -> Numeric:
    """The root q of 2 ln alpha(q) + ln G(q) = ln half."""
    # Above the root of G(q) = half, and from there by the chord of a convex function below it: alpha < 1 puts q still higher.
    above = np.minimum(half / (1 + odds), np.log1p(half / odds))
    q = half * above / (above + odds * np.expm1(above))
    target = np.log(half)
    for _ in range(ROUNDS):
        weight = odds * np.exp(q)
        potential = q + odds * np.expm1(q)
        rest = 1 / (1 + weight)
        step = (target - np.log(potential) + 2 * np.log1p(1 / weight)) / (2 * rest + (1 + weight) / potential)
        q = q + step
        if (np.abs(step) <= SETTLED * q).all():
            break
    return q

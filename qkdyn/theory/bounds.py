"""Lemma 3: logarithmic bounds of mu_ov and log-squared bounds of mu_qk, both circuits collapsed and started at zero."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from qkdyn.errors import reject
from qkdyn.theory.closed_form import at_time
from qkdyn.theory.setting import (
    Reals,
    Setting,
    check_array,
    check_duration,
    check_rate,
    check_ratio,
    check_setting,
    check_times,
)


class Bounds(NamedTuple):
    """Lemma 3's four bounds, each of the shape of r followed by that of t."""

    mu_ov_lower: Float64[np.ndarray, "*r t"]
    mu_ov_upper: Float64[np.ndarray, "*r t"]
    mu_qk_lower: Float64[np.ndarray, "*r t"]
    mu_qk_upper: Float64[np.ndarray, "*r t"]


def lemma3_bounds(
    setting: Setting,
    r: Reals,
    t: Reals,
    *,
    eta_ov: float | int = 1.0,
    delta: Reals | None = None,
) -> Bounds:
    """Evaluate Lemma 3 (CACO from zero).

    With a0 = m/(m+n), l = ln(1 + eta_ov a0 t / (M b)) and u = ln(1 + eta_ov a0 t / b):

        (24)  l <= mu_ov <= u / a0
        (26)  mu_qk <= r (M-1) (1-a0) / (2 M b a0^2) u^2
        (28)  mu_qk >= r (M-1) delta / (2 M b) l^2   while alpha <= 1 - delta

    (28) fails some time after alpha passes 1 - delta: a fixed delta is the caller's promise that it has not.

    Args:
        setting: sizes of the problem.
        r: learning-rate ratio eta_qk / eta_ov, any shape.
        t: strictly increasing times >= 0, 1-D, in units of 1/eta_ov where eta_ov = 1.
        eta_ov: OV learning rate.
        delta: distance of attention from 1, in (0, 1), broadcastable to r.shape + t.shape. None is the sharpest that
            the theory allows at each time, 1 - alpha(t); a simulated run passes its own 1 - alpha.

    Returns:
        Bounds of shape r.shape + t.shape; all zero at t = 0.

    Raises:
        InputError: a value is not allowed.
    """
    setting, ratio, times, eta = check_setting(setting), check_ratio(r), check_times(t), check_rate("eta_ov", eta_ov)
    taus = check_duration(eta, times)
    shape = ratio.shape + times.shape
    ratio = ratio[..., None]
    if delta is None:
        distance = setting.inattention(at_time(setting, ratio, times, eta_ov=eta).mu_qk)
    else:
        distance = check_array("delta", delta)
        outside = (distance <= 0) | (distance >= 1)
        if outside.any():
            reject("delta", float(distance[outside][0]), "between 0 and 1, both excluded")
        try:
            distance = np.broadcast_to(distance, shape)
        except ValueError:
            reject("delta", f"shape {distance.shape}", f"a number or of a shape that broadcasts to {shape}")
    a0, classes, b = setting.alpha0, setting.M, setting.b
    low, high = np.log1p(a0 * taus / (classes * b)), np.log1p(a0 * taus / b)
    half_coupling = ratio * (classes - 1) / (2 * classes * b)
    bounds = (low, high / a0, half_coupling * distance * low**2, half_coupling * (1 - a0) / a0**2 * high**2)
    return Bounds(*(np.array(np.broadcast_to(bound, shape)) for bound in bounds))

"""Theorem 1 by integration: the two scalar equations of each parameterization, solved in time with diffrax."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from qkdyn.errors import QkdynError
from qkdyn.theory.curve import Curve
from qkdyn.theory.setting import Reals, Setting, check_duration, check_rate, check_ratio, check_times


class Trajectory(NamedTuple):
    """A solution in time; t is 1-D and the other fields have the shape of r followed by that of t.

    Attributes:
        t: times, in units of 1/eta_ov where eta_ov = 1.
        mu_ov: strength of the OV circuit.
        mu_qk: score gap of the QK circuit.
        alpha: attention on the class tokens.
        loss: cross entropy in nats.
    """

    t: Float64[np.ndarray, " t"]
    mu_ov: Float64[np.ndarray, "*r t"]
    mu_qk: Float64[np.ndarray, "*r t"]
    alpha: Float64[np.ndarray, "*r t"]
    loss: Float64[np.ndarray, "*r t"]


def integrate(
    setting: Setting,
    r: Reals,
    t: Reals,
    *,
    eta_ov: float | int = 1.0,
    parameterization: str = "CACO",
    initial: Reals | None = None,
) -> Trajectory:
    """Integrate the gradient flow of Theorem 1, reduced to two scalars, in float64.

    With E = e^(alpha mu_ov):  d mu_ov/dt = eta_ov alpha / (b (E + M-1))  and
    d mu_qk/dt = r eta_ov (M-1) alpha (1-alpha) mu_ov / (M b^2 (E + M-1)).  By Lemmas 2 and 5 balanced factors multiply
    the first by 2 sqrt(b) mu_ov and the second by 2 b mu_qk.

    Args:
        setting: sizes of the problem.
        r: learning-rate ratio eta_qk / eta_ov, any shape.
        t: strictly increasing times >= 0, 1-D, in units of 1/eta_ov where eta_ov = 1.
        eta_ov: OV learning rate.
        parameterization: which circuits are factorized (balanced factors).
        initial: (mu_ov, mu_qk) at t = 0; (0, 0) unless a circuit is factorized.

    Returns:
        Trajectory of shape r.shape + t.shape. Calls with equally many ratios and times share one compilation.

    Raises:
        InputError: a value is not allowed.
        QkdynError: the integrator gave up; the message names the ratios and the times reached.
    """
    curve = Curve.start(setting, parameterization, initial)
    ratio, times, which = check_ratio(r), check_times(t), curve.parameterization
    eta = check_rate("eta_ov", eta_ov)
    check_duration(eta, times)

    import jax

    from qkdyn.theory import ode

    scalars = np.array([eta, math.log(setting.odds), setting.b, setting.M])
    factorized = np.array([which.factorized_qk, which.factorized_ov])
    # Entered outside the jitted function and left after it: the caller's own float32 programs never notice.
    with jax.enable_x64(True):
        solved = ode.solve(ratio.ravel(), times, np.array([curve.mu0, curve.q0]), scalars, factorized)
        states, reached, succeeded = (np.asarray(part) for part in solved)
    if not (succeeded.all() and np.isfinite(states).all()):
        failed = ~(succeeded & np.isfinite(states).all((1, 2)))
        cases = [f"{r:g} (stopped at t = {t:g})" for r, t in zip(ratio.ravel()[failed], reached[failed], strict=True)]
        names = ", ".join(cases[:10]) + (", ..." if len(cases) > 10 else "")
        raise QkdynError(f"integration to t = {times[-1]:g} failed at r = {names}; at_time gives the same state")
    mu_ov, mu_qk = (states[..., index].reshape(*ratio.shape, times.size) for index in (0, 1))
    alpha = setting.attention(mu_qk)
    return Trajectory(times, mu_ov, mu_qk, alpha, setting.loss(alpha * mu_ov))

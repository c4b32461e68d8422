"""How fast a training run leaves Theorem 1's two scalars: two linear instabilities of the path they describe."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from qkdyn.errors import QkdynError, check_positive
from qkdyn.theory.closed_form import check_loss, mu_at_margin
from qkdyn.theory.curve import Curve
from qkdyn.theory.setting import Reals, Setting, check_array, check_ratio


class Amplification(NamedTuple):
    """Natural logarithms of what an OV difference of 1 between two tokens of a class has become.

    Attributes:
        log_delta: ln of the difference of their OV weights; exp of it is the amplification.
        log_epsilon: ln of the difference of their scores.
    """

    log_delta: Float64[np.ndarray, "..."]
    log_epsilon: Float64[np.ndarray, "..."]


def class_competition(
    setting: Setting,
    r: Reals,
    loss: Reals,
    *,
    parameterization: str = "CACO",
    initial: Reals | None = None,
) -> Amplification:
    """Growth of a small difference between two tokens of one class, from the start until the loss is reached.

    Let delta be the difference of the two tokens' OV weights and epsilon that of their scores. Theorem 1's gradient,
    linearized at its own path, drives them by f epsilon and by H = f K [(1-alpha) mu_ov epsilon + delta], where
    f = eta_ov alpha / (b (E + M-1)) and K = r (M-1) / (M b). The perturbation lies outside the row space of W_OV and
    the column space of W_QK, so in Omega (Lemmas 2 and 5) one factor keeps its value and the other is turned by it:

        collapsed OV   d delta/dt = f epsilon         factorized OV   d delta/dt = sqrt(b) f (mu_ov epsilon + delta)
        collapsed QK   d epsilon/dt = H               factorized QK   d epsilon/dt = b (mu_qk H + g epsilon)

    with g = f K (1-alpha) mu_ov. For CACO: d delta/d mu_ov = epsilon, d epsilon/d mu_ov = K [(1-alpha) mu_ov epsilon +
    delta]. The start is delta = 1, epsilon = 0; epsilon / delta and ln delta are integrated, so nothing overflows.

    Args:
        setting: sizes of the problem.
        r: learning-rate ratio eta_qk / eta_ov, any shape.
        loss: stop loss in nats, broadcast against `r`.
        parameterization: which circuits are factorized (balanced factors).
        initial: (mu_ov, mu_qk) at t = 0; (0, 0) unless a circuit is factorized.

    Returns:
        Amplification of the broadcast shape; the speed of training does not enter.

    Raises:
        InputError: a value is not allowed.
        RangeError: no trajectory passes the loss.
    """
    curve = Curve.start(setting, parameterization, initial)
    ratio, losses = np.broadcast_arrays(check_ratio(r), check_loss(curve, loss))
    ends = mu_at_margin(curve, ratio, setting.margin(losses))
    pairs = [_grow(curve, one, end) for one, end in zip(ratio.ravel().tolist(), ends.ravel().tolist(), strict=True)]
    log_delta, share = np.array(pairs).T.reshape(2, *ratio.shape)
    # A loss within rounding of the start leaves epsilon = 0.
    with np.errstate(divide="ignore"):
        return Amplification(np.asarray(log_delta), np.asarray(log_delta + np.log(share)))


def _grow(curve: Curve, r: float, end: float) -> tuple[float, float]:
    """(ln delta, epsilon / delta) when mu_ov reaches `end`."""
    from scipy.integrate import solve_ivp

    coupling, b, which = float(curve.coupling(r)), curve.setting.b, curve.parameterization
    root_b = math.sqrt(b)

    def slopes(mu: float, state: np.ndarray) -> list[float]:
        q, _, share = state
        # Velocities over f; `pace` is d mu_ov/dt over f.
        push = coupling * float(curve.setting.inattention(q)) * mu
        force = push * share + coupling
        pace = 2 * root_b * mu if which.factorized_ov else 1.0
        delta = root_b * (mu * share + 1) if which.factorized_ov else share
        epsilon = b * (q * force + push * share) if which.factorized_qk else force
        gap = 2 * b * q * push if which.factorized_qk else push
        return [gap / pace, delta / pace, (epsilon - share * delta) / pace]

    start = [curve.q0, 0.0, 0.0]
    solution = solve_ivp(slopes, (curve.mu0, end), start, method="DOP853", rtol=1e-11, atol=1e-14)
    if not solution.success:
        raise QkdynError(f"class_competition failed at r = {r:g}: {solution.message}")
    return float(solution.y[1, -1]), float(solution.y[2, -1])


def background_rate(
    setting: Setting, r: Reals, *, kappa: Reals, eta_ov: float | int = 1.0
) -> Float64[np.ndarray, "..."]:
    """Growth rate at initialization of the instability through background directions (both circuits collapsed, zero).

    A background direction v with E[(nu . v)^2] = kappa couples W_OV along u v^T to W_QK along v S_y^T; linearized at
    zero, the pair grows at lambda = (1-alpha0) kappa sqrt(eta_qk eta_ov / b) / M.

    Args:
        setting: sizes of the problem.
        r: learning-rate ratio eta_qk / eta_ov, any shape.
        kappa: second moment of the background along v, broadcast against `r`; 1/k for k equally likely unit directions.
        eta_ov: OV learning rate.

    Returns:
        lambda of the broadcast shape, per unit of time (of 1/eta_ov where eta_ov = 1).

    Raises:
        InputError: a value is not allowed.
    """
    ratio, moment = check_ratio(r), check_array("kappa", kappa, positive=True)
    eta = check_positive("eta_ov", eta_ov)
    return np.asarray((1 - setting.alpha0) * moment * eta * np.sqrt(ratio / setting.b) / setting.M)

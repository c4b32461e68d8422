"""How fast a training run leaves Theorem 1's two scalars: two linear instabilities of the path they describe."""

import math
import warnings
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from qkdyn.theory.closed_form import check_loss, gain_at_margin
from qkdyn.theory.curve import Curve
from qkdyn.theory.setting import Reals, Setting, check_factor, check_rate, check_ratio, check_setting, check_together

# LSODA changes to an implicit method where r is large; r = 1e75 takes it 30 000 steps, a fifth of a second.
STEPS = 50_000
RTOL = 3e-14


class Amplification(NamedTuple):
    """Natural logarithms of what an OV difference of 1 between two tokens of a class has become.

    Attributes:
        log_delta: ln of the difference of their OV weights; exp of it is the amplification.
        log_epsilon: ln of the difference of their scores.
    """

    log_delta: Float64[np.ndarray, "..."]
    log_epsilon: Float64[np.ndarray, "..."]


class BackgroundGrowth(NamedTuple):
    """Natural logarithms, 0 at the start, of a perturbation along a background direction.

    Attributes:
        log_u: of its part in W_OV; exp of it is the amplification.
        log_beta: of its part in W_QK, over sqrt(r / b).
    """

    log_u: Float64[np.ndarray, "..."]
    log_beta: Float64[np.ndarray, "..."]


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
        Amplification of the broadcast shape; the speed of training does not enter. NaN where the integrator gave up
        within its bounded number of steps, as from a start of 1e-75 at r above 1e50; from 0.01 it gets through to 1e75.

    Raises:
        InputError: a value is not allowed.
        RangeError: no trajectory passes the loss.
    """
    curve = Curve.start(setting, parameterization, initial)
    ratio, losses = check_ratio(r), check_loss(curve, loss)
    check_together(r=ratio, loss=losses)
    ratio, losses = np.broadcast_arrays(ratio, losses)
    gains = gain_at_margin(curve, ratio, setting.margin(losses))
    pairs = [_grow(curve, one, end) for one, end in zip(ratio.ravel().tolist(), gains.ravel().tolist(), strict=True)]
    log_delta, share = np.array(pairs).T.reshape(2, *ratio.shape)
    # A loss within rounding of the start leaves epsilon = 0.
    with np.errstate(divide="ignore"):
        return Amplification(np.asarray(log_delta), np.asarray(log_delta + np.log(share)))


def _grow(curve: Curve, r: float, gain: float) -> tuple[float, float]:
    """(ln delta, epsilon / delta) when mu_ov has gained `gain`; NaN where the integrator gave up."""
    from scipy.integrate import odeint

    coupling, b, odds, which = float(curve.coupling(r)), curve.setting.b, curve.setting.odds, curve.parameterization
    root_b, logarithmic, bent = math.sqrt(b), which.factorized_ov, which.factorized_qk
    # Velocities are over f; `pace` is dx/dt over f.
    pace = 2 * root_b if logarithmic else 1.0
    # epsilon / delta is of the order of K, or sqrt(K) where K is large: in that unit the Jacobian is balanced.
    unit = min(coupling, math.sqrt(coupling))

    def place(x: float, state: np.ndarray) -> tuple[float, float, float, float, float]:
        # A step that tries too far ahead may land anywhere.
        turn, share = min(max(state[0].item(), 0.0), 700.0), unit * state[2].item()
        q = min(curve.q0 * math.exp(turn), 700.0) if bent else min(curve.q0 + turn, 700.0)
        mu, rest = curve.mu0 * math.exp(min(x, 700.0)) if logarithmic else curve.mu0 + x, 1 / (1 + odds * math.exp(q))
        return q, share, mu, coupling * mu * rest, rest

    def slopes(x: float, state: np.ndarray) -> list[float]:
        q, share, mu, push, _ = place(x, state)
        force = push * share + coupling
        delta = root_b * (mu * share + 1) if logarithmic else share
        epsilon = b * (q * force + push * share) if bent else force
        gap = 2 * b * push if bent else push
        return [gap / pace, delta / unit / pace, (epsilon / unit - share / unit * delta) / pace]

    def jacobian(x: float, state: np.ndarray) -> list[list[float]]:
        # By differences it is wrong enough at r > 1e50 to give a wrong answer with a good conscience.
        q, share, mu, push, rest = place(x, state)
        bend = push * (rest - 1)
        delta = root_b * (2 * mu * share + 1) if logarithmic else 2 * share
        delta_s = root_b * mu if logarithmic else 1.0
        gap_q = 2 * b * q * bend if bent else bend
        epsilon_q = b * q * (push * share + coupling + (q + 1) * bend * share) if bent else bend * share
        epsilon_s = b * (q + 1) * push if bent else push
        rows = [gap_q, 0.0, 0.0], [0.0, 0.0, delta_s], [epsilon_q / unit, 0.0, epsilon_s - delta]
        return [[entry / pace for entry in row] for row in rows]

    # Factorized circuits grow in their logarithms: x is ln(mu_ov / mu0) or mu_ov - mu0, and the first of the state is
    # ln(mu_qk / q0) or mu_qk - q0.
    end = math.log1p(gain / curve.mu0) if which.factorized_ov else gain
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        states, told = odeint(
            slopes,
            [0.0, 0.0, 0.0],
            [0.0, end],
            Dfun=jacobian,
            tfirst=True,
            rtol=RTOL,
            atol=[1e-17, 1e-17, 1e-100],
            mxstep=STEPS,
            full_output=True,
        )
    done = told["message"] == "Integration successful." and np.isfinite(states).all()
    return (unit * float(states[-1, 1]), unit * float(states[-1, 2])) if done else (math.nan, math.nan)


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
    setting, ratio, moment = check_setting(setting), check_ratio(r), check_factor("kappa", kappa)
    check_together(r=ratio, kappa=moment)
    eta = check_rate("eta_ov", eta_ov)
    return np.asarray((1 - setting.alpha0) * moment * eta * np.sqrt(ratio / setting.b) / setting.M)


def background_amplification(setting: Setting, r: Reals, loss: Reals, *, kappa: Reals) -> BackgroundGrowth:
    """Growth of a perturbation along a background direction, from zero circuits until the loss is reached.

    With W_OV + u v^T and W_QK + v (sum_y beta_y S_y)^T, where the entries of u sum to zero and beta is proportional to
    u, Theorem 1's flow linearized at its own path is

        du/dt = eta_ov (1-alpha) kappa beta / (E+M-1)
        d beta/dt = eta_qk / (M b) (1-alpha) kappa (M u - alpha (M-1) mu_ov beta) / (E+M-1),   E = e^(alpha mu_ov).

    Independent backgrounds, which do not sum to zero in each context, also damp u at (1-alpha)^2 kappa / (n M); that is
    left out. The start is u = 1, beta = sqrt(r / b), the direction that grows at `background_rate`. Divided by
    d mu_ov/dt, the two give ln u and the share beta / u: nothing overflows.

    Args:
        setting: sizes of the problem.
        r: learning-rate ratio eta_qk / eta_ov, any shape; both circuits are collapsed.
        loss: stop loss in nats, broadcast against `r`.
        kappa: second moment of the background along v; 1/k for k equally likely unit directions.

    Returns:
        BackgroundGrowth of the broadcast shape; the speed of training does not enter. NaN where the integrator gave up.

    Raises:
        InputError: a value is not allowed.
        RangeError: no trajectory passes the loss.
    """
    curve = Curve.start(setting, "CACO", None)
    ratio, losses, moment = check_ratio(r), check_loss(curve, loss), check_factor("kappa", kappa)
    check_together(r=ratio, loss=losses, kappa=moment)
    ratio, losses, moment = np.broadcast_arrays(ratio, losses, moment)
    gains = gain_at_margin(curve, ratio, setting.margin(losses))
    cases = zip(ratio.ravel().tolist(), moment.ravel().tolist(), gains.ravel().tolist(), strict=True)
    log_u, share = np.array([_grow_background(curve, *case) for case in cases]).T.reshape(2, *ratio.shape)
    return BackgroundGrowth(np.asarray(log_u), np.asarray(log_u + np.log(share)))


def _grow_background(curve: Curve, r: float, kappa: float, gain: float) -> tuple[float, float]:
    """(ln u, beta / u over sqrt(r / b)) when mu_ov has reached `gain`; NaN where the integrator gave up."""
    from scipy.integrate import odeint

    coupling, odds = float(curve.coupling(r)), curve.setting.odds
    pull, push = kappa * math.sqrt(r * curve.setting.b), kappa * curve.setting.b * coupling

    def place(mu: float, state: np.ndarray) -> tuple[float, float, float, float]:
        # A step that tries too far ahead may land anywhere.
        weight = odds * math.exp(min(max(state[0].item(), 0.0), 700.0))
        rest = 1 / (1 + weight)
        return rest, pull / weight, push * mu * rest, state[2].item()

    def slopes(mu: float, state: np.ndarray) -> list[float]:
        rest, grow, damp, share = place(mu, state)
        return [coupling * mu * rest, grow * share, grow * (1 - share**2) - damp * share]

    def jacobian(mu: float, state: np.ndarray) -> list[list[float]]:
        rest, grow, damp, share = place(mu, state)
        gap, turn = coupling * mu * rest * (rest - 1), damp * (1 - rest) * share - grow * (1 - share**2)
        return [[gap, 0.0, 0.0], [-grow * share, 0.0, grow], [turn, 0.0, -2 * grow * share - damp]]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        states, told = odeint(
            slopes,
            [0.0, 0.0, 1.0],
            [0.0, gain],
            Dfun=jacobian,
            tfirst=True,
            rtol=RTOL,
            atol=[1e-17, 1e-17, 1e-100],
            mxstep=STEPS,
            full_output=True,
        )
    done = told["message"] == "Integration successful." and np.isfinite(states).all()
    return (float(states[-1, 1]), float(states[-1, 2])) if done else (math.nan, math.nan)

"""Theorem 1's two scalars under an intervention: in time, and attention at a matched loss."""

import math
from typing import Any

import numpy as np

from qkdyn.errors import QkdynError, check_positive, reject
from qkdyn.interventions import Intervention, Numbers, check_strength
from qkdyn.parameterization import Parameterization
from qkdyn.theory.closed_form import MatchedState, check_loss
from qkdyn.theory.curve import Curve
from qkdyn.theory.scalar import Trajectory
from qkdyn.theory.setting import Reals, Setting, check_duration, check_rate, check_ratio, check_setting, check_times

# Times between 1e-6 of the last one and the last one at which a crossing of a loss is looked for.
LOOKS = 200
# Each round divides the time between two looks by LOOKS - 1: two leave 2e-6 of a time, whose fourth power is below rounding.
ROUNDS = 2


def imbalance(setting: Setting, circuit: str, mu: float, scale: float) -> float:
    """The imbalance of a circuit that stood balanced at `mu` when one factor is multiplied and one divided by `scale`.

    Args:
        setting: sizes of the problem.
        circuit: "qk" or "ov".
        mu: mu_qk or mu_ov, which the scaling leaves as it is.
        scale: what multiplies W_K or W_O, and divides W_Q or W_V.

    Returns:
        |s mu (scale^2 - 1/scale^2)|, s the singular value of the circuit's direction: b of D, sqrt(b) of Sbar.

    Raises:
        InputError: a value is not allowed.
    """
    if circuit not in ("qk", "ov"):
        reject("circuit", circuit, "qk or ov")
    b = check_setting(setting).b
    product = check_strength("mu", mu) * (b if circuit == "qk" else math.sqrt(b))
    by = check_strength("scale", scale, zero=False)
    return abs(product * (by**2 - by**-2))


class Run:
    """One intervention on one start of one setting, checked; ratios and times are arguments."""

    def __init__(self, setting: Setting, form: Any, initial: Reals | None, intervention: Any, eta_ov: Any) -> None:
        if not isinstance(intervention, Intervention):
            reject("intervention", intervention, "an Intervention", "e.g. Intervention(qk=OnCircuit(decay=1e-3))")
        self.form = Parameterization.parse(form)
        self.on = intervention.check(self.form)
        delta = np.array([self.on.ov.imbalance, self.on.qk.imbalance])
        # Factors out of balance leave zero as a single matrix does: only balanced ones rest there.
        at_rest = self.form.factorized_ov and delta[0] == 0, self.form.factorized_qk and delta[1] == 0
        like = f"{'FA' if at_rest[1] else 'CA'}{'FO' if at_rest[0] else 'CO'}"
        self.setting, self.curve = setting, Curve.start(setting, like, initial)
        self.start = np.array([self.curve.mu0, self.curve.q0, *delta])
        self.eta_ov = check_rate("eta_ov", eta_ov)
        self.scalars = np.array([self.eta_ov, math.log(setting.odds), setting.b, setting.M])

    def solve(self, r: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(mu_ov, mu_qk) and their velocities, each (runs, times, 2), for ratios (runs,) and times (runs, times)."""
        import jax

        from qkdyn.theory import intervened_ode

        numbers = Numbers.of(self.on)
        factorized = np.array([self.form.factorized_ov, self.form.factorized_qk])
        with jax.enable_x64(True):
            solved = intervened_ode.solve(r, t, self.start, self.scalars, factorized, numbers, numbers.jumps)
            states, moves, reached, succeeded = (np.asarray(part) for part in solved)
        succeeded = succeeded & np.isfinite(states).all((1, 2))
        if not succeeded.all():
            cases = [f"{r:g} (stopped at t = {t:g})" for r, t in zip(r[~succeeded], reached[~succeeded], strict=True)]
            raise QkdynError(f"integration to t = {t.max():g} failed at r = {', '.join(cases[:10])}; ask for less time")
        return states[..., :2], moves[..., :2]

    def margin(self, states: np.ndarray) -> np.ndarray:
        """The margin alpha mu_ov of states (..., 2)."""
        return self.setting.attention(states[..., 1]) * states[..., 0]


def integrate_intervened(
    setting: Setting,
    r: Reals,
    t: Reals,
    intervention: Intervention,
    *,
    eta_ov: float | int = 1.0,
    parameterization: str = "CACO",
    initial: Reals | None = None,
) -> Trajectory:
    """Integrate the two scalars of Theorem 1's setting under an intervention, in float64.

    Args:
        setting: sizes of the problem.
        r: learning-rate ratio eta_qk / eta_ov, any shape.
        t: strictly increasing times >= 0, 1-D. With `eta_ov` the rate of gradient descent, t counts its steps.
        intervention: what is done to each circuit; its times are in the units of t, decoupled decay in 1/t.
        eta_ov: OV learning rate.
        parameterization: which circuits are factorized.
        initial: (mu_ov, mu_qk) at t = 0; (0, 0) unless a circuit is factorized and its factors balanced.

    Returns:
        Trajectory of shape r.shape + t.shape. Calls with equally many ratios and times share one compilation.

    Raises:
        InputError: a value is not allowed, or the intervention means nothing in this parameterization.
        QkdynError: the integrator gave up; the message names the ratios and the times reached.
    """
    run = Run(setting, parameterization, initial, intervention, eta_ov)
    ratio, times = check_ratio(r), check_times(t)
    check_duration(run.eta_ov, times)
    states, _ = run.solve(ratio.ravel(), np.tile(times, (ratio.size, 1)))
    mu_ov, mu_qk = (states[..., index].reshape(*ratio.shape, times.size) for index in (0, 1))
    alpha = setting.attention(mu_qk)
    return Trajectory(times, mu_ov, mu_qk, alpha, setting.loss(alpha * mu_ov))


def intervened_at_loss(
    setting: Setting,
    r: Reals,
    losses: Reals,
    intervention: Intervention,
    *,
    until: float | int,
    eta_ov: float | int = 1.0,
    parameterization: str = "CACO",
    initial: Reals | None = None,
) -> MatchedState:
    """The state where each loss is first reached, as `at_loss` gives it without an intervention.

    The first crossing is looked for between 200 times, those at which a schedule has a jump or a kink and others spaced
    evenly in their logarithm from 1e-6 `until` on; then the flow is integrated to times between the two around it, and between
    the two of those.

    Args:
        setting: sizes of the problem.
        r: learning-rate ratio, any shape.
        losses: below the loss at the start, in nats, 1-D.
        intervention: as in `integrate_intervened`, like the arguments after the next.
        until: time at which a loss that has not been reached counts as out of reach.
        eta_ov: OV learning rate.
        parameterization: which circuits are factorized.
        initial: (mu_ov, mu_qk) at t = 0.

    Returns:
        MatchedState of shape r.shape + losses.shape; NaN where a loss is not reached, as decay may have it. Calls with equally
        many ratios share one compilation.

    Raises:
        InputError: a value is not allowed, or the intervention means nothing in this parameterization.
        RangeError: a loss is not between 0 and that at the start.
        QkdynError: the integrator gave up.
    """
    run = Run(setting, parameterization, initial, intervention, eta_ov)
    ratio, levels = check_ratio(r), check_loss(run.curve, losses)
    if levels.ndim != 1:
        reject("losses", losses, "one-dimensional", "put a single loss in a list")
    last = check_positive("until", until, least=1e-75, most=1e75)
    # Where a circuit is stopped the loss may turn: a level passed shortly before is passed back after.
    jumps = np.minimum(Numbers.of(run.on).jumps, last)
    looks = np.sort(np.concatenate([[0.0], jumps, last * np.geomspace(1e-6, 1, LOOKS - 1 - jumps.size)]))
    check_duration(run.eta_ov, looks)
    flat, shape = ratio.ravel(), (*ratio.shape, levels.size)
    states, _ = run.solve(flat, np.tile(looks, (flat.size, 1)))
    found = [_crossing(run, flat, looks, states, margin) for margin in setting.margin(levels)]
    t, mu_ov, mu_qk = (part.reshape(shape) for part in np.moveaxis(np.array(found), (0, 1), (-1, 0)))
    return MatchedState(mu_ov, mu_qk, setting.attention(mu_qk), t)


def _crossing(run: Run, r: np.ndarray, looks: np.ndarray, states: np.ndarray, margin: float) -> np.ndarray:
    """(t, mu_ov, mu_qk) where each ratio's run first crosses a margin, (3, runs); NaN where it does not."""
    at = np.arange(r.size)
    t, moves = np.tile(looks, (r.size, 1)), np.zeros_like(states)
    for _ in range(ROUNDS):
        above = run.margin(states) >= margin
        # Runs that never cross are refined somewhere, for company.
        after = np.maximum(above.argmax(1), 1)
        low, high = t[at, after - 1], t[at, after]
        t = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, LOOKS)
        states, moves = run.solve(r, t)
    above = run.margin(states) >= margin
    after = np.maximum(above.argmax(1), 1)
    ends = [(t[at, i], states[at, i], moves[at, i]) for i in (after - 1, after)]
    return np.where(above.any(1), _between(run, margin, *ends), np.nan)


def _between(run: Run, margin: float, low: tuple, high: tuple) -> np.ndarray:
    """The crossing between two times so close that a cubic through states and velocities is exact to rounding."""
    (t0, y0, v0), (t1, y1, v1) = low, high
    h = (t1 - t0)[:, None]

    def state(share: np.ndarray) -> np.ndarray:
        x = share[:, None]
        bend = (1 - x) * x * ((1 - 2 * x) * (y0 - y1) + h * ((1 - x) * v0 - x * v1))
        return (1 - x) * y0 + x * y1 + bend

    lowest, highest = np.zeros_like(t0), np.ones_like(t0)
    for _ in range(55):  # Bisection, to the last bit of the share.
        middle = (lowest + highest) / 2
        above = run.margin(state(middle)) >= margin
        lowest, highest = np.where(above, lowest, middle), np.where(above, middle, highest)
    return np.concatenate([[t0 + highest * (t1 - t0)], state(highest).T])

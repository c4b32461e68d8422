"""The scalar equations of an intervention, for all parameterizations, as one differential equation (the diffrax side).

With F = alpha / (b (E + M-1)) and G = F (M-1) (1-alpha) mu_ov / (M b) the gradients are -F Sbar and -G D, whose nonzero
singular values s are sqrt(b) (M-1 of them) and b (M of them). Factors a and c along a singular direction, a c = s mu, have
a^2 + c^2 = sqrt(delta^2 + 4 s^2 mu^2) with delta = a^2 - c^2, which the gradient conserves and decay lets shrink.
"""

import diffrax
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from qkdyn.bounding import bounding, multiplier
from qkdyn.interventions import Numbers
from qkdyn.theory.ode import LARGEST

MAX_STEPS = 200_000


def velocity(t, y, args):
    """d(mu_ov, mu_qk, delta_ov, delta_qk)/dt, shape (4,)."""
    r, (eta_ov, log_odds, b, classes), factorized, on = args
    mu, delta = jnp.stack([jnp.maximum(y[0], 0.0), jnp.clip(y[1], 0.0, LARGEST)]), y[2:]
    alpha, rest = jax.nn.sigmoid(mu[1] + log_odds), jax.nn.sigmoid(-mu[1] - log_odds)
    # 1 / (E + M-1), from e^-margin because E may overflow.
    small = jnp.exp(-alpha * mu[0])
    F = alpha / b * small / (1 + (classes - 1) * small)
    gradient = jnp.stack([F, F * (classes - 1) / (classes * b) * rest * mu[0]])
    singular, pairs = jnp.stack([jnp.sqrt(b), b]), jnp.stack([classes - 1, classes])
    # a^2 + c^2, which multiplies the velocity of a product; nothing does that of a single matrix.
    squares = jnp.where(factorized, jnp.sqrt(delta**2 + (2 * singular * mu) ** 2), 1.0)
    norm = gradient * singular * jnp.sqrt(pairs * squares)
    pull = gradient * squares * bounding(norm, on.threshold, on.clipped, on.normalized)
    # Entries of Sbar are 1 - 1/M and -1/M, those of D are 1: their signs move the margin by the sum of their sizes.
    entries = gradient[None, :] * jnp.stack([jnp.stack([1 - 1 / classes, 1 / classes]), jnp.array([1.0, 0.0])]).T
    signs = (entries / jnp.maximum(entries, on.threshold[None, :])).sum(0)
    rate = multiplier(t, on.schedule) * eta_ov * jnp.stack([1.0, r]) / (1 - on.momentum)
    fading = on.decay * jnp.where(on.decoupled, 1.0, rate)
    moves = rate * jnp.where(on.sign, signs, pull) - fading * jnp.where(factorized, 2, 1) * mu
    return jnp.concatenate([moves, -2 * fading * delta])


@jax.jit
def solve(
    r: Float[Array, " runs"],
    t: Float[Array, "runs t"],
    start: Float[Array, "4"],
    scalars: Float[Array, "4"],
    factorized: Bool[Array, "2"],
    on: Numbers,
    jumps: Float[Array, "4"],
) -> tuple[Float[Array, "runs t 4"], Float[Array, "runs t 4"], Float[Array, " runs"], Bool[Array, " runs"]]:
    """Integrate from time 0; one compilation serves all settings, parameterizations and interventions.

    Args:
        r: learning-rate ratio of each run.
        t: increasing times >= 0 of each run.
        start: (mu_ov, mu_qk, delta_ov, delta_qk) at time 0.
        scalars: (eta_ov, ln(m/n), b, M).
        factorized: (OV, QK).
        on: the intervention.
        jumps: where velocities have jumps or kinks, increasing.

    Returns:
        States at every time and their velocities, and for each run the time reached and whether that is the end.
    """

    def one(ratio, times):
        args = (ratio, scalars, factorized, on)
        # As in `ode.solve`: errors relative to the state, steps that end exactly on the times.
        controller = diffrax.ClipStepSizeController(
            diffrax.PIDController(rtol=1e-13, atol=1e-100), step_ts=times, jump_ts=jumps, store_rejected_steps=None
        )
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(velocity),
            diffrax.Dopri8(),
            t0=0.0,
            t1=jnp.where(times[-1] > 0, times[-1], 1.0),
            dt0=1e-3 * scalars[2] / scalars[0],
            y0=start,
            args=args,
            saveat=diffrax.SaveAt(subs=(diffrax.SubSaveAt(ts=times), diffrax.SubSaveAt(t1=True))),
            stepsize_controller=controller,
            max_steps=MAX_STEPS,
            throw=False,
        )
        (states, _), (_, reached) = jax.tree.map(jnp.asarray, (solution.ys, solution.ts))
        moves = jax.vmap(lambda at, y: velocity(at, y, args))(times, states)
        return states, moves, reached[0], solution.result == diffrax.RESULTS.successful

    return jax.vmap(one)(r, t)

"""The two scalar equations of Theorem 1 as one differential equation for all four parameterizations (the diffrax side).

Imported only where an integration is asked for: JAX and diffrax take longer to import than every closed form together.
"""

import diffrax
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

MAX_STEPS = 200_000
# A step that tries too far ahead may land anywhere; no trajectory brings mu_qk near this value.
LARGEST = 600.0


def velocity(t, y, args):
    """(d mu_ov/dt, d mu_qk/dt), shape (2,): f and g of Theorem 1, times Omega where a circuit is factorized.

    f = eta_ov alpha / (b (E + M-1)), g = eta_qk (M-1) alpha (1-alpha) mu_ov / (M b^2 (E + M-1)), E = e^(alpha mu_ov);
    a factorized OV circuit multiplies f by 2 sqrt(b) mu_ov, a factorized QK circuit g by 2 b mu_qk.
    """
    del t
    r, eta_ov, log_odds, b, classes, factorized_qk, factorized_ov = args
    mu_ov, mu_qk = jnp.maximum(y[0], 0.0), jnp.clip(y[1], 0.0, LARGEST)
    alpha = jax.nn.sigmoid(mu_qk + log_odds)
    rest = jax.nn.sigmoid(-mu_qk - log_odds)
    # 1 / (E + M-1), from e^-margin because E may overflow.
    small = jnp.exp(-alpha * mu_ov)
    f = eta_ov * alpha / b * small / (1 + (classes - 1) * small)
    g = f * r * (classes - 1) / (classes * b) * rest * mu_ov
    f = jnp.where(factorized_ov, 2 * jnp.sqrt(b) * mu_ov * f, f)
    g = jnp.where(factorized_qk, 2 * b * mu_qk * g, g)
    return jnp.stack([f, g])


@jax.jit
def solve(
    r: Float[Array, " runs"],
    t: Float[Array, " t"],
    start: Float[Array, "2"],
    scalars: Float[Array, "4"],
    factorized: Bool[Array, "2"],
) -> tuple[Float[Array, "runs t 2"], Float[Array, " runs"], Bool[Array, " runs"]]:
    """Integrate from time 0 for every ratio; one compilation serves all settings and parameterizations.

    Args:
        r: learning-rate ratios.
        t: increasing times >= 0.
        start: (mu_ov, mu_qk) at time 0.
        scalars: (eta_ov, ln(m/n), b, M).
        factorized: (QK, OV).

    Returns:
        (mu_ov, mu_qk) at every time, and for each integration the time reached and whether that is the end.
    """
    eta_ov, log_odds, b, classes = scalars
    # mu_qk starts like t^2 and may be 1e-20 at the first time asked for: errors count relative to the state, and atol
    # only keeps 0/0 away. Interpolation is less accurate than a step, so steps end exactly on the times.
    controller = diffrax.ClipStepSizeController(
        diffrax.PIDController(rtol=1e-13, atol=1e-100), step_ts=t, store_rejected_steps=None
    )

    def one(ratio):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(velocity),
            diffrax.Dopri8(),
            t0=0.0,
            t1=jnp.where(t[-1] > 0, t[-1], 1.0),
            dt0=1e-3 * b / eta_ov,
            y0=start,
            args=(ratio, eta_ov, log_odds, b, classes, *factorized),
            saveat=diffrax.SaveAt(subs=(diffrax.SubSaveAt(ts=t), diffrax.SubSaveAt(t1=True))),
            stepsize_controller=controller,
            max_steps=MAX_STEPS,
            throw=False,
        )
        (states, _), (_, reached) = jax.tree.map(jnp.asarray, (solution.ys, solution.ts))
        return states, reached[0], solution.result == diffrax.RESULTS.successful

    return jax.vmap(one)(r)

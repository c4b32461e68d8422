"""Gradient flow of all parameters under an intervention: what the scalars of `intervened` summarize, and their oracle.

Imported only where a flow is asked for, because it brings diffrax in.
"""

from collections.abc import Mapping
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from qkdyn.bounding import bounding, multiplier
from qkdyn.circuits import Params, parameterization_of
from qkdyn.errors import QkdynError, reject
from qkdyn.interventions import Intervention, Numbers
from qkdyn.tasks.designs import Design
from qkdyn.theory.matrix_flow import (
    RTOL,
    ByMatrix,
    Matrices,
    MatrixTrajectory,
    check_start,
    measure,
    population_gradient,
)
from qkdyn.theory.setting import Reals, check_rate, check_times

MAX_STEPS = 20_000
# Where `Numbers` has its circuits.
PLACES = {"ov": 0, "qk": 1}


def intervened_flow(
    design: Design, initial: Matrices, t: Reals, intervention: Intervention, *, eta_qk: float, eta_ov: float
) -> MatrixTrajectory:
    """The flow of every matrix, d W/dt as in `interventions`, from `initial`.

    Args:
        design: the distribution of sequences.
        initial: parameters at t = 0; what they are out of balance is in them (`unbalance`), not in the intervention.
        t: strictly increasing times >= 0, 1-D, in units of 1/eta_ov where eta_ov = 1.
        intervention: what is done to each circuit; its `imbalance` is not looked at.
        eta_qk: rate of the query-key circuit.
        eta_ov: rate of the output-value circuit.

    Returns:
        MatrixTrajectory at t. Calls with equal shapes, whatever the intervention, share one compilation.

    Raises:
        InputError: a value is not allowed, or the parameters do not fit the design.
        QkdynError: the integrator gave up; the message names the time it reached.
    """
    times = check_times(t)
    if not isinstance(intervention, Intervention):
        reject("intervention", intervention, "an Intervention", "e.g. Intervention(qk=OnCircuit(decay=1e-3))")
    rates = np.array([check_rate("eta_ov", eta_ov), check_rate("eta_qk", eta_qk)])
    numbers = Numbers.of(intervention)
    # Entered outside the jitted function and left after it: the caller's own float32 programs never notice.
    with jax.enable_x64(True):
        start = check_start(design, initial)
        solved = _solve(start, design, times, rates, numbers, numbers.jumps)
        reached, params, measured, succeeded = jax.tree.map(np.asarray, solved)
    if not (succeeded and np.isfinite(measured["loss"]).all()):
        raise QkdynError(f"the flow under {intervention} gave up at t = {float(reached):g}; ask for less")
    return MatrixTrajectory(t=times, params=params, **measured)


def _velocity(t, params, args):
    design, rates, on = args
    _, gradient = population_gradient(params, design)
    rate = multiplier(t, on.schedule) * rates / (1 - on.momentum)
    moves = {}
    for circuit, place in PLACES.items():
        mine: Any = jax.tree.map(lambda number, at=place: number[at], on)
        norm = jnp.sqrt(jnp.stack([jnp.vdot(G, G) for G in gradient[circuit].values()]).sum())
        bound = bounding(norm, mine.threshold, mine.clipped, mine.normalized)
        fading = mine.decay * jnp.where(mine.decoupled, 1.0, rate[place])

        def move(G, W, mine=mine, bound=bound, eta=rate[place], fading=fading):
            signs = G / jnp.maximum(jnp.abs(G), mine.threshold)
            return -eta * jnp.where(mine.sign, signs, bound * G) - fading * W

        moves[circuit] = jax.tree.map(move, gradient[circuit], params[circuit])
    return moves


@jax.jit
def _solve(
    start: Params,
    design: Design,
    times: Float[Array, " t"],
    rates: Float[Array, "2"],
    on: Numbers,
    jumps: Float[Array, "4"],
):
    """(time reached, params, measurements, success) at all times."""
    controller = diffrax.ClipStepSizeController(
        ByMatrix(rtol=RTOL, atol=1e-100), step_ts=times, jump_ts=jumps, store_rejected_steps=None
    )
    last = jnp.where(times[-1] > 0, times[-1], 1.0)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(_velocity),
        diffrax.Dopri8(),
        t0=0.0,
        t1=last,
        dt0=1e-6 * last,
        y0=start,
        args=(design, rates, on),
        saveat=diffrax.SaveAt(subs=(diffrax.SubSaveAt(ts=times), diffrax.SubSaveAt(t1=True))),
        stepsize_controller=controller,
        max_steps=MAX_STEPS,
        throw=False,
    )
    (states, _), (_, reached) = jax.tree.map(jnp.asarray, (solution.ys, solution.ts))
    measured = jax.lax.map(lambda params: measure(params, design, jnp.ones(())), states)
    return reached[0], states, measured, solution.result == diffrax.RESULTS.successful


FACTORS = {"qk": ("W_K", "W_Q"), "ov": ("W_O", "W_V")}


def unbalance(params: Matrices, scales: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """The same function with W_O (or W_K) multiplied and W_V (or W_Q) divided by a circuit's scale.

    Factors that were balanced along a singular direction of product p get the imbalance p (scale^2 - 1/scale^2).

    Args:
        params: parameters, as arrays of any kind.
        scales: "qk" and "ov" -> a number > 0; a circuit that is left out stays as it is.

    Raises:
        InputError: a scale is not a number > 0, or its circuit is collapsed.
    """
    form = parameterization_of(dict(params))  # pyright: ignore[reportArgumentType]
    factorized = {"qk": form.factorized_qk, "ov": form.factorized_ov}
    changed = {circuit: dict(part) for circuit, part in params.items()}
    for circuit, scale in scales.items():
        if circuit not in FACTORS:
            reject("scales", circuit, "of the circuits qk and ov")
        by = check_rate(f"scales[{circuit!r}]", scale)
        if not factorized[circuit]:
            reject(
                f"scales[{circuit!r}]", scale, "left out where the circuit is collapsed", f"{form} has no factors there"
            )
        left, right = FACTORS[circuit]
        # In numpy, which keeps double precision whatever JAX's default is.
        one, other = (np.asarray(changed[circuit][name]) for name in (left, right))
        changed[circuit] |= {left: one * by, right: other / by}
    return changed

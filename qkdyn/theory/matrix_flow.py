"""Gradient flow of all parameters on the exact loss of a design, in float64: what Theorem 1's two scalars summarize.

Imported only where a flow is asked for, because it brings diffrax in.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64

from qkdyn.attention import cross_entropy, forward
from qkdyn.circuits import Params, collapse, parameterization_of
from qkdyn.errors import InputError, QkdynError, RangeError, check_positive, reject
from qkdyn.tasks.designs import Design
from qkdyn.theory.setting import Reals, check_array, check_matrix, check_rate, check_times

# Parameters as callers may have them: what `circuits` makes, or what a trajectory holds at one time.
Matrices = Mapping[str, Mapping[str, Array | np.ndarray]]
RTOL = 1e-12
MAX_STEPS = 5_000


class MatrixTrajectory(NamedTuple):
    """The flow at T times; every field has T as its first axis.

    Attributes:
        t: times, in units of 1/eta_ov where eta_ov = 1.
        params: the parameters, numpy.
        loss: population loss in nats.
        mu_ov: projection of W_OV on Sbar.
        mu_qk: projection of W_QK on D.
        alpha: mean attention on class tokens.
        off_ov: |W_OV - mu_ov Sbar| / |W_OV|, Frobenius norms; 0 where W_OV is 0.
        off_qk: |W_QK - mu_qk D| / |W_QK|.
    """

    t: Float64[np.ndarray, " T"]
    params: dict[str, dict[str, np.ndarray]]
    loss: Float64[np.ndarray, " T"]
    mu_ov: Float64[np.ndarray, " T"]
    mu_qk: Float64[np.ndarray, " T"]
    alpha: Float64[np.ndarray, " T"]
    off_ov: Float64[np.ndarray, " T"]
    off_qk: Float64[np.ndarray, " T"]


def population_loss(params: Params, design: Design, scale: float | Float[Array, ""] = 1.0) -> Float[Array, ""]:
    """The exact loss of Sec. 3 over a design in nats; `scale` multiplies the scores. Precision is the caller's.

    A design with a reflection lists half of its sequences; the loss is that of all where the parameters have the
    symmetry, as those of `matrix_flow` do.
    """
    logits, _ = forward(params, jnp.asarray(design.X)[:, None], jnp.asarray(design.x_T), scale=scale)
    y = jnp.broadcast_to(jnp.asarray(design.y)[:, None], logits.shape[:-1])
    return jnp.vdot(jnp.asarray(design.weight), jax.vmap(cross_entropy)(logits, y))


def population_gradient(
    params: Params, design: Design, scale: float | Float[Array, ""] = 1.0
) -> tuple[Float[Array, ""], Params]:
    """The loss and its gradient; with a reflection, averaged over both halves, so without background part."""
    loss, gradient = jax.value_and_grad(population_loss)(params, design, scale)
    return loss, without_background(gradient, design)


def without_background(params: Params, design: Design) -> Params:
    """Parameters (or a gradient) averaged with their reflection: the background's rows and columns become zero.

    They are the columns of W_OV and W_V, the rows of W_K and W_Q, both of W_QK. Unchanged without a reflection.
    """
    if design.reflection is None:
        return params
    keep = (1 + jnp.asarray(design.reflection)) / 2
    row, column = keep[:, None], keep[None, :]
    factors = {"W_QK": row * column, "W_K": row, "W_Q": row, "W_OV": column, "W_V": column}
    return {
        circuit: {name: leaf * factors[name] if name in factors else leaf for name, leaf in matrices.items()}
        for circuit, matrices in params.items()
    }


def matrix_flow(
    design: Design,
    initial: Matrices,
    t: Reals,
    *,
    eta_qk: float,
    eta_ov: float,
    scale: float = 1.0,
) -> MatrixTrajectory:
    """Gradient flow d W/dt = -eta_circuit dL/dW of every matrix, W_K and W_Q or W_QK, W_O and W_V or W_OV.

    Errors count relative to the norm of each matrix (tolerance 1e-12), because W_QK starts like t^2. With a reflection
    the background parts stay exactly zero; they would grow from rounding otherwise (`background_rate`).

    Args:
        design: the distribution of sequences.
        initial: parameters at t = 0, in any parameterization; computed with in float64.
        t: strictly increasing times >= 0, 1-D, in units of 1/eta_ov where eta_ov = 1.
        eta_qk: rate of the query-key circuit.
        eta_ov: rate of the output-value circuit.
        scale: multiplies the scores.

    Returns:
        MatrixTrajectory at t. Calls with equal shapes, whatever the rates, share one compilation.

    Raises:
        InputError: a value is not allowed, or the parameters do not fit the design.
        QkdynError: the integrator gave up; the message names the ratio and the time it reached.
    """
    times = check_times(t)
    return _flow(design, initial, times, eta_qk, eta_ov, scale, by_loss=False)


def at_losses(
    design: Design,
    initial: Matrices,
    losses: Reals,
    *,
    eta_qk: float,
    eta_ov: float,
    scale: float = 1.0,
) -> MatrixTrajectory:
    """The states of `matrix_flow` at given losses, by integrating in ln(loss) instead of t.

    Along the flow dL/dt = -sum eta_circuit |dL/dW|^2, so d W/d ln L is known and t is one more equation: nothing is
    interpolated and no root is searched.

    Args:
        design: as in `matrix_flow`, like the other arguments.
        initial: parameters at t = 0.
        losses: strictly decreasing, below the initial loss, 1-D, in nats.
        eta_qk: rate of the query-key circuit.
        eta_ov: rate of the output-value circuit.
        scale: multiplies the scores.

    Returns:
        MatrixTrajectory at the losses; t is when each is reached.

    Raises:
        InputError: a value is not allowed, or the parameters do not fit the design.
        RangeError: a loss at or above the initial one.
        QkdynError: the integrator gave up, as it does below a loss that the flow never reaches.
    """
    values = check_array("losses", losses, positive=True)
    if values.ndim != 1 or (np.diff(values) >= 0).any():
        reject("losses", losses, "one-dimensional and strictly decreasing")
    return _flow(design, initial, values, eta_qk, eta_ov, scale, by_loss=True)


def _flow(
    design: Any, initial: Any, where: np.ndarray, eta_qk: Any, eta_ov: Any, scale: Any, *, by_loss: bool
) -> MatrixTrajectory:
    rates = {"qk": check_rate("eta_qk", eta_qk), "ov": check_rate("eta_ov", eta_ov)}
    scale = check_positive("scale", scale, least=1e-75, most=1e75)
    # Entered outside the jitted function and left after it: the caller's own float32 programs never notice.
    with jax.enable_x64(True):
        start = check_start(design, initial)
        loss, descent = (float(part) for part in _start(start, design, rates, scale))
        if not 0 < descent < np.inf:
            what = "is a stationary point" if descent == 0 else "or the rates are beyond float64's reach"
            reject("the descent of the loss at initial", descent, "positive and finite", f"initial {what}")
        if by_loss:
            if where[0] >= loss:
                reject("losses", float(where[0]), f"below the loss at the start, {loss:.9g}", error=RangeError)
            where = np.log(loss / where)
        first = 1e-3 * (1.0 if by_loss else loss / descent)
        solved = _solve(start, design, where, first, rates, scale, np.array(by_loss))
        reached, (params, t), measured, succeeded = jax.tree.map(np.asarray, solved)
    if not (succeeded and np.isfinite(measured["loss"]).all()):
        ratio = rates["qk"] / rates["ov"]
        what = f"loss = {loss * np.exp(-float(reached)):g}" if by_loss else f"t = {float(reached):g}"
        raise QkdynError(f"the flow at r = {ratio:g} gave up at {what}; ask for less")
    return MatrixTrajectory(t=t if by_loss else where, params=params, **measured)


def check_start(design: Any, initial: Any) -> Params:
    """`initial` in float64 and without background part, or InputError."""
    if not isinstance(design, Design):
        reject("design", design, "a Design", "e.g. Population(m=2, n=2, b=2, M=3).enumerated()")
    if not isinstance(initial, Mapping) or not all(isinstance(part, Mapping) for part in initial.values()):
        reject("initial", initial, "a tree of parameters", "e.g. on_ansatz(design.directions(), ...)")
    params = {
        circuit: {name: jnp.asarray(check_matrix(f"initial {name}", leaf)) for name, leaf in part.items()}
        for circuit, part in initial.items()
    }
    parameterization_of(params)
    M, d = design.S.shape
    for part in params.values():
        for name, leaf in part.items():
            shape = (M if name in ("W_O", "W_OV") else d, d)
            if np.shape(leaf) != shape:
                reject(f"the shape of {name}", np.shape(leaf), f"{shape} for this design")
    start = without_background(params, design)
    products = [jax.tree.leaves(jax.tree.map(np.asarray, collapse(tree))) for tree in (params, start)]
    for before, after in zip(*products, strict=True):
        if np.abs(before - after).max() > 1e-12 * np.abs(before).max():
            raise InputError(
                "initial must not depend on the background where the design has a reflection; pass design.unfolded()"
            )
    return start


@jax.jit
def _start(params: Params, design: Design, rates: dict, scale: Float[Array, ""]) -> tuple[Array, Array]:
    loss, gradient = population_gradient(params, design, scale)
    return loss, _descent(gradient, rates)


class ByMatrix(diffrax.PIDController):
    """Errors relative to the norm of each matrix: entries that are zero but for rounding have no relative error."""

    def adapt_step_size(self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state):
        """As in `diffrax.PIDController`, of the norms."""
        before, after, error = (jax.tree.map(jnp.linalg.norm, tree) for tree in (y0, y1_candidate, y_error))
        return super().adapt_step_size(t0, t1, before, after, args, error, error_order, controller_state)


def _velocity(s, state, args):
    """d(params, t)/ds where s is t, or ln(initial loss / loss)."""
    del s
    params, _ = state
    design, rates, scale, by_loss = args
    loss, gradient = population_gradient(params, design, scale)
    moves = {circuit: jax.tree.map(lambda G, c=circuit: -rates[c] * G, gradient[circuit]) for circuit in gradient}
    pace = jnp.where(by_loss, loss / _descent(gradient, rates), 1.0)
    return jax.tree.map(lambda move: pace * move, moves), pace


def _descent(gradient: Params, rates: dict[str, Array]) -> Array:
    """-dL/dt."""
    squares = [rates[c] * jnp.vdot(G, G) for c in gradient for G in gradient[c].values()]
    return jnp.stack(squares).sum()


@jax.jit
def _solve(
    start: Params,
    design: Design,
    where: Float[Array, " T"],
    first: Float[Array, ""],
    rates: dict,
    scale: Float[Array, ""],
    by_loss: Bool[Array, ""],
):
    """(s reached, (params, t), measurements, success) at every s of `where`; `first` is the first step to try."""
    # Interpolation is less accurate than a step, so steps end exactly where a state is asked for.
    controller = diffrax.ClipStepSizeController(
        ByMatrix(rtol=RTOL, atol=1e-100), step_ts=where, store_rejected_steps=None
    )
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(_velocity),
        diffrax.Dopri8(),
        t0=0.0,
        t1=jnp.where(where[-1] > 0, where[-1], 1.0),
        dt0=first,
        y0=(start, jnp.zeros(())),
        args=(design, rates, scale, by_loss),
        saveat=diffrax.SaveAt(subs=(diffrax.SubSaveAt(ts=where), diffrax.SubSaveAt(t1=True))),
        stepsize_controller=controller,
        max_steps=MAX_STEPS,
        throw=False,
    )
    (states, _), (_, reached) = jax.tree.map(jnp.asarray, (solution.ys, solution.ts))
    # One time after another: attention of all sequences at all times would not fit.
    measured = jax.lax.map(lambda params: measure(params, design, scale), states[0])
    return reached[0], states, measured, solution.result == diffrax.RESULTS.successful


def measure(params: Params, design: Design, scale: Array) -> dict[str, Array]:
    """Loss, mean attention on class tokens, and where both circuits stand: the fields of `MatrixTrajectory`."""
    flat = collapse(params)
    _, attention = forward(flat, jnp.asarray(design.X)[:, None], jnp.asarray(design.x_T), scale=scale)
    own = (attention @ jnp.asarray(design.own, attention.dtype)).mean(-1)
    measured = {"loss": population_loss(flat, design, scale), "alpha": jnp.vdot(design.weight, own)}
    S = jnp.asarray(design.S)
    for name, W, direction in (("ov", flat["ov"]["W_OV"], S - S.mean(0)[None]), ("qk", flat["qk"]["W_QK"], S.T @ S)):
        mu, size = jnp.vdot(W, direction) / jnp.vdot(direction, direction), jnp.linalg.norm(W)
        measured[f"mu_{name}"] = mu
        off = jnp.linalg.norm(W - mu * direction)
        measured[f"off_{name}"] = jnp.where(size > 0, off / jnp.where(size > 0, size, 1.0), 0.0)
    return measured

"""Gradient flow of factors, of their products under Omega, and gradient descent beside them; float64, by diffrax."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64

from qkdyn.circuits import CIRCUITS, Params, collapse, parameterization_of
from qkdyn.errors import InputError, QkdynError, as_tuple, check_count, check_positive, reject
from qkdyn.parameterization import Parameterization
from qkdyn.theory.omega import (
    FACTORS,
    PRODUCTS,
    Matrices,
    Rate,
    apply,
    balance_defect,
    check_matrices,
    effective_rate,
    rates_of,
)
from qkdyn.theory.setting import Reals, check_rate, check_times

__all__ = [
    "Comparison",
    "Flow",
    "check_loss",
    "compare_flows",
    "factorized_flow",
    "gradient_descent",
    "preconditioned_flow",
]

Loss = Callable[[Params], Array]
RTOL, ATOL, MAX_STEPS = 1e-12, 1e-14, 100_000
# Defect above which factors count as unbalanced: far above rounding, far below what would be seen in the flow.
BALANCED = 1e-10


class Flow(NamedTuple):
    """Matrices in time.

    Attributes:
        t: times, in units of 1/eta_ov where eta_ov = 1.
        params: the tree of the start, float64 numpy, each leaf with a leading axis t.
    """

    t: Float64[np.ndarray, " t"]
    params: dict[str, dict[str, np.ndarray]]


class Comparison(NamedTuple):
    """Flow of the factors beside that of their products.

    Attributes:
        factorized: flow of the factors.
        preconditioned: flow of the collapsed matrices under Omega.
        difference: for each circuit ||product - W|| / ||W|| at every time (Frobenius norm).
    """

    factorized: Flow
    preconditioned: Flow
    difference: dict[str, Float64[np.ndarray, " t"]]


def factorized_flow(loss: Loss, initial: Matrices, t: Reals, *, eta_qk: Rate = 1.0, eta_ov: Rate = 1.0) -> Flow:
    """Gradient flow dW/dt = -eta dL/dW of every matrix of `initial`, in whichever parameterization it is.

    Args:
        loss: scalar function of `Params`; pass the same function object again to reuse the compilation.
        initial: matrices at t = 0.
        t: strictly increasing times >= 0.
        eta_qk: rate of W_QK, or of W_K and W_Q: a number, or a pair (eta_K, eta_Q).
        eta_ov: rate of W_OV, or of W_O and W_V: a number, or a pair (eta_O, eta_V).

    Returns:
        Flow in the parameterization of `initial`, float64.

    Raises:
        InputError: a value is not allowed.
        QkdynError: the integrator gave up; the message names r and the time reached.
    """
    times = check_times(t)
    with jax.enable_x64(True):
        start = check_matrices("initial", initial)
        return _flow(loss, (), start, times, rates_of(start, eta_qk, eta_ov))


def preconditioned_flow(
    loss: Loss,
    initial: Matrices,
    t: Reals,
    *,
    eta_qk: float | int = 1.0,
    eta_ov: float | int = 1.0,
    factorized: Sequence[str] = CIRCUITS,
) -> Flow:
    """The flow that balanced factors give their products: d vec W/dt = -eta Omega(W) vec(dL/dW) (Lemmas 2 and 5).

    Args:
        loss: scalar function of `Params`; pass the same function object again to reuse the compilation.
        initial: collapsed matrices {"qk": {"W_QK"}, "ov": {"W_OV"}} at t = 0.
        t: strictly increasing times >= 0.
        eta_qk: rate of the QK circuit; sqrt(eta_K eta_Q) where its factors differ in rate.
        eta_ov: rate of the OV circuit; sqrt(eta_O eta_V) where its factors differ in rate.
        factorized: circuits under Omega; the others follow plain gradient flow.

    Returns:
        Flow of W_QK and W_OV, float64.

    Raises:
        InputError: a value is not allowed; among them a circuit under Omega that is zero, because Omega(0) = 0.
        QkdynError: the integrator gave up; the message names r and the time reached.
    """
    times = check_times(t)
    under = as_tuple("factorized", factorized)
    if set(under) - set(CIRCUITS):
        reject("factorized", factorized, f"circuits, among {CIRCUITS}")
    with jax.enable_x64(True):
        start = check_matrices("initial", initial)
        if parameterization_of(start) is not Parameterization.CACO:
            reject(
                "initial",
                {circuit: sorted(names) for circuit, names in start.items()},
                "collapsed, W_QK and W_OV",
                "collapse it with circuits.collapse; compare_flows takes factors and checks their balance",
            )
        for circuit in under:
            if not np.any(np.asarray(start[circuit][PRODUCTS[circuit]])):
                reject(f"initial {PRODUCTS[circuit]}", 0.0, "not all zero", "Omega(0) = 0: it would stay there")
        rates = {
            "qk": {"W_QK": check_rate("eta_qk", eta_qk)},
            "ov": {"W_OV": check_rate("eta_ov", eta_ov)},
        }
        return _flow(loss, tuple(c for c in CIRCUITS if c in under), start, times, rates)


def compare_flows(
    loss: Loss, initial: Matrices, t: Reals, *, eta_qk: Rate = 1.0, eta_ov: Rate = 1.0, tolerance: float = BALANCED
) -> Comparison:
    """Integrate balanced factors, and their products under Omega: by Lemmas 2 and 5 the same trajectory.

    Factors with rates of their own belong to a collapsed rate sqrt(eta_O eta_V), if balanced as in `balance_defect`.

    Args:
        loss: scalar function of `Params`.
        initial: factors at t = 0, in any parameterization; only circuits with factors are put under Omega.
        t: strictly increasing times >= 0.
        eta_qk: rate of the QK circuit, or (eta_K, eta_Q).
        eta_ov: rate of the OV circuit, or (eta_O, eta_V).
        tolerance: largest `balance_defect` that counts as balanced.

    Returns:
        Both flows and their relative difference in each circuit.

    Raises:
        InputError: a value is not allowed, or factors are not balanced; the message says by how much.
        QkdynError: the integrator gave up.
    """
    check_positive("tolerance", tolerance)
    for circuit, defect in balance_defect(initial, eta_qk=eta_qk, eta_ov=eta_ov).items():
        if not defect <= tolerance:
            A, B = FACTORS[circuit]
            raise InputError(
                f"initial {A} and {B} must be balanced for their rates (Lemmas 1 and 4), but the relative defect of the "
                f"{circuit} circuit is {defect:.3g}, above {tolerance:g}; start from factorize_at_rates"
            )
    of_factors = factorized_flow(loss, initial, t, eta_qk=eta_qk, eta_ov=eta_ov)
    with jax.enable_x64(True):
        start = check_matrices("initial", initial)
        rates, flat = rates_of(start, eta_qk, eta_ov), collapse(start)
    under = [circuit for circuit in CIRCUITS if len(start[circuit]) == 2]
    of_products = preconditioned_flow(
        loss, flat, t, eta_qk=effective_rate(rates["qk"]), eta_ov=effective_rate(rates["ov"]), factorized=under
    )
    with jax.enable_x64(True):
        products = collapse(jax.tree.map(jnp.asarray, of_factors.params))
        difference = {
            circuit: _distance(np.asarray(products[circuit][name]), of_products.params[circuit][name])
            for circuit, name in PRODUCTS.items()
        }
    return Comparison(of_factors, of_products, difference)


def gradient_descent(
    loss: Loss, initial: Matrices, t: float | int, steps: int, *, eta_qk: Rate = 1.0, eta_ov: Rate = 1.0
) -> dict[str, dict[str, np.ndarray]]:
    """Gradient descent with step t / steps for `steps` steps: what `factorized_flow` at t is the limit of.

    Returns:
        The matrices at the end, float64 numpy.

    Raises:
        InputError: a value is not allowed.
        QkdynError: the descent diverged; the message names its step and r.
    """
    count = check_count("steps", steps)
    step = check_positive("t", t) / count
    with jax.enable_x64(True):
        start = check_matrices("initial", initial)
        check_loss(loss, start)
        rates = rates_of(start, eta_qk, eta_ov)
        steps_of = jax.tree.map(lambda eta: step * eta, rates)
        end = jax.tree.map(np.asarray, _descend(loss, start, steps_of, count))
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(end)):
        r = effective_rate(rates["qk"]) / effective_rate(rates["ov"])
        raise QkdynError(f"gradient descent in {count} steps of {step:g} at r = {r:g} diverged; take more steps")
    return end


def _distance(of: np.ndarray, to: np.ndarray) -> np.ndarray:
    size = np.linalg.norm(to, axis=(-2, -1))
    return np.linalg.norm(of - to, axis=(-2, -1)) / np.where(size > 0, size, 1.0)


def check_loss(loss: Loss, params: Params) -> None:
    """Raise InputError unless `loss` makes one real number of `params`."""
    if not callable(loss):
        reject("loss", loss, "a function of Params")
    shape = jax.eval_shape(loss, params)
    if getattr(shape, "shape", None) != () or not jnp.issubdtype(shape.dtype, jnp.floating):
        reject("loss", shape, "a function of Params that returns one real number", "average it over the batch")


def _flow(
    loss: Loss, preconditioned: tuple[str, ...], start: Params, times: np.ndarray, rates: dict[str, dict[str, float]]
) -> Flow:
    """Integrate inside enable_x64, and check the result on the host."""
    check_loss(loss, start)
    states, reached, succeeded, steps = _solve(loss, preconditioned, start, times, rates)
    params = jax.tree.map(np.asarray, states)
    if not (bool(succeeded) and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))):
        r = effective_rate(rates["qk"]) / effective_rate(rates["ov"])
        raise QkdynError(
            f"integration to t = {times[-1]:g} at r = {r:g} stopped at t = {float(reached):g} after {int(steps)} steps; "
            "ask for times before that, and make sure that the loss is bounded below"
        )
    return Flow(times, params)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _solve(loss, preconditioned, start, times, rates):
    """States at every time, the time reached, whether it is the last one, and the steps tried."""
    import diffrax

    def velocity(t, params, args):
        del t, args
        gradient = jax.grad(loss)(params)
        for circuit in preconditioned:
            gradient[circuit] = {name: apply(params[circuit][name], G) for name, G in gradient[circuit].items()}
        return jax.tree.map(lambda G, eta: -eta * G, gradient, rates)

    end = jnp.where(times[-1] > 0, times[-1], 1.0)
    # Errors count relative to the matrices, also where these start small.
    scale = jnp.stack([jnp.abs(leaf).max() for leaf in jax.tree.leaves(start)])
    smallest = jnp.where(scale > 0, jnp.minimum(scale, 1.0), 1.0).min()
    # A flow that ends in finite time shrinks its steps for ever.
    adaptive = diffrax.PIDController(rtol=RTOL, atol=ATOL * smallest, dtmin=1e-14 * end, force_dtmin=False)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(velocity),
        diffrax.Dopri8(),
        t0=0.0,
        t1=end,
        dt0=None,
        y0=start,
        saveat=diffrax.SaveAt(subs=(diffrax.SubSaveAt(ts=times), diffrax.SubSaveAt(t1=True))),
        # Interpolation is less accurate than a step, so steps end exactly on the times.
        stepsize_controller=diffrax.ClipStepSizeController(adaptive, step_ts=times, store_rejected_steps=None),
        max_steps=MAX_STEPS,
        throw=False,
    )
    (states, _), (_, reached) = jax.tree.map(jnp.asarray, (solution.ys, solution.ts))
    return states, reached[0], solution.result == diffrax.RESULTS.successful, solution.stats["num_steps"]


@functools.partial(jax.jit, static_argnums=0)
def _descend(loss, start, rates, steps):
    def update(_, params):
        return jax.tree.map(lambda W, G, eta: W - eta * G, params, jax.grad(loss)(params), rates)

    return jax.lax.fori_loop(0, steps, update, start)

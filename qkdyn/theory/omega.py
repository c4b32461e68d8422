"""Lemmas 2 and 5: balanced factors move their product as gradient flow preconditioned by Omega; the operator and both flows."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from qkdyn.circuits import CIRCUITS, Params, balancedness, collapse, factorize, parameterization_of
from qkdyn.errors import InputError, QkdynError, as_tuple, check_count, check_positive, reject
from qkdyn.parameterization import Parameterization
from qkdyn.theory.setting import Reals, check_matrix, check_rate, check_times

# fmt: off
__all__ = [
    "Comparison", "Flow", "apply", "balance_defect", "check_loss", "check_matrices", "compare_flows", "effective_rate",
    "factorize_at_rates", "factorized_flow", "gradient_descent", "kronecker", "preconditioned_flow", "rates_of", "vec",
]
# fmt: on

Loss = Callable[[Params], Array]
# Params of any kind of array; what is returned holds numpy's.
Matrices = Mapping[str, Mapping[str, Any]]
# One learning rate for a circuit, or one for each factor: (eta_K, eta_Q), (eta_O, eta_V). Any: checked by value, in words.
Rate = float | int | Sequence | Any
_FACTORS = {"qk": ("W_K", "W_Q"), "ov": ("W_O", "W_V")}
_PRODUCTS = {"qk": "W_QK", "ov": "W_OV"}

# The Md x Md matrix is for checking the operator on small sizes.
LARGEST_KRONECKER = 2**30
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


def apply(C: Float[Array, "*batch M d"], G: Float[Array, "*batch M d"]) -> Float[Array, "*batch M d"]:
    """Omega(C) applied to G: (C C^T)^(1/2) G + G (C^T C)^(1/2), eq. (38) and (55), in O(M d min(M, d)).

    By the SVD of C, which keeps full accuracy where C^T C is singular. Any M, d and rank.

    Raises:
        InputError: C and G differ in shape or are not matrices.
    """
    if C.ndim < 2 or C.shape != G.shape:
        reject("the shapes of C and G", (C.shape, G.shape), "equal and (..., M, d)")
    U, s, Vh = jnp.linalg.svd(C, full_matrices=False)
    left = (U * s[..., None, :]) @ (U.mT @ G)
    return left + ((G @ Vh.mT) * s[..., None, :]) @ Vh


def vec(G: Float[Array, "M d"]) -> Float[Array, " Md"]:
    """Stack the columns of G: the order in which Omega is `kronecker`."""
    return G.mT.reshape(-1)


def kronecker(C: Float[Array, "M d"]) -> Float[Array, "Md Md"]:
    """Omega(C) = (C^T C)^(1/2) x I_M + I_d x (C C^T)^(1/2) as a matrix, for column-major vec: the oracle for `apply`.

    Raises:
        InputError: C is no matrix, or the result would take more than 1 GiB.
    """
    if C.ndim != 2:
        reject("the shape of C", C.shape, "(M, d)")
    M, d = C.shape
    size = (M * d) ** 2 * C.dtype.itemsize
    if size > LARGEST_KRONECKER:
        reject(
            "M d", M * d, f"such that (M d)^2 numbers take at most {LARGEST_KRONECKER} bytes", f"{size} here; use apply"
        )
    U, s, Vh = jnp.linalg.svd(C, full_matrices=False)
    right, left = (Vh.mT * s[None, :]) @ Vh, (U * s[None, :]) @ U.mT
    return jnp.kron(right, jnp.eye(M, dtype=C.dtype)) + jnp.kron(jnp.eye(d, dtype=C.dtype), left)


def balance_defect(params: Matrices, *, eta_qk: Rate = 1.0, eta_ov: Rate = 1.0) -> dict[str, float]:
    """How far factors are from the balance that their own rates conserve: W_O^T W_O / eta_O = W_V W_V^T / eta_V.

    With equal rates this is `circuits.balancedness`, the condition of Lemmas 1 and 4; likewise W_K^T W_K / eta_K =
    W_Q^T W_Q / eta_Q. Rates are numbers or pairs (eta_K, eta_Q), (eta_O, eta_V).

    Returns:
        The relative defect in [0, 1] of each factorized circuit.

    Raises:
        InputError: matrices or rates are malformed.
    """
    with jax.enable_x64(True):
        tree = check_matrices("params", params)
        rates = rates_of(tree, eta_qk, eta_ov)
        scaled = jax.tree.map(lambda leaf, eta: leaf / math.sqrt(eta), tree, rates)
        return {circuit: float(defect) for circuit, defect in balancedness(scaled).items()}


def factorize_at_rates(
    params: Matrices, parameterization: Parameterization | str = "FAFO", *, eta_qk: Rate = 1.0, eta_ov: Rate = 1.0
) -> dict[str, dict[str, np.ndarray]]:
    """The same function in `parameterization`, its factors balanced for their rates: `balance_defect` is 0.

    `circuits.factorize` with W_O rescaled by (eta_O / eta_V)^(1/4) and W_V by its inverse, W_K and W_Q likewise.

    Returns:
        Float64 numpy matrices.

    Raises:
        InputError: matrices or rates are malformed, or a circuit to be factorized is zero.
    """
    with jax.enable_x64(True):
        tree = factorize(check_matrices("params", params), parameterization)
        rates = rates_of(tree, eta_qk, eta_ov)
        result = {circuit: {name: np.asarray(leaf) for name, leaf in tree[circuit].items()} for circuit in CIRCUITS}
    for circuit in CIRCUITS:
        if len(result[circuit]) == 2:
            first, second = _FACTORS[circuit]
            gain = (rates[circuit][first] / rates[circuit][second]) ** 0.25
            result[circuit] = {first: result[circuit][first] * gain, second: result[circuit][second] / gain}
    return result


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
            if not np.any(np.asarray(start[circuit][_PRODUCTS[circuit]])):
                reject(f"initial {_PRODUCTS[circuit]}", 0.0, "not all zero", "Omega(0) = 0: it would stay there")
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
            A, B = _FACTORS[circuit]
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
            for circuit, name in _PRODUCTS.items()
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


def effective_rate(rates: Mapping[str, float]) -> float:
    """The rate of a circuit's product: sqrt(eta_O eta_V), or that of its one matrix."""
    values = tuple(rates.values())
    return math.sqrt(values[0] * values[-1])


def _distance(of: np.ndarray, to: np.ndarray) -> np.ndarray:
    size = np.linalg.norm(to, axis=(-2, -1))
    return np.linalg.norm(of - to, axis=(-2, -1)) / np.where(size > 0, size, 1.0)


def check_matrices(name: str, params: Any) -> Params:
    """Return `params` as float64 JAX arrays (inside enable_x64), or raise InputError unless they are matrices that fit."""
    if not isinstance(params, Mapping) or not all(isinstance(params.get(c), Mapping) for c in CIRCUITS):
        reject(name, params, 'Params, {"qk": {...}, "ov": {...}}')
    tree: Params = {}
    for circuit in CIRCUITS:
        tree[circuit] = {}
        for key, leaf in params[circuit].items():
            tree[circuit][key] = jnp.asarray(check_matrix(f"{name} {key}", leaf))
    parameterization_of(tree)
    shapes = {key: leaf.shape for part in tree.values() for key, leaf in part.items()}
    qk, ov = tree["qk"], tree["ov"]
    d = shapes["W_OV" if "W_OV" in ov else "W_V"][1]
    fit = shapes["W_QK"] == (d, d) if "W_QK" in qk else shapes["W_K"] == shapes["W_Q"] == (d, shapes["W_K"][1])
    if not fit or ("W_O" in ov and shapes["W_O"][1] != shapes["W_V"][0]):
        reject(f"the shapes in {name}", shapes, "such that W_K W_Q^T is (d, d) and W_O W_V is (M, d)")
    return tree


def rates_of(params: Params, eta_qk: Rate, eta_ov: Rate) -> dict[str, dict[str, float]]:
    """A rate for every leaf of `params`: the tree that `eta_qk` and `eta_ov`, numbers or pairs, stand for.

    Raises:
        InputError: a rate is not positive, or a pair is given for a circuit of one matrix.
    """
    tree = {}
    for circuit, eta in zip(CIRCUITS, (eta_qk, eta_ov), strict=True):
        name, leaves = f"eta_{circuit}", _FACTORS[circuit]
        pair = isinstance(eta, Sequence | np.ndarray) and not isinstance(eta, str)
        if pair and (np.shape(eta) != (2,) or len(params[circuit]) == 1):
            reject(name, eta, "a number, or a pair of numbers where the circuit has two factors")
        if len(params[circuit]) == 1:
            leaves = (_PRODUCTS[circuit],)
        values = as_tuple(name, eta) if pair else (eta,) * len(leaves)
        tree[circuit] = {leaf: check_rate(name, value) for leaf, value in zip(leaves, values, strict=True)}
    return tree


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

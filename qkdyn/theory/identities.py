"""The matrix statements of Sec. 6 and Appendix D as residuals in float64: formulas from the paper against autodiff.

A residual is ||claimed - true|| / ||true||, so 0 where a statement holds, 2 where its sign is wrong. Functions that test
several equations return one number for each, under the paper's equation numbers. A problem is (params, X, x_T, y) with one
sequence X (T, d), its query x_T (d,) and its label y, as in the Appendix; `sequence_loss` also averages over leading axes.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from qkdyn.attention import cross_entropy, forward
from qkdyn.circuits import CIRCUITS, Params, collapse, parameterization_of
from qkdyn.errors import check_count, check_positive, reject
from qkdyn.parameterization import Parameterization
from qkdyn.theory.omega import Rate, apply, effective_rate, kronecker, rates_of, vec
from qkdyn.theory.omega_flow import check_loss, factorized_flow, gradient_descent
from qkdyn.theory.setting import check_array

__all__ = [
    "Problem",
    "conserved",
    "descent_drift",
    "flow_drift",
    "flow_signs",
    "homogeneity",
    "kronecker_sum",
    "omega_at_zero",
    "product_velocity",
    "proposition_1",
    "proposition_2",
    "random_problem",
    "scalar_multiple",
    "sequence_loss",
    "square_roots",
    "vec_order",
]


class Problem(NamedTuple):
    """Factors and data, float64: one sequence, or a batch along the first axis of X, x_T and y."""

    params: Params
    X: Float[Array, "*batch T d"]
    x_T: Float[Array, "*batch d"]
    y: Int[Array, "*batch"]


def _float64(function: Callable) -> Callable:
    """Run `function` in double precision on double precision arguments."""

    def widen(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray | jax.Array):
            return leaf
        array = np.asarray(leaf)
        return jnp.asarray(array, jnp.float64 if array.dtype.kind == "f" else jnp.int32)

    @functools.wraps(function)
    def run(*args, **kwargs):
        with jax.enable_x64(True):
            return function(*jax.tree.map(widen, args), **jax.tree.map(widen, kwargs))

    return run


def random_problem(seed: int, *, M: int, d: int, T: int, batch: int | None = None, scale: float = 0.5) -> Problem:
    """Gaussian factors (unbalanced) of standard deviation `scale`, Gaussian tokens and uniform labels.

    Raises:
        InputError: sizes that are not positive integers, or a scale that is not positive.
    """
    M, d, T = check_count("M", M), check_count("d", d), check_count("T", T)
    lead = () if batch is None else (check_count("batch", batch),)
    draw = np.random.default_rng(check_count("seed", seed, minimum=0))
    sizes = {"qk": {"W_K": (d, d), "W_Q": (d, d)}, "ov": {"W_O": (M, d), "W_V": (d, d)}}
    check_positive("scale", scale)
    with jax.enable_x64(True):
        params = {
            circuit: {name: jnp.asarray(scale * draw.standard_normal(shape)) for name, shape in shapes.items()}
            for circuit, shapes in sizes.items()
        }
        X, x_T = (jnp.asarray(draw.standard_normal((*lead, *shape))) for shape in ((T, d), (d,)))
        return Problem(params, X, x_T, jnp.asarray(draw.integers(0, M, lead), jnp.int32))


def sequence_loss(
    params: Params, X: Float[Array, "*batch T d"], x_T: Float[Array, "*batch d"], y: Int[Array, "*batch"]
) -> Float[Array, ""]:
    """L^1 or L^2 of Sec. 6, whichever `params` make it: the cross entropy of eq. (1)."""
    return cross_entropy(forward(params, X, x_T)[0], y)


def _check_factors(params: Any) -> None:
    """Raise InputError unless both circuits are factorized."""
    if not isinstance(params, dict) or parameterization_of(params) is not Parameterization.FAFO:
        reject("params", params, "factorized in both circuits", "use omega.factorize_at_rates")


def _check_sequence(params: Params, X: Any, x_T: Any, y: Any) -> None:
    """Raise InputError unless X, x_T and y are one sequence that the factors take."""
    M, d = params["ov"]["W_O"].shape[0], params["ov"]["W_V"].shape[-1]
    shapes = tuple(map(np.shape, (X, x_T, y)))
    if shapes != ((*shapes[0][:1], d), (d,), ()):
        do = "the Appendix writes its gradients for one"
        reject("the shapes of X, x_T and y", shapes, f"(T, {d}), ({d},) and (), one sequence", do)
    if not 0 <= int(y) < M:
        reject("y", int(y), f"from 0 to M - 1 = {M - 1}")


def _residual(claimed: Any, true: Any) -> float:
    """||claimed - true|| / ||true||, where 0 / 0 is 0."""
    off, size = float(jnp.linalg.norm(jnp.asarray(claimed - true))), float(jnp.linalg.norm(jnp.asarray(true)))
    return 0.0 if off == 0 else off / size if size else math.inf


def _factors(params: Params) -> tuple[Array, Array, Array, Array]:
    return params["qk"]["W_K"], params["qk"]["W_Q"], params["ov"]["W_O"], params["ov"]["W_V"]


def _formulas(params: Params, X: Array, x_T: Array, y: Array, printed: bool) -> dict[str, Array]:
    """The gradients (30)-(32) and (45)-(47), term by term as the Appendix writes them."""
    _check_factors(params)
    _check_sequence(params, X, x_T, y)
    W_K, W_Q, W_O, W_V = _factors(params)
    A = jax.nn.softmax(X @ W_K @ W_Q.T @ x_T)
    x = X.T @ A
    error = (jax.nn.softmax(W_O @ W_V @ x) - jax.nn.one_hot(y, W_O.shape[0], dtype=x.dtype))[:, None]
    Z = jnp.diag(A) - jnp.outer(A, A)
    G = x_T[:, None] @ error.T @ W_O @ W_V @ X.T @ Z @ X
    G = G if printed else G.T
    return {
        "(30)": error @ x[None, :],
        "(31)": error @ (W_V @ x)[None, :],
        "(32)": W_O.T @ error @ x[None, :],
        "(45)": G,
        "(46)": G.T @ W_K,
        "(47)": G @ W_Q,
    }


def _gradients(params: Params, X: Array, x_T: Array, y: Array) -> dict[str, Array]:
    """The same gradients by automatic differentiation of eq. (1)."""
    of_factors = jax.grad(sequence_loss)(params, X, x_T, y)
    of_products = jax.grad(sequence_loss)(collapse(params), X, x_T, y)
    return {
        "(30)": of_products["ov"]["W_OV"],
        "(31)": of_factors["ov"]["W_O"],
        "(32)": of_factors["ov"]["W_V"],
        "(45)": of_products["qk"]["W_QK"],
        "(46)": of_factors["qk"]["W_Q"],
        "(47)": of_factors["qk"]["W_K"],
    }


@_float64
def proposition_1(params: Params, X: Array, x_T: Array, y: Array) -> dict[str, float]:
    """Proposition 1 with its proof: residuals of (3), for W_O and W_V, and of (30), (31), (32), against autodiff."""
    claimed, true = _formulas(params, X, x_T, y, printed=False), _gradients(params, X, x_T, y)
    ov = params["ov"]
    claimed |= {"(3) W_O": true["(30)"] @ ov["W_V"].T, "(3) W_V": ov["W_O"].T @ true["(30)"]}
    true |= {"(3) W_O": true["(31)"], "(3) W_V": true["(32)"]}
    return {name: _residual(claimed[name], true[name]) for name in ("(3) W_O", "(3) W_V", "(30)", "(31)", "(32)")}


@_float64
def proposition_2(params: Params, X: Array, x_T: Array, y: Array, *, printed: bool = False) -> dict[str, float]:
    """Proposition 2: residuals of (45), (46), (47) against autodiff.

    The right orientation is dL/dW_QK = X^T Z X W_OV^T (ytilde - y) x_T^T. With `printed`, G is the transpose, as (45) is
    printed, and none of the three holds.
    """
    claimed, true = _formulas(params, X, x_T, y, printed), _gradients(params, X, x_T, y)
    return {name: _residual(claimed[name], true[name]) for name in ("(45)", "(46)", "(47)")}


@_float64
def flow_signs(params: Params, X: Array, x_T: Array, y: Array, *, printed: bool = False) -> dict[str, float]:
    """Rate d loss/dt along each flow (33)-(35), (48)-(50) alone, by a forward derivative; descent needs it negative.

    The paper prints dW/dt = +gradient; with `printed` its sign is taken, and the loss rises. G as corrected.
    """
    gradient = _formulas(params, X, x_T, y, printed=False)
    flows = {
        "(33)": ("(30)", "ov", "W_OV"),
        "(34)": ("(31)", "ov", "W_O"),
        "(35)": ("(32)", "ov", "W_V"),
        "(48)": ("(45)", "qk", "W_QK"),
        "(49)": ("(46)", "qk", "W_Q"),
        "(50)": ("(47)", "qk", "W_K"),
    }
    rates = {}
    for name, (equation, circuit, matrix) in flows.items():
        at = params if matrix in params[circuit] else collapse(params)
        velocity = jax.tree.map(jnp.zeros_like, at)
        velocity[circuit][matrix] = gradient[equation] if printed else -gradient[equation]
        rates[name] = float(jax.jvp(lambda p: sequence_loss(p, X, x_T, y), (at,), (velocity,))[1])
    return rates


@_float64
def product_velocity(
    loss: Callable[[Params], Array], params: Params, *, eta_qk: Rate = 1.0, eta_ov: Rate = 1.0
) -> dict[str, float]:
    """Lemmas 2 and 5 at one point: velocity of the products under gradient flow of the factors, against Omega.

    Residual of d vec(W_O W_V)/dt = -eta Omega(W_O W_V) vec(dL/dW_OV) and of its like for W_K W_Q^T, where eta is the rate or
    sqrt(eta_O eta_V). Zero where the factors are balanced for their rates (`omega.balance_defect`), and nowhere else.

    Args:
        loss: scalar function of `Params` in any parameterization.
        params: factors of both circuits.
        eta_qk: rate, or (eta_K, eta_Q).
        eta_ov: rate, or (eta_O, eta_V).
    """
    _check_factors(params)
    check_loss(loss, params)
    rates = rates_of(params, eta_qk, eta_ov)
    velocity = jax.tree.map(lambda G, eta: -eta * G, jax.grad(loss)(params), rates)
    products, moved = jax.jvp(collapse, (params,), (velocity,))
    gradient = jax.grad(loss)(products)
    residuals = {}
    for circuit, name in (("qk", "W_QK"), ("ov", "W_OV")):
        claimed = -effective_rate(rates[circuit]) * apply(products[circuit][name], gradient[circuit][name])
        residuals[circuit] = _residual(claimed, moved[circuit][name])
    return residuals


@_float64
def conserved(params: Params, *, eta_qk: Rate = 1.0, eta_ov: Rate = 1.0) -> dict[str, Float[Array, "... d d"]]:
    """What gradient flow conserves in each circuit: W_K^T W_K/eta_K - W_Q^T W_Q/eta_Q and W_O^T W_O/eta_O - W_V W_V^T/eta_V.

    With equal rates this is Lemmas 1 and 4 up to a factor. Leading axes are kept.
    """
    return {circuit: first - second for circuit, (first, second) in _grams(params, eta_qk, eta_ov).items()}


def _grams(params: Params, eta_qk: Rate, eta_ov: Rate) -> dict[str, tuple[Array, Array]]:
    _check_factors(params)
    rates = rates_of(params, eta_qk, eta_ov)
    W_K, W_Q, W_O, W_V = _factors(params)
    return {
        "qk": (W_K.mT @ W_K / rates["qk"]["W_K"], W_Q.mT @ W_Q / rates["qk"]["W_Q"]),
        "ov": (W_O.mT @ W_O / rates["ov"]["W_O"], W_V @ W_V.mT / rates["ov"]["W_V"]),
    }


def _drift(start: Params, end: Params, eta_qk: Rate, eta_ov: Rate) -> dict[str, float]:
    """Change of the conserved matrices, relative to the sum of the norms of their two parts at the start."""
    before, after = conserved(start, eta_qk=eta_qk, eta_ov=eta_ov), conserved(end, eta_qk=eta_qk, eta_ov=eta_ov)
    parts = _grams(start, eta_qk, eta_ov)
    return {c: float(jnp.linalg.norm(after[c] - before[c]) / sum(map(jnp.linalg.norm, parts[c]))) for c in CIRCUITS}


@_float64
def flow_drift(
    loss: Callable[[Params], Array], params: Params, t: float, *, eta_qk: Rate = 1.0, eta_ov: Rate = 1.0
) -> dict[str, float]:
    """Lemmas 1 and 4, and their form for factors with different rates: drift of `conserved` along gradient flow to time t."""
    flow = factorized_flow(loss, params, np.array([t]), eta_qk=eta_qk, eta_ov=eta_ov)
    return _drift(params, jax.tree.map(lambda leaf: jnp.asarray(leaf[-1]), flow.params), eta_qk, eta_ov)


@_float64
def descent_drift(
    loss: Callable[[Params], Array], params: Params, t: float, steps: int, *, eta_qk: Rate = 1.0, eta_ov: Rate = 1.0
) -> dict[str, float]:
    """The same drift along gradient descent in `steps` steps of t / steps: proportional to the step."""
    end = gradient_descent(loss, params, t, steps, eta_qk=eta_qk, eta_ov=eta_ov)
    return _drift(params, jax.tree.map(jnp.asarray, end), eta_qk, eta_ov)


@_float64
def vec_order(C: Float[Array, "M d"], G: Float[Array, "M d"]) -> dict[str, float]:
    """Residual of the Kronecker form on vec(G) against `omega.apply`, for vec by columns (right) and by rows (wrong)."""
    Omega, true = kronecker(C), apply(C, G)
    by_columns = (Omega @ vec(G)).reshape(G.mT.shape).mT
    by_rows = (Omega @ G.reshape(-1)).reshape(G.shape)
    return {"columns": _residual(by_columns, true), "rows": _residual(by_rows, true)}


@_float64
def homogeneity(C: Float[Array, "M d"], G: Float[Array, "M d"], c: float) -> dict[str, float]:
    """Residual of Omega(c C) = |c| Omega(C), and of the paper's Omega(c C) = c Omega(C), which needs c > 0."""
    check_array("c", c)
    scaled = apply(c * C, G)
    return {"|c|": _residual(abs(c) * apply(C, G), scaled), "c": _residual(c * apply(C, G), scaled)}


@_float64
def kronecker_sum(C: Float[Array, "M d"]) -> float:
    """Residual of Omega(C) as the Appendix writes it against the Kronecker sum of Lemma 2.

    The sum A (+) B is the symmetric matrix with exp(A (+) B) = exp(A) x exp(B): no use is made of its expanded form.
    """
    import scipy.linalg

    if not C.any():
        reject("C", 0.0, "not all zero")
    Omega = kronecker(C / jnp.linalg.norm(C))
    # Polar factors: (C C^T)^(1/2) on the left, (C^T C)^(1/2) on the right.
    left, right = (scipy.linalg.polar(np.asarray(C / jnp.linalg.norm(C)), side)[1] for side in ("left", "right"))
    expm = scipy.linalg.expm
    return _residual(expm(np.asarray(Omega)), np.kron(expm(right), expm(left)))


@_float64
def square_roots(M: int, d: int, rank: int, seed: int = 0) -> dict[str, float]:
    """Residual of (C^T C)^(1/2) by SVD and by scipy's sqrtm, for a C whose root is known, of a given rank.

    Where C^T C is singular sqrtm keeps half the digits: roots of rounding errors.
    """
    import scipy.linalg

    if check_count("rank", rank) > min(check_count("M", M), check_count("d", d)):
        reject("rank", rank, f"at most min(M, d) = {min(M, d)}")
    draw = np.random.default_rng(check_count("seed", seed, minimum=0))
    U, V = (np.linalg.qr(draw.standard_normal((size, rank)))[0] for size in (M, d))
    s = draw.uniform(0.5, 2.0, rank)
    C, true = (U * s) @ V.T, (V * s) @ V.T
    _, values, Vh = np.linalg.svd(C, full_matrices=False)
    by_svd, by_sqrtm = (Vh.T * values) @ Vh, scipy.linalg.sqrtm(C.T @ C)
    size = np.linalg.norm(true)
    return {"svd": float(np.linalg.norm(by_svd - true) / size), "sqrtm": float(np.linalg.norm(by_sqrtm - true) / size)}


@_float64
def scalar_multiple(C: Float[Array, "M d"]) -> float:
    """Distance of Omega(C) from the nearest multiple of I, relative to Omega(C).

    Its eigenvalues are sums s_i + s_j of singular values, those padded with zeros to M and to d: the distance is 0 only where
    all are equal, so never where M and d differ (C not zero). There Omega is no change of the learning rate.
    """
    if not C.any():
        return 0.0
    Omega = kronecker(C)
    nearest = jnp.trace(Omega) / Omega.shape[0] * jnp.eye(Omega.shape[0])
    return float(jnp.linalg.norm(Omega - nearest) / jnp.linalg.norm(Omega))


@_float64
def omega_at_zero(G: Float[Array, "M d"]) -> float:
    """||Omega(0) G|| / ||G||, exactly 0: zero factors never move."""
    return float(jnp.linalg.norm(apply(jnp.zeros_like(G), G)) / jnp.linalg.norm(G))

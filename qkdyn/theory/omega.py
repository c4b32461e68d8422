"""Lemmas 2 and 5: balanced factors move their product as gradient flow preconditioned by Omega; the operator, and balance."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from qkdyn.circuits import CIRCUITS, Params, balancedness, factorize, parameterization_of
from qkdyn.errors import as_tuple, reject
from qkdyn.parameterization import Parameterization
from qkdyn.theory.setting import check_matrix, check_rate

__all__ = [
    "apply",
    "balance_defect",
    "check_matrices",
    "effective_rate",
    "factorize_at_rates",
    "kronecker",
    "rates_of",
    "vec",
]

# Params of any kind of array; what is returned holds numpy's.
Matrices = Mapping[str, Mapping[str, Any]]
# One learning rate for a circuit, or one for each factor: (eta_K, eta_Q), (eta_O, eta_V). Any: checked by value, in words.
Rate = float | int | Sequence | Any
FACTORS = {"qk": ("W_K", "W_Q"), "ov": ("W_O", "W_V")}
PRODUCTS = {"qk": "W_QK", "ov": "W_OV"}

# The Md x Md matrix is for checking the operator on small sizes.
LARGEST_KRONECKER = 2**30


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
            first, second = FACTORS[circuit]
            gain = (rates[circuit][first] / rates[circuit][second]) ** 0.25
            result[circuit] = {first: result[circuit][first] * gain, second: result[circuit][second] / gain}
    return result


def effective_rate(rates: Mapping[str, float]) -> float:
    """The rate of a circuit's product: sqrt(eta_O eta_V), or that of its one matrix."""
    values = tuple(rates.values())
    return math.sqrt(values[0] * values[-1])


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
        name, leaves = f"eta_{circuit}", FACTORS[circuit]
        pair = isinstance(eta, Sequence | np.ndarray) and not isinstance(eta, str)
        if pair and (np.shape(eta) != (2,) or len(params[circuit]) == 1):
            reject(name, eta, "a number, or a pair of numbers where the circuit has two factors")
        if len(params[circuit]) == 1:
            leaves = (PRODUCTS[circuit],)
        values = as_tuple(name, eta) if pair else (eta,) * len(leaves)
        tree[circuit] = {leaf: check_rate(name, value) for leaf, value in zip(leaves, values, strict=True)}
    return tree

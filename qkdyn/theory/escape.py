"""The balanced start on the ansatz that a small random start of factorized circuits is worth.

Near zero the gradient flow of factors is linear: along a singular pair (u, v) of the gradient, W_O^T u and W_V v approach
each other. Their difference dies out as fast as their mean p = (W_O^T u + W_V v) / 2 grows, and what is left is balanced with
u^T W_O W_V v = |p|^2. On Theorem 1's directions all M - 1 pairs of Sbar grow at one rate, and so do the M of D.
"""

import math
from collections.abc import Mapping

import jax
import numpy as np

from qkdyn.circuits import CIRCUITS, Params, collapse, parameterization_of
from qkdyn.errors import reject
from qkdyn.parameterization import Parameterization
from qkdyn.theory.omega import check_matrices
from qkdyn.theory.setting import Setting, check_matrix, check_rate, check_setting


def effective_start(params: Params, directions: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """(mu_ov, mu_qk) of the balanced start on the ansatz from which the scalars take over.

    Args:
        params: a small start, in any parameterization.
        directions: D as "qk" and Sbar as "ov", as a task or a design gives them.

    Returns:
        mean |p|^2 / sqrt(b) over the pairs of Sbar and mean |p|^2 / b over those of D; 0 for a collapsed circuit, which needs
        no start to leave zero.

    Raises:
        InputError: matrices are malformed or do not fit the directions, or a direction is zero.
    """
    with jax.enable_x64(True):
        tree = check_matrices("params", params)
        sizes = {circuit: next(iter(part.values())).shape for circuit, part in collapse(tree).items()}
        qk, ov = (jax.tree.map(np.asarray, tree[circuit]) for circuit in CIRCUITS)
    form = parameterization_of(tree)
    if not isinstance(directions, Mapping) or not set(CIRCUITS) <= set(directions):
        reject("directions", directions, 'D as "qk" and Sbar as "ov"', "pass design.directions() or task.directions()")
    D, Sbar = (check_matrix(f"directions {circuit}", directions[circuit]) for circuit in CIRCUITS)
    if (D.shape, Sbar.shape) != (sizes["qk"], sizes["ov"]) or not (D.any() and Sbar.any()):
        allowed = f"not zero and of shapes {sizes['qk']} and {sizes['ov']}, those of W_QK and W_OV"
        reject("the shapes of directions", (D.shape, Sbar.shape), allowed)
    U, s, Vh = np.linalg.svd(Sbar, full_matrices=False)
    pairs = s > s[0] / 2  # M - 1 equal ones and a zero
    mu_ov = mu_qk = 0.0
    if form.factorized_ov:
        p = (ov["W_O"].T @ U[:, pairs] + ov["W_V"] @ Vh[pairs].T) / 2
        mu_ov = float((p**2).sum(0).mean() / s[0])
    if form.factorized_qk:
        values, vectors = np.linalg.eigh(D)
        classes = vectors[:, values > values[-1] / 2]
        p = (qk["W_K"].T @ classes + qk["W_Q"].T @ classes) / 2
        mu_qk = float((p**2).sum(0).mean() / values[-1])
    return mu_ov, mu_qk


def expected_start(setting: Setting, parameterization: "str | Parameterization", sigma: float) -> tuple[float, float]:
    """The mean of `effective_start` over Gaussian matrices with entries of variance sigma^2 / d.

    E |p|^2 = sigma^2 / 2: (sigma^2 / (2 sqrt(b)), sigma^2 / (2 b)), and 0 for a collapsed circuit.

    Raises:
        InputError: sigma is not from 1e-75 to 1e75, or the parameterization unknown.
    """
    form, b = Parameterization.parse(parameterization), check_setting(setting).b
    half = check_rate("sigma", sigma) ** 2 / 2
    return half / math.sqrt(b) * form.factorized_ov, half / b * form.factorized_qk

"""Part of the laboratory: Lemmas 2 and 5 along whole trajectories, and gradient flow against gradient descent."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array

from experiments.laboratory.check import Check
from experiments.laboratory.identities import FLOW, PAIRS, ROUNDING, SHAPES, SLOPE, batch_problem, fitted_slope
from qkdyn.circuits import CIRCUITS, Params, collapse
from qkdyn.theory import identities as claims
from qkdyn.theory import omega, omega_flow

PART = "omega"
TIMES = np.array([1.0, 5.0, 20.0])
# Which circuits are factorized, and eta_QK / eta_OV.
FORMS = (("CAFO", "OV", 1.0), ("FACO", "QK", 1.0), *(("FAFO", "both circuits", ratio) for ratio in (10.0, 1.0, 0.1)))
PRODUCTS = {"qk": "W_QK", "ov": "W_OV"}


def run(quick: bool) -> tuple[list[Check], dict[str, pd.DataFrame]]:
    """Omega against its Kronecker form, its flow against that of the factors, and both against descent.

    Returns:
        The checks, and "omega_descent": the error of gradient descent at each step, by circuit.
    """
    checks, descent = [], pd.DataFrame()
    for M, d in SHAPES:
        checks.append(_kronecker(M, d))
    for M, d in SHAPES[:1] if quick else SHAPES:
        loss, params = batch_problem(M, d)
        for form, name, ratio in FORMS[-1:] if quick else FORMS:
            checks.append(_flows(loss, params, form, f"M = {M}, d = {d}, {name} factorized", ratio))
        checks += [*_unbalanced(loss, params, f"M = {M}, d = {d}"), *_rates(loss, params, f"M = {M}, d = {d}")]
        if (M, d) == SHAPES[0]:
            descent = _descent(loss, params, quick)
    return checks + _descent_checks(descent), {"omega_descent": descent}


def _kronecker(M: int, d: int) -> Check:
    """The operator by SVD against the Md x Md matrix, for every rank."""
    found = []
    for rank in range(1, min(M, d) + 1):
        draw = np.random.default_rng(rank).standard_normal
        found.append(claims.vec_order(draw((M, rank)) @ draw((rank, d)), draw((M, d)))["columns"])
    statement = "Omega by SVD is the Kronecker form of (38), (55)"
    return Check(PART, statement, f"M = {M}, d = {d}, every rank", max(found), ROUNDING)


def _flows(loss: Callable[[Params], Array], params: Params, form: str, setting: str, ratio: float) -> Check:
    start = omega.factorize_at_rates(params, form)
    found = omega_flow.compare_flows(loss, start, TIMES, eta_qk=ratio, eta_ov=1.0)
    moved = min(_relative(leaf[-1], leaf[0]) for leaf in jax.tree.leaves(found.preconditioned.params))
    return Check(
        PART,
        "Lemmas 2, 5: products of balanced factors follow the preconditioned flow",
        f"{setting}, eta_QK = {ratio:g} eta_OV, t <= {TIMES[-1]:g}",
        max(float(difference.max()) for difference in found.difference.values()),
        FLOW,
        note=f"each matrix moves by at least {100 * moved:.0f}%",
    )


def _unbalanced(loss: Callable[[Params], Array], params: Params, setting: str) -> list[Check]:
    """Generic factors are not balanced: where M < d they cannot be, because balance bounds the rank of W_V by M."""
    factors = omega_flow.factorized_flow(loss, params, TIMES).params
    with jax.enable_x64(True):
        start, products = (
            jax.tree.map(np.asarray, collapse(jax.tree.map(jnp.asarray, tree))) for tree in (params, factors)
        )
    conditioned = omega_flow.preconditioned_flow(loss, start, TIMES).params
    defect = omega.balance_defect(params)
    return [
        Check(
            PART,
            "Lemmas 2, 5 for factors that are not balanced",
            f"{setting}, W_{circuit.upper()}, t = {TIMES[-1]:g}",
            _relative(products[circuit][name][-1], conditioned[circuit][name][-1]),
            FLOW,
            False,
            f"balance defect {defect[circuit]:.2g} of at most 1",
        )
        for circuit, name in PRODUCTS.items()
    ]


def _rates(loss: Callable[[Params], Array], params: Params, setting: str) -> list[Check]:
    """Factors of one circuit with rates of their own."""
    setting = f"{setting}, eta_O = 4 eta_V, eta_K = 4 eta_Q, t <= {TIMES[-1]:g}"
    own = omega_flow.compare_flows(loss, omega.factorize_at_rates(params, **PAIRS), TIMES, **PAIRS).difference
    equal = omega_flow.compare_flows(loss, omega.factorize_at_rates(params), TIMES, **PAIRS, tolerance=1.0).difference
    return [
        Check(
            PART,
            "Lemmas 2, 5 at rate sqrt(eta_O eta_V), W_O^T W_O/eta_O = W_V W_V^T/eta_V at the start (QK alike)",
            setting,
            max(float(own[circuit].max()) for circuit in CIRCUITS),
            FLOW,
        ),
        Check(
            PART,
            "Lemmas 2, 5 at rate sqrt(eta_O eta_V), W_O^T W_O = W_V W_V^T at the start (QK alike)",
            setting,
            min(float(equal[circuit].max()) for circuit in CIRCUITS),
            FLOW,
            False,
        ),
    ]


def _descent(loss: Callable[[Params], Array], params: Params, quick: bool) -> pd.DataFrame:
    """Distance of descent on the factors from their flow at one time, for steps that halve."""
    flow = omega_flow.factorized_flow(loss, params, TIMES).params
    rows = []
    for steps in (1600, 3200) if quick else tuple(200 * 2**k for k in range(8)):
        found = omega_flow.gradient_descent(loss, params, float(TIMES[-1]), steps)
        for circuit, first, second in (("qk", "W_K", "W_Q"), ("ov", "W_O", "W_V")):
            pairs = [(found[circuit][name], flow[circuit][name][-1]) for name in (first, second)]
            error = max(_relative(of, to) for of, to in pairs)
            rows.append({"circuit": circuit, "eta": float(TIMES[-1]) / steps, "error": error})
    return pd.DataFrame(rows)


def _descent_checks(descent: pd.DataFrame) -> list[Check]:
    checks = []
    for circuit, group in descent.groupby("circuit", sort=False):
        slope = fitted_slope(group["eta"], group["error"])
        note = f"exponent {slope:.3f}; error {group['error'].iloc[-1]:.2g} at step {group['eta'].iloc[-1]:.2g}"
        setting = f"M = {SHAPES[0][0]}, d = {SHAPES[0][1]}, {str(circuit).upper()} factors, t = {TIMES[-1]:g}"
        statement = "gradient descent is within O(eta) of the flow"
        checks.append(Check(PART, statement, setting, abs(slope - 1), SLOPE, note=note))
    return checks


def _relative(of: np.ndarray, to: np.ndarray) -> float:
    return float(np.linalg.norm(of - to) / np.linalg.norm(to))

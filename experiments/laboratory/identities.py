"""Part of the laboratory: the matrix statements of Sec. 6 and Appendix D, as corrected and as printed.

Where one ought to hold, the value is the largest residual over equations and problems; where it ought not, the smallest.
"""

import warnings
from collections.abc import Callable, Iterable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array

from experiments.laboratory.check import Check
from qkdyn.circuits import CIRCUITS, Params
from qkdyn.theory import identities as claims
from qkdyn.theory import omega, omega_flow

PART = "identities"
# Fewer classes than dimensions, as many, more.
SHAPES = ((4, 6), (6, 6), (9, 6))
ROUNDING, FLOW, SLOPE = 1e-12, 1e-9, 0.15
DURATION = 20.0
LEMMAS = {"ov": "Lemma 1", "qk": "Lemma 4"}
# Two factors of a circuit that learn at rates of their own: (eta_K, eta_Q), (eta_O, eta_V).
PAIRS: dict[str, Any] = {"eta_qk": (2.0, 0.5), "eta_ov": (4.0, 1.0)}


def run(quick: bool) -> tuple[list[Check], dict[str, pd.DataFrame]]:
    """Every function of `qkdyn.theory.identities` on random problems of three shapes.

    Returns:
        The checks, and "drift": what gradient descent does to the quantities that gradient flow conserves.
    """
    seeds = range(1 if quick else 5)
    checks, drift = [], pd.DataFrame()
    for M, d in SHAPES[:1] if quick else SHAPES:
        checks += [*_propositions(M, d, seeds), *_operator(M, d, seeds)]
    for M, d in SHAPES[:1] if quick else SHAPES:
        loss, params = batch_problem(M, d)
        checks += [*_velocities(loss, params, M, d), *_conservation(loss, params, M, d)]
        drift = pd.concat([drift, _drift(loss, params, M, d, quick)], ignore_index=True)
    return checks + _drift_checks(drift), {"drift": drift}


def batch_problem(M: int, d: int) -> tuple[Callable[[Params], Array], Params]:
    """The loss of eight random sequences as a function of the parameters, and unbalanced factors."""
    problem = claims.random_problem(1, M=M, d=d, T=7, batch=8)

    def loss(params: Params) -> Array:
        return claims.sequence_loss(params, problem.X, problem.x_T, problem.y)

    return loss, problem.params


def _span(values: Iterable[float]) -> str:
    found = list(values)
    low, high = f"{min(found):.2g}", f"{max(found):.2g}"
    return low if low == high else f"{low} to {high}"


def _all(statement: str, setting: str, values: Iterable[float], limit: float) -> Check:
    """A statement that ought to hold for each of `values`."""
    return Check(PART, statement, setting, max(values), limit)


def _none(statement: str, setting: str, values: Iterable[float], limit: float, note: str = "residual") -> Check:
    """A statement that ought to hold for none of `values`."""
    found = list(values)
    return Check(PART, statement, setting, min(found), limit, False, f"{note} {_span(found)}")


def _propositions(M: int, d: int, seeds: range) -> list[Check]:
    problems = [claims.random_problem(seed, M=M, d=d, T=7) for seed in seeds]
    setting = f"M = {M}, d = {d}"
    corrected, printed = ([claims.proposition_2(*p, printed=flag) for p in problems] for flag in (False, True))
    down, up = ([claims.flow_signs(*p, printed=flag) for p in problems] for flag in (False, True))

    def values(found: list[dict[str, float]], *names: str) -> list[float]:
        return [residuals[name] for residuals in found for name in names or residuals]

    return [
        _all(
            "Proposition 1: gradients (3), (30)-(32)",
            setting,
            values([claims.proposition_1(*p) for p in problems]),
            ROUNDING,
        ),
        _all("Proposition 2 with G transposed: gradients (45)-(47)", setting, values(corrected), ROUNDING),
        *(
            _none(f"Proposition 2 as printed: G in {name}", setting, values(printed, name), ROUNDING)
            for name in ("(45)", "(46)", "(47)")
        ),
        Check(
            PART,
            "flows (33)-(35), (48)-(50) with a minus lower the loss",
            setting,
            max(values(down)),
            0.0,
            note=f"d loss/dt {_span(values(down))}",
        ),
        _none(
            "flows (33)-(35), (48)-(50) as printed lower the loss", setting, values(up), 0.0, "they raise it, d loss/dt"
        ),
    ]


def _operator(M: int, d: int, seeds: range) -> list[Check]:
    """What the paper says of Omega itself."""
    setting = f"M = {M}, d = {d}"
    pairs = [np.random.default_rng(seed).standard_normal((2, M, d)) for seed in seeds]
    orders = [claims.vec_order(C, G) for C, G in pairs]
    turned = [claims.homogeneity(C, G, -0.3) for C, G in pairs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sqrtm says that the matrix is singular, which is the point.
        roots = [claims.square_roots(M, d, rank=3, seed=seed) for seed in seeds]
    checks = [
        _all("Lemma 2: Omega acts on vec by columns", setting, [found["columns"] for found in orders], ROUNDING),
        _none("Lemma 2: Omega acts on vec by rows", setting, [found["rows"] for found in orders], ROUNDING),
        _all("Omega(c C) = |c| Omega(C)", f"{setting}, c = -0.3", [found["|c|"] for found in turned], ROUNDING),
        _none("Omega(c C) = c Omega(C)", f"{setting}, c = -0.3", [found["c"] for found in turned], ROUNDING),
        _all("Omega is the Kronecker sum of Lemma 2", setting, [claims.kronecker_sum(C) for C, _ in pairs], ROUNDING),
        _all("square root of C^T C by SVD has all digits", f"{setting}, rank 3", [v["svd"] for v in roots], ROUNDING),
        _none(
            "square root of C^T C by sqrtm has all digits", f"{setting}, rank 3", [v["sqrtm"] for v in roots], ROUNDING
        ),
        _none(
            "Omega is a multiple of the identity, a faster learning rate",
            f"{setting}, random C",
            [claims.scalar_multiple(C) for C, _ in pairs],
            ROUNDING,
            "distance from it",
        ),
        _all("Omega(0) = 0: zero factors never move", setting, [claims.omega_at_zero(G) for _, G in pairs], 0.0),
    ]
    if d == M:
        orthogonal = [3.0 * np.linalg.qr(C)[0] for C, _ in pairs]
        equal = "Omega is a multiple of the identity where all singular values are equal"
        checks.append(_all(equal, setting, [claims.scalar_multiple(C) for C in orthogonal], ROUNDING))
    return checks


def _velocities(loss: Callable[[Params], Array], params: Params, M: int, d: int) -> list[Check]:
    """Lemmas 2 and 5 at one point."""
    setting = f"M = {M}, d = {d}"
    equal, own = (omega.factorize_at_rates(params, **rates) for rates in ({}, PAIRS))
    velocity = claims.product_velocity
    lemmas = "Lemmas 2, 5: velocity of the products, factors"
    rates = ", eta_O = 4 eta_V, eta_K = 4 eta_Q"
    return [
        _all(f"{lemmas} balanced", setting, velocity(loss, _float64(equal)).values(), ROUNDING),
        _none(f"{lemmas} not balanced", setting, velocity(loss, params).values(), ROUNDING),
        _all(
            f"{lemmas} balanced for their rates",
            setting + rates,
            velocity(loss, _float64(own), **PAIRS).values(),
            ROUNDING,
        ),
        _none(
            f"{lemmas} balanced for equal rates",
            setting + rates,
            velocity(loss, _float64(equal), **PAIRS).values(),
            ROUNDING,
        ),
    ]


def _conservation(loss: Callable[[Params], Array], params: Params, M: int, d: int) -> list[Check]:
    """Lemmas 1 and 4 along gradient flow, with equal rates and with rates of their own for the factors."""
    setting = f"M = {M}, d = {d}, t = {DURATION:g}"
    rates = ", eta_O = 4 eta_V, eta_K = 4 eta_Q"
    equal, own = (claims.flow_drift(loss, params, DURATION, **pair) for pair in ({}, PAIRS))
    flow = omega_flow.factorized_flow(loss, params, np.array([DURATION]), **PAIRS)
    end = _float64(jax.tree.map(lambda leaf: leaf[-1], flow.params))
    before, after = claims.conserved(params), claims.conserved(end)
    moved = {c: _norm(after[c] - before[c]) / _norm(before[c]) for c in CIRCUITS}
    checks = []
    for circuit, gram, scaled in (
        ("ov", "W_O^T W_O - W_V W_V^T", "W_O^T W_O/eta_O - W_V W_V^T/eta_V"),
        ("qk", "W_K^T W_K - W_Q^T W_Q", "W_K^T W_K/eta_K - W_Q^T W_Q/eta_Q"),
    ):
        name = LEMMAS[circuit]
        checks += [
            _all(f"{name}: flow conserves {gram}", setting, [equal[circuit]], FLOW),
            _all(f"{name} with rates: flow conserves {scaled}", setting + rates, [own[circuit]], FLOW),
            _none(f"{name}: flow conserves {gram}", setting + rates, [moved[circuit]], FLOW, "changed by"),
        ]
    return checks


def _drift(loss: Callable[[Params], Array], params: Params, M: int, d: int, quick: bool) -> pd.DataFrame:
    """What gradient descent makes of the conserved quantities, for steps that halve."""
    rows = []
    for steps in (1600, 3200) if quick else (800, 1600, 3200, 6400, 12800):
        found = claims.descent_drift(loss, params, DURATION, steps)
        rows += [{"M": M, "d": d, "circuit": c, "eta": DURATION / steps, "drift": found[c]} for c in CIRCUITS]
    return pd.DataFrame(rows)


def _drift_checks(drift: pd.DataFrame) -> list[Check]:
    checks = []
    for key, group in drift.groupby(["M", "d", "circuit"], sort=False):
        M, d, circuit = cast(tuple, key)
        slope = fitted_slope(group["eta"], group["drift"])
        note = f"exponent {slope:.3f}; drift {group['drift'].iloc[-1]:.2g} at step {group['eta'].iloc[-1]:.2g}"
        statement = f"{LEMMAS[circuit]} in gradient descent: the drift is proportional to the step"
        checks.append(Check(PART, statement, f"M = {M}, d = {d}", abs(slope - 1), SLOPE, note=note))
    return checks


def fitted_slope(x: Any, y: Any) -> float:
    """The exponent of the power law through the points, by least squares of the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _norm(matrix: Array) -> float:
    return float(np.linalg.norm(np.asarray(matrix)))


def _float64(params: dict[str, dict[str, np.ndarray]]) -> Params:
    with jax.enable_x64(True):
        return jax.tree.map(jnp.asarray, params)

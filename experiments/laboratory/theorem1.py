"""Part of the laboratory: Theorem 1 on full matrices, with its assumptions and without one of them at a time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments.laboratory.check import Check
from experiments.laboratory.identities import SLOPE, fitted_slope
from qkdyn.circuits import Params, on_ansatz
from qkdyn.parameterization import Parameterization
from qkdyn.tasks.designs import Design, Population
from qkdyn.theory import MatchedState, Setting, at_time
from qkdyn.theory.matrix_flow import MatrixTrajectory, matrix_flow, population_loss
from qkdyn.theory.omega_flow import gradient_descent

PART = "theorem 1"
EXACT = 1e-8
SMALL = Setting(m=2, n=2, b=2, M=3)
PAPER = Setting(m=5, n=50, b=50, M=5)
TIMES = np.array([1.0, 100.0, 1e4])
STARTS = {"CACO": (0.0, 0.0), "CAFO": (0.1, 0.0), "FACO": (0.0, 0.1), "FAFO": (0.1, 0.1)}
# How far the flow at the paper's sizes is followed, for each r.
DURATIONS = {0.01: 3e5, 0.1: 1e5, 1.0: 3e4, 10.0: 1e4, 100.0: 3.5e3}
SCALARS = ("mu_ov", "mu_qk", "alpha")
SIZES = "m = n = b = K = 2, M = 3"


def run(quick: bool) -> tuple[list[Check], dict[str, pd.DataFrame]]:
    """Matrix flow against the closed form: exact designs, variants of the assumptions, finite samples, descent.

    Returns:
        The checks and the tables "samples" (errors of training sets by size and seed) and "descent" (by step).
    """
    checks = [*_exact(quick), *_rescaled(), *_overlaps()]
    if not quick:
        checks += [*_queries(), *_at_the_papers_sizes()]
    samples, descent = _samples(quick), _descent(quick)
    checks += [*_sample_checks(samples), _antithetic(), *_descent_checks(descent)]
    return checks, {"samples": samples, "descent": descent}


def _start(design: Design, which: str = "CACO") -> Params:
    mu_ov, mu_qk = STARTS[which]
    return on_ansatz(design.directions(), which, mu_ov=mu_ov, mu_qk=mu_qk, dtype=jnp.float64)


def _alike(design: Design, contexts: int = 192, queries: int = 2) -> Design:
    """The same distribution as a longer list, with contexts that weigh nothing: lists of one shape share a compilation."""
    extra = contexts - len(design.y)

    def longer(part: np.ndarray) -> np.ndarray:
        return np.concatenate([part, np.repeat(part[:1], extra, 0)])

    return design._replace(
        X=longer(design.X),
        x_T=np.repeat(longer(design.x_T), queries // design.x_T.shape[1], 1),
        y=longer(design.y),
        weight=np.concatenate([design.weight, np.zeros(extra)]),
        reflection=np.ones(design.X.shape[-1]) if design.reflection is None else design.reflection,
    )


def _distance(flow: MatrixTrajectory, state: MatchedState, *, ov: float = 1.0, gap: float = 1.0) -> np.ndarray:
    """Distance of W_OV and W_QK from the theorem's matrices, relative to those, (2, times).

    The theorem's are mu_ov / ov times Sbar and mu_qk / gap times D. What is off the ansatz is orthogonal to it.
    """
    parts = (flow.mu_ov, state.mu_ov / ov, flow.off_ov), (flow.mu_qk, state.mu_qk / gap, flow.off_qk)
    return np.array(
        [np.hypot(mu / true - 1, mu / true * off / np.sqrt(np.maximum(1 - off**2, 1e-30))) for mu, true, off in parts]
    )


def _compare(
    statement: str,
    place: str,
    design: Design,
    setting: Setting,
    *,
    expected: bool = True,
    r: float = 1.0,
    times: np.ndarray = TIMES,
    which: str = "CACO",
    true_r: float | None = None,
    true_eta: float = 1.0,
    ov: float = 1.0,
    gap: float = 1.0,
    scale: float = 1.0,
) -> Check:
    """Matrix flow at eta_OV = 1 and eta_QK = r against the closed form at `true_eta` and `true_r`."""
    flow = matrix_flow(design, _start(design, which), times, eta_qk=r, eta_ov=1.0, scale=scale)
    initial = STARTS[which] if which != "CACO" else None
    ratio = r if true_r is None else true_r
    state = at_time(setting, ratio, times, eta_ov=true_eta, parameterization=which, initial=initial)
    errors = _distance(flow, state, ov=ov, gap=gap).max(1)
    note = f"alpha {flow.alpha[-1]:.4f}, theorem {state.alpha[-1]:.4f}"
    if not expected:
        note += f"; off W_OV {100 * errors[0]:.3g}%, W_QK {100 * errors[1]:.3g}%"
        note += f"; off the ansatz {100 * flow.off_ov[-1]:.3g}%, {100 * flow.off_qk[-1]:.3g}% at the end"
    value = float(errors.max() if expected else errors.min())
    return Check(PART, statement, f"{place}, r = {r:g}, t <= {times[-1]:g}", value, EXACT, expected, note)


def _exact(quick: bool) -> list[Check]:
    """Designs that satisfy the assumptions, in all four parameterizations."""
    larger = Population(m=2, n=3, b=4, M=3, backgrounds=2)
    forms = (Parameterization.CACO,) if quick else tuple(Parameterization)
    checks = []
    for which in forms:
        # At r = 10 rounding grows e^50-fold inside a class of FACO until t = 1e4 (part instabilities): 1e-6 off the path.
        for r in (1.0,) if quick else (0.1, 1.0, 3.0 if which == "FACO" else 10.0):
            checks.append(
                _compare(
                    "Theorem 1 (and its like for factorized circuits) is the flow of all matrices",
                    f"{which}, every sequence of {SIZES}",
                    _alike(Population().enumerated()),
                    SMALL,
                    r=r,
                    which=which,
                )
            )
    for which in () if quick else (Parameterization.CACO, Parameterization.FAFO):
        checks.append(
            _compare(
                "Theorem 1 (and its like for factorized circuits) is the flow of all matrices",
                f"{which}, balanced design of m = 2, n = 3, b = 4, M = 3",
                larger.balanced(),
                Setting(2, 3, 4, 3),
                which=which,
            )
        )
    return checks


def _queries() -> list[Check]:
    """Which token asks, and whether it is attended to itself."""
    plus = Setting(3, 2, 2, 3)
    return [
        _compare("Theorem 1, query S_y / b", SIZES, _alike(Population(query="mean").enumerated()), SMALL),
        _compare(
            "Theorem 1 with m + 1 for m, query S_y / b attends to itself",
            SIZES,
            _alike(Population(query="mean", included=True).enumerated(), queries=1),
            plus,
        ),
        _compare(
            "Theorem 1 with m + 1 for m, single-token query attends to itself",
            SIZES,
            _alike(Population(included=True).enumerated(), queries=1),
            plus,
            expected=False,
        ),
        _compare(
            "Theorem 1, single-token query attends to itself",
            SIZES,
            _alike(Population(included=True).enumerated(), queries=1),
            SMALL,
            expected=False,
        ),
        _compare(
            "Theorem 1, query copied from its context",
            SIZES,
            _alike(Population(query="copied").enumerated()),
            SMALL,
            expected=False,
        ),
    ]


def _rescaled() -> list[Check]:
    """Variants that the theorem still describes, with other rates."""
    checks = [_one_hot(r) for r in (1.0, 10.0)]
    p = Population()
    checks.append(
        _compare(
            "Theorem 1 with r / d for r, gap mu_QK / sqrt(d), scores over sqrt(d)",
            SIZES,
            _alike(p.enumerated()),
            SMALL,
            true_r=1 / p.d,
            gap=p.d**-0.5,
            scale=p.d**-0.5,
        )
    )
    for c in (0.5, 1.5):
        checks.append(
            _compare(
                "Theorem 1 with c^2 eta_OV, c^2 r, logits c^2 alpha mu_OV, gap c^4 mu_QK, tokens of norm c",
                f"{SIZES}, c = {c:g}",
                _alike(Population(norm=c).enumerated()),
                SMALL,
                true_r=c**2,
                true_eta=c**2,
                ov=c**2,
                gap=c**4,
            )
        )
    checks.append(
        _compare(
            "Theorem 1, tokens of norm c",
            f"{SIZES}, c = 1.5",
            _alike(Population(norm=1.5).enumerated()),
            SMALL,
            expected=False,
        )
    )
    return checks


def _one_hot(r: float) -> Check:
    """Backgrounds without signs, so of non-zero mean: W_QK also falls on them, and the gap has both parts."""
    p = Population(signed=False)
    design, gain = _alike(p.enumerated()), 1 + p.b / p.backgrounds
    flow = matrix_flow(design, _start(design), TIMES, eta_qk=r, eta_ov=1.0)
    state = at_time(SMALL, r * gain, TIMES)
    errors = (flow.mu_ov / state.mu_ov - 1, gain * flow.mu_qk / state.mu_qk - 1, flow.alpha / state.alpha - 1)
    return Check(
        PART,
        "Theorem 1 with r (1 + b/K) for r, gap (1 + b/K) mu_QK, K one-hot background tokens",
        f"{SIZES}, r = {r:g}, t <= {TIMES[-1]:g}",
        float(np.abs(errors).max()),
        EXACT,
        note=f"alpha {flow.alpha[-1]:.4f}, theorem at r {at_time(SMALL, r, TIMES[-1]).alpha:.4f}",
    )


def _overlaps() -> list[Check]:
    """Assumption 1 as it reads: tokens of one position are orthonormal over the classes, others are free to overlap."""
    sine = float(np.sin(0.3))
    place = f"{SIZES}, overlap sin 0.3"
    cross, same = (
        _alike(Population(cross_overlap=sine).enumerated()),
        _alike(Population(same_overlap=sine).enumerated()),
    )
    flow = matrix_flow(same, _start(same), TIMES, eta_qk=1.0, eta_ov=1.0)
    true = at_time(SMALL, 1.0, TIMES[-1])
    return [
        _compare("Theorem 1, tokens of different classes overlap", place, cross, SMALL, expected=False),
        _compare("Theorem 1, tokens of one class overlap", place, same, SMALL, expected=False),
        Check(
            PART,
            "tokens of one class overlap: the directions are Theorem 1's",
            f"{place}, r = 1, t <= {TIMES[-1]:g}",
            float(max(flow.off_ov.max(), flow.off_qk.max())),
            EXACT,
            note=f"but mu_OV {flow.mu_ov[-1]:.3f}, theorem {float(true.mu_ov):.3f}",
        ),
    ]


def _at_the_papers_sizes() -> list[Check]:
    p = Population(m=5, n=50, b=50, M=5, backgrounds=25, query="mean")
    place = "m = 5, n = 50, b = 50, M = 5, query S_y / b, 50 contexts"
    checks = [
        _compare(
            "Theorem 1 is the flow of all matrices", place, p.balanced(), PAPER, r=r, times=np.geomspace(1000, end, 3)
        )
        for r, end in DURATIONS.items()
    ]
    included = Population(m=5, n=50, b=50, M=5, backgrounds=25, query="mean", included=True)
    statement = "Theorem 1 with m + 1 for m, query S_y / b attends to itself"
    times = np.geomspace(1000, DURATIONS[1.0], 3)
    return [*checks, _compare(statement, place, included.balanced(), Setting(6, 50, 50, 5), times=times)]


def _samples(quick: bool) -> pd.DataFrame:
    """Training sets of independent sequences at t = 100, r = 1: relative errors against the theorem."""
    p, t = Population(), np.array([1.0, 10.0, 100.0])
    true = at_time(SMALL, 1.0, t)
    sizes = (48, 192) if quick else (48, 192, 768, 3072)
    rows = []
    for size in sizes:
        for seed in range(8):
            design = _alike(p.sample(jax.random.key(seed), size), sizes[-1])
            flow = matrix_flow(design, _start(design), t, eta_qk=1.0, eta_ov=1.0)
            W_OV, W_QK = _distance(flow, true)[:, -1]
            scalars = {name: abs(getattr(flow, name)[-1] / getattr(true, name)[-1] - 1) for name in SCALARS}
            rows.append({"N": size, "seed": seed, **scalars, "W_OV": W_OV, "W_QK": W_QK})
    return pd.DataFrame(rows)


def _sample_checks(samples: pd.DataFrame) -> list[Check]:
    """Root mean squares over seeds.

    On the ansatz every sequence's gradient has the same part along the ansatz, whatever its tokens: what a training set
    has of its own is orthogonal, of the order of N^-1/2, and moves the scalars in second order.
    """
    checks, sizes = [], samples["N"].unique()
    for name in ("W_OV", "W_QK", *SCALARS):
        order = 0.5 if name.startswith("W") else 1.0
        rms = [float(np.sqrt(np.mean(samples.loc[samples["N"] == size, name] ** 2))) for size in sizes]
        slope = fitted_slope(sizes, rms)
        checks.append(
            Check(
                PART,
                f"on N sampled sequences the error of {name} falls like N^-{order:g}",
                f"N = {', '.join(map(str, sizes))}, eight seeds, {SIZES}, t = 100, r = 1",
                abs(slope + order),
                0.3 * order,
                note=f"exponent {slope:.3f}; errors {', '.join(f'{value:.2g}' for value in rms)}",
            )
        )
    return checks


def _antithetic() -> Check:
    design = Population().antithetic(jax.random.key(0))
    statement = "Theorem 1 is exact on a training set that has each background nu and -nu"
    count = 2 * design.x_T.shape[0] * design.x_T.shape[1]
    return _compare(statement, f"{count} sequences, Gaussian nu, {SIZES}", _alike(design), SMALL)


def _descent(quick: bool) -> pd.DataFrame:
    """Gradient descent on all matrices against the closed form at t = 100, r = 1."""
    design = Population().enumerated().unfolded()
    loss, start, t = _loss_of(design), _start(design), 100.0
    true, directions = at_time(SMALL, 1.0, t), design.directions()
    rows = []
    for steps in (200, 400) if quick else tuple(50 * 2**k for k in range(7)):
        found = gradient_descent(loss, start, t, steps)
        row = {"eta": t / steps}
        for circuit, name in (("ov", "W_OV"), ("qk", "W_QK")):
            expected = float(getattr(true, f"mu_{circuit}")) * directions[circuit]
            row[name] = float(np.linalg.norm(found[circuit][name] - expected) / np.linalg.norm(expected))
        rows.append(row)
    return pd.DataFrame(rows)


def _loss_of(design: Design) -> Callable[[Params], jax.Array]:
    def loss(params: Params) -> jax.Array:
        return population_loss(params, design)

    return loss


def _descent_checks(descent: pd.DataFrame) -> list[Check]:
    checks = []
    for name in ("W_OV", "W_QK"):
        slope = fitted_slope(descent["eta"], descent[name])
        note = f"exponent {slope:.3f}; error {descent[name].iloc[-1]:.2g} at step {descent['eta'].iloc[-1]:.2g}"
        statement = "gradient descent on all matrices is within O(eta) of Theorem 1"
        checks.append(Check(PART, statement, f"{name}, {SIZES}, r = 1, t = 100", abs(slope - 1), SLOPE, note=note))
    return checks

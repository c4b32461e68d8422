"""Small random starts: how well the scalars predict training from them, and how attention depends on their scale."""

import functools
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from experiments.laboratory.check import Check
from experiments.sweep import Rates
from qkdyn.circuits import Params, init_params
from qkdyn.progress import track
from qkdyn.tasks.orthogonal import OrthogonalTask
from qkdyn.theory import Setting, at_loss
from qkdyn.theory.escape import effective_start, expected_start
from qkdyn.train.state import Plan
from qkdyn.train.sweep import Grid, run_sweep

if TYPE_CHECKING:
    import pandas as pd

PART = "random start"
TASK = OrthogonalTask()
SETTING = Setting(m=TASK.m, n=TASK.n, b=TASK.b, M=TASK.M)
SIGMAS = (0.03, 0.1, 0.3, 1.0)
FULL = (
    SIGMAS,
    Grid(r=(0.1, 1.0, 10.0), designs=("balanced",)),
    Plan(losses=(0.5, 0.1, 0.01), max_steps=30_000, records=20),
)
QUICK = (
    (0.3, 1.0),
    Grid(r=(1.0,), seeds=(0, 1), designs=("balanced",), parameterizations=("FAFO",)),
    Plan(losses=(0.5,), stop_loss=0.5, max_steps=8_000, records=20),
)
# Attention that the scalars predict within this counts as predicted.
LIMIT = 0.1


def start(form: str, sigma: float, seed: int) -> Params:
    """Every matrix Gaussian with entries of variance sigma^2 / d."""
    normal = jax.nn.initializers.normal(sigma / TASK.d**0.5)
    return init_params(jax.random.key(seed), form, d=TASK.d, M=TASK.M, qk=normal, ov=normal)


def run(quick: bool) -> tuple[list[Check], dict[str, "pd.DataFrame"]]:
    """Train from every scale and lay the scalars beside: those of each seed's effective start."""
    import pandas as pd

    sigmas, grid, plan = QUICK if quick else FULL
    rates, tables = Rates(), []
    with track(PART) as update:
        for place, sigma in enumerate(sigmas):
            update(place / len(sigmas), f"sigma = {sigma:g}")
            starts = {form: functools.partial(start, form, sigma) for form in grid.parameterizations}
            eta_ov = {form: rates.of(form) for form in starts}
            with jax.enable_x64(False):
                ds = run_sweep(TASK, grid, plan, eta_ov=eta_ov, initial=starts)
            tables += [_rows(ds, form, sigma, starts[form]) for form in starts]
    frame = pd.concat(tables, ignore_index=True)
    return _checks(frame), {"random_start": frame}


def _rows(ds, form: str, sigma: float, start_of) -> "pd.DataFrame":
    """A row for each r, seed and loss: attention in training, and predicted from this seed's and from the mean start."""
    chosen = ds.sel(parameterization=form, design="balanced")
    frame = chosen[["matched_alpha", "matched_t"]].to_dataframe().reset_index()
    losses, r = frame["level"].to_numpy(np.float64), frame["r"].to_numpy(np.float64)
    own, mean = np.empty(len(frame)), _predicted(r, losses, form, expected_start(SETTING, form, sigma))
    for seed in set(frame["seed"]):
        mine = (frame["seed"] == seed).to_numpy()
        own[mine] = _predicted(r[mine], losses[mine], form, effective_start(start_of(int(seed)), TASK.directions()))
    columns = {"parameterization": form, "sigma": sigma, "r": r, "seed": frame["seed"], "loss": losses}
    columns |= {"alpha": frame["matched_alpha"], "t": frame["matched_t"], "alpha_theory": own, "alpha_mean_start": mean}
    import pandas as pd

    return pd.DataFrame(columns)


def _predicted(r: np.ndarray, losses: np.ndarray, form: str, initial: tuple[float, float]) -> np.ndarray:
    return at_loss(SETTING, r, losses, parameterization=form, initial=initial).alpha


def _checks(frame: "pd.DataFrame") -> list[Check]:
    """One check for each parameterization and scale: the largest relative error of attention, averaged over seeds."""
    checks = []
    groups: Any = frame.groupby(["parameterization", "sigma"], sort=False)
    for (form, sigma), part in groups:
        cells = part.groupby(["r", "loss"])[["alpha", "alpha_theory"]].mean()
        error = (cells["alpha"] / cells["alpha_theory"] - 1).abs()
        r, loss = error.idxmax()
        each = (part["alpha"] / part["alpha_theory"] - 1).abs().max()
        where = f"worst at r = {r:g}, loss {loss:g}; worst single seed {each:.1%}"
        missing = int(part["alpha"].isna().sum())
        if missing:
            where += f"; {missing} of {len(part)} levels not reached"
        statement = "The scalars, begun at the effective start, give attention at matched loss within 10%"
        checks.append(Check(PART, statement, f"{form}, sigma = {sigma:g}", float(error.max()), LIMIT, True, where))
    return [*checks, _lift(frame)]


def _lift(frame: "pd.DataFrame") -> Check:
    """The same for what attention has gained over uniform, where the scalars say that it is a twentieth or more."""
    cells: Any = frame.groupby(["parameterization", "sigma", "r", "loss"])[["alpha", "alpha_theory"]].mean()
    gained: Any = cells[cells["alpha_theory"] > SETTING.alpha0 + 0.05] - SETTING.alpha0
    error = np.abs(gained["alpha"].to_numpy() / gained["alpha_theory"].to_numpy() - 1)
    note = f"{error.size} cells: median {np.median(error):.1%}, nine in ten within {np.quantile(error, 0.9):.1%}"
    statement = "and what it gains over uniform (1/3), where that is 0.05 or more, within 25%"
    return Check(
        PART, statement, "all parameterizations, scales, ratios and losses", float(error.max()), 0.25, True, note
    )

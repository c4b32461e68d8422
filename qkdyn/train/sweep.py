"""Sweeps: a grid over design, parameterization, ratio r and seed, trained by gradient descent -> an xarray Dataset."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax

from qkdyn.circuits import Params, parameterization_of
from qkdyn.errors import InputError, as_tuple, check_positive, reject
from qkdyn.parameterization import Parameterization
from qkdyn.tasks.orthogonal import DESIGNS, OrthogonalTask
from qkdyn.train.campaign import Campaign, Outcome, Snapshot
from qkdyn.train.engine import Job, Start, params_of
from qkdyn.train.interrupt import Request
from qkdyn.train.probe import AnsatzProbe
from qkdyn.train.state import Plan, Run, Status, check_reachable
from qkdyn.train.store import Store

if TYPE_CHECKING:
    import xarray as xr

AXES = ("design", "parameterization", "r", "seed")


@dataclass(frozen=True)
class Grid:
    """The runs of a sweep: every combination of the four axes.

    Attributes:
        r: ratios eta_QK / eta_OV, > 0.
        seeds: they choose the batches; run k of every parameterization and ratio sees the same ones.
        parameterizations: of FAFO, CAFO, FACO, CACO.
        designs: of balanced, sampled.
    """

    r: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    parameterizations: tuple[str, ...] = ("FAFO", "CAFO", "FACO", "CACO")
    designs: tuple[str, ...] = DESIGNS

    def __post_init__(self) -> None:
        for name in ("r", "seeds", "parameterizations", "designs"):
            values = as_tuple(name, getattr(self, name))
            if not values:
                reject(name, values, "a list with at least one value", "an empty axis leaves no run")
            object.__setattr__(self, name, values)
        for ratio in self.r:
            check_positive("r", ratio, do="r = eta_QK / eta_OV")
            if not 1e-30 <= ratio <= 1e30:
                reject("r", ratio, "in [1e-30, 1e30]", "beyond that a rate is not a float32 number")
        for seed in self.seeds:
            if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**31:
                reject("seeds", seed, "integers in [0, 2^31)")
        for design in self.designs:
            if design not in DESIGNS:
                reject("designs", design, "among " + ", ".join(DESIGNS))
        parsed = tuple(str(Parameterization.parse(name)) for name in self.parameterizations)
        object.__setattr__(self, "parameterizations", parsed)
        # Ratios are trained in single precision: two that are one there are one run.
        for name, values in (
            ("r", np.asarray(self.r, np.float32).tolist()),
            ("seeds", self.seeds),
            ("designs", self.designs),
        ):
            if len(set(values)) < len(values):
                reject(name, getattr(self, name), "distinct values")
        if len(set(parsed)) < len(parsed):
            reject("parameterizations", parsed, "distinct")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Runs of one parameterization: designs x ratios x seeds."""
        return len(self.designs), len(self.r), len(self.seeds)


def run_sweep(
    task: OrthogonalTask,
    grid: Grid,
    plan: Plan,
    *,
    eta_ov: Mapping[str, float],
    initial: Mapping[str, Start],
    base: Callable[[Any], optax.GradientTransformation] = optax.sgd,
    exact: bool = True,
    store: Store | None = None,
    max_runs: int | None = None,
    request: Request | None = None,
    on_chunk: Callable[[str, Snapshot], None] | None = None,
) -> "xr.Dataset":
    """Train every run of `grid` by gradient descent on all parameters.

    One program is compiled for each parameterization, whatever the grid; a run that diverges is frozen and marked.

    Args:
        task: the orthogonal task.
        grid: the runs.
        plan: what is recorded, and when a run ends.
        eta_ov: learning rate of the output-value circuit, by parameterization; eta_QK is r times it.
        initial: parameters at step 0, by parameterization: the same for every run, or a function of its seed.
        base: the optimizer as a function of its rate.
        exact: whether a run has the same bits on any number of devices, see `Job`.
        store: keeps finished parts and checkpoints; what it has is not trained again.
        max_runs: runs held in memory at once; None chooses.
        request: signals noted, see `Campaign`.
        on_chunk: called after each chunk with the parameterization and where its runs stand.

    Returns:
        Measures against the recorded steps, (design, parameterization, r, seed, record), NaN after a run's end; the same
        measures at matched losses as matched_*, (..., level), NaN where a level was not reached; status, last_step and
        diverged_step of each run; t = step * eta_OV, in units of 1/eta_OV at rate one.

    Raises:
        InputError: a parameterization without rate or start. RangeError: a level above the loss at the start.
        Interrupted, OutputError, PeerError: see `Campaign.finish`.
    """
    job = Job(task, AnsatzProbe(task), plan, base, exact)
    campaign = Campaign(job, store, max_runs, request)
    for form in grid.parameterizations:
        for name, given in (("eta_ov", eta_ov), ("initial", initial)):
            if form not in given:
                raise InputError(
                    f"{name} must have an entry for {form}, got entries for {', '.join(given) or 'nothing'}"
                )
        rate = check_positive(f"eta_ov[{form}]", eta_ov[form])
        for ratio in (1.0, *grid.r):
            if not 1e-30 <= rate * ratio <= 1e30:
                reject(
                    f"eta_ov[{form}] * r", rate * ratio, "in [1e-30, 1e30]", "beyond that a rate is no float32 number"
                )
        for seed in grid.seeds if callable(initial[form]) else grid.seeds[:1]:
            _check_start(task, form, params_of(initial[form], seed))
    finished: dict[str, Outcome] = {}
    for form in grid.parameterizations:
        with jax.enable_x64(False):
            for seed in grid.seeds if callable(initial[form]) else grid.seeds[:1]:
                check_reachable(plan, float(job.probe(params_of(initial[form], seed))["loss"]), form)
    for form in grid.parameterizations:
        hear = functools.partial(on_chunk, form) if on_chunk else lambda snapshot: None
        # Training is in single precision, whatever the caller's default is.
        with jax.enable_x64(False):
            finished[form] = campaign.finish(initial[form], _runs(grid, eta_ov[form]), form, hear)
    return _dataset(finished, grid, plan, eta_ov)


def _check_start(task: OrthogonalTask, form: str, params: Params) -> None:
    """Raise InputError unless `params` are float32 matrices of this parameterization and of the task's sizes, all finite."""
    found = parameterization_of(params)
    if found != form:
        raise InputError(f"initial[{form!r}] must be parameters of {form}, got {found}; see qkdyn.circuits.factorize")
    M, d = task.M, task.d
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        shape = (M, d) if name in ("ov/W_O", "ov/W_OV") else (d, d)
        if np.shape(leaf) != shape or np.asarray(leaf).dtype != np.float32 or not np.isfinite(leaf).all():
            what = f"{np.asarray(leaf).dtype}{list(np.shape(leaf))}"
            raise InputError(f"initial[{form!r}] {name} must be finite float32{list(shape)}, got {what}")


def _runs(grid: Grid, eta_ov: float) -> Run:
    """All runs of one parameterization, flat, in the order design, r, seed."""
    sampled = np.array([design == "sampled" for design in grid.designs])
    axes = np.meshgrid(sampled, np.asarray(grid.r, np.float32), np.asarray(grid.seeds, np.int32), indexing="ij")
    flat = [axis.ravel() for axis in axes]
    return Run(sampled=flat[0], r=flat[1], seed=flat[2], eta_ov=np.full(flat[0].size, eta_ov, np.float32))


def _dataset(finished: Mapping[str, Outcome], grid: Grid, plan: Plan, eta_ov: Mapping[str, float]) -> "xr.Dataset":
    import xarray as xr

    def stack(name: str) -> np.ndarray:
        arrays = [
            found[f"state/{name}"].reshape(*grid.shape, *found[f"state/{name}"].shape[1:])
            for found in finished.values()
        ]
        return np.stack(arrays, axis=1)

    prefix = "state/records/"
    names = [name.removeprefix(prefix) for name in next(iter(finished.values())) if name.startswith(prefix)]
    steps = plan.record_steps
    rates = np.array([float(eta_ov[form]) for form in grid.parameterizations])
    variables: dict[str, Any] = {name: ((*AXES, "record"), stack(f"records/{name}")) for name in names}
    at_level = (*AXES, "level")
    variables |= {f"matched_{name}": (at_level, stack(f"matched/{name}")) for name in names if name != "loss"}
    variables["matched_t"] = at_level, stack("matched/step") * rates[:, None, None, None]
    variables["status"] = AXES, stack("status").astype(np.int8)
    variables["last_step"] = AXES, stack("step")
    variables["diverged_step"] = AXES, stack("diverged_step")
    variables["t"] = ("parameterization", "record"), rates[:, None] * steps
    coords = {
        "design": list(grid.designs),
        "parameterization": list(grid.parameterizations),
        "r": np.asarray(grid.r, np.float64),
        "seed": np.asarray(grid.seeds, np.int64),
        "step": ("record", steps),
        "level": np.asarray(plan.losses, np.float64),
    }
    ds = xr.Dataset(variables, coords=coords)
    ds["status"].attrs = {"flag_values": [int(s) for s in Status], "flag_meanings": " ".join(s.name for s in Status)}
    ds["t"].attrs = {"long_name": "time, step * eta_OV", "units": "1/eta_OV at unit rate"}
    return ds

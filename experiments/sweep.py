"""The main job: Sec. 6.1's layer trained for a grid of ratios, seeds and parameterizations, with the exact theory over it.

Command:  python -m experiments.sweep [--quick] [--draw-only] [--help]
Time:     about half a minute on two cores; --quick a third of that.
Expect:   balanced runs within 1% of the theory at every matched loss; Lemma 3's bounds hold for every CACO run.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkdyn.circuits import on_ansatz
from qkdyn.config import INTERRUPTED, as_dict, digest, main_guard, parse, refuse_undrawn
from qkdyn.errors import InputError, Interrupted, check_count, check_positive
from qkdyn.figures import draw_sweep
from qkdyn.metrics.overlay import with_bounds, with_theory
from qkdyn.parameterization import Parameterization
from qkdyn.progress import track
from qkdyn.results import (
    load_dataset,
    manifest,
    prepare_folder,
    retract,
    save_dataset,
    sweep_table,
    write_manifest,
    write_summary,
)
from qkdyn.tasks.orthogonal import OrthogonalTask
from qkdyn.theory import Setting, at_loss
from qkdyn.train.campaign import Snapshot
from qkdyn.train.devices import Machine
from qkdyn.train.interrupt import on_request
from qkdyn.train.lock import lock
from qkdyn.train.processes import first_alone, in_turn, peers, primary
from qkdyn.train.state import Plan, Status
from qkdyn.train.store import Store, open_store
from qkdyn.train.sweep import Grid, run_sweep

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Rates:
    """eta_OV of each parameterization, the same for every r: small enough that descent follows the flow within 1%."""

    eta_ov_FAFO: float = 0.25
    eta_ov_CAFO: float = 0.25
    eta_ov_FACO: float = 1.0
    eta_ov_CACO: float = 2.0

    def __post_init__(self) -> None:
        for form in Parameterization:
            check_positive(f"eta_ov_{form}", self.of(form))

    def of(self, form: str) -> float:
        """eta_OV of one parameterization."""
        return getattr(self, f"eta_ov_{form}")


@dataclass(frozen=True)
class Config:
    """What is run. Every field is science but for `chunk`."""

    task: OrthogonalTask = field(default_factory=OrthogonalTask)
    grid: Grid = field(default_factory=Grid)
    plan: Plan = field(default_factory=Plan)
    eta_ov: Rates = field(default_factory=Rates)
    rate_scale: float = 1.0
    """Multiplies every rate; halving it should halve the distance from the theory."""
    initial_scale: float = 0.1
    """mu of a factorized circuit at step 0 (balanced, on the ansatz); collapsed circuits start at zero, as in Theorem 1."""

    def __post_init__(self) -> None:
        check_positive("rate_scale", self.rate_scale)
        check_positive(
            "initial_scale", self.initial_scale, do="a factorized circuit at zero is a saddle: it never learns"
        )

    @property
    def setting(self) -> Setting:
        """The sizes the theory needs."""
        return Setting(m=self.task.m, n=self.task.n, b=self.task.b, M=self.task.M)

    def rate(self, form: str) -> float:
        """eta_OV of a parameterization."""
        return self.rate_scale * self.eta_ov.of(form)

    def initial(self, form: str) -> tuple[float, float]:
        """(mu_OV, mu_QK) at step 0."""
        kind = Parameterization.parse(form)
        return self.initial_scale * kind.factorized_ov, self.initial_scale * kind.factorized_qk


PROTOCOLS = {
    "reference": Config(),
    "quick": Config(
        grid=Grid(r=(0.1, 1.0, 10.0), seeds=(0, 1)),
        plan=Plan(losses=(0.5, 0.1), stop_loss=0.1, max_steps=4_000, records=60),
    ),
}


@dataclass(frozen=True)
class Options:
    """How it is run; no result depends on it (but for `exact`, to rounding)."""

    protocol: str = "reference"
    """One of: reference, quick."""
    quick: bool = False
    """Short for --protocol quick."""
    out: Path | None = None
    """Folder for the results; default results/sweep, or results/quick/sweep for the quick protocol."""
    draw_only: bool = False
    """Redraw the figures and tables from the records in `out`; train nothing."""
    draw: bool = True
    """Draw the figures; --no-draw leaves them to a later --draw-only."""
    fresh: bool = False
    """Forget what `out` holds of finished and unfinished runs, and begin anew."""
    checkpoint_seconds: float = 10.0
    """Seconds between checkpoints; 0 for one after every chunk."""
    checkpoints: int = 2
    """Checkpoints that are kept."""
    max_runs: int | None = None
    """Runs held in memory at once; default chosen from what a run needs and the memory there is."""
    exact: bool = True
    """The same bits on any number of devices; --no-exact gives each device all its runs at once."""
    machine: Machine = field(default_factory=Machine)

    def __post_init__(self) -> None:
        check_positive("checkpoint_seconds", self.checkpoint_seconds, zero=True)
        check_count("checkpoints", self.checkpoints)
        if self.max_runs is not None:
            check_count("max_runs", self.max_runs)
        if self.out is not None and self.out == Path() and not self.out.name:
            raise InputError("out must name a folder, not the current one; leave it out for results/sweep")
        refuse_undrawn(self, ("draw", "fresh", "checkpoint_seconds", "checkpoints", "max_runs", "exact", "machine"))

    @property
    def folder(self) -> Path:
        """Where the results go."""
        quick = self.quick or self.protocol == "quick"
        return (self.out or Path("results") / ("quick/sweep" if quick else "sweep")).absolute()


def run(
    config: Config, on_share: Callable[[float, str], None] = lambda share, status: None, **how: Any
) -> "xr.Dataset":
    """Train the grid and lay theory and bounds over it.

    Args:
        config: what is run.
        on_share: hears the share done and a status line.
        how: store, request, max_runs and exact, see `run_sweep`.
    """
    forms = config.grid.parameterizations
    directions = config.task.directions()
    starts = {form: config.initial(form) for form in forms}
    ds = run_sweep(
        config.task,
        config.grid,
        config.plan,
        eta_ov={form: config.rate(form) for form in forms},
        initial={f: on_ansatz(directions, f, mu_ov=starts[f][0], mu_qk=starts[f][1]) for f in forms},
        on_chunk=_share_of(config, on_share),
        **how,
    )
    ds = with_bounds(with_theory(ds, config.setting, starts), config.setting)
    title = "Training in the orthogonal setting of Sec. 6.1 by SGD, and the scalars of Theorem 1"
    return ds.assign_attrs(title=title, config=json.dumps(as_dict(config), sort_keys=True), digest=digest(config))


def _share_of(config: Config, on_share: Callable[[float, str], None]) -> Callable[[str, Snapshot], None]:
    """Progress in steps, with the length of each run foretold by the theory."""
    designs, ratios, seeds = config.grid.shape
    length = {}
    for form in config.grid.parameterizations:
        t = at_loss(
            config.setting, config.grid.r, config.plan.stop_loss, parameterization=form, initial=config.initial(form)
        ).t
        steps = np.minimum(t / config.rate(form), config.plan.max_steps)
        length[form] = np.broadcast_to(steps[None, :, None], config.grid.shape).ravel()
    total = sum(steps.sum() for steps in length.values())
    runs = len(length) * designs * ratios * seeds
    done: dict[str, tuple[float, int, int]] = dict.fromkeys(length, (0.0, 0, 0))

    def on_chunk(form: str, now: Snapshot) -> None:
        ended = now.status != Status.running
        share = np.where(ended, length[form], np.minimum(now.step, length[form])).sum()
        done[form] = (float(share), int(ended.sum()), int(now.step.sum()))
        shares, finished, steps = (sum(column) for column in zip(*done.values(), strict=True))
        loss = now.loss[np.isfinite(now.loss)]
        spread = f"loss {loss.min():.2g}-{loss.max():.2g}" if loss.size else "from the records"
        on_share(shares / total, f"{form}  {steps:,} run-steps, {spread}, {finished}/{runs} runs")

    return on_chunk


def identity(config: Config, options: Options) -> dict[str, Any]:
    """What runs must share to belong together: everything but the grid, which may grow, and how the work is cut up."""
    shared = as_dict(config)
    del shared["grid"], shared["plan"]["chunk"]
    return shared | {"exact": options.exact}


def train(config: Config, options: Options) -> "tuple[xr.Dataset, Store]":
    """Run `config`, kept on disk on the way; on a signal save, and raise `Interrupted`. The data, and what kept them."""
    store = in_turn(
        lambda: open_store(
            options.folder / "checkpoints",
            identity(config, options),
            fresh=options.fresh,
            every=options.checkpoint_seconds,
            keep=options.checkpoints,
            primary=primary(),
        )
    )
    with peers(), on_request() as request, track("sweep", show=primary()) as update:
        how = {"store": store, "request": request, "max_runs": options.max_runs, "exact": options.exact}
        return run(config, update, **how), store


def write(
    ds: "xr.Dataset", folder: Path, wall_seconds: float, argv: Sequence[str], counts: Mapping[str, Any], *, draw: bool
) -> list[Path]:
    """Write records, summary, figures and, last, the manifest that vouches for them.

    Args:
        ds: of the whole grid.
        folder: where.
        wall_seconds: of this command; what it took from the records took other commands' time.
        argv: the command.
        counts: how many runs this command trained, and how many it found, see `Store`.
        draw: whether to draw the figures.
    """
    retract(folder)
    files = [save_dataset(ds, folder / "data.nc"), write_summary(ds, folder / "summary.csv")]
    files += draw_sweep(ds, folder) if draw else []
    record = manifest(
        json.loads(ds.attrs["config"]), wall_seconds=wall_seconds, argv=list(argv), files=files, digest=ds.digest
    )
    return [*files, write_manifest(record | {"runs": dict(counts)}, folder)]


def show(ds: "xr.Dataset", files: Sequence[Path]) -> None:
    """Print the tables and the paths of what was written."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 140)
    for table in sweep_table(ds, width=console.width):
        console.print(table)
    console.print("\n".join(map(str, files)), highlight=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment from the command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    config, options = parse(
        PROTOCOLS, Options(), arguments, prog="python -m experiments.sweep", description=(__doc__ or "").splitlines()[0]
    )
    folder = options.folder
    if options.draw_only:
        ds = load_dataset(folder / "data.nc")
        with lock(prepare_folder(folder)):
            files = [write_summary(ds, folder / "summary.csv"), *draw_sweep(ds, folder)]
        show(ds, files)
        return 0
    options.machine.join()
    begun = time.monotonic()
    with ExitStack() as held:
        # A refusal in the first process ends the others too.
        first_alone(lambda: held.enter_context(lock(prepare_folder(folder))))
        try:
            ds, store = train(config, options)
        except Interrupted:
            if primary():
                raise
            return INTERRUPTED  # the first process says so
        if not primary():
            return 0
        command = ["python", "-m", "experiments.sweep", *arguments]
        files = write(ds, folder, time.monotonic() - begun, command, store.counts, draw=options.draw)
    show(ds, files)
    diverged = int((ds.status == Status.diverged).sum())
    if diverged:
        print(f"{diverged} of {ds.status.size} runs diverged and are marked; a smaller --rate-scale keeps them finite")
    return 0


if __name__ == "__main__":
    sys.exit(main_guard(main))

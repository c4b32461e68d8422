"""How descent approaches the flow: the sweep at a rate, at half and at a quarter of it, against the exact theory.

Command:  python -m experiments.step_size [--quick] [--help]
Time:     about a minute on two cores; --quick under half of one.
Expect:   the relative difference from the theory at matched loss falls like eta: slope 1 in a doubly logarithmic picture.
"""

import dataclasses
import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from experiments import sweep as sweeps
from qkdyn.config import as_dict, digest, main_guard, parse
from qkdyn.errors import InputError, check_positive
from qkdyn.experiment import refuse_other_protocol
from qkdyn.figures import draw_step_size
from qkdyn.figures.step_size import CELL, cell_of, check_differences
from qkdyn.progress import track
from qkdyn.results import (
    load_frame,
    manifest,
    prepare_folder,
    retract,
    summary_frame,
    warn_unless_vouched,
    write_manifest,
    write_text,
)
from qkdyn.train.lock import lock
from qkdyn.train.state import Plan
from qkdyn.train.sweep import Grid

if TYPE_CHECKING:
    import pandas as pd

QUANTITIES = ("alpha", "mu_ov", "mu_qk")
# Differences smaller than this are rounding of single precision as much as of the step.
SMALLEST = 1e-4
_SLOPE = ("difference", "halved", "scale", "half", "slope")


@dataclass(frozen=True)
class Config:
    """The sweep that is repeated, balanced so that nothing but the step sets it apart from the theory, and the scales."""

    sweep: sweeps.Config = field(
        default_factory=lambda: sweeps.Config(grid=Grid(seeds=(0,), designs=("balanced",)), plan=Plan(max_steps=60_000))
    )
    scales: tuple[float, ...] = (1.0, 0.5, 0.25)
    """Factors on every learning rate, decreasing."""

    def __post_init__(self) -> None:
        for scale in self.scales:
            check_positive("each of scales", scale)
        if len(self.scales) < 2 or list(self.scales) != sorted(set(self.scales), reverse=True):
            raise InputError(f"scales must be at least two decreasing factors, got {self.scales}; e.g. 1 0.5 0.25")


PROTOCOLS = {
    "reference": Config(),
    "quick": Config(
        sweep=sweeps.Config(
            grid=Grid(r=(0.1, 1.0, 10.0), seeds=(0,), designs=("balanced",)),
            plan=Plan(losses=(0.5, 0.1), stop_loss=0.1, max_steps=10_000),
        ),
        scales=(1.0, 0.5),
    ),
}


@dataclass(frozen=True)
class Options(sweeps.Options):
    """How it is run; no result depends on it. What only the sweep can do is refused."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("fresh", "checkpoint_seconds", "checkpoints", "max_runs", "exact", "draw"):
            if getattr(self, name) != getattr(sweeps.Options(), name):
                raise InputError(f"{name} is an option of experiments.sweep, got {getattr(self, name)!r}; leave it out")
        if self.machine.distributed:
            raise InputError("distributed is an option of experiments.sweep; this command runs in one process")

    @property
    def folder(self) -> Path:
        """Where the results go."""
        quick = self.quick or self.protocol == "quick"
        return self.out or Path("results") / ("quick/step_size" if quick else "step_size")


def run(config: Config) -> "pd.DataFrame":
    """Relative differences at matched loss, one row for each scale, design, parameterization, r, level and quantity."""
    import pandas as pd

    tables = []
    for scale in config.scales:
        with track(f"rates x {scale:g}") as update:
            scaled = dataclasses.replace(config.sweep, rate_scale=config.sweep.rate_scale * scale)
            frame = summary_frame(sweeps.run(scaled, update))
        for name in QUANTITIES:
            columns = frame[list(CELL)].assign(scale=scale, quantity=name, difference=frame[f"{name}_rel_diff"])
            tables.append(columns)
    return pd.concat(tables, ignore_index=True)


def read(path: Path) -> "pd.DataFrame":
    """What `run` gave, from the file it was written to.

    Raises:
        OutputError: the file is missing, empty or not CSV. InputError: it is not a table of this experiment.
    """
    do = "run this command without --draw-only first, or name by --out the folder where that was done"
    frame = load_frame(path, do=do)
    check_differences(frame, str(path))
    warn_unless_vouched(path)
    return frame


def slopes(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Slope of ln |difference| in ln(scale) between neighbouring scales, where the larger difference exceeds `SMALLEST`.

    Raises:
        InputError: `frame` is not a table of this experiment.
    """
    import pandas as pd

    check_differences(frame)
    cell = ["quantity", *cell_of(frame)]
    rows = []
    for large, small in itertools.pairwise(sorted(set(frame["scale"]), reverse=True)):
        whole, half = (frame.loc[frame["scale"] == scale, [*cell, "difference"]] for scale in (large, small))
        pair = whole.merge(half.rename(columns={"difference": "halved"}), on=cell)
        sizes = [np.abs(pair[name].to_numpy(np.float64)) for name in ("difference", "halved")]
        # NaN, a level that was not reached, compares as false.
        kept = (sizes[0] > SMALLEST) & (sizes[1] > 0)
        slope = np.log(sizes[0][kept] / sizes[1][kept]) / np.log(large / small)
        rows.append(pair[kept].assign(scale=large, half=small, slope=slope))
    filled = [part for part in rows if len(part)]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=[*cell, *_SLOPE])


def unknown(frame: "pd.DataFrame") -> list[str]:
    """A line for each scale and level at which some cell has no difference: what was not reached, by whom."""
    lines = []
    for place, part in frame[frame["quantity"] == frame["quantity"].iloc[0]].groupby(["scale", "level"], sort=False):
        scale, level = cast(tuple[float, float], place)
        missing = part.loc[lambda rows: rows["difference"].isna()]
        names = ", ".join(dict.fromkeys(missing["parameterization"]))
        if len(missing):
            share = f"{len(missing)} of {len(part)} cells ({names})"
            lines.append(f"loss {level:g} not reached at rates x {scale:g}: {share}")
    return lines


def show(frame: "pd.DataFrame") -> None:
    """Print the range of slopes of each quantity and the largest difference it starts from, and what was not reached."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 130)
    out = Table(title="Distance from the theory at matched loss as every rate falls; slope 1 is O(eta)")
    designs = len(set(frame["design"])) > 1 if "design" in frame else False
    columns = ["quantity", "rates", "cells above 1e-4", "largest difference", "slope: least", "median", "most"]
    for column in ["design"] * designs + columns:
        out.add_column(column, justify="right")
    table = slopes(frame)
    for key, part in table.groupby(["design"] * designs + ["quantity", "scale", "half"], sort=False):
        *names, large, small = cast(tuple[str, str, float, float], key)
        size, slope = part["difference"].abs().max(), part["slope"]
        numbers = (f"{slope.min():.3f}", f"{slope.median():.3f}", f"{slope.max():.3f}")
        out.add_row(*map(str, names), f"{large:g} -> {small:g}", str(len(part)), f"{size:.2%}", *numbers)
    if len(table):
        console.print(out)
    elif frame["difference"].isna().to_numpy().all():
        console.print("No slope: no run reached a level, so nothing was compared. More steps (--max-steps) may help.")
    else:
        console.print(f"No slope: no cell has differences at two scales, the larger of them above {SMALLEST:g}.")
    for line in unknown(frame):
        console.print(line, highlight=False)


def write(frame: "pd.DataFrame", config: Config, folder: Path, wall_seconds: float, argv: Sequence[str]) -> list[Path]:
    """Write table, figure and, last, the manifest that vouches for them; the old one goes first."""
    retract(folder)
    table = write_text(folder / "summary.csv", frame.to_csv(index=False, float_format="%.8g"))
    files = [table, draw_step_size(frame, folder / "step_size.png")]
    record = manifest(as_dict(config), wall_seconds=wall_seconds, argv=argv, files=files, digest=digest(config))
    return [*files, write_manifest(record, folder)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment from the command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    config, options = parse(
        PROTOCOLS,
        Options(),
        arguments,
        prog="python -m experiments.step_size",
        description=(__doc__ or "").splitlines()[0],
    )
    path = options.folder / "summary.csv"
    if options.draw_only:
        frame = read(path)
        with lock(prepare_folder(options.folder)):
            files = [path, draw_step_size(frame, options.folder / "step_size.png")]
    else:
        options.machine.join()
        with lock(prepare_folder(options.folder)):
            refuse_other_protocol(PROTOCOLS, options, options.folder)
            begun = time.monotonic()
            frame = run(config)
            command = ["python", "-m", "experiments.step_size", *arguments]
            files = write(frame, config, options.folder, time.monotonic() - begun, command)
    show(frame)
    print("\n".join(map(str, files)))
    return 0


if __name__ == "__main__":
    sys.exit(main_guard(main))

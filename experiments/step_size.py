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
from qkdyn.figures import draw_step_size
from qkdyn.progress import track
from qkdyn.results import manifest, prepare_folder, summary_frame, write_manifest, write_text
from qkdyn.train.devices import use_host_devices
from qkdyn.train.state import Plan
from qkdyn.train.sweep import Grid

if TYPE_CHECKING:
    import pandas as pd

CELL = ["parameterization", "r", "level"]
QUANTITIES = ("alpha", "mu_ov", "mu_qk")
# Differences smaller than this are rounding of single precision as much as of the step.
SMALLEST = 1e-4


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
    """How it is run; no result depends on it."""

    @property
    def folder(self) -> Path:
        """Where the results go."""
        quick = self.quick or self.protocol == "quick"
        return self.out or Path("results") / ("quick/step_size" if quick else "step_size")


def run(config: Config) -> "pd.DataFrame":
    """Relative differences at matched loss, one row for each scale, parameterization, r, level and quantity."""
    import pandas as pd

    tables = []
    for scale in config.scales:
        with track(f"rates x {scale:g}") as update:
            scaled = dataclasses.replace(config.sweep, rate_scale=config.sweep.rate_scale * scale)
            frame = summary_frame(sweeps.run(scaled, update))
        for name in QUANTITIES:
            columns = frame[CELL].assign(scale=scale, quantity=name, difference=frame[f"{name}_rel_diff"])
            tables.append(columns)
    return pd.concat(tables, ignore_index=True)


def slopes(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Slope of ln |difference| in ln(scale) between neighbouring scales, where the larger difference exceeds `SMALLEST`."""
    import pandas as pd

    wide = frame.pivot_table(index=["quantity", *CELL], columns="scale", values="difference")
    rows = []
    for large, small in itertools.pairwise(sorted(set(frame["scale"]), reverse=True)):
        pair = wide.rename(columns={large: "difference", small: "halved"})[["difference", "halved"]].reset_index()
        pair = pair[pair["difference"].abs() > SMALLEST]
        slope = np.log((pair["difference"] / pair["halved"]).abs()) / np.log(large / small)
        rows.append(pair.assign(scale=large, half=small, slope=slope))
    return pd.concat(rows, ignore_index=True)


def show(table: "pd.DataFrame") -> None:
    """Print the range of slopes of each quantity, and the largest difference it starts from."""
    from rich.console import Console
    from rich.table import Table

    out = Table(
        title="Difference from the theory at matched loss when every rate falls: slope in the rate (1 = like O(eta))"
    )
    for column in ("quantity", "rates", "cells above 1e-4", "largest difference", "slope: least", "median", "most"):
        out.add_column(column, justify="right")
    for key, part in table.groupby(["quantity", "scale", "half"], sort=False):
        name, large, small = cast(tuple[str, float, float], key)
        size, slope = part["difference"].abs().max(), part["slope"]
        numbers = (f"{slope.min():.3f}", f"{slope.median():.3f}", f"{slope.max():.3f}")
        out.add_row(str(name), f"{large:g} -> {small:g}", str(len(part)), f"{size:.2%}", *numbers)
    Console(width=None if sys.stdout.isatty() else 130).print(out)


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
    import pandas as pd

    folder = prepare_folder(options.folder)
    begun = time.monotonic()
    if options.draw_only:
        frame = pd.read_csv(folder / "summary.csv")
    else:
        use_host_devices(options.devices)
        frame = run(config)
        write_text(folder / "summary.csv", frame.to_csv(index=False, float_format="%.8g"))
    files = [folder / "summary.csv", draw_step_size(frame, folder / "step_size.png")]
    if not options.draw_only:
        command = ["python", "-m", "experiments.step_size", *arguments]
        record = manifest(
            as_dict(config), wall_seconds=time.monotonic() - begun, argv=command, files=files, digest=digest(config)
        )
        files.append(write_manifest(record, folder))
    show(slopes(frame))
    print("\n".join(map(str, files)))
    return 0


if __name__ == "__main__":
    sys.exit(main_guard(main))

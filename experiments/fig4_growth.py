"""Figure 4: how both circuits grow and where attention stands at 50 stop losses, in closed form and integrated.

Command:  python -m experiments.fig4_growth [--protocol as_coded|as_written] [--draw-only] [--help]
Time:     a few seconds.
Expect:   the closed form and diffrax agree to 1e-9 or better; attention at a matched loss rises with r, from next to uniform at
          r = 0.01 to next to one at r = 100; every trajectory's limit is attention 1.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from qkdyn.config import main_guard
from qkdyn.errors import STRONGEST, WEAKEST, InputError, RangeError, as_tuple, check_count, check_positive, reject
from qkdyn.experiment import TableExperiment
from qkdyn.figures import canvas
from qkdyn.figures.growth import check_growth, draw_growth
from qkdyn.theory import Setting, at_loss, integrate

if TYPE_CHECKING:
    import pandas as pd

# The last line of the published notebook's output for two ratios at M = 20: (t min(1, r), mu_ov, mu_qk, alpha) at loss 1e-4.
PUBLISHED = {0.01: (2.55e6, 81.669, 0.559, 0.149), 0.1: (4.9e6, 42.282, 1.395, 0.287)}
MOST_LOSSES, LOWEST_LOSS = 10_000, 1e-200


@dataclass(frozen=True)
class Config:
    """What is computed. Both circuits collapsed and started at zero, eta_OV = 1, eta_QK = r."""

    m: int = 5
    n: int = 50
    b: int = 50
    M: tuple[int, ...] = (5, 20)
    """Numbers of classes: the caption says 5, the notebook has 20."""
    r: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0)
    first_loss: float = 1.0
    last_loss: float = 1e-4
    losses: int = 50
    """Stop losses, evenly spaced in their logarithm from the first to the last."""

    def __post_init__(self) -> None:
        for name in ("M", "r"):
            values = as_tuple(name, getattr(self, name))
            object.__setattr__(self, name, values)
            if not values or len(set(values)) < len(values):
                raise InputError(f"{name} must be distinct values, at least one, got {values}")
        for ratio in self.r:
            check_positive("each of r", ratio, least=WEAKEST, most=STRONGEST)
        if check_count("losses", self.losses, minimum=2) > MOST_LOSSES:
            reject("losses", self.losses, f"at most {MOST_LOSSES}")
        first, last = check_positive("first_loss", self.first_loss), check_positive("last_loss", self.last_loss)
        if not LOWEST_LOSS <= last <= 0.99 * first:
            allowed = f"from {LOWEST_LOSS:g}, whose time float64 can hold, to 0.99 first_loss = {0.99 * first:g}"
            reject("last_loss", last, allowed)
        lowest = min(self.setting(M).initial_loss for M in self.M)
        if self.first_loss >= lowest:
            raise RangeError(
                f"first_loss must be below ln M = {lowest:.6g}, where training starts, got {self.first_loss}"
            )

    def setting(self, M: int) -> Setting:
        """The sizes with M classes."""
        return Setting(m=self.m, n=self.n, b=self.b, M=M)

    @property
    def levels(self) -> np.ndarray:
        """The stop losses, falling."""
        return np.geomspace(self.first_loss, self.last_loss, self.losses)


PROTOCOLS = {
    "reference": Config(),
    "as_coded": Config(M=(20,)),
    "as_written": Config(M=(5,)),
    "quick": Config(losses=9),
}


def run(config: Config) -> "pd.DataFrame":
    """One row for each M, r and stop loss: time in t and in the notebook's t min(1, r), the state, and diffrax beside it."""
    import pandas as pd

    tables = []
    for M in config.M:
        setting = config.setting(M)
        for r in config.r:
            exact = at_loss(setting, r, config.levels)
            flow = integrate(setting, r, exact.t)
            both = {"mu_ov": exact.mu_ov, "mu_qk": exact.mu_qk, "alpha": exact.alpha}
            columns = {"M": M, "r": r, "loss": config.levels, "t": exact.t, "tau": exact.t * min(1.0, r)} | both
            columns |= {f"{name}_diffrax": getattr(flow, name) for name in both} | {"loss_diffrax": flow.loss}
            tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def draw(frame: "pd.DataFrame", folder: Path) -> list[Path]:
    """Draw the panels to fig4.png."""
    return [canvas.save(draw_growth(frame), folder / "fig4.png")]


def show(frame: "pd.DataFrame") -> None:
    """Print the state at the last loss, the largest distance from diffrax, and the published lines."""
    from rich.console import Console
    from rich.table import Table

    out = Table(title=f"State at loss {frame['loss'].min():g}; in brackets the published output (M = 20)")
    for column in ("M", "r", "t", "t min(1, r)", "mu_OV", "mu_QK", "alpha", "closed form against diffrax"):
        out.add_column(column, justify="right")
    for key, part in frame.groupby(["M", "r"], sort=False):
        M, r = cast(tuple[int, float], key)
        last = part.sort_values("loss").iloc[0].to_dict()
        names = ("mu_ov", "mu_qk", "alpha", "loss")
        worst = max(np.abs(part[f"{name}_diffrax"].to_numpy() / part[name].to_numpy() - 1).max() for name in names)
        numbers = [last["tau"], last["mu_ov"], last["mu_qk"], last["alpha"]]
        formats = ("{:.5g}", "{:.3f}", "{:.3f}", "{:.3f}")
        cells = [form.format(value) for form, value in zip(formats, numbers, strict=True)]
        if M == 20 and r in PUBLISHED and np.isclose(last["loss"], 1e-4):
            cells = [f"{cell} ({value:g})" for cell, value in zip(cells, PUBLISHED[r], strict=True)]
        out.add_row(f"{M}", f"{r:g}", f"{last['t']:.5g}", *cells, f"{worst:.1e}")
    Console(width=None if sys.stdout.isatty() else 140).print(out)


main = TableExperiment("fig4_growth", __doc__ or "", PROTOCOLS, run, draw, show, check_growth).main

if __name__ == "__main__":
    sys.exit(main_guard(main))

"""The records of Figure 3 as tables: how each arm ends, its curves thinned, and both beside what was published."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.records import Record
from qkdyn.results.summary import mean_and_sd

# Epochs of the thinned curves, and the last.
KEPT = (0, 1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 40, 50, 60, 75, 100, 125, 150, 175, 200, 250, 300, 350, 400, 450, 500)
Points = Sequence[tuple[str, str, float, int, float]]


def over_seeds(record: Record, quantity: str, alpha: float) -> np.ndarray:
    """Curves of one alpha, (seed, epoch)."""
    return np.array([curve[quantity] for curve in record["curves"] if curve["alpha"] == alpha], float)


def form_of(record: Record) -> str:
    """What it is told by in the published figure."""
    return "factorized" if record["arm"]["factorized"] else "collapsed"


def name_of(record: Record) -> str:
    """Of the arm."""
    return f"{form_of(record)}-{'bias' if record['arm']['bias'] else 'plain'}"


def summary_frame(records: Sequence[Record], published: Points) -> pd.DataFrame:
    """One row for each arm and alpha.

    The final loss and its deviation over seeds, the final loss of the first seed, the published one and the relative
    difference of the mean from it; the largest incentive of the mean curve, its epoch, and the incentive at the end.
    """
    printed = {point[1:4]: point[4] for point in published if point[0] == "loss"}
    rows = []
    for record in records:
        for alpha in record["arm"]["alpha"]:
            loss, incentive = (over_seeds(record, quantity, alpha) for quantity in ("loss", "incentive"))
            mean, sd, count = (float(part) for part in mean_and_sd(loss[:, -1]))
            theirs = printed.get((form_of(record), alpha, loss.shape[1] - 1), np.nan)
            curve = incentive.mean(0)
            row = {"arm": name_of(record), "alpha": alpha, "seeds": int(count), "loss": mean, "loss_sd": sd}
            row |= {"loss_first_seed": loss[0, -1], "published": theirs, "difference": mean / theirs - 1}
            peak = {"incentive_peak": curve.max(), "peak_epoch": int(curve.argmax()), "incentive_end": curve[-1]}
            rows.append(row | peak)
    return pd.DataFrame(rows)


def curves_frame(records: Sequence[Record]) -> pd.DataFrame:
    """Mean and deviation over seeds of loss and incentive, at the epochs of `KEPT` and the last."""
    rows = []
    for record in records:
        last = record["arm"]["epochs"]
        for alpha in record["arm"]["alpha"]:
            found = {name: over_seeds(record, name, alpha) for name in ("loss", "incentive")}
            for epoch in sorted({*(epoch for epoch in KEPT if epoch < last), last}):
                row = {"arm": name_of(record), "alpha": alpha, "epoch": epoch}
                for name, values in found.items():
                    mean, sd, _ = mean_and_sd(values[:, epoch])
                    row |= {name: float(mean), f"{name}_sd": float(sd)}
                rows.append(row)
    return pd.DataFrame(rows)


def compared_frame(records: Sequence[Record], published: Points) -> pd.DataFrame:
    """One row for each published value and each arm of its form: theirs, and our mean at the same epoch."""
    rows = []
    for record in records:
        for quantity, form, alpha, epoch, value in published:
            if form != form_of(record) or alpha not in record["arm"]["alpha"] or epoch > record["arm"]["epochs"]:
                continue
            mean = float(over_seeds(record, quantity, alpha)[:, epoch].mean())
            row = {"arm": name_of(record), "quantity": quantity, "alpha": alpha, "epoch": epoch}
            rows.append(row | {"published": value, "ours": mean, "difference": mean / value - 1})
    return pd.DataFrame(rows)


def show(records: Sequence[Record], published: Points) -> None:
    """Print how each arm ends, beside the published losses."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 120)
    first = records[0]["arm"]
    seeds = "one seed" if len(first["seeds"]) == 1 else f"{len(first['seeds'])} seeds, mean ± deviation"
    out = Table(
        title=f"Loss after {first['epochs']} epochs of {first['batches']} steps, {seeds}; incentive to attend more"
    )
    for name in ("arm", "alpha", "loss", "published", "difference", "incentive at most", "at epoch", "at the end"):
        out.add_column(name, justify="left" if name == "arm" else "right")
    rows: list[Any] = list(summary_frame(records, published).itertuples(index=False))
    for row in rows:
        spread = f" ± {row.loss_sd:.2g}" if np.isfinite(row.loss_sd) else ""
        theirs = (f"{row.published:.6f}", f"{row.difference:+.2%}") if np.isfinite(row.published) else ("", "")
        incentive = f"{row.incentive_peak:.3f}", f"{row.peak_epoch}", f"{row.incentive_end:.4f}"
        out.add_row(row.arm, f"{row.alpha:g}", f"{row.loss:.6f}{spread}", *theirs, *incentive)
    console.print(out)

"""The records of arms as tables: a line for each run, for each arm and multiplier, and for each matched loss."""

import sys
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

from qkdyn.metrics.dtap import mean_and_std
from qkdyn.theory.landscape import landscape

MEANS = ("distinct", "query", "loss", "training_loss", "accuracy", "confidence", "acmc", "steps")


def runs_frame(records: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """One row for each run: how it ended and what was measured of it on fresh sequences."""
    rows = [
        {"arm": record["arm"]["name"], "parameterization": record["arm"]["form"]}
        | {name: value for name, value in run.items() if name != "counts"}
        for record in records
        for run in record["runs"]
    ]
    return pd.DataFrame(rows)


def matched_frame(records: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """One row for each run and level that it reached, with what the scalars say where both circuits are collapsed."""
    rows = [
        {"arm": record["arm"]["name"], "parameterization": record["arm"]["form"], "scale": record["arm"]["scale"]}
        | line
        | {"scalars": scalars(record["arm"], line["multiplier"], line["level"])}
        for record in records
        for line in record["matched"]
    ]
    return pd.DataFrame(rows)


def scalars(arm: dict[str, Any], r: float, loss: float) -> float:
    """Attention at a loss by Theorem 1's scalars from zero, for collapsed circuits; NaN for the others.

    What the theory covers is put into the ratio: one-hot backgrounds (K = b = 10, so r (1 + b/K) = 2 r) and scores over
    sqrt(50) (r/50). What it does not cover: a query that is attended to and tells the class by itself, counts that vary
    from sequence to sequence, unequal weights within a class, 46 ids that are never labels (all 50 count as classes).
    """
    if arm["form"] != "CACO":
        return float("nan")
    m = (arm["length"] - 2) * 5.5 / 15.5
    return float(landscape(2 * r / 50, loss, odds=m / (arm["length"] - 1 - m), M=50, b=10).alpha)


def percent(record: dict[str, Any], multiplier: float) -> np.ndarray:
    """Heat maps of the runs with this multiplier in percent, (seed, probability bin, attention bin)."""
    counts = np.array([run["counts"] for run in record["runs"] if run["multiplier"] == multiplier], float)
    return 100 * counts / counts.sum((1, 2), keepdims=True)


def arms_frame(records: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """One row for each arm and multiplier: means and standard deviations over seeds, and the row of the heat map on top."""
    rows = []
    for record in records:
        arm = record["arm"]
        for multiplier in arm["multipliers"]:
            own = pd.DataFrame([run for run in record["runs"] if run["multiplier"] == multiplier])
            row: dict[str, Any] = {"arm": arm["name"], "parameterization": arm["form"], "multiplier": multiplier}
            row |= {
                "ramp": arm["ramp"],
                "length": arm["length"],
                "seeds": len(own),
                "stopped": int(own["stopped"].to_numpy().sum()),
            }
            for name in MEANS:
                values = own[name].to_numpy(float)
                row |= {name: values.mean(), f"{name}_sd": values.std(ddof=1) if len(values) > 1 else np.nan}
            row["uniform"] = uniform(arm["length"])
            mean, sd = mean_and_std(percent(record, multiplier))
            for place in range(mean.shape[1]):
                row |= {f"top_{place}": mean[-1, place], f"top_{place}_sd": sd[-1, place]}
            rows.append(row)
    return pd.DataFrame(rows)


def show(records: Sequence[dict[str, Any]]) -> None:
    """Print a line for each arm and multiplier, and attention at matched loss where it was read."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 140)
    out = Table(title="Attention on the class's own tokens, on the query's id, and prediction, on fresh sequences")
    names = ("arm", "circuits", "QK x", "L", "stopped", "steps", "loss", "accuracy", "attention", "uniform", "on query")
    for name in (*names, "attention bins with probability in the top bin, %"):
        out.add_column(name, justify="left" if name in ("arm", "circuits") else "right")
    rows: list[Any] = list(arms_frame(records).itertuples(index=False))
    for row in rows:
        top = " ".join(f"{getattr(row, f'top_{place}'):.1f}" for place in range(5))
        rate = f"{row.multiplier:g}" + (f"-{row.multiplier * row.ramp:g}" if row.ramp != 1 else "")
        cells = (row.arm, row.parameterization, rate, f"{row.length}", f"{row.stopped}/{row.seeds}")
        numbers = (f"{row.steps:,.0f}", f"{row.loss:.4f}", f"{row.accuracy:.3f}")
        where = (
            f"{row.distinct:.3f}±{row.distinct_sd:.3f}",
            f"{uniform(row.length):.3f}",
            f"{row.query:.3f}",
        )
        out.add_row(*map(str, cells), *numbers, *where, top)
    console.print(out)
    frame = matched_frame(records)
    if not len(frame):
        return
    levels = sorted(set(frame["level"]), reverse=True)
    title = "Attention on the class's own tokens / on the query's id [by the scalars] at matched loss, mean over seeds"
    out = Table(title=title)
    for name in ("arm", "QK x", *(f"loss {level:g}" for level in levels)):
        out.add_column(name, justify="left" if name == "arm" else "right")
    for key, part in frame.groupby(["arm", "multiplier"], sort=False):
        arm, multiplier = cast(tuple[str, float], key)
        cells = []
        for level in levels:
            own = part.loc[part["level"] == level, :]
            some = f" ({len(own)})" if 0 < len(own) < len(set(part["seed"])) else ""
            said = own["scalars"].mean() if len(own) else np.nan
            theory = f" [{said:.3f}]" if np.isfinite(said) else ""
            seen = f"{own['distinct'].mean():.3f} / {own['query'].mean():.3f}{theory}{some}"
            cells.append(seen if len(own) else "not reached")
        out.add_row(arm, f"{multiplier:g}", *cells)
    console.print(out)


def uniform(length: int) -> float:
    """Mean of uniform attention on a class's own tokens: (L - 2) gamma / (L - 1), with the share gamma of both laws."""
    return (length - 2) * (5.5 / 15.5) / (length - 1)

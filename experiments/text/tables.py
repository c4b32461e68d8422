"""The records of arms as tables: every quantity of every arm, reading and split, with intervals and paired differences."""

import sys
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from experiments.text.arms import Comparison, Protocol
from experiments.text.collapsed import collapses
from experiments.text.effects import effects_frame
from experiments.text.readings import QUANTITIES, READINGS, SPLITS, Quantity, Record, levels, values
from qkdyn.metrics.intervals import confidence_interval
from qkdyn.metrics.paired import paired_difference
from qkdyn.results.summary import mean_and_sd

KEYS = ("comparison", "arm", "reading", "split", "loss_level")
BESIDE = ("uniform", "random", "position")
COLUMNS = (*KEYS, "claim", "quantity", "mean", "sd", "low", "high", "seeds", "collapsed", *BESIDE)
# As many as a line of a terminal holds.
SHOWN = (
    "accuracy",
    "entropy_marked",
    "top_mass_marked",
    "head_entropy",
    "mrta",
    "auprc",
    "comprehensiveness",
    "sufficiency",
)
COLUMNS += ("change_mean", "change_low", "change_high")


def compared(records: Sequence[Record], protocol: Protocol) -> list[tuple[Comparison, list[Record]]]:
    """The finished arms of each comparison, in its order; comparisons of which none is finished are left out."""
    known = {record["arm"]["name"]: record for record in records}
    found = [(own, [known[name] for name in own.arms if name in known]) for own in protocol.comparisons]
    return [(own, there) for own, there in found if there]


def firsts(records: Sequence[Record], protocol: Protocol) -> dict[str, Record]:
    """The first arm of the comparison that an arm is in, by the arm's name; of the first comparison, if it is in several."""
    found: dict[str, Record] = {}
    for comparison, there in compared(records, protocol):
        if there[0]["arm"]["name"] == comparison.arms[0]:
            found = {record["arm"]["name"]: there[0] for record in there} | found
    return found


def frames(
    records: Sequence[Record], protocol: Protocol, quantities: Sequence[Quantity] = QUANTITIES
) -> dict[str, pd.DataFrame]:
    """All tables of these quantities by the name of their file."""
    long, main = summary_frame(records, protocol, quantities), [own for own in quantities if own.main]
    found = {"summary": long, "table": short_frame(long, main), "costs": costs_frame(records)}
    for comparison, there in compared(records, protocol):
        if comparison.name == "factorial":
            found["effects"] = effects_frame(there, comparison, main)
    return found


def summary_frame(
    records: Sequence[Record], protocol: Protocol, quantities: Sequence[Quantity] = QUANTITIES
) -> pd.DataFrame:
    """One row for each comparison, arm, reading, split and quantity.

    Mean, standard deviation and 95% interval (Student, over `seeds` runs, of which so many `collapsed`), what uniform
    attention, a random ranking and one by position alone would give, and the mean difference from the comparison's first arm,
    paired by seed, with its interval. Under "matched" an arm is read at the `loss_level` that it and the first arm reach, and
    the first arm has rows for each of these levels.
    """
    heads: list[dict[str, Any]] = []
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for comparison, there in compared(records, protocol):
        first = there[0] if there[0]["arm"]["name"] == comparison.arms[0] else None
        for record, reading in product(there, READINGS):
            at = levels(record, first, there) if reading == "matched" else [np.nan]
            for level, split in [(level, split) for level in at for split in SPLITS[reading]]:
                head = {"comparison": comparison.name, "arm": record["arm"]["name"], "reading": reading}
                head |= {"split": split, "loss_level": level, "collapsed": len(collapses(record))}
                for line, own, theirs in _lines(record, first, reading, split, level, quantities):
                    heads.append(head | line)
                    found.append((own, theirs))
    if not found:
        return pd.DataFrame(columns=list(COLUMNS))
    own, theirs = (np.stack(part) for part in zip(*found, strict=True))
    mean, sd, count = mean_and_sd(own)
    _, low, high = confidence_interval(own)
    columns = {"mean": mean, "sd": sd, "low": low, "high": high, "seeds": count}
    changes = paired_difference(own, theirs)
    columns |= {f"change_{name}": part for name, part in zip(changes._fields, changes, strict=True)}
    return pd.DataFrame(heads).assign(**columns).reindex(columns=list(COLUMNS))


def _lines(
    record: Record, first: Record | None, reading: str, split: str, level: float, quantities: Sequence[Quantity]
) -> Iterator[tuple[dict[str, Any], np.ndarray, np.ndarray]]:
    """Each quantity that is known: what it is and stands beside, and its values of this arm and of the first, (seeds,)."""
    for quantity in quantities:
        own = values(record, reading, split, quantity.name, level)
        if not np.isfinite(own).any():
            continue
        line: dict[str, Any] = {"claim": quantity.claim, "quantity": quantity.name} | dict.fromkeys(BESIDE, np.nan)
        if isinstance(quantity.uniform, float):
            line["uniform"] = quantity.uniform
        beside = {"uniform": quantity.uniform} if isinstance(quantity.uniform, str) else {}
        beside |= {"random": "random_auprc", "position": "position_auprc"} if quantity.name.endswith("auprc") else {}
        beside |= {"random": "random_token_f1"} if quantity.name == "token_f1" else {}
        # Most depend on the posts alone and are the same for all runs; ACMC's also on the runs' probabilities.
        line |= {where: mean_of(values(record, reading, split, name)) for where, name in beside.items()}
        theirs = np.full(own.shape, np.nan)
        if first is not None and first is not record:
            theirs = values(first, reading, split, quantity.name, level)
        yield line, own, theirs


def mean_of(own: np.ndarray) -> float:
    """The mean of what is known."""
    return float(mean_and_sd(np.asarray(own, float))[0])


def short_frame(long: pd.DataFrame, main: Sequence[Quantity]) -> pd.DataFrame:
    """One row for each comparison, arm, reading and split: the `main` quantities with half their intervals' widths.

    Beside each what uniform attention and position alone would give, and the difference from the first arm.
    """
    keys, names = list(KEYS), {quantity.name for quantity in main}
    rows = []
    for key, part in long.groupby(keys, sort=False, dropna=False):
        row = dict(zip(keys, key, strict=True)) if isinstance(key, tuple) else {}
        lines: list[Any] = list(part.itertuples(index=False))
        for line in (line for line in lines if line.quantity in names):
            name = line.quantity
            row |= {name: line.mean, f"{name}_ci": line.high - line.mean}
            for beside in BESIDE:
                value = getattr(line, beside)
                row |= {f"{name}_{beside}": value} if np.isfinite(value) else {}
            row |= {f"{name}_change": line.change_mean, f"{name}_change_ci": line.change_high - line.change_mean}
        rows.append(row)
    return pd.DataFrame(rows)


def costs_frame(records: Sequence[Record]) -> pd.DataFrame:
    """One row for each arm: what it took, and how it ended.

    Arms of a group train at once: the time of the group is shared equally by its arms, tokens per second are the group's.
    """
    rows = [
        {
            "arm": record["arm"]["name"],
            "epochs": record["arm"]["epochs"],
            "runs": len(record["runs"]),
            "diverged": sum(run["diverged_at"] is not None for run in record["runs"]),
            "collapsed": len(collapses(record)),
            "group_seconds_per_arm": record["wall_seconds"],
            "group_tokens_per_second": record["tokens_per_second"] or np.nan,
            "training_loss": mean_of(np.array([_last(run) for run in record["runs"]])),
            "best_epoch": mean_of(np.array([(run["best"] or {}).get("epoch", np.nan) for run in record["runs"]])),
        }
        for record in records
    ]
    return pd.DataFrame(rows)


def _last(run: dict[str, Any]) -> float:
    """Training loss of the last epoch."""
    losses = run["epochs"]["training_loss"]
    return np.nan if not losses or losses[-1] is None else float(losses[-1])


def show(
    records: Sequence[Record],
    protocol: Protocol,
    quantities: Sequence[Quantity] = QUANTITIES,
    names: Sequence[str] = SHOWN,
) -> None:
    """Print those of the quantities that have these names, of each comparison after the last epoch, on the test split."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 140)
    known = {quantity.name: quantity for quantity in quantities}
    shown = [known[name] for name in names]
    long = summary_frame(records, protocol, shown)
    for comparison, there in compared(records, protocol):
        out = Table(title=f"{comparison.name}: test split after the last epoch, mean ± half of the 95% interval")
        out.add_column("arm")
        for quantity in shown:
            out.add_column(quantity.short, justify="right")
        part = long.loc[
            (long["comparison"] == comparison.name) & (long["reading"] == "end") & (long["split"] == "test")
        ]
        lines = {(line.arm, line.quantity): line for line in part.itertuples(index=False)}
        for record in there:
            name = record["arm"]["name"]
            cells = [_cell(lines.get((name, quantity.name))) for quantity in shown]
            out.add_row(name, *cells, end_section=record is there[-1])
        for beside, label in (
            ("uniform", "uniform attention"),
            ("random", "random ranking"),
            ("position", "position alone"),
        ):
            own = [part.loc[part["quantity"] == quantity.name, beside].mean() for quantity in shown]
            out.add_row(label, *(f"{value:.3f}" if np.isfinite(value) else "" for value in own))
        console.print(out)


def _cell(line: Any) -> str:
    """A mean with half of its interval."""
    if line is None:
        return "not known"
    half = line.high - line.mean
    return f"{line.mean:.3f}" + (f"±{half:.3f}" if np.isfinite(half) else "")

"""The records of runs as tables: every quantity of every arm, reading and split, with intervals and paired differences."""

import sys
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from experiments.squad.arms import Protocol
from experiments.squad.published import compared_frame
from experiments.squad.readings import NAMED, QUANTITIES, READINGS, SPLITS, by_arm
from experiments.text.arms import Comparison
from experiments.text.readings import Record, levels, values
from qkdyn.figures.squad import WHEN
from qkdyn.metrics.intervals import confidence_interval
from qkdyn.metrics.paired import paired_difference
from qkdyn.results.summary import mean_and_sd

KEYS = ("comparison", "arm", "reading", "split", "loss_level")
COLUMNS = (*KEYS, "claim", "quantity", "mean", "sd", "low", "high", "seeds", "uniform")
COLUMNS += ("change_mean", "change_low", "change_high")
# As many as a line of a terminal holds.
SHOWN = ("f1", "loss", "entropy", "head_entropy", "mass", "ac", "comprehensiveness", "sufficiency")


def compared(arms: Sequence[Record], protocol: Protocol) -> list[tuple[Comparison, list[Record]]]:
    """The arms of each comparison of which a run is finished, in its order; comparisons without any are left out."""
    known = {record["arm"]["name"]: record for record in arms}
    found = [(own, [known[name] for name in own.arms if name in known]) for own in protocol.comparisons]
    return [(own, there) for own, there in found if there]


def frames(records: Sequence[Record], protocol: Protocol) -> dict[str, pd.DataFrame]:
    """All tables by the name of their file."""
    arms = by_arm(records, protocol)
    long = summary_frame(arms, protocol)
    found = {
        "summary": long,
        "table": short_frame(long),
        "costs": costs_frame(records),
        "baselines": baselines_frame(arms),
    }
    if protocol.published:
        found["published"] = compared_frame(arms)
    return found


def title(records: Sequence[Record], protocol: Protocol, name: str) -> str:
    """Protocol, and the sizes of model and data."""
    recipe, data = protocol.recipe, records[0]["data"]
    epochs = " or ".join(map(str, sorted({arm.epochs for arm in protocol.arms})))
    version = "2.0" if any("v2.0" in file for file in data["sha256"]) else "1.1"
    return (
        f"SQuAD v{version}, {name.replace('_', ' ')}: {recipe.n_layers} layers of width {recipe.d_model}, "
        f"{data['vocabulary']:,} tokens; {data['train']:,} training questions (published: 60,000 of v2.0), "
        f"{data['dev']:,} of dev, {epochs} epochs"
    )


def summary_frame(arms: Sequence[Record], protocol: Protocol) -> pd.DataFrame:
    """One row for each comparison, arm, reading, split and quantity.

    Mean, standard deviation and 95% interval (Student, over `seeds` runs), what uniform attention would give, and the mean
    difference from the comparison's first arm, paired by seed, with its interval. Under "matched" an arm is read at the
    `loss_level` that it and the first arm reach, and the first arm has rows for each of these levels.
    """
    heads: list[dict[str, Any]] = []
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for comparison, there in compared(arms, protocol):
        first = there[0] if there[0]["arm"]["name"] == comparison.arms[0] else None
        for record, reading in product(there, READINGS):
            at = levels(record, first, there) if reading == "matched" else [np.nan]
            each = [(level, split, quantity) for level in at for split in SPLITS[reading] for quantity in QUANTITIES]
            for level, split, quantity in each:
                own = values(record, reading, split, quantity.name, level)
                if not np.isfinite(own).any():
                    continue
                theirs = np.full(own.shape, np.nan)
                if first is not None and first is not record:
                    theirs = values(first, reading, split, quantity.name, level)
                head = {"comparison": comparison.name, "arm": record["arm"]["name"], "reading": reading, "split": split}
                head |= {"loss_level": level, "claim": quantity.claim}
                head |= {"quantity": quantity.name, "uniform": uniform(record, reading, split, quantity.name)}
                heads.append(head)
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


def uniform(record: Record, reading: str, split: str, name: str) -> float:
    """What uniform attention would give, mean over runs; NaN where that is not known.

    It depends on the run only by how many tokens it wrote.
    """
    beside = NAMED[name].uniform
    if not isinstance(beside, str):
        return np.nan
    reading = "end" if reading == "matched" else reading
    return float(mean_and_sd(values(record, reading, split, beside))[0])


def short_frame(long: pd.DataFrame) -> pd.DataFrame:
    """One row for each comparison, arm, reading and split: the main quantities with half their intervals' widths."""
    rows = []
    for key, part in long.groupby(list(KEYS), sort=False, dropna=False):
        row = dict(zip(KEYS, key, strict=True)) if isinstance(key, tuple) else {}
        lines: list[Any] = list(part.itertuples(index=False))
        for line in (line for line in lines if NAMED[line.quantity].main):
            name = line.quantity
            row |= {name: line.mean, f"{name}_ci": line.high - line.mean}
            row |= {f"{name}_uniform": line.uniform} if np.isfinite(line.uniform) else {}
            row |= {f"{name}_change": line.change_mean, f"{name}_change_ci": line.change_high - line.change_mean}
        rows.append(row)
    return pd.DataFrame(rows)


def costs_frame(records: Sequence[Record]) -> pd.DataFrame:
    """One row for each run: what it took, and how it ended."""
    rows = []
    for record in records:
        (run,), cost, arm = record["runs"], record["cost"], record["arm"]
        row = {"arm": arm["name"], "seed": arm["seed"], "epochs": arm["epochs"]}
        row |= {"diverged_at": run["diverged_at"], "best_epoch": run["best"]["epoch"]}
        row |= {name: cost[name] for name in ("updates", "tokens", "training", "reading")}
        row |= {"seconds": record["wall_seconds"], "training_seconds": record["training_seconds"]}
        rows.append(row | {"tokens_per_second": record["tokens_per_second"]})
    return pd.DataFrame(rows)


def baselines_frame(arms: Sequence[Record]) -> pd.DataFrame:
    """F1, exact match and loss on dev of answers that need no model."""
    known = next((record["baselines"] for record in arms), {})
    return pd.DataFrame([{"baseline": name, **own} for name, own in known.items()])


def show(records: Sequence[Record], protocol: Protocol, name: str) -> None:
    """Print the main quantities of each comparison on dev."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 140)
    arms = by_arm(records, protocol)
    long = summary_frame(arms, protocol)
    console.print(title(records, protocol, name), soft_wrap=True)
    for comparison, there in compared(arms, protocol):
        out = Table(title=f"{comparison.name}: dev {WHEN[protocol.reading]}, mean ± half of the 95% interval")
        out.add_column("arm", no_wrap=True)
        shown = [NAMED[name] for name in SHOWN]
        for quantity in shown:
            out.add_column(quantity.short, justify="right")
        kept = (
            (long["comparison"] == comparison.name) & (long["reading"] == protocol.reading) & (long["split"] == "dev")
        )
        part = long.loc[kept]
        lines = {(line.arm, line.quantity): line for line in part.itertuples(index=False)}
        for record in there:
            arm = record["arm"]["name"]
            cells = [_cell(lines.get((arm, quantity.name))) for quantity in shown]
            out.add_row(arm, *cells, end_section=record is there[-1])
        flat = [part.loc[part["quantity"] == quantity.name, "uniform"].mean() for quantity in shown]
        out.add_row("uniform attention", *(f"{value:.3f}" if np.isfinite(value) else "" for value in flat))
        console.print(out)
    if len(found := baselines_frame(arms)):
        said = "; ".join(_baseline(line) for line in found.to_dict("records"))
        console.print(f"Without a model, dev: {said}", soft_wrap=True)


def _cell(line: Any) -> str:
    """A mean with half of its interval."""
    if line is None:
        return "not known"
    half = line.high - line.mean
    return f"{line.mean:.3f}" + (f"±{half:.3f}" if np.isfinite(half) else "")


def _baseline(line: dict[str, Any]) -> str:
    known = [f"{name} {line[name]:.3f}" for name in ("f1", "em", "loss") if np.isfinite(line.get(name, np.nan))]
    return f"{line['baseline'].replace('_', ' ')} {', '.join(known)}"

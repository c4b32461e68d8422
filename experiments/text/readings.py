"""What is read off a record: three readings of each run, and the quantities, kept apart by what they are evidence of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkdyn.metrics.curves import area

Record = Mapping[str, Any]
# After the last epoch; after the epoch of best validation accuracy; where the training loss passes a level that all reach.
READINGS = ("end", "best", "matched")
SPLITS = {"end": ("train", "validation", "test"), "best": ("validation", "test"), "matched": ("validation", "test")}
# Attention may be sharper without being so on the relevant tokens, and only where relevant tokens rank first is it both.
PREDICTION, SHARPER, RELEVANT, FAITHFUL = "prediction", "sharper", "sharper on the relevant tokens", "faithful"


@dataclass(frozen=True)
class Quantity:
    """One number of a run.

    Attributes:
        name: in the records.
        claim: what it is evidence of.
        label: in figures and tables.
        uniform: name of the value that uniform attention would give, or the value itself; None where there is none.
        short: in narrow tables; those that have it are the main ones.
    """

    name: str
    claim: str
    label: str
    uniform: str | float | None = None
    short: str = ""

    @property
    def main(self) -> bool:
        """Whether the short tables and figures show it."""
        return bool(self.short)


QUANTITIES = (
    Quantity("accuracy", PREDICTION, "accuracy", short="accuracy"),
    Quantity("macro_f1", PREDICTION, "macro F1"),
    Quantity("loss", PREDICTION, "loss"),
    Quantity("entropy", SHARPER, "entropy of attention, nats", "uniform_entropy", short="entropy"),
    Quantity("entropy_share", SHARPER, "entropy / entropy of uniform attention", 1.0),
    Quantity("top_mass", SHARPER, "mass of the top 20% of tokens", "uniform_top_mass", short="top mass"),
    Quantity("head_entropy", SHARPER, "mean entropy of the heads"),
    Quantity("sharpest_head", SHARPER, "least entropy of a head"),
    Quantity("mrta", RELEVANT, "MRTA, toxic posts", "uniform_mrta", short="MRTA"),
    Quantity("mrta_all", RELEVANT, "MRTA, all posts", "uniform_mrta_all"),
    Quantity("auprc", RELEVANT, "AUPRC of attention", "uniform_auprc", short="AUPRC"),
    Quantity("best_head_mrta", RELEVANT, "largest MRTA of a head", "uniform_mrta"),
    Quantity("best_head_auprc", RELEVANT, "largest AUPRC of a head", "uniform_auprc"),
    Quantity("ac", RELEVANT, "AC, toxic posts, %", "uniform_ac"),
    Quantity("ac_all", RELEVANT, "AC, all posts, %", "uniform_ac_all"),
    Quantity("acmc", RELEVANT, "ACMC, toxic posts, %"),
    Quantity("acmc_all", RELEVANT, "ACMC, all posts, %"),
    Quantity("ac_area", RELEVANT, "area under AC, toxic posts, %"),
    Quantity("acmc_area", RELEVANT, "area under ACMC, toxic posts, %"),
    Quantity("comprehensiveness", FAITHFUL, "comprehensiveness", short="compreh."),
    Quantity("sufficiency", FAITHFUL, "sufficiency", short="suff."),
    Quantity("aopc_comprehensiveness", FAITHFUL, "AOPC comprehensiveness"),
    Quantity("aopc_sufficiency", FAITHFUL, "AOPC sufficiency"),
    Quantity("token_f1", FAITHFUL, "token F1 of the top tokens"),
    Quantity("iou_f1", FAITHFUL, "IOU F1 of the top tokens"),
)
MAIN = tuple(quantity for quantity in QUANTITIES if quantity.main)
NAMED = {quantity.name: quantity for quantity in QUANTITIES}


def number(measured: Mapping[str, Any] | None, name: str) -> float:
    """A quantity of what was measured at one time on one split; NaN where it is not known."""
    if not measured:
        return np.nan
    over_heads = {
        "head_entropy": (np.mean, "entropy"),
        "sharpest_head": (np.min, "entropy"),
        "best_head_mrta": (np.max, "mrta"),
        "best_head_auprc": (np.max, "auprc"),
    }
    if name in over_heads:
        reduce, own = over_heads[name]
        values = [_known(head.get(own)) for head in measured.get("heads") or ()]
        return float(reduce(values)) if values else np.nan
    if name == "position_auprc":
        return max(_known(measured.get(f"{name}_{end}")) for end in ("first", "last"))
    if name.endswith("_area"):
        heights = measured.get(name.replace("_area", "_curve"))
        return float(area(np.array(heights, float))) if heights and None not in heights else np.nan
    return _known(measured.get(name))


def values(record: Record, reading: str, split: str, name: str, level: float = np.nan) -> np.ndarray:
    """A quantity of each run, (seeds,); NaN for a run that diverged before, or never reached `level`.

    Args:
        record: of an arm.
        reading: one of `READINGS`.
        split: train, validation or test.
        name: a quantity, or what stands beside one: its uniform value, or position_auprc.
        level: training loss, for the reading "matched".
    """
    if reading == "matched" and name in NAMED:
        return np.array([at_level(run, split, name, level) for run in record["runs"]])
    # What stands beside a quantity depends on the posts alone, and is with the last epoch.
    reading = "end" if reading == "matched" else reading
    return np.array([number((run[reading] or {}).get(split), name) for run in record["runs"]])


def curve(record: Record, split: str, name: str) -> np.ndarray:
    """A quantity (or training_loss) after each epoch, (seeds, epochs); NaN where a run had diverged.

    Heads are measured at the end and at the best epoch alone: NaN for what is read over them.
    """
    return np.stack([_epochs(run, split, name, record["arm"]["epochs"]) for run in record["runs"]])


def _epochs(run: Mapping[str, Any], split: str, name: str, count: int) -> np.ndarray:
    """A quantity of a run after each of `count` epochs."""
    columns = run["epochs"] if name == "training_loss" else run["epochs"].get(split, {})
    found = np.array(columns.get(name, [None] * count), dtype=object).astype(float)
    return np.append(found, np.full(count - len(found), np.nan))


def matched_level(records: Sequence[Record]) -> float:
    """The least training loss (mean of an epoch's batches) that every run of these arms reaches; NaN if there is none.

    Runs that diverged are left out.
    """
    least = [
        np.nanmin(row)
        for record in records
        for row, run in zip(curve(record, "", "training_loss"), record["runs"], strict=True)
        if run["diverged_at"] is None and np.isfinite(row).any()
    ]
    return float(max(least, default=np.nan))


def at_level(run: Mapping[str, Any], split: str, name: str, level: float) -> float:
    """A quantity where the training loss first passes `level`, interpolated in ln(loss) between two epochs.

    NaN where the loss never does, or did so within the first epoch: what came before it was not measured.
    """
    count = len(run["epochs"]["training_loss"])
    loss, found = _epochs(run, split, "training_loss", count), _epochs(run, split, name, count)
    crossed = np.flatnonzero((loss[1:] <= level) & (loss[:-1] > level))
    if not crossed.size:
        return np.nan
    k = int(crossed[0])
    share = np.log(loss[k] / level) / np.log(loss[k] / loss[k + 1])
    return float(found[k] + share * (found[k + 1] - found[k]))


def _known(value: Any) -> float:
    return np.nan if value is None else float(value)

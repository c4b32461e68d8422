"""What is read off a record: three readings of each run, and the quantities, kept apart by what they are evidence of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkdyn.figures.text_records import (
    FLOORS,
    Run,
    as_numbers,
    measured,
    of_posts,
    over_attractors,
    over_epochs,
    value_of,
)
from qkdyn.metrics.curves import area

Record = Mapping[str, Any]
# After the last epoch; after the epoch of best validation accuracy; where the training loss passes a level that both arms of
# a pair reach.
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
    Quantity("accuracy", PREDICTION, "accuracy, all posts", short="accuracy"),
    Quantity("accuracy_marked", PREDICTION, "accuracy, toxic posts"),
    Quantity("macro_f1", PREDICTION, "macro F1, all posts"),
    Quantity("loss", PREDICTION, "loss, all posts"),
    Quantity(
        "entropy_marked", SHARPER, "entropy of attention, nats, toxic posts", "uniform_entropy_marked", short="entropy"
    ),
    Quantity(
        "top_mass_marked",
        SHARPER,
        "mass of the top 20% of tokens, toxic posts",
        "uniform_top_mass_marked",
        short="top mass",
    ),
    Quantity("entropy", SHARPER, "entropy of attention, nats, all posts", "uniform_entropy", short="entropy, all"),
    Quantity(
        "top_mass", SHARPER, "mass of the top 20% of tokens, all posts", "uniform_top_mass", short="top mass, all"
    ),
    Quantity("entropy_share", SHARPER, "entropy / entropy of uniform attention, all posts", 1.0),
    Quantity(
        "head_entropy", SHARPER, "entropy of a head, mean, nats, all posts", "uniform_entropy", short="head entropy"
    ),
    Quantity(
        "head_top_mass",
        SHARPER,
        "mass of a head's top 20% of tokens, mean, all posts",
        "uniform_top_mass",
        short="head top mass",
    ),
    Quantity(
        "sharpest_head", SHARPER, "entropy of the head sharpest on validation, nats, all posts", "uniform_entropy"
    ),
    Quantity("mrta", RELEVANT, "MRTA, toxic posts", "uniform_mrta", short="MRTA"),
    Quantity("mrta_all", RELEVANT, "MRTA, all posts", "uniform_mrta_all"),
    Quantity("auprc", RELEVANT, "AUPRC of attention, toxic posts", "uniform_auprc", short="AUPRC"),
    Quantity("best_head_mrta", RELEVANT, "MRTA of the head best on validation, toxic posts", "uniform_mrta"),
    Quantity("best_head_auprc", RELEVANT, "AUPRC of the head best on validation, toxic posts", "uniform_auprc"),
    Quantity("ac", RELEVANT, "AC, toxic posts, %", "uniform_ac"),
    Quantity("ac_all", RELEVANT, "AC, all posts, %", "uniform_ac_all"),
    Quantity("acmc", RELEVANT, "ACMC, toxic posts, %", "uniform_acmc"),
    Quantity("acmc_all", RELEVANT, "ACMC, all posts, %", "uniform_acmc_all"),
    Quantity("ac_area", RELEVANT, "area under AC, toxic posts, %", "uniform_ac_area"),
    Quantity("acmc_area", RELEVANT, "area under ACMC, toxic posts, %", "uniform_acmc_area"),
    Quantity("token_f1", RELEVANT, "token F1 of the top tokens, toxic posts", "uniform_token_f1"),
    Quantity("iou_f1", RELEVANT, "IOU F1 of the top tokens, toxic posts", "uniform_iou_f1"),
    Quantity("comprehensiveness", FAITHFUL, "comprehensiveness, all posts", short="compreh."),
    Quantity("sufficiency", FAITHFUL, "sufficiency, all posts", short="suff."),
    Quantity("comprehensiveness_marked", FAITHFUL, "comprehensiveness, toxic posts"),
    Quantity("sufficiency_marked", FAITHFUL, "sufficiency, toxic posts"),
    Quantity("aopc_comprehensiveness", FAITHFUL, "AOPC comprehensiveness, all posts"),
    Quantity("aopc_sufficiency", FAITHFUL, "AOPC sufficiency, all posts"),
)
MAIN = tuple(quantity for quantity in QUANTITIES if quantity.main)
NAMED = {quantity.name: quantity for quantity in QUANTITIES}


# One head is picked on the validation split, by the least or largest of its own numbers, and read on every split.
PICKED = {
    "sharpest_head": (np.nanargmin, "entropy"),
    "best_head_mrta": (np.nanargmax, "mrta"),
    "best_head_auprc": (np.nanargmax, "auprc"),
}


def number(run: Run, reading: str, split: str, name: str) -> float:
    """A quantity of a run after its last epoch ("end") or its best one ("best"), or what stands beside one.

    NaN where it is not known, or where the run had diverged by then.
    """
    known = measured(run, reading, split)
    if name in PICKED:
        pick, own = PICKED[name]
        heads, candidates = (
            as_numbers([head.get(own) for head in there.get("heads") or ()])
            for there in (known, measured(run, reading, "validation"))
        )
        there = len(heads) == len(candidates) and np.isfinite(candidates).any()
        return float(heads[pick(candidates)]) if there else np.nan
    if _of_posts(name):
        known = of_posts(run, split)
    if name == "position_auprc":
        return max(_known(known.get(f"{name}_{end}")) for end in ("first", "last"))
    if name.endswith("_area"):
        heights = known.get(name.replace("_area", "_curve"))
        return float(area(np.array(heights, float))) if heights and None not in heights else np.nan
    return _known(value_of(known, name))


def values(record: Record, reading: str, split: str, name: str, level: float = np.nan) -> np.ndarray:
    """A quantity of each run, (seeds,); NaN for a run that diverged before, or never reached `level`.

    Args:
        record: of an arm.
        reading: one of `READINGS`.
        split: train, validation or test.
        name: a quantity, one over sentences of some numbers of attractors ("accuracy@1+", see `value_of`), or what stands
            beside one: its uniform value, or position_auprc.
        level: training loss, for the reading "matched".
    """
    if name.startswith("uniform_") and "@" in name:
        flat = over_attractors((record.get("baselines") or {}).get(split) or (), name)
        return np.full(len(record["runs"]), _known(flat))
    if reading != "matched":
        return np.array([number(run, reading, split, name) for run in record["runs"]])
    # What depends on the posts alone is with the last epoch; ACMC of uniform attention has the run's probabilities.
    if _of_posts(name):
        return np.array([number(run, "end", split, name) for run in record["runs"]])
    return np.array([at_level(run, split, name, level) for run in record["runs"]])


def curve(record: Record, split: str, name: str) -> np.ndarray:
    """A quantity (or training_loss) after each epoch, (seeds, epochs); NaN where a run had diverged.

    Single heads are measured at the end and at the best epoch alone: NaN for what is read off one.
    """
    return np.stack([over_epochs(run, split, name, record["arm"]["epochs"]) for run in record["runs"]])


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


def levels(record: Record, first: Record | None, there: Sequence[Record]) -> list[float]:
    """The training losses at which an arm of a comparison is read: each arm is matched with the first one alone.

    Args:
        record: the arm.
        first: of the comparison; None where it is not there, and nothing can be matched.
        there: all arms of the comparison.

    Returns:
        The level of the arm and the first one; of the first itself those of all others, each once, falling.
    """
    if first is None:
        return []
    others = [other for other in there if other is not first] if record is first else [record]
    found = {matched_level([first, other]) for other in others}
    return sorted((level for level in found if np.isfinite(level)), reverse=True)


def at_level(run: Run, split: str, name: str, level: float) -> float:
    """A quantity at the time when the training loss first falls to `level`.

    The mean loss of epoch k is that of its centre, k - 1/2, and what is measured after it that of its end, k: the time is
    interpolated in ln(loss) between two centres, then the quantity at that time between the ends of two epochs.

    NaN where the loss is not above the level to begin with, where it never falls to it up to the centre of the last epoch,
    and where it does before the end of the first: what came before that was not measured.
    """
    count = len(run["epochs"]["training_loss"])
    loss, found = (over_epochs(run, split, what, count) for what in ("training_loss", name))
    reached = np.flatnonzero(loss <= level)
    if not reached.size or not reached[0]:
        return np.nan
    after = int(reached[0])
    # Centres: loss[i] is at i + 1/2. Ends: found[i] is at i + 1.
    time = after - 0.5 + np.log(loss[after - 1] / level) / np.log(loss[after - 1] / loss[after])
    if not time >= 1:
        return np.nan
    before = min(int(time), count - 1)
    return float(found[before - 1] + (time - before) * (found[before] - found[before - 1]))


def _of_posts(name: str) -> bool:
    """Whether it depends on the posts alone; ACMC of uniform attention has the run's own probabilities."""
    return name.startswith(FLOORS) and "acmc" not in name


def _known(value: Any) -> float:
    return np.nan if value is None else float(value)

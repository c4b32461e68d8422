"""Printed numbers beside ours: of single runs or a mean with its interval, whatever the data set."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from experiments.text.claims import Estimate
from experiments.text.collapsed import collapses
from experiments.text.readings import Record, curve, values
from qkdyn.figures.text_records import as_numbers, measured
from qkdyn.metrics.intervals import confidence_interval

SPLITS = ("train", "test", "validation")


@dataclass(frozen=True)
class Printed:
    """A printed number: of single runs, or a mean with half of its 95% interval.

    Attributes:
        source: where.
        arm: baseline or faster.
        split: of the posts; what is called test in Table 1 is the validation split, but for MRTA.
        quantity: as the records call it; those they do not have are not measured.
        values: of runs, or one mean.
        half: of the interval, where the mean alone is printed.
        unit: of the last printed digit.
        reading: end, or epoch-10.
        note: what else is to be known.
        summed: not printed itself, but a sum of numbers that are.
    """

    source: str
    arm: str
    split: str
    quantity: str
    values: tuple[float, ...]
    half: float = float("nan")
    unit: float = 1e-4
    reading: str = "end"
    note: str = ""
    summed: bool = False

    @property
    def interval(self) -> tuple[float, float, float]:
        """Mean and ends: as printed, or of the runs; half a unit of the last digit wider."""
        if len(self.values) > 1:
            mean, low, high = (float(part) for part in confidence_interval(np.array(self.values)))
        else:
            mean = float(np.mean(self.values))
            half = 0.0 if np.isnan(self.half) else self.half
            low, high = mean - half, mean + half
        return mean, low - self.unit / 2, high + self.unit / 2


def noted(line: Printed, note: str) -> Printed:
    """The same number with one more note."""
    return replace(line, note="; ".join(filter(None, (line.note, note))))


def compared(records: Sequence[Record], lines: Sequence[Printed], instead: str) -> pd.DataFrame:
    """One row for each printed number: theirs and ours with 95% intervals, and whether these overlap.

    None where ours has no interval. The printed faster arm stands beside ours of that name; where there is none, beside
    the arm `instead`: QK faster and nothing else, which the paper's text says it is.
    """
    arms = {record["arm"]["name"]: record for record in records}
    rows = []
    for line in lines:
        ours_is = instead if line.arm == "faster" and "faster" not in arms else line.arm
        if ours_is not in arms:
            continue
        mean, low, high = line.interval
        own = _ours(arms[ours_is], line)
        ours, ours_low, ours_high = (float(part) for part in confidence_interval(own))
        row = {
            "source": line.source,
            "arm": line.arm,
            "our_arm": ours_is,
            "split": line.split,
            "quantity": line.quantity,
        }
        row |= {"reading": line.reading, "printed": mean, "printed_low": low, "printed_high": high}
        row |= {"ours": ours, "ours_low": ours_low, "ours_high": ours_high, "difference": ours - mean}
        overlap = bool(max(low, ours_low) <= min(high, ours_high)) if np.isfinite(ours_low) else None
        row |= {"intervals_overlap": overlap, "collapsed": len(collapses(arms[ours_is])), "summed": line.summed}
        rows.append(row | {"note": line.note})
    return pd.DataFrame(rows)


def met(frame: pd.DataFrame) -> tuple[int, int]:
    """How many distinct printed numbers have an interval that overlaps ours, and of how many.

    A number may be printed in a table, as runs in a notebook, and again in another notebook: it is one, and counts as met if
    it is wherever it is printed. Sums of printed numbers are not printed.

    Args:
        frame: of `compared`; rows in which ours has no interval do not count.
    """
    known = frame.loc[frame["intervals_overlap"].notna() & ~frame["summed"].astype(bool)]
    each = known.astype({"intervals_overlap": bool}).groupby(["arm", "split", "quantity", "reading"])
    found = each["intervals_overlap"].all()
    return int(found.sum()), len(found)


def _ours(record: Record, line: Printed) -> np.ndarray:
    """The same quantity of our runs."""
    if line.quantity == "training_loss":
        return curve(record, "", "training_loss")[:, -1]
    if line.reading.startswith("epoch-"):
        return curve(record, line.split, line.quantity)[:, int(line.reading.removeprefix("epoch-")) - 1]
    known = [measured(run, "end", line.split) for run in record["runs"]]
    if line.quantity.startswith("dtap_"):
        name, row, column = line.quantity.split(".")
        return as_numbers([m[name][int(row)][int(column)] if m else None for m in known])
    if line.quantity.endswith("_20"):
        name, place = line.quantity.replace("_20", "_curve"), record["shares"].index(0.2)
        return as_numbers([m[name][place] if m else None for m in known])
    if line.quantity.startswith("head_0_"):
        name, margins = line.quantity.removeprefix("head_0_"), ("low", "middle", "high")
        first = [m["heads"][0] if m else None for m in known]
        if name not in margins:
            return as_numbers([head and head[name] for head in first])
        return as_numbers([head and head["bins"][margins.index(name)] for head in first])
    return values(record, "end", line.split, line.quantity)


def printed_line(frame: pd.DataFrame, arm: str, name: str) -> Any:
    """The row of a printed number after the last epoch, or None: of validation, else test, and of single runs if possible."""
    kept = (frame["arm"] == arm) & (frame["quantity"] == name) & (frame["reading"] == "end")
    lines: list[Any] = list(frame.loc[kept & np.isfinite(frame["ours"])].itertuples(index=False))
    # Runs that were printed say more than a mean that was.
    return max(lines, key=lambda line: (SPLITS.index(line.split), "notebook" in line.source), default=None)


def printed_of(line: Any) -> Estimate:
    """The printed number of a row of the comparison with what was published."""
    return Estimate(line.printed, line.printed_low, line.printed_high, 0, 0)


def ours_of(line: Any) -> Estimate:
    """Ours."""
    return Estimate(line.ours, line.ours_low, line.ours_high, 0, 0)

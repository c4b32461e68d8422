"""Tables of subject-verb agreement: accuracy and attention by the number of attractors, and of single heads."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from experiments.text import tables
from experiments.text.arms import Protocol
from experiments.text.readings import PREDICTION, RELEVANT, Quantity, Record
from experiments.text.readings import QUANTITIES as OF_POSTS
from experiments.text.sva_published import compared_frame
from qkdyn.figures.text_records import MASSES, as_numbers, measured, over_attractors
from qkdyn.metrics.intervals import confidence_interval
from qkdyn.metrics.paired import paired_difference
from qkdyn.results.summary import mean_and_sd

# Numbers of attractors; 5 are 5 or more.
NUMBERS = tuple(map(str, range(6)))
GROUPS = (*NUMBERS, "1+", "all")
# Both pooled, the mean of the two, and each. A rule or a model that answers one label more often than before is right more
# often where that label is common, and no more often in the mean of the two.
LABELS = ("both", "balanced", "VBZ", "VBP")
RULES = ("majority", "subject", "inverse")
_SHORT = {("0", "balanced"): "balanced, none", ("1+", "balanced"): "balanced, some"}
_SHORT |= {("1+", "VBZ"): "VBZ, some", ("1+", "VBP"): "VBP, some"}


def _accuracies() -> Iterator[Quantity]:
    """Accuracy by the number of attractors, the labels weighed equally and each alone."""
    for group, label in product((*NUMBERS, "1+"), LABELS[1:]):
        whose = {"0": "no attractor", "1+": "attractors"}.get(group, f"{group} attractors")
        what = "balanced accuracy" if label == "balanced" else f"accuracy on {label}"
        name = f"accuracy@{group}:{label}"
        yield Quantity(name, PREDICTION, f"{what}, {whose}", short=_SHORT.get((group, label), ""))


# Read off every record of this data set, beside what is read off others.
OWN = (
    Quantity("accuracy_natural", PREDICTION, "accuracy, sentences as they come"),
    Quantity("accuracy@0", PREDICTION, "accuracy, no attractor", short="acc., none"),
    Quantity("accuracy@1+", PREDICTION, "accuracy, attractors", short="acc., some"),
    *_accuracies(),
    Quantity("subject@0", RELEVANT, "attention on the subject, no attractor", "uniform_subject@0"),
    Quantity(
        "subject@1+", RELEVANT, "attention on the subject, attractors", "uniform_subject@1+", short="subject, some"
    ),
    Quantity("attractor@1+", RELEVANT, "attention on attractors", "uniform_attractor@1+", short="attractor, some"),
    Quantity("elsewhere@1+", RELEVANT, "attention elsewhere, attractors", "uniform_elsewhere@1+"),
)
QUANTITIES = (*OF_POSTS, *OWN)
SHOWN = ("accuracy", "accuracy@0:balanced", "accuracy@1+:balanced", "entropy_marked", "head_entropy", "mrta", "auprc")
SHOWN += ("subject@1+", "attractor@1+")
_READINGS = ("end", "best")


def frames(records: Sequence[Record], protocol: Protocol) -> dict[str, pd.DataFrame]:
    """All tables by the name of their file."""
    found = tables.frames(records, protocol, QUANTITIES)
    found |= {"agreement": agreement_frame(records, protocol), "heads": heads_frame(records)}
    if protocol.recipe.measured == "last_slot":
        found["published"] = compared_frame(records)
    return found


def cell(record: Record, reading: str, split: str, name: str, label: str = "both") -> np.ndarray:
    """A quantity of each run, (seeds,), over sentences of some numbers of attractors, as "accuracy@1+"; see `value_of`."""
    lines = [measured(run, reading, split).get("agreement") or () for run in record["runs"]]
    return as_numbers([over_attractors(line, name, label) for line in lines])


def rule(record: Record, split: str, name: str, group: str, label: str = "both") -> float:
    """How often one of `RULES` is right; NaN where there is no sentence."""
    lines = (record.get("baselines") or {}).get(split) or ()
    found = over_attractors(lines, f"{name}@{group}", label, rule=True)
    return np.nan if found is None else found


def uniform(record: Record, split: str, name: str, group: str, label: str = "both") -> float:
    """What uniform attention has of one of `MASSES`; NaN where there is no sentence."""
    found = over_attractors((record.get("baselines") or {}).get(split) or (), f"uniform_{name}@{group}", label)
    return np.nan if found is None else found


def count(record: Record, split: str, group: str, label: str = "both", known: bool = False) -> int:
    """Sentences of so many attractors, or those of them of which it is `known` where attractors are.

    Of the label "balanced" those of the rarer label, on which the mean of the two rests.
    """
    if label == "balanced":
        return min(count(record, split, group, own, known) for own in LABELS[2:])
    lines = (record.get("baselines") or {}).get(split) or ()
    inside = (line for line in lines if line["label"] == label)
    return sum(
        line["n_known" if known else "n"]
        for line in inside
        if group == "all" or (line["attractors"] >= 1 if group == "1+" else str(line["attractors"]) == group)
    )


def agreement_frame(records: Sequence[Record], protocol: Protocol) -> pd.DataFrame:
    """One row for each arm, reading, split, label, number of attractors and quantity: accuracy and masses of attention.

    Mean over seeds with its 95% interval, the mean difference from the first arm of the protocol, paired by seed, what
    uniform attention has of each mass, and how often simple rules are right: the commonest label, the subject's own number
    as training has it, and the number that the last noun between subject and verb does not have.
    """
    first = next((record for record in records if record["arm"]["name"] == protocol.arms[0].name), None)
    heads: list[dict[str, Any]] = []
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for record, reading, split in product(records, _READINGS, ("validation", "test")):
        for line, name, label in _lines(record, split):
            own = cell(record, reading, split, name, label)
            theirs = np.full(own.shape, np.nan)
            if first is not None and first is not record:
                theirs = cell(first, reading, split, name, label)
            heads.append({"arm": record["arm"]["name"], "reading": reading, "split": split} | line)
            found.append((own, theirs))
    if not found:
        return pd.DataFrame()
    own, theirs = (np.stack(part) for part in zip(*found, strict=True))
    frame = pd.DataFrame(heads).assign(**_spread(own))
    changes = paired_difference(own, theirs)
    return frame.assign(**{f"change_{name}": part for name, part in zip(changes._fields, changes, strict=True)})


def _lines(record: Record, split: str) -> Iterator[tuple[dict[str, Any], str, str]]:
    """What each row is of and stands beside; the quantity and the label. Masses are not taken apart by label.

    The sentences of a balanced mean are those of the rarer label.
    """
    for group, label, quantity in product(GROUPS, LABELS, ("accuracy", *MASSES)):
        mass = quantity != "accuracy"
        n = count(record, split, group, label, known=mass)
        if not n or (mass and label != "both"):
            continue
        line = {"label": label, "attractors": group, "sentences": n, "quantity": quantity}
        line["uniform"] = uniform(record, split, quantity, group) if mass else np.nan
        line |= {f"rule_{name}": np.nan if mass else rule(record, split, name, group, label) for name in RULES}
        yield line, f"{quantity}@{group}", label


def heads_frame(records: Sequence[Record], split: str = "test") -> pd.DataFrame:
    """One row for each arm, reading, head, number of attractors and place: attention of single heads.

    Heads have no order that runs share: they are put in that of their attention on the subject in the validation split.
    """
    rows, found = [], []
    for record, reading in product(records, _READINGS):
        order = ranked(record, reading)
        for head, group, place in product(range(order.shape[1]), ("0", "1+"), ("subject", "attractor")):
            if (group, place) == ("0", "attractor") or not count(record, split, group, known=True):
                continue
            row = {"arm": record["arm"]["name"], "reading": reading, "split": split, "head": head + 1}
            rows.append(row | {"attractors": group, "place": place, "uniform": uniform(record, split, place, group)})
            found.append(of_heads(record, reading, split, f"{place}@{group}", order[:, head]))
    return pd.DataFrame(rows).assign(**_spread(np.stack(found))) if rows else pd.DataFrame()


def ranked(record: Record, reading: str, name: str = "subject@all") -> np.ndarray:
    """Heads of each run by falling attention in the validation split, (seeds, heads)."""
    heads = [measured(run, reading, "validation").get("heads") or () for run in record["runs"]]
    size = max(map(len, heads), default=0)
    each = [of_heads(record, reading, "validation", name, np.full(len(heads), head)) for head in range(size)]
    if not each:
        return np.zeros((len(heads), 0), int)
    return np.argsort(-np.nan_to_num(np.stack(each, 1), nan=-1.0), axis=1, kind="stable")


def of_heads(record: Record, reading: str, split: str, name: str, heads: np.ndarray) -> np.ndarray:
    """Attention of one head of each run, (seeds,), as "subject@1+"."""
    place, _, group = name.partition("@")
    lines = [measured(run, reading, split).get("agreement") or () for run in record["runs"]]
    each = [over_attractors(line, f"head.{int(head)}.{place}@{group}") for line, head in zip(lines, heads, strict=True)]
    return as_numbers(each)


def _spread(own: np.ndarray) -> dict[str, np.ndarray]:
    """Mean, deviation, interval and number of runs, each (rows,)."""
    mean, sd, seeds = mean_and_sd(own)
    _, low, high = confidence_interval(own)
    return {"mean": mean, "sd": sd, "low": low, "high": high, "seeds": seeds}

"""The paper's tuning: a base rate by validation accuracy, then a multiplier of QK at it; and the attention this chooses."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from experiments.text.arms import Protocol
from experiments.text.claims import change, claims, judged, told
from experiments.text.collapsed import collapsed_lines
from experiments.text.readings import Record, values
from experiments.text.tables import mean_of
from qkdyn.figures.text_records import POSTS, Called
from qkdyn.metrics.intervals import confidence_interval

SHOWN = ("entropy_marked", "top_mass_marked", "head_entropy", "entropy", "top_mass", "mrta", "auprc")


@dataclass(frozen=True)
class Published:
    """What the tuning is said to have chosen on a data set.

    Attributes:
        title: of the data set.
        rate: base rate.
        multiplier: of QK.
        by: quantity of the validation split that chooses.
        reading: after which epoch: "end", the last, as published; or "best", each run's best, as early stopping has it.
    """

    title: str
    rate: float
    multiplier: float
    by: str = "accuracy"
    reading: str = "end"


def whole(records: Sequence[Record]) -> list[Record]:
    """The arms none of whose runs diverged: parameters of one that did are those of an earlier time."""
    return [record for record in records if all(run["diverged_at"] is None for run in record["runs"])]


def sharpest_of(records: Sequence[Record], reading: str = "end") -> Record | None:
    """The arm of least mean entropy on marked instances of the test split; None where it is not known of any whole arm."""
    found = [(mean_of(values(record, reading, "test", "entropy_marked")), record) for record in whole(records)]
    known = [pair for pair in found if np.isfinite(pair[0])]
    return min(known, key=lambda pair: pair[0])[1] if known else None


def best_of(records: Sequence[Record], reading: str = "end", by: str = "accuracy") -> Record | None:
    """The arm of highest mean validation accuracy (`by`); None where every arm has a run that diverged.

    After the last epoch, as the published models are, or ("best") at each run's best epoch.
    """
    score = lambda record: float(values(record, reading, "validation", by).mean())  # noqa: E731
    return max(whole(records), key=score, default=None)


def chosen_group(records: Sequence[Record], protocol: Protocol, published: Published) -> list[str]:
    """Names of the arms to train after the base rates: QK multipliers at the rate that was chosen."""
    base = best_of(base_of(records), published.reading, published.by)
    return [] if base is None else [a.name for a in protocol.arms if a.qk != 1 and a.rate == base["arm"]["rate"]]


def base_of(records: Sequence[Record]) -> list[Record]:
    """The arms that differ in the base rate."""
    return [record for record in records if record["arm"]["qk"] == 1]


def candidates(records: Sequence[Record], published: Published) -> list[Record]:
    """The chosen rate without a multiplier and with each; empty where no rate can be chosen."""
    base = best_of(base_of(records), published.reading, published.by)
    return [] if base is None else [record for record in records if record["arm"]["rate"] == base["arm"]["rate"]]


def tuned_frame(records: Sequence[Record], published: Published) -> pd.DataFrame:
    """One row for each arm: accuracy by which it may be chosen, and the attention that the choice brings along (test)."""
    by, chooses = published.by, published.reading
    chosen = [best_of(base_of(records), chooses, by), best_of(candidates(records, published), chooses, by)]
    rows = []
    for record in records:
        arm = record["arm"]
        row = {"arm": arm["name"], "rate": arm["rate"], "qk": arm["qk"], "epochs": arm["epochs"]}
        row["diverged"] = sum(run["diverged_at"] is not None for run in record["runs"])
        row["chosen"] = any(record is one for one in chosen)
        row["published"] = arm["rate"] == published.rate and arm["qk"] in (1.0, published.multiplier)
        wanted = [(f"validation_accuracy_{reading}", reading, "validation", by) for reading in ("end", "best")]
        wanted += [(name, chooses, "test", name) for name in ("accuracy", *SHOWN)]
        for name, reading, split, quantity in wanted:
            mean, low, _ = (float(part) for part in confidence_interval(values(record, reading, split, quantity)))
            row |= {name: mean, f"{name}_ci": mean - low}
        rows.append(row)
    return pd.DataFrame(rows)


def tuning_verdict(records: Sequence[Record], name: str, published: Published, called: Called = POSTS) -> str:
    """What the tuning chooses, beside what was published, and whether it would have chosen sharper attention."""
    by, chooses = published.by, published.reading
    after = {"end": "after the last epoch", "best": "at each run's best epoch"}
    base = best_of(base_of(records), chooses, by)
    if base is None:
        return f"**{published.title}, tuning ({name})**: every base rate has a run that diverged.\n"
    instead = "best" if chooses == "end" else "end"
    other = best_of(base_of(records), instead, by)
    early = "" if other is None else f"; {after[instead]} it would be {other['arm']['rate']:g}"
    said = [
        f"The base rate of best validation accuracy {after[chooses]} is {base['arm']['rate']:g} (published "
        f"{published.rate:g}){early}."
    ]
    faster = [record for record in candidates(records, published) if record is not base]
    best = best_of(faster, chooses, by)
    if best is not None:
        sharpest = sharpest_of(faster, chooses)
        no = "does not ask for a faster QK that could be told"
        gain = change(best, base, by, chooses, "validation")
        said += [
            f"Of QK multipliers at that rate the best is x{best['arm']['qk']:g} (published "
            f"x{published.multiplier:g}); its validation accuracy is {told(gain)} beside no multiplier, so that validation "
            f"{judged(gain, 'asks for a faster QK', no, no)}.",
            f"Attention of that choice {claims(best, base, chooses, called=called)}.",
        ]
        if sharpest is not None:
            beside = told(change(sharpest, base, by, chooses, "validation"))
            said.append(
                f"Attention is sharpest (least entropy on {called.marked}) at x{sharpest['arm']['qk']:g}, where validation "
                f"accuracy is {beside} beside no multiplier."
            )
    said += collapsed_lines(records, called)
    title = (
        f"**{published.title}, tuning ({name})**: {len(records[0]['runs'])} runs an arm; attention on the test split."
    )
    return "\n".join([title, "", *(f"- {line}" for line in said)]) + "\n"

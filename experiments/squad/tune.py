"""The paper's tuning on SQuAD: a base rate by F1 on the selection questions, then a multiplier of QK at it.

Where no rate answers better than rules that need no model, F1 is that of a few lucky words: the loss chooses instead.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from experiments.squad.arms import BASE, FAST, SLOW
from experiments.squad.readings import whole
from experiments.squad.verdict import contrast, floor
from experiments.text.claims import change, judged, told
from experiments.text.readings import Record, values
from qkdyn.metrics.intervals import confidence_interval
from qkdyn.results.summary import mean_and_sd

SHOWN = ("f1", "loss", "entropy", "head_entropy", "mass", "ac")


def measure_of(records: Sequence[Record]) -> str:
    """By what is chosen: f1, or loss where no base rate has an F1 on the selection questions above that of the best rule."""
    rule = floor(records[0], "f1")
    least = 0.0 if rule is None else records[0]["baselines"][rule]["f1"]
    scores = [mean_and_sd(values(record, "best", "selection", "f1"))[0] for record in whole(base_of(records))]
    return "f1" if any(score > least for score in scores) else "loss"


def best_of(records: Sequence[Record], by: str, reading: str = "best") -> Record | None:
    """The arm of highest mean F1 (or least loss) on the selection questions; None where all have a run that diverged.

    At each run's best epoch, as the published models are, or after the last one ("end").
    """
    sign = -1 if by == "loss" else 1
    score = lambda record: sign * float(mean_and_sd(values(record, reading, "selection", by))[0])  # noqa: E731
    return max((r for r in whole(records) if np.isfinite(score(r))), key=score, default=None)


def base_of(records: Sequence[Record]) -> list[Record]:
    """The arms that differ in the base rate."""
    return [record for record in records if record["arm"]["qk"] == 1]


def chosen_rate(records: Sequence[Record]) -> float | None:
    """The base rate at which QK multipliers are trained; None where none can be chosen."""
    base = best_of(base_of(records), measure_of(records))
    return None if base is None else base["arm"]["rate"]


def candidates(records: Sequence[Record]) -> list[Record]:
    """The chosen rate without a multiplier and with each; empty where no rate can be chosen."""
    rate = chosen_rate(records)
    return [record for record in records if record["arm"]["rate"] == rate]


def tuned_frame(records: Sequence[Record]) -> pd.DataFrame:
    """One row for each arm: F1 and loss by which it may be chosen, and the attention that the choice brings along (dev)."""
    by = measure_of(records)
    chosen = [best_of(base_of(records), by), best_of(candidates(records), by)]
    rows = []
    for record in records:
        arm = record["arm"]
        row = {"arm": arm["name"], "rate": arm["rate"], "qk": arm["qk"], "epochs": arm["epochs"]}
        row["diverged"] = sum(run["diverged_at"] is not None for run in record["runs"])
        row["chosen"] = any(record is one for one in chosen)
        row["published"] = (arm["rate"], arm["qk"]) in ((BASE, 1.0), (SLOW, FAST))
        wanted = [
            (f"selection_{name}_{at}", at, "selection", name) for name in ("f1", "loss") for at in ("best", "end")
        ]
        wanted += [(name, "best", "dev", name) for name in SHOWN]
        for name, reading, split, quantity in wanted:
            mean, low, _ = (float(part) for part in confidence_interval(values(record, reading, split, quantity)))
            row |= {name: mean, f"{name}_ci": mean - low}
        rows.append(row)
    return pd.DataFrame(rows)


def tuning_verdict(records: Sequence[Record], name: str) -> str:
    """What the tuning chooses, beside what was published, and whether it would have chosen sharper attention."""
    title = f"**SQuAD, tuning ({name.replace('_', ' ')})**"
    by = measure_of(records)
    base = best_of(base_of(records), by)
    if base is None:
        return f"{title}: every base rate has a run that diverged.\n"
    last = best_of(base_of(records), by, "end")
    late = "" if last is None else f"; after the last epoch it would be {last['arm']['rate']:g}"
    said = [
        f"The base rate of {'best F1' if by == 'f1' else 'least loss'} on the selection questions is "
        f"{base['arm']['rate']:g} (published {BASE:g}, in the faster arm {SLOW:g}){late}."
    ]
    if by == "loss":
        said.append("No rate has an F1 above that of the best rule without a model, so that the loss chooses.")
    best = best_of([record for record in candidates(records) if record is not base], by)
    if best is not None:
        no = "does not ask for a faster QK that could be told"
        gain = change(best, base, by, "best", "selection")
        found = (
            judged(gain, "asks for a faster QK", no, no) if by == "f1" else judged(gain, no, "asks for a faster QK", no)
        )
        said += [
            f"Of QK multipliers at that rate the best is x{best['arm']['qk']:g} (published x{FAST:g}); its "
            f"{'F1' if by == 'f1' else 'loss'} is {told(gain)} beside no multiplier, so that selection {found}.",
            f"Attention of that choice, on dev, {contrast(best, base, 'best')}.",
        ]
    runs = len(records[0]["runs"])
    return (
        "\n".join([f"{title}: {runs} {'run' if runs == 1 else 'runs'} an arm.", "", *(f"- {s}" for s in said)]) + "\n"
    )

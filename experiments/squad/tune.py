"""The paper's tuning on SQuAD: a base rate by F1 on the selection questions, then a multiplier of QK at it."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from experiments.squad.arms import BASE, FAST, SLOW
from experiments.squad.readings import whole
from experiments.squad.verdict import contrast
from experiments.text.claims import change, judged, told
from experiments.text.readings import Record, values
from qkdyn.metrics.intervals import confidence_interval
from qkdyn.results.summary import mean_and_sd

SHOWN = ("f1", "loss", "entropy", "head_entropy", "mass", "ac")


def best_of(records: Sequence[Record], reading: str = "best") -> Record | None:
    """The arm of highest mean F1 on the selection questions; None where every arm has a run that diverged.

    At each run's best epoch, as the published models are, or after the last one ("end").
    """
    score = lambda record: float(mean_and_sd(values(record, reading, "selection", "f1"))[0])  # noqa: E731
    return max((r for r in whole(records) if np.isfinite(score(r))), key=score, default=None)


def base_of(records: Sequence[Record]) -> list[Record]:
    """The arms that differ in the base rate."""
    return [record for record in records if record["arm"]["qk"] == 1]


def chosen_rate(records: Sequence[Record]) -> float | None:
    """The base rate at which QK multipliers are trained; None where none can be chosen."""
    base = best_of(base_of(records))
    return None if base is None else base["arm"]["rate"]


def candidates(records: Sequence[Record]) -> list[Record]:
    """The chosen rate without a multiplier and with each; empty where no rate can be chosen."""
    rate = chosen_rate(records)
    return [record for record in records if record["arm"]["rate"] == rate]


def tuned_frame(records: Sequence[Record]) -> pd.DataFrame:
    """One row for each arm: F1 and loss by which it may be chosen, and the attention that the choice brings along (dev)."""
    chosen = [best_of(base_of(records)), best_of(candidates(records))]
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
    base = best_of(base_of(records))
    if base is None:
        return f"{title}: every base rate has a run that diverged.\n"
    last = best_of(base_of(records), "end")
    late = "" if last is None else f"; after the last epoch it would be {last['arm']['rate']:g}"
    said = [
        f"The base rate of best F1 on the selection questions is {base['arm']['rate']:g} (published {BASE:g}, in the faster "
        f"arm {SLOW:g}){late}."
    ]
    best = best_of([record for record in candidates(records) if record is not base])
    if best is not None:
        no = "does not ask for a faster QK that could be told"
        gain = change(best, base, "f1", "best", "selection")
        said += [
            f"Of QK multipliers at that rate the best is x{best['arm']['qk']:g} (published x{FAST:g}); its F1 is {told(gain)} "
            f"beside no multiplier, so that selection {judged(gain, 'asks for a faster QK', no, no)}.",
            f"Attention of that choice, on dev, {contrast(best, base, 'best')}.",
        ]
    runs = len(records[0]["runs"])
    return (
        "\n".join([f"{title}: {runs} {'run' if runs == 1 else 'runs'} an arm.", "", *(f"- {s}" for s in said)]) + "\n"
    )

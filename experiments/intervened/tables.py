"""Tables of all arms: attention at a matched loss beside the plain arm, seed by seed, and what it costs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.intervened.arms import BASELINE
from experiments.records import Record
from qkdyn.metrics.intervals import Interval, confidence_interval
from qkdyn.metrics.paired import paired_difference

RATIO = "ratio"
# What the learning-rate ratio is under another name: rates in time, rates divided by 1 - beta, gradients that are rescaled.
RATES = (
    RATIO,
    "ramp up",
    "ramp down",
    "delayed QK",
    "delayed OV",
    "momentum",
    "gradient of QK rescaled",
)
# Measures of a run at a level: attention is in the setting's own measure, steps is the update at which the loss is reached.
MEASURES = ("attention", "accuracy", "step")
WHERE = ("setting", "form")
# What adds less than this share of what the strongest ratio adds is not called a knob, however narrow its interval.
NOTABLE = 0.02


def where(arm: Mapping[str, Any]) -> tuple[str, str]:
    """Setting and form of an arm: what it is compared within."""
    return arm["setting"], arm["form"]


def is_plain(arm: Mapping[str, Any]) -> bool:
    """Whether this is the arm that the others of its setting and form are compared with."""
    return arm["name"].endswith(f"-{BASELINE}")


def values(record: Record, level: float, measure: str) -> np.ndarray:
    """One value for each seed at a level, (seeds,); NaN of a run that did not reach it."""
    found = []
    for run in record["runs"]:
        line: Any = next((line for line in run["matched"] if line["level"] == level), {})
        value = line.get(measure)
        found.append(math.nan if value is None else value)
    return np.array(found, float)


def arms_frame(records: Sequence[Record]) -> pd.DataFrame:
    """One row for each arm and level.

    Columns: setting, form, family, label, name, r, level, ranked (whether settings are compared at this level), plain, own_rate
    (whether eta_ov or the optimizer is another than the plain arm's, so that updates do not compare), seeds, reached and
    diverged (runs); attention and its 95% interval; change of attention beside the plain arm, paired by seed; steps, and
    steps_ratio beside the plain arm; accuracy and accuracy_change; r_eq, the constant ratio of which the arms of the ratio
    have as much attention (NaN where none has); theory_attention, theory_change, theory_r_eq and theory_error, relative.
    """
    plain = {where(record["arm"]): record for record in records if is_plain(record["arm"])}
    rows = [
        _row(record, level, plain.get(where(record["arm"]))) for record in records for level in record["arm"]["levels"]
    ]
    frame = pd.DataFrame(rows)
    frame["r_eq"] = _equivalents(frame)
    return frame


def ranked_level(levels: Sequence[float]) -> float:
    """The level at which settings are compared: the middle one."""
    return levels[len(levels) // 2]


def _row(record: Record, level: float, plain: Record | None) -> dict[str, Any]:
    arm = record["arm"]
    own = {measure: values(record, level, measure) for measure in MEASURES}
    row = {name: arm[name] for name in (*WHERE, "family", "label", "name", "r")}
    row |= {"level": level, "ranked": level == ranked_level(arm["levels"]), "plain": is_plain(arm)}
    other = plain is not None and any(arm[name] != plain["arm"][name] for name in ("eta_ov", "optimizer"))
    row |= {"own_rate": other, "seeds": len(record["runs"])}
    row["reached"] = int(np.isfinite(own["attention"]).sum())
    row["diverged"] = sum(run["diverged_at"] is not None for run in record["runs"])
    row |= _named("attention", confidence_interval(own["attention"]))
    row |= {name: float(confidence_interval(own[short]).mean) for name, short in (("steps", "step"),)}
    row["accuracy"] = float(confidence_interval(own["accuracy"]).mean)
    nothing = np.full(row["seeds"], np.nan)
    theirs = {m: nothing if plain is None else _matching(record, plain, level, m) for m in MEASURES}
    row |= _named("change", paired_difference(own["attention"], theirs["attention"]))
    row |= _named("steps_ratio", confidence_interval(own["step"] / theirs["step"]))
    row |= _named("accuracy_change", paired_difference(own["accuracy"], theirs["accuracy"]))
    return row | _theory(record, plain, level, row["attention"])


def _matching(record: Record, plain: Record, level: float, measure: str) -> np.ndarray:
    """The plain arm's values in the order of this arm's seeds; NaN of a seed that it lacks."""
    known = dict(zip([run["seed"] for run in plain["runs"]], values(plain, level, measure), strict=True))
    return np.array([known.get(run["seed"], math.nan) for run in record["runs"]], float)


def _named(name: str, interval: Interval) -> dict[str, float]:
    return {name: float(interval.mean), f"{name}_low": float(interval.low), f"{name}_high": float(interval.high)}


def _theory(record: Record, plain: Record | None, level: float, attention: float) -> dict[str, float]:
    """What theory says at a level; NaN where it says nothing."""

    def told(of: Record | None, what: str) -> float:
        line: Any = next((line for line in (of or {}).get("predicted", ()) if line["level"] == level), {})
        value = line.get(what)
        return math.nan if value is None else value

    predicted = told(record, "attention")
    found = {"theory_attention": predicted, "theory_change": predicted - told(plain, "attention")}
    return found | {"theory_r_eq": told(record, "r_eq"), "theory_error": attention / predicted - 1}


def _equivalents(frame: pd.DataFrame) -> np.ndarray:
    """For each row the ratio at which the arms of the ratio have its attention, between them in ln r."""
    found = np.full(len(frame), np.nan)
    groups: Any = frame.groupby([*WHERE, "level"], sort=False)
    for _, own in groups:
        ratios = own[(own["family"] == RATIO) & np.isfinite(own["attention"])].sort_values("r")
        if len(ratios) < 2:
            continue
        # Attention rises with r; where it does not, the first ratio that has as much counts.
        curve = np.maximum.accumulate(ratios["attention"].to_numpy(float))
        logs = np.log(ratios["r"].to_numpy(float))
        attention = own["attention"].to_numpy(float)
        inside = (attention >= curve[0]) & (attention <= curve[-1])
        keep = np.concatenate([[True], np.diff(curve) > 0])
        r_eq = np.exp(np.interp(attention, curve[keep], logs[keep]))
        found[own.index.to_numpy()] = np.where(inside, r_eq, np.nan)
    return found


def ranking(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows at the level at which settings are compared, in each setting and form by how much attention they add."""
    rows: Any = frame[frame["ranked"]]
    order = {place: i for i, place in enumerate(dict.fromkeys(zip(*(frame[name] for name in WHERE), strict=True)))}
    place = [order[place] for place in zip(*(rows[name] for name in WHERE), strict=True)]
    return rows.assign(place=place).sort_values(["place", "change"], ascending=[True, False]).drop(columns="place")


def families(frame: pd.DataFrame) -> pd.DataFrame:
    """For each setting, form and family its strongest arm at the compared level: the one that adds most attention.

    Beside the columns of `arms_frame`: arms (of the family), arms_reached; share, its change over that of the arm of the
    ratio that adds most; sharpens, whether some arm of the family adds a share of at least `NOTABLE` by an interval above 0.
    """
    rows = []
    groups: Any = ranking(frame).groupby(list(WHERE), sort=False)
    for place, own in groups:
        ratio = own.loc[own["family"] == RATIO, "change"].max()
        for family, some in own[~own["plain"]].groupby("family", sort=False):
            known = some[np.isfinite(some["change"])]
            best: Any = (known if len(known) else some).iloc[0]
            row = dict(best) | {"arms": len(some), "arms_reached": len(known)}
            row["share"] = row["change"] / ratio if ratio > 0 else math.nan
            least = NOTABLE * ratio if ratio > 0 else 0.0
            row["sharpens"] = bool(((_low(known) > 0) & (known["change"] >= least)).any())
            rows.append(row | dict(zip(WHERE, place, strict=True)) | {"family": family})
    return pd.DataFrame(rows)


def _low(rows: Any) -> np.ndarray:
    """Lower ends of changes; of a single seed the change itself, which no interval says anything of."""
    return np.where(np.isfinite(rows["change_low"]), rows["change_low"], rows["change"])


def by_rank(found: pd.DataFrame) -> list[str]:
    """Names of families, those first that add most attention beside the strongest ratio, in the mean over settings."""
    mean: Any = found.groupby("family", sort=False)["share"].mean()
    order = mean.sort_values(ascending=False, na_position="last", kind="stable")
    return list(order.index)

"""Tables of all arms: attention at a matched loss beside the plain arm, seed by seed, and what it costs."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.intervened.arms import BASELINE
from experiments.records import Record
from qkdyn.metrics.intervals import Interval, confidence_interval
from qkdyn.metrics.paired import paired_difference

RATIO = "ratio"
# Ratios that change in time.
SCHEDULES = ("ramp up", "ramp down", "delayed QK", "delayed OV")
# Arms under Adam, in whatever place, that have a ratio other than the plain arm's too.
WITH_RATIO = " with another r"
RESCALED = "gradient of QK rescaled"
# Measures of a run at a level: attention is in the setting's own measure, steps is the update at which the loss is reached.
MEASURES = ("attention", "accuracy", "step")
# Of attention on text, beside its mass on what matters: nats, and how well it ranks.
BESIDE = ("entropy", "auprc")
WHERE = ("setting", "form")
# What adds less than this share of what the strongest ratio adds is not called a knob, however narrow its interval.
NOTABLE = 0.02
# Runs from which on an interval says whether a family sharpens.
FEWEST = 3
# (form, attention, loss) to the constant ratio that has this attention there, None where none has.
Exact = Callable[[str, float, float], float | None]


def is_ratio(family: str) -> bool:
    """Whether this is the learning-rate ratio under another name: in time, divided by 1 - beta, or of rescaled gradients."""
    return family in (RATIO, *SCHEDULES, "momentum", RESCALED) or family.endswith(WITH_RATIO)


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


def arms_frame(records: Sequence[Record], exact: Mapping[str, Exact] | None = None) -> pd.DataFrame:
    """One row for each arm and level.

    Columns: setting, form, family, label, name, r, level, ranked (whether settings are compared at this level), plain, kind
    (the plain arm's optimizer, "" where there is none), own_rate (whether eta_ov, the optimizer or, beside the ratio, r is
    another than the plain arm's, so that updates do not compare), seeds, reached and diverged (runs), judged (whether all
    seeds, and enough, compare);
    attention and its 95% interval; change of attention beside the plain arm, paired by seed; beside_fast, that of schedules
    beside the arm of their fastest ratio; steps, and steps_ratio beside the plain arm; accuracy and accuracy_change; entropy
    and auprc (NaN where no run tells them); r_eq, the constant ratio with as much attention, and price, steps beside those of
    this ratio (NaN where the arms of the ratio have no such attention); theory_attention, theory_change, theory_r_eq and
    theory_error, relative; gap, "run" or "theory" where only that one reached the level.

    Args:
        records: of finished arms.
        exact: for each setting that knows, what gives r_eq; the others' is interpolated between arms of the ratio.
    """
    plain, kinds, ratios = {}, {}, {}
    for record in records:
        arm = record["arm"]
        place = where(arm)
        if is_plain(arm):
            plain[place] = record
            kinds[place] = arm["optimizer"]
        if arm["family"] == RATIO:
            ratios[*place, arm["r"]] = record
    rows = []
    for record in records:
        place = where(record["arm"])
        fast = ratios.get((*place, _fastest(record["arm"]))) if record["arm"]["family"] in SCHEDULES else None
        rows += [
            _row(record, level, plain.get(place), fast) | {"kind": kinds.get(place, "")}
            for level in record["arm"]["levels"]
        ]
    frame = pd.DataFrame(rows)
    frame["r_eq"], frame["price"] = _equivalents(frame, exact or {})
    frame["gap"] = _gaps(frame)
    return frame


def _fastest(arm: Mapping[str, Any]) -> float:
    """The largest ratio that an arm's schedules come to."""
    schedule = arm["on"]["qk"]["schedule"]
    return arm["r"] * max(schedule["start"], schedule["end"])


def ranked_level(levels: Sequence[float]) -> float:
    """The level at which settings are compared: the middle one."""
    return levels[len(levels) // 2]


def _row(record: Record, level: float, plain: Record | None, fast: Record | None) -> dict[str, Any]:
    arm, base = record["arm"], record["arm"] if plain is None else plain["arm"]
    own = {measure: values(record, level, measure) for measure in MEASURES}
    row = {name: arm[name] for name in (*WHERE, "family", "label", "name", "r", "optimizer")}
    if arm["r"] != base["r"] and not is_ratio(arm["family"]) and _by_rate_alone(arm, base):
        row["family"] += WITH_RATIO
    row |= {"level": level, "ranked": level == ranked_level(arm["levels"]), "plain": is_plain(arm)}
    other = any(arm[name] != base[name] for name in ("eta_ov", "optimizer"))
    row |= {"own_rate": other or (arm["r"] != base["r"] and not is_ratio(arm["family"])), "seeds": len(record["runs"])}
    row["reached"] = int(np.isfinite(own["attention"]).sum())
    row["diverged"] = sum(run["diverged_at"] is not None for run in record["runs"])
    row |= _named("attention", confidence_interval(own["attention"]))
    row |= {name: float(confidence_interval(own[short]).mean) for name, short in (("steps", "step"),)}
    row["accuracy"] = float(confidence_interval(own["accuracy"]).mean)
    row |= {name: float(confidence_interval(values(record, level, name)).mean) for name in BESIDE}
    theirs = {m: _matching(record, plain, level, m) for m in MEASURES}
    pairs = int(np.isfinite(own["attention"] - theirs["attention"]).sum())
    row["judged"] = pairs == row["seeds"] >= FEWEST
    row |= _named("change", paired_difference(own["attention"], theirs["attention"]))
    row |= _named("beside_fast", paired_difference(own["attention"], _matching(record, fast, level, "attention")))
    row |= _named("steps_ratio", confidence_interval(own["step"] / theirs["step"]))
    row |= _named("accuracy_change", paired_difference(own["accuracy"], theirs["accuracy"]))
    return row | _theory(record, plain, level, row["attention"])


def _matching(record: Record, other: Record | None, level: float, measure: str) -> np.ndarray:
    """The other arm's values in the order of this arm's seeds; NaN of a seed that it lacks."""
    known: dict[int, float] = {}
    if other is not None:
        known = dict(zip([run["seed"] for run in other["runs"]], values(other, level, measure), strict=True))
    return np.array([known.get(run["seed"], math.nan) for run in record["runs"]], float)


def _by_rate_alone(arm: Mapping[str, Any], base: Mapping[str, Any]) -> bool:
    """Whether rates say how fast an arm's circuits move: under another optimizer than the plain arm's, and under Adam."""
    return arm["optimizer"] != base["optimizer"] or arm["optimizer"] in ("adam", "adamw")


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


def _equivalents(frame: pd.DataFrame, exact: Mapping[str, Exact]) -> tuple[np.ndarray, np.ndarray]:
    """For each row the ratio that has its attention, and its updates beside those that this ratio takes.

    Between arms of the ratio ln r and ln(updates) are linear in the logit of attention, as they nearly are where it is rare or
    nearly all.
    """
    r_eq, price = np.full(len(frame), np.nan), np.full(len(frame), np.nan)
    groups: Any = frame.groupby([*WHERE, "level"], sort=False)
    for (setting, form, level), own in groups:
        at, attention = own.index.to_numpy(), own["attention"].to_numpy(float)
        ratios = own[(own["family"] == RATIO) & np.isfinite(own["attention"])].sort_values("r")
        if len(ratios) > 1:
            # Attention rises with r; where it does not, the first ratio that has as much counts.
            curve = np.maximum.accumulate(_logit(ratios["attention"].to_numpy(float)))
            keep = np.concatenate([[True], np.diff(curve) > 0])
            x = _logit(attention)
            inside = (x >= curve[0]) & (x <= curve[-1])

            def between(name: str, rows: Any = ratios[keep], x: Any = x, curve: Any = curve[keep]) -> np.ndarray:
                return np.exp(np.interp(x, curve, np.log(rows[name].to_numpy(float))))

            r_eq[at] = np.where(inside, between("r"), np.nan)
            price[at] = np.where(inside, own["steps"].to_numpy(float) / between("steps"), np.nan)
        if setting in exact:
            told = (exact[setting](form, a, level) if np.isfinite(a) else None for a in attention)
            r_eq[at] = [math.nan if value is None else value for value in told]
    return r_eq, price


def _logit(share: np.ndarray) -> np.ndarray:
    share = np.clip(share, 1e-12, 1 - 1e-12)
    return np.log(share / (1 - share))


def _gaps(frame: pd.DataFrame) -> list[str]:
    """Where a run reached a level and theory did not, or the reverse, where there is a theory of arms like it."""
    known: Any = frame[np.isfinite(frame["theory_attention"])]
    told = set(zip(*(known[name] for name in (*WHERE, "optimizer", "level")), strict=True))
    found = []
    for row in frame.to_dict("records"):
        there = (*where(row), row["optimizer"], row["level"]) in told
        run, theory = row["reached"] > 0, math.isfinite(row["theory_attention"])
        found.append("" if not there or run == theory else "run" if run else "theory")
    return found


def ranking(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows at the level at which settings are compared, in each setting and form by how much attention they add."""
    rows: Any = frame[frame["ranked"]]
    order = {place: i for i, place in enumerate(dict.fromkeys(zip(*(frame[name] for name in WHERE), strict=True)))}
    place = [order[place] for place in zip(*(rows[name] for name in WHERE), strict=True)]
    return rows.assign(place=place).sort_values(["place", "change"], ascending=[True, False]).drop(columns="place")


def families(frame: pd.DataFrame) -> pd.DataFrame:
    """For each setting, form and family the arm at the compared level that tells most of it.

    That is the one that adds most attention among those that sharpen it, or else the one whose effect is largest in size.
    An arm sharpens by an interval above 0 and at least `NOTABLE` of what the strongest ratio adds.

    Beside the columns of `arms_frame`: arms (of the family), arms_reached; known, whether an arm has enough runs to judge by;
    share, its change over that of the arm of the ratio that adds most; sharpens, whether some arm does.
    """
    rows = []
    groups: Any = ranking(frame).groupby(list(WHERE), sort=False)
    for place, own in groups:
        seen = own[np.isfinite(own["change"]) & ~own["plain"].astype(bool)]
        most = _judged(seen[seen["family"] == RATIO])["change"].max()
        ratio = most if most > 0 else math.nan
        least = 0.0 if math.isnan(ratio) else NOTABLE * ratio
        for family, some in own[~own["plain"].astype(bool)].groupby("family", sort=False):
            reached = some[np.isfinite(some["change"])]
            known = _judged(reached)
            rising = known[known["judged"].astype(bool) & (known["change_low"] > 0) & (known["change"] >= least)]
            largest = known.loc[known["change"].abs().sort_values(ascending=False, kind="stable").index]
            best: Any = next(rows for rows in (rising, largest, some) if len(rows)).iloc[0]
            row = dict(best) | {"arms": len(some), "arms_reached": len(reached)}
            row |= {"known": bool(known["judged"].any()), "share": row["change"] / ratio, "sharpens": len(rising) > 0}
            rows.append(row | dict(zip(WHERE, place, strict=True)) | {"family": family})
    return pd.DataFrame(rows)


def _judged(rows: Any) -> Any:
    """The arms with enough runs, or all where none has."""
    judged = rows[rows["judged"].astype(bool)]
    return judged if len(judged) else rows


def by_rank(found: pd.DataFrame) -> list[str]:
    """Names of families, those first that add most attention beside the strongest ratio, in the mean over settings."""
    mean: Any = found.groupby("family", sort=False)["share"].mean()
    order = mean.sort_values(ascending=False, na_position="last", kind="stable")
    return list(order.index)

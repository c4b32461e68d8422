"""The two sentences, of gradient descent and of Adam, and the line of prices; the records choose their words."""

import math
from typing import Any

import numpy as np

from experiments.intervened.tables import FEWEST, RATIO, RESCALED, WHERE, by_rank, is_ratio
from experiments.intervened.words import listed, of_family, places, plural, signed, times

# pandas: what indexing gives is not known to checkers of types.
Frame = Any
# A family is as strong as the ratio where it adds at least so much of what the strongest ratio adds.
AS_STRONG = 0.5
# Theory is met where attention is no further off.
CLOSE = 0.02
# Updates no further apart are as many.
AS_MANY = 0.05
KINDS = {"sgd": "gradient descent", "adam": "Adam", "adamw": "AdamW"}


def verdict(frame: Frame, found: Frame) -> str:
    """One sentence for each optimizer that settings are trained by.

    Args:
        frame: `arms_frame` of the finished arms.
        found: its `families`.
    """
    if found.empty or not np.isfinite(found["change"]).any():
        return (
            "**No run of an intervention can be compared with a plain one**: either the plain runs or all others are missing, "
            "have diverged or reached no loss at which they are read. Train the arms that are missing, or lower the rates."
        )
    kinds = [kind for kind in KINDS if (frame["kind"] == kind).any()]
    return " ".join(_sentence(kind, frame[frame["kind"] == kind], found[found["kind"] == kind]) for kind in kinds)


def _sentence(kind: str, frame: Frame, found: Frame) -> str:
    others: Any = found[~found["family"].map(is_ratio)] if len(found) else found
    under = f"Under {KINDS[kind]} ({listed(list(dict.fromkeys(frame['setting'])))})"
    if others.empty:
        only = f"only rates were varied so far ({plural(frame['name'].nunique(), 'arm')})"
        return f"**{under} {only}**: nothing to compare the ratio with."
    judged: Any = others[others["known"]]
    if judged.empty:
        return f"**{under} nothing can be judged**: no other family has {FEWEST} runs that all compare with plain ones."
    count, raising = judged["family"].nunique(), judged[judged["sharpens"]]
    names = by_rank(raising) if len(raising) else []
    sharpen = "sharpens" if len(names) == 1 else "sharpen"
    many = f"{len(names)} of {count} other families of interventions {sharpen} attention at a matched loss"
    if not np.isfinite(judged["share"]).any():
        return f"**{under} there is no ratio to compare with**: {many}{_theory(frame)}."
    if raising.empty:
        return (
            f"**{under} the learning-rate ratio is special**: none of {count} other families of interventions sharpens "
            f"attention at a matched loss{_gain(kind, frame)}{_theory(frame)}."
        )
    strong = [name for name in names if (of_family(raising, name)["share"] >= AS_STRONG).any()]
    if strong:
        called = listed([f"{name} in the place of SGD" if name in KINDS.values() else name for name in strong])
        at_least = f"in at least one of {plural(len(places(judged)), 'column')} of the table"
        reach = f"{len(strong)} of them to at least {AS_STRONG:.0%} of what the strongest ratio adds there: {called}"
        first = f"**{under} the learning-rate ratio is one of several knobs**{_one_quantity(frame)}"
        return f"{first}: {many} {at_least} ({reach}){_gain(kind, frame)}{_theory(frame)}."
    most: Any = raising.loc[raising["share"].idxmax()]
    by = f"by{'' if len(raising) == 1 else ' at most'} {most['share']:.0%} of what the strongest ratio adds"
    what = listed([f"{name} ({most['label']})" if name == most["family"] else name for name in names])
    first = (
        f"**{under} the learning-rate ratio is nearly alone**: of {count} other families of interventions only {what}"
    )
    return f"{first} {sharpen} attention at a matched loss, {by}{_gain(kind, frame)}{_theory(frame)}."


def _one_quantity(frame: Frame) -> str:
    """What the knobs have in common, where theory is met."""
    told = _errors(frame)
    if not len(told) or told.max() > CLOSE:
        return ""
    known: Any = frame[np.isfinite(frame["theory_error"])]
    where = listed(list(dict.fromkeys(known["setting"])))
    what = "the ratio of the circuits' effective rates or, as start and imbalance do, what these set out from"
    return f"; in {where} they move {what}"


def _theory(frame: Frame) -> str:
    told = _errors(frame)
    if not len(told):
        return ""
    known: Any = frame[np.isfinite(frame["theory_error"])]
    arms = f"{plural(known['name'].nunique(), 'arm')} in {listed(list(dict.fromkeys(known['setting'])))}"
    if told.max() > CLOSE:
        return (
            f", but theory, of effective rates and start alone, is off by up to {told.max():.1%} in attention of {arms}"
        )
    return f", and theory, of effective rates and start alone, gives the attention of {arms} to within {told.max():.1%}"


def _errors(frame: Frame) -> Frame:
    errors = frame["theory_error"].abs()
    return errors[np.isfinite(errors)]


def _gain(kind: str, frame: Frame) -> str:
    """Under Adam: what the gradient of QK does beside its rate."""
    rows: Any = frame[frame["ranked"] & (frame["family"] == RESCALED) & np.isfinite(frame["change"])]
    if kind == "sgd" or len(rows) != 1:
        return ""
    row = rows.iloc[0]
    same: Any = frame[frame["ranked"] & (frame["family"] == RATIO) & np.isfinite(frame["change"])]
    same = same[same["label"].map(lambda label: row["label"].endswith(f" times {label.removeprefix('r = ')}"))]
    if len(same) != 1:
        return ""
    factor, rate = row["label"].rsplit(" ", 1)[-1], same.iloc[0]["change"]
    gained = f"the QK gradient times {factor} adds {signed(row['change'])}"
    return f", and {gained} where its rate times {factor} adds {signed(rate)}"


def prices(found: Frame) -> str:
    """What families that sharpen cost beside the ratio, in updates for as much attention; empty where nothing compares."""
    if found.empty:
        return ""
    raising: Any = found[found["sharpens"] & np.isfinite(found["price"]) & ~found["family"].map(is_ratio)]
    said = []
    for place, own in raising.groupby(list(WHERE), sort=False):
        cheap, even = own["price"] < 1 - AS_MANY, (own["price"] - 1).abs() <= AS_MANY
        parts = []
        for word, rows in (("fewer", own[cheap]), ("as many", own[even]), ("more", own[~cheap & ~even])):
            if len(rows):
                each = [_priced(row) for row in rows.sort_values("price").to_dict("records")]
                parts.append(f"{word} by {listed(each)}")
        said.append(f"{' '.join(map(str, place)).strip()}: {'; '.join(parts)}")
    if not said:
        return ""
    how = "Price of these arms in updates, beside the ratio at equal attention (between its arms"
    return f"{how}; none given beyond them; as many: within {AS_MANY:.0%}). {'. '.join(said)}."


def _priced(row: dict[str, Any]) -> str:
    return f"{row['family']} {times(row['price'])}{'*' * bool(row['own_rate'])}"


def unknown(found: Frame) -> list[str]:
    """Families that are left out of the counts, with why: a line for each optimizer."""
    said = []
    for kind, own in found.groupby("kind", sort=False) if len(found) else ():
        if kind not in KINDS:
            said.append(f"Not counted: {listed(places(own))}, whose plain arm is missing.")
            continue
        rows = own[~own["family"].map(is_ratio)]
        names = []
        for name in dict.fromkeys(rows["family"]):
            some = of_family(rows, name)
            if not some["known"].any():
                few = any(math.isfinite(change) for change in some["change"])
                names.append(f"{name} ({'too few runs' if few else 'no run that compares'})")
        if names:
            said.append(f"Not counted under {KINDS[str(kind)]}: {listed(names)}.")
    return said

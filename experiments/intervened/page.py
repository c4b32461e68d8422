"""The page of results: a verdict in two sentences, computed from the records, and the ranked table below it."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.intervened.tables import RATES, RATIO, WHERE, by_rank, families, ranking

# pandas: what indexing gives is not known to checkers of types.
Frame = Any
NONE = "·"
# A family is as strong as the ratio where it adds at least so much of what the strongest ratio adds.
AS_STRONG = 0.5
# Theory is met where attention is no further off.
CLOSE = 0.02


def page(frame: pd.DataFrame) -> str:
    """The page as Markdown: two sentences, a table of families, what theory says, and what was not reached.

    Args:
        frame: `arms_frame` of the finished arms.
    """
    found = families(frame)
    parts = [
        "# Interventions beside the learning-rate ratio",
        _verdict(frame, found),
        _how(frame),
        _table(found),
        *[f"- {line}" for line in (*_beside_theory(frame), *_adam(frame), *_left_out(frame))],
    ]
    text = "\n\n".join(part for part in parts if part and not part.startswith("- "))
    lines = "\n".join(part for part in parts if part.startswith("- "))
    return f"{text}\n\n{lines}\n" if lines else f"{text}\n"


def arms_table(frame: pd.DataFrame) -> str:
    """All arms as Markdown, in each setting by how much attention they add."""
    head = "| setting | what | attention | added [95%] | as r = | theory adds | steps | accuracy | runs |"
    lines = [head, "|" + " --- |" * 9]
    for row in ranking(frame).to_dict("records"):
        place = f"{row['setting']} {row['form']}"
        runs = f"{row['reached']} of {row['seeds']}" + (f", {row['diverged']} diverged" if row["diverged"] else "")
        lines.append(
            f"| {place} | {row['family']}: {row['label']} | {_number(row['attention'], '.3f')} | "
            f"{_interval(row, 'change')} | {_number(row['r_eq'], '.3g')} | {_number(row['theory_change'], '+.3f')} | "
            f"{_times(row['steps_ratio'])}{'*' * bool(row['own_rate'])} | {_number(row['accuracy'], '.3f')} | {runs} |"
        )
    return "\n".join(lines) + "\n"


def _verdict(frame: Frame, found: Frame) -> str:
    """The two sentences."""
    if found.empty or not np.isfinite(found["change"]).any():
        return (
            "**No run of an intervention can be compared with a plain one**: either the plain runs or all others have "
            "diverged or reached no loss at which they are read. Lower the rates, or train the arms that are missing."
        )
    others: Any = found[~found["family"].isin(RATES)]
    if others.empty:
        return f"**Only rates were varied so far** ({frame['name'].nunique()} arms): nothing to compare the ratio with."
    names, raising = list(dict.fromkeys(others["family"])), others[others["sharpens"]]
    if raising.empty:
        first = f"**The learning-rate ratio is special**: none of {len(names)} other families of interventions sharpens"
        return f"{first} attention at a matched loss, in {_listed(list(dict.fromkeys(_places(found))))}."
    everywhere = [name for name in by_rank(raising) if _of(others, name)["sharpens"].all()]
    count = raising["family"].nunique()
    first = (
        f"**The learning-rate ratio is one of several knobs**: {count} of {len(names)} other families of interventions sharpen "
        f"attention at a matched loss too, {len(everywhere)} of them in every setting where they were tried"
    )
    strong = [name for name in by_rank(raising) if (_of(raising, name)["share"] >= AS_STRONG).any()]
    much = f"{AS_STRONG:.0%} of what the strongest ratio adds"
    reach = f"; at least {much} is reached by {_listed(strong)}" if strong else f"; none of them reaches {much}"
    known = np.isfinite(raising["share"]).any()
    return f"{first}{reach if known else ''}. {_second(frame, found, raising)}"


def _second(frame: Frame, found: Frame, raising: Frame) -> str:
    """Whether it is one quantity, and what sets the ratio apart: its cost."""
    errors, one = frame["theory_error"].abs(), ""
    told = errors[np.isfinite(errors)]
    if len(told):
        arms = frame.loc[np.isfinite(errors), "name"].nunique()
        within = f"attention of {arms} arms to within {told.max():.1%} (median {told.median():.2%}); "
        one = f"Where there is a theory, of one quantity, the ratio of the circuits' effective rates, it gives {within}"
        if told.max() > CLOSE:
            one = one.replace("it gives", "that quantity alone does not tell all: it gives")
    # Updates compare only between arms of one rate.
    ratio: Any = found[found["family"] == RATIO]
    same: Any = raising[~raising["own_rate"].astype(bool)]
    text = f"{'its' if one else 'Its'} price sets the ratio apart: the strongest takes {_times(ratio['steps_ratio'].median())}"
    text += " the plain arm's updates (median over settings)"
    beside = [_of(same, name).sort_values("share").iloc[-1] for name in by_rank(same)[:3]] if len(same) else []
    if beside:
        at = [f"{row['family']} {_times(row['steps_ratio'])} for {row['change']:+.3f}" for row in beside]
        text += f", {_listed(at)} at the same rates"
    return f"{one}{text}."


def _how(frame: Frame) -> str:
    """How the numbers are to be read."""
    ranked: Any = frame[frame["ranked"]]
    levels = [f"{s} {f} at {level:g}" for s, f, level in _unique(ranked, [*WHERE, "level"])]
    seeds = int(frame["seeds"].max())
    return (
        f"Attention added at a matched loss ({', '.join(levels)}), beside the plain arm (r = 1) seed by seed, {seeds} seeds, "
        "95% Student intervals in the tables. Of each family the arm that adds most, and in brackets the updates that it takes "
        "beside the plain arm (*: at rates or by an optimizer of its own, so that updates do "
        "not compare). Families stand in the order of their share of what the strongest ratio adds, in the mean."
    )


def _table(found: Frame) -> str:
    """Families by rank; one column for each setting and form."""
    if found.empty:
        return ""
    places = list(dict.fromkeys(_places(found)))
    lines = [f"| intervention | {' | '.join(places)} |", "|" + " --- |" * (len(places) + 1)]
    for family in by_rank(found):
        own = {f"{row['setting']} {row['form']}".strip(): row for row in _of(found, family).to_dict("records")}
        lines.append(f"| {family} | {' | '.join(_cell(own.get(place)) for place in places)} |")
    return "\n".join(lines)


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return NONE
    if not math.isfinite(row["change"]):
        return "diverged" if row["diverged"] else "not reached"
    text = f"{row['change']:+.3f} ({_times(row['steps_ratio'])}{'*' * bool(row['own_rate'])})"
    if math.isfinite(row["theory_change"]):
        text += f", theory {row['theory_change']:+.3f}"
    return text


def _beside_theory(frame: Frame) -> list[str]:
    """How far theory is off, by form."""
    said = []
    for place, own in frame.groupby(list(WHERE), sort=False):
        known: Any = own[np.isfinite(own["theory_error"])]
        if len(known):
            worst = known.loc[known["theory_error"].abs().idxmax()]
            where = " ".join(map(str, place)).strip()
            said.append(
                f"Theory, {where}: attention of {known['name'].nunique()} arms at all levels within "
                f"{abs(worst['theory_error']):.2%}, the furthest off {worst['family']}, {worst['label']}."
            )
    return said


def _adam(frame: Frame) -> list[str]:
    """Under Adam a ratio of rates is not a rescaling of gradients."""
    said = []
    for place, own in frame[frame["ranked"]].groupby(list(WHERE), sort=False):
        rows = {short: own[own["name"].str.endswith(f"-{short}")] for short in ("adam-1", "adam-10", "gain-adam")}
        if all(len(row) == 1 and np.isfinite(row["attention"].iloc[0]) for row in rows.values()):
            one, rate, gain = (float(row["attention"].iloc[0]) for row in rows.values())
            said.append(
                f"Adam, {' '.join(map(str, place)).strip()}: attention {one:.3f} at r = 1, {rate:.3f} with the rate of QK "
                f"times 10, {gain:.3f} with its gradient times 10."
            )
    return said


def _left_out(frame: Frame) -> list[str]:
    """Arms of which some run diverged or did not reach the level."""
    rows: Any = frame[frame["ranked"] & (frame["reached"] < frame["seeds"])]
    said = []
    for row in rows.to_dict("records"):
        how = f"{row['diverged']} diverged" if row["diverged"] else "the others ended before"
        what = f"{row['setting']} {row['form']}, {row['family']}, {row['label']}"
        said.append(f"{what}: {row['reached']} of {row['seeds']} runs reached {row['level']:g}; {how}.")
    return said


def _of(found: Frame, family: str) -> Frame:
    rows: Any = found[found["family"] == family]
    return rows


def _places(found: Frame) -> list[str]:
    return [f"{s} {f}".strip() for s, f in zip(*(found[name] for name in WHERE), strict=True)]


def _unique(frame: Frame, names: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(dict.fromkeys(zip(*(frame[name] for name in names), strict=True)))


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _interval(row: dict[str, Any], name: str) -> str:
    if not math.isfinite(row[name]):
        return NONE
    ends = [row[f"{name}_low"], row[f"{name}_high"]]
    brackets = f" [{ends[0]:+.3f}, {ends[1]:+.3f}]" if all(map(math.isfinite, ends)) else ""
    return f"{row[name]:+.3f}{brackets}"


def _number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else NONE


def _times(value: float) -> str:
    return f"{value:.2f} x" if math.isfinite(value) else NONE

"""The page of results: a verdict in two sentences, computed from the records, and the ranked table below it."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.intervened.arms import BASELINE
from experiments.intervened.tables import FEWEST, NOTABLE, RATIO, WHERE, by_rank, families, ranking
from experiments.intervened.verdict import KINDS, Frame, prices, unknown, verdict
from experiments.intervened.words import NONE, interval, number, of_family, places, plural, signed, times

# (r, loss) to attention.
Limit = Callable[[float, float], float]
# So near to all attention the order of arms means nothing.
NEAR_ALL = 0.01
MRTA = (
    "it is MRTA on the test split, the mass on the tokens that annotators marked in toxic posts, at the mean training loss of "
    "an epoch, where the recipe's clip of all gradients to norm 1 acts before a circuit's own"
)
# What attention is in each setting, and the loss at which it is read; each stands alone.
ATTENTION = {
    "orthogonal": "in orthogonal, Theorem 1's task, attention is alpha, the mass on the class tokens, at the exact loss",
    "tokens": "in tokens, Sec. 4's task, it is the mass on the class's own tokens and the query's, at a fixed batch's loss",
    "hatexplain-sgd": f"in hatexplain-sgd {MRTA}; nothing decays but by an arm that says so, and circuits start at Glorot's "
    "size, without which SGD leaves attention uniform; its arms of Adam are AdamW's for all parameters, at two base rates",
    "hatexplain": f"in hatexplain {MRTA}; all arms are AdamW's (whose decay takes at most 0.2% of a weight away: Adam in all "
    "but name) from the recipe's start, 39 times smaller in products than hatexplain-sgd's",
}
# What the columns of arms.md are.
COLUMNS = (
    "what: the family, then the arm; rates of normalization are those of QK and OV, lengths of a step.",
    "attention: the mean over seeds at the matched loss, of the kind that `verdict.md` names; added: beside the plain arm, "
    "paired by seed.",
    "beside its fastest ratio: of schedules, beside the arm that has their largest ratio throughout.",
    "as r =: the smallest constant ratio with as much attention; none outside of what the arms of the ratio have.",
    "steps: updates to the loss, as a multiple of the plain arm's; steps at equal attention: of those of that ratio.",
    "accuracy: a share of 1, entropy of attention in nats, AUPRC how well attention ranks the marked tokens (both on text "
    "alone), at the matched loss; runs: how many of the seeds reached it.",
    "*: at rates or by an optimizer of its own, so that updates do not compare; seeds agree: to all digits.",
)


def page(frame: pd.DataFrame, seconds: float = 0.0, limits: Mapping[tuple[str, str], Limit] | None = None) -> str:
    """The page as Markdown: two sentences, prices, how to read it, a table of families, and what is left to say.

    Args:
        frame: `arms_frame` of the finished arms.
        seconds: that their training took in all; 0 is not said.
        limits: for a setting and form, what gives attention at (r, level) in the limit that Adam has.
    """
    found = families(frame)
    took = (
        [f"Training of {plural(len(set(frame['name'])), 'arm')} took {plural(round(seconds / 60), 'minute')}."]
        if seconds
        else []
    )
    parts = [
        "# Interventions beside the learning-rate ratio",
        verdict(frame, found),
        prices(found),
        _how(frame),
        _table(found),
        "\n".join(
            f"- {line}"
            for line in (*unknown(found), *_beside_theory(frame), *_adam(frame, limits or {}), *_left_out(frame), *took)
        ),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def arms_table(frame: pd.DataFrame) -> str:
    """All arms as Markdown, in each setting by how much attention they add."""
    names = ("setting", "what", "attention", "added [95%]", "beside its fastest ratio", "as r =", "theory adds")
    names += ("theory, as r =", "steps", "steps at equal attention", "accuracy", "entropy", "AUPRC", "runs")
    lines = ["# Every arm", "", *(f"- {line}" for line in COLUMNS), ""]
    lines += [f"| {' | '.join(names)} |", "|" + " --- |" * len(names)]
    for row in ranking(frame).to_dict("records"):
        runs = f"{row['reached']} of {row['seeds']}" + (f", {row['diverged']} diverged" if row["diverged"] else "")
        own = "*" * bool(row["own_rate"])
        cells = (
            f"{row['setting']} {row['form']}",
            f"{row['family']}: {row['label']}",
            number(row["attention"], ".3f"),
            interval(row, "change"),
            interval(row, "beside_fast"),
            number(row["r_eq"], ".3g"),
            signed(row["theory_change"]),
            number(row["theory_r_eq"], ".3g"),
            f"{times(row['steps_ratio'])}{own}",
            f"{times(row['price'])}{own if math.isfinite(row['price']) else ''}",
            number(row["accuracy"], ".3f"),
            number(row["entropy"], ".2f"),
            number(row["auprc"], ".3f"),
            runs,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _how(frame: Frame) -> str:
    """How the numbers are to be read, a line for each thing."""
    ranked: Any = frame[frame["ranked"]]
    levels = [f"{s} {f} at {level:g}" for s, f, level in _unique(ranked, [*WHERE, "level"])]
    seeds = int(frame["seeds"].max())
    same = [place for place, own in ranked.groupby(list(WHERE), sort=False) if _deterministic(own)]
    lines = [
        f"Attention added at a matched loss ({', '.join(levels)}), beside the plain arm (r = 1, nothing done) seed by seed, "
        f"{plural(seeds, 'seed')}, 95% Student intervals in `arms.md`.",
        *(f"{text[0].upper()}{text[1:]}." for name, text in ATTENTION.items() if (frame["setting"] == name).any()),
        f"A family is one kind of intervention at several strengths; it sharpens where an arm adds at least {NOTABLE:.0%} of "
        f"what the strongest ratio adds, by an interval above 0 of at least {FEWEST} runs that all reached the loss. Several "
        "strengths are tried and the best is shown: an interval that hardly leaves 0 may be chance.",
        "Shown is the family's arm that adds most, or, where none sharpens, the one whose effect is largest in size; in "
        "brackets the updates that it takes beside the plain arm (*: at rates or by an optimizer of its own, so that updates "
        "do not compare), then what theory adds and, where it changes, accuracy in points at that loss.",
        f"=: attention within {NEAR_ALL:g} of 1, where order means nothing.",
        "Ramps and delays are schedules of the ratio, momentum and rescaled gradients are the ratio under another name by "
        "gradient descent, and Adam, or under Adam normalization, at another r has both: none counts as another family.",
        "The strength of normalization is a rate, and where both are normalized also their ratio.",
        "Families stand in the order of their share of what the strongest ratio adds, in the mean over columns.",
    ]
    if same:
        lines.insert(1, f"Where seeds agree to all digits the setting is deterministic ({_joined(same)}).")
    return "How to read it:\n\n" + "\n".join(f"- {line}" for line in lines)


def _deterministic(own: Frame) -> bool:
    """Whether seeds of the arms of the ratio agree to all digits."""
    ratio: Any = of_family(own, RATIO)
    width = ratio["attention_high"] - ratio["attention_low"]
    return len(ratio) > 0 and bool((width < 1e-9).all())


def _table(found: Frame) -> str:
    """Families by rank; one column for each setting and form."""
    if found.empty:
        return ""
    names = places(found)
    lines = [f"| intervention | {' | '.join(names)} |", "|" + " --- |" * (len(names) + 1)]
    for family in by_rank(found):
        own = {f"{row['setting']} {row['form']}".strip(): row for row in of_family(found, family).to_dict("records")}
        lines.append(f"| {family} | {' | '.join(_cell(own.get(place)) for place in names)} |")
    return "\n".join(lines)


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return NONE
    if not math.isfinite(row["change"]):
        return "diverged" if row["diverged"] else "not reached" if not row["reached"] else "no plain run"
    text = f"{signed(row['change'])}{'=' * (row['attention'] > 1 - NEAR_ALL)}"
    text += f" ({times(row['steps_ratio'])}{'*' * bool(row['own_rate'])})"
    if math.isfinite(row["theory_change"]):
        text += f", theory {signed(row['theory_change'])}"
    points = 100 * row["accuracy_change"]
    if math.isfinite(points) and abs(points) >= 0.05:
        text += f", accuracy {signed(points, 1)}"
    return text if row["known"] else f"{text}, too few runs"


def _beside_theory(frame: Frame) -> list[str]:
    """How far theory is off, by form, and levels that only one of runs and theory reached."""
    said = []
    for place, own in frame.groupby(list(WHERE), sort=False):
        known: Any = own[np.isfinite(own["theory_error"])]
        if len(known):
            worst = known.loc[known["theory_error"].abs().idxmax()]
            said.append(
                f"Theory, {_joined([place])}: attention of {plural(known['name'].nunique(), 'arm')} at all levels within "
                f"{abs(worst['theory_error']):.2%}, the furthest off {worst['family']}, {worst['label']}."
            )
    for row in frame[frame["gap"] != ""].to_dict("records"):
        which = ("runs", "theory") if row["gap"] == "run" else ("theory", "no run")
        only = f"reached by {which[0]} and not by theory" if row["gap"] == "run" else "reached by theory and by no run"
        said.append(f"{_arm(row)}: {row['level']:g} is {only}.")
    return said


def _adam(frame: Frame, limits: Mapping[tuple[str, str], Limit]) -> list[str]:
    """Under Adam a ratio of rates is not a rescaling of gradients; what its limit of signs has."""
    shorts = [
        ("adam-1", "adam-10", "gain-adam", 10),
        ("plain", "ratio-30", "gain-adamw", 30),
    ]
    said = []
    for place, own in frame[frame["ranked"]].groupby(list(WHERE), sort=False):
        for *ends, factor in shorts:
            rows = [own[own["name"].str.endswith(f"-{short}")] for short in ends]
            if all(len(row) == 1 and np.isfinite(row["attention"].iloc[0]) for row in rows):
                one, rate, gain = (float(row["attention"].iloc[0]) for row in rows)
                first, second, third = (_between(row.iloc[0]) for row in rows)
                under = f"{KINDS[str(rows[0]['optimizer'].iloc[0])]}, {_joined([place])}"
                said.append(
                    f"{under}: attention {one:.3f}{first} at r = 1, {rate:.3f}{second} with the rate of QK times {factor} "
                    f"({signed(rate - one)}), {gain:.3f}{third} with its gradient times {factor} ({signed(gain - one)})."
                )
                if place in limits and ends[0] != BASELINE:
                    level = rows[0]["level"].iloc[0]
                    told = (limits[place](ratio, level) for ratio in (1.0, factor))
                    said[-1] += " Where entries move by their signs alone theory has {:.3f} and {:.3f}.".format(*told)
    return said


def _between(row: Any) -> str:
    """The interval of an arm's attention; nothing where there is none, or nothing to see of it."""
    low, high = row["attention_low"], row["attention_high"]
    return f" [{low:.3f}, {high:.3f}]" if math.isfinite(low) and high - low > 1e-3 else ""


def _left_out(frame: Frame) -> list[str]:
    """Arms of which some run diverged or is not read at the level."""
    rows: Any = frame[frame["ranked"] & (frame["reached"] < frame["seeds"])]
    said = []
    for row in rows.to_dict("records"):
        diverged, others = row["diverged"], row["seeds"] - row["reached"] - row["diverged"]
        how = [f"{diverged} diverged"] if diverged else []
        # Of a run that is stopped by its last level none is left to say which of both it was.
        how += [f"{others} ended before, or were below it before the first reading"] if others > 0 else []
        said.append(
            f"{_arm(row)}: {row['reached']} of {row['seeds']} runs are read at {row['level']:g}; {', '.join(how)}."
        )
    return said


def _arm(row: dict[str, Any]) -> str:
    return f"{row['setting']} {row['form']}, {row['family']}, {row['label']}"


def _joined(found: Sequence[Any]) -> str:
    return ", ".join(" ".join(map(str, place)).strip() for place in found)


def _unique(frame: Frame, names: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(dict.fromkeys(zip(*(frame[name] for name in names), strict=True)))

"""Sentences that the verdicts on all data sets share: titles, where attention ends, pairs of arms, parts of a factorial."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.text.arms import Protocol
from experiments.text.claims import UNITS, alike, change, claims, effect, estimate, names_of, told
from experiments.text.collapsed import without_collapsed
from experiments.text.printed import met, ours_of, printed_line, printed_of
from experiments.text.readings import Record, matched_level, values
from experiments.text.tables import mean_of
from qkdyn.figures.text import words
from qkdyn.figures.text_records import Called

Found = Mapping[str, Record]


def title_of(title: str, name: str, records: Sequence[Record], protocol: Protocol, called: Called) -> str:
    """What the verdict is of, and how its numbers are to be read."""
    recipe, seeds = protocol.recipe, len(protocol.recipe.seeds)
    layers = f", {recipe.n_layers} layers" if recipe.n_layers > 1 else ""
    whose = f", attention of {called.ranked}" if called.marked != called.every else ""
    said = (
        f"**{title}, {name.replace('_', ' ')}{layers}**: {len(records)} of {len(protocol.arms)} arms, "
        f"{seeds} {'run' if seeds == 1 else 'runs'} each; the test split after the last epoch{whose}, unless said."
    )
    if seeds == 1:
        return f"{said} One run has no interval, and no difference can be told from chance."
    return f"{said} Brackets are 95% intervals over seeds, of differences those of pairs of runs of one seed."


def all_diverged(records: Sequence[Record]) -> str:
    """That every run of every arm diverged, of which nothing else can be said; empty where some run did not."""
    if not records or any(run["diverged_at"] is None for record in records for run in record["runs"]):
        return ""
    arms = "the only finished arm" if len(records) == 1 else f"all {len(records)} finished arms"
    return (
        f"**In short.** Every run of {arms} diverged: there is nothing to say of what QK does. Lower the rates, or look at "
        "the training losses in the records."
    )


def as_markdown(title: str, short: str, said: Sequence[str]) -> str:
    """A title, the paragraph that says it in short, and one line for each thing that is said."""
    return "\n".join([title, "", *([short, ""] if short else []), *(f"- {line}" for line in said)]) + "\n"


def data_of(records: Sequence[Record], called: Called) -> list[str]:
    """Notes on the data, and how many instances were cut or emptied."""
    if not records:
        return []
    said, data = list(records[0].get("notes") or ()), records[0]["data"]
    for name, what in (
        ("cut", f"{called.every} cut to the length of the model"),
        ("empty", f"{called.every} that cleaning leaves empty"),
    ):
        counts = ", ".join(f"{split} {n}" for split, n in (data.get(name) or {}).items() if n)
        said += [f"{what}: {counts or 'none'}"] if name in data else []
    return [f"Data: {'; '.join(said)}."] if said else []


def _level(record: Record, name: str) -> str:
    return told(estimate(values(record, "end", "test", name)), sign=False)


def ends(record: Record) -> str:
    """Where attention on marked instances ends, beside what says how much is little."""

    def beside(label: str, name: str) -> str:
        value = mean_of(values(record, "end", "test", name))
        return f"{label} {value:.3f}" if np.isfinite(value) else f"{label} not known"

    flat = "uniform attention"
    return (
        f"entropy {_level(record, 'entropy_marked')} nats ({beside(flat, 'uniform_entropy_marked')}), mass of the top 20% "
        f"{_level(record, 'top_mass_marked')} ({beside(flat, 'uniform_top_mass_marked')}), MRTA {_level(record, 'mrta')} "
        f"({beside(flat, 'uniform_mrta')}) and AUPRC {_level(record, 'auprc')} ({beside('random order', 'random_auprc')}, "
        f"{beside('position alone', 'position_auprc')})"
    )


def pair(first: Record, other: Record, called: Called) -> list[str]:
    """Two arms: where they end, at the best validation epoch, and where the training loss is equal."""
    names = names_of(called)
    name, level = words(other["arm"]["name"]), matched_level([first, other])
    rest = {names[q]: change(other, first, q) for q in ("accuracy", "comprehensiveness", "sufficiency")}
    parts = ", ".join(f"{called} {told(own)}" for called, own in rest.items())
    if alike(*rest.values()):
        parts = f"{', '.join(rest)} do not differ to four decimals"
    at_best = change(other, first, "accuracy", "best")
    best = "equal to four decimals" if alike(at_best) else told(at_best)
    early = claims(other, first, "best", called=called)
    return [
        f"Beside the {first['arm']['name']}, attention of {name} {claims(other, first, called=called)}.",
        f"The {first['arm']['name']} ends at {ends(first)}.",
        f"{name} ends at {ends(other)}.",
        f"The rest: {parts}.",
        f"At each run's best validation epoch {name} {early}; {names['accuracy']} {best}.",
        f"At a training loss of {level:.2f}, {name} {claims(other, first, 'matched', level=level, called=called)}.",
    ]


def printed_beside(line: Any, called: Called, rest: Any = None) -> str:
    """A printed number and ours; and ours without the runs that collapsed, of that line of the comparison without them."""
    name = names_of(called)[line.quantity].partition(" (")[0]
    unit = UNITS.get(line.quantity, "")
    printed = told(printed_of(line), sign=False)
    whose = "" if line.our_arm == line.arm else f" of the {line.arm} arm"
    how = {None: "ours has no interval", True: "they overlap", False: "they do not overlap"}
    overlap = how[line.intervals_overlap]
    if line.collapsed and rest is not None:
        collapsed = f"{line.collapsed} run{'' if line.collapsed == 1 else 's'} that collapsed"
        overlap += f"; without the {collapsed}, {told(ours_of(rest), sign=False)}{unit}, {how[rest.intervals_overlap]}"
    return (
        f"{words(line.our_arm)}, {line.split}, all {called.every}: {name} "
        f"{told(ours_of(line), sign=False)}{unit}, printed{whose} {printed}{unit}; {overlap}."
    )


def shares(effects: pd.DataFrame, name: str, factors: Sequence[str], seeds: int, called: Called) -> str:
    """The total of a factorial, its parts, and the main effects."""

    def each(kind: str) -> str:
        return ", ".join(f"{words(factor)} {told(effect(effects, name, kind, factor, seeds))}" for factor in factors)

    total = told(effect(effects, name, "total", "all", seeds))
    return (
        f"{names_of(called)[name]} {total}{UNITS.get(name, '')}, of it {each('share')} (main effects: {each('main')})"
    )


def interactions(effects: pd.DataFrame, seeds: int, called: Called) -> str:
    """The interactions of two that can be told from 0, the clearest first."""
    kept = effects["quantity"].isin(["entropy_marked", "mrta", "auprc", "accuracy"]) & (
        effects["kind"] == "interaction"
    )
    every: list[Any] = list(effects.loc[kept & np.isfinite(effects["low"])].itertuples(index=False))
    what = (
        "Interactions of two in entropy, MRTA, AUPRC and accuracy (half of what one changes in the effect of the other)"
    )
    if not every:
        return f"{what}: none can be told from 0 without an interval."
    lines = [line for line in every if line.low > 0 or line.high < 0]
    lines.sort(key=lambda line: -abs(line.mean) / max(line.high - line.low, 1e-12))
    told_of = [
        f"{' with '.join(map(words, line.factor.split(' x ')))} in {names_of(called)[line.quantity]} "
        f"{told(effect(effects, line.quantity, 'interaction', line.factor, seeds))}"
        for line in lines[:8]
    ]
    by_chance = f"about {len(every) / 20:.0f} expected by chance were all 0"
    return "; ".join([f"{what}: {len(lines)} of {len(every)} can be told from 0, {by_chance}", *told_of]) + "."


def beside_printed(
    records: Sequence[Record],
    compare: Callable[[Sequence[Record]], pd.DataFrame],
    arms: Sequence[str],
    quantities: Sequence[str],
    ours: str,
    called: Called,
) -> list[str]:
    """The printed numbers that a protocol is to meet, how many it meets, and why it may not.

    Args:
        records: finished arms.
        compare: the printed numbers beside those of arms.
        arms: as printed.
        quantities: that are told one by one.
        ours: in what our runs may differ.
        called: what the instances are.
    """
    frame, rest = compare(records), compare(without_collapsed(records))
    if not len(frame):
        return []
    pairs = [(printed_line(frame, arm, name), printed_line(rest, arm, name)) for arm in arms for name in quantities]
    said = [printed_beside(line, called, own) for line, own in pairs if line is not None]
    number, known = met(frame)
    if not known:
        return [*said, f"One run of ours has no interval to overlap that printed. {ours}"]
    count = (
        f"{number} of {known} distinct printed numbers have an interval that overlaps ours wherever they are printed"
    )
    if bool(frame["collapsed"].to_numpy().any()):
        count += ", without runs that collapsed {} of {}".format(*met(rest))
    return [*said, f"{count}. {ours}"]


def alone(found: Found, pairs: Sequence[tuple[str, str]], called: Called) -> list[str]:
    """Arms beside the first of each pair, of equal epochs, from which they differ in one rate."""
    said = []
    for name, first in pairs:
        if name in found and first in found:
            own, base = found[name], found[first]
            accuracy, epochs = told(change(own, base, "accuracy")), own["arm"]["epochs"]
            text = (
                f"{words(name)} and nothing else, {epochs} epochs: attention {claims(own, base, called=called)}; "
                f"{names_of(called)['accuracy']} {accuracy}."
            )
            said.append(f"{text} It ends at {ends(own)}.")
    return said


def parts_of(
    effects: pd.DataFrame,
    first: str,
    factors: Sequence[str],
    rows: Sequence[tuple[str, Sequence[str]]],
    seeds: int,
    called: Called,
) -> list[str]:
    """What all factors of a factorial do together, introduced by `first`, its parts, and the interactions.

    Args:
        effects: of the factorial.
        first: what is changed together, and for how long.
        factors: their names.
        rows: claims, each with its quantities.
        seeds: runs of an arm.
        called: what the instances are.
    """
    if not len(effects):
        return []
    own = effects.loc[(effects["reading"] == "end") & (effects["split"] == "test")]
    said = [
        f"{first}; the parts that sum to it (what each adds, averaged over the "
        "orders in which they can be added); and their main effects (what each changes, averaged over the settings of the "
        "others):"
    ]
    for claim, names in rows:
        said.append(f"{claim}: " + "; ".join(shares(own, name, factors, seeds, called) for name in names) + ".")
    return ["\n  - ".join(said), interactions(own, seeds, called)]

"""A verdict for each protocol, written from the numbers: what changed, by how much, and what of it is due to what."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.text.arms import BASELINE, COMBINATION, FACTORS, LONG, Protocol
from experiments.text.claims import NAMES, UNITS, change, claims, effect, estimate, told
from experiments.text.effects import effects_frame
from experiments.text.in_short import in_short, ours_of, printed_line, printed_of
from experiments.text.published import compared_frame
from experiments.text.readings import Record, matched_level, values
from experiments.text.tables import compared, mean_of
from qkdyn.figures.text import words

Found = Mapping[str, Record]
# What may differ from the published runs.
OURS = (
    "What may differ from the published runs: the rationale of a training post is one mask in the data used here, the union, "
    "divided by three as if two annotators had marked nothing; the cleaning of the text approximates theirs; the tokens kept "
    "for sufficiency stood in an order that numpy's partition left and that is not known; the printed AC leaves out one seed "
    "of five."
)


def verdict(records: Sequence[Record], protocol: Protocol, name: str) -> str:
    """The verdict as Markdown: a title and one line for each thing that is said.

    Args:
        records: finished arms.
        protocol: theirs.
        name: of the protocol, for the title.
    """
    found = {record["arm"]["name"]: record for record in records}
    recipe, seeds = protocol.recipe, len(protocol.recipe.seeds)
    said = []
    if recipe.measured == "last_slot":
        said += _beside_published(found, recipe.n_layers)
    if len(protocol.comparisons) == 1:
        for _, there in compared(records, protocol):
            if there[0]["arm"]["name"] == BASELINE:
                said += [line for other in there[1:] for line in _pair(there[0], other)]
    else:
        said += _parts(records, protocol)
        said += _beside_baseline(found)
        said += _longer(found)
    said += _data(records)
    layers = f", {recipe.n_layers} layers" if recipe.n_layers > 1 else ""
    title = (
        f"**HateXplain, {name.replace('_', ' ')}{layers}**: {len(records)} of {len(protocol.arms)} arms, "
        f"{seeds} {'run' if seeds == 1 else 'runs'} each; the test split after the last epoch, attention of toxic posts with "
        "rationales, unless said."
    )
    title += (
        " One run has no interval, and no difference can be told from chance."
        if seeds == 1
        else " Brackets are 95% intervals over seeds, of differences those of pairs of runs of one seed."
    )
    short = in_short(records, protocol)
    return "\n".join([title, "", *([short, ""] if short else []), *(f"- {line}" for line in said)]) + "\n"


def _data(records: Sequence[Record]) -> list[str]:
    """Notes on the posts, and how many were cut or emptied."""
    if not records:
        return []
    said, data = list(records[0].get("notes") or ()), records[0]["data"]
    for name, what in (("cut", "posts cut to the length of the model"), ("empty", "posts that cleaning leaves empty")):
        counts = ", ".join(f"{split} {n}" for split, n in (data.get(name) or {}).items() if n)
        said += [f"{what}: {counts or 'none'}"] if name in data else []
    return [f"Data: {'; '.join(said)}."] if said else []


def _level(record: Record, name: str) -> str:
    return told(estimate(values(record, "end", "test", name)), sign=False)


def _ends(record: Record) -> str:
    """Where attention on toxic posts ends, beside what says how much is little."""

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


def _pair(first: Record, other: Record) -> list[str]:
    """Two arms: where they end, at the best validation epoch, and where the training loss is equal."""
    name, level = words(other["arm"]["name"]), matched_level([first, other])
    parts = ", ".join(
        f"{NAMES[q]} {told(change(other, first, q))}" for q in ("accuracy", "comprehensiveness", "sufficiency")
    )
    best = told(change(other, first, "accuracy", "best"))
    return [
        f"Beside the {first['arm']['name']}, attention of {name} {claims(other, first)}.",
        f"The {first['arm']['name']} ends at {_ends(first)}.",
        f"{name} ends at {_ends(other)}.",
        f"The rest: {parts}.",
        f"At each run's best validation epoch {name} {claims(other, first, 'best')}; {NAMES['accuracy']} {best}.",
        f"At a training loss of {level:.2f}, {name} {claims(other, first, 'matched', level=level)}.",
    ]


def _beside_published(found: Found, layers: int) -> list[str]:
    """The printed numbers that the protocol is to meet, and why it may not."""
    frame = compared_frame(list(found.values()), layers)
    if not len(frame):
        return []
    lines = [
        printed_line(frame, arm, name) for arm in (BASELINE, "faster") for name in ("accuracy", "mrta_all", "ac_all")
    ]
    said = [_printed(line) for line in lines if line is not None]
    known = [value for value in frame["intervals_overlap"] if value is not None]
    count = f"Of {len(known)} printed numbers {sum(known)} have an interval that overlaps ours."
    return [*said, f"{count if known else 'One run of ours has no interval to overlap that printed.'} {OURS}"]


def _printed(line: Any) -> str:
    unit = UNITS.get(line.quantity, "")
    printed = told(printed_of(line), sign=False)
    whose = "" if line.our_arm == line.arm else f" of the {line.arm} arm"
    overlap = {None: "ours has no interval", True: "they overlap", False: "they do not overlap"}[line.intervals_overlap]
    return (
        f"{words(line.our_arm)}, {line.split}, all posts: {NAMES[line.quantity].removesuffix(' (all posts)')} "
        f"{told(ours_of(line), sign=False)}{unit}, printed{whose} {printed}{unit}; {overlap}."
    )


def _parts(records: Sequence[Record], protocol: Protocol) -> list[str]:
    """What the published combination changes in ten epochs, and what of it is due to which of its parts."""
    factorial = next(comparison for comparison in protocol.comparisons if comparison.name == "factorial")
    effects = effects_frame(records, factorial)
    if not len(effects):
        return []
    own = effects.loc[(effects["reading"] == "end") & (effects["split"] == "test")]
    seeds = len(protocol.recipe.seeds)
    said = [
        "What the published changes do together in 10 epochs; the parts that sum to it (what each adds, averaged over the "
        "orders in which they can be added); and their main effects (what each changes, averaged over the settings of the "
        "others):"
    ]
    for claim, names in (
        ("sharper", ("entropy_marked", "top_mass_marked", "head_entropy")),
        ("sharper on the relevant tokens", ("mrta", "auprc")),
        ("prediction and faithfulness", ("accuracy", "comprehensiveness")),
    ):
        said.append(f"{claim}: " + "; ".join(_shares(own, name, seeds) for name in names) + ".")
    return ["\n  - ".join(said), _interactions(own, seeds)]


def _shares(effects: pd.DataFrame, name: str, seeds: int) -> str:
    """The total, its parts, and the main effects."""

    def each(kind: str) -> str:
        return ", ".join(f"{words(factor)} {told(effect(effects, name, kind, factor, seeds))}" for factor in FACTORS)

    total = told(effect(effects, name, "total", "all", seeds))
    return f"{NAMES[name]} {total}{UNITS.get(name, '')}, of it {each('share')} (main effects: {each('main')})"


def _interactions(effects: pd.DataFrame, seeds: int) -> str:
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
        f"{' with '.join(map(words, line.factor.split(' x ')))} in {NAMES[line.quantity]} "
        f"{told(effect(effects, line.quantity, 'interaction', line.factor, seeds))}"
        for line in lines[:8]
    ]
    by_chance = f"about {len(every) / 20:.0f} expected by chance were all 0"
    return "; ".join([f"{what}: {len(lines)} of {len(every)} can be told from 0, {by_chance}", *told_of]) + "."


def _beside_baseline(found: Found) -> list[str]:
    """One rate at a time, beside the baseline of equal epochs."""
    said = []
    pairs = [(name, BASELINE) for name in ("qk30", "qk100", "ov30", "all30")] + [("qk30" + LONG, BASELINE + LONG)]
    for name, first in pairs:
        if name in found and first in found:
            own, base = found[name], found[first]
            accuracy, epochs = told(change(own, base, "accuracy")), own["arm"]["epochs"]
            text = (
                f"{words(name)} and nothing else, {epochs} epochs: attention {claims(own, base)}; {NAMES['accuracy']} "
                f"{accuracy}."
            )
            said.append(f"{text} It ends at {_ends(own)}.")
    pair = [found[name + LONG] for name in (BASELINE, "qk30") if name + LONG in found]
    if len(pair) == 2:
        level = matched_level(pair)
        text = claims(pair[1], pair[0], "matched", level=level)
        said.append(f"At a training loss of {level:.2f}, in 30 epochs: {words('qk30')} {text}.")
    return said


def _longer(found: Found) -> list[str]:
    """Thirty epochs instead of ten."""
    said = []
    for name in (BASELINE, "qk30", COMBINATION):
        if name in found and name + LONG in found:
            long, short = found[name + LONG], found[name]
            accuracy, best = told(change(long, short, "accuracy")), told(change(long, short, "accuracy", "best"))
            text = f"Trained 30 epochs instead of 10, {words(name)} {claims(long, short)}; "
            text += f"{NAMES['accuracy']} {accuracy}, "
            said.append(f"{text}at the best validation epoch {best}.")
    return said

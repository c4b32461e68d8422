"""A verdict for each protocol, written from the numbers: what changed, by how much, and what of it is due to what."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.text.arms import BASELINE, COMBINATION, FACTORS, LONG, Protocol
from experiments.text.effects import effects_frame
from experiments.text.published import compared_frame
from experiments.text.readings import Record, matched_level, values
from experiments.text.tables import compared, mean_of
from qkdyn.figures.text import words
from qkdyn.metrics.intervals import Interval, confidence_interval
from qkdyn.metrics.paired import paired_difference

Found = Mapping[str, Record]
UNITS = {"entropy": " nats", "ac_all": "%"}
NAMES = {"top_mass": "mass of the top 20%", "mrta": "MRTA", "mrta_all": "MRTA", "auprc": "AUPRC", "ac_all": "AC"}
OURS = (
    "What may differ from the published runs: the rationales of training posts are the union of the annotators' in the data "
    "used here, not three masks; the cleaning of the text approximates theirs; the printed AC leaves out one seed of five."
)


def verdict(records: Sequence[Record], protocol: Protocol, name: str) -> str:
    """The verdict as Markdown: a title and one line for each thing that is said.

    Args:
        records: finished arms.
        protocol: theirs.
        name: of the protocol, for the title.
    """
    found = {record["arm"]["name"]: record for record in records}
    recipe = protocol.recipe
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
    layers = f", {recipe.n_layers} layers" if recipe.n_layers > 1 else ""
    title = (
        f"**HateXplain, {name.replace('_', ' ')}{layers}**: {len(records)} of {len(protocol.arms)} arms, "
        f"{len(recipe.seeds)} runs each; the test split after the last epoch unless said. Brackets are 95% intervals over "
        "seeds, of differences those of pairs of runs of one seed."
    )
    return "\n".join([title, "", *(f"- {line}" for line in said)]) + "\n"


def claims(other: Record, first: Record, reading: str = "end", split: str = "test", level: float = np.nan) -> str:
    """Whether attention is sharper, whether it is on the relevant tokens, and whether these are ranked better: apart."""
    entropy, top, mrta, auprc = (
        change(other, first, name, reading, split, level) for name in ("entropy", "top_mass", "mrta", "auprc")
    )
    if not np.isfinite(entropy.mean):
        return "cannot be read there"
    sharp = _judged(entropy, "is flatter", "is sharper", "is not sharper or flatter that could be told")
    more = _judged(mrta, "puts more", "puts less", "puts no more that could be told")
    better = _judged(auprc, "ranks them better", "ranks them worse", "ranks them no better that could be told")
    return (
        f"{sharp} (entropy {told(entropy)} nats, mass of the top 20% {told(top)}), {more} on the relevant tokens "
        f"(MRTA {told(mrta)}) and {better} (AUPRC {told(auprc)})"
    )


def change(
    other: Record, first: Record, name: str, reading: str = "end", split: str = "test", level: float = np.nan
) -> Interval:
    """Interval of the mean difference of a quantity, paired by seed."""
    own, theirs = (values(record, reading, split, name, level) for record in (other, first))
    return paired_difference(own, theirs)


def told(interval: Interval, sign: bool = True) -> str:
    """A mean and its interval, to three digits of the mean."""
    mean, low, high = (float(part) for part in interval)
    if not np.isfinite(mean):
        return "not known"
    digits = min(4, max(0, 2 - int(np.floor(np.log10(max(abs(mean), 1e-2))))))
    ends = f" [{low:.{digits}f}, {high:.{digits}f}]" if np.isfinite(low) else ""
    return f"{mean:{'+' if sign else ''}.{digits}f}{ends}"


def _judged(interval: Interval, rises: str, falls: str, neither: str) -> str:
    return rises if interval.low > 0 else falls if interval.high < 0 else neither


def _level(record: Record, name: str, split: str = "test") -> str:
    return told(confidence_interval(values(record, "end", split, name)), sign=False)


def _ends(record: Record) -> str:
    """Where attention on the relevant tokens ends, beside what says how much is little."""
    uniform, chance, position = (
        mean_of(values(record, "end", "test", name)) for name in ("uniform_mrta", "random_auprc", "position_auprc")
    )
    return (
        f"MRTA {_level(record, 'mrta')} (uniform attention {uniform:.3f}) and AUPRC {_level(record, 'auprc')} "
        f"(random order {chance:.3f}, position alone {position:.3f})"
    )


def _pair(first: Record, other: Record) -> list[str]:
    """Two arms: where they end, at the best validation epoch, and where the training loss is equal."""
    name, level = words(other["arm"]["name"]), matched_level([first, other])
    parts = ", ".join(f"{q} {told(change(other, first, q))}" for q in ("accuracy", "comprehensiveness", "sufficiency"))
    best = told(change(other, first, "accuracy", "best"))
    return [
        f"Beside the {first['arm']['name']}, attention of {name} {claims(other, first)}.",
        f"On toxic posts the {first['arm']['name']} ends at {_ends(first)}, {name} at {_ends(other)}.",
        f"The rest: {parts}.",
        f"At each run's best validation epoch {name} {claims(other, first, 'best')}; accuracy {best}.",
        f"At a training loss of {level:.2f}, {name} {claims(other, first, 'matched', level=level)}.",
    ]


def _beside_published(found: Found, layers: int) -> list[str]:
    """The printed numbers that the protocol is to meet, and why it may not."""
    frame = compared_frame(list(found.values()), layers)
    if not len(frame):
        return []
    said = []
    for arm in (BASELINE, "faster"):
        for name in ("accuracy", "mrta_all", "ac_all"):
            kept = (frame["arm"] == arm) & (frame["quantity"] == name) & (frame["reading"] == "end")
            part = frame.loc[kept & (frame["split"] == "validation") & np.isfinite(frame["ours"])]
            lines: list[Any] = list(part.itertuples(index=False))
            if lines:
                # Runs that were printed say more than a mean that was.
                said.append(_printed(arm, name, max(lines, key=lambda line: "notebook" in line.source)))
    known = [value for value in frame["intervals_overlap"] if value is not None]
    return [*said, f"Of {len(known)} printed numbers {sum(known)} have an interval that overlaps ours. {OURS}"]


def _printed(arm: str, name: str, line: Any) -> str:
    unit, agrees = UNITS.get(name, ""), "overlap" if line.intervals_overlap else "do not overlap"
    printed = told(_interval(line.printed, line.printed_low, line.printed_high), sign=False)
    ours = told(_interval(line.ours, line.ours_low, line.ours_high), sign=False)
    return f"{words(arm)}, validation, all posts: {NAMES.get(name, name)} {ours}{unit}, printed {printed}{unit}; they {agrees}."


def _interval(*parts: float) -> Interval:
    return Interval(*map(np.asarray, parts))


def _parts(records: Sequence[Record], protocol: Protocol) -> list[str]:
    """What the published combination changes in ten epochs, and what of it is due to which of its parts."""
    factorial = next(comparison for comparison in protocol.comparisons if comparison.name == "factorial")
    effects = effects_frame(records, factorial)
    if not len(effects):
        return []
    own = effects.loc[(effects["reading"] == "end") & (effects["split"] == "test")]
    said = [
        "What the published changes do together in 10 epochs, and the parts that sum to it (what each adds, averaged over the "
        "orders in which they can be added):"
    ]
    for claim, names in (
        ("sharper", ("entropy", "top_mass")),
        ("sharper on the relevant tokens", ("mrta", "auprc")),
        ("prediction and faithfulness", ("accuracy", "comprehensiveness")),
    ):
        said.append(f"{claim}: " + "; ".join(_shares(own, name) for name in names) + ".")
    return ["\n  - ".join(said), _interactions(own)]


def _shares(effects: pd.DataFrame, name: str) -> str:
    """The total and its parts."""
    lines: list[Any] = list(effects.loc[effects["quantity"] == name].itertuples(index=False))
    found = {(line.kind, line.factor): told(_interval(line.mean, line.low, line.high)) for line in lines}
    parts = ", ".join(f"{words(factor)} {found['share', factor]}" for factor in FACTORS)
    return f"{NAMES.get(name, name)} {found['total', 'all']}{UNITS.get(name, '')}, of it {parts}"


def _interactions(effects: pd.DataFrame) -> str:
    """The interactions of two that can be told from 0, the clearest first."""
    kept = effects["quantity"].isin(["entropy", "mrta", "auprc", "accuracy"]) & (effects["kind"] == "interaction")
    every: list[Any] = list(effects.loc[kept].itertuples(index=False))
    lines = [line for line in every if line.low > 0 or line.high < 0]
    lines.sort(key=lambda line: -abs(line.mean) / max(line.high - line.low, 1e-12))
    told_of = [
        f"{' with '.join(map(words, line.factor.split(' x ')))} in {NAMES.get(line.quantity, line.quantity)} "
        f"{told(_interval(line.mean, line.low, line.high))}"
        for line in lines[:8]
    ]
    what = (
        "Interactions of two in entropy, MRTA, AUPRC and accuracy (half of what one changes in the effect of the other)"
    )
    return "; ".join([f"{what}: {len(lines)} of {len(every)} can be told from 0", *told_of]) + "."


def _beside_baseline(found: Found) -> list[str]:
    """One rate at a time, beside the baseline of equal epochs."""
    said = []
    pairs = [(name, BASELINE) for name in ("qk30", "qk100", "ov30", "all30")] + [("qk30" + LONG, BASELINE + LONG)]
    for name, first in pairs:
        if name in found and first in found:
            own, base = found[name], found[first]
            accuracy, epochs = told(change(own, base, "accuracy")), own["arm"]["epochs"]
            text = (
                f"{words(name)} and nothing else, {epochs} epochs: attention {claims(own, base)}; accuracy {accuracy}."
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
            text = f"Trained 30 epochs instead of 10, {words(name)} {claims(long, short)}; accuracy {accuracy}, "
            said.append(f"{text}at the best validation epoch {best}.")
    return said

"""The verdict on subject-verb agreement: does sharper attention help where nouns of the other number stand between?"""

import math
from collections.abc import Sequence

import numpy as np

from experiments.text.arms import BASELINE, Protocol
from experiments.text.claims import alike, change, estimate, judged, told
from experiments.text.collapsed import collapsed_in_short, collapsed_lines
from experiments.text.effects import effects_frame
from experiments.text.readings import MAIN, Record, values
from experiments.text.said import (
    Found,
    all_diverged,
    alone,
    as_markdown,
    beside_printed,
    data_of,
    pair,
    parts_of,
    title_of,
)
from experiments.text.sva_closely import ATTRACTORS, BALANCED, apart, looked_at, mean_told, placed
from experiments.text.sva_published import compared_frame
from experiments.text.sva_tables import OWN, cell, uniform
from experiments.text.tables import compared, firsts
from experiments.text.task import SVA
from qkdyn.figures.text import words
from qkdyn.figures.text_records import SENTENCES
from qkdyn.text.sva import LABELS

OURS = (
    "What may differ from the published runs: the sentences, which are others; {updates:,} updates for their 73,935; the "
    "cleaning of the text, which approximates theirs; the tokens kept for sufficiency, which stood in an order that numpy's "
    "partition left."
)
# Changes below this part of what they change are small, however sure.
SMALL = 0.01
DOSES = ("qk5", "qk10", "qk30", "qk100")
CLOSELY = (BASELINE, "qk10", "qk100", "faster")


def verdict(records: Sequence[Record], protocol: Protocol, name: str) -> str:
    """The verdict as Markdown: a title and one line for each thing that is said.

    Args:
        records: finished arms.
        protocol: theirs.
        name: of the protocol, for the title.
    """
    title = title_of(SVA.title, name, records, protocol, SENTENCES)
    if nothing := all_diverged(records):
        return as_markdown(title, nothing, data_of(records, SENTENCES))
    found = {record["arm"]["name"]: record for record in records}
    said = collapsed_lines(records, SENTENCES, firsts(records, protocol))
    if protocol.recipe.measured == "last_slot":
        names = ("accuracy", "mrta_all", "head_0_ac", "head_0_acmc")
        data = records[0]["data"]
        passes = protocol.arms[0].epochs * data.get("passes", 1)
        updates = passes * math.ceil(data["train"] / protocol.recipe.batch)
        ours = OURS.format(updates=updates)
        said += beside_printed(records, compared_frame, (BASELINE, "faster"), names, ours, SENTENCES)
    said += [line for name in closely(found) for line in looked_at(found[name], found.get(BASELINE))]
    if len(protocol.comparisons) == 1:
        for _, there in compared(records, protocol):
            if there[0]["arm"]["name"] == BASELINE:
                said += [line for other in there[1:] for line in pair(there[0], other, SENTENCES)]
    else:
        said += _parts(records, protocol)
        said += alone(found, [(name, BASELINE) for name in ("qk10", "qk100", "ov30", "all30")], SENTENCES)
    said += data_of(records, SENTENCES)
    short = " ".join(filter(None, (in_short(found), collapsed_in_short(records))))
    return as_markdown(title, short, said)


def closely(found: Found) -> list[str]:
    """The arms that are looked at closely: all, where there are few."""
    return [name for name in found if name in CLOSELY or len(found) < 4]


def in_short(found: Found) -> str:
    """The answer: whether sharper attention helps with attractors, and where it goes."""
    if BASELINE not in found:
        return ""
    first = found[BASELINE]
    others = [name for name in (*DOSES, "faster") if name in found] or [name for name in found if name != BASELINE]
    said = [f"{words(name)}: {helped(found[name], first)}" for name in others]
    where = [f"{words(name)}: {where_to(found[name])}" for name in closely(found)]
    parts = ["**In short.**"]
    if said:
        parts.append(f"Does sharper attention help with {ATTRACTORS}? By {BALANCED}: {'; '.join(said)}.")
    parts.append(f"Where does it go in these sentences ({placed(first)})? {'; '.join(where)}.")
    return " ".join(parts)


def helped(other: Record, first: Record) -> str:
    """Whether attention is sharper, and whether accuracy is higher with attractors, and more so than without.

    Judged by balanced accuracy: with attractors the labels are not as common as in training, and an arm that answers one of
    them more often is thereby right more often, or less.
    """
    with_them, without = ("accuracy@1+:balanced", "accuracy@0:balanced")
    entropy, plain, hard = (change(other, first, name) for name in ("entropy_marked", without, with_them))
    if not np.isfinite(hard.mean):
        return "not known"
    pooled, *each = (change(other, first, f"accuracy@1+{label}") for label in ("", ":VBZ", ":VBP"))
    if alike(entropy, plain, hard, pooled, *each):
        return (
            f"does not differ from the {words(first['arm']['name'])} to four decimals, neither in entropy nor, with them or "
            "without, in balanced accuracy, that of each label or that of both pooled"
        )
    labels = ", ".join(f"{label} {told(own)}" for label, own in zip(LABELS, each, strict=True))
    numbers = (
        f"entropy of all sentences {told(entropy)} nats, balanced accuracy {told(hard)} with them and {told(plain)} "
    )
    numbers += f"without; with them {labels}, pooled {told(pooled)}"
    if not np.isfinite(hard.low):
        return f"not to be told without an interval ({numbers})"
    gap = [values(r, "end", "test", with_them) - values(r, "end", "test", without) for r in (other, first)]
    sharp = judged(entropy, "flatter", "sharper", "neither sharper nor flatter that could be told")
    if sharp in ("flatter", "sharper"):
        flat = values(first, "end", "test", "uniform_entropy_marked")[0]
        sharp = f"hardly {sharp}" if abs(entropy.mean) < SMALL * flat else sharp
    helps = judged(hard, "more often right", "less often right", "no more or less often right that could be told")
    more = judged(
        estimate(*gap),
        "gaining more with them than without",
        "gaining less with them than without",
        "no more than without",
    )
    return f"{sharp} and {helps}, {more}{apart(*each)} ({numbers})"


def where_to(record: Record) -> str:
    """Attention on the subject, on attractors and elsewhere, in sentences with attractors, beside uniform attention.

    Which of the two it favours is judged by how many times the uniform value each has.
    """
    subject, attractor = (
        cell(record, "end", "test", f"{name}@1+") / uniform(record, "test", name, "1+")
        for name in ("subject", "attractor")
    )
    if not np.isfinite(subject).any():
        return "not known"
    parts = [
        f"{mean_told(cell(record, 'end', 'test', f'{name}@1+'))} {label} (uniform {uniform(record, 'test', name, '1+'):.3f})"
        for name, label in (("subject", "on the subject"), ("attractor", "on attractors"), ("elsewhere", "elsewhere"))
    ]
    gap = estimate(subject, attractor)
    neither = "favours neither that could be told"
    most = judged(gap, "favours the subject over attractors", "favours attractors over the subject", neither)
    if not np.isfinite(gap.low):
        most = "not to be told without an interval"
    elif abs(gap.mean) < SMALL:
        most = "favours neither"
    return f"{', '.join(parts)}: {most}"


def _parts(records: Sequence[Record], protocol: Protocol) -> list[str]:
    """What QK and embeddings x100 do together, and what of it is due to which."""
    factorial = next(comparison for comparison in protocol.comparisons if comparison.name == "factorial")
    rows = (
        ("sharper", ("entropy_marked", "top_mass_marked", "head_entropy")),
        ("sharper on the relevant tokens, all sentences", ("mrta", "auprc")),
        (f"where it goes with attractors, {placed(records[0])}", ("subject@1+", "attractor@1+")),
        ("prediction", ("accuracy@0:balanced", "accuracy@1+:balanced", "accuracy@1+:VBZ", "accuracy@1+:VBP")),
    )
    first = f"What the published changes do together in {protocol.arms[0].epochs} epochs"
    quantities = [*MAIN, *(own for own in OWN if own.main)]
    effects = effects_frame(records, factorial, quantities)
    return parts_of(effects, first, factorial.factors, rows, len(protocol.recipe.seeds), SENTENCES)

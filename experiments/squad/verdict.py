"""A verdict for each protocol, written from the numbers: what the arms answer, where they look, and what is due to what."""

from collections.abc import Mapping, Sequence

import numpy as np

from experiments.squad.arms import SCALES, Protocol
from experiments.squad.published import compared_frame
from experiments.squad.readings import by_arm, seeds_of, whole
from experiments.squad.tables import compared, title, uniform
from experiments.text.claims import Estimate, change, estimate, judged, told
from experiments.text.printed import met
from experiments.text.readings import Record, matched_level, values
from qkdyn.figures.squad import WHEN, label
from qkdyn.metrics.intervals import confidence_interval
from qkdyn.metrics.paired import factorial_effects

Found = Mapping[str, Record]
NAMES = {
    "f1": "F1",
    "loss": "loss",
    "entropy": "entropy of the rollout",
    "head_entropy": "mean entropy of the heads",
    "mass": "MRTA",
    "ac": "AC",
    "comprehensiveness": "comprehensiveness",
    "sufficiency": "sufficiency",
}
RULES = {
    "frequent": "the most frequent answer",
    "sentence": "the first sentence",
    "nearest": "the words nearest to the question's",
    "middle": "the middle of the window, which is what centring gives away,",
    "token_frequencies": "how frequent tokens are in answers",
}
# Comparisons that are told arm by arm.
PAIRED = ("dose", "slow", "published", "quick")
UNITS = {"entropy": " nats", "head_entropy": " nats", "ac": "%", "loss": " nats"}
# The published contrast and the arms between: every rate a tenth, then QK x20.
BASE, SLOW, FAST, DOSED, EQUAL = "base", "slow", "slow-qk20", "base-qk20", "base-qk2"
PUBLISHED = ("f1_first", "mass", "ac", "acmc_unspaced", "comprehensiveness", "sufficiency")


def verdict(records: Sequence[Record], protocol: Protocol, name: str) -> str:
    """The verdict as Markdown: a title and one line for each thing that is said.

    Args:
        records: of finished runs.
        protocol: theirs.
        name: of the protocol, for the title.
    """
    arms = by_arm(records, protocol)
    reading, seeds = protocol.reading, seeds_of(arms)
    # Nothing can be read of an arm of which every run diverged.
    known = [record for record in arms if label(record["arm"]) in _scores(arms, reading, "f1")]
    found = {record["arm"]["name"]: record for record in known}
    said = [*_scale(protocol), *_answers(arms, reading), *_diverged(arms)]
    if protocol.published and known:
        said += _beside_published(known)
    said += [f"{label(record['arm'])} ends at {_ends(record, reading)}." for record in known]
    pairs = [there for own, there in compared(arms, protocol) if own.name in PAIRED and known]
    said += [line for there in pairs for line in _pairs(there, reading)]
    said += _as_published(found, reading) + _crossed(found, reading) + _equal(found, reading) + _best(arms)
    said += [f"Data: {'; '.join(records[0]['notes'])}."]
    head = (
        f"**{title(records, protocol, name)}**: {len(records)} of {len(protocol.runs)} runs, {seeds} "
        f"{'seed' if seeds == 1 else 'seeds'}; dev {WHEN[reading]}, unless said."
    )
    head += (
        " One run has no interval, and no difference can be told from chance."
        if seeds == 1
        else " Brackets are 95% intervals over seeds, of differences those of pairs of runs of one seed."
    )
    short = " ".join(["**In short.**", *_in_short(arms, found, reading)])
    return "\n".join([head, "", short, "", *(f"- {line}" for line in said)]) + "\n"


def _in_short(arms: Sequence[Record], found: Found, reading: str) -> list[str]:
    """Whether the arms answer; what QK does at each base rate; what of the published contrast is its doing."""
    scores = _scores(arms, reading, "f1")
    if _all_diverged(arms):
        rest = "; what is said below is of the best epochs before" if scores else ""
        return [f"Every run of every arm diverged{rest}: there is nothing to say of what QK does."]
    said, rule = [], floor(arms[0], "f1")
    if rule is not None:
        least = arms[0]["baselines"][rule]["f1"]
        how = _better(scores, least)
        hardly = ": attention is that of models that have hardly learned to answer" if how.startswith("no ") else ""
        said.append(f"{how[0].upper()}{how[1:]} better than {RULES.get(rule, rule)} (F1 {least:.3f}){hardly}.")
    pairs = ((EQUAL, BASE), (DOSED, BASE), (FAST, SLOW), ("fast", "same"))
    each = [f"{_beside(found, a, b)}: {_short(found[a], found[b], reading)}" for a, b in pairs if {a, b} <= set(found)]
    said += [f"{'; '.join(each)}."] if each else []
    if {BASE, SLOW, FAST} <= set(found):
        total, rates, qk = _contrasts(found, "mass", reading)
        said.append(
            f"The published contrast alters MRTA by {told(total)}: {told(qk)} by QK x20, {told(rates)} by every rate a tenth."
        )
    return said


def _beside(found: Found, other: str, first: str) -> str:
    return f"{label(found[other]['arm'])} beside {label(found[first]['arm'])}"


def _short(other: Record, first: Record, reading: str) -> str:
    """Sharper or not, more on the answer or not, in a few words."""
    entropy, mass = (change(other, first, name, reading, "dev") for name in ("entropy", "mass"))
    numbers = f"entropy {told(entropy)} nats, MRTA {told(mass)}"
    if not np.isfinite(entropy.low):
        return f"no interval ({numbers})"
    sharp = judged(entropy, "flatter", "sharper", "as sharp")
    more = judged(mass, "more on the answer", "less on the answer", "no more on the answer that could be told")
    return f"{sharp}, {more} ({numbers})"


def _scale(protocol: Protocol) -> list[str]:
    """What a small model on a subset can show, and what it cannot."""
    full = SCALES["full"]
    if protocol.recipe.d_model >= 300 and protocol.arms[0].epochs >= full.epochs:
        return []
    return [
        f"This is not the published model (6 layers of width 300, 50,257 tokens, 60,000 questions, {full.epochs} epochs or "
        f"more, updates of 64 questions; here of {protocol.recipe.batch * protocol.recipe.micro}): it shows that the pipeline "
        "runs, and what the arms do in so short a time, not whether the published claim holds. --scale full is the published "
        "size."
    ]


def _answers(arms: Sequence[Record], reading: str) -> list[str]:
    """Whether the arms answer better than what needs no model."""
    known, scores = arms[0]["baselines"], _scores(arms, reading, "f1")
    if not scores:
        return []
    lines = ["F1 on dev: " + ", ".join(f"{arm} {told(score, sign=False)}" for arm, score in scores.items())]
    if (best := floor(arms[0], "f1")) is not None:
        lines[0] += f"; without a model, {RULES.get(best, best)} gives {known[best]['f1']:.3f}: "
        lines[0] += f"{_better(scores, known[best]['f1'])} better than that"
    if (best := floor(arms[0], "loss")) is not None:
        losses = _scores(arms, reading, "loss")
        own = ", ".join(f"{arm} {told(loss, sign=False)}" for arm, loss in losses.items())
        lines.append(
            f"Loss on dev, nats per token of the answer: {own}; {RULES.get(best, best)} gives {known[best]['loss']:.3f}"
        )
    shown = float(np.nanmax(values(arms[0], "end", "dev", "shown"), initial=-1.0))
    if shown >= 0:
        lines.append(
            f"The prompt shows the whole answer to {100 * shown:.0f}% of dev questions; the others cannot be right"
        )
    return [f"{line}." for line in lines]


def _scores(arms: Sequence[Record], reading: str, name: str) -> dict[str, Estimate]:
    """A quantity on dev by the label of the arm; without arms of which it is not known, all runs having diverged."""
    found = {label(record["arm"]): estimate(values(record, reading, "dev", name)) for record in arms}
    return {arm: score for arm, score in found.items() if score.seeds}


def floor(record: Record, name: str) -> str | None:
    """The rule without a model that has the highest F1, or the least loss; None where none is known."""
    known = {rule: own[name] for rule, own in record["baselines"].items() if own.get(name) is not None}
    pick = min if name == "loss" else max
    return pick(known, key=lambda rule: known[rule], default=None)


def _better(scores: Mapping[str, Estimate], least: float) -> str:
    """How many arms have a score above `least`, by their intervals where they have one."""
    above = sum((score.low if np.isfinite(score.low) else score.mean) > least for score in scores.values())
    return f"{above} of {len(scores)} arms answer" if above else "no arm answers"


def _all_diverged(arms: Sequence[Record]) -> bool:
    """Whether no run came to its end; runs that are not there are left out."""
    return not any(run["diverged_at"] is None and run["end"] for record in arms for run in record["runs"])


def _diverged(arms: Sequence[Record]) -> list[str]:
    said = []
    for record in arms:
        count = sum(run["diverged_at"] is not None for run in record["runs"])
        if count:
            said.append(
                f"{label(record['arm'])}: {count} of {len(record['runs'])} runs diverged; what was before is kept."
            )
    return said


def _told(name: str, found: Estimate) -> str:
    return f"{NAMES[name]} {told(found)}{UNITS.get(name, '')}"


def contrast(other: Record, first: Record, reading: str, split: str = "dev", level: float = np.nan) -> str:
    """Whether attention is sharper, and whether more of it is on the answer, apart; then answers and faithfulness."""
    each = {name: change(other, first, name, reading, split, level) for name in NAMES}
    entropy, mass = each["entropy"], each["mass"]
    if not np.isfinite(entropy.mean):
        return "cannot be read there"
    sharpness = f"{_told('entropy', entropy)}, {_told('head_entropy', each['head_entropy'])}"
    relevance = f"{_told('mass', mass)}, {_told('ac', each['ac'])}"
    faithful = [name for name in ("comprehensiveness", "sufficiency") if np.isfinite(each[name].mean)]
    rest = ", ".join(_told(name, each[name]) for name in ("f1", "loss", *faithful))
    if not np.isfinite(entropy.low):
        return f"cannot be judged without an interval ({sharpness}; {relevance}; {rest})"
    sharp = judged(entropy, "is flatter", "is sharper", "is not sharper or flatter that could be told")
    more = judged(
        mass, "puts more on the answer", "puts less on the answer", "puts no more on the answer that could be told"
    )
    answers = judged(each["f1"], "answers are better", "answers are worse", "answers are no better that could be told")
    return f"{sharp} ({sharpness}), {more} ({relevance}); {answers} ({rest})"


def _ends(record: Record, reading: str) -> str:
    """Where attention of an arm ends, beside what uniform attention would give."""

    def beside(name: str) -> str:
        flat, unit = uniform(record, reading, "dev", name), UNITS.get(name, "")
        own = told(estimate(values(record, reading, "dev", name)), sign=False)
        return f"{NAMES[name]} {own}{unit}" + (f" (uniform {flat:.3f})" if np.isfinite(flat) else "")

    return ", ".join(beside(name) for name in ("entropy", "head_entropy", "mass", "ac"))


def _pairs(there: Sequence[Record], reading: str) -> list[str]:
    """The arms of a comparison beside its first."""
    first = there[0]
    said = []
    for other in there[1:]:
        level = matched_level([first, other])
        who = f"{label(other['arm'])} beside {label(first['arm'])}"
        said.append(f"{who}: attention {contrast(other, first, reading)}.")
        each = {name: change(other, first, name, "matched", "selection", level) for name in ("entropy", "mass", "f1")}
        if any(np.isfinite(own.mean) for own in each.values()):
            known = ", ".join(_told(name, own) for name, own in each.items())
            said.append(f"{who}, where the training loss is {level:.2f} (selection questions): {known}.")
    return said


def _contrasts(found: Found, name: str, reading: str) -> tuple[Estimate, Estimate, Estimate]:
    """The published contrast, and its parts: every rate a tenth, then QK x20."""
    total, rates, qk = (
        change(found[b], found[a], name, reading, "dev") for a, b in ((BASE, FAST), (BASE, SLOW), (SLOW, FAST))
    )
    return total, rates, qk


def _as_published(found: Found, reading: str) -> list[str]:
    """The published contrast, and what of it is every rate a tenth, and what QK x20."""
    if any(name not in found for name in (BASE, SLOW, FAST)):
        return []
    said = [
        "The published arms differ in two things: the faster one has a tenth of every rate and QK x20, so that its QK rate is "
        "twice the baseline's and its OV rate a tenth. Together, and of it by each:"
    ]
    for name in ("entropy", "mass", "ac", "f1", "loss"):
        total, rates, qk = _contrasts(found, name, reading)
        said.append(f"{_told(name, total)}: every rate a tenth {told(rates)}, QK x20 {told(qk)}")
    return ["\n  - ".join(said)]


def _crossed(found: Found, reading: str) -> list[str]:
    """QK x20 and the base rate as a factorial."""
    cells = ((SLOW, FAST), (BASE, DOSED))
    if any(name not in found for row in cells for name in row):
        return []
    said = []
    for name in ("entropy", "mass", "ac", "f1"):
        own = np.array([[values(found[cell], reading, "dev", name) for cell in row] for row in cells])
        effects = factorial_effects(own, ("rate", "QK"))
        each = {
            which: Estimate(*(float(part[i]) for part in effects.interval[:3]), seeds=own.shape[-1], of=own.shape[-1])
            for i, which in enumerate(effects.names)
        }
        said.append(
            f"{NAMES[name]}: QK x20 {told(each['QK'])}, every rate x10 {told(each['rate'])}, together beyond their sum "
            f"{told(each['rate x QK'])}"
        )
    return ["\n  - ".join(["Main effects over both base rates and both QK multipliers:", *said])]


def _equal(found: Found, reading: str) -> list[str]:
    """Equal QK rates, other rates ten times apart."""
    if any(name not in found for name in (EQUAL, FAST)):
        return []
    return [
        f"At an equal QK rate (1e-3), a tenth of every other rate ({_beside(found, FAST, EQUAL)}): attention "
        f"{contrast(found[FAST], found[EQUAL], reading)}."
    ]


def _best(arms: Sequence[Record]) -> list[str]:
    """The best epoch beside the last one."""
    said = []
    for record in whole(arms):
        mass, f1 = (estimate(*(values(record, at, "dev", name) for at in ("best", "end"))) for name in ("mass", "f1"))
        epochs = [run["best"].get("epoch") for run in record["runs"] if run["best"]]
        said.append(
            f"{label(record['arm'])} (best epochs {', '.join(map(str, epochs))} of {record['arm']['epochs']}) MRTA "
            f"{told(mass)}, F1 {told(f1)}"
        )
    if not said:
        return []
    lines = [f"At the best epoch instead of the last: {'; '.join(said)}."]
    rule = floor(arms[0], "f1")
    least = arms[0]["baselines"][rule]["f1"] if rule is not None else 0.0
    if all(float(estimate(values(r, "best", "selection", "f1")).mean) <= least for r in whole(arms)):
        lines[0] += (
            " F1 on the selection questions was below what needs no model in all of these, so that chance chose them."
        )
    return lines


def _beside_published(arms: Sequence[Record]) -> list[str]:
    """The printed numbers beside ours, the main ones."""
    frame = compared_frame(arms)
    kept = frame.loc[frame["quantity"].isin(PUBLISHED) & (frame["split"] == "dev") & (frame["reading"] == "best")]
    said = []
    for arm in ("baseline", "faster"):
        part = kept.loc[(kept["arm"] == arm) & ~kept["source"].str.startswith("Table")].drop_duplicates("quantity")
        each = [f"{line.quantity} {line.ours:.3g} (printed {line.printed:.3g})" for line in part.itertuples()]
        said += [f"The printed {arm} arm beside ours: {', '.join(each)}."] if each else []
    number, known = met(frame)
    if known:
        said.append(
            f"{number} of {known} distinct printed numbers have an interval that overlaps ours wherever they are printed."
        )
    same = {record["arm"]["name"]: record for record in arms}.get("same")
    if same is not None:
        fault, right = (
            float(confidence_interval(values(same, "best", "dev", name)).mean)
            for name in ("probability_unspaced", "probability")
        )
        said.append(
            f"The mean probability of the answer without the space before it, as published, is {fault:.3f}; that of the "
            f"answer as it is learned {right:.3f}."
        )
    return said

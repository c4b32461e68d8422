"""The first paragraph of a verdict: what of the published effect is due to what, and whether sharper is also better ranked."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from experiments.text.arms import BASELINE, COMBINATION, FACTORS, LONG, Protocol
from experiments.text.claims import NAMES, UNITS, Estimate, change, effect, estimate, judged, told
from experiments.text.effects import effects_frame
from experiments.text.printed import ours_of, printed_line, printed_of
from experiments.text.published import compared_frame
from experiments.text.readings import Record, values
from qkdyn.figures.text import words

Found = Mapping[str, Record]
EFFECTS = ("entropy_marked", "mrta")


def in_short(records: Sequence[Record], protocol: Protocol) -> str:
    """The paragraph, empty where no arm is finished that it is about."""
    found = {record["arm"]["name"]: record for record in records}
    said = []
    if protocol.recipe.measured == "last_slot":
        said += _met(found, protocol.recipe.n_layers)
    said += _due(records, protocol)
    said += _longer(found)
    said += _ranked(found)
    return " ".join(["**In short.**", *said]) if said else ""


def _met(found: Found, layers: int) -> list[str]:
    """Whether the published effect is met: by the published changes together, or by the rate of QK alone."""
    frame = compared_frame(list(found.values()), layers)
    if not len(frame):
        return []
    first, other = (printed_line(frame, arm, "mrta_all") for arm in (BASELINE, "faster"))
    if first is None or other is None:
        return []
    ours = estimate(*(values(found[line.our_arm], "end", other.split, "mrta_all") for line in (other, first)))
    printed = other.printed - first.printed
    what = "QK x30 and nothing else" if other.our_arm == "qk30" else "the published changes together"
    met = judged(
        Estimate(ours.mean - printed, ours.low - printed, ours.high - printed, ours.seeds, ours.of),
        "more than the published effect",
        "less than the published effect",
        "the published effect within the interval",
    )
    share = f"{100 * ours.mean / printed:.0f}% of it"
    end = f"{share}, {met}" if np.isfinite(ours.low) else f"{share}, without an interval"
    confident = printed_line(frame, "faster", "ac_all")
    ac = (
        f"; AC is {told(ours_of(confident), sign=False)}%, printed {told(printed_of(confident), sign=False)}%"
        if confident is not None
        else ""
    )
    where = f"({other.split}, all posts)"
    return [
        f"The published arms differ by {printed:.3f} in MRTA {where}; ours, with {what}, by {told(ours)}, {end}{ac}."
    ]


def _due(records: Sequence[Record], protocol: Protocol) -> list[str]:
    """What the published changes do in ten epochs, what QK does alone, and each one's part in the whole."""
    factorial = next((own for own in protocol.comparisons if own.name == "factorial"), None)
    effects = effects_frame(records, factorial) if factorial is not None else pd.DataFrame()
    if not len(effects):
        return []
    own, seeds = effects.loc[(effects["reading"] == "end") & (effects["split"] == "test")], len(protocol.recipe.seeds)
    said = []
    for name in EFFECTS:
        total = effect(own, name, "total", "all", seeds)
        if not np.isfinite(total.mean):
            continue
        # Shares of a whole that may be 0 say nothing.
        whole = bool(total.mean) and (bool(judged(total, "told", "told", "")) or not np.isfinite(total.low))
        parts = []
        for factor in FACTORS:
            part = effect(own, name, "share", factor, seeds)
            share = f"{100 * part.mean / total.mean + 0.0:.0f}%".replace("-0%", "0%") if whole else told(part)
            parts.append(f"{words(factor)} {share}")
        said.append(
            f"the published changes together alter {NAMES[name]} by {told(total)}{UNITS.get(name, '')} in 10 epochs, QK x30 "
            f"alone by {told(effect(own, name, 'alone', 'qk30', seeds))}; the parts of the whole, {', '.join(parts)}"
        )
    return [f"On toxic posts {'; '.join(said)}."] if said else []


def _longer(found: Found) -> list[str]:
    """What thirty epochs add to ten."""
    pairs = [name for name in (BASELINE, "qk30", COMBINATION) if name in found and name + LONG in found]
    said = []
    for quantity in EFFECTS:
        parts = [
            f"{told(added)} ({'the published changes' if name == COMBINATION else words(name)})"
            for name in pairs
            if np.isfinite((added := change(found[name + LONG], found[name], quantity)).mean)
        ]
        said += [f"{NAMES[quantity]} by {', '.join(parts)}"] if parts else []
    return [f"Training 30 epochs instead of 10 changes {' and '.join(said)}."] if said else []


def _ranked(found: Found) -> list[str]:
    """Whether attention that is sharper also ranks the relevant tokens better."""
    said = []
    pairs = [(name, BASELINE) for name in ("qk30", COMBINATION, "faster")]
    pairs += [(name + LONG, BASELINE + LONG) for name in ("qk30", COMBINATION)]
    for name, first in pairs:
        if name not in found or first not in found:
            continue
        entropy, auprc = (change(found[name], found[first], q) for q in ("entropy_marked", "auprc"))
        if not np.isfinite(entropy.mean):
            continue
        who = "the published changes" if name.removesuffix(LONG) == COMBINATION else words(name)
        epochs = f", {found[name]['arm']['epochs']} epochs"
        if not np.isfinite(entropy.low):
            said.append(
                f"{who}{epochs}: not to be told without an interval (entropy {told(entropy)}, AUPRC {told(auprc)})"
            )
            continue
        sharp = judged(entropy, "flatter", "sharper", "neither sharper nor flatter that could be told")
        better = judged(auprc, "ranked better", "ranked worse", "ranked no better that could be told")
        joint = "and" if (entropy.high < 0) == (auprc.low > 0) else "but"
        said.append(f"{who}{epochs}: {sharp} {joint} {better} (AUPRC {told(auprc)})")
    return [f"Is sharper also better ranked? {'; '.join(said)}."] if said else []

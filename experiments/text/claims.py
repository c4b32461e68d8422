"""Claims on attention from intervals of differences: sharper, on the relevant tokens, ranking them better; each apart."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.text.readings import Record, values
from qkdyn.figures.text_records import POSTS, Called
from qkdyn.metrics.intervals import confidence_interval
from qkdyn.metrics.paired import paired_difference

UNITS = {
    "entropy_marked": " nats",
    "head_entropy": " nats",
    "ac_all": "%",
    "acmc_all": "%",
    "head_0_ac": "%",
    "head_0_acmc": "%",
}


def names_of(called: Called) -> dict[str, str]:
    """Quantities in words; of marked instances, where these are not all of them and the name says nothing else."""
    every = f" (all {called.every})" if called.marked != called.every else ""
    return {
        "entropy_marked": "entropy",
        "top_mass_marked": "mass of the top 20%",
        "head_entropy": f"mean entropy of the heads{every}",
        "head_top_mass": f"mean mass of the heads' top 20%{every}",
        "mrta": "MRTA",
        "mrta_all": "MRTA",
        "auprc": "AUPRC",
        "ac_all": "AC",
        "acmc_all": "ACMC",
        "head_0_ac": "AC of the first head",
        "head_0_acmc": "ACMC of the first head",
        "accuracy": f"accuracy{every}",
        "accuracy@0": "accuracy without attractors",
        "accuracy@1+": "accuracy with attractors",
        "accuracy@0:balanced": "balanced accuracy without attractors",
        "accuracy@1+:balanced": "balanced accuracy with attractors",
        "accuracy@1+:VBZ": "of VBZ",
        "accuracy@1+:VBP": "of VBP",
        "subject@1+": "attention on the subject",
        "attractor@1+": "attention on attractors",
        "comprehensiveness": f"comprehensiveness{every}",
        "sufficiency": f"sufficiency{every}",
    }


NAMES = names_of(POSTS)


class Estimate(NamedTuple):
    """A mean over seeds with its 95% interval (NaN of one seed), and on how many of how many seeds it rests."""

    mean: float
    low: float
    high: float
    seeds: int
    of: int


def estimate(own: np.ndarray, theirs: np.ndarray | None = None) -> Estimate:
    """Of values (seeds,), or of their differences from others by seed; those that are NaN are left out."""
    interval = confidence_interval(own) if theirs is None else paired_difference(own, theirs)
    known = np.isfinite(own if theirs is None else own - theirs)
    mean, low, high = (float(part) for part in interval)
    return Estimate(mean, low, high, int(known.sum()), known.size)


def change(
    other: Record, first: Record, name: str, reading: str = "end", split: str = "test", level: float = np.nan
) -> Estimate:
    """The mean difference of a quantity, paired by seed."""
    own, theirs = (values(record, reading, split, name, level) for record in (other, first))
    return estimate(own, theirs)


def effect(effects: pd.DataFrame, name: str, kind: str, factor: str, seeds: int) -> Estimate:
    """One effect on a quantity, of a frame of effects on one reading and split, of `seeds` runs an arm."""
    line = effects.loc[(effects["quantity"] == name) & (effects["kind"] == kind) & (effects["factor"] == factor)].iloc[
        0
    ]
    mean, low, high, known = (float(line[part]) for part in ("mean", "low", "high", "seeds"))
    return Estimate(mean, low, high, int(known), seeds)


def told(found: Estimate, sign: bool = True) -> str:
    """A mean and its interval, to three digits of the mean, and how many seeds it rests on where these are not all."""
    if not np.isfinite(found.mean):
        return "not known"
    digits = min(4, max(0, 2 - int(np.floor(np.log10(max(abs(found.mean), 1e-2))))))
    ends = f" [{found.low:.{digits}f}, {found.high:.{digits}f}]" if np.isfinite(found.low) else ""
    fewer = f" on {found.seeds} of {found.of} seeds" if found.seeds < found.of else ""
    return f"{found.mean:{'+' if sign else ''}.{digits}f}{ends}{fewer}"


def alike(*found: Estimate) -> bool:
    """Whether means and ends of all of these differences are 0 in every digit that `told` has."""
    return all(abs(own.mean) < 5e-5 and np.all(np.abs(np.nan_to_num(own[1:3])) < 5e-5) for own in found)


def judged(found: Estimate, rises: str, falls: str, neither: str) -> str:
    """Which of the three the interval supports."""
    return rises if found.low > 0 else falls if found.high < 0 else neither


def claims(
    other: Record,
    first: Record,
    reading: str = "end",
    split: str = "test",
    level: float = np.nan,
    called: Called = POSTS,
) -> str:
    """Whether attention is sharper, whether it is on the relevant tokens, and whether these are ranked better: apart.

    All of marked instances, but the means over single heads.
    """
    names = ("entropy_marked", "top_mass_marked", "head_entropy", "head_top_mass", "mrta", "auprc")
    entropy, top, head, head_top, mrta, auprc = (change(other, first, name, reading, split, level) for name in names)
    if not np.isfinite(entropy.mean):
        return "cannot be read there"
    of_heads = (head, head_top) if np.isfinite(head.mean) else ()
    if alike(entropy, top, mrta, *of_heads):
        same = ["entropy", "mass of the top 20%", *(["both of single heads"] if of_heads else [])]
        if alike(auprc):
            return f"does not differ to four decimals in {', '.join(same)}, MRTA and AUPRC"
        return f"does not differ to four decimals in {', '.join(same)} and MRTA (AUPRC {told(auprc)})"
    sharpness = f"entropy {told(entropy)} nats, mass of the top 20% {told(top)}"
    if np.isfinite(head.mean):
        whose = f", all {called.every}," if called.marked != called.every else ""
        sharpness += f"; of single heads on average{whose} {told(head)} nats and {told(head_top)}"
    if not np.isfinite(entropy.low):
        return f"cannot be judged without an interval ({sharpness}; MRTA {told(mrta)}, AUPRC {told(auprc)})"
    sharp = judged(entropy, "is flatter", "is sharper", "is not sharper or flatter that could be told")
    more = judged(mrta, "puts more", "puts less", "puts no more that could be told")
    better = judged(auprc, "ranks them better", "ranks them worse", "ranks them no better that could be told")
    return (
        f"{sharp} ({sharpness}), {more} on the relevant tokens (MRTA {told(mrta)}) and {better} (AUPRC {told(auprc)})"
    )

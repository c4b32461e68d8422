"""From measures of every question to those of a set: means, heat maps, AC and ACMC, beside what uniform attention would get."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool

from qkdyn.metrics.attention import acmc, attention_confidence
from qkdyn.metrics.curves import THRESHOLDS, ac_curve, acmc_curve, area
from qkdyn.metrics.dtap import Edges, check_edges, dtap

# Of the published heat maps, and the threshold of AC and ACMC on both axes.
EDGES = (0.0, 0.05, 0.1, 0.5, 1.001)
LEVEL = 0.1
# The right answer's probability, and as published: without the space that it is written with.
AXES = ("", "_unspaced")


def summary(
    found: Mapping[str, np.ndarray],
    edges: Edges = EDGES,
    *,
    level: float = LEVEL,
    which: Bool[np.ndarray, "N"] | None = None,
) -> dict[str, Any]:
    """The measures of a set of questions, as plain numbers and lists.

    Args:
        found: measures of every question, from `qkdyn.readings.questions.read`.
        edges: of the heat maps, on both axes.
        level: threshold of AC and ACMC, for attention and probability alike.
        which: the questions that are summed up, such as `found["shown"]`; None for all.

    Returns:
        questions, their number; the mean of every measure, of heads a list; ac, ac_curve over `THRESHOLDS` and ac_area;
        acmc, acmc_curve (with `level` for the probability) and acmc_area, dtap[probability bin][attention bin] in percent, and
        all four again with the name's end "_unspaced" for the published probabilities; uniform_ac, uniform_acmc and so on,
        the same for uniform attention with the model's own probabilities. NaN throughout where a question's measures are
        not finite, and of no questions.
    """
    check_edges(edges)
    rows = {name: values if which is None else values[which] for name, values in found.items()}
    count = len(rows["mass"])
    known = count > 0 and all(np.isfinite(values).all() for values in rows.values())
    if not known:
        # In the place of one question, so that every number has its shape; it is taken away below.
        rows = {name: np.full((1, *values.shape[1:]), 0.5) for name, values in rows.items()}
    out: dict[str, Any] = {name: values.mean(0, dtype=np.float64).tolist() for name, values in rows.items()}
    for start in ("", "uniform_"):
        mass = rows[f"{start}mass"]
        out |= {f"{start}ac": float(attention_confidence(mass, level))}
        out |= _with_area(f"{start}ac", ac_curve(mass))
        for end in AXES:
            chance = rows[f"probability{end}"]
            out[f"{start}acmc{end}"] = float(acmc(mass, chance, level, level))
            out |= _with_area(f"{start}acmc{end}", acmc_curve(mass, chance, THRESHOLDS, level), end)
            if not start:
                out[f"dtap{end}"] = dtap(mass, chance, edges).tolist()
    return {"questions": count} | (out if known else _unknown(out))


def _with_area(name: str, curve: np.ndarray, end: str = "") -> dict[str, Any]:
    stem = name.removesuffix(end)
    return {f"{stem}_curve{end}": curve.tolist(), f"{stem}_area{end}": float(area(curve))}


def _unknown(value: Any) -> Any:
    """NaN in the place of every number."""
    if isinstance(value, dict):
        return {name: _unknown(part) for name, part in value.items()}
    return [_unknown(part) for part in value] if isinstance(value, list) else float("nan")

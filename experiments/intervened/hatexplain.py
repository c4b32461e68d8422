"""Interventions on HateXplain under AdamW: the recipe and the base rate of Table 1's `controlled` protocol."""

from typing import Any

from experiments.intervened.arms import BASELINE, Case, Strengths, cases
from experiments.intervened.posts import FORM, LOOK, PostsArm, groups, made, ready, train

__all__ = ["SETTING", "arms", "groups", "ready", "train"]

SETTING = "hatexplain"
RATE = 5e-5
STRENGTHS = Strengths(
    fast=30.0,
    ramps=(481.0, 2405.0),
    delays=(481.0, 1443.0),
    decay_qk=(10.0, 100.0),
    decay_ov=(10.0, 30.0),
    apart_qk=(1e-4, 1e-3, 3e-3),
    apart_ov=(1e-4, 1e-3, 3e-3),
    start_qk=(100.0, 10_000.0),
    start_ov=(0.1, 10.0),
    factors_qk=(10.0, 100.0),
    factors_ov=(10.0, 100.0),
    clip_qk=(1e-4, 1e-3),
    clip_ov=(0.03, 0.1),
    normalized=(
        *(("qk", RATE, r) for r in (0.3, 1.0, 3.0)),
        *(("ov", RATE / r, r) for r in (0.3, 1.0, 3.0)),
        *(("both", RATE, r) for r in (0.3, 1.0, 3.0)),
    ),
)


# The arms of a look, and its rate.
QUICK, QUICK_RATE = (BASELINE, "ratio-30"), 1.5e-3


def arms(quick: bool) -> tuple[PostsArm, ...]:
    """All arms; with `quick` the plain one and a faster QK, few posts and two seeds."""
    usual: dict[str, Any] = {"setting": SETTING, "optimizer": "adamw"}
    found = _adamw(cases(STRENGTHS, RATE, FORM))
    if quick:
        return made([case | {"eta_ov": QUICK_RATE} for case in found if case["short"] in QUICK], usual | LOOK)
    return made([case if case["eta_ov"] == RATE else case | {"rate": RATE} for case in found], usual)


def _adamw(given: list[Case]) -> list[Case]:
    """The cases with AdamW in the place of SGD, under which a gain is no rate."""
    fast = STRENGTHS.fast
    label = f"AdamW, QK gradient times {fast:g}"
    gain = {"short": "gain-adamw", "label": label, "family": "gradient of QK rescaled", "gain": (1.0, fast)}
    return [case for case in given if "gain" not in case] + [{"r": 1.0, "eta_ov": RATE, **gain}]

"""Interventions on HateXplain under SGD: the posts, model and batches of `hatexplain`, trained by gradient descent.

Where both show the same, it is not the optimizer's doing. SGD does not leave the start that AdamW has, N(0, 0.02^2): hardly
any gradient reaches one matrix of a circuit through another so small. So here those of both circuits start at Glorot's size.
The base rate is 1, also of what belongs to no circuit; at 0.3 and at 3 the plain arm takes more updates to its losses.
"""

from typing import Any

from experiments.intervened.arms import BASELINE, Case, Strengths, cases
from experiments.intervened.posts import FORM, LOOK, PostsArm, groups, made, ready, train

__all__ = ["SETTING", "arms", "groups", "ready", "train"]

SETTING = "hatexplain-sgd"
RATE = 1.0
# AdamW's base rate in Table 1, and ten times it.
ADAM = (5e-5, 5e-4)
# (0.125 / 0.02)^2: of products, where each of two factors starts at Glorot's sqrt(2 / (64 + 64)).
GLOROT = 39.0625
STRENGTHS = Strengths(
    fast=30.0,
    ramps=(481.0, 2405.0),
    delays=(481.0, 1443.0),
    decay_qk=(3e-4, 1e-3),
    decay_ov=(3e-4, 1e-3),
    apart_qk=(1e-4, 3e-4),
    apart_ov=(1e-4, 3e-4),
    start_qk=(0.1, 10.0, 100.0),
    start_ov=(0.1, 10.0),
    factors_qk=(3.0, 10.0),
    factors_ov=(3.0, 10.0),
    clip_qk=(0.003, 0.01, 0.03),
    clip_ov=(0.03, 0.1),
    normalized=(
        *(("qk", RATE, r) for r in (0.01, 0.1, 0.3)),
        *(("ov", eta, RATE / eta) for eta in (0.03, 0.3)),
        *(("both", 0.1, r) for r in (0.1, 1.0, 3.0)),
    ),
    momentum=(0.5, 0.9),
    adam=tuple((rate, r) for rate in ADAM for r in (1.0, 30.0)),
)


def arms(quick: bool) -> tuple[PostsArm, ...]:
    """All arms; with `quick` the plain one and a faster QK, few posts and two seeds."""
    found = [_posts(case) for case in cases(STRENGTHS, RATE, FORM)]
    usual: dict[str, Any] = {"setting": SETTING}
    if quick:
        found = [case for case in found if case["short"] in (BASELINE, "ratio-30")]
        # SGD comes no further with so few posts.
        usual |= LOOK | {"levels": (1.094,)}
    return made(found, RATE, usual)


def _posts(case: Case) -> Case:
    """A case of gradient descent on this model: Glorot's start, and AdamW in the place of Adam."""
    own = {"optimizer": "sgd"} | case
    own["start"] = tuple(GLOROT * scale for scale in case.get("start", (1.0, 1.0)))
    if own["optimizer"] == "adam":
        own |= {"optimizer": "adamw", "family": "AdamW", "label": case["label"].replace("Adam", "AdamW")}
    if case["family"] == "momentum" and "both" not in case["short"]:
        # At the whole rate: a tenth of it for the other circuit would leave that behind embeddings and head.
        own |= {"eta_ov": RATE, "label": f"{case['label']}, rates as they are"}
    return own

"""Interventions on HateXplain under SGD: the posts, model and batches of `hatexplain`, trained by gradient descent.

Where both show the same, it is not the optimizer's doing. Hardly any gradient reaches one matrix of a circuit through another
as small as AdamW's start has them, N(0, 0.02^2), so that attention stays uniform (the arm whose start of both is the recipe's).
So here those of both circuits start at Glorot's size. The base rate, also of what belongs to no circuit, is 1, the largest that
arms on text may have; 0.1 and 0.3 are arms. Nothing decays but by an arm that says so: at these rates decay is no trifle, and a
ratio would multiply it.
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
    ramps=(481.0, 2405.0),
    delays=(481.0, 1443.0),
    decay_qk=(1e-4, 3e-4, 1e-3),
    decay_ov=(1e-4, 3e-4, 1e-3),
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
    adam=tuple((rate, r) for rate in ADAM for r in (1.0, 10.0)),
)


def arms(quick: bool) -> tuple[PostsArm, ...]:
    """All arms; with `quick` the plain one and a faster QK, few posts and two seeds."""
    found = [_posts(case) for case in [*cases(STRENGTHS, RATE, FORM), *_controls()]]
    usual: dict[str, Any] = {"setting": SETTING}
    if quick:
        found = [case for case in found if case["short"] in (BASELINE, "ratio-10")]
        # SGD comes no further with so few posts.
        usual |= LOOK | {"levels": (1.094,)}
    return made(found, usual)


def _controls() -> list[Case]:
    """Other base rates of everything, and the start that AdamW has."""
    found = [
        {
            "short": f"base-{rate:g}",
            "family": "base rate",
            "label": f"{rate:g}, of everything",
            "r": 1.0,
            "eta_ov": rate,
        }
        for rate in (0.1, 0.3)
    ]
    label = "both times 1/39, the recipe's"
    start = {"short": "start-both", "family": "start of both", "label": label, "start": (1 / GLOROT, 1 / GLOROT)}
    return [case | {"rate": case["eta_ov"]} for case in found] + [start | {"r": 1.0, "eta_ov": RATE}]


def _posts(case: Case) -> Case:
    """A case of gradient descent on this model: Glorot's start, no decay, and AdamW in the place of Adam."""
    own = {"optimizer": "sgd"} | case
    own["start"] = tuple(GLOROT * scale for scale in case.get("start", (1.0, 1.0)))
    if own["optimizer"] == "adam":
        label = case["label"].replace("Adam", "AdamW").split(", rate")[0]
        return own | {"optimizer": "adamw", "label": f"{label}, rate {case['eta_ov']:g}"}
    if case["family"] == "momentum" and not (case["on"].qk.momentum and case["on"].ov.momentum):
        # At the whole rate: a tenth of it for the other circuit would leave that behind embeddings and head.
        own |= {"eta_ov": RATE, "label": f"{case['label']}, rates as they are"}
    return {"rate": RATE, "decay": 0.0} | own

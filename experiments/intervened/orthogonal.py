"""The orthogonal setting: Theorem 1's task, balanced design, from the ansatz; the scalar theory of each arm beside it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from experiments.intervened.arms import Arm, Strengths, Work, both, cases, check_group
from experiments.intervened.descent import groups, train_group
from experiments.intervened.starts import multiple
from experiments.records import Record
from qkdyn.attention import forward
from qkdyn.circuits import Params, collapse, on_ansatz
from qkdyn.errors import RangeError
from qkdyn.interventions import Intervention
from qkdyn.parameterization import Parameterization
from qkdyn.tasks.orthogonal import OrthogonalTask
from qkdyn.theory import Setting, ratio_for
from qkdyn.theory.intervened import imbalance, intervened_at_loss
from qkdyn.train.intervened_runs import IntervenedJob
from qkdyn.train.probe import AnsatzProbe
from qkdyn.train.state import Plan

__all__ = ["SETTING", "arms", "groups", "ready", "train"]

SETTING = "orthogonal"
TASK = OrthogonalTask()
SIZES = Setting(m=TASK.m, n=TASK.n, b=TASK.b, M=TASK.M)
# (mu_ov, mu_qk) at step 0, whichever circuit is factorized: one function for both forms.
START = (0.1, 0.1)
LEVELS = (0.5, 0.1, 0.02)
# As Plan: Adam's epsilon, far below gradients and far above their rounding.
EPS = 1e-6
FORMS = {
    "CACO": (
        1.0,
        Strengths(
            ramps=(60.0, 200.0, 600.0),
            delays=(20.0, 60.0, 180.0),
            decay_qk=(3e-4, 1e-3, 3e-3),
            decay_ov=(1e-4, 3e-4, 6e-4),
            apart_qk=(3e-4, 1e-3, 3e-3),
            apart_ov=(1e-4, 3e-4, 6e-4),
            start_qk=(0.1, 3.0, 10.0, 30.0),
            start_ov=(0.1, 3.0, 10.0, 30.0),
            clip_qk=(0.03, 0.01, 0.003),
            clip_ov=(0.05, 0.02, 0.01),
            normalized=(
                *(("qk", 1.0, r) for r in (0.01, 0.04, 0.16)),
                *(("ov", eta, 1.0 / eta) for eta in (0.1, 0.04, 0.016)),
                *(("both", 0.04, r) for r in (0.3, 1.0, 3.0)),
            ),
            momentum=(0.5, 0.8),
            adam=tuple((rate, r) for rate in (0.01, 0.002) for r in (1.0, 3.0, 10.0)),
        ),
    ),
    "FAFO": (
        0.125,
        Strengths(
            ramps=(60.0, 200.0, 600.0),
            delays=(20.0, 60.0, 180.0),
            decay_qk=(1e-3, 3e-3, 1e-2),
            decay_ov=(3e-4, 1e-3, 3e-3),
            apart_qk=(1.25e-4, 4e-4, 1.25e-3),
            apart_ov=(4e-5, 1.25e-4, 4e-4),
            start_qk=(0.1, 3.0, 10.0, 30.0),
            start_ov=(0.1, 3.0, 10.0, 30.0),
            factors_qk=(2.0, 4.0, 8.0),
            factors_ov=(2.0, 4.0, 8.0),
            clip_qk=(0.06, 0.03, 0.01),
            clip_ov=(0.1, 0.05, 0.02),
            normalized=(
                *(("qk", 0.125, r) for r in (0.03, 0.08, 0.2)),
                *(("ov", eta, 0.125 / eta) for eta in (0.03, 0.015, 0.007)),
                *(("both", 0.015, r) for r in (0.3, 1.0, 3.0)),
            ),
            momentum=(0.5, 0.8),
            adam=tuple((rate, r) for rate in (0.01, 0.002, 5e-4) for r in (1.0, 3.0, 10.0)),
        ),
    ),
}
MAX_STEPS = 8_000


def arms(quick: bool) -> tuple[Arm, ...]:
    """Both forms, every family; quick: one of a kind, one seed, one level."""
    found = []
    for form, (eta_ov, strengths) in FORMS.items():
        for case in cases(strengths, eta_ov, Parameterization(form)):
            name = f"{SETTING}-{form}-{case.pop('short')}"
            found.append(Arm(name=name, setting=SETTING, form=form, levels=LEVELS, max_steps=MAX_STEPS, **case))
    if not quick:
        return tuple(found)
    wanted = ("plain", "ratio-10", "decay-ov-0.0003", "normalized-both-1", "clip-qk-0.01", "adam-10")
    few = (arm for arm in found if arm.name in [f"{SETTING}-CACO-{short}" for short in wanted])
    return tuple(replace(arm, levels=(0.5, 0.1), max_steps=2_000, seeds=arm.seeds[:2]) for arm in few)


def ready(data: Path | None) -> None:
    """Nothing is needed to train on."""


@dataclass(frozen=True)
class Probe:
    """What is measured of a run: `AnsatzProbe`, alpha as attention, and the share of sequences that are answered rightly."""

    task: OrthogonalTask

    def __call__(self, params: Params) -> dict[str, Float[Array, ""]]:
        """Loss (nats), attention (mean mass on class tokens), accuracy, mu_ov and mu_qk."""
        measured = AnsatzProbe(self.task)(params)
        batch = self.task.evaluation()
        logits, _ = forward(collapse(params), batch.X, batch.x_T)
        measured["attention"] = measured.pop("alpha")
        return measured | {"accuracy": jnp.mean(logits.argmax(-1) == batch.y)}


def start(arm: Arm) -> Params:
    """Parameters at step 0: on the ansatz, products scaled, factors out of balance."""
    params = on_ansatz(TASK.directions(), arm.form, mu_ov=START[0], mu_qk=START[1])
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaf * multiple(arm, path[-1].key), params)


def train(arms: Sequence[Arm], work: Work) -> dict[str, Record]:
    """Train a group of arms, or go on from its checkpoint; the record of each, with what theory says.

    Raises:
        InputError: arms that do not train together.
    """
    first = check_group(arms)
    plan = Plan(losses=first.levels, stop_loss=first.levels[-1], max_steps=first.max_steps, records=1, chunk=200)
    with jax.enable_x64(False):
        job = IntervenedJob(TASK, Probe(TASK), plan, kind=first.optimizer, eps=EPS)
        initial = [params for arm in arms for params in [start(arm)] * len(arm.seeds)]
    found = train_group(arms, job, initial, work)
    return {arm.name: {"runs": found[arm.name], "predicted": predicted(arm)} for arm in arms}


def predicted(arm: Arm) -> list[dict[str, Any]]:
    """Attention, update and equivalent constant ratio at each level by the scalar theory; empty where it has none.

    Theory has none of Adam's averages; under SGD a gain is a rate.
    """
    if arm.optimizer != "sgd":
        return []
    initial = tuple(mu * scale for mu, scale in zip(START, arm.start, strict=True))
    on = Intervention(
        **{
            name: replace(getattr(arm.on, name), imbalance=imbalance(SIZES, name, mu, scale) if scale != 1.0 else 0.0)
            for name, mu, scale in zip(("ov", "qk"), initial, arm.apart, strict=True)
        }
    )
    eta_ov, r = arm.eta_ov * arm.gain[0], arm.r * arm.gain[1] / arm.gain[0]
    state = intervened_at_loss(
        SIZES, r, arm.levels, on, until=arm.max_steps, eta_ov=eta_ov, parameterization=arm.form, initial=initial
    )
    return [
        {
            "level": level,
            "step": float(f"{t:.6g}"),
            "attention": float(f"{alpha:.6g}"),
            "r_eq": equivalent(arm.form, float(alpha), level),
        }
        for level, t, alpha in zip(arm.levels, state.t, state.alpha, strict=True)
        if np.isfinite(alpha)
    ]


def in_signs(r: float, level: float) -> float:
    """Attention at this loss where each entry of both single matrices moves by the sign of its gradient: Adam's limit, CACO.

    Any rate will do: it is the clock alone.
    """
    state = intervened_at_loss(SIZES, [r], [level], both(gradient="sign"), until=MAX_STEPS, eta_ov=0.01, initial=START)
    return float(state.alpha[0, 0])


def equivalent(form: str, alpha: float, level: float) -> float | None:
    """The constant ratio that has this attention at this loss from the usual start; None where none has."""
    try:
        return float(f"{float(ratio_for(SIZES, alpha, level, parameterization=form, initial=START)):.5g}")
    except RangeError:
        return None

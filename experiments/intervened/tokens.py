"""Interventions on the synthetic task of Sec. 4: CACO and FAFO from one random function, the gradient in closed form.

Batches, start and rates are those of Figure 2's controlled protocol at scale 1 (eta_OV = 0.1). Every 50 updates the loss is
measured on a fixed evaluation batch, and crossings of the levels are interpolated in ln(loss) between two measurements.

Attention is the mass on the tokens that tell the class: its own ("distinct") and its query's id ("query"), which a circuit may
take either of. The theory of Theorem 1 is not of this task: `predicted` is empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from experiments.intervened.arms import Arm, Strengths, Work, cases, check_group
from experiments.intervened.descent import groups, train_group
from experiments.intervened.starts import multiple
from experiments.records import Record
from experiments.synthetic.arms import Arm as Figure2
from qkdyn.attention import cross_entropy
from qkdyn.circuits import Params
from qkdyn.parameterization import Parameterization
from qkdyn.tasks.tokens import COMMON, TokensTask
from qkdyn.train.intervened_runs import IntervenedJob
from qkdyn.train.state import Plan
from qkdyn.train.token_probe import apply
from qkdyn.train.tokens_gradient import join, loss_and_gradient, split

__all__ = ["SETTING", "arms", "groups", "ready", "train"]

SETTING = "tokens"
TASK = TokensTask()
LEVELS = (0.5, 0.1)
EVERY = 50
# Updates between two returns to the host.
CHUNK = 1_000
ETA = 0.1
# Far below gradients, as in the orthogonal setting.
EPS = 1e-6
# Most updates of a run, and what is done.
FORMS = {
    "CACO": (
        50_000,
        Strengths(
            ramps=(2000.0, 8000.0),
            delays=(1000.0, 4000.0),
            decay_qk=(3e-4, 3e-3),
            decay_ov=(3e-5, 3e-4),
            apart_qk=(3e-5, 1e-4, 3e-4),
            apart_ov=(3e-6, 1e-5, 3e-5),
            start_qk=(0.1, 10.0),
            start_ov=(0.1, 10.0),
            clip_qk=(0.01, 0.003),
            clip_ov=(0.05, 0.01),
            normalized=(
                *(("qk", ETA, r) for r in (0.01, 0.05, 0.2)),
                *(("ov", eta, ETA / eta) for eta in (0.01, 0.004)),
                *(("both", 0.005, r) for r in (0.3, 1.0, 3.0)),
            ),
            momentum=(0.5, 0.9),
            adam=((0.002, 1.0), (0.002, 10.0), (5e-4, 1.0), (5e-4, 10.0)),
        ),
    ),
    "FAFO": (
        10_000,
        Strengths(
            ramps=(300.0, 1000.0),
            delays=(200.0, 600.0),
            decay_qk=(1e-4, 1e-3),
            decay_ov=(1e-4, 1e-3),
            apart_qk=(3e-5, 1e-4, 3e-4),
            apart_ov=(1e-5, 3e-5, 1e-4),
            start_qk=(0.1, 10.0),
            start_ov=(0.1, 10.0),
            factors_qk=(2.0, 4.0),
            factors_ov=(2.0, 4.0),
            clip_qk=(0.01, 0.003),
            clip_ov=(0.1, 0.03),
            normalized=(
                *(("qk", ETA, r) for r in (0.01, 0.05, 0.2)),
                *(("ov", eta, ETA / eta) for eta in (0.02, 0.01)),
                *(("both", 0.01, r) for r in (0.3, 1.0, 3.0)),
            ),
            momentum=(0.5, 0.9),
            adam=((0.001, 1.0), (0.001, 10.0), (2.5e-4, 1.0), (2.5e-4, 10.0)),
        ),
    ),
}
QUICK = ("plain", "ratio-10", "decay-ov-0.001")


def arms(quick: bool) -> tuple[Arm, ...]:
    """Both forms, every family; quick: three arms of FAFO, two seeds, one level."""
    found = []
    for form, (steps, strengths) in FORMS.items():
        for case in cases(strengths, ETA, Parameterization(form)):
            name = f"{SETTING}-{form}-{case.pop('short')}"
            found.append(Arm(name=name, setting=SETTING, form=form, levels=LEVELS, max_steps=steps, **case))
    if not quick:
        return tuple(found)
    wanted = [f"{SETTING}-FAFO-{short}" for short in QUICK]
    few = (arm for arm in found if arm.name in wanted)
    return tuple(replace(arm, levels=LEVELS[:1], max_steps=1_500, seeds=arm.seeds[:2]) for arm in few)


def ready(data: Path | None) -> None:
    """Nothing is needed to train on."""


@dataclass(frozen=True)
class Probe:
    """Means over a fixed evaluation batch of `size` sequences, the one of `TokenProbe`."""

    task: TokensTask
    size: int = 512

    def __call__(self, params: Params) -> dict[str, Float[Array, ""]]:
        """Loss (nats), attention on the tokens that tell the class, the two parts of it, and accuracy."""
        batch = self.task.batch_of(jax.random.key(2**31 - 1), self.size)
        logits, attention = apply(params, batch)
        distinct = attention[:, COMMON:].sum(-1).mean()
        query = jnp.take_along_axis(attention, batch.query[:, None], -1).mean()
        return {
            "loss": cross_entropy(logits, batch.y),
            "attention": distinct + query,
            "distinct": distinct,
            "query": query,
            "accuracy": jnp.mean(logits.argmax(-1) == batch.y),
        }


@dataclass(frozen=True)
class Descent:
    """The gradient of one batch, in closed form."""

    task: TokensTask

    def __call__(self, params: Params, key: Array) -> Params:
        """The whole gradient: zero where no query occurs."""
        # Without the barrier compilers would draw the batch again in every kernel that reads it.
        tally = jax.lax.optimization_barrier(self.task.tally(self.task.words(key)))
        moving = loss_and_gradient(split(params, self.task), tally, self.task)[1]
        return join(jax.tree.map(jnp.zeros_like, params), moving, self.task)


def start(arm: Arm, seed: int) -> Params:
    """Parameters at step 0: Figure 2's common start of this seed, scaled and brought out of balance."""
    params = Figure2("start", arm.form, "common", "common", 1, 1).start(seed)
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaf * multiple(arm, path[-1].key), params)


def train(arms: Sequence[Arm], work: Work) -> dict[str, Record]:
    """Train a group of arms, or go on from its checkpoint; the record of each.

    Raises:
        InputError: arms that do not train together.
    """
    first = check_group(arms)
    plan = Plan(losses=first.levels, stop_loss=first.levels[-1], max_steps=first.max_steps, records=1, chunk=CHUNK)
    with jax.enable_x64(False):
        job = IntervenedJob(
            TASK, Probe(TASK), plan, every=EVERY, kind=first.optimizer, eps=EPS, gradient_of=Descent(TASK)
        )
        initial = [start(arm, seed) for arm in arms for seed in arm.seeds]
    found = train_group(arms, job, initial, work)
    return {arm.name: {"runs": found[arm.name], "predicted": []} for arm in arms}

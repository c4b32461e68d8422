"""What the settings on made sequences share: which arms train together, and a group of them brought to its end."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from experiments.intervened.arms import Arm, Work
from qkdyn.circuits import Params
from qkdyn.config import digest
from qkdyn.train.intervened_runs import IntervenedJob, finish, intervened_run, read
from qkdyn.train.state import RunState, Status
from qkdyn.train.store import key_of


def groups(arms: Sequence[Arm]) -> list[list[Arm]]:
    """Arms of one form and one optimizer."""
    kinds = dict.fromkeys((arm.form, arm.optimizer) for arm in arms)
    return [[arm for arm in arms if (arm.form, arm.optimizer) == kind] for kind in kinds]


def train_group(arms: Sequence[Arm], job: IntervenedJob, initial: Sequence[Params], work: Work) -> dict[str, Any]:
    """Train all runs of a group, or go on from its checkpoint, in single precision.

    Args:
        arms: that have the plan of `job` (`check_group`).
        job: what is trained and measured.
        initial: parameters at step 0 of each run, arm by arm.
        work: checkpoints, signals, progress.

    Returns:
        {arm's name: the lines of its runs}, see `qkdyn.train.intervened_runs.read`.
    """
    most, kind = job.plan.max_steps, f"{arms[0].form}, {arms[0].optimizer}"

    def hear(states: RunState) -> None:
        ended = int((states.status != Status.running).sum())
        done = np.where(states.status == Status.running, states.step, most).mean() / most
        work.update(float(done), f"{kind}: {ended} of {len(states.step)} runs ended")

    each = [
        intervened_run(arm.on, arm.seeds, r=arm.r, eta_ov=arm.eta_ov, kind=arm.optimizer, gain=arm.gain) for arm in arms
    ]
    with jax.enable_x64(False):
        runs = jax.tree.map(lambda *leaves: np.concatenate(leaves), *each)
        key = key_of([digest(arm) for arm in arms])
        states = finish(job, initial, runs, key=key, store=work.store, request=work.request, hear=hear)
    lines = iter(read(job, states, runs.seed.tolist()))
    return {arm.name: [next(lines) for _ in arm.seeds] for arm in arms}

"""Many runs under interventions brought to their end: arms and seeds traced, one program for each task, form and optimizer.

The engine is that of `sweep`: what a run has beside it is its intervention, as numbers, a gain of each circuit's gradient,
and a start of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax

from qkdyn.circuits import Params
from qkdyn.errors import InputError, reject
from qkdyn.interventions import Intervention, Numbers
from qkdyn.optim import circuit_optimizer
from qkdyn.train.engine import Job, advance_runs, start_each
from qkdyn.train.interrupt import Request
from qkdyn.train.intervening import PLACES, Optimizer, check_optimizer, on_circuit, single
from qkdyn.train.keeping import keep, restore
from qkdyn.train.state import Run, RunState, Status
from qkdyn.train.store import Store

# Of parameters and a batch's key.
GradientOf = Callable[[Params, jax.Array], Params]


class IntervenedRun(Run):
    """A run under an intervention; `on` is `Numbers` with an axis of runs first, `gain` (*runs, 2) is of (OV, QK)."""

    on: Any
    gain: Any


@dataclass(frozen=True)
class IntervenedJob(Job):
    """What all runs of a group share, and a program is compiled for.

    Attributes:
        kind: of optimizer, see `on_circuit`.
        eps: of Adam.
        gradient_of: the gradient of a batch, for a task whose batches are not (X, x_T, y); None differentiates the loss of
            `task.batch_of`. Hashable, such as a frozen dataclass that can be called, so that equal jobs share programs.
    """

    kind: Optimizer = "sgd"
    eps: float = 1e-8
    gradient_of: GradientOf | None = None

    def optimizer(self, run: Run) -> optax.GradientTransformationExtraArgs:
        """The optimizer of one run: eta_QK = r eta_OV, the intervention and the gains traced as they are."""
        own: Any = run
        bases = {
            name: on_circuit(own.on, i, optimizer=self.kind, gain=own.gain[i], eps=self.eps)
            for name, i in PLACES.items()
        }
        return circuit_optimizer(bases, multipliers={"qk": run.r, "ov": 1.0}, learning_rate=run.eta_ov)

    def gradient(self, params: Params, key: jax.Array, run: Run) -> Params:
        """What one update of a run descends along."""
        return super().gradient(params, key, run) if self.gradient_of is None else self.gradient_of(params, key)


def intervened_run(
    intervention: Intervention,
    seeds: Sequence[int],
    *,
    r: float,
    eta_ov: float,
    kind: Optimizer = "sgd",
    gain: tuple[float, float] = (1.0, 1.0),
) -> IntervenedRun:
    """One arm as runs that differ in their seed; join arms by `jax.tree.map(lambda *leaves: np.concatenate(leaves), ...)`.

    Args:
        intervention: what is done; its times count updates. Imbalance is the start's: none is allowed here.
        seeds: of the batches.
        r: learning-rate ratio eta_qk / eta_ov.
        eta_ov: OV learning rate.
        kind: of optimizer.
        gain: of the gradients of (OV, QK).

    Raises:
        InputError: the intervention means nothing under this optimizer, or has an imbalance.
    """
    for name in PLACES:
        if imbalance := getattr(intervention, name).imbalance:
            do = "bring the factors of the initial parameters out of balance"
            reject(f"imbalance of the {name} circuit", imbalance, "0 in training", do)
    numbers, count = single(Numbers.of(check_optimizer(intervention, kind))), len(seeds)

    def each(value: Any, dtype: Any) -> np.ndarray:
        value = np.asarray(value)
        return np.tile(value.astype(dtype), (count, *[1] * value.ndim))

    on = jax.tree.map(lambda x: each(x, x.dtype), numbers)
    with_ = {"on": on, "gain": each(gain, np.float32)}
    seed, sampled = np.asarray(seeds, np.int32), np.zeros(count, bool)
    return IntervenedRun(r=each(r, np.float32), seed=seed, sampled=sampled, eta_ov=each(eta_ov, np.float32), **with_)


def finish(
    job: IntervenedJob,
    initial: Sequence[Any],
    runs: IntervenedRun,
    *,
    key: str = "",
    store: Store | None = None,
    request: Request | None = None,
    hear: Callable[[RunState], None] = lambda states: None,
) -> RunState:
    """Train all runs, or go on from the newest checkpoint under `key`, until each has ended; their states, on the host.

    Args:
        job: what is trained and measured; its plan says when a run ends and which losses are matched.
        initial: parameters at step 0 of each run, single precision, arrays of any kind.
        runs: the runs.
        key: names all that decides their bits.
        store: keeps checkpoints; None keeps nothing.
        request: noted signals.
        hear: hears after each chunk where the runs stand.

    Raises:
        Interrupted: a signal was noted; the state is saved. InputError: runs and starts differ in number.
    """
    if len(initial) != len(runs.seed):
        raise InputError(f"initial and runs must be equally many, got {len(initial)} and {len(runs.seed)}")
    states = start_each(initial, runs, job)
    if store and (found := store.newest(key)):
        states, _ = restore(found[0], states)
    for states in advance_runs(states, runs, job):  # noqa: B020
        hear(states)
        keep(states, {}, key, store, request)
    return states


def read(job: IntervenedJob, states: RunState, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """One line for each run, as plain values: how it ended, and what was measured at every level that it reached.

    Returns:
        Lines {"seed", "status", "diverged_at" (None, or the update at which the loss was no number), "end": {"step", ...},
        "matched": [{"level", "step", ...}]}, ... what the job's probe measures; a measure that is no number is None.
    """
    if len(seeds) != len(states.step):
        reject("seeds", len(seeds), f"{len(states.step)}, as many as there are runs")
    lines = []
    for i, seed in enumerate(seeds):
        ended = {name: _short(values[i]) for name, values in states.previous.items()}
        matched = [
            {
                "level": level,
                **{name: _short(values[i, k]) for name, values in states.matched.items() if name != "loss"},
            }
            for k, level in enumerate(job.plan.losses)
            if np.isfinite(states.matched["loss"][i, k])
        ]
        at = int(states.diverged_step[i])
        ending = {"status": Status(states.status[i]).name, "diverged_at": None if at < 0 else at}
        lines.append({"seed": int(seed), **ending, "end": {"step": int(states.step[i]), **ended}, "matched": matched})
    return lines


def _short(value: Any) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None

"""The state of one run: parameters, optimizer, and everything recorded of it so far. No random key: seed and step suffice."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from qkdyn.errors import InputError, RangeError, as_tuple, check_count, check_positive, reject

# Steps are counted in 32 bits; the others keep a slip of the finger from asking for all the memory there is.
MOST = {"max_steps": 10**9, "records": 100_000, "chunk": 10**6, "block": 100_000}
# A mean of single-precision losses below this is rounding.
SMALLEST_LOSS = 1e-6


class Status(IntEnum):
    """What became of a run; the values stand in the records."""

    running = 0
    stopped = 1  # the loss reached `stop_loss`
    budget = 2  # `max_steps` were taken first
    diverged = 3  # the loss was not finite; frozen since


class Run(struct.PyTreeNode):
    """What distinguishes the runs of a grid; all of it traced, so that one program serves every grid.

    Attributes, each (*runs,): r = eta_QK / eta_OV (float32); seed (int32); sampled (bool), whether class tokens are drawn;
    eta_ov (float32). Fields of trees are Any, because JAX also fills trees with shapes, axes and shardings.
    """

    r: Any
    seed: Any
    sampled: Any
    eta_ov: Any


class RunState(struct.PyTreeNode):
    """One run after `step` updates, or many with a leading axis: all that its future and its records need.

    Attributes: params and opt_state, trees; step, status and diverged_step (-1 if none), (*runs,) int32; previous, the last
    step's measures (*runs,), between which crossings are interpolated; records, the measures at `Plan.record_steps`
    (*runs, record); matched, the measures and the step at `Plan.losses` (*runs, level); NaN where not (yet) reached.
    """

    params: Any
    opt_state: Any
    step: Any
    status: Any
    diverged_step: Any
    previous: Any
    records: Any
    matched: Any


@dataclass(frozen=True)
class Plan:
    """What is recorded of every run, and when it ends.

    Attributes:
        losses: levels at which all measures are read, interpolated in ln(loss); decreasing.
        stop_loss: a run ends when its loss is at or below this.
        max_steps: a run ends after this many updates.
        records: about how many points of a trajectory are kept, evenly spaced in the logarithm of the step.
        chunk: updates between two returns to the host. No result depends on it.
        block: runs advanced together by one program; fixed, so that a run's bits do not depend on the grid's size.
    """

    losses: tuple[float, ...] = (0.5, 0.1, 0.01)
    stop_loss: float = 0.01
    max_steps: int = 10_000
    records: int = 200
    chunk: int = 250
    block: int = 5

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            if check_count(name, getattr(self, name)) > most:
                reject(name, getattr(self, name), f"at most {most:,}")
        object.__setattr__(self, "losses", as_tuple("losses", self.losses))
        if not self.losses:
            raise InputError(
                "losses must name at least one level at which runs are compared, got none; e.g. 0.5 0.1 0.01"
            )
        for loss in (*self.losses, self.stop_loss):
            if check_positive("each of losses and stop_loss", loss) < SMALLEST_LOSS:
                reject(
                    "each of losses and stop_loss",
                    loss,
                    f"at least {SMALLEST_LOSS:g}",
                    "below, it is rounding",
                )
        single = [float(np.float32(loss)) for loss in self.losses]
        if single != sorted(set(single), reverse=True):
            raise InputError(f"losses must be decreasing and distinct in single precision, got {self.losses}")
        if self.stop_loss > self.losses[-1]:
            raise InputError(
                f"stop_loss must be at most the smallest of losses, {self.losses[-1]}, got {self.stop_loss}: "
                "a run that stops earlier never reaches it"
            )

    @property
    def record_steps(self) -> np.ndarray:
        """The steps recorded: 0, max_steps, and distinct integers log-spaced between them."""
        spaced = np.geomspace(1, self.max_steps, self.records).round().astype(np.int32)
        return np.unique(np.concatenate([[0], spaced])).astype(np.int32)


def start(params: Any, opt_state: Any, measures: dict[str, jax.ShapeDtypeStruct], plan: Plan) -> RunState:
    """A run before its first step; records and matched states are NaN until they are reached."""
    nothing = {name: jnp.full((), jnp.nan, leaf.dtype) for name, leaf in measures.items()}
    levels, records = len(plan.losses), plan.record_steps.size
    return RunState(
        params=params,
        opt_state=opt_state,
        step=jnp.int32(0),
        status=jnp.int32(Status.running),
        diverged_step=jnp.int32(-1),
        previous=nothing,
        records={name: jnp.full(records, leaf) for name, leaf in nothing.items()},
        matched={name: jnp.full(levels, leaf) for name, leaf in (nothing | {"step": nothing["loss"]}).items()},
    )


def check_reachable(plan: Plan, start_loss: float, parameterization: str) -> None:
    """Raise RangeError unless every level lies below the loss that the run starts from."""
    if not plan.losses[0] < start_loss:
        raise RangeError(
            f"losses must lie in (0, {start_loss:.6g}), below the loss at the start of {parameterization}, "
            f"got {plan.losses[0]}; leave that level out"
        )

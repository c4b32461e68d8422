"""The engine: many runs advanced together, `jit(shard_map(vmap(scan)))` over fixed-size blocks, a host loop over chunks.

The unit of compilation is one block of runs on every device, whatever the size of the grid. After each chunk the runs that
have ended are left out and the others packed into as few blocks as hold them.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

from qkdyn.circuits import Params
from qkdyn.optim import circuit_optimizer
from qkdyn.train.state import Plan, Run, RunState, Status, start
from qkdyn.train.step import Measure, advance

Tree = Any


@dataclass(frozen=True)
class Job:
    """What all runs of a grid share, and a program is compiled for. Equal jobs share their programs.

    Attributes:
        task: gives batches, `batch_of(key, sampled) -> (X, x_T, y)`.
        probe: measures parameters; its "loss" decides crossings and ends.
        plan: what is recorded, and when a run ends.
        base: the optimizer as a function of its rate.
    """

    task: Any
    probe: Measure
    plan: Plan
    base: Callable[[Any], optax.GradientTransformation] = optax.sgd

    def optimizer(self, run: Run) -> optax.GradientTransformationExtraArgs:
        """The per-circuit optimizer of one run: eta_QK = r eta_OV, both traced."""
        return circuit_optimizer(self.base, multipliers={"qk": run.r, "ov": 1.0}, learning_rate=run.eta_ov)


@functools.partial(jax.jit, static_argnames=("job", "devices"))
def advance_block(states: RunState, runs: Run, *, job: Job, devices: int) -> RunState:
    """Take `job.plan.chunk` steps of `devices` x `job.plan.block` runs, one block on each device."""
    plan = job.plan

    def chunk(state: RunState, run: Run) -> RunState:
        step = functools.partial(
            advance, run=run, tx=job.optimizer(run), measure=job.probe, batch_of=job.task.batch_of, plan=plan
        )
        return jax.lax.scan(lambda s, _: (step(s), None), state, length=plan.chunk)[0]

    # Rates and probes are compared with float64 theory: no reduced-precision matrix products where a device offers them.
    def local(states: RunState, runs: Run) -> RunState:
        with jax.default_matmul_precision("highest"):
            return jax.vmap(chunk)(states, runs)

    mesh = jax.make_mesh((devices,), ("runs",), axis_types=(jax.sharding.AxisType.Auto,))
    over_runs = PartitionSpec("runs")
    return jax.shard_map(local, mesh=mesh, in_specs=over_runs, out_specs=over_runs, check_vma=False)(states, runs)


@functools.partial(jax.jit, static_argnames="job")
def _start(params: Params, runs: Run, job: Job) -> RunState:
    def one(params: Params, run: Run) -> RunState:
        return start(params, job.optimizer(run).init(params), jax.eval_shape(job.probe, params), job.plan)

    return jax.vmap(one, in_axes=(None, 0))(params, runs)


def start_runs(params: Params, runs: Run, job: Job) -> RunState:
    """States of all runs before their first step, on the host; all start from the same `params`."""
    return jax.device_get(_start(params, runs, job))


def advance_runs(states: RunState, runs: Run, job: Job) -> Iterator[RunState]:
    """Advance all runs chunk by chunk until each has ended; yields the states of all, on the host, after each chunk.

    Args:
        states: states of N runs, on the host; ended runs are left as they are.
        runs: the N runs.
        job: what is trained, measured and recorded.
    """
    devices = jax.local_device_count()
    width = devices * job.plan.block
    states = jax.tree.map(np.array, states)
    while (active := np.flatnonzero(states.status == Status.running)).size:
        # All groups are dispatched before the first result is waited for.
        groups = [active[i : i + width] for i in range(0, active.size, width)]
        results = [
            advance_block(_take(states, group, width), _take(runs, group, width), job=job, devices=devices)
            for group in groups
        ]
        for group, result in zip(groups, results, strict=True):
            _put(states, group, jax.device_get(result))
        yield states


def _take(tree: Tree, group: np.ndarray, width: int) -> Tree:
    """Rows `group` of every leaf, padded with copies of its first to `width` rows."""
    rows = np.concatenate([group, np.full(width - group.size, group[0])])
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[rows]), tree)


def _put(tree: Tree, group: np.ndarray, rows: Tree) -> None:
    def write(leaf: np.ndarray, new: np.ndarray) -> None:
        leaf[group] = new[: group.size]

    jax.tree.map(write, tree, rows)

"""The engine: many runs advanced together, `jit(shard_map(vmap(scan)))` over fixed-size blocks, a host loop over chunks.

The unit of compilation is one block of runs on every device, whatever the size of the grid. After each chunk the runs that
have ended are left out and the others packed into as few blocks as hold them. A run's bits depend neither on the runs beside
it, nor on its place among them, nor on the number of devices or processes (`Job.exact`).
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from qkdyn.circuits import Params
from qkdyn.optim import circuit_optimizer
from qkdyn.train.processes import to_host
from qkdyn.train.state import Plan, Run, RunState, Status, start
from qkdyn.train.step import Measure, advance, gradient_on

Tree = Any
# Where runs start: all from the same parameters, or each from those of its seed.
Start = Params | Callable[[int], Params]
RUNS = PartitionSpec("runs")


@dataclass(frozen=True)
class Job:
    """What all runs of a grid share, and a program is compiled for. Equal jobs share their programs.

    Attributes:
        task: gives batches, `batch_of(key, sampled) -> (X, x_T, y)`.
        probe: measures parameters; its "loss" decides crossings and ends.
        plan: what is recorded, and when a run ends.
        base: the optimizer as a function of its rate.
        exact: blocks of `plan.block` runs on every device, so that a run has the same bits on any number of devices. If
            not, each device takes as many runs at once as there are for it: the same only to rounding. On two cores that is
            slower (0.60 of the run-steps per second); on accelerators it has not been measured.
        every: updates between two measurements.
    """

    task: Any
    probe: Measure
    plan: Plan
    base: Callable[[Any], optax.GradientTransformation] = optax.sgd
    exact: bool = True
    every: int = 1

    def optimizer(self, run: Run) -> optax.GradientTransformationExtraArgs:
        """The per-circuit optimizer of one run: eta_QK = r eta_OV, both traced."""
        return circuit_optimizer(self.base, multipliers={"qk": run.r, "ov": 1.0}, learning_rate=run.eta_ov)

    def gradient(self, params: Params, key: Array, run: Run) -> Params:
        """What one update of a run descends along, on the batch of `key`."""
        return gradient_on(self.task.batch_of)(params, key, run)

    def block(self, active: int, devices: int) -> int:
        """How many runs each device takes at once when `active` runs are left."""
        if self.exact:
            return self.plan.block
        # Powers of two: few sizes, few programs.
        return max(self.plan.block, 1 << (-(-active // devices) - 1).bit_length())


@functools.partial(jax.jit, static_argnames=("job", "mesh"))
def advance_block(states: RunState, runs: Run, *, job: Job, mesh: Mesh) -> RunState:
    """Take `job.plan.chunk` steps of all given runs, an equal share of them on each device of the mesh."""
    plan = job.plan

    def chunk(state: RunState, run: Run) -> RunState:
        parts: dict[str, Any] = {"measure": job.probe, "gradient": job.gradient, "plan": plan, "every": job.every}
        step = functools.partial(advance, run=run, tx=job.optimizer(run), **parts)
        return jax.lax.scan(lambda s, _: (step(s), None), state, length=-(-plan.chunk // job.every))[0]

    # Rates and probes are compared with float64 theory: no reduced-precision matrix products where a device has them.
    def local(states: RunState, runs: Run) -> RunState:
        with jax.default_matmul_precision("highest"):
            return jax.vmap(chunk)(states, runs)

    return jax.shard_map(local, mesh=mesh, in_specs=RUNS, out_specs=RUNS, check_vma=False)(states, runs)


@functools.partial(jax.jit, static_argnames="job")
def _start(params: Params, runs: Run, job: Job) -> RunState:
    def one(params: Params, run: Run) -> RunState:
        return start(params, job.optimizer(run).init(params), jax.eval_shape(job.probe, params), job.plan)

    return jax.vmap(one)(params, runs)


def start_runs(initial: Start, runs: Run, job: Job) -> RunState:
    """States of all runs before their first step, on the host; `initial` as in `run_sweep`."""
    return start_each([params_of(initial, seed) for seed in runs.seed.tolist()], runs, job)


def start_each(initial: Sequence[Any], runs: Run, job: Job) -> RunState:
    """States of all runs before their first step, on the host, each run from parameters of its own."""
    params = jax.tree.map(lambda *leaves: np.stack(leaves), *initial)
    return jax.tree.map(np.array, jax.device_get(_start(params, runs, job)))


def params_of(initial: Start, seed: int) -> Params:
    """Where a run of this seed starts."""
    return initial(seed) if callable(initial) else initial


def advance_runs(states: RunState, runs: Run, job: Job) -> Iterator[RunState]:
    """Advance all runs chunk by chunk until each has ended; yields the states of all, on the host, after each chunk.

    Args:
        states: states of N runs, on the host, the same in every process; ended runs are left as they are.
        runs: the N runs.
        job: what is trained, measured and recorded.

    Raises:
        PeerError: another process of a distributed run is gone.
    """
    mesh = jax.make_mesh((jax.device_count(),), ("runs",), axis_types=(jax.sharding.AxisType.Auto,))
    states = jax.tree.map(np.array, states)
    while (active := np.flatnonzero(states.status == Status.running)).size:
        width = mesh.size * job.block(active.size, mesh.size)
        # All groups are dispatched before the first result is waited for.
        groups = [active[i : i + width] for i in range(0, active.size, width)]
        results = [
            advance_block(take_rows(states, g, width, mesh), take_rows(runs, g, width, mesh), job=job, mesh=mesh)
            for g in groups
        ]
        for group, result in zip(groups, results, strict=True):
            put_rows(states, group, to_host(result))
        yield states


def take_rows(tree: Tree, group: np.ndarray, width: int, mesh: Mesh) -> Tree:
    """Rows `group` of every leaf, padded with copies of its first to `width` rows and spread over the devices."""
    rows = np.concatenate([group, np.full(width - group.size, group[0])])
    sharding = NamedSharding(mesh, RUNS)

    def spread(leaf: np.ndarray) -> jax.Array:
        taken = leaf[rows]
        return jax.make_array_from_callback(taken.shape, sharding, lambda index: taken[index])

    return jax.tree.map(spread, tree)


def put_rows(tree: Tree, group: np.ndarray, rows: Tree) -> None:
    """Write the first rows of `rows`, whose others are padding, into rows `group` of every leaf, in place."""

    def write(leaf: np.ndarray, new: np.ndarray) -> None:
        leaf[group] = new[: group.size]

    jax.tree.map(write, tree, rows)

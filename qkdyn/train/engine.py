"""The engine: many runs advanced together, `jit(shard_map(vmap(scan)))` over fixed-size blocks, a host loop over chunks.

The unit of compilation is one block of runs on every device, whatever the size of the grid. After each chunk the runs that
have ended are left out and the others packed into as few blocks as hold them.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from qkdyn.circuits import Params
from qkdyn.optim import circuit_optimizer
from qkdyn.train.state import Plan, Run, RunState, Status, start
from qkdyn.train.step import BatchOf, Measure, advance

Tree = Any


def optimizer(base: Callable[[Any], Any], run: Run) -> Any:
    """The per-circuit optimizer of one run: eta_QK = r eta_OV, both traced."""
    return circuit_optimizer(base, multipliers={"qk": run.r, "ov": 1.0}, learning_rate=run.eta_ov)


def compile_block(base: Callable[[Any], Any], measure: Measure, batch_of: BatchOf, plan: Plan) -> Callable[..., RunState]:
    """A compiled function (states, runs) -> states that takes `plan.chunk` steps of devices x `plan.block` runs."""
    mesh = jax.make_mesh((jax.local_device_count(),), ("runs",), axis_types=(jax.sharding.AxisType.Auto,))
    over_runs = PartitionSpec("runs")

    def chunk(state: RunState, run: Run) -> RunState:
        tx = optimizer(base, run)
        step = functools.partial(advance, run=run, tx=tx, measure=measure, batch_of=batch_of, plan=plan)
        return jax.lax.scan(lambda s, _: (step(s), None), state, length=plan.chunk)[0]

    # Rates and probes are compared with float64 theory: no reduced-precision matrix products where a device offers them.
    def local(states: RunState, runs: Run) -> RunState:
        with jax.default_matmul_precision("highest"):
            return jax.vmap(chunk)(states, runs)

    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=over_runs, out_specs=over_runs, check_vma=False))


def start_runs(params: Params, runs: Run, base: Callable[[Any], Any], measure: Measure, plan: Plan) -> RunState:
    """States of all runs before their first step, on the host; `params` has the runs as its leading axis."""
    shapes = jax.eval_shape(measure, jax.tree.map(lambda leaf: leaf[0], params))
    one = jax.vmap(lambda p, run: start(p, optimizer(base, run).init(p), shapes, plan))
    return jax.device_get(jax.jit(one)(params, runs))


def advance_runs(block: Callable[..., RunState], states: RunState, runs: Run, plan: Plan) -> Iterator[RunState]:
    """Advance all runs chunk by chunk until each has ended; yields the states of all runs, on the host, after each chunk.

    Args:
        block: what `compile_block` returned.
        states: states of N runs; ended runs are left as they are.
        runs: the N runs.
        plan: the plan that `block` was compiled for.
    """
    width = jax.local_device_count() * plan.block
    while (active := np.flatnonzero(states.status == Status.running)).size:
        states = jax.tree.map(np.array, states)
        # All groups are dispatched before the first result is waited for.
        groups = [active[i : i + width] for i in range(0, active.size, width)]
        results = [block(_take(states, group, width), _take(runs, group, width)) for group in groups]
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

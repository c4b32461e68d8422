"""Training on the synthetic task of Sec. 4: many runs of one parameterization together, by SGD on fresh batches.

The unit of compilation is one epoch-structured chunk of a block of runs on every device, as in `engine`: a run's bits depend
neither on the runs beside it nor on their number, and seed and step are all that a resumed run needs.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Float

from qkdyn.attention import cross_entropy
from qkdyn.circuits import Params, parameterization_of
from qkdyn.errors import InputError, check_count, check_positive, reject
from qkdyn.tasks.tokens import VOCABULARY, Tally, TokenBatch, TokensTask
from qkdyn.train.engine import RUNS, put_rows, take_rows
from qkdyn.train.processes import to_host
from qkdyn.train.step import data_key
from qkdyn.train.token_probe import apply
from qkdyn.train.tokens_gradient import join, loss_and_gradient, split

# Runs advanced together on a device: few enough for their parameters to stay in a core's cache.
BLOCK = 4
# The stop rule of the published notebooks compares the loss summed since the last multiple of this many epochs.
RESET = 100
Measure = Callable[[Params], dict[str, Array]]


class TokenRun(struct.PyTreeNode):
    """What distinguishes runs, each (*runs,) and traced; see `token_runs`."""

    seed: Any
    eta_ov: Any
    eta_qk: Any
    ramp: Any
    total: Any
    stop_loss: Any


class TokenState(struct.PyTreeNode):
    """Runs after `step` updates.

    Attributes, each with a leading axis of runs: params; step (int32); passed, mean losses of the epochs since the last
    reset, summed; stopped (bool).
    """

    params: Any
    step: Any
    passed: Any
    stopped: Any


def token_runs(
    seeds: Sequence[int],
    *,
    eta_ov: float,
    eta_qk: float,
    ramp: float = 1.0,
    total: int = 1,
    stop_loss: float = 0.0,
) -> TokenRun:
    """Runs that differ in their seed, which chooses the batches; join several by `jax.tree.map(np.concatenate...)`.

    Args:
        seeds: integers in [0, 2^31).
        eta_ov: learning rate of the output-value circuit, >= 0.
        eta_qk: learning rate of the query-key circuit at the start, >= 0.
        ramp: what eta_qk is multiplied by after `total` steps, growing linearly in the step from 1.
        total: steps of the whole run.
        stop_loss: a run ends after an epoch when the mean losses of the epochs since the last multiple of `RESET` sum to
            at most this; 0 never stops.

    Raises:
        InputError: a value that is not as said.
    """
    for seed in seeds:
        if check_count("each seed", seed, minimum=0) >= 2**31:
            reject("each seed", seed, "an integer in [0, 2^31)")
    rates = {"eta_ov": eta_ov, "eta_qk": eta_qk, "ramp": ramp, "stop_loss": stop_loss}
    rates = {name: check_positive(name, value, zero=True, least=1e-30, most=1e30) for name, value in rates.items()}
    rates["total"] = check_count("total", total)
    full = {name: np.full(len(seeds), value, np.float32) for name, value in rates.items()}
    return TokenRun(seed=np.asarray(seeds, np.int32), **full)


def start_tokens(params: Params) -> TokenState:
    """States before the first step, on the host.

    Args:
        params: float32, each matrix (runs, 50, 50).

    Raises:
        InputError: matrices of another shape or type, or not finite.
    """
    parameterization_of(params)
    sizes = set()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        array = np.asarray(leaf)
        sizes.add(array.shape[:1])
        if array.shape[1:] != (VOCABULARY, VOCABULARY) or array.dtype != np.float32 or not np.isfinite(array).all():
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            reject(name, f"{array.dtype}{list(array.shape)}", f"finite float32[runs, {VOCABULARY}, {VOCABULARY}]")
    if len(sizes) > 1 or sizes == {(0,)}:
        raise InputError(f"params must have one number of runs, at least one, got {sorted(sizes)}")
    count = sizes.pop()[0]
    return TokenState(
        params=jax.tree.map(np.array, params),
        step=np.zeros(count, np.int32),
        passed=np.zeros(count, np.float32),
        stopped=np.zeros(count, bool),
    )


def batch_loss(params: Params, batch: TokenBatch) -> Float[Array, ""]:
    """Training loss of one batch: cross entropy over the whole vocabulary, scores scaled by 1/sqrt(50)."""
    return cross_entropy(apply(params, batch)[0], batch.y)


def reference(params: Params, tally: Tally, task: TokensTask) -> tuple[Float[Array, ""], Params]:
    """Loss and gradient of one batch by automatic differentiation: what `tokens_gradient` has to agree with."""
    return jax.value_and_grad(batch_loss)(params, task.place(tally))


def sgd(params: Params, gradient: Params, run: TokenRun, step: Array) -> Params:
    """One update: eta_OV for one circuit, eta_QK times its ramp at this step for the other."""
    growth = 1.0 + (run.ramp - 1.0) * step.astype(jnp.float32) / run.total
    rates = {"qk": run.eta_qk * growth, "ov": run.eta_ov}
    return {
        circuit: jax.tree.map(lambda w, g, rate=rate: w - rate * g, params[circuit], gradient[circuit])
        for circuit, rate in rates.items()
    }


def _epoch(
    state: TokenState, run: TokenRun, task: TokensTask, batches: int, reset: int, closed: bool
) -> tuple[TokenState, Array]:
    """One epoch of one run: `batches` updates, then the stop rule; a run that has stopped is returned as it is."""
    gradient = loss_and_gradient if closed else reference

    def update(carry: Any, _: None) -> tuple[Any, None]:
        params, step, losses, words, tally = carry
        loss, grad = gradient(params, tally, task)
        # Random words two steps ahead and their tally one step ahead go through the carry: compilers would otherwise
        # repeat the drawing in every kernel that reads counts.
        ahead = task.words(data_key(run.seed, step + 2))
        return (sgd(params, grad, run, step), step + 1, losses + loss, ahead, task.tally(words)), None

    params = split(state.params, task) if closed else state.params
    first, second = (task.words(data_key(run.seed, state.step + ahead)) for ahead in (0, 1))
    carry = params, state.step, jnp.float32(0), second, task.tally(first)
    (params, step, losses, _, _), _ = jax.lax.scan(update, carry, length=batches)
    loss = losses / batches
    passed = state.passed + loss
    following = TokenState(
        params=join(state.params, params, task) if closed else params,
        step=step,
        passed=jnp.where(step % (reset * batches) == 0, 0.0, passed),
        stopped=passed <= run.stop_loss,
    )
    following = jax.tree.map(lambda old, new: jnp.where(state.stopped, old, new), state, following)
    return following, jnp.where(state.stopped, jnp.nan, loss)


@functools.partial(jax.jit, static_argnames=("task", "epochs", "batches", "measure", "reset", "closed", "mesh"))
def advance_token_block(
    states: TokenState,
    runs: TokenRun,
    *,
    task: TokensTask,
    epochs: int,
    batches: int,
    measure: Measure | None,
    reset: int,
    closed: bool,
    mesh: Mesh,
) -> tuple[TokenState, dict[str, Array]]:
    """Take `epochs` x `batches` steps of all given runs, an equal share of them on each device of the mesh."""

    def chunk(state: TokenState, run: TokenRun) -> tuple[TokenState, dict[str, Array]]:
        def epoch(state: TokenState, _: None) -> tuple[TokenState, dict[str, Array]]:
            state, loss = _epoch(state, run, task, batches, reset, closed)
            return state, {"loss": loss} | (measure(state.params) if measure else {})

        return jax.lax.scan(epoch, state, length=epochs)

    def local(states: TokenState, runs: TokenRun) -> tuple[TokenState, dict[str, Array]]:
        with jax.default_matmul_precision("highest"):
            return jax.vmap(chunk)(states, runs)

    return jax.shard_map(local, mesh=mesh, in_specs=RUNS, out_specs=RUNS, check_vma=False)(states, runs)


def advance_tokens(
    states: TokenState,
    runs: TokenRun,
    task: TokensTask,
    *,
    epochs: int,
    batches: int,
    measure: Measure | None = None,
    reset: int = RESET,
    closed: bool = True,
    block: int = BLOCK,
) -> tuple[TokenState, dict[str, np.ndarray]]:
    """Advance all runs by `epochs` epochs of `batches` updates each; those that have stopped stay as they are.

    Args:
        states: N runs, on the host, at the end of an epoch.
        runs: the N runs.
        task: what is learned.
        epochs: epochs to take now; no result depends on how a run is cut into calls.
        batches: updates of an epoch.
        measure: further measures of one run's parameters at the end of each epoch, e.g. the loss on a fixed batch.
        reset: the stop rule sums mean losses since the last multiple of this many epochs.
        closed: the closed-form gradient; otherwise automatic differentiation, equal to rounding.
        block: runs advanced together on a device; a run has the same bits beside any other runs in blocks of one size.

    Returns:
        The states, on the host, and for each measure an array (N, epochs, ...): loss is the mean training loss of each
        epoch, NaN after a run has stopped.

    Raises:
        InputError: epochs, batches or block that are not positive, or states and runs that differ in number.
    """
    check_count("epochs", epochs)
    check_count("batches", batches)
    check_count("block", block)
    check_count("reset", reset)
    count = len(states.step)
    if len(runs.seed) != count:
        raise InputError(f"states and runs must be equally many, got {count} and {len(runs.seed)}")
    program = functools.partial(
        advance_token_block,
        task=task,
        epochs=epochs,
        batches=batches,
        measure=measure,
        reset=reset,
        closed=closed,
    )
    return by_blocks(program, states, runs, block)


def by_blocks(program: Callable[..., tuple[Any, Any]], states: Any, runs: Any, block: int = BLOCK) -> tuple[Any, Any]:
    """`program(states, runs, mesh=mesh)` -> (states, records) for any number of runs, `block` of them on each device at once.

    Args:
        program: a compiled function of trees whose leaves have an axis of runs first.
        states: N states, on the host.
        runs: the N runs.
        block: runs of a device; fixed, so that one program serves every N.

    Returns:
        The new states, and the records, on the host.
    """
    mesh = jax.make_mesh((jax.device_count(),), ("runs",), axis_types=(jax.sharding.AxisType.Auto,))
    count, width = len(runs.seed), mesh.size * block
    groups = [np.arange(i, min(i + width, count)) for i in range(0, count, width)]
    # All groups are dispatched before the first result is waited for.
    results = [program(take_rows(states, g, width, mesh), take_rows(runs, g, width, mesh), mesh=mesh) for g in groups]
    states, records = jax.tree.map(np.array, states), []
    for group, (advanced, record) in zip(groups, results, strict=True):
        put_rows(states, group, to_host(advanced))
        records.append(jax.tree.map(lambda leaf: leaf[: group.size], to_host(record)))  # noqa: B023
    return states, jax.tree.map(lambda *parts: np.concatenate(parts), *records)

"""Fig. 3: the output-value circuit alone, under attention that is fixed to put alpha on the tokens of the class's own."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Float

from qkdyn.circuits import torch_uniform
from qkdyn.errors import InputError, check_count, check_positive, reject
from qkdyn.tasks.tokens import COMMON, VOCABULARY, Tally, TokensTask, rows
from qkdyn.train.engine import RUNS
from qkdyn.train.step import data_key
from qkdyn.train.tokens import by_blocks


class FixedRun(struct.PyTreeNode):
    """What distinguishes runs, each (*runs,) and traced: seed; alpha, the attention on the class's own tokens; eta."""

    seed: Any
    alpha: Any
    eta: Any


class FixedState(struct.PyTreeNode):
    """Runs after `step` updates: params, {"W_OV"} or {"W_V", "W_O"}, with "b_OV" or "b_V", "b_O" if biased; and step."""

    params: Any
    step: Any


def fixed_runs(seeds: Sequence[int], alpha: Sequence[float], *, eta: float = 0.01) -> FixedRun:
    """One run for each pair of seed and alpha in [0, 1]; seeds choose the batches and, in `start_fixed`, the parameters.

    Raises:
        InputError: lists that differ in length, or a value that is not as said.
    """
    if len(seeds) != len(alpha) or not len(seeds):
        raise InputError(f"seeds and alpha must be equally many, at least one, got {len(seeds)} and {len(alpha)}")
    for seed, value in zip(seeds, alpha, strict=True):
        if check_count("each seed", seed, minimum=0) >= 2**31:
            reject("each seed", seed, "an integer in [0, 2^31)")
        if check_positive("each alpha", value, zero=True) > 1:
            reject("each alpha", value, "in [0, 1]")
    eta = check_positive("eta", eta, least=1e-30, most=1e30)
    full = np.full(len(seeds), eta, np.float32)
    return FixedRun(seed=np.asarray(seeds, np.int32), alpha=np.asarray(alpha, np.float32), eta=full)


def start_fixed(runs: FixedRun, *, factorized: bool, bias: bool) -> FixedState:
    """States before the first step, on the host: every matrix and bias by PyTorch's default, from the run's seed."""
    names = ("V", "O") if factorized else ("OV",)
    draw = torch_uniform()

    def one(seed: Array) -> dict[str, Array]:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 2**31), 2 * len(names))
        square = (VOCABULARY, VOCABULARY)
        params = {f"W_{name}": draw(key, square, jnp.float32) for name, key in zip(names, keys[::2], strict=True)}
        if bias:
            # A bias has the bound of its matrix, whose inputs are as many as the bias has entries.
            params |= {
                f"b_{name}": draw(key, (VOCABULARY,), jnp.float32) for name, key in zip(names, keys[1::2], strict=True)
            }
        return params

    params = jax.tree.map(np.array, jax.vmap(one)(jnp.asarray(runs.seed)))
    return FixedState(params=params, step=np.zeros(len(runs.seed), np.int32))


def beside(alpha: Any, offset: Any) -> Any:
    """The sum alpha + offset; where that is above 1, and so no attention, alpha - offset."""
    return jnp.where(alpha + offset > 1, alpha - offset, alpha + offset)


def mixed(task: TokensTask, tally: Tally, alpha: Array | float) -> Float[Array, "V N"]:
    """The attended mean of each sequence: alpha spread over its tokens above id 9, 1 - alpha over all others, query included.

    A sequence without any token above id 9, of which there is hardly ever one, has 1 - alpha in all.
    """
    n = task.columns(tally)
    own, others = n[COMMON:], n[:COMMON]
    m = own.sum(0, keepdims=True)
    return jnp.concatenate([others * ((1 - alpha) / (task.context + 1 - m)), own * (alpha / jnp.maximum(m, 1))])


def fixed_loss(params: dict[str, Array], task: TokensTask, tally: Tally, alpha: Array | float) -> Float[Array, ""]:
    """Cross entropy over the whole vocabulary of one batch."""
    x = mixed(task, tally, alpha)
    for name in ("V", "O") if "W_V" in params else ("OV",):
        x = params[f"W_{name}"] @ x
        if f"b_{name}" in params:
            x = x + params[f"b_{name}"][:, None]
    label = rows(task.one_hot(tally.c), task.label_ids, VOCABULARY)
    return -(label * jax.nn.log_softmax(x, 0)).sum() / x.shape[1]


def _fresh(
    state: FixedState, run: FixedRun, task: TokensTask, fresh: int, offsets: tuple[float, ...], paired: bool
) -> Float[Array, " offset"]:
    """Losses on fresh batches at `beside(alpha, offset)` for each offset: on the same ones, or each on batches of its own."""
    key, count = data_key(run.seed, state.step), len(offsets)
    shifted = beside(run.alpha, jnp.array(offsets))

    def words(number: Array | int) -> Array:
        return task.words(jax.random.fold_in(key, number))

    def add(carry: Any, number: Array) -> tuple[Any, None]:
        total, ahead, tally = carry
        if paired:
            losses = jnp.stack([fixed_loss(state.params, task, tally, shifted[i]) for i in range(count)])
        else:
            own = number % count
            losses = fixed_loss(state.params, task, tally, shifted[own]) * (jnp.arange(count) == own)
        # Drawn ahead for the same reason as in `update` below.
        return (total + losses, words(number + 2), task.tally(ahead)), None

    start = jnp.zeros(count), words(1), task.tally(words(0))
    return jax.lax.scan(add, start, jnp.arange(fresh if paired else fresh * count))[0][0] / fresh


@functools.partial(jax.jit, static_argnames=("task", "epochs", "batches", "fresh", "offsets", "paired", "mesh"))
def _advance_block(
    states: FixedState,
    runs: FixedRun,
    *,
    task: TokensTask,
    epochs: int,
    batches: int,
    fresh: int,
    offsets: tuple[float, ...],
    paired: bool,
    mesh: Mesh,
) -> tuple[FixedState, Array]:
    def chunk(state: FixedState, run: FixedRun) -> tuple[FixedState, Array]:
        def update(carry: Any, _: None) -> tuple[Any, None]:
            params, step, words, tally = carry
            gradient = jax.grad(fixed_loss)(params, task, tally, run.alpha)
            params = jax.tree.map(lambda w, g: w - run.eta * g, params, gradient)
            # As in `tokens`: drawing two steps ahead, so that no kernel repeats it.
            return (params, step + 1, task.words(data_key(run.seed, step + 2)), task.tally(words)), None

        def epoch(state: FixedState, _: None) -> tuple[FixedState, Array]:
            losses = _fresh(state, run, task, fresh, offsets, paired)
            first, second = (task.words(data_key(run.seed, state.step + ahead)) for ahead in (0, 1))
            carry = state.params, state.step, second, task.tally(first)
            (params, step, _, _), _ = jax.lax.scan(update, carry, length=batches)
            return FixedState(params=params, step=step), losses

        state, losses = jax.lax.scan(epoch, state, length=epochs)
        last = _fresh(state, run, task, fresh, offsets, paired)
        return state, jnp.concatenate([losses, last[None, :]])

    def local(states: FixedState, runs: FixedRun) -> tuple[FixedState, Array]:
        with jax.default_matmul_precision("highest"):
            return jax.vmap(chunk)(states, runs)

    return jax.shard_map(local, mesh=mesh, in_specs=RUNS, out_specs=RUNS, check_vma=False)(states, runs)


def advance_fixed(
    states: FixedState,
    runs: FixedRun,
    task: TokensTask,
    *,
    epochs: int,
    batches: int,
    fresh: int,
    offsets: tuple[float, ...] = (0.0, 0.005),
    paired: bool = True,
) -> tuple[FixedState, np.ndarray]:
    """Train all runs by SGD for `epochs` epochs of `batches` updates.

    Args:
        states: N runs, on the host.
        runs: the N runs.
        task: what is learned; Fig. 3's has batch 128, equal and swapped.
        epochs: epochs to take.
        batches: updates of an epoch.
        fresh: batches that each loss is the mean over.
        offsets: the losses are taken at `beside(alpha, offset)` for each of these, parameters being the same.
        paired: on the same batches at every offset; otherwise each offset has batches of its own, as in the notebook.

    Returns:
        The states, on the host, and losses (N, epochs + 1, offset): before the first epoch and after each.

    Raises:
        InputError: counts that are not positive, or states and runs that differ in number.
    """
    for name, value in (("epochs", epochs), ("batches", batches), ("fresh", fresh)):
        check_count(name, value)
    if len(states.step) != len(runs.seed):
        raise InputError(f"states and runs must be equally many, got {len(states.step)} and {len(runs.seed)}")
    program = functools.partial(
        _advance_block, task=task, epochs=epochs, batches=batches, fresh=fresh, offsets=tuple(offsets), paired=paired
    )
    return by_blocks(program, states, runs)

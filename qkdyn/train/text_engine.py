"""Many runs on text together: seeds that see their own batches, and arms that share their seed's start and batches.

Leaves of the state are (seed, arm, ...); the token embedding and its moments are tables of rows, (seed * vocabulary, arm, d).
A batch's rows are read and written for all arms at once, and only those (`lazy_adam`, `lazy_momentum`).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from qkdyn.circuits import circuit_labels
from qkdyn.errors import check_count, check_positive, reject
from qkdyn.interventions import Intervention, Numbers
from qkdyn.optim import circuit_optimizer
from qkdyn.train import lazy_adam, lazy_momentum
from qkdyn.train.intervening import PLACES, on_circuit
from qkdyn.train.lazy_adam import B1, B2, EPS, NEVER
from qkdyn.train.text_batches import Batches
from qkdyn.transformer import TransformerConfig, forward, init_transformer


class Rule(NamedTuple):
    """How the rows of the embedding are updated.

    Attributes:
        moments: how many tables of moments there are.
        catch_up: (rows, *moments, last, now, idle) -> (rows, *moments), idle updates made up for.
        update: (rows, *moments, gradient, now, idle) -> (rows, *moments).
    """

    moments: int
    catch_up: Callable[..., tuple[Any, ...]]
    update: Callable[..., tuple[Any, ...]]


RULES = {
    "adamw": Rule(2, lazy_adam.catch_up, lazy_adam.update),
    "sgd": Rule(1, lazy_momentum.catch_up, lazy_momentum.update),
}


@dataclass(frozen=True)
class TextJob:
    """What all runs share; static, one program for each.

    Attributes:
        model: the transformer.
        steps: updates in all.
        warmup: updates over which the rate rises from 0; it then falls to 0 along half a cosine.
        clip: largest norm of the gradient; None does not clip.
        widths: bucket widths.
        apart: names of parameters labelled "rest", whatever their circuit.
        stale: some arm's frozen gradients add up and take part in clipping.
        optimizer: "adamw", or "sgd" as torch has it: decay is added to the gradient, and the rate scales the momentum.
        momentum: of sgd, at least 0 and below 1.
        intervened: something is done to the circuits of some arm, see `TextRuns.numbers`.
    """

    model: TransformerConfig
    steps: int
    warmup: int
    widths: tuple[int, ...]
    clip: float | None = 1.0
    apart: tuple[str, ...] = ()
    stale: bool = False
    optimizer: str = "adamw"
    momentum: float = 0.0
    intervened: bool = False

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_count("warmup", self.warmup, minimum=0)
        if self.clip is not None:
            check_positive("clip", self.clip)
        if self.optimizer not in RULES:
            reject("optimizer", self.optimizer, "one of " + ", ".join(RULES))
        if self.optimizer == "sgd" and not 0 <= self.momentum < 1:
            reject("momentum", self.momentum, "at least 0 and below 1")
        if self.stale and self.clip is None:
            reject("stale", self.stale, "False without clipping, in which alone frozen gradients take part")
        if self.model.tied or self.model.dropout:
            reject(
                "model", self.model, "without dropout and with a head of its own", "this engine keeps embeddings apart"
            )


class TextRuns(NamedTuple):
    """Settings of A arms, traced: one program serves them all.

    Attributes:
        rate: (A,), base learning rate.
        multipliers: for each label (A,).
        decay: for each label (A,), weight decay.
        stale: (A,), whether frozen gradients add up and take part in clipping.
        numbers: what is done to the circuits of each arm, `Numbers` with an axis of A first; () without interventions. Their
            decay takes the place of that of "qk" and "ov" here, and of sgd also their momentum.
        gain: (A, 2), what the gradients of the circuits are multiplied by, after clipping, in the order of `numbers`; alike.
    """

    rate: Any
    multipliers: dict[str, Any]
    decay: dict[str, Any]
    stale: Any
    numbers: Any = ()
    gain: Any = ()


class TextState(NamedTuple):
    """S seeds x A arms between two updates.

    Attributes:
        params: everything but the token embedding, leaves (S, A, ...).
        opt: the optimizer's state of these.
        table: token embeddings, (S * vocabulary, A, d).
        moments: of the table, alike: first and second of adamw, momenta of sgd.
        last: (S * vocabulary,), the update that touched each row last.
        left: gradients of frozen parameters as they were left, leaves (S, A, ...); () where no arm has any.
        step: updates made.
    """

    params: Any
    opt: Any
    table: Any
    moments: tuple[Any, ...]
    last: Any
    left: Any
    step: Any


def cosine(xp: Any, step: Any, warmup: int, steps: int) -> Any:
    """Share of the base rate at update `step`, from 0: linear warm-up from 0, then half a cosine to 0."""
    progress = (step - warmup) / max(1, steps - warmup)
    return xp.where(step < warmup, step / max(1, warmup), 0.5 * (1 + xp.cos(np.pi * progress)))


def labels_of(job: TextJob, params: Any) -> Any:
    """The group of every parameter."""

    def label(path: Any, found: str) -> str:
        return "rest" if path[-1].key in job.apart else found

    return jax.tree_util.tree_map_with_path(label, circuit_labels(params))


def idle_of(job: TextJob, runs: TextRuns) -> lazy_adam.Idle | lazy_momentum.Idle:
    """The tables for embedding rows between two readings.

    Raises:
        InputError: the job says of interventions what the runs do not.
    """
    if not job.intervened == bool(runs.numbers) == bool(len(runs.gain)):
        reject("intervened", job.intervened, "True exactly where the runs have numbers of interventions")
    schedule = cosine(np, np.arange(job.steps, dtype=np.float64), job.warmup, job.steps)
    rate = np.asarray(runs.rate, np.float64) * np.asarray(runs.multipliers["embed"], np.float64)
    rate, decay = schedule[:, None] * rate, np.asarray(runs.decay["embed"])
    if job.optimizer == "sgd":
        return lazy_momentum.idle_tables(rate, decay, np.full(decay.shape, job.momentum))
    return lazy_adam.idle_tables(rate, decay)


def begin(job: TextJob, seeds: tuple[int, ...], arms: int) -> TextState:
    """The state before the first update: all arms of a seed start alike."""
    return jax.jit(_begin, static_argnums=(0, 2))(job, jnp.asarray(seeds, jnp.uint32), arms)


def _begin(job: TextJob, seeds: Any, arms: int) -> TextState:
    params = jax.vmap(lambda seed: init_transformer(jax.random.key(seed), job.model))(seeds)
    params = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], arms, 1), params)
    # (seed, arm, vocabulary, d) -> rows of all arms
    table = params["embed"].pop("W_E").swapaxes(1, 2).reshape(-1, arms, job.model.d_model)
    ones = dict.fromkeys(set(jax.tree.leaves(labels_of(job, params))), 1.0)
    # The state is the same whatever is done to a circuit.
    own = (Numbers.of(Intervention()), np.ones(2)) if job.intervened else ((), ())
    opt = jax.vmap(jax.vmap(lambda some: _optimizer(job, some, 1.0, ones, ones, *own).init(some)))(params)
    left = jax.tree.map(jnp.zeros_like, params) if job.stale else ()
    moments = (jnp.zeros_like(table),) * RULES[job.optimizer].moments
    last = jnp.full(len(table), NEVER, jnp.int32)
    return TextState(params, opt, table, moments, last, left, jnp.int32(0))


def _optimizer(
    job: TextJob, params: Any, rate: Any, multipliers: dict[str, Any], decay: dict[str, Any], numbers: Any, gain: Any
) -> Any:
    """The optimizer at the multiples and decays of one run, with what is done to its circuits."""
    labels = labels_of(job, params)
    used = {name: multipliers[name] for name in sorted(set(jax.tree.leaves(labels)))}
    if job.optimizer == "sgd":
        base = {name: functools.partial(_torch_sgd, job.momentum, decay[name]) for name in used}
    else:
        base = {name: functools.partial(optax.adamw, b1=B1, b2=B2, eps=EPS, weight_decay=decay[name]) for name in used}
    if job.intervened:
        made = functools.partial(on_circuit, numbers, optimizer="sgd")
        if job.optimizer == "adamw":
            made = functools.partial(on_circuit, numbers, optimizer="adamw", b1=B1, b2=B2, eps=EPS)
        base |= {name: made(i, gain=gain[i]) for name, i in PLACES.items()}
    schedule = lambda count: rate * cosine(jnp, count, job.warmup, job.steps)  # noqa: E731
    return circuit_optimizer(base, multipliers=used, learning_rate=schedule, labels=labels)


def _torch_sgd(momentum: float, decay: Any, rate: Any) -> optax.GradientTransformation:
    """SGD whose momentum gathers gradient and decay, and is scaled by the rate of the day."""
    gathered = optax.chain(optax.add_decayed_weights(decay), optax.trace(momentum))
    return optax.chain(gathered, optax.scale_by_learning_rate(rate))


def _loss(params: Any, rows: Any, job: TextJob, width: int, batch: Batches) -> Any:
    """Mean cross-entropy of one run on one batch, trimmed to `width`."""
    inverse = batch.inverse[:, :width]
    logits = forward(
        params, job.model, inverse, batch.length, embedded=rows[inverse], queries=batch.readout[:, None]
    ).logits[:, 0]
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), batch.label[:, None], 1)[:, 0]
    return (batch.weight * losses).sum() / batch.weight.sum()


def _gradients(job: TextJob, width: int, params: Any, rows: Any, batch: Batches) -> Any:
    """Losses (S, A) and gradients of params and of rows (S, U, A, d)."""
    one = jax.value_and_grad(lambda p, r, b: _loss(p, r, job, width, b), argnums=(0, 1))
    arms = jax.vmap(one, in_axes=(0, 1, None), out_axes=(0, (0, 1)))
    return jax.vmap(arms)(params, rows, batch)


def _counted(job: TextJob, runs: TextRuns, gradients: Any, left: Any) -> Any:
    """What takes part in clipping: gradients of trained parameters, and those left over of frozen ones where arms say so."""

    def of(label: str, gradient: Any, *rest: Any) -> Any:
        trained = runs.multipliers[label] > 0
        shape = (1, -1, *(1,) * (gradient.ndim - 2))
        kept = jnp.where(trained.reshape(shape), gradient, 0)
        if not rest:
            return kept
        frozen = (~trained & runs.stale).reshape(shape)
        return kept + jnp.where(frozen, gradient + rest[0], 0)

    trees = (gradients, left) if job.stale else (gradients,)
    return jax.tree.map(of, labels_of(job, gradients), *trees)


def _square(tree: Any) -> Any:
    """Sum of squares of each run, (S, A)."""
    return sum((leaf**2).sum(tuple(range(2, leaf.ndim))) for leaf in jax.tree.leaves(tree))


def _clipped(job: TextJob, runs: TextRuns, gradients: Any, row_gradients: Any, left: Any) -> tuple[Any, Any, Any]:
    """Gradients and those of rows, scaled so that the norm of all that are counted is at most `clip`; and what is left over."""
    if job.clip is None:
        return gradients, row_gradients, left
    counted = _counted(job, runs, gradients, left)
    trained = (runs.multipliers["embed"] > 0)[None]
    square = _square(counted) + jnp.where(trained, (row_gradients**2).sum((1, 3)), 0)
    # Torch's clip_grad_norm_ adds 1e-6 to the norm.
    factor = jnp.minimum(1.0, job.clip / (jnp.sqrt(square) + 1e-6))
    scaled = lambda leaf: leaf * factor.reshape(*factor.shape, *(1,) * (leaf.ndim - 2))  # noqa: E731
    left = jax.tree.map(scaled, counted) if job.stale else ()
    return jax.tree.map(scaled, gradients), row_gradients * factor[:, None, :, None], left


def _step(job: TextJob, runs: TextRuns, idle: Any, state: TextState, batch: Batches) -> tuple[TextState, Any]:
    """One update of all runs, and their losses before it, (S, A)."""
    seeds = len(batch.ids)
    vocabulary = job.model.vocabulary
    # What is not there gets places of its own beyond the table: read as zeros, never written.
    start = jnp.arange(seeds)[:, None] * vocabulary
    beyond = len(state.table) + jnp.arange(batch.ids.size).reshape(batch.ids.shape)
    place = jnp.where(batch.ids < vocabulary, batch.ids + start, beyond)
    rule, tables = RULES[job.optimizer], (state.table, *state.moments)
    found = (x.at[place].get(mode="fill", fill_value=0) for x in tables)
    last = state.last.at[place].get(mode="fill", fill_value=NEVER)
    rows, *moments = rule.catch_up(*found, last, state.step, idle)
    branches = [functools.partial(_gradients, job, width) for width in job.widths]
    losses, (gradients, row_gradients) = jax.lax.switch(
        batch.width, branches, state.params, rows, batch._replace(width=None)
    )
    gradients, row_gradients, left = _clipped(job, runs, gradients, row_gradients, state.left)

    def descend(params: Any, opt: Any, gradient: Any, *own: Any) -> Any:
        updates, opt = _optimizer(job, params, *own).update(gradient, opt, params)
        return optax.apply_updates(params, updates), opt

    each = jax.vmap(jax.vmap(descend), in_axes=(0, 0, 0, *(None,) * 5))
    params, opt = each(
        state.params, state.opt, gradients, runs.rate, runs.multipliers, runs.decay, runs.numbers, runs.gain
    )
    updated = rule.update(rows, *moments, row_gradients, state.step, idle)
    write = lambda whole, part: whole.at[place].set(part, mode="drop", unique_indices=True)  # noqa: E731
    table, *moments = map(write, tables, updated)
    last = write(state.last, jnp.full(place.shape, state.step))
    return TextState(params, opt, table, tuple(moments), last, left, state.step + 1), losses


@functools.partial(jax.jit, static_argnums=0, donate_argnums=3)
def advance(
    job: TextJob, runs: TextRuns, idle: Any, state: TextState, batches: Batches, count: Any
) -> tuple[TextState, Any]:
    """The first `count` of the batches' steps; the state given is used up.

    Returns:
        The state, and the losses before each update, (steps, S, A), 0 from `count` on.
    """

    def body(i: Any, carry: Any) -> Any:
        state, losses = carry
        state, found = _step(job, runs, idle, state, jax.tree.map(lambda leaf: leaf[i], batches))
        return state, losses.at[i].set(found)

    arms = state.table.shape[1]
    losses = jnp.zeros((len(batches.width), batches.ids.shape[1], arms))
    return jax.lax.fori_loop(0, count, body, (state, losses))


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def settle(job: TextJob, state: TextState, idle: Any) -> TextState:
    """Every row of the table brought up to date, as it has to be before it is read by anything else than `advance`."""
    table, *moments = RULES[job.optimizer].catch_up(state.table, *state.moments, state.last, state.step, idle)
    last = jnp.full_like(state.last, state.step - 1)
    return state._replace(table=table, moments=tuple(moments), last=last)

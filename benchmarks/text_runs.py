"""Runs on text as the benchmark trains them: the experiment's engine, whole, or without one of its savings."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from qkdyn.text.encoded import Encoded
from qkdyn.train import text_engine
from qkdyn.train.devices import arms_mesh, filled_up, spread
from qkdyn.train.lazy_adam import Idle, update
from qkdyn.train.text_batches import Batches, epoch_batches
from qkdyn.train.text_engine import TextJob, TextRuns, TextState, begin, idle_of, settle
from qkdyn.transformer import Output, forward

Advance = Callable[..., tuple[TextState, Any]]


@dataclass
class Training:
    """Runs that each measurement trains further, always on the same batches.

    Attributes:
        job: what they share.
        seeds: S of them.
        arms: A, without copies.
        posts: all of these are learned once.
        batch: posts of an update.
        runs: the arms' settings, on the devices.
        idle: their tables.
        state: of the runs.
        advance: the engine's, or one that lacks a saving.
    """

    job: TextJob
    seeds: tuple[int, ...]
    arms: int
    posts: Encoded
    batch: int
    runs: TextRuns
    idle: Idle
    state: TextState
    advance: Advance

    def batches(self) -> Batches:
        """Those of a measurement."""
        return epoch_batches(
            self.posts,
            self.job.model,
            seeds=self.seeds,
            epoch=0,
            batch=self.batch,
            widths=self.job.widths,
            by_length=True,
        )

    def train(self) -> np.ndarray:
        """Make the batches and train on them; the losses before each update, (updates, S, A)."""
        batches = self.batches()
        count = jnp.int32(len(batches.width))
        self.state, losses = self.advance(self.job, self.runs, self.idle, self.state, batches, count)
        return np.asarray(losses)[:, :, : self.arms]

    def rate(self) -> float:
        """Real tokens per second, of all runs together."""
        begun = time.perf_counter()
        self.train()
        return int(self.posts.length.sum()) * len(self.seeds) * self.arms / (time.perf_counter() - begun)

    def params(self, seed: int, arm: int) -> dict[str, Any]:
        """All parameters of one run by their place among seeds and arms, named as `init_transformer` does."""
        self.state = settle(self.job, self.state, self.idle)
        tree = jax.tree.map(lambda leaf: np.asarray(leaf[seed, arm]), self.state.params)
        table = np.asarray(self.state.table[:, arm]).reshape(len(self.seeds), self.job.model.vocabulary, -1)
        return tree | {"embed": tree["embed"] | {"W_E": table[seed]}}

    def rates(self, arm: int) -> dict[str, float]:
        """The learning rate of each group of parameters."""
        return {name: float(self.runs.rate[arm] * factor[arm]) for name, factor in self.runs.multipliers.items()}


def start(
    job: TextJob,
    runs: TextRuns,
    *,
    seeds: tuple[int, ...],
    posts: Encoded,
    batch: int,
    advance: Advance = text_engine.advance,
    scale: float = 1.0,
) -> Training:
    """Runs before their first update, weights times `scale`, their arms spread over the devices as in the experiment."""
    mesh, arms = arms_mesh(), len(runs.rate)
    runs = filled_up(runs, mesh.size)
    idle = spread(mesh, jax.tree.map(jnp.asarray, idle_of(job, runs)), -1)
    state = begin(job, seeds, len(runs.rate))
    params, table = jax.tree.map(lambda leaf: scale * leaf, (state.params, state.table))
    state = spread(mesh, state._replace(params=params, table=table), 1)
    runs = spread(mesh, jax.tree.map(jnp.asarray, runs), 0)
    return Training(job, seeds, arms, posts, batch, runs, idle, state, advance)


def lacking(**instead: Any) -> Advance:
    """The engine's `advance` compiled with other functions in the place of those that it calls by these names."""
    # A function of its own: jit keeps what it has traced by the function.
    plain = cast(Any, text_engine.advance).__wrapped__
    another = jax.jit(lambda *given: plain(*given), static_argnums=0, donate_argnums=3)

    def advance(*given: Any) -> tuple[TextState, Any]:
        with mock.patch.multiple(text_engine, **instead):
            return another(*given)

    return advance


def every_row(params: Any, config: Any, tokens: Any, length: Any, *, embedded: Any, queries: Any) -> Output:
    """`forward` that computes all rows of attention and MLP and then picks those asked for."""
    out = forward(params, config, tokens, length, embedded=embedded, every=True)
    return out._replace(logits=jnp.take_along_axis(out.logits, queries[:, :, None], 1))


_step = text_engine._step


def every_embedding(job: TextJob, runs: TextRuns, idle: Idle, state: TextState, batch: Batches) -> Any:
    """The engine's update with dense AdamW: every row of the table is moved at once, and none is ever idle."""
    gradients = []

    def not_yet(row: Any, m: Any, v: Any, gradient: Any, now: Any, idle: Idle) -> Any:
        gradients.append(gradient)
        return row, m, v

    rule = text_engine.Rule(2, lambda row, m, v, *rest: (row, m, v), not_yet)
    with mock.patch.dict(text_engine.RULES, {job.optimizer: rule}):
        moved, losses = _step(job, runs, idle, state, batch)
    first = jnp.arange(len(batch.ids))[:, None] * job.model.vocabulary
    place = jnp.where(batch.ids < job.model.vocabulary, batch.ids + first, len(state.table))
    gradient = jnp.zeros_like(state.table).at[place].set(gradients[0], mode="drop")
    table, *moments = update(state.table, state.moments[0], state.moments[1], gradient, state.step, idle)
    last = jnp.full_like(state.last, state.step)
    return moved._replace(table=table, moments=tuple(moments), last=last), losses

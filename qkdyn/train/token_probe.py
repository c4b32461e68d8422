"""What is measured of a layer on the synthetic task: where its attention goes, and whether it predicts the label."""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from qkdyn import counts
from qkdyn.attention import cross_entropy
from qkdyn.circuits import Params
from qkdyn.tasks.tokens import COMMON, VOCABULARY, TokenBatch, TokensTask

SCALE = VOCABULARY**-0.5


class Sequences(NamedTuple):
    """What is measured of each of N sequences.

    Attributes:
        distinct: attention on its class's own tokens.
        query: attention on all occurrences of its query's id, the query itself among them.
        probability: of the label.
        correct: whether no id has a larger one.
    """

    distinct: Float[Array, " N"]
    query: Float[Array, " N"]
    probability: Float[Array, " N"]
    correct: Bool[Array, " N"]


def apply(params: Params, batch: TokenBatch) -> tuple[Float[Array, "N V"], Float[Array, "N V"]]:
    """Logits and attention on a batch, scores scaled by 1/sqrt(50)."""
    E = jnp.eye(VOCABULARY)
    return counts.forward(params, E, batch.counts, E[batch.query], scale=SCALE)


@dataclass(frozen=True)
class TokenProbe:
    """Means over a fixed evaluation batch. Equal tasks and sizes give equal probes, so programs are shared."""

    task: TokensTask
    size: int = 512

    def __call__(self, params: Params) -> dict[str, Float[Array, ""]]:
        """Evaluation loss (nats), mean attention on the class's own tokens, and on the query's id."""
        batch = self.task.batch_of(jax.random.key(2**31 - 1), self.size)
        logits, attention = apply(params, batch)
        query = jnp.take_along_axis(attention, batch.query[:, None], -1)
        return {
            "evaluation": cross_entropy(logits, batch.y),
            "distinct": attention[:, COMMON:].sum(-1).mean(),
            "query": query.mean(),
        }


@functools.partial(jax.jit, static_argnames=("batches", "task"))
def evaluate(params: Params, key: Key[Array, ""], batches: int, task: TokensTask) -> Sequences:
    """Measure `batches` x `task.batch` fresh sequences."""

    def one(number: Array) -> Sequences:
        batch = task.batch_of(jax.random.fold_in(key, number))
        logits, attention = apply(params, batch)
        return Sequences(
            distinct=attention[:, COMMON:].sum(-1),
            query=jnp.take_along_axis(attention, batch.query[:, None], -1)[:, 0],
            probability=jnp.take_along_axis(jax.nn.softmax(logits), batch.y[:, None], -1)[:, 0],
            correct=logits.argmax(-1) == batch.y,
        )

    with jax.default_matmul_precision("highest"):
        return jax.tree.map(jnp.ravel, jax.lax.map(one, jnp.arange(batches)))

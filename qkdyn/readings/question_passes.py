"""What is computed of a batch of questions: the answers that a model writes, those it should write, and texts cut down.

Each function is one program for each width, spread over this process's devices: every device has its share of the questions,
and all parameters.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from qkdyn.decoding import decoded
from qkdyn.errors import check_count, reject
from qkdyn.metrics import cores
from qkdyn.metrics.checks import check_share
from qkdyn.transformer import TransformerConfig, head, states

_AXIS = "questions"


@dataclass(frozen=True)
class QuestionReading:
    """How a model is measured on questions; static.

    Attributes:
        model: the transformer.
        most: tokens that an answer has at most, its end counted.
        residual: weight of attention in the rollout, the rest being the identity.
        share: of the tokens so far, that are deleted or kept for comprehensiveness and sufficiency.
    """

    model: TransformerConfig
    most: int = 50
    residual: float = 0.5
    share: float = 0.05

    def __post_init__(self) -> None:
        if not self.model.causal:
            reject("causal", self.model.causal, "True for a model that writes")
        check_count("most", self.most)
        check_share("residual", self.residual)
        if not 0 < check_share("share", self.share) < 1:
            reject("share", self.share, "above 0 and below 1")

    def kept(self, length: Any) -> Any:
        """Tokens that are deleted or kept of texts of so many."""
        return cores.top_count(np, length, self.share)


class Written(NamedTuple):
    """Answers that were written to B questions, and what was attended to on the way.

    Attributes:
        tokens: (B, n), the end from its first one on.
        count: (B,), tokens before the end.
        steps: (B,), tokens chosen, the end counted.
        chosen: (B, n), probability of each of them, 0 after the end.
        mass: (B,), of the rollout on the answer in the prompt; as the next two, the mean over steps.
        mass_layers: (B,), of the attention itself, mean over heads and layers.
        entropy: (B,), of the rollout, in nats.
        top: (B, n, k), positions by falling rollout, of equals the earlier first.
    """

    tokens: Any
    count: Any
    steps: Any
    chosen: Any
    mass: Any
    mass_layers: Any
    entropy: Any
    top: Any


class Forced(NamedTuple):
    """What is read of B questions with their right answers.

    Attributes:
        log_p: (B, A), log-probability of each token of the answer, 0 after its last.
        head_mass: (B, layers * heads), of each head's row that writes the first token, on the answer in the prompt.
        head_entropy: (B, layers * heads), of these rows, in nats.
    """

    log_p: Any
    head_mass: Any
    head_entropy: Any


class Likelihood(NamedTuple):
    """Of B texts: the probability of the token that follows, (B,)."""

    chance: Any


def devices() -> Mesh:
    """The devices of this process, for questions to be spread over."""
    return jax.make_mesh((jax.local_device_count(),), (_AXIS,), axis_types=(jax.sharding.AxisType.Auto,))


def everywhere(mesh: Mesh, params: Any) -> Any:
    """Parameters on every device of this process, wherever they were."""
    return jax.device_put(jax.device_get(params), NamedSharding(mesh, PartitionSpec()))


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def write(
    how: QuestionReading, mesh: Mesh, end: int, top: int, params: Any, tokens: Any, length: Any, relevant: Any
) -> Written:
    """The likeliest answers to prompts (B, T), of which `relevant` tokens are the right one; `top` is k."""

    def local(params: Any, tokens: Any, length: Any, relevant: Any) -> Written:
        out = decoded(params, how.model, tokens, length, how.most, end, how.residual)
        relevant = jnp.pad(relevant, ((0, 0), (0, how.most)))

        def mean(of_steps: Any) -> Any:
            return of_steps.sum(1) / out.steps

        most = min(top, relevant.shape[1])
        return Written(
            out.tokens,
            out.count,
            out.steps,
            out.probability,
            mean(cores.mass(jnp, out.rollout, relevant[:, None])),
            mean(cores.mass(jnp, out.rows, relevant[:, None, None]).mean(2)),
            mean(cores.entropy(jnp, out.rollout)),
            jnp.pad(jax.lax.top_k(out.rollout, most)[1], ((0, 0), (0, 0), (0, top - most))),
        )

    return _spread(mesh, local, params, tokens, length, relevant)


@functools.partial(jax.jit, static_argnums=(0, 1))
def force(
    model: TransformerConfig,
    mesh: Mesh,
    params: Any,
    tokens: Any,
    length: Any,
    queries: Any,
    label: Any,
    count: Any,
    relevant: Any,
) -> Forced:
    """Right answers read: `label` (B, A), of which `count` are there, follows the tokens (B, T) at `queries` (B, A)."""

    def local(params: Any, tokens: Any, length: Any, queries: Any, label: Any, count: Any, relevant: Any) -> Forced:
        x, maps = states(params, model, tokens, length, queries=queries)

        # The head of one token of all answers at a time: few are long.
        def read(place: Any, log_p: Any) -> Any:
            logits = head(params, model, jax.lax.dynamic_index_in_dim(x, place, 1))[:, 0]
            right = jnp.take_along_axis(jax.nn.log_softmax(logits), label[:, place, None], 1)[:, 0]
            return log_p.at[:, place].set(jnp.where(place < count, right, 0))

        log_p = jax.lax.fori_loop(0, count.max(), read, jnp.zeros(label.shape, x.dtype))
        first = queries[:, None, :1, None]
        rows = [jnp.take_along_axis(layer, first, 2)[:, :, 0] for layer in maps[:-1]] + [maps[-1][:, :, 0]]
        heads = jnp.concatenate(rows, 1)
        return Forced(log_p, cores.mass(jnp, heads, relevant[:, None]), cores.entropy(jnp, heads))

    return _spread(mesh, local, params, tokens, length, queries, label, count, relevant)


@functools.partial(jax.jit, static_argnums=(0, 1))
def likelihood(model: TransformerConfig, mesh: Mesh, params: Any, tokens: Any, length: Any, label: Any) -> Likelihood:
    """That a token follows each text (B, T)."""

    def local(params: Any, tokens: Any, length: Any, label: Any) -> Likelihood:
        x, _ = states(params, model, tokens, length, queries=length[:, None] - 1)
        chance = jax.nn.softmax(head(params, model, x)[:, 0])
        return Likelihood(jnp.take_along_axis(chance, label[:, None], 1)[:, 0])

    return _spread(mesh, local, params, tokens, length, label)


def _spread(mesh: Mesh, function: Any, params: Any, *arrays: Any) -> Any:
    """`function(params, *arrays)`, whose arrays and results have an axis of questions first."""
    each = PartitionSpec(_AXIS)
    specs = (PartitionSpec(), *(each for _ in arrays))
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=each, check_vma=False)(params, *arrays)

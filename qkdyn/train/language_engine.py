"""One run of a language model that learns to write answers: what an update does. Many updates are one program.

Everything that arms differ in is traced, so that all arms of a job, and all its seeds, are one program.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from qkdyn.circuits import circuit_labels
from qkdyn.errors import check_count, check_positive, reject
from qkdyn.optim import circuit_optimizer
from qkdyn.text.answer_batches import AnswerBatch
from qkdyn.train.language import language_loss
from qkdyn.train.language_batches import Batches, Shape
from qkdyn.train.one_cycle import one_cycle
from qkdyn.transformer import TransformerConfig
from qkdyn.transformer_init import init_language

LABELS = ("qk", "ov", "embed", "mlp", "head", "rest")
B2, EPS = 0.999, 1e-8
# Streams of random numbers of a seed.
_START, _DROPOUT = 0, 1


@dataclass(frozen=True)
class LanguageJob:
    """What all runs share; static, one program for each.

    Attributes:
        model: the transformer.
        shapes: of micro-batches, see `qkdyn.train.language_batches.batch_shapes`.
        steps: updates in all.
        cycle: updates of the whole cycle of the schedule; published runs end after half of theirs.
        warmup: the update (from 1) at which the rate is largest.
        micro: micro-batches whose gradients are averaged for an update.
        clip: largest norm of the gradient.
        smoothing: of labels.
        bfloat16: the model computes in bfloat16, with softmax, LayerNorm and loss in float32; parameters, their gradients'
            sums and moments are float32.
        apart: names of parameters labelled "rest", whatever their part.

    Raises:
        InputError: a value that is not as said.
    """

    model: TransformerConfig
    shapes: tuple[Shape, ...]
    steps: int
    cycle: int
    warmup: int
    micro: int = 2
    clip: float = 0.5
    smoothing: float = 0.1
    bfloat16: bool = False
    apart: tuple[str, ...] = ("W_pos",)

    def __post_init__(self) -> None:
        for name in ("steps", "cycle", "micro"):
            check_count(name, getattr(self, name))
        check_positive("clip", self.clip)
        if check_positive("smoothing", self.smoothing, zero=True) >= 1:
            reject("smoothing", self.smoothing, "a share in [0, 1)")
        if not self.steps <= self.cycle:
            reject("cycle", self.cycle, f"at least {self.steps} updates, those of the run")
        if not check_count("warmup", self.warmup, minimum=0) < self.cycle:
            reject("warmup", self.warmup, f"less than {self.cycle} updates, the whole cycle")
        if self.shapes[-1].slots > self.model.n_ctx:
            reject("shapes", self.shapes, f"of at most {self.model.n_ctx} slots, the model's n_ctx", "cut the prompts")


class LanguageRun(NamedTuple):
    """Settings of one run, traced.

    Attributes:
        rate: largest learning rate.
        multipliers: of each label, see `LABELS`.
        decay: weight decay of each label.
    """

    rate: Any
    multipliers: dict[str, Any]
    decay: dict[str, Any]


class LanguageState(NamedTuple):
    """A run between two updates.

    Attributes:
        params: of the transformer.
        opt: AdamW's moments.
        step: updates made.
        seed: of dropout.
    """

    params: Any
    opt: Any
    step: Any
    seed: Any


def begin(job: LanguageJob, seed: int, vectors: Any = None) -> LanguageState:
    """The state before the first update.

    Args:
        job: static.
        seed: of the start and of dropout.
        vectors: token vectors known before, see `qkdyn.transformer_init.load_vectors`.
    """
    check_count("seed", seed, minimum=0)
    return jax.jit(_begun, static_argnums=0)(
        job, jnp.uint32(seed), init_language(_key(seed, _START), job.model, vectors)
    )


def _begun(job: LanguageJob, seed: Any, params: Any) -> LanguageState:
    ones: dict[str, Any] = dict.fromkeys(map(str, LABELS), 1.0)
    opt = _optimizer(job, params, LanguageRun(1.0, ones, ones), 1.0, 0.9).init(params)
    return LanguageState(params, opt, jnp.int32(0), seed)


def _key(seed: Any, stream: int) -> Any:
    return jax.random.fold_in(jax.random.key(seed), stream)


def labels_of(job: LanguageJob, params: Any) -> Any:
    """The group of every parameter."""

    def label(path: Any, found: str) -> str:
        return "rest" if path[-1].key in job.apart else found

    return jax.tree_util.tree_map_with_path(label, circuit_labels(params))


def _optimizer(job: LanguageJob, params: Any, run: LanguageRun, share: Any, b1: Any) -> Any:
    """AdamW at one update. As in PyTorch, the correction of the first moment's bias has the update's own beta1."""
    labels = labels_of(job, params)
    used = sorted(set(jax.tree.leaves(labels)))
    base = {name: functools.partial(optax.adamw, b1=b1, b2=B2, eps=EPS, weight_decay=run.decay[name]) for name in used}
    multipliers = {name: run.multipliers[name] for name in used}
    return circuit_optimizer(base, multipliers=multipliers, learning_rate=run.rate * share, labels=labels)


def _loss(params: Any, job: LanguageJob, shape: Shape, posts: AnswerBatch, key: Any) -> Any:
    """Loss of one micro-batch in the room of its shape."""
    width = posts.queries.shape[1]
    row, tokens, embedded = posts.row[: shape.labels], posts.tokens[:, : shape.slots], None
    if job.bfloat16:
        # Read in float32: the gradients of a token that occurs often are added up in it.
        embedded = params["embed"]["W_E"][tokens].astype(jnp.bfloat16)
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    return language_loss(
        params,
        job.model,
        tokens,
        posts.length,
        posts.queries[:, : shape.answers],
        row // width * shape.answers + row % width,
        posts.label[: shape.labels],
        posts.weight[: shape.labels],
        smoothing=job.smoothing,
        key=key,
        embedded=embedded,
    )


def _gradient(job: LanguageJob, shape: Shape, params: Any, update: AnswerBatch, key: Any) -> tuple[Any, Any]:
    """Mean loss and mean gradient over the micro-batches of an update."""

    def add(total: Any, one: Any) -> tuple[Any, None]:
        number, posts = one
        own = None if key is None else jax.random.fold_in(key, number)
        found = jax.value_and_grad(_loss)(params, job, shape, posts, own)
        return jax.tree.map(jnp.add, total, found), None

    zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    total, _ = jax.lax.scan(add, zero, (jnp.arange(job.micro), update))
    return jax.tree.map(lambda leaf: leaf / job.micro, total)


def _step(job: LanguageJob, run: LanguageRun, state: LanguageState, batch: Batches) -> tuple[LanguageState, Any]:
    """One update, and the loss before it."""
    params, step = state.params, state.step
    key = jax.random.fold_in(_key(state.seed, _DROPOUT), step) if job.model.dropout else None
    branches = [functools.partial(_gradient, job, shape) for shape in job.shapes]
    loss, gradient = jax.lax.switch(batch.shape, branches, params, batch.posts, key)
    # Torch's clip_grad_norm_ adds 1e-6 to the norm.
    factor = jnp.minimum(1.0, job.clip / (optax.tree.norm(gradient) + 1e-6))
    gradient = jax.tree.map(lambda leaf: leaf * factor, gradient)
    share, b1 = one_cycle(jnp, step, cycle=job.cycle, warmup=job.warmup)
    updates, opt = _optimizer(job, params, run, share, b1).update(gradient, state.opt, params)
    return LanguageState(optax.apply_updates(params, updates), opt, step + 1, state.seed), loss


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def advance(
    job: LanguageJob, run: LanguageRun, state: LanguageState, batches: Batches, count: Any
) -> tuple[LanguageState, Any]:
    """The first `count` of the batches' updates; the state given is used up.

    Returns:
        The state, and the losses before each update, (updates,), 0 from `count` on.
    """

    def body(i: Any, carry: Any) -> Any:
        state, losses = carry
        state, found = _step(job, run, state, jax.tree.map(lambda leaf: leaf[i], batches))
        return state, losses.at[i].set(found)

    return jax.lax.fori_loop(0, count, body, (state, jnp.zeros(len(batches.shape))))

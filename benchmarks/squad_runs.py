"""Questions, and what the benchmark does with them by the experiment's engine, whole or without one of its savings."""

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax

from qkdyn.text.prompts import LeftOut, Prompts
from qkdyn.train import language_engine
from qkdyn.train.devices import arms_mesh, copied, spread
from qkdyn.train.language import smoothed
from qkdyn.train.language_batches import Batches, Shape, epoch_batches
from qkdyn.train.language_engine import LanguageJob, LanguageRun, LanguageState, begin
from qkdyn.train.one_cycle import HIGH
from qkdyn.transformer import TransformerConfig, forward, head, states

Advance = Callable[..., tuple[LanguageState, Any]]
# Tokens of SQuAD's questions with their answers in windows of 400 characters: three in five have no more, and make one shape
# of the experiment's batches; nine in ten have at least SHORTEST. Tokens of an answer with its end: most, and about the mean.
LONGEST, SHORTEST = 104, 88
MOST, MEAN = 8, 4


def shape_of(batch: int, longest: int = LONGEST) -> Shape:
    """The room of a micro-batch of `made_questions`."""
    return Shape(longest, MOST, MOST * batch)


def made_questions(rng: np.random.Generator, count: int, vocabulary: int, longest: int = LONGEST) -> Prompts:
    """Questions of SQuAD's lengths, of tokens whose frequencies fall as 1/rank."""
    law = np.cumsum(1 / (np.arange(vocabulary - 1) + 2.5))

    def tokens(width: int) -> np.ndarray:
        return np.searchsorted(law, law[-1] * rng.random((count, width))).astype(np.int32)

    length = rng.integers(longest * SHORTEST // LONGEST, longest + 1, count).astype(np.int32)
    answer_length = np.minimum(1 + rng.geometric(1 / (MEAN - 1), count), MOST).astype(np.int32)
    answer = tokens(MOST)
    answer[np.arange(count), answer_length - 1] = vocabulary - 1
    return Prompts(
        ids=tuple(map(str, range(count))),
        references=(("",),) * count,
        prompt=tokens(longest),
        prompt_length=length - answer_length + 1,
        answer=answer,
        answer_length=answer_length,
        unspaced=answer,
        unspaced_length=answer_length,
        relevant=np.zeros((count, longest), bool),
        pad=vocabulary - 1,
        shown=np.ones(count, bool),
        n_ctx=longest,
        left_out=LeftOut((), (), (), 0, 0, 0),
    )


@dataclass
class Training:
    """A run that each measurement trains further, always on the same batches.

    Attributes:
        job: what decides the program.
        run: settings of the arm.
        batches: updates of a measurement.
        tokens: real ones of these.
        state: of the run.
        advance: the engine's, or one that lacks a saving.
    """

    job: LanguageJob
    run: LanguageRun
    batches: Batches
    tokens: int
    state: LanguageState
    advance: Advance

    def train(self) -> np.ndarray:
        """Train on the batches; the losses before each update."""
        count = jnp.int32(len(self.batches.shape))
        self.state, losses = self.advance(self.job, self.run, self.state, self.batches, count)
        return np.asarray(losses)

    def rate(self) -> float:
        """Real tokens per second."""
        begun = time.perf_counter()
        self.train()
        return self.tokens / (time.perf_counter() - begun)

    def gradient(self) -> Any:
        """That of the first update, clipped, as AdamW's first moments have it just after; without b_K, whose is exactly 0."""
        moments = optax.tree.get_all_with_path(self.state.opt, "mu")
        leaves = [jax.tree.leaves(own, is_leaf=_masked) for _, own in moments]
        found = [next(leaf for leaf in same if not _masked(leaf)) for same in zip(*leaves, strict=True)]
        tree = jax.tree.unflatten(jax.tree.structure(self.state.params), found)
        return without_b_K(jax.tree.map(lambda leaf: np.asarray(leaf) / (1 - HIGH), tree))

    def params(self) -> Any:
        """The parameters, on the host."""
        return jax.device_get(self.state.params)


def _masked(leaf: Any) -> bool:
    return isinstance(leaf, optax.MaskedNode)


def without_b_K(params: Any) -> Any:
    """Parameters without the keys' biases: PyTorch moves them by what is left of their gradients by rounding."""
    layers = [{**layer, "qk": {n: leaf for n, leaf in layer["qk"].items() if n != "b_K"}} for layer in params["layers"]]
    return {**params, "layers": tuple(layers)}


def start(
    job: LanguageJob, run: LanguageRun, prompts: Prompts, batch: int, advance: Advance = language_engine.advance
) -> Training:
    """A run before its first update, its batches spread over the devices as in the experiment."""
    mesh = arms_mesh(math.gcd(batch, jax.local_device_count()))
    batches = epoch_batches(prompts, job.shapes, seed=0, epoch=0, batch=batch, micro=job.micro)
    state, run = copied(mesh, begin(job, 0)), copied(mesh, jax.tree.map(jnp.float32, run))
    return Training(job, run, spread(mesh, batches, 2), int(prompts.length.sum()), state, advance)


def everywhere() -> Advance:
    """The engine's `advance` with the head computed at every position."""
    # A function of its own: jit keeps what it has traced by the function.
    plain = cast(Any, language_engine.advance).__wrapped__
    another = jax.jit(lambda *given: plain(*given), static_argnums=0, donate_argnums=2)

    def advance(*given: Any) -> tuple[LanguageState, Any]:
        with mock.patch.object(language_engine, "language_loss", loss_everywhere):
            return another(*given)

    return advance


def loss_everywhere(
    params: Any,
    config: TransformerConfig,
    tokens: Any,
    length: Any,
    queries: Any,
    row: Any,
    label: Any,
    weight: Any,
    *,
    smoothing: Any = 0.0,
    key: Any = None,
    embedded: Any = None,
) -> Any:
    """`language_loss` of logits at all positions, weighted by 0 where there is no label."""
    logits = forward(params, config, tokens, length, every=True, key=key, embedded=embedded).logits
    post, place = jnp.divmod(row, queries.shape[1])
    # What is not there is dropped, wherever it points.
    post = jnp.where(weight > 0, post, len(tokens))
    labels, weights = (
        jnp.zeros(tokens.shape, part.dtype).at[post, queries[post, place]].set(part, mode="drop")
        for part in (label, weight)
    )
    losses = smoothed(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), smoothing)
    return (weights.reshape(-1) * losses).sum() / jnp.maximum(weights.sum(), 1.0)


@functools.partial(jax.jit, static_argnames=("config", "most"))
def without_cache(params: Any, config: TransformerConfig, tokens: Any, length: Any, count: Any, *, most: int) -> Any:
    """`count` of at most `most` tokens after each prompt, (B, most), each written by the model reading the whole text again.

    The head is computed at the last token alone, and the last layer at its row.
    """
    posts = jnp.arange(len(tokens))
    text = jnp.pad(tokens, ((0, 0), (0, most)))

    def write(step: Any, carry: Any) -> Any:
        text, out = carry
        x, _ = states(params, config, text, length + step, queries=(length + step - 1)[:, None])
        token = head(params, config, x)[:, 0].argmax(-1).astype(text.dtype)
        return text.at[posts, length + step].set(token), out.at[:, step].set(token)

    return jax.lax.fori_loop(0, count, write, (text, jnp.zeros((len(tokens), most), text.dtype)))[1]

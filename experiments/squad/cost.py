"""What a run costs before it starts: its multiplications, and the time that they take at this machine's speed."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from experiments.squad.data import QuestionData
from experiments.squad.recipe import Recipe, Run
from qkdyn.text.prompts import Prompts
from qkdyn.train.language_batches import batch_shapes, epoch_batches, updates_of

# Of a plain product's speed on all devices, what training of the full model was measured to reach on two cores (0.38).
REACHED = 0.4
# How much longer operations of reading take, which writes token by token.
READS = 2.5
# Tokens of an answer with its end, about.
ANSWER = 6


class Cost(NamedTuple):
    """What a run costs.

    Attributes:
        updates: of training.
        tokens: that it learns from, padding left out.
        training: floating-point operations of it, padding included.
        reading: those of measuring.
    """

    updates: int
    tokens: int
    training: float
    reading: float


def forward(recipe: Recipe, tokens: float, width: float, labels: float) -> float:
    """Operations of the model forward on so many tokens in texts of `width` slots, and of the head on so many rows."""
    d, m = recipe.d_model, recipe.d_mlp
    block = recipe.n_layers * (4 * d * d + 2 * d * m + 2 * width * d)
    return 2.0 * (tokens * block + labels * d * recipe.vocabulary)


def cost_of(recipe: Recipe, run: Run, data: QuestionData) -> Cost:
    """What a run costs; the backward pass counts as two forward ones."""
    shapes, epochs = batch_shapes(data.train, recipe.batch, recipe.shapes), run.arm.epochs
    plan = epoch_batches(
        data.train,
        shapes,
        seed=run.seed,
        epoch=0,
        batch=recipe.batch,
        micro=recipe.micro,
        by_length=recipe.by_length,
    )
    count = np.bincount(plan.shape, minlength=len(shapes)) * recipe.micro
    each = [forward(recipe, recipe.batch * shape.slots, shape.slots, shape.labels) for shape in shapes]
    updates = updates_of(len(data.train.ids), recipe.batch, recipe.micro) * epochs
    reading = epochs * _reading(recipe, data.selection, False)
    reading += 2 * (
        _reading(recipe, data.dev, True) + sum(_reading(recipe, p, False) for p in (data.selection, data.learned))
    )
    return Cost(updates, int(data.train.length.sum()) * epochs, 3 * epochs * float(count @ np.array(each)), reading)


def _reading(recipe: Recipe, prompts: Prompts, faithful: bool) -> float:
    """Of questions that are read: the prompt, the answer that is written and the right one; two cut texts for each token."""
    width = float(prompts.prompt_length.mean())
    texts = 3 + (ANSWER if faithful else 0)
    return len(prompts.ids) * forward(recipe, texts * width, width, (texts + 2) * ANSWER / 2)


def product_speed(recipe: Recipe) -> float:
    """Operations a second of a product of the MLP's sizes on all devices, measured on one of them in a fraction of a second."""
    import jax
    import jax.numpy as jnp

    dtype = jnp.bfloat16 if recipe.bfloat16 and jax.default_backend() != "cpu" else jnp.float32
    x, W = jnp.ones((recipe.batch * 128, recipe.d_model), dtype), jnp.ones((recipe.d_model, recipe.d_mlp), dtype)
    times = 8
    many = jax.jit(lambda x, W: jax.lax.fori_loop(0, times, lambda _, x: (x @ W) @ W.T / recipe.d_mlp, x))
    many(x, W).block_until_ready()
    begun, rounds = time.perf_counter(), 0
    while time.perf_counter() - begun < 0.2:
        many(x, W).block_until_ready()
        rounds += 1
    of_one = 2.0 * 2 * times * rounds * x.size * recipe.d_mlp / (time.perf_counter() - begun)
    return of_one * jax.local_device_count()


def expected(cost: Cost, done: Sequence[tuple[Cost, float]], speed: Callable[[], float]) -> tuple[float, str]:
    """Seconds that a run is expected to take, and by what.

    Args:
        cost: of the run.
        done: costs of runs that were trained here, and the seconds of each.
        speed: measures that of a product of matrices, for the first run.
    """
    total = cost.training + READS * cost.reading
    if done:
        rate = sum(c.training + READS * c.reading for c, _ in done) / max(sum(seconds for _, seconds in done), 1e-9)
        return total / rate, "as the runs before"
    product = speed()
    return total / (REACHED * product), f"at {REACHED:.0%} of a product's {product / 1e9:.3g} GFLOP/s"


def line(run: Run, cost: Cost, seconds: float, by: str) -> str:
    """What is printed before a run starts."""
    minutes = f"{seconds / 60:.1f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"
    return (
        f"{run.name}: {cost.updates:,} updates, {cost.tokens / 1e6:,.3g} million tokens, training {cost.training / 1e12:,.3g} "
        f"and reading {cost.reading / 1e12:,.3g} TFLOP; about {minutes} ({by})"
    )

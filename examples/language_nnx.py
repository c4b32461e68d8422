"""Sharper attention in a Flax NNX language model: its query-key circuit learns r times as fast as its output-value circuit.

A small causal model of characters learns a story of 10 kB, at r = 1 and at r = 10 from the same start. Compared at equal
loss on text it has not seen, attention is sharper at r = 10. Lines marked qkdyn are all that is added to a training loop.

Command:  python examples/language_nnx.py [--steps 400] [--out FOLDER]
Expect:   within a minute on two cores the table of rates, the comparison, and the figure language_nnx.png.
"""

import jax.numpy as jnp
import optax
from common import EVERY, options, progress, read_text, report, run_of
from flax import nnx

from qkdyn import observe
from qkdyn.circuit_table import circuit_table
from qkdyn.labels import circuit_labels
from qkdyn.optim import circuit_optimizer

RATIOS = (1.0, 10.0)
LENGTH, BATCH, WIDTH, HEADS, LAYERS = 32, 16, 64, 4, 2
RATE = 1e-3
CAUSAL = jnp.tril(jnp.ones((1, 1, LENGTH, LENGTH), bool))  # (batch, heads, queries, keys)


class Block(nnx.Module):
    """Attention to earlier characters, and an MLP."""

    def __init__(self, rngs):
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x, watch):
        # Sow only what is captured: in training each call would add to the model, and each step compile anew.
        x = x + self.attention(self.norms[0](x), mask=CAUSAL, sow_weights=watch)
        return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


class Model(nnx.Module):
    """Logits (batch, LENGTH, characters) of the next character."""

    def __init__(self, characters, rngs):
        self.letters, self.places = (nnx.Embed(n, WIDTH, rngs=rngs) for n in (characters, LENGTH))
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.norm, self.out = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.Linear(WIDTH, characters, rngs=rngs)

    def __call__(self, tokens, watch=False):
        x = self.letters(tokens) + self.places(jnp.arange(LENGTH)[None])
        for block in self.blocks:
            x = block(x, watch)
        return self.out(self.norm(x))


def cross_entropy(logits, windows):
    return optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:]).mean()


@nnx.jit
def train_step(model, optimizer, windows):
    gradient = nnx.grad(lambda model: cross_entropy(model(windows[:, :-1]), windows))(model)
    optimizer.update(model, gradient)


@nnx.jit
def measure(model, windows):
    logits, sown = nnx.capture(model, nnx.Intermediate)(windows[:, :-1], watch=True)
    maps = observe.measure(observe.sown(sown), mask=CAUSAL)  # qkdyn
    return {"loss": cross_entropy(logits, windows), **maps}


def rates(r):
    return {"learning_rate": RATE, "multipliers": {"qk": r, "ov": 1, "rest": 1}, "labels": circuit_labels}  # qkdyn


def train(r, model, text):
    """One run: its loss and its attention at every record."""
    optimizer = nnx.Optimizer(model, circuit_optimizer(optax.adam, **rates(r)), wrt=nnx.Param)  # qkdyn
    records = observe.start(len(text.batches) // EVERY, measure(model, text.held_out))  # qkdyn
    for step, windows in enumerate(text.batches, 1):
        train_step(model, optimizer, windows)
        if step % EVERY == 0:
            seen = measure(model, text.held_out)
            records = observe.write(records, step, seen)  # qkdyn
            progress(r, step, seen["loss"])
    return run_of(observe.to_dataset(records))  # qkdyn


def main(steps=400, out="."):
    """Train at both ratios; print and draw the comparison."""
    text = read_text(steps, BATCH, LENGTH)
    start = nnx.jit(lambda: Model(len(text.characters), nnx.Rngs(0)))()
    print(circuit_table(nnx.state(start, nnx.Param), **rates(RATIOS[-1])))  # qkdyn
    return report({r: train(r, nnx.clone(start), text) for r in RATIOS}, "language_nnx.png", out)


if __name__ == "__main__":
    main(**options(__doc__, steps=400))

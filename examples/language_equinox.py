"""Sharper attention in an Equinox language model: its query-key circuit learns r times as fast as its output-value circuit.

A small causal model of characters learns a story of 10 kB, at r = 1 and at r = 10 from the same start. Compared at equal
loss on text it has not seen, attention is sharper at r = 10. Lines marked qkdyn are all that is added to a training loop.

Command:  python examples/language_equinox.py [--steps 400] [--out FOLDER]
Expect:   within a minute on two cores the table of rates, the comparison, and the figure language_equinox.png.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from common import EVERY, options, progress, read_text, report, run_of

from qkdyn import observe
from qkdyn.circuit_table import circuit_table
from qkdyn.labels import circuit_labels
from qkdyn.optim import circuit_optimizer

RATIOS = (1.0, 10.0)
LENGTH, BATCH, WIDTH, HEADS, LAYERS = 32, 16, 64, 4, 2
RATE = 1e-3
CAUSAL = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))  # (queries, keys); Equinox's modules are of one sequence


class Block(eqx.Module):
    """Attention to earlier characters, and an MLP."""

    norms: list
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP

    def __init__(self, key):
        one, two = jax.random.split(key)
        self.norms = [eqx.nn.LayerNorm(WIDTH) for _ in range(2)]
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=one)
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 4 * WIDTH, 1, jax.nn.gelu, key=two)

    def __call__(self, x):
        h = jax.vmap(self.norms[0])(x)
        read, maps = observe.attend_with_maps(self.attention, h, h, h, CAUSAL)  # qkdyn
        x = x + read
        return x + jax.vmap(lambda row: self.mlp(self.norms[1](row)))(x), maps


class Model(eqx.Module):
    """Logits (LENGTH, characters) of the next character, and the attention of each layer, (HEADS, LENGTH, LENGTH)."""

    letters: eqx.nn.Embedding
    places: eqx.nn.Embedding
    blocks: list
    norm: eqx.nn.LayerNorm
    out: eqx.nn.Linear

    def __init__(self, characters, key):
        keys = jax.random.split(key, LAYERS + 3)
        self.letters = eqx.nn.Embedding(characters, WIDTH, key=keys[0])
        self.places = eqx.nn.Embedding(LENGTH, WIDTH, key=keys[1])
        self.blocks = [Block(key) for key in keys[3:]]
        self.norm, self.out = eqx.nn.LayerNorm(WIDTH), eqx.nn.Linear(WIDTH, characters, key=keys[2])

    def predict(self, tokens):
        x, maps = jax.vmap(self.letters)(tokens) + self.places.weight, []
        for block in self.blocks:
            x, of = block(x)
            maps.append(of)
        return jax.vmap(lambda row: self.out(self.norm(row)))(x), maps


def main(steps=400, out="."):
    """Train at both ratios; print and draw the comparison."""
    text = read_text(steps, BATCH, LENGTH)
    start, static = eqx.partition(eqx.filter_jit(Model)(len(text.characters), jax.random.key(0)), eqx.is_inexact_array)

    def rates(r):
        return {"learning_rate": RATE, "multipliers": {"qk": r, "ov": 1, "rest": 1}, "labels": circuit_labels}  # qkdyn

    def optimizer(r):
        return circuit_optimizer(optax.adam, **rates(r))  # qkdyn

    print(circuit_table(start, **rates(RATIOS[-1])))  # qkdyn

    def loss(params, windows):
        logits, maps = jax.vmap(eqx.combine(params, static).predict)(windows[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:]).mean(), maps

    @jax.jit  # r is traced, so that both ratios are one compilation
    def advance(r, params, moments, batches):
        def step(state, windows):
            params, moments = state
            gradient, _ = jax.grad(loss, has_aux=True)(params, windows)
            updates, moments = optimizer(r).update(gradient, moments, params)
            return (eqx.apply_updates(params, updates), moments), None

        (params, moments), _ = jax.lax.scan(step, (params, moments), batches)
        value, maps = loss(params, text.held_out)
        return params, moments, {"loss": value, **observe.measure(maps, mask=CAUSAL[None, None])}  # qkdyn

    runs = {}
    for r in RATIOS:
        params, moments = start, optimizer(r).init(start)
        seen = jax.eval_shape(advance, r, params, moments, text.batches[:EVERY])[-1]
        records = observe.start(steps // EVERY, seen)  # qkdyn
        for i in range(0, steps, EVERY):
            params, moments, seen = advance(r, params, moments, text.batches[i : i + EVERY])
            records = observe.write(records, i + EVERY, seen)  # qkdyn
            progress(r, i + EVERY, seen["loss"])
        runs[r] = run_of(observe.to_dataset(records))  # qkdyn
    return report(runs, "language_equinox.png", out)


if __name__ == "__main__":
    main(**options(__doc__, steps=400))

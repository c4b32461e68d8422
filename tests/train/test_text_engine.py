"""The text engine against dense AdamW on one run at a time, written out plainly."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from made_text import config_of, made_posts, runs_of

from helpers import compilations
from qkdyn.train.lazy_adam import NEVER, catch_up, idle_tables, update
from qkdyn.train.text_batches import cut, epoch_batches, readouts, room, slots_read, widen
from qkdyn.train.text_engine import TextJob, advance, begin, cosine, idle_of, labels_of, settle
from qkdyn.transformer import forward, init_transformer

SEEDS, BATCH, WIDTHS = (3, 5), 4, (8, 16)


ARMS = ((1, 1, 1, 1e-4, 0), (30, 1, 1, 0.5, 0), (1, 0, 1, 0, 0), (30, 3, 0, 1e-3, 1), (30, 3, 0, 1e-3, 0))
JOB = {"steps": 12, "warmup": 2, "widths": WIDTHS, "clip": 0.2}


def trained(job, runs, data, epochs=2, by_length=True):
    """State and losses of all runs."""
    idle = jax.tree.map(jnp.asarray, idle_of(job, runs))
    state = begin(job, SEEDS, len(runs.rate))
    losses = []
    for epoch in range(epochs):
        batches = epoch_batches(
            data, job.model, seeds=SEEDS, epoch=epoch, batch=BATCH, widths=WIDTHS, by_length=by_length
        )
        batches = widen(batches, room(batches), job.model.vocabulary)
        for start in range(0, len(batches.width), 4):
            count = min(4, len(batches.width) - start)
            state, found = advance(job, runs, idle, state, cut(batches, start, count, 4), jnp.int32(count))
            losses.append(found[:count])
    return settle(state, idle), np.concatenate(losses)


@functools.partial(jax.jit, static_argnums=0)
def plain_step(job, settings, params, opt, left, posts):
    """One update of one run: all parameters dense, optax's AdamW, clipping and frozen gradients by hand."""
    tokens, length, readout, label, weight = posts

    def loss(params):
        logits = forward(params, job.model, tokens, length, queries=readout[:, None]).logits[:, 0]
        return (weight * optax.softmax_cross_entropy_with_integer_labels(logits, label)).sum() / weight.sum()

    value, gradient = jax.value_and_grad(loss)(params)
    labels = labels_of(job, params)
    frozen = jax.tree.map(lambda name: settings["multipliers"][name] == 0, labels)
    left = jax.tree.map(lambda f, g, old: (g + old) * (f & settings["stale"]), frozen, gradient, left)
    counted = jax.tree.map(jnp.where, frozen, left, gradient)
    factor = jnp.minimum(1, job.clip / (optax.tree.norm(counted) + 1e-6))
    gradient, left = (jax.tree.map(lambda g: g * factor, tree) for tree in (gradient, left))
    updates, opt = plain_optimizer(job, settings, labels).update(gradient, opt, params)
    return optax.apply_updates(params, updates), opt, left, value


def plain_optimizer(job, settings, labels):
    def adamw(name):
        rate = settings["rate"] * settings["multipliers"][name]
        schedule = lambda t: rate * cosine(jnp, t, job.warmup, job.steps)  # noqa: E731
        return optax.adamw(schedule, weight_decay=settings["decay"][name])

    return optax.multi_transform({name: adamw(name) for name in settings["multipliers"]}, labels)


def plainly(job, runs, data, s, a, epochs=2, by_length=True):
    """One run, its embedding dense among all other parameters."""
    settings = jax.tree.map(lambda leaf: jnp.asarray(leaf[a]), runs._asdict())
    params = init_transformer(jax.random.key(SEEDS[s]), job.model)
    opt = plain_optimizer(job, settings, labels_of(job, params)).init(params)
    left, losses = jax.tree.map(jnp.zeros_like, params), []
    for epoch in range(epochs):
        batches = epoch_batches(
            data, job.model, seeds=SEEDS, epoch=epoch, batch=BATCH, widths=WIDTHS, by_length=by_length
        )
        for t in range(len(batches.width)):
            tokens = batches.ids[t, s][batches.inverse[t, s]]
            posts = (tokens, batches.length[t, s], batches.readout[t, s], batches.label[t, s], batches.weight[t, s])
            params, opt, left, value = plain_step(job, settings, params, opt, left, posts)
            losses.append(float(value))
    return params, losses


@pytest.mark.parametrize(
    ("changed", "query", "by_length"),
    [({}, True, True), ({"readout": "first_pad", "mask_padding": False, "n_layers": 2}, False, False)],
)
def test_the_engine_is_dense_adamw_run_by_run(changed, query, by_length):
    config = config_of(**changed)
    data = made_posts(config, query=query)
    job = TextJob(config, **JOB, apart=() if query else ("W_pos", "b_Q"), stale=True)
    runs = runs_of(*ARMS)
    state, losses = trained(job, runs, data, by_length=by_length)
    table = np.asarray(state.table).reshape(len(SEEDS), config.vocabulary, len(ARMS), -1)
    for s, a in ((0, 0), (0, 1), (1, 2), (1, 3), (0, 4)):
        params, expected = plainly(job, runs, data, s, a, by_length=by_length)
        np.testing.assert_allclose(losses[:, s, a], expected, rtol=2e-5)
        np.testing.assert_allclose(table[s, :, a], params["embed"].pop("W_E"), atol=2e-5)
        own = jax.tree.map(lambda leaf: leaf[s, a], state.params)  # noqa: B023
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5), own, params)


def test_arms_together_are_arms_alone_and_start_alike():
    config = config_of()
    data, job, runs = made_posts(config), TextJob(config, **JOB, stale=True), runs_of(*ARMS)
    together, _ = trained(job, runs, data)
    alone, _ = trained(job, jax.tree.map(lambda leaf: leaf[1:2], runs), data)
    np.testing.assert_allclose(alone.table[:, 0], together.table[:, 1], atol=1e-5)
    first = begin(job, SEEDS, 2)
    assert np.array_equal(first.table[:, 0], first.table[:, 1])
    rows = np.asarray(first.table).reshape(len(SEEDS), -1)
    assert not np.array_equal(rows[0], rows[1])


def test_a_second_call_with_other_rates_compiles_nothing():
    config = config_of()
    data, job = made_posts(config), TextJob(config, **JOB)
    trained(job, runs_of(*ARMS[:2]), data)
    with compilations() as names:
        trained(job, runs_of(*ARMS[1:3]), data)
    assert not [name for name in names if "advance" in name or "settle" in name or "_begin" in name], names


def test_a_run_that_diverges_leaves_the_others_alone():
    config = config_of()
    data, job = made_posts(config), TextJob(config, **JOB)
    arms = runs_of(ARMS[0], (1, 1, 1, 0, 0))
    state, losses = trained(job, arms._replace(rate=np.array([0.01, 1e30], np.float32)), data)
    calm, expected = trained(job, arms, data)
    assert not np.isfinite(losses[-1, :, 1]).any()
    np.testing.assert_allclose(losses[:, :, 0], expected[:, :, 0], rtol=1e-6)
    np.testing.assert_allclose(state.table[:, 0], calm.table[:, 0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("scale", [1e-3, 1e-8])
def test_idle_updates_at_once_are_idle_updates_one_by_one(scale):
    # Rows that are touched often, seldom and never, at rates and decays of two runs; gradients down to the size of eps.
    steps, rows, d = 150, 12, 3
    rng = np.random.default_rng(1)
    rate = cosine(np, np.arange(steps, dtype=float), 20, steps)[:, None] * np.array([1.5e-3, 5e-2])
    decay = np.array([1e-3, 0.5])
    touched = rng.random((steps, rows)) < np.geomspace(1e-3, 0.8, rows)
    gradients = (scale * rng.normal(size=(steps, rows, 2, d)) * touched[..., None, None]).astype(np.float32)
    start = jnp.asarray(rng.normal(size=(rows, 2, d)) * 0.02, jnp.float32)
    dense = []
    for run in range(2):
        optimizer = optax.adamw(lambda t, run=run: jnp.asarray(rate[:, run], jnp.float32)[t], weight_decay=decay[run])

        def descend(carry, gradient, optimizer=optimizer):
            updates, opt = optimizer.update(gradient, carry[1], carry[0])
            return (optax.apply_updates(carry[0], updates), opt), None

        carry = (start[:, run], optimizer.init(start[:, run]))
        dense.append(jax.lax.scan(descend, carry, jnp.asarray(gradients[:, :, run]))[0][0])
    idle = jax.tree.map(jnp.asarray, idle_tables(rate, decay))

    def lazily(carry, given):
        now, gradient, touch = given
        row, m, v, last = carry
        fresh = update(*catch_up(row, m, v, last, now, idle), gradient, now, idle)
        row, m, v = (jnp.where(touch[:, None, None], new, old) for new, old in zip(fresh, (row, m, v), strict=True))
        return (row, m, v, jnp.where(touch, now, last)), None

    begun = (start, jnp.zeros_like(start), jnp.zeros_like(start), jnp.full(rows, NEVER))
    carry, _ = jax.lax.scan(lazily, begun, (jnp.arange(steps), jnp.asarray(gradients), jnp.asarray(touched)))
    found = catch_up(*carry, jnp.int32(steps), idle)[0]
    moved = np.abs(np.stack(dense, 1) - np.asarray(start)).max()
    np.testing.assert_allclose(found, np.stack(dense, 1), atol=(2e-5 if scale > 1e-6 else 2e-4) * moved + 1e-7)
    never = ~touched.any(0)
    assert never.any()
    kept = np.asarray(start)[never] * np.prod(1 - rate * decay, axis=0)[None, :, None]
    np.testing.assert_allclose(np.asarray(found)[never], kept, rtol=1e-5)


def test_training_reads_up_to_the_readout_and_no_further():
    for changed, query in (({}, True), ({"readout": "first_pad", "mask_padding": False}, False)):
        config = config_of(**changed)
        data = made_posts(config, query=query)
        needed, where = slots_read(data, config), readouts(data, config)
        assert (needed == where + 1).all()
        batches = epoch_batches(data, config, seeds=SEEDS, epoch=0, batch=BATCH, widths=WIDTHS, by_length=True)
        seen = batches.weight.sum()
        assert seen == len(SEEDS) * len(data)
        for t, s in np.ndindex(batches.weight.shape[:2]):
            ids = batches.ids[t, s][batches.ids[t, s] < config.vocabulary]
            assert len(set(ids)) == len(ids)
            for b in np.flatnonzero(batches.weight[t, s]):
                read = batches.ids[t, s][batches.inverse[t, s, b, : batches.readout[t, s, b] + 1]]
                post = [i for i in range(len(data)) if np.array_equal(data.tokens[i, : len(read)], read)]
                assert any(needed[i] == len(read) and data.label[i] == batches.label[t, s, b] for i in post)

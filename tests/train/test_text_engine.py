"""The text engine against dense AdamW and SGD on one run at a time, written out plainly."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from made_text import config_of, drawn, made_posts, runs_of

from helpers import compilations
from qkdyn.errors import InputError
from qkdyn.train import text_engine
from qkdyn.train.lazy_adam import NEVER, catch_up, idle_tables, update
from qkdyn.train.text_batches import cut, epoch_batches, readouts, room, slots_read, widen
from qkdyn.train.text_engine import TextJob, advance, begin, cosine, idle_of, labels_of, settle
from qkdyn.transformer import forward
from qkdyn.transformer_config import is_shape, shapes

SEEDS, BATCH, WIDTHS = (3, 5), 4, (8, 16)


ARMS = ((1, 1, 1, 1e-4, 0), (30, 1, 1, 0.5, 0), (1, 0, 1, 0, 0), (30, 3, 0, 1e-3, 1), (30, 3, 0, 1e-3, 0))
JOB = {"steps": 12, "warmup": 2, "widths": WIDTHS, "clip": 0.2}


def trained(job, runs, data, epochs=2, by_length=True):
    """State and losses of all runs."""
    idle = jax.tree.map(jnp.asarray, idle_of(job, runs))
    state = drawn(job, SEEDS, len(runs.rate))
    losses = []
    for epoch in range(epochs):
        batches = epoch_batches(
            data, job.model, seeds=SEEDS, epoch=epoch, batch=BATCH, widths=job.widths, by_length=by_length
        )
        batches = widen(batches, room(batches), job.model.vocabulary)
        for start in range(0, len(batches.width), 4):
            count = min(4, len(batches.width) - start)
            state, found = advance(job, runs, idle, state, cut(batches, start, count, 4), jnp.int32(count))
            losses.append(found[:count])
    return settle(job, state, idle), np.concatenate(losses)


@functools.partial(jax.jit, static_argnums=0)
def plain_step(job, settings, params, opt, left, posts):
    """One update of one run: all parameters dense, clipping and frozen gradients by hand."""
    tokens, length, readout, label, weight = posts

    def loss(params):
        logits = forward(params, job.model, tokens, length, queries=readout[:, None]).logits[:, 0]
        return (weight * optax.softmax_cross_entropy_with_integer_labels(logits, label)).sum() / weight.sum()

    value, gradient = jax.value_and_grad(loss)(params)
    labels = labels_of(job, params)
    if job.clip is not None:
        frozen = jax.tree.map(lambda name: settings["multipliers"][name] == 0, labels)
        left = jax.tree.map(lambda f, g, old: (g + old) * (f & settings["stale"]), frozen, gradient, left)
        counted = jax.tree.map(jnp.where, frozen, left, gradient)
        factor = jnp.minimum(1, job.clip / (optax.tree.norm(counted) + 1e-6))
        gradient, left = (jax.tree.map(lambda g: g * factor, tree) for tree in (gradient, left))
    if job.optimizer == "sgd":
        # The update number stands beside the momenta.
        step, momenta = opt
        rates = {name: settings["rate"] * factor for name, factor in settings["multipliers"].items()}
        add = lambda name, g, b, p: job.momentum * b + g + settings["decay"][name] * p  # noqa: E731
        momenta = jax.tree.map(add, labels, gradient, momenta, params)
        share = cosine(jnp, step, job.warmup, job.steps)
        params = jax.tree.map(lambda name, p, b: p - share * rates[name] * b, labels, params, momenta)
        return params, (step + 1, momenta), left, value
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
    start = drawn(job, SEEDS[s : s + 1], 1)
    params = jax.tree.map(lambda leaf: leaf[0, 0], start.params)
    params["embed"]["W_E"] = start.table[:, 0]
    zeros = jax.tree.map(jnp.zeros_like, params)
    adamw = job.optimizer == "adamw"
    opt = plain_optimizer(job, settings, labels_of(job, params)).init(params) if adamw else (jnp.int32(0), zeros)
    left, losses = zeros, []
    for epoch in range(epochs):
        batches = epoch_batches(
            data, job.model, seeds=SEEDS, epoch=epoch, batch=BATCH, widths=job.widths, by_length=by_length
        )
        for t in range(len(batches.width)):
            tokens = batches.ids[t, s][batches.inverse[t, s]]
            posts = (tokens, batches.length[t, s], batches.readout[t, s], batches.label[t, s], batches.weight[t, s])
            params, opt, left, value = plain_step(job, settings, params, opt, left, posts)
            losses.append(float(value))
    return params, losses


PUBLISHED = {"readout": "first_pad", "mask_padding": False, "n_layers": 2, "d_mlp": None}
SENTENCES = {"readout": "last", "residual": False, "d_mlp": None}
SGD = {"optimizer": "sgd", "momentum": 0.5, "clip": None}


@pytest.mark.parametrize(
    ("changed", "query", "by_length", "own"),
    [
        ({}, True, True, {"stale": True}),
        (PUBLISHED, False, False, {"apart": ("W_pos", "b_Q"), "widths": (16,)}),
        (SENTENCES, False, True, {**SGD, "widths": (16,)}),
    ],
)
def test_the_engine_is_the_dense_optimizer_run_by_run(changed, query, by_length, own):
    config = config_of(**changed)
    data = made_posts(config, query=query)
    job = TextJob(config, **{**JOB, **own})
    runs = runs_of(*ARMS)
    state, losses = trained(job, runs, data, by_length=by_length)
    assert np.ptp(losses, axis=0).min() > 1e-3
    table = np.asarray(state.table).reshape(len(SEEDS), config.vocabulary, len(ARMS), -1)
    for s, a in ((0, 0), (0, 1), (1, 2), (1, 3), (0, 4)):
        params, expected = plainly(job, runs, data, s, a, by_length=by_length)
        np.testing.assert_allclose(losses[:, s, a], expected, rtol=2e-5)
        np.testing.assert_allclose(table[s, :, a], params["embed"].pop("W_E"), atol=2e-5)
        own = jax.tree.map(lambda leaf: leaf[s, a], state.params)  # noqa: B023
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5), own, params)


def test_arms_of_a_seed_start_alike_as_one_run_does(monkeypatch):
    def numbered(key, config):
        """In the place of random numbers, which take long to compile: the seed and the place."""
        at = lambda shape: jax.random.key_data(key)[-1] + jnp.arange(np.prod(shape)).reshape(shape) / 1e4  # noqa: E731
        return jax.tree.map(at, shapes(config), is_leaf=is_shape)

    monkeypatch.setattr(text_engine, "init_transformer", numbered)
    config = config_of(vocabulary=41)
    state = begin(TextJob(config, **JOB), SEEDS, 3)
    rows = np.asarray(state.table).reshape(len(SEEDS), 41, 3, -1)
    for s, seed in enumerate(SEEDS):
        params = numbered(jax.random.key(seed), config)
        for a in range(3):
            np.testing.assert_allclose(rows[s, :, a], params["embed"]["W_E"], rtol=1e-6)
            np.testing.assert_allclose(state.params["head"]["W_U"][s, a], params["head"]["W_U"], rtol=1e-6)
    assert (state.last == NEVER).all() and not any(moments.any() for moments in state.moments)


def test_a_job_that_no_engine_trains_is_refused():
    for wrong, said in (
        ({"optimizer": "lion"}, "optimizer must be one of adamw, sgd"),
        ({"clip": None, "stale": True}, "stale must be False without clipping"),
        ({"clip": 0.0}, "clip"),
        ({"optimizer": "sgd", "momentum": 1.0}, "momentum must be at least 0 and below 1, got 1"),
    ):
        with pytest.raises(InputError, match=said):
            TextJob(config_of(), **{**JOB, **wrong})


def test_a_second_call_with_other_rates_compiles_nothing():
    # The job of the first dense comparison, and as many arms: compiled once for all of these tests.
    config = config_of()
    data, job = made_posts(config), TextJob(config, **JOB, stale=True)
    trained(job, runs_of(*ARMS), data)
    with compilations() as names:
        trained(job, runs_of(*ARMS[::-1]), data)
    assert not [name for name in names if "advance" in name or "settle" in name], names


def test_a_run_that_diverges_leaves_the_others_alone():
    config = config_of()
    data, job = made_posts(config), TextJob(config, **JOB, stale=True)
    arms = runs_of(*ARMS[:2], (1, 1, 1, 0, 0), *ARMS[3:])
    wild = np.where(np.arange(len(ARMS)) == 2, np.float32(1e30), arms.rate)
    state, losses = trained(job, arms._replace(rate=wild), data)
    calm, expected = trained(job, arms, data)
    assert not np.isfinite(losses[-1, :, 2]).any()
    others = [0, 1, 3, 4]
    np.testing.assert_allclose(losses[:, :, others], expected[:, :, others], rtol=1e-6)
    np.testing.assert_allclose(state.table[:, others], calm.table[:, others], rtol=1e-5, atol=1e-7)


@jax.jit
def densely(rate, decay, start, gradients):
    """Rows of one run after optax's AdamW on every row."""
    optimizer = optax.adamw(lambda t: rate[t], weight_decay=decay)

    def descend(carry, gradient):
        updates, opt = optimizer.update(gradient, carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), opt), None

    return jax.lax.scan(descend, (start, optimizer.init(start)), gradients)[0][0]


@jax.jit
def lazily(idle, start, gradients, touched):
    """Rows of all runs after updates of those that are touched, before the others are caught up with."""

    def step(carry, given):
        now, gradient, touch = given
        row, m, v, last = carry
        fresh = update(*catch_up(row, m, v, last, now, idle), gradient, now, idle)
        row, m, v = (jnp.where(touch[:, None, None], new, old) for new, old in zip(fresh, (row, m, v), strict=True))
        return (row, m, v, jnp.where(touch, now, last)), None

    begun = (start, jnp.zeros_like(start), jnp.zeros_like(start), jnp.full(len(start), NEVER))
    return jax.lax.scan(step, begun, (jnp.arange(len(touched)), gradients, touched))[0]


@pytest.mark.parametrize("scale", [1e-3, 1e-8])
def test_idle_updates_at_once_are_idle_updates_one_by_one(scale):
    # Rows that are touched often, seldom and never, at rates and decays of two runs; gradients down to the size of eps.
    steps, rows, d = 150, 12, 3
    rng = np.random.default_rng(1)
    rate = cosine(np, np.arange(steps, dtype=float), 20, steps)[:, None] * np.array([1.5e-3, 5e-2])
    decay = np.array([1e-3, 0.5])
    touched = rng.random((steps, rows)) < np.geomspace(1e-3, 0.8, rows)
    gradients = (scale * rng.normal(size=(steps, rows, 2, d)) * touched[..., None, None]).astype(np.float32)
    start = (rng.normal(size=(rows, 2, d)) * 0.02).astype(np.float32)
    single = rate.astype(np.float32)
    each = [densely(single[:, run], decay[run], start[:, run], gradients[:, :, run]) for run in range(2)]
    dense = np.stack(each, 1)
    idle = jax.tree.map(jnp.asarray, idle_tables(rate, decay))
    found = catch_up(*lazily(idle, start, gradients, touched), jnp.int32(steps), idle)[0]
    moved = np.abs(dense - start).max()
    np.testing.assert_allclose(found, dense, atol=(2e-5 if scale > 1e-6 else 2e-4) * moved + 1e-7)
    never = ~touched.any(0)
    assert never.any()
    kept = start[never] * np.prod(1 - rate * decay, axis=0)[None, :, None]
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

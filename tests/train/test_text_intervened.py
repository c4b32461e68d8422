"""Interventions on the circuits of text runs: one program for all arms, each of them as optax does it to one run alone."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from made_text import config_of, drawn, made_posts, runs_of

from helpers import compilations
from qkdyn.errors import InputError
from qkdyn.interventions import Intervention, Numbers, OnCircuit, Schedule
from qkdyn.train.text_batches import epoch_batches, room, widen
from qkdyn.train.text_engine import TextJob, advance, begin, cosine, idle_of, labels_of
from qkdyn.transformer import forward

SEEDS, BATCH, WIDTHS, DECAY, CLIP = (3,), 4, (16,), 1e-3, 0.2
# The smallest model: what is compiled takes longer than what is trained.
CONFIG = config_of(d_mlp=None, biases=False)
DATA = made_posts(CONFIG)
JOB = TextJob(CONFIG, steps=12, warmup=2, widths=WIDTHS, clip=CLIP, intervened=True)
PLAIN = OnCircuit(decay=DECAY)


def stacked(*interventions, gain=()):
    """Runs of these interventions, every other group as in the other tests."""
    arms = len(interventions)
    runs = runs_of(*[(30, 1, 1, DECAY, 0)] * arms)
    numbers = jax.tree.map(lambda *leaves: np.stack(leaves), *map(Numbers.of, interventions))
    ones = np.ones((arms, 2), np.float32)
    return runs._replace(numbers=numbers, gain=ones if not len(gain) else np.asarray(gain, np.float32))


def trained(job, runs, epochs=2):
    """All parameters but the embedding of the first seed, and the losses."""
    idle = jax.tree.map(jnp.asarray, idle_of(job, runs))
    state, losses = drawn(job, SEEDS, len(runs.rate)), []
    for epoch in range(epochs):
        batches = batches_of(epoch)
        state, found = advance(job, runs, idle, state, batches, jnp.int32(len(batches.width)))
        losses.append(found)
    return jax.tree.map(lambda leaf: np.asarray(leaf[0]), state.params), np.concatenate(losses)[:, 0]


def batches_of(epoch):
    found = epoch_batches(DATA, CONFIG, seeds=SEEDS, epoch=epoch, batch=BATCH, widths=WIDTHS, by_length=True)
    return widen(found, room(found), CONFIG.vocabulary)


def adamw(rate, decay):
    return optax.adamw(rate, weight_decay=decay)


def sgd(rate, decay):
    return optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate))


def by_optax(qk, runs, epochs=2, base=adamw):
    """Losses of one run whose query-key transform is `qk`(schedule of the rate), of all others `base`, everything dense."""
    start = drawn(JOB, SEEDS, 1)
    params = jax.tree.map(lambda leaf: leaf[0, 0], start.params)
    params["embed"]["W_E"] = start.table[:, 0]
    rate = lambda times: lambda t: float(runs.rate[0]) * times * cosine(jnp, t, JOB.warmup, JOB.steps)  # noqa: E731
    decays = {name: float(values[0]) for name, values in runs.decay.items()} | {"ov": DECAY}
    transforms = {name: base(rate(float(times[0])), decays[name]) for name, times in runs.multipliers.items()}
    transforms["qk"] = qk(rate(30.0))
    clip = optax.clip_by_global_norm(CLIP)
    optimizer = optax.chain(clip, optax.multi_transform(transforms, labels_of(JOB, params)))

    def loss(params, posts):
        tokens, length, readout, label, weight = posts
        logits = forward(params, CONFIG, tokens, length, queries=readout[:, None]).logits[:, 0]
        return (weight * optax.softmax_cross_entropy_with_integer_labels(logits, label)).sum() / weight.sum()

    @jax.jit
    def step(params, opt, posts):
        value, gradient = jax.value_and_grad(loss)(params, posts)
        updates, opt = optimizer.update(gradient, opt, params)
        return optax.apply_updates(params, updates), opt, value

    opt, losses = optimizer.init(params), []
    for epoch in range(epochs):
        b = batches_of(epoch)
        for t in range(len(b.width)):
            tokens = b.ids[t, 0][b.inverse[t, 0]]
            params, opt, value = step(
                params, opt, (tokens, b.length[t, 0], b.readout[t, 0], b.label[t, 0], b.weight[t, 0])
            )
            losses.append(float(value))
    return np.array(losses)


LATE = Schedule.delayed(5.0)
ARMS = (
    Intervention(PLAIN, PLAIN),
    Intervention(OnCircuit(decay=1.0, gradient="clipped", threshold=1e-4, schedule=LATE), PLAIN),
    Intervention(OnCircuit(decay=DECAY, gradient="clipped", threshold=1e-4), PLAIN),
    Intervention(OnCircuit(decay=DECAY, schedule=LATE), PLAIN),
    Intervention(PLAIN, OnCircuit(decay=30.0)),
    Intervention(PLAIN, PLAIN),
)
GAINS = [(1, 1)] * 5 + [(1, 10)]


@pytest.fixture(scope="module")
def arms():
    runs = stacked(*ARMS, gain=GAINS)
    return runs, *trained(JOB, runs)


def test_an_arm_is_what_optax_makes_of_all_that_is_done_to_it(arms):
    runs, _, losses = arms

    def done(rate):
        return optax.chain(
            optax.clip_by_global_norm(1e-4),
            optax.adamw(lambda t: jnp.where(jnp.asarray(t) >= 5, rate(t), 0), weight_decay=1.0),
        )

    np.testing.assert_allclose(losses[:, 1], by_optax(done, runs), rtol=2e-5)
    # Each of it does something; but Adam hears nothing of a gradient ten times as large.
    for a in range(1, 5):
        assert np.abs(losses[:, a] / losses[:, 0] - 1).max() > 1e-4, a
    np.testing.assert_allclose(losses[:, 5], losses[:, 0], rtol=2e-5)


def test_under_sgd_too_with_and_without_momentum():
    """Embedding rows decay while no batch has them, without momentum; the circuit has what it is given."""
    job = replace(JOB, optimizer="sgd")
    on = OnCircuit(momentum=0.8, decay=0.1, schedule=LATE)
    given = stacked(Intervention(PLAIN, PLAIN), Intervention(on, PLAIN), gain=[(1, 1), (1, 30)])
    runs = given._replace(rate=np.float32(0.5) * np.ones_like(given.rate))
    losses = trained(job, runs)[1]
    np.testing.assert_allclose(losses[:, 0], by_optax(lambda rate: sgd(rate, DECAY), runs, base=sgd), rtol=2e-5)

    def done(rate):
        gathered = optax.chain(optax.scale(30.0), optax.add_decayed_weights(0.1), optax.trace(0.8))
        late = optax.scale_by_learning_rate(lambda t: jnp.where(jnp.asarray(t) >= 5, rate(t), 0))
        return optax.chain(gathered, late)

    np.testing.assert_allclose(losses[:, 1], by_optax(done, runs, base=sgd), rtol=2e-5)
    assert np.abs(losses[:, 1] / losses[:, 0] - 1).max() > 5e-4


def test_without_an_intervention_the_run_is_the_plain_one(arms):
    runs, params, losses = arms
    plain = TextJob(CONFIG, steps=12, warmup=2, widths=WIDTHS, clip=CLIP)
    bare = runs._replace(numbers=(), gain=(), decay={**runs.decay, "qk": runs.decay["ov"]})
    expected, plainly = trained(plain, bare)
    np.testing.assert_allclose(losses[:, 0], plainly[:, 0], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[0], b[0], atol=2e-5), params, expected)


def test_other_strengths_compile_nothing(arms):
    other = Intervention(OnCircuit(gradient="normalized"), OnCircuit(schedule=Schedule.ramp(1.0, 3.0, 7.0), decay=0.1))
    runs = stacked(*[other] * len(ARMS))
    with compilations() as names:
        trained(JOB, runs)
    assert not [name for name in names if "advance" in name], names


def test_job_and_runs_have_to_agree_on_whether_there_are_interventions():
    runs = stacked(*ARMS)
    plain = TextJob(CONFIG, steps=12, warmup=2, widths=WIDTHS)
    for job, wrong in ((plain, runs), (JOB, runs._replace(numbers=(), gain=())), (JOB, runs._replace(gain=()))):
        with pytest.raises(InputError, match="intervened must be True exactly where"):
            idle_of(job, wrong)


def test_the_state_has_averages_of_all_whatever_is_done():
    state = jax.eval_shape(lambda: begin(JOB, SEEDS, 2))
    sizes = {leaf.shape for leaf in jax.tree.leaves(state.params)}
    assert {leaf.shape for leaf in jax.tree.leaves(state.opt) if leaf.ndim > 2} == sizes

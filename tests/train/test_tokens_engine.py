"""Training on token counts: closed form and automatic gradients, bits of a run, resuming, the ramp, the stop rule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import compilations, max_difference, trees_equal
from qkdyn import attention
from qkdyn.circuits import Parameterization, init_params, torch_uniform
from qkdyn.errors import InputError
from qkdyn.tasks.tokens import TokensTask
from qkdyn.train.step import data_key
from qkdyn.train.token_probe import evaluate
from qkdyn.train.tokens import (
    RESET,
    advance_tokens,
    batch_loss,
    reference,
    sgd,
    start_tokens,
    token_runs,
)
from qkdyn.train.tokens_gradient import join, loss_and_gradient, split

FORMS = list(Parameterization)
TASK = TokensTask(length=12, batch=8)
FIG3 = TokensTask(length=16, batch=8, gamma=0.3, equal=True, swapped=True)


def initial(form, runs, scale=1.0):
    def one(seed):
        drawn = init_params(jax.random.key(seed), form, d=50, M=50, qk=torch_uniform(), ov=torch_uniform())
        return jax.tree.map(lambda leaf: scale * leaf, drawn)

    return jax.vmap(one)(jnp.arange(runs))


def take(tree, rows):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], tree)


def row(tree, i):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[i]), tree)


@pytest.mark.parametrize("task", [TASK, FIG3])
@pytest.mark.parametrize("form", FORMS)
def test_the_closed_form_is_the_gradient(form, task):
    # Large parameters, so that attention is far from uniform and the query-key gradient is not small.
    params = row(initial(form, 1, 5.0), 0)
    tally = task.tally(task.words(jax.random.key(1)))
    loss, expected = jax.jit(reference, static_argnums=2)(params, tally, task)
    found_loss, moving = jax.jit(loss_and_gradient, static_argnums=2)(split(params, task), tally, task)
    found = join(jax.tree.map(jnp.zeros_like, params), moving, task)
    assert abs(float(loss - found_loss)) < 1e-5
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert max_difference(a, b) < 3e-6 * float(jnp.abs(b).max())
    assert trees_equal(join(params, split(params, task), task), params)


def test_the_loss_is_that_of_the_sequence_written_out():
    params = row(initial("FAFO", 1, 5.0), 0)
    batch = TASK.batch_of(jax.random.key(2))
    ids = np.stack([np.repeat(np.arange(50), row.astype(int)) for row in np.asarray(batch.counts)])
    E = np.eye(50, dtype="f4")
    logits, _ = attention.forward(params, jnp.asarray(E[ids]), jnp.asarray(E[np.asarray(batch.query)]), scale=50**-0.5)
    assert abs(float(attention.cross_entropy(logits, batch.y) - batch_loss(params, batch))) < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_the_engine_is_sgd_on_the_batches_of_seed_and_step(form):
    runs = token_runs([3, 4], eta_ov=0.2, eta_qk=0.5, ramp=7.0, total=300)
    states, records = advance_tokens(start_tokens(initial(form, 2)), runs, TASK, epochs=3, batches=100)

    @jax.jit
    def by_hand(params, run):
        def step(params, number):
            batch = TASK.batch_of(data_key(run.seed, number))
            loss, gradient = jax.value_and_grad(batch_loss)(params, batch)
            return sgd(params, gradient, run, number), loss

        return jax.lax.scan(step, params, jnp.arange(300))

    for i in range(2):
        params, losses = by_hand(row(initial(form, 2), i), row(runs, i))
        assert max_difference(take(states.params, i), params) < 2e-4
        np.testing.assert_allclose(records["loss"][i], losses.reshape(3, 100).mean(1), atol=2e-4)
    assert (
        (states.step == 300).all()
        and not states.stopped.any()
        and (records["loss"][:, 2] < records["loss"][:, 0]).all()
    )
    if form == "FAFO":
        automatic, _ = advance_tokens(start_tokens(initial(form, 2)), runs, TASK, epochs=3, batches=100, closed=False)
        assert max_difference(states.params, automatic.params) < 2e-4


def test_rates_and_ramp():
    params = {"qk": {"W_QK": jnp.ones((2, 2))}, "ov": {"W_OV": jnp.ones((2, 2))}}
    run = row(token_runs([0], eta_ov=0.5, eta_qk=0.25, ramp=9.0, total=100), 0)
    for step, growth in ((0, 1.0), (50, 5.0), (100, 9.0)):
        moved = sgd(params, params, run, jnp.int32(step))
        np.testing.assert_allclose(moved["qk"]["W_QK"], 1 - 0.25 * growth)
        np.testing.assert_allclose(moved["ov"]["W_OV"], 0.5)


@pytest.mark.parametrize("form", ["FAFO", "CACO"])
def test_a_run_has_the_same_bits_beside_any_others_and_however_it_is_cut(form):
    starts = start_tokens(initial(form, 11))
    runs = token_runs(range(11), eta_ov=0.2, eta_qk=0.5, ramp=3.0, total=40)
    whole, records = advance_tokens(starts, runs, TASK, epochs=4, batches=10)
    some = np.array([9, 2, 10])
    alone, its = advance_tokens(take(starts, some), take(runs, some), TASK, epochs=4, batches=10)
    assert trees_equal(alone, take(whole, some)) and trees_equal(its, take(records, some))
    once, first = advance_tokens(starts, runs, TASK, epochs=2, batches=10)
    again, second = advance_tokens(once, runs, TASK, epochs=2, batches=10)
    assert trees_equal(again, whole)
    assert trees_equal(np.concatenate([first["loss"], second["loss"]], 1), records["loss"])


def test_one_program_serves_other_rates_seeds_and_numbers_of_runs():
    def go(count, eta):
        runs = token_runs(range(count), eta_ov=eta, eta_qk=eta, ramp=2.0, total=10, stop_loss=eta / 100)
        return advance_tokens(start_tokens(initial("CACO", count)), runs, TASK, epochs=1, batches=5)

    go(3, 0.1)
    initial("CACO", 9)
    with compilations() as found:
        go(9, 0.3)
    assert not [line for line in found if "advance_token_block" in line]


def test_a_run_that_stops_stays_as_it_is_and_a_diverging_one_harms_no_other():
    starts = start_tokens(initial("CACO", 3))
    runs = token_runs([0, 1, 2], eta_ov=0.5, eta_qk=0.1)
    free, records = advance_tokens(starts, runs, TASK, epochs=6, batches=10)
    losses = records["loss"][1]
    # The sum over the epochs so far never falls, so within the first `RESET` only the first epoch's loss can be under it.
    runs.stop_loss[1] = losses[0]
    runs.eta_ov[2] = np.inf
    states, records = advance_tokens(starts, runs, TASK, epochs=6, batches=10)
    assert states.stopped.tolist() == [False, True, False] and states.step.tolist() == [60, 10, 60]
    assert records["loss"][1, 0] == losses[0] and np.isnan(records["loss"][1, 1:]).all()
    assert trees_equal(take(states, 0), take(free, 0))
    first, _ = advance_tokens(starts, runs, TASK, epochs=1, batches=10)
    assert trees_equal(take(states.params, 1), take(first.params, 1))
    assert np.isnan(records["loss"][2, -1]) and not states.stopped[2]


def test_the_stop_rule_compares_the_sum_since_the_last_reset():
    starts = start_tokens(initial("CACO", 2))
    runs = token_runs([0, 1], eta_ov=0.5, eta_qk=0.1)
    _, records = advance_tokens(starts, runs, TASK, epochs=RESET + 3, batches=2)
    # Under the level well before the reset, but the sums are not; the first epoch after it is alone.
    runs.stop_loss[0] = records["loss"][0, RESET] * 1.0001
    assert (records["loss"][0, :RESET] < runs.stop_loss[0]).any()
    states, _ = advance_tokens(starts, runs, TASK, epochs=RESET + 3, batches=2)
    assert states.stopped.tolist() == [True, False] and states.step.tolist() == [2 * (RESET + 1), 2 * (RESET + 3)]
    np.testing.assert_allclose(states.passed[1], records["loss"][1, RESET:].sum(), rtol=1e-6)


def test_measures_are_taken_at_the_end_of_each_epoch():
    batch = TASK.batch_of(jax.random.key(9), 64)

    def measure(params):
        return {"fixed": batch_loss(params, batch)}

    runs = token_runs([0], eta_ov=0.5, eta_qk=0.1)
    states, records = advance_tokens(start_tokens(initial("FACO", 1)), runs, TASK, epochs=3, batches=5, measure=measure)
    assert records["fixed"].shape == (1, 3) == records["loss"].shape
    np.testing.assert_allclose(records["fixed"][0, -1], batch_loss(row(states.params, 0), batch), rtol=1e-5)


def test_evaluation_is_attention_on_distinct_ids_and_the_label_probability():
    task = TokensTask(length=12, batch=64, gamma=0.5)
    params = row(initial("FAFO", 1, 5.0), 0)
    found = evaluate(params, jax.random.key(5), 3, task)
    mass, probability = found.distinct, found.probability
    assert mass.shape == probability.shape == (3 * task.batch,)
    batch = task.batch_of(jax.random.fold_in(jax.random.key(5), 2))
    np.testing.assert_allclose(-np.log(probability[-task.batch :]).mean(), batch_loss(params, batch), rtol=1e-5)
    # Without a query-key circuit attention is uniform.
    flat = {"qk": jax.tree.map(jnp.zeros_like, params["qk"]), "ov": params["ov"]}
    mass = evaluate(flat, jax.random.key(5), 3, task).distinct
    share = batch.counts[:, 10:].sum(1) / (task.length - 1)
    np.testing.assert_allclose(mass[-task.batch :], share, atol=1e-6)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "wrong",
    [{"seeds": [-1]}, {"seeds": [2**31]}, {"eta_ov": -1.0}, {"eta_qk": float("inf")}, {"ramp": -2.0}, {"total": 0}],
)
def test_wrong_runs_are_refused(wrong):
    given = {"seeds": [0], "eta_ov": 0.1, "eta_qk": 0.1} | wrong
    with pytest.raises(InputError, match="must be .* got"):
        token_runs(given.pop("seeds"), **given)


@pytest.mark.usefixtures("unchecked")
def test_wrong_states_are_refused():
    runs, good = token_runs([0, 1], eta_ov=0.1, eta_qk=0.1), initial("FAFO", 2)
    for bad in (
        jax.tree.map(lambda leaf: leaf[:, :40], good),
        jax.tree.map(lambda leaf: leaf.astype(jnp.float16), good),
        jax.tree.map(lambda leaf: leaf * jnp.nan, good),
        good | {"ov": jax.tree.map(lambda leaf: leaf[:1], good["ov"])},
        good | {"ov": {}},
    ):
        with pytest.raises(InputError, match="must (be|have) .* got"):
            start_tokens(bad)
    for wrong in ({"epochs": 0}, {"batches": 0}, {"block": 0}):
        with pytest.raises(InputError, match="must be .* got"):
            advance_tokens(start_tokens(good), runs, TASK, **({"epochs": 1, "batches": 1} | wrong))
    with pytest.raises(InputError, match="equally many"):
        advance_tokens(start_tokens(jax.tree.map(lambda leaf: leaf[:1], good)), runs, TASK, epochs=1, batches=1)

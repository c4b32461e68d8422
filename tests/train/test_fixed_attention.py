"""Fig. 3's training under fixed attention: the mixed token by loops, SGD by hand, bits of a run, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import max_difference, quick, trees_equal
from qkdyn.errors import InputError
from qkdyn.tasks.tokens import TokensTask
from qkdyn.train.fixed_attention import advance_fixed, fixed_loss, fixed_runs, mixed, start_fixed
from qkdyn.train.step import data_key

TASK = TokensTask(length=16, batch=16, equal=True, swapped=True)


drawn = quick(lambda key: TASK.tally(TASK.words(key)))
loss = quick(lambda params, tally, alpha: fixed_loss(params, TASK, tally, alpha))


def take(tree, rows):
    return jax.tree.map(lambda leaf: leaf[rows], tree)


def test_the_mixed_token_is_that_of_the_sequence_written_out():
    key = jax.random.key(0)
    x, batch = quick(lambda key: (mixed(TASK, TASK.tally(TASK.words(key)), 0.7), TASK.batch_of(key)))(key)
    for n, row in enumerate(batch.counts.astype(int)):
        ids = np.repeat(np.arange(50), row)
        own = ids > 9
        attention = np.where(own, 0.7 / own.sum(), 0.3 / (~own).sum())
        np.testing.assert_allclose(x[:, n], np.bincount(ids, attention, 50), atol=1e-6)
    np.testing.assert_allclose(x.sum(0), 1, atol=1e-6)


@pytest.mark.parametrize(("factorized", "bias"), [(False, False), (True, True)])
def test_training_is_sgd_on_the_batches_of_seed_and_step(factorized, bias):
    runs = fixed_runs([5, 6], [0.3, 0.9], eta=0.5)
    starts = start_fixed(runs, factorized=factorized, bias=bias)
    assert set(starts.params) == {
        f"{kind}_{name}" for kind in ("Wb" if bias else "W") for name in (("V", "O") if factorized else ("OV",))
    }
    states, losses = advance_fixed(starts, runs, TASK, epochs=2, batches=20, fresh=3)
    params = jax.tree.map(jnp.asarray, take(starts.params, 1))

    def by_hand(params, x, y):
        x = x.T
        for name in ("V", "O") if factorized else ("OV",):
            x = x @ params[f"W_{name}"].T + (params[f"b_{name}"][None, :] if bias else 0.0)
        return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1).mean()

    @jax.jit
    def step(params, number):
        key = data_key(6, number)
        tally = TASK.tally(TASK.words(key))
        gradient = jax.grad(by_hand)(params, mixed(TASK, tally, jnp.float32(0.9)), TASK.batch_of(key).y)
        return jax.tree.map(lambda w, g: w - 0.5 * g, params, gradient)

    for number in range(40):
        params = step(params, number)
    assert max_difference(take(states.params, 1), params) < 1e-4 and (states.step == 40).all()
    # Before, between and after.
    assert losses.shape == (2, 3, 2) and (losses[:, 2] < losses[:, 0]).all()


@pytest.mark.parametrize("paired", [True, False])
def test_losses_are_taken_on_the_same_batches_or_each_on_its_own_and_never_above_all_attention(paired):
    runs = fixed_runs([5, 6], [0.3, 1.0], eta=0.5)
    starts = start_fixed(runs, factorized=True, bias=True)
    _, losses = advance_fixed(
        starts, runs, TASK, epochs=1, batches=1, fresh=3, offsets=(0.0, 0.005, 0.01), paired=paired
    )
    for run, (seed, alpha) in enumerate([(5, (0.3, 0.305, 0.31)), (6, (1.0, 0.995, 0.99))]):
        for place, at in enumerate(alpha):
            numbers = range(3) if paired else range(place, 9, 3)
            tallies = [drawn(jax.random.fold_in(data_key(seed, 0), number)) for number in numbers]
            params = jax.tree.map(jnp.asarray, take(starts.params, run))
            expected = np.mean([loss(params, tally, np.float32(at)) for tally in tallies])
            np.testing.assert_allclose(losses[run, 0, place], expected, rtol=1e-6)


def test_a_run_has_the_same_bits_beside_any_others_and_however_it_is_cut():
    runs = fixed_runs(range(9), np.linspace(0, 1, 9).tolist(), eta=0.5)
    starts = start_fixed(runs, factorized=True, bias=True)
    how = {"batches": 10, "fresh": 2, "offsets": (0.0,)}
    whole, losses = advance_fixed(starts, runs, TASK, epochs=2, **how)
    some = np.array([8, 3])
    alone, its = advance_fixed(take(starts, some), take(runs, some), TASK, epochs=2, **how)
    assert trees_equal(alone, take(whole, some)) and trees_equal(its, losses[some])
    once, _ = advance_fixed(starts, runs, TASK, epochs=1, **how)
    again, after = advance_fixed(once, runs, TASK, epochs=1, **how)
    assert trees_equal(again, whole) and trees_equal(after, losses[:, 1:])


@pytest.mark.usefixtures("unchecked")
def test_what_does_not_fit_is_refused():
    for seeds, alpha, rate in (
        ([0], [1.1], 0.1),
        ([0], [-0.1], 0.1),
        ([-1], [0.5], 0.1),
        ([2**31], [0.5], 0.1),
        ([0, 1], [0.5], 0.1),
        ([], [], 0.1),
        ([0], [0.5], 0.0),
    ):
        with pytest.raises(InputError, match="must be .* got"):
            fixed_runs(seeds, alpha, eta=rate)
    runs = fixed_runs([0, 1], [0.5, 0.5])
    states = start_fixed(runs, factorized=False, bias=True)
    for wrong in ({"epochs": 0}, {"batches": 0}, {"fresh": 0}):
        with pytest.raises(InputError, match="must be .* got"):
            advance_fixed(states, runs, TASK, **({"epochs": 1, "batches": 1, "fresh": 1} | wrong))
    with pytest.raises(InputError, match="equally many"):
        advance_fixed(take(states, [0]), runs, TASK, epochs=1, batches=1, fresh=1)

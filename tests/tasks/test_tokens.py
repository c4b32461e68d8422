"""The synthetic task: exact law of the tokens, the fixed parts of a sequence, the generator, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import stats

from helpers import trees_equal
from qkdyn.errors import InputError
from qkdyn.tasks.tokens import CLASSES, COMMON, DISTINCT, TokensTask, threefry

TASKS = [TokensTask(), TokensTask(length=17, gamma=0.7), TokensTask(length=16, batch=128, equal=True, swapped=True)]
SIZE = 40_000


def drawn(task, size=SIZE, seed=0):
    """Class, context counts of the ten common and the ten own tokens, and the whole batch, as numpy."""
    batch = jax.tree.map(np.asarray, jax.jit(task.batch_of, static_argnums=1)(jax.random.key(seed), size))
    c = batch.query - task.query_ids[0]
    context = batch.counts.copy()
    context[np.arange(size), batch.query] -= 1
    own = np.take_along_axis(context, COMMON + DISTINCT * c[:, None] + np.arange(DISTINCT)[None, :], 1)
    return c, np.concatenate([context[:, :COMMON], own], 1), batch


@pytest.mark.parametrize("task", TASKS)
def test_a_sequence_has_its_length_its_query_and_tokens_of_its_class_alone(task):
    c, context, batch = drawn(task, 4000)
    assert batch.counts.shape == (4000, 50) and (batch.counts == batch.counts.round()).all() and (context >= 0).all()
    assert (batch.counts.sum(1) == task.length - 1).all() and (context.sum(1) == task.length - 2).all()
    assert (task.query_ids[c] == batch.query).all() and (task.label_ids[c] == batch.y).all()
    ids = (1, 5) if task.swapped else (5, 1)
    assert (task.query_ids[0], task.label_ids[0]) == ids and set(c) == set(range(CLASSES))


@pytest.mark.parametrize("task", TASKS)
def test_the_law_is_the_notebooks_or_the_mixture(task):
    law = task.law()
    if task.gamma is None:
        expected = [10 / 155] * 10 + [k / 155 for k in range(1, 11)]
    else:
        expected = [(1 - task.gamma) / 10] * 10 + [task.gamma / 10] * 10
    np.testing.assert_allclose(law, expected, rtol=1e-14)


@pytest.mark.parametrize("task", TASKS)
def test_contexts_are_multinomial_in_every_class(task):
    c, context, _ = drawn(task)
    law, n = task.law(), task.length - 2
    for k in range(CLASSES):
        mine = context[c == k]
        assert stats.chisquare(mine.sum(0), law * mine.sum()).pvalue > 1e-4
    # The number of the class's own tokens is binomial, and all pairs of counts vary together as a multinomial's do.
    m = np.bincount(context[:, COMMON:].sum(1).astype(int), minlength=n + 1)
    expected = stats.binom.pmf(np.arange(n + 1), n, law[COMMON:].sum()) * SIZE
    often = expected > 10
    pairs = [np.append(x[often], x[~often].sum()) for x in (m, expected)]
    assert stats.chisquare(pairs[0], pairs[1] * pairs[0].sum() / pairs[1].sum()).pvalue > 1e-4
    covariance = n * (np.diag(law) - np.outer(law, law))
    spread = np.sqrt((covariance**2 + np.outer(np.diag(covariance), np.diag(covariance))) / SIZE)
    # Counts of rare tokens have heavy tails, which the normal approximation of the spread leaves out.
    assert np.abs((np.cov(context.T) - covariance) / spread).max() < 5.5


def test_classes_are_drawn_evenly_or_are_equally_many():
    c, context, _ = drawn(TASKS[0])
    assert stats.chisquare(np.bincount(c, minlength=CLASSES)).pvalue > 1e-4
    assert abs(np.corrcoef(c, context[:, 0])[0, 1]) < 5 / SIZE**0.5
    assert np.bincount(drawn(TASKS[2], 400)[0]).tolist() == [100] * 4
    # Independent over sequences: the number of one class in a batch is binomial.
    ones = (c.reshape(-1, 32) == 1).sum(1)
    assert abs(ones.var() / (32 * 3 / 16) - 1) < 5 * (2 / ones.size) ** 0.5


@pytest.mark.parametrize("task", [*TASKS, TokensTask(gamma=1e-12), TokensTask(gamma=1 - 1e-6)])
def test_probabilities_are_rounded_to_2_to_the_minus_32(task):
    exact = np.cumsum(task.law())[:-1] * 2.0**32
    edge = np.clip(exact.round(), 1, 2**32 - 1).astype(np.uint64)
    # A word just below a threshold counts as at most that outcome, the threshold itself does not.
    words = np.zeros((task.context + 1, 38), np.uint32)
    words[: task.context] = np.concatenate([edge - 1, edge]).astype(np.uint32)
    below = np.asarray(task.tally(jnp.asarray(words)).below)
    assert (np.diag(below[:, :19]) == task.context).all() and (np.diag(below[:, 19:]) == 0).all()
    assert np.abs(edge - exact).max() <= 1


def test_the_generator_is_threefry():
    counter = jnp.arange(12, dtype=jnp.uint32)
    key = jax.random.key_data(jax.random.key(7))
    expected = threefry_2x32(key, jnp.concatenate([counter, jnp.zeros_like(counter)]))
    assert trees_equal(jnp.concatenate(threefry(key, counter)), expected)


def test_words_differ_between_places_and_keys():
    task = TokensTask(length=514)
    words = np.concatenate([np.asarray(task.words(jax.random.key(s), 8)).ravel() for s in range(2)])
    # Among this many words of 32 bits, hardly two agree by chance.
    assert np.unique(words).size >= words.size - 1


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "wrong",
    [
        {"length": 2},
        {"length": 515},
        {"length": 64.0},
        {"batch": 0},
        {"batch": 10**7},
        {"gamma": 0.0},
        {"gamma": 1.0},
        {"gamma": float("nan")},
        {"gamma": "a"},
        {"batch": 30, "equal": True},
    ],
)
def test_what_does_not_fit_is_refused(wrong):
    with pytest.raises(InputError, match="must be .* got"):
        TokensTask(**wrong)


def test_a_size_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match="size must be a multiple of 4"):
        TASKS[2].batch_of(jax.random.key(0), 6)

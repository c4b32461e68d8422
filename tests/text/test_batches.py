"""Batches: every post once, widths the same for all seeds and as narrow as can be, ids once each."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkdyn.errors import InputError
from qkdyn.text.batches import bucket_widths, epoch_plan, evaluation_plan, unique_tokens

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=80).map(np.array)
SMALL = st.integers(1, 9)


def _slots(lengths, widths):
    """Slots when each post takes the narrowest width that holds it."""
    return sum(min(width for width in widths if width >= length) for length in lengths)


@given(lengths=LENGTHS, count=st.integers(1, 4))
def test_widths_are_the_best_of_all(lengths, count):
    widths = bucket_widths(lengths, count)
    assert len(widths) <= count and all(width % 8 == 0 for width in widths) and list(widths) == sorted(set(widths))
    last = -(-int(lengths.max()) // 8) * 8
    assert widths[-1] == last
    every = [(*chosen, last) for size in range(count) for chosen in itertools.combinations(range(8, last, 8), size)]
    best = min(_slots(lengths, choice) for choice in every)
    assert _slots(lengths, widths) == best
    assert len(widths) == min(len(choice) for choice in every if _slots(lengths, choice) == best)


def _check_plan(plan, lengths, batch, widths):
    """What holds of every plan: all posts once, rows of `batch`, each batch in a width of the list that holds it."""
    assert plan.posts.shape == (-(-len(lengths) // batch), batch) and plan.posts.dtype == plan.width.dtype == np.int32
    there = plan.posts[plan.posts >= 0]
    assert sorted(there.tolist()) == list(range(len(lengths)))
    assert (plan.posts < 0).any(1).sum() <= 1 and (plan.posts >= -1).all()
    for posts, width in zip(plan.posts, plan.width, strict=True):
        assert width in widths and lengths[posts[posts >= 0]].max() <= width


@given(lengths=LENGTHS, batch=SMALL, count=st.integers(1, 4), seeds=st.tuples(SMALL, SMALL), epoch=st.integers(0, 3))
def test_batches_by_length(lengths, batch, count, seeds, epoch):
    widths = bucket_widths(lengths, count)
    plans = [epoch_plan(lengths, batch=batch, widths=widths, seed=seed, epoch=epoch, by_length=True) for seed in seeds]
    for plan in plans:
        _check_plan(plan, lengths, batch, widths)
        # No batch is wider than its longest post needs, and only a bucket's overflow is in a batch of the next.
        bucket = np.searchsorted(widths, lengths)
        at = np.searchsorted(widths, plan.width)
        for posts, index in zip(plan.posts, at, strict=True):
            assert bucket[posts[posts >= 0]].max() == index
        for index in range(len(widths)):
            away = sum((bucket[p[p >= 0]] == index).sum() for p, i in zip(plan.posts, at, strict=True) if i != index)
            assert away < batch
    np.testing.assert_array_equal(plans[0].width, plans[1].width)


@given(lengths=LENGTHS, batch=SMALL, seed=SMALL, epoch=st.integers(0, 3))
def test_a_plain_shuffle(lengths, batch, seed, epoch):
    widths = bucket_widths(lengths)
    plan = epoch_plan(lengths, batch=batch, widths=widths, seed=seed, epoch=epoch, by_length=False)
    _check_plan(plan, lengths, batch, widths)
    assert (plan.posts[:-1] >= 0).all()
    for posts, width in zip(plan.posts, plan.width, strict=True):
        assert width == min(w for w in widths if w >= lengths[posts[posts >= 0]].max())


@pytest.mark.parametrize("by_length", [True, False])
def test_a_plan_is_a_function_of_seed_and_epoch(by_length):
    lengths = np.random.default_rng(0).integers(1, 60, 400)

    def plan(seed, epoch):
        return epoch_plan(lengths, batch=8, widths=(8, 16, 40, 64), seed=seed, epoch=epoch, by_length=by_length)

    for first, second in (((1, 2), (1, 2)), ((2**40, 0), (2**40, 0))):
        np.testing.assert_array_equal(plan(*first).posts, plan(*second).posts)
    # Another seed, another epoch, and the two exchanged: other batches.
    base = plan(1, 2).posts
    for seed, epoch in ((3, 2), (1, 3), (2, 1)):
        assert (plan(seed, epoch).posts == base).mean() < 0.1
    # Another epoch has another order of widths, though the same widths.
    assert (plan(1, 3).width != plan(1, 2).width).any()
    if by_length:
        np.testing.assert_array_equal(np.sort(plan(1, 3).width), np.sort(plan(1, 2).width))


@pytest.mark.parametrize("by_length", [True, False])
def test_shuffles_are_uniform(by_length):
    """Each post of a bucket is in each of its batches equally often; 5 standard deviations."""
    lengths, draws = np.array([5] * 6 + [12] * 6), 600
    plans = [epoch_plan(lengths, batch=3, widths=(8, 16), seed=s, epoch=1, by_length=by_length) for s in range(draws)]
    counts = np.zeros((12, 4))
    for plan in plans:
        counts[plan.posts, np.arange(4)[:, None]] += 1
    # By length a post has two of the four batches, those of its own width; otherwise all four.
    allowed = plans[0].width == np.where(lengths <= 8, 8, 16)[:, None] if by_length else np.ones((12, 4), bool)
    share = 0.5 if by_length else 0.25
    assert not counts[~allowed].any()
    assert np.abs(counts[allowed] - draws * share).max() < 5 * np.sqrt(draws * share * (1 - share))


@given(lengths=LENGTHS, batch=SMALL, count=st.integers(1, 4))
def test_evaluation_goes_by_length(lengths, batch, count):
    widths = bucket_widths(lengths, count)
    plan = evaluation_plan(lengths, batch=batch, widths=widths)
    _check_plan(plan, lengths, batch, widths)
    order = plan.posts[plan.posts >= 0]
    assert (np.diff(lengths[order]) >= 0).all()
    assert order.tolist() == sorted(order.tolist(), key=lambda post: (lengths[post], post))


@given(
    tokens=st.lists(st.lists(st.integers(0, 99), min_size=6, max_size=6), min_size=1, max_size=5),
    seed=st.integers(0, 9),
)
def test_each_id_that_is_read_once(tokens, seed):
    tokens = np.array(tokens, np.int32).reshape(-1, 2, 3)
    read = np.random.default_rng(seed).random(tokens.shape) < 0.7
    for mask in (read, None):
        ids, inverse = unique_tokens(tokens, 100, mask)
        mask = np.ones_like(read) if mask is None else mask
        assert ids.shape == (len(tokens), 64) and ids.dtype == inverse.dtype == np.int32
        for step in range(len(tokens)):
            expected = sorted(set(tokens[step][mask[step]].tolist()))
            assert ids[step].tolist() == expected + [100] * (64 - len(expected))
        where = np.take_along_axis(ids, inverse.reshape(len(tokens), -1), 1).reshape(tokens.shape)
        np.testing.assert_array_equal(where[mask], tokens[mask])
        assert not inverse[~mask].any()


def test_unique_ids_fill_up_to_64():
    tokens = np.stack([np.arange(65), np.zeros(65)]).astype(np.int32)[:, None]
    ids, _ = unique_tokens(tokens, 65)
    assert ids.shape == (2, 128) and (ids[0, 65:] == 65).all() and (ids[1, 1:] == 65).all()
    none, inverse = unique_tokens(tokens, 7, np.zeros(tokens.shape, bool))
    assert none.shape == (2, 64) and (none == 7).all() and not inverse.any()


def test_padding_may_be_the_spare_id_where_it_is_not_read():
    tokens = np.array([[[5, 3, 0, 0]]], np.int32)
    ids, inverse = unique_tokens(tokens, 0, tokens > 0)
    assert ids[0, :3].tolist() == [3, 5, 0] and inverse[0, 0].tolist() == [1, 0, 0, 0]
    with pytest.raises(InputError, match="spare must be an id that no token has, got 0"):
        unique_tokens(tokens, 0)
    with pytest.raises(InputError, match="tokens must be ids >= 0, got -1"):
        unique_tokens(tokens - 1, 9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": np.array([], int)}, "lengths must be the number of tokens of each post"),
        ({"lengths": np.array([3, 0])}, "lengths must be"),
        ({"lengths": np.array([3.0])}, "lengths must be"),
        ({"widths": (8, 8, 64)}, "widths must be increasing"),
        ({"widths": (8, 16)}, r"widths must be increasing, the last at least 20 \(the longest post\)"),
        ({"widths": ()}, "widths must be increasing"),
        ({"widths": 64}, "widths must be a list of values"),
        ({"batch": 0}, "batch must be an integer >= 1"),
        ({"seed": -1}, "seed must be an integer >= 0"),
        ({"epoch": 1.5}, "epoch must be an integer >= 0"),
    ],
)
def test_wrong_input(unchecked, change, message):
    right = {"lengths": np.array([3, 20]), "batch": 2, "widths": (8, 24), "seed": 0, "epoch": 0, "by_length": True}
    with pytest.raises(InputError, match=message):
        epoch_plan(**{**right, **change})
    if "seed" not in change and "epoch" not in change:
        with pytest.raises(InputError, match=message):
            evaluation_plan(**{name: {**right, **change}[name] for name in ("lengths", "batch", "widths")})


def test_no_widths(unchecked):
    with pytest.raises(InputError, match="count must be an integer >= 1"):
        bucket_widths(np.array([3]), 0)
    with pytest.raises(InputError, match="lengths must be"):
        bucket_widths(np.array([0, 3]))

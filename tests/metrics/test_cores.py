"""Every formula of `cores` inside jit and vmap, in float32, against numpy; the few that have no checked function by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import measures_by_hand as hand
from qkdyn.metrics import cores
from qkdyn.metrics.blocks import by_blocks

RUNS, N, T = 3, 6, 9


def made(seed):
    """Arguments by name, each (RUNS, N, ...): tied scores, posts of every length from none to all."""
    rng = np.random.default_rng(seed)
    allowed = np.broadcast_to(np.arange(T) < np.array([0, 1, 2, 5, 8, T])[:, None], (RUNS, N, T))
    score = rng.integers(0, 4, (RUNS, N, T)).astype(np.float32) * allowed
    attention = score / np.maximum(score.sum(-1, keepdims=True), 1)
    maps = rng.random((2, RUNS, N, 2, T, T), np.float32) + 0.1
    maps /= maps.sum(-1, keepdims=True)
    relevant = (rng.random((RUNS, N, T)) < 0.5) & allowed
    selected = (rng.random((RUNS, N, T)) < 0.5) & allowed
    return {
        "attention": attention, "score": score, "allowed": allowed, "relevant": relevant, "selected": selected,
        "content": allowed & (rng.random((RUNS, N, T)) < 0.8), "tokens": rng.integers(1, 50, (RUNS, N, T), np.int32),
        "k": rng.integers(1, 5, (RUNS, N)), "first": maps[0], "last": maps[1], "one": maps[1][..., 4:5, :],
        "position": rng.integers(0, T, (RUNS, N)), "full": rng.random((RUNS, N, 3), np.float32),
        "reduced": rng.random((RUNS, N, 3), np.float32), "guess": rng.integers(0, 3, (RUNS, N)),
        "label": rng.integers(0, 3, (RUNS, N)), "counted": rng.random((RUNS, N)) < 0.7,
    }  # fmt: skip


FORMULAS = {
    "mass": (cores.mass, "attention relevant"),
    "entropy": (cores.entropy, "attention"),
    "entropy_share": (cores.entropy_share, "attention allowed"),
    "rollout_row": (
        lambda xp, a, b, place: cores.rollout_row(xp, [a, b], place, 0.5),
        "first last position",
    ),
    "rollout_row of one row": (
        lambda xp, a, b, place: cores.rollout_row(xp, [a, b], 0 * place + 4, 0.5),
        "first one position",
    ),
    "rank": (cores.rank, "score allowed"),
    "top_count": (lambda xp, k: cores.top_count(xp, k, 0.3), "k"),
    "top_mask": (cores.top_mask, "score allowed k"),
    "topk_mass": (cores.topk_mass, "attention k allowed"),
    "auprc": (cores.auprc, "score relevant allowed"),
    "chance_auprc": (cores.chance_auprc, "relevant allowed"),
    "random_auprc": (cores.random_auprc, "relevant allowed"),
    "position_auprc": (cores.position_auprc, "relevant allowed"),
    "position_auprc of the last": (lambda xp, *of: cores.position_auprc(xp, *of, last=True), "relevant allowed"),
    "token_f1": (cores.token_f1, "selected relevant"),
    "span_matches": (cores.span_matches, "selected relevant"),
    "iou_f1": (cores.iou_f1, "selected relevant"),
    "without_top": (cores.without_top, "allowed selected"),
    "only_top": (cores.only_top, "allowed content selected"),
    "compact": (lambda xp, tokens, keep: cores.compact(xp, tokens, keep, 0), "tokens selected"),
    "compact in order": (
        lambda xp, tokens, keep, score: cores.compact(xp, tokens, keep, 7, cores.rank(xp, score, keep)),
        "tokens selected score",
    ),
    "probability_drop": (cores.probability_drop, "full reduced"),
    "macro_f1": (lambda xp, guess, label, counted: cores.macro_f1(xp, guess, label, 3, counted), "guess label counted"),
}


def test_every_formula_is_among_these():
    public = {name for name, value in vars(cores).items() if callable(value) and value.__module__ == cores.__name__}
    assert {name for name in public if not name.startswith("_")} == {name.split()[0] for name in FORMULAS}


@pytest.mark.parametrize("name", FORMULAS)
def test_traced_as_in_numpy(name):
    formula, arguments = FORMULAS[name]
    arrays = [made(5)[argument] for argument in arguments.split()]
    wide = [array.astype(np.float64) if array.dtype == np.float32 else array for array in arrays]
    expected = jax.tree.leaves(formula(np, *wide))
    assert any(np.any(leaf) for leaf in expected)
    plain = jax.jit(lambda *rows: formula(jnp, *rows))
    for traced in (plain, jax.jit(jax.vmap(lambda *rows: formula(jnp, *rows)))):
        for found, leaf in zip(jax.tree.leaves(traced(*arrays)), expected, strict=True):
            assert found.shape == leaf.shape
            np.testing.assert_allclose(found, leaf, rtol=2e-6, atol=1e-6)


def test_types_stay_as_they_were():
    arguments = made(1)

    def results(xp, tokens, score, last):
        kept, row = cores.compact(xp, tokens, score > 1, 0)[0], cores.rollout_row(xp, [last], 2, 0.5)
        return kept, row, cores.top_mask(xp, score, score > 0, 1)

    args = [arguments[name] for name in ("tokens", "score", "last")]
    for found in (results(np, *args), jax.eval_shape(lambda *rows: results(jnp, *rows), *args)):
        assert [value.dtype for value in found] == [np.int32, np.float32, np.bool_]


@given(hand.instances(), st.integers(1, 8))
def test_rank_and_top_by_hand(of, k):
    score, _, allowed = of
    place, top = cores.rank(np, score, allowed), cores.top_mask(np, score, allowed, k)
    for n, row in enumerate(score):
        expected = hand.order(row, allowed[n])
        assert np.argsort(place[n]).tolist() == [*expected, *np.flatnonzero(~allowed[n])]
        assert set(np.flatnonzero(top[n])) == set(expected[:k])


@given(hand.instances(), st.sampled_from([0, 9]))
def test_compact_by_hand(of, pad):
    score, keep, allowed = of
    tokens = np.arange(score.size, dtype=np.int32).reshape(score.shape) + 10
    for rank in (None, cores.rank(np, score, allowed)):
        found, length = cores.compact(np, tokens, keep, pad, rank)
        for n, row in enumerate(tokens):
            kept = [row[i] for i in (np.flatnonzero(keep[n]) if rank is None else hand.order(score[n], keep[n]))]
            assert length[n] == len(kept)
            assert found[n].tolist() == kept + [pad] * (len(row) - len(kept))


def test_count_of_a_share_is_that_of_the_decimal():
    count = np.arange(0, 400)
    for percent in (1, 5, 7, 10, 20, 29, 50, 100):
        expected = [max(1, -(-percent * n // 100)) for n in range(400)]
        for found in (
            cores.top_count(np, count, percent / 100),
            cores.top_count(jnp, jnp.asarray(count), percent / 100),
        ):
            assert found.tolist() == expected
    # What a product of floats makes of 7 % of 100.
    assert np.ceil(0.07 * 100) == 8 != cores.top_count(np, np.array(100), 0.07)


def test_blocks_make_no_difference(monkeypatch):
    arguments = made(2)
    args = [arguments[name] for name in ("score", "relevant", "allowed")]
    sizes = []

    def formula(*rows):
        sizes.append(len(rows[0]))
        return cores.auprc(np, *rows), cores.rank(np, rows[0], rows[2])

    whole = by_blocks(formula, *args)
    monkeypatch.setattr("qkdyn.metrics.blocks.PAIRS", 4 * T**2)
    parts = by_blocks(formula, *args)
    assert sizes == [18, 4, 4, 4, 4, 2]
    for one, many in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(one, many)
    np.testing.assert_array_equal(whole[0], cores.auprc(np, *args))

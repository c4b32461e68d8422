"""Entropy, effective tokens and top-k mass against scipy and loops, and against the same of uniform attention."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import measures_by_hand as hand
from qkdyn.errors import InputError
from qkdyn.metrics.sharpness import (
    attention_entropy,
    effective_tokens,
    entropy_share,
    top_k_mass,
    uniform_entropy,
    uniform_top_k_mass,
)


def attention_of(score, allowed):
    """Scores as attention to what is allowed, with zeros and empty rows."""
    weight = score * allowed
    return weight / np.where(weight.any(-1, keepdims=True), weight.sum(-1, keepdims=True), 1)


def uniform(allowed):
    return allowed / np.maximum(allowed.sum(-1, keepdims=True), 1)


@given(hand.instances())
def test_entropy_and_effective_tokens_against_scipy(of):
    score, _, allowed = of
    attention = attention_of(score, allowed)
    entropy, tokens, share = (
        attention_entropy(attention),
        effective_tokens(attention),
        entropy_share(attention, allowed),
    )
    for n, row in enumerate(attention):
        expected = stats.entropy(row) if row.any() else 0
        assert entropy[n] == pytest.approx(expected, abs=1e-12)
        assert tokens[n] == pytest.approx(math.exp(expected) if row.any() else 0)
        count = allowed[n].sum()
        assert share[n] == pytest.approx(expected / math.log(count) if count > 1 else 1)


@given(hand.instances(), st.data())
def test_top_k_mass_by_hand(of, data):
    score, among, allowed = of
    attention, (N, T) = attention_of(score, allowed), score.shape
    k = np.array(data.draw(st.lists(st.integers(1, T), min_size=N, max_size=N)))
    found, all_tokens, one = top_k_mass(attention, k, among), top_k_mass(attention, k), top_k_mass(attention, 1)
    for n, row in enumerate(attention):
        assert all_tokens[n] == pytest.approx(sum(sorted(row, reverse=True)[: k[n]]))
        assert found[n] == pytest.approx(sum(sorted(row[among[n]], reverse=True)[: k[n]]))
    np.testing.assert_allclose(one, attention.max(-1))


@given(hand.instances(), st.integers(1, 9))
def test_uniform_values_are_those_of_uniform_attention(of, k):
    _, among, allowed = of
    attention, k = uniform(allowed), min(k, allowed.shape[-1])
    np.testing.assert_allclose(uniform_entropy(allowed), attention_entropy(attention), atol=1e-12)
    np.testing.assert_allclose(effective_tokens(attention), allowed.sum(-1), atol=1e-12)
    # An empty row is not uniform, nor anything else.
    some = allowed.any(-1)
    np.testing.assert_allclose(entropy_share(attention, allowed)[some], 1, atol=1e-12)
    np.testing.assert_allclose(uniform_top_k_mass(allowed, k), top_k_mass(attention, k), atol=1e-12)
    np.testing.assert_allclose(uniform_top_k_mass(allowed, k, among), top_k_mass(attention, k, among), atol=1e-12)
    # What may not be attended to has no attention, whatever counts.
    np.testing.assert_allclose(
        uniform_top_k_mass(among, k, allowed), top_k_mass(uniform(among), k, allowed), atol=1e-12
    )


def test_leading_axes_broadcast_and_float32_is_taken():
    attention = attention_of(np.random.default_rng(2).random((2, 5, 6)), np.ones((5, 6), bool)).astype(np.float32)
    k, among = np.array([1, 2, 3, 4, 5]), np.arange(6) < 4
    whole = top_k_mass(attention, k, among)
    assert whole.shape == (2, 5) and whole.dtype == np.float64
    np.testing.assert_array_equal(whole[1], top_k_mass(attention[1], k, np.broadcast_to(among, (5, 6))))
    assert top_k_mass(attention[0, 0], 2).shape == () == attention_entropy(attention[0, 0]).shape
    # Rounding does not carry a share beyond one.
    assert top_k_mass(np.full((1, 3), np.float32(1 / 3)) * np.float32(1 + 3e-6), 3) == 1


HALF, BOTH = np.array([[0.5, 0.5]]), np.array([[True, True]])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: attention_entropy(2 * HALF), r"attention\.sum\(-1\)\[0\] must be 1 or 0, got 2\.0"),
        (lambda: effective_tokens([[0.5, np.nan]]), r"attention\[0, 1\] must be .*got nan"),
        (lambda: uniform_entropy([[1, 0]]), "type of mask must be bool"),
        (lambda: entropy_share(HALF, BOTH[:, :1]), "shapes of attention and mask"),
        (lambda: top_k_mass(HALF, 0), "k must be integers from 1 to 2, got 0"),
        (lambda: top_k_mass(HALF, 3), "k must be integers from 1 to 2, got 3"),
        (lambda: top_k_mass(HALF, 1.0), "k must be integers from 1 to 2, got 1.0"),
        (lambda: top_k_mass(HALF, True), "k must be integers from 1 to 2, got True"),
        (lambda: top_k_mass(HALF, np.array([1, 1])[None, :].repeat(2, 0)[:, :0]), "k must be integers"),
        (lambda: top_k_mass(np.tile(HALF, (3, 1)), np.array([1, 2])), "shapes of attention and k"),
        (lambda: top_k_mass(HALF, np.array([5])), r"k\[0\] must be integers from 1 to 2, got 5"),
        (lambda: top_k_mass(HALF, 1, HALF), "type of among must be bool"),
        (lambda: uniform_top_k_mass(BOTH, 3), "k must be integers from 1 to 2, got 3"),
        (lambda: uniform_top_k_mass(BOTH, 1, BOTH[:, :1]), "shapes of mask and among"),
        (lambda: uniform_top_k_mass(np.tile(BOTH, (3, 1)), np.array([1, 2])), "shapes of mask and k"),
    ],
)
def test_refused(call, message, unchecked):
    with pytest.raises(InputError, match=message):
        call()

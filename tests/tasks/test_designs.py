"""Finite populations: completeness, exact moments, balance, embeddings, samples, refusals."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkdyn.errors import InputError, RangeError
from qkdyn.tasks.designs import Population

OPTIONS = [
    {},
    {"query": "mean"},
    {"query": "copied"},
    {"included": True},
    {"query": "mean", "included": True},
    {"signed": False},
    {"norm": 1.5},
    {"cross_overlap": 0.3},
    {"same_overlap": 0.2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_enumerated_has_every_sequence_once(options):
    p = Population(m=2, n=2, b=2, M=3, backgrounds=2, **options)
    full = p.enumerated().unfolded()
    assert full.weight.sum() == pytest.approx(1, abs=1e-14)
    sequences = {
        (int(y), X.tobytes(), query.tobytes())
        for y, X, queries in zip(full.y, full.X + 0.0, full.x_T, strict=True)
        for query in queries
    }
    contexts = 3 * 2**2 * (4 if p.signed else 2) ** 2
    # Copied queries of a context with a repeated token coincide: half of them.
    distinct = contexts * {"single": 2, "mean": 1, "copied": 1.5}[p.query]
    assert len(sequences) == distinct
    assert full.y.size * full.x_T.shape[1] == contexts * p.queries


def moments(design, own):
    """For each class: E[x_j x_T^T | y] over the class positions, E[nu | y], E[nu x_T^T | y], E[nu nu^T | y]."""
    for y in range(3):
        w = design.weight * (design.y == y)
        w = w / w.sum()
        tokens, nu, query = design.X[:, :own].mean(1), design.X[:, ~design.own], design.x_T.mean(1)
        count = nu.shape[1]
        yield (
            np.einsum("c,cd,ce->de", w, tokens, query),
            np.einsum("c,cnd->d", w, nu) / count,
            np.einsum("c,cnd,ce->de", w, nu, query) / count,
            np.einsum("c,cnd,cne->de", w, nu, nu) / count,
        )


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("make", ["enumerated", "balanced"])
def test_moments_are_the_populations(options, make):
    p = Population(m=2, n=2, b=2, M=3, backgrounds=2, **options)
    design = getattr(p, make)().unfolded()
    background = p.embedding()[p.M * p.b :]
    mean = background.mean(0) * (not p.signed)
    for y, (pairs, nu, cross, second) in enumerate(moments(design, p.m)):
        S = p.embedding()[y * p.b : (y + 1) * p.b]
        expected = np.outer(S.sum(0), S.sum(0)) / p.b**2
        if p.query == "copied":
            # One of the m tokens is the query itself. (A block of the balanced design never repeats a token.)
            apart = expected if make == "enumerated" else (np.outer(S.sum(0), S.sum(0)) - S.T @ S) / (p.b * (p.b - 1))
            expected = (1 - 1 / p.m) * apart + S.T @ S / p.b / p.m
        np.testing.assert_allclose(pairs, expected, atol=1e-14)
        np.testing.assert_allclose(nu, mean, atol=1e-14)
        np.testing.assert_allclose(cross, np.outer(mean, S.mean(0)), atol=1e-14)
        np.testing.assert_allclose(second, background.T @ background / p.backgrounds, atol=1e-14)
        np.testing.assert_allclose(design.S[y], S.sum(0))
        assert design.weight[design.y == y].sum() == pytest.approx(1 / 3, abs=1e-14)


@settings(max_examples=15)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), st.integers(2, 4), st.integers(1, 5), st.booleans())
def test_balanced_uses_everything_equally_often(m, n, b, M, K, signed):
    p = Population(m=m, n=n, b=b, M=M, backgrounds=K, signed=signed, query="mean")
    design = p.balanced()
    for y in range(M):
        X = design.X[design.y == y]
        assert len(np.unique(X[:, :m].sum((0, 1))[y * b : (y + 1) * b])) == 1
        assert len(np.unique(np.maximum(X[:, m:], 0).sum((0, 1))[M * b :])) == 1
        if signed:
            np.testing.assert_array_equal(X[:, m:].sum((0, 1)), 0)


def test_the_papers_sizes_take_fifty_contexts():
    p = Population(m=5, n=50, b=50, M=5, backgrounds=25, query="mean")
    design = p.balanced()
    assert design.X.shape == (50, 55, 275) and design.x_T.shape == (50, 1, 275)
    # Blocks are disjoint, and every signed background is in every context once.
    np.testing.assert_array_equal(design.X[:, :5].sum((0, 1))[:250], 1)
    np.testing.assert_array_equal(np.abs(design.X[:, 5:]).sum(1)[:, 250:], 2)
    np.testing.assert_array_equal(design.X[:, 5:].sum(1), 0)
    assert Population(m=5, n=50, b=50, M=5, backgrounds=25).balanced().x_T.shape == (50, 50, 275)


@pytest.mark.parametrize(("same", "cross", "step"), [(0.3, 0.0, 0), (0.0, 0.3, 1)])
def test_overlaps_are_inner_products(same, cross, step):
    p = Population(m=2, n=1, b=3, M=3, backgrounds=1, norm=2.0, same_overlap=same, cross_overlap=cross)
    gram = p.embedding() @ p.embedding().T / 4
    expected = np.eye(10)
    for y in range(3):
        other = (y + step) % 3
        expected[3 * y + 1, 3 * other] = expected[3 * other, 3 * y + 1] = 0.3
    np.testing.assert_allclose(gram, expected, atol=1e-15)


def test_reflection_turns_the_listed_half_into_the_other():
    design = Population().enumerated()
    full = design.unfolded()
    half = len(design.y)
    np.testing.assert_array_equal(full.X[half:, design.own], design.X[:, design.own])
    np.testing.assert_array_equal(full.X[half:, ~design.own], -design.X[:, ~design.own])
    np.testing.assert_array_equal(full.x_T[half:], design.x_T)
    assert full.reflection is None and full.unfolded() is full


def test_sample_is_independent_and_uniform():
    from scipy.stats import chisquare

    p = Population(m=2, n=1, b=2, M=2, backgrounds=2)
    design = p.sample(jax.random.key(0), 6000)
    assert design.reflection is None and design.x_T.shape == (6000, 1, p.d)
    tokens, query = design.X[:, :2].argmax(-1), design.x_T[:, 0].argmax(-1)
    background = 2 * np.abs(design.X[:, 2]).argmax(-1) + (design.X[:, 2].sum(-1) < 0)
    assert (tokens // 2 == design.y[:, None]).all() and (query // 2 == design.y).all()
    cells = ((design.y * 2 + tokens[:, 0] % 2) * 2 + tokens[:, 1] % 2) * 2 + query % 2
    counts = np.bincount(cells * 4 + background - background.min(), minlength=64)
    assert counts.size == 64 and chisquare(counts).pvalue > 1e-3
    again, other = (p.sample(jax.random.key(k), 6000).X for k in (0, 1))
    assert np.array_equal(design.X, again) and not np.array_equal(design.X, other)


def test_sample_draws_copied_queries_from_the_context():
    design = Population(m=3, b=4, query="copied").sample(jax.random.key(0), 200)
    matches = (design.X[:, :3] == design.x_T).all(-1)
    assert matches.any(1).all() and not matches.all()


def test_antithetic_backgrounds_are_gaussian_and_pair_up():
    p = Population()
    design = p.antithetic(jax.random.key(0))
    assert design.X.shape == (12, 4, 8) and design.unfolded().y.size * 2 == 48
    nu = design.X[:, 2:]
    np.testing.assert_array_equal(nu[..., :6], 0)
    assert (nu[..., 6:] != 0).all() and 0.5 < (nu**2).sum(-1).mean() < 2
    np.testing.assert_allclose(design.unfolded().X[:, 2:].sum(0), 0, atol=1e-14)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"m": 0}, "m must be an integer >= 1, got 0"),
        ({"backgrounds": 2.5}, "backgrounds must be an integer >= 1, got 2.5"),
        ({"M": 1}, "M must be an integer >= 2, got 1; one class leaves nothing to predict"),
        ({"query": "last"}, "query must be one of single, mean, copied, got 'last'"),
        ({"query": "copied", "included": True}, "included must be False where query is 'copied'"),
        ({"signed": 1}, "signed must be True or False, got 1"),
        ({"norm": 0.0}, "norm must be a finite number > 0, got 0.0"),
        ({"same_overlap": -0.1}, "same_overlap must be a finite number >= 0, got -0.1"),
        ({"cross_overlap": 1.0}, "cross_overlap must be 0 or between 1e-09 and 0.99, got 1.0"),
        ({"same_overlap": 0.1, "cross_overlap": 0.1}, "cross_overlap and same_overlap must be not both above 0"),
    ],
)
def test_what_no_population_has_is_refused(change, message, unchecked):
    with pytest.raises(InputError, match=message):
        Population(**change)


def test_designs_that_are_too_large_are_refused_before_they_are_made():
    paper = Population(m=5, n=50, b=50, M=5, backgrounds=25)
    with pytest.raises(RangeError, match=r"got 10\^95\.\d sequences, .*take balanced\(\), or smaller sizes"):
        paper.enumerated()
    with pytest.raises(RangeError, match=r"at most 1e\+05 sequences and 1e\+09 numbers"):
        Population(m=10**15, n=10**15, b=10**15, M=2).enumerated()
    with pytest.raises(RangeError, match="the balanced design must have at most"):
        Population(m=5, n=7, b=10**6, M=5).balanced()
    with pytest.raises(RangeError, match="the antithetic design"):
        paper.antithetic(jax.random.key(0))
    with pytest.raises(RangeError, match="the sample design"):
        paper.sample(jax.random.key(0), 10**5)
    with pytest.raises(InputError, match="size must be an integer >= 1, got 0"):
        paper.sample(jax.random.key(0), 0)

"""DTAP against a loop over samples and numpy's own histogram; on the edges, inside jit, and refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from helpers import compilations
from qkdyn.errors import InputError
from qkdyn.metrics.dtap import EDGES, dtap, dtap_counts, mean_and_std

UNEVEN = (0.0, 0.05, 0.1, 0.5, 1.001)
RNG = np.random.default_rng(7)
MASS, CHANCE = RNG.random(400), RNG.beta(0.4, 0.4, 400)


def loop(mass, chance, edges):
    """Percent in each bin, one sample, one bin at a time."""
    k = len(edges) - 1
    percent = np.zeros((k, k))
    for x, y in zip(mass, chance, strict=True):
        for row in range(k):
            for column in range(k):
                held = [
                    edges[i] <= value and (value < edges[i + 1] or (i == k - 1 and value == edges[-1]))
                    for i, value in ((row, y), (column, x))
                ]
                percent[row, column] += 100 / len(mass) if all(held) else 0
    return percent


@pytest.mark.parametrize("edges", [EDGES, UNEVEN, (0.0, 1.0), (0.25, 0.5, 0.75), (-1.0, 0.5, 2.0)], ids=str)
def test_against_a_loop_and_numpys_histogram(edges):
    found = dtap(MASS, CHANCE, edges)
    np.testing.assert_allclose(found, loop(MASS, CHANCE, edges), atol=1e-10)
    np.testing.assert_allclose(found, np.histogram2d(CHANCE, MASS, [edges, edges])[0] / 4, atol=1e-10)
    # Shares of all samples, also where some lie outside the edges.
    inside = np.mean(
        [edges[0] <= x <= edges[-1] and edges[0] <= y <= edges[-1] for x, y in zip(MASS, CHANCE, strict=True)]
    )
    assert found.sum() == pytest.approx(100 * inside)


def test_rows_are_probabilities_and_columns_attention():
    np.testing.assert_array_equal(np.argwhere(dtap(np.array([0.1]), np.array([0.9]))), [[4, 0]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("edges", [EDGES, (0.0, 0.1, 0.33, 0.66, 0.7, 0.9, 1.0)], ids=str)
def test_an_edge_belongs_to_the_bin_above_it_and_the_last_one_below(edges, dtype):
    k = len(edges) - 1
    on = np.array(edges, dtype)
    expected = np.zeros((k, k))
    np.fill_diagonal(expected, 1)
    expected[-1, -1] = 2
    for counts in (dtap(on, on, edges) * (k + 1) / 100, dtap_counts(jnp.asarray(on), jnp.asarray(on), edges)):
        np.testing.assert_allclose(counts, expected, atol=1e-12)


def test_the_default_edges_are_the_decimals():
    fifths = np.array([0.2, 0.4, 0.6, 0.8])
    np.testing.assert_array_equal(np.diag(dtap(fifths, fifths)), [0, 25, 25, 25, 25])


def test_rounding_beyond_the_ends_counts_as_the_ends():
    mass, chance = np.array([-9e-6, 1 + 9e-6]), np.array([1 + 9e-6, -9e-6])
    expected = np.zeros((5, 5))
    expected[4, 0] = expected[0, 4] = 1
    np.testing.assert_array_equal(dtap(mass, chance), 50 * expected)
    np.testing.assert_array_equal(dtap_counts(jnp.asarray(mass), jnp.asarray(chance)), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_low_precision_is_compared_in_float32(dtype):
    # In low precision these edges are other numbers, some of them lower: the values there are below the edge.
    edges = (0.0, 0.1, 0.3, 0.7, 0.9, 1.0)
    mass, chance = (jnp.asarray(np.append(values[:94], edges), dtype) for values in (MASS, CHANCE))
    wide = [np.asarray(values, np.float32) for values in (mass, chance)]
    for found in (dtap(np.asarray(mass), np.asarray(chance), edges), dtap_counts(mass, chance, edges)):
        np.testing.assert_allclose(found, loop(*wide, np.float32(edges)), atol=1e-9)


@given(st.data())
def test_any_edges_any_values(data):
    share = st.floats(0, 1, width=32)
    edges = sorted(data.draw(st.sets(share, min_size=2, max_size=6)))
    n = data.draw(st.integers(1, 12))
    # Edges are among the values on purpose.
    mass, chance = (data.draw(arrays(np.float64, n, elements=st.sampled_from(edges) | share)) for _ in range(2))
    found = dtap(mass, chance, edges)
    np.testing.assert_allclose(found, np.histogram2d(chance, mass, [edges, edges])[0] * 100 / n, atol=1e-10)
    order = data.draw(st.permutations(range(n)))
    np.testing.assert_array_equal(found, dtap(mass[order], chance[order], edges))
    np.testing.assert_array_equal(found.T, dtap(chance, mass, edges))


@given(arrays(np.float64, st.integers(1, 50), elements=st.floats(0, 1)))
def test_bins_sum_to_all(values):
    assert dtap(values, values[::-1]).sum() == pytest.approx(100, abs=1e-10)


def test_batches_add_up_inside_jit_in_one_program():
    batches = np.float32(np.stack([MASS, CHANCE])).reshape(2, 4, 100)

    @jax.jit
    def total(mass, chance):
        def add(counts, batch):
            return counts + dtap_counts(*batch, UNEVEN), None

        return jax.lax.scan(add, jnp.zeros((4, 4), int), (mass, chance))[0]

    counts = total(*map(jnp.asarray, batches))
    assert jnp.issubdtype(counts.dtype, jnp.integer)
    np.testing.assert_array_equal(np.asarray(counts) * 100 / 400, dtap(*batches.reshape(2, -1), UNEVEN))
    with compilations() as found:
        total(*map(jnp.asarray, batches[::-1]))
    assert not found
    seeds = jax.vmap(dtap_counts)(*map(jnp.asarray, batches))
    np.testing.assert_array_equal(seeds.sum(0), dtap_counts(*map(jnp.asarray, batches.reshape(2, -1))))


def test_what_jit_cannot_refuse_is_in_no_bin():
    mass = jnp.array([jnp.nan, 0.5, 1.5, 0.5, -0.1])
    chance = jnp.array([0.5, jnp.nan, 0.5, 0.9, 0.5])
    counts = np.asarray(jax.jit(dtap_counts)(mass, chance))
    assert counts.sum() == 1 and counts[4, 2] == 1


def test_mean_and_deviation_of_percents_over_seeds():
    samples = RNG.random((5, 2, 6400))
    counts = np.stack([np.histogram2d(y, x, [EDGES, EDGES])[0] for x, y in samples])
    mean, std = mean_and_std(np.stack([dtap(x, y) for x, y in samples]))
    np.testing.assert_allclose(mean, sum(counts) / 5 / 64, rtol=1e-12)
    # 64 counts are one percent: sqrt(var)/64, and not sqrt(var/64), which is 8 times that.
    variance = sum((one - counts.mean(0)) ** 2 for one in counts) / 4
    np.testing.assert_allclose(std, np.sqrt(variance) / 64, rtol=1e-10)


def test_one_seed_has_no_deviation():
    mean, std = mean_and_std(dtap(MASS, CHANCE)[None])
    np.testing.assert_array_equal(mean, dtap(MASS, CHANCE))
    assert mean.shape == std.shape and np.isnan(std).all()


@pytest.mark.parametrize(
    "mass, chance, edges, message",
    [
        ([0.1, 1.5], [0.1, 0.2], EDGES, r"attention_mass\[1\] must be from 0 to 1 \(give or take 1e-05\), got 1\.5"),
        ([0.1, 0.2], [-0.25, 0.2], EDGES, r"probability\[0\] must be from 0 to 1 .*, got -0\.25"),
        ([1.1e-5 + 1], [0.5], EDGES, r"attention_mass\[0\] must be from 0 to 1"),
        ([0.1, np.nan], [0.1, 0.2], EDGES, r"attention_mass\[1\] .*got nan"),
        ([0.5], [np.inf], EDGES, r"probability\[0\] .*got inf"),
        ([], [], EDGES, r"shape of attention_mass must be one of at least one value, got \(0,\)"),
        (
            [0.1, 0.2],
            [0.1],
            EDGES,
            r"shapes of attention_mass and probability must be .* equal, got \(\(2,\), \(1,\)\)",
        ),
        ([[0.1]], [[0.1]], EDGES, "must be one-dimensional and equal"),
        (0.1, 0.1, EDGES, "attention_mass must be a rectangular array .*got 0.1; put a single value in a list"),
        (["a"], [0.1], EDGES, r"attention_mass must be a rectangular array of real numbers, got \['a'\]"),
        ([[0.1], [0.1, 0.2]], [0.1], EDGES, "attention_mass must be a rectangular array"),
        ([0.1j], [0.1], EDGES, "attention_mass must be a rectangular array of real"),
        ([0.1], [0.1], (0.0, 0.5, 0.5, 1.0), r"edges\[2\] must be above the edge before it, got 0\.5"),
        ([0.1], [0.1], (0.0, 0.5, 0.4), r"edges\[2\] must be above the edge before it, got 0\.4"),
        ([0.1], [0.1], (0.0, np.inf), r"edges\[1\] must be finite, got inf"),
        ([0.1], [0.1], (np.nan, 1.0), r"edges\[0\] must be finite, got nan"),
        ([0.1], [0.1], (0.5,), r"edges must be a list of at least two numbers, got \(0\.5,\)"),
        ([0.1], [0.1], [[0.0, 1.0]], "edges must be a list of at least two"),
        ([0.1], [0.1], 5, "edges must be a rectangular array .*got 5"),
        (np.float32([0.1]), [0.1], (0.0, 0.5, 0.5 + 1e-10), r"edges\[2\] must be above the edge before it in float32"),
    ],
)
def test_refused(mass, chance, edges, message, unchecked):
    with pytest.raises(InputError, match=message):
        dtap(mass, chance, edges)


def test_refused_inside_jit(unchecked):
    x = jnp.asarray(MASS)
    with pytest.raises(InputError, match="inside jit there is only dtap_counts"):
        jax.jit(dtap)(x, x)
    with pytest.raises(InputError, match="with concrete edges"):
        jax.jit(dtap_counts)(x, x, jnp.array([0.0, 1.0]))
    with pytest.raises(InputError, match=r"edges\[1\] must be above the edge before it"):
        jax.jit(lambda x: dtap_counts(x, x, (1.0, 0.0)))(x)


@pytest.mark.parametrize(
    "histograms, message",
    [
        (np.zeros((2, 2)), r"shape of histograms must be \(seeds, bins, bins\), got \(2, 2\)"),
        (np.zeros((0, 2, 2)), "shape of histograms must be one of at least one value"),
        (np.full((2, 1, 1), np.nan), r"histograms\[0, 0, 0\] must be finite, got nan"),
    ],
)
def test_histograms_refused(histograms, message, unchecked):
    with pytest.raises(InputError, match=message):
        mean_and_std(histograms)

"""Mass, MRTA, AC and ACMC against loops, the heat map and the paper's example; uniform attention against counting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from qkdyn.attention import forward
from qkdyn.errors import InputError
from qkdyn.metrics.attention import (
    acmc,
    attention_confidence,
    attention_mass,
    mrta,
    uniform_acmc,
    uniform_attention_confidence,
    uniform_mass,
    uniform_mrta,
)
from qkdyn.metrics.dtap import dtap

RNG = np.random.default_rng(3)
N, T = 40, 9


def instances(rng=RNG):
    """Attention, relevance and padding of N instances of different lengths, and a probability for each."""
    mask = np.arange(T) < rng.integers(1, T + 1, N)[:, None]
    weight = rng.exponential(size=(N, T)) * mask
    return weight / weight.sum(-1, keepdims=True), rng.random((N, T)) < 0.4, mask, rng.random(N)


def test_mass_mrta_ac_and_acmc_against_loops():
    attention, relevant, _, chance = instances()
    mass = [sum(attention[i, t] for t in range(T) if relevant[i, t]) for i in range(N)]
    found = attention_mass(attention, relevant)
    np.testing.assert_allclose(found, mass, atol=1e-14)
    assert float(mrta(found)) == pytest.approx(sum(mass) / N, abs=1e-14)
    assert float(attention_confidence(found, 0.3)) == pytest.approx(sum(100 for x in mass if x >= 0.3) / N)
    both = [x >= 0.3 and p >= 0.6 for x, p in zip(mass, chance, strict=True)]
    assert float(acmc(found, chance, 0.3, 0.6)) == pytest.approx(100 * sum(both) / N)
    assert 0 < sum(both) < N
    # Unless told, both thresholds are one half.
    assert attention_confidence(found) == attention_confidence(found, 0.5)
    assert acmc(found, chance) == acmc(found, chance, 0.5, 0.5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ac_and_acmc_are_sums_of_the_heat_map(dtype):
    edges = (0.0, 0.1, 0.3, 0.7, 1.0)
    mass, chance = (np.append(RNG.random(200), edges).astype(dtype) for _ in range(2))
    percent = dtap(mass, chance, edges)
    for column in range(4):
        assert float(attention_confidence(mass, edges[column])) == pytest.approx(percent[:, column:].sum())
        for row in range(4):
            both = acmc(mass, chance, edges[column], edges[row])
            assert float(both) == pytest.approx(percent[row:, column:].sum())


def test_the_papers_example():
    """App. D.6: the right half of Fig. 5a is 11.13 + 1.47 + 0.01 + 0.04 percent, AC 12.65 and ACMC 12.6."""
    counts = {(0.9, 0.3): 1113, (0.3, 0.3): 147, (0.07, 0.3): 1, (0.01, 0.3): 4, (0.9, 0.02): 8735}
    chance, mass = (np.repeat([cell[i] for cell in counts], list(counts.values())) for i in (0, 1))
    assert float(attention_confidence(mass, 0.1)) == pytest.approx(12.65)
    assert float(acmc(mass, chance, 0.1, 0.1)) == pytest.approx(12.6)


def test_leading_axes_stay_and_broadcast():
    attention, relevant, mask, chance = instances()
    seeds = np.stack([attention, attention[:, ::-1] * 1.0])
    mass = attention_mass(seeds, relevant)
    assert mass.shape == (2, N)
    for s in range(2):
        np.testing.assert_array_equal(mass[s], attention_mass(seeds[s], relevant))
        assert mrta(mass)[s] == mrta(mass[s])
        assert attention_confidence(mass)[s] == attention_confidence(mass[s])
        assert acmc(mass, chance)[s] == acmc(mass[s], chance)
    both = uniform_acmc(relevant, np.stack([chance, chance[::-1]]), mask)
    assert both[1] == uniform_acmc(relevant, chance[::-1].copy(), mask)


def test_weights_are_the_mean_over_masks():
    attention, _, mask, _ = instances()
    annotators = RNG.random((3, N, T)) < 0.5
    weights = annotators.mean(0)
    np.testing.assert_allclose(
        attention_mass(attention, weights), attention_mass(attention, annotators).mean(0), atol=1e-14
    )
    np.testing.assert_allclose(uniform_mass(weights, mask), uniform_mass(annotators, mask).mean(0), atol=1e-14)


def test_uniform_measures_against_uniform_attention():
    _, relevant, mask, chance = instances()
    uniform = mask / mask.sum(-1, keepdims=True)
    mass = uniform_mass(relevant, mask)
    np.testing.assert_allclose(mass, attention_mass(uniform, relevant), atol=1e-14)
    for i in range(N):
        length = sum(mask[i])
        assert mass[i] == sum(relevant[i, t] for t in range(length)) / length
    assert float(uniform_mrta(relevant, mask)) == pytest.approx(sum(mass) / N)
    assert float(uniform_attention_confidence(relevant, mask, 0.4)) == pytest.approx(100 * sum(mass >= 0.4) / N)
    assert float(uniform_acmc(relevant, chance, mask, 0.4, 0.2)) == pytest.approx(
        100 * sum((mass >= 0.4) & (chance >= 0.2)) / N
    )
    # Padding counts where nobody says that it is padding.
    np.testing.assert_allclose(uniform_mass(relevant), relevant.mean(-1))
    assert (uniform_mass(relevant & mask) <= mass).all() and uniform_mrta(relevant & mask) < uniform_mrta(
        relevant, mask
    )


def test_uniform_shares_lie_on_thresholds_exactly():
    relevant = np.arange(10) < np.array([[3], [6], [7]])
    for row, share in enumerate((0.3, 0.6, 0.7)):
        assert float(uniform_attention_confidence(relevant[row : row + 1], None, share)) == 100


def test_the_models_own_attention_starts_uniform():
    """W_QK = 0 attends evenly to what the mask allows; a row that allows nothing has no attention and no mass."""
    params = {"qk": {"W_QK": jnp.zeros((4, 4))}, "ov": {"W_OV": jnp.ones((2, 4))}}
    _, relevant, mask, _ = instances()
    mask[0] = False
    X = jax.random.normal(jax.random.key(0), (N, T, 4))
    _, attention = forward(params, X, X[:, 0], mask=jnp.asarray(mask))
    mass = attention_mass(np.asarray(attention), relevant)
    np.testing.assert_allclose(mass, uniform_mass(relevant, mask), atol=1e-6)
    assert mass[0] == uniform_mass(relevant, mask)[0] == 0


def test_an_instance_without_relevant_tokens_counts_as_zero():
    attention, relevant, mask, chance = instances()
    relevant[:10], relevant[10:] = False, True
    mass = attention_mass(attention, relevant)
    np.testing.assert_allclose(mass, np.arange(N) >= 10, atol=1e-14)
    assert float(mrta(mass)) == pytest.approx(0.75)
    assert float(uniform_mrta(relevant, mask)) == pytest.approx(0.75)
    assert float(attention_confidence(mass)) == 75
    assert float(acmc(mass, np.ones(N))) == 75
    kept = relevant.any(-1)
    assert float(mrta(mass[kept])) == pytest.approx(1)
    assert float(acmc(mass[kept], chance[kept], 0.5, 0.0)) == 100


@given(arrays(np.float64, (6, 5), elements=st.floats(0.01, 1)), arrays(bool, (6, 5)), st.permutations(range(6)))
def test_properties(weight, relevant, order):
    attention = weight / weight.sum(-1, keepdims=True)
    mass, rest = attention_mass(attention, relevant), attention_mass(attention, ~relevant)
    np.testing.assert_allclose(mass + rest, 1, atol=1e-12)
    np.testing.assert_allclose(attention_mass(attention[:, ::-1], relevant[:, ::-1]), mass, atol=1e-12)
    assert float(mrta(mass[order])) == pytest.approx(float(mrta(mass)))
    assert mass.min() - 1e-12 <= mrta(mass) <= mass.max() + 1e-12
    chance = weight.mean(-1)
    assert acmc(mass[order], chance[order]) == acmc(mass, chance) <= attention_confidence(mass)
    assert attention_confidence(mass, 0.7) <= attention_confidence(mass, 0.3) <= attention_confidence(mass, 0.0) == 100


HALF, BOTH = np.array([[0.5, 0.5]]), np.array([[True, False]])


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: attention_mass(2 * HALF, BOTH),
            r"attention\.sum\(-1\)\[0\] must be 1 or 0, got 2\.0; tokens are the last",
        ),
        (lambda: attention_mass(HALF / 2, BOTH), r"attention\.sum\(-1\)\[0\] must be 1 or 0, got 0\.5"),
        (lambda: attention_mass(np.array([[-0.5, 1.0]]), BOTH), r"attention\[0, 0\] must be from 0 to 1 .*got -0\.5"),
        (lambda: attention_mass(np.array([[0.5, np.nan]]), BOTH), r"attention\[0, 1\] must be .*got nan"),
        (lambda: attention_mass(HALF, np.array([[3, 0]])), r"relevant\[0, 0\] must be from 0 to 1 .*got 3"),
        (
            lambda: attention_mass(HALF, np.ones((1, 3), bool)),
            r"shapes of attention and relevant .*\(\(1, 2\), \(1, 3\)\)",
        ),
        (lambda: attention_mass(HALF, np.ones((1, 1), bool)), "shapes of attention and relevant"),
        (lambda: attention_mass(np.tile(HALF, (3, 1)), np.ones((2, 2), bool)), "shapes of attention and relevant"),
        (lambda: attention_mass(np.zeros((0, 2)), BOTH), r"shape of attention must be one of .*got \(0, 2\)"),
        (lambda: uniform_mass(BOTH, np.array([[1.0, 0.0]])), "type of mask must be bool, got 'float64'"),
        (lambda: uniform_mass(BOTH, np.ones((1, 3), bool)), "shapes of relevant and mask"),
        (lambda: uniform_mrta(BOTH[0]), r"shape of relevant must be \(\.\.\., instances, tokens\), got \(2,\)"),
        (lambda: mrta(np.array([0.1, 1.2])), r"mass\[1\] must be from 0 to 1 .*got 1\.2"),
        (lambda: mrta(np.array([])), "shape of mass must be one of at least one value"),
        (lambda: mrta(np.array([np.nan])), r"mass\[0\] .*got nan"),
        (lambda: mrta(0.5), "mass must be a rectangular array .*put a single value in a list"),
        (lambda: attention_confidence(HALF, 50), "threshold must be a number from 0 to 1, got 50"),
        (lambda: attention_confidence(HALF, np.nan), "threshold must be a number from 0 to 1, got nan"),
        (lambda: attention_confidence(HALF, True), "threshold must be a number from 0 to 1, got True"),
        (lambda: acmc(HALF, HALF, 0.5, -0.1), "probability_threshold must be a number from 0 to 1, got -0.1"),
        (lambda: acmc(HALF, HALF[:, :1]), r"shapes of mass and probability .*\(\(1, 2\), \(1, 1\)\)"),
        (lambda: acmc(HALF, 3 * HALF), r"probability\[0, 0\] must be from 0 to 1 .*got 1\.5"),
        (lambda: uniform_acmc(BOTH, HALF), "shapes of mass and probability"),
    ],
)
def test_refused(call, message, unchecked):
    with pytest.raises(InputError, match=message):
        call()

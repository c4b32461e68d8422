"""What dropout keeps: the right share, as if every entry were drawn apart, whatever the shape."""

import jax
import numpy as np
import pytest

from qkdyn.dropout import survivors
from qkdyn.errors import InputError


@pytest.fixture(scope="module")
def kept():
    keys = jax.random.split(jax.random.key(1), 40)
    return np.asarray(jax.jit(jax.vmap(lambda key: survivors(key, 0.2, (8, 50, 50))))(keys)).reshape(40, -1)


def test_the_share_is_right(kept):
    error = np.sqrt(0.2 * 0.8 / kept.size)
    assert abs(kept.mean() - 0.8) < 4 * error
    # Of each key and of each place as of drawn ones, no more and no less even.
    for axis in (0, 1):
        z = (kept.mean(axis) - 0.8) / np.sqrt(0.16 / kept.shape[axis])
        assert z.std() == pytest.approx(1, abs=4 / np.sqrt(2 * z.size)) and abs(z).max() < 5.5


def test_entries_are_independent(kept):
    dropped = 1.0 * ~kept - 0.2
    limit = 5 * 0.16 / np.sqrt(kept.size)
    # Of places near and a power of two apart, of one key and of the next.
    for step in (1, 2, 50, 64, 1024, 2500, 8192):
        assert abs((dropped[:, step:] * dropped[:, :-step]).mean()) < limit * np.sqrt(1 / (1 - step / kept.shape[1]))
    for step in (1, 7):
        assert abs((dropped[step:] * dropped[:-step]).mean()) < limit * 1.2
        assert abs((dropped[step:, 1:] * dropped[:-step, :-1]).mean()) < limit * 1.2


def test_key_and_place_decide():
    drawn = jax.jit(survivors, static_argnums=(1, 2))
    key, other = jax.random.key(2), jax.random.key(3)
    flat = drawn(key, 0.5, (24,))
    assert np.array_equal(flat, np.ravel(drawn(key, 0.5, (2, 3, 1, 4))))
    assert np.array_equal(flat, drawn(key, 0.5, (24,))) and not np.array_equal(flat, drawn(other, 0.5, (24,)))
    assert drawn(key, 0.0, (24,)).all() and not drawn(key, 1 - 1e-12, (24,)).any()


@pytest.mark.parametrize("share", [-0.1, 1, 1.5, float("nan"), True])
def test_shares_that_mean_nothing_are_refused(share, unchecked):
    with pytest.raises(InputError, match="share must be"):
        survivors(jax.random.key(0), share, (2,))

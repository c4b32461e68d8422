"""Updates of a language model against AdamW written out, over two devices; one program for all arms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_language import made_prompts, model_of, run_of

from qkdyn.errors import InputError
from qkdyn.text.answer_batches import AnswerBatch
from qkdyn.train.devices import arms_mesh, copied, spread
from qkdyn.train.language import language_loss
from qkdyn.train.language_batches import Shape, epoch_batches
from qkdyn.train.language_engine import LanguageJob, advance, begin, labels_of

SHAPES = (Shape(8, 4, 8), Shape(16, 8, 24))
B = 4


def job_of(**changed):
    return LanguageJob(**({"model": model_of(), "shapes": SHAPES, "steps": 3, "cycle": 6, "warmup": 2} | changed))


@pytest.fixture(scope="module", autouse=True)
def quickly():
    """Compiled quickly, not to be fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def batches():
    found = epoch_batches(made_prompts(), SHAPES, seed=1, epoch=0, batch=B, micro=2)
    assert set(found.shape) == {0, 1}
    return found


def doubles(tree):
    return jax.tree.map(lambda leaf: leaf.astype(np.float64) if leaf.dtype == np.float32 else leaf, tree)


@jax.jit
def gradient(params, posts):
    """Loss and gradient of a micro-batch, in the room of the largest shape."""
    return jax.value_and_grad(lambda params: language_loss(params, model_of(), *posts, smoothing=0.1))(params)


def mean_gradient(params, posts, update):
    """The same of an update: the mean of its micro-batches."""
    each = [gradient(params, AnswerBatch(*(leaf[update, micro] for leaf in posts))) for micro in range(2)]
    return jax.tree.map(lambda *pair: np.mean(pair, 0), *jax.device_get(each))


def by_hand(job, run, params, posts, count):
    """AdamW as PyTorch has it: decay first, moments, bias corrections with the beta1 of the moment."""
    names = labels_of(job, params)
    m = v = jax.tree.map(np.zeros_like, params)
    losses, clipped = [], []
    # Of a cycle of six: the start, the top, a quarter of the way down.
    cycle = (0.04, 0.95), (1.0, 0.85), (0.8535541036, 0.8646446609)
    for t, (share, b1) in enumerate(cycle[:count], start=1):
        loss, g = mean_gradient(params, posts, t - 1)
        losses.append(loss)
        norm = np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(g)))
        scale = min(1, job.clip / (norm + 1e-6))
        clipped.append(scale < 1)
        g = jax.tree.map(lambda leaf, scale=scale: leaf * scale, g)
        m = jax.tree.map(lambda m, g, b1=b1: b1 * m + (1 - b1) * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, v, g)

        def moved(p, m, v, label, t=t, share=share, b1=b1):
            rate = run.rate * run.multipliers[label] * share
            p = p * (1 - rate * run.decay[label])
            return p - rate * (m / (1 - b1**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)

        params = jax.tree.map(moved, params, m, v, names)
    assert any(clipped)
    return losses, params


def test_updates_by_hand_over_two_devices(x64, batches):
    """Two arms of other settings and other starts, of which one stops early: one program."""
    job, mesh = job_of(clip=0.2), arms_mesh(2)
    assert mesh.size == 2
    placed = spread(mesh, doubles(batches), 2)
    assert {len(leaf.sharding.device_set) for leaf in placed.posts} == {2}
    assert not placed.posts.tokens.is_fully_replicated
    programs = advance._cache_size()
    for seed, run, count in ((5, run_of(qk=3.0, embed=0.1), 3), (6, run_of(0.001, qk=7.0, decay=0.5), 2)):
        start = doubles(jax.device_get(begin(job, seed)))
        wanted_losses, wanted = by_hand(job, run, start.params, batches.posts, count)
        state, losses = advance(job, run, copied(mesh, start), placed, jnp.int32(count))
        assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(state))
        # The schedule is in float32.
        np.testing.assert_allclose(losses, [*wanted_losses, 0.0][:3], rtol=1e-7)
        for found, right in zip(jax.tree.leaves(state.params), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-7)
        assert int(state.step) == count
    assert advance._cache_size() == programs + 1


def test_labels_and_starts():
    job = job_of()
    first, second = (begin(job, seed) for seed in (5, 6))
    names = labels_of(job, first.params)
    assert names["embed"] == {"W_E": "embed", "W_pos": "rest"} and names["head"] == {"b_U": "head"}
    assert set(jax.tree.leaves(names["layers"][0]["qk"])) == {"qk"}
    assert not np.array_equal(first.params["embed"]["W_E"], second.params["embed"]["W_E"])
    vectors = np.where(np.arange(20)[:, None] == 4, 2.0, np.nan).repeat(6, 1).astype(np.float32)
    known = begin(job, 5, vectors).params["embed"]["W_E"]
    assert (known[4] == 2).all() and np.array_equal(known[5:], first.params["embed"]["W_E"][5:])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cycle": 2}, "cycle must be at least 3 updates, those of the run, got 2"),
        ({"warmup": 6}, "warmup must be less than 6 updates"),
        ({"micro": 0}, "micro must be an integer >= 1"),
        ({"clip": 0.0}, "clip must be a finite number > 0"),
        ({"smoothing": 1.0}, r"smoothing must be a share in \[0, 1\)"),
        ({"shapes": (Shape(24, 8, 24),)}, "shapes must be of at most 16 slots"),
    ],
)
def test_wrong_jobs(wrong, message):
    with pytest.raises(InputError, match=message):
        job_of(**wrong)

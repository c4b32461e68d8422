"""What the benchmark of text compares is the same: the engine, the engine without its savings, and PyTorch."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import text, text_posts, text_runs
from benchmarks.measure import Bench, beside, check
from benchmarks.text_runs import every_embedding, every_row, lacking, start
from experiments.text.arms import controlled
from experiments.text.data import TextData
from experiments.text.recipe import Recipe
from experiments.text.task import HATEXPLAIN
from experiments.text.train import Reader, prepare
from helpers import max_difference
from qkdyn.errors import OutputError
from qkdyn.train.lazy_adam import NEVER
from qkdyn.train.text_engine import begin

VOCABULARY, SCALE = 60, 0.2
RECIPE = Recipe(d_model=8, n_heads=2, d_head=4, d_mlp=8, n_ctx=32, positions=33, batch=8, seeds=(3, 5))


def drawn(job, seeds, arms):
    """As `begin`, whose random numbers take longer to compile than all else here."""
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.eval_shape(lambda: begin(job, seeds, arms)))
    rng = np.random.default_rng(0)

    def normal(shape, axis):
        return np.repeat(SCALE * rng.standard_normal((*shape[:axis], 1, *shape[axis + 1 :]), np.float32), arms, axis)

    params = jax.tree.map(lambda leaf: normal(leaf.shape, 1), zeros.params)
    state = zeros._replace(params=params, table=normal(zeros.table.shape, 1), last=np.full_like(zeros.last, NEVER))
    return jax.tree.map(jnp.asarray, state)


@pytest.fixture
def tiny(monkeypatch):
    """A start of runs of two arms, at rates at which something happens; reader and posts."""
    monkeypatch.setattr(text_runs, "begin", drawn)
    rng = np.random.default_rng(1)
    data = TextData(*(text_posts.made_posts(rng, size, 32, VOCABULARY) for size in (44, 20, 20)), VOCABULARY, (), {})
    arms = [arm for arm in controlled().arms if arm.name in text.ARMS]
    reader = Reader.of(HATEXPLAIN, RECIPE, data, len(arms))
    campaign, runs = prepare(RECIPE, arms, data, reader)
    job = replace(campaign.job, widths=campaign.job.widths[-1:], warmup=2)
    runs = runs._replace(rate=100 * runs.rate)

    def begun(**changed):
        return start(job, runs, seeds=RECIPE.seeds, posts=data.train, batch=RECIPE.batch, **changed)

    return SimpleNamespace(begun=begun, reader=replace(reader, widths=reader.widths[-1:]), posts=data.validation)


def test_the_engine_without_its_savings_is_the_engine(tiny):
    whole, without = tiny.begun(), tiny.begun(advance=lacking(forward=every_row, _step=every_embedding))
    for _ in range(2):
        losses = whole.train()
        np.testing.assert_allclose(without.train(), losses, rtol=1e-4)
    assert losses.shape == (6, 2, 2) and np.ptp(losses) > 0.01
    assert max_difference(whole.params(1, 1), without.params(1, 1)) < 1e-4


def test_pytorch_trains_and_reads_alike_one_run_at_a_time(tiny, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(text, "threads", lambda: {"1 thread": 1})
    told = []
    bench = Bench(True, None, None, lambda share, status: told.append(status))
    training = tiny.begun()
    rates = text._torch_training(training, training, bench)
    rates |= text._reading("ours", training, tiny.reader, tiny.posts, bench)
    assert {name.rsplit(", ", 1)[0] for name in rates} == {*text.KINDS, text.ONE_BY_ONE, "ours"}
    assert all(measured() > 0 for measured in rates.values())
    assert "losses are within" in told[1] and "readings of the 100%" in told[-1]
    monkeypatch.setattr(text, "CLEAR", np.inf)
    with pytest.raises(OutputError, match="readings of the 0% of posts without ties are inf"):
        text._reading("ours", training, tiny.reader, tiny.posts, bench)


@pytest.mark.parametrize("difference", [2e-4, np.nan])
def test_what_differs_is_not_compared(difference):
    with pytest.raises(OutputError, match=r"PyTorch's losses are .* from the engine's, more than 0\.0001"):
        check("losses", difference)


def test_ours_is_beside_the_best_of_each_kind():
    found = {"ours": [8.0, 8.0], "slow, 1 thread": [4.0, 4.0], "slow, 2 threads": [2.0, 1.0]}
    rows = {row.name: row for row in beside("p", "ours", found, "posts/s", ("slow", "not there"))}
    assert rows["ours, against slow"].ratio == 2 and rows["ours, against slow"].baseline == "slow, 1 thread"
    assert list(rows) == ["ours", "slow, 1 thread", "slow, 2 threads", "ours, against slow"]

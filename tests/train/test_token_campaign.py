"""Campaigns on the synthetic task: cut into chunks, stopped and resumed to the bit; runs that ended are left out."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import trees_equal
from qkdyn.circuits import init_params, torch_uniform
from qkdyn.errors import ConflictError, InputError, Interrupted
from qkdyn.tasks.tokens import TokensTask
from qkdyn.train import token_campaign
from qkdyn.train.interrupt import Request
from qkdyn.train.store import open_store
from qkdyn.train.token_campaign import TokenCampaign
from qkdyn.train.token_probe import TokenProbe, evaluate
from qkdyn.train.tokens import start_tokens, token_runs

TASK = TokensTask(length=12, batch=8)
PROBE = TokenProbe(TASK, 16)


@pytest.fixture
def short_chunks(monkeypatch):
    """Two epochs of five batches between two returns to the host."""
    monkeypatch.setattr(token_campaign, "CHUNK_STEPS", 10)


def states(seeds=(1, 2, 3)):
    draw = torch_uniform()
    own = [init_params(jax.random.key(seed), "CACO", d=50, M=50, qk=draw, ov=draw) for seed in seeds]
    return start_tokens(jax.tree.map(lambda *leaves: jnp.stack(leaves), *own))


def runs(seeds=(1, 2, 3), stop_loss=0.0):
    return token_runs(seeds, eta_ov=0.5, eta_qk=0.5, ramp=3.0, total=40, stop_loss=stop_loss)


def campaign(**changed):
    return TokenCampaign(**({"task": TASK, "epochs": 7, "batches": 5, "measure": PROBE, "reset": 1} | changed))


def test_chunks_and_a_signal_change_no_bit(tmp_path, short_chunks):
    whole, records = campaign(epochs=7).finish(states(), runs(), "k")
    request = Request()
    store = open_store(tmp_path, {}, every=1e9)
    with pytest.raises(Interrupted):
        seen = []

        def hear(now, found):
            seen.append(int(now.step[0]))
            if len(seen) == 2:
                request.name = "SIGTERM"

        campaign(store=store, request=request).finish(states(), runs(), "k", hear)
    assert seen == [10, 20]
    again = []
    resumed, found = campaign(store=store).finish(states(), runs(), "k", lambda now, _: again.append(int(now.step[0])))
    assert again == [30, 35]
    assert trees_equal(resumed, whole) and trees_equal(found, records)
    # Another key is another campaign: its checkpoint is of no use.
    other, _ = campaign(store=store).finish(states(), runs(), "other", lambda now, _: again.append(int(now.step[0])))
    assert again[2:] == [10, 20, 30, 35] and trees_equal(other, whole)


def test_runs_that_have_stopped_cost_nothing_and_the_others_go_on(short_chunks):
    _, full = campaign(epochs=6).finish(states(), runs(), "k")
    level = float(np.sort(full["loss"][:, 1])[1]) * 1.0001  # two of the three are below it after two epochs, or before
    seen = []
    ended, found = campaign(epochs=6).finish(states(), runs(stop_loss=level), "k", lambda now, _: seen.append(now))
    first = [int(np.flatnonzero(row <= level)[0]) for row in full["loss"]]
    assert ended.step.tolist() == [5 * (epoch + 1) for epoch in first] and ended.stopped.all()
    for row, expected, epoch in zip(found["loss"], full["loss"], first, strict=True):
        np.testing.assert_array_equal(row[: epoch + 1], expected[: epoch + 1])
        assert np.isnan(row[epoch + 1 :]).all()
    assert len(seen) == -(-(max(first) + 1) // 2)


def test_a_sum_of_epochs_is_what_the_rule_compares(short_chunks):
    _, full = campaign(epochs=4).finish(states((1,)), runs((1,)), "k")
    level = float(full["loss"][0, 0]) * 1.0001
    # The first epoch alone is at the level; the sum of the first and any other is not.
    ended, _ = campaign(epochs=4, reset=100).finish(states((1,)), runs((1,), level), "k")
    assert ended.stopped.all() and ended.step.tolist() == [5]
    between = float(full["loss"][0, 1]) * 1.0001
    assert between < full["loss"][0, 0]
    ended, _ = campaign(epochs=4, reset=100).finish(states((1,)), runs((1,), between), "k")
    assert not ended.stopped.any()
    ended, _ = campaign(epochs=4, reset=1).finish(states((1,)), runs((1,), between), "k")
    assert ended.step.tolist() == [10]


def test_the_probe_and_the_evaluation_measure_the_same(short_chunks):
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), states().params)
    found = evaluate(params, jax.random.key(5), 400, TASK)
    probe = TokenProbe(TASK, 3200)(params)
    assert found.distinct.shape == (3200,)
    np.testing.assert_allclose(found.distinct.mean(), probe["distinct"], atol=0.01)
    np.testing.assert_allclose(found.query.mean(), probe["query"], atol=0.01)
    np.testing.assert_allclose(-np.log(found.probability).mean(), probe["evaluation"], atol=0.01)
    assert 0 <= float(found.correct.mean()) <= 0.2


def test_wrong_input_is_refused(tmp_path):
    with pytest.raises(InputError, match="epochs must be"):
        campaign(epochs=0)
    with pytest.raises(InputError, match="equally many"):
        campaign().finish(states(), runs((1, 2)), "k")
    open_store(tmp_path, {"epochs": 7})
    with pytest.raises(ConflictError, match="epochs: 7 there, 8 here"):
        open_store(tmp_path, {"epochs": 8})
    assert dataclasses.replace(campaign(), reset=3).reset == 3

"""Runs on text brought to their end: killed and resumed to the bit, measured after every epoch, another start refused."""

import jax
import numpy as np
import pytest
from made_text import config_of, drawn, made_posts, runs_of

from qkdyn.errors import CheckpointError, Interrupted
from qkdyn.train import text_campaign
from qkdyn.train.devices import filled_up
from qkdyn.train.interrupt import Request
from qkdyn.train.store import open_store
from qkdyn.train.text_campaign import TextCampaign
from qkdyn.train.text_engine import TextJob

SEEDS, WIDTHS = (3, 5), (16,)
ARMS = ((1, 1, 1, 1e-4, 0), (0, 3, 1, 1e-3, 1))
# The smallest model: what is compiled takes longer than what is trained.
CONFIG = config_of(d_mlp=None, biases=False)


def asked():
    request = Request()
    request.name = "SIGTERM"
    return request


class Killed(Exception):
    """What ends a process in the middle."""


def campaign(store=None, request=None, arms=ARMS):
    data = made_posts(CONFIG)
    job = TextJob(CONFIG, steps=3 * 6, warmup=2, widths=WIDTHS, stale=True)
    seen = []

    def measure(state, epoch, records):
        seen.append((epoch, int(state.step)))
        norm = np.asarray(jax.numpy.square(state.table).sum(-1)).reshape(len(SEEDS), -1, state.table.shape[1]).sum(1)
        before = records.get("norm", np.zeros((*norm.shape, 0), np.float32))
        return {**records, "norm": np.concatenate([before, norm[..., None]], -1)}

    return TextCampaign(job, SEEDS, data, 4, True, 3, measure, store, request), runs_of(*arms), seen


@pytest.fixture
def short_chunks(monkeypatch):
    monkeypatch.setattr(text_campaign, "CHUNK_STEPS", 4)
    monkeypatch.setattr(text_campaign, "begin", drawn)


def test_a_run_killed_at_any_chunk_goes_on_to_the_same_bits(tmp_path, short_chunks):
    whole, runs, seen = campaign()
    state, records = whole.finish(runs, "key")
    assert seen == [(0, 6), (1, 12), (2, 18)]
    assert records["losses"].shape == (2, 2, 18) and records["norm"].shape == (2, 2, 3)
    assert whole.tokens == 3 * 2 * len(SEEDS) * made_posts(CONFIG).length.sum()
    # Taken up after an epoch, and within one.
    for kill in (2, 5):
        store = open_store(tmp_path / str(kill), {"it": "same"}, every=0.0)
        heard = []

        def die(step, records, heard=heard, kill=kill):
            heard.append(step)
            if len(heard) > kill:
                raise Killed

        first, _, _ = campaign(store)
        with pytest.raises(Killed):
            first.finish(runs, "key", die)
        again, _, _ = campaign(open_store(tmp_path / str(kill), {"it": "same"}, every=0.0))
        resumed, found = again.finish(runs, "key")
        assert {name: values.tobytes() for name, values in found.items()} == {
            name: values.tobytes() for name, values in records.items()
        }
        assert all(map(np.array_equal, jax.tree.leaves(resumed), jax.tree.leaves(state)))


def test_a_signal_saves_and_ends(tmp_path, short_chunks):
    store = open_store(tmp_path / "s", {"it": "same"}, every=1e9)
    stopped, runs, _ = campaign(store, asked())
    with pytest.raises(Interrupted, match="SIGTERM: saved"):
        stopped.finish(runs, "key")
    again, _, seen = campaign(store)
    heard = []
    again.finish(runs, "key", lambda step, records: heard.append(step))
    assert heard[0] == 6 and len(seen) == 3


def test_a_signal_while_measuring_leaves_off_and_goes_on_to_the_same_bits(tmp_path, short_chunks, monkeypatch):
    whole, runs, _ = campaign()
    state, records = whole.finish(runs, "key")
    settle = text_campaign.settle
    # Asked to end in the chunk before an epoch is measured, and in the middle of measuring.
    for early in (True, False):
        store, request = open_store(tmp_path / str(early), {"it": "same"}, every=1e9), Request()
        stopped, _, seen = campaign(store, request)
        measure = stopped.measure

        def pieces(state, epoch, records, request=request, measure=measure):
            if epoch == 1:
                request.name = "SIGTERM"
                request.check()
            return measure(state, epoch, records)

        def settled(*rest, request=request, early=early):
            request.name = "SIGTERM" if early else None
            return settle(*rest)

        stopped.measure = pieces
        monkeypatch.setattr(text_campaign, "settle", settled)
        with pytest.raises(Interrupted, match="SIGTERM: saved"):
            stopped.finish(runs, "key")
        monkeypatch.setattr(text_campaign, "settle", settle)
        assert len(seen) == (0 if early else 1)
        again, _, seen = campaign(store)
        resumed, found = again.finish(runs, "key")
        assert len(seen) == (3 if early else 2) and found.keys() == records.keys()
        assert all(np.array_equal(found[name], records[name]) for name in records)
        assert all(map(np.array_equal, jax.tree.leaves(resumed), jax.tree.leaves(state)))


def test_a_checkpoint_of_other_arms_is_refused(tmp_path, short_chunks):
    store = open_store(tmp_path / "s", {"it": "same"}, every=0.0)
    stopped, runs, _ = campaign(store, asked())
    with pytest.raises(Interrupted):
        stopped.finish(runs, "key")
    more, runs, _ = campaign(store, arms=(*ARMS, ARMS[0]))
    with pytest.raises(CheckpointError):
        more.finish(runs, "key")


def test_arms_that_fill_up_the_devices_are_not_saved(tmp_path, short_chunks, monkeypatch):
    one, runs, _ = campaign()
    expected, records = one.finish(runs, "key")
    # As if there were four devices: two arms, and two copies of the second.
    monkeypatch.setattr(text_campaign, "filled_up", lambda tree, devices, axis=0: filled_up(tree, 4, axis))
    store = open_store(tmp_path / "s", {"it": "same"}, every=0.0)
    stopped, runs, _ = campaign(store, asked())
    with pytest.raises(Interrupted):
        stopped.finish(runs, "key")
    monkeypatch.setattr(text_campaign, "filled_up", filled_up)
    again, runs, _ = campaign(store)
    state, found = again.finish(runs, "key")
    np.testing.assert_allclose(found["losses"], records["losses"], rtol=1e-5)
    np.testing.assert_allclose(state.table, expected.table, atol=1e-5)

"""Language models brought to their end: the best epoch, killed and resumed to the bit, ended where they diverge."""

import jax
import numpy as np
import pytest
from made_language import made_prompts, model_of, run_of

from qkdyn.errors import CheckpointError, InputError, Interrupted
from qkdyn.train import language_campaign
from qkdyn.train.interrupt import Request
from qkdyn.train.language_batches import batch_shapes
from qkdyn.train.language_campaign import LanguageCampaign
from qkdyn.train.language_engine import LanguageJob
from qkdyn.train.store import open_store

PROMPTS, EPOCHS, B = made_prompts(), 4, 4
# The second epoch is the best; the last is only as good.
F1 = (0.1, 0.4, 0.2, 0.4)


class Killed(Exception):
    """What ends a process in the middle."""


@pytest.fixture(scope="module", autouse=True)
def quickly():
    """Compiled quickly, not to be fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(language_campaign, "CHUNK_STEPS", 2)


def campaign(store=None, request=None, **changed):
    steps = EPOCHS * 3
    job = LanguageJob(model_of(dropout=0.2), batch_shapes(PROMPTS, B, 2), steps=steps, cycle=2 * steps, warmup=3)
    kept = []

    def measure(state, epoch, records):
        kept.append(jax.device_get(state.params))
        f1 = np.append(records.get("selection/f1", []), F1[epoch])
        return {**records, "selection/f1": f1, "norm": np.append(records.get("norm", []), norm(kept[-1]))}

    settings = {"prompts": PROMPTS, "batch": B, "epochs": EPOCHS, "measure": measure} | changed
    return LanguageCampaign(job, 7, store=store, request=request, **settings), kept


def norm(params):
    return float(sum((leaf**2).sum() for leaf in jax.tree.leaves(params)))


def same(left, right):
    return all(map(np.array_equal, jax.tree.leaves(left), jax.tree.leaves(right)))


@pytest.fixture(scope="module")
def whole():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language_campaign, "CHUNK_STEPS", 2)
        made, kept = campaign()
        return made.finish(run_of(qk=5.0), "key"), kept, made.tokens


def test_the_best_epoch_is_kept(whole):
    (state, best, records), kept, tokens = whole
    assert records["losses"].shape == (12,) and int(state.step) == 12 and len(kept) == 4
    assert records["best/epoch"] == 2 and same(best, kept[1]) and same(state.params, kept[3])
    assert not same(kept[1], kept[3])
    # Three updates an epoch; of 27 questions in an epoch three are dropped.
    assert EPOCHS * PROMPTS.length.sum() * 0.8 < tokens < EPOCHS * PROMPTS.length.sum()
    # It learns.
    assert records["losses"][-3:].mean() < records["losses"][:3].mean() - 0.05


@pytest.mark.parametrize("kill", [1, 3, 6])
def test_a_run_killed_at_any_chunk_goes_on_to_the_same_bits(tmp_path, whole, kill):
    (state, best, records), _, _ = whole
    store = open_store(tmp_path, {"it": "same"}, every=0.0)
    heard = []

    def die(step, records):
        heard.append(step)
        if len(heard) > kill:
            raise Killed

    with pytest.raises(Killed):
        campaign(store)[0].finish(run_of(qk=5.0), "key", die)
    again, kept = campaign(open_store(tmp_path, {"it": "same"}, every=0.0))
    resumed, resumed_best, found = again.finish(run_of(qk=5.0), "key")
    assert len(kept) < EPOCHS or kill == 1
    assert same(resumed, state) and same(resumed_best, best)
    assert {name: values.tobytes() for name, values in found.items()} == {
        name: values.tobytes() for name, values in records.items()
    }


def test_a_signal_saves_and_ends(tmp_path, whole):
    request = Request()
    request.name = "SIGTERM"
    store = open_store(tmp_path, {"it": "same"}, every=1e9)
    with pytest.raises(Interrupted, match="SIGTERM: saved"):
        campaign(store, request)[0].finish(run_of(qk=5.0), "key")
    heard = []
    state, _, _ = campaign(store)[0].finish(run_of(qk=5.0), "key", lambda step, records: heard.append(step))
    assert heard[0] == 3 and same(state, whole[0][0])
    # What is kept is not of a model of other sizes.
    other = LanguageJob(model_of(d_mlp=4), batch_shapes(PROMPTS, B, 2), steps=12, cycle=24, warmup=3)
    wrong, _ = campaign(store)
    wrong.job = other
    with pytest.raises(Interrupted):
        campaign(store, request)[0].finish(run_of(qk=2.0), "key 2")
    with pytest.raises(CheckpointError):
        wrong.finish(run_of(), "key 2")


def test_a_signal_while_measuring_leaves_off_and_goes_on_to_the_same_bits(tmp_path, whole):
    (state, best, records), _, _ = whole
    store, request = open_store(tmp_path, {"it": "same"}, every=1e9), Request()
    stopped, kept = campaign(store, request)
    measure = stopped.measure

    def pieces(state, epoch, records):
        if epoch == 1:
            request.name = "SIGTERM"
            request.check()
        return measure(state, epoch, records)

    stopped.measure = pieces
    with pytest.raises(Interrupted, match="SIGTERM: saved"):
        stopped.finish(run_of(qk=5.0), "key")
    # The epoch that was left off is the best one.
    again, more = campaign(store)
    resumed, resumed_best, found = again.finish(run_of(qk=5.0), "key")
    assert (len(kept), len(more)) == (1, 3) and same(resumed, state) and same(resumed_best, best)
    assert found.keys() == records.keys() and all(np.array_equal(found[name], records[name]) for name in records)


def test_a_run_that_diverges_ends_there(tmp_path):
    store = open_store(tmp_path, {"it": "same"}, every=0.0)
    made, kept = campaign(store)
    _, best, records = made.finish(run_of(rate=1e25), "key")
    assert len(records["losses"]) < 6 and not np.isfinite(records["losses"]).all()
    assert len(kept) <= 1 and int(records["best/epoch"]) == len(kept)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(best))


def test_other_numbers_of_updates_are_refused():
    with pytest.raises(InputError, match=r"steps must be 15, 3 updates for each of 5 epochs, got 12"):
        campaign(epochs=5)

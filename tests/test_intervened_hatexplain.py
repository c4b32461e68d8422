"""Interventions on HateXplain: arms, starts, what a run's record says, and one small training that is stopped and goes on."""

import json
import types
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_text import drawn

from experiments.intervened import hatexplain, hatexplain_sgd, posts
from experiments.intervened.arms import Work
from experiments.text.data import TextData
from experiments.text.recipe import Recipe
from helpers import compilations
from qkdyn.errors import DataError, InputError, Interrupted
from qkdyn.interventions import Intervention, OnCircuit, Schedule
from qkdyn.text.encoded import Encoded
from qkdyn.train import text_campaign
from qkdyn.train.interrupt import Request
from qkdyn.train.store import open_store
from qkdyn.train.text_engine import TextState

ALL = {arm.name.removeprefix("hatexplain-"): arm for arm in hatexplain.arms(False)}


def few(count, seed):
    """Posts of 3 to 7 tokens and a query token, in 8 slots; what is relevant tells the label."""
    rng = np.random.default_rng(seed)
    length = rng.integers(4, 9, count).astype(np.int32)
    content = np.arange(8) < length[:, None] - 1
    tokens = np.where(content, rng.integers(6, 20, content.shape), 0)
    tokens[np.arange(count), length - 1] = 2
    label = rng.integers(0, 3, count).astype(np.int32)
    tokens[:, 0] = 3 + label
    relevant = (content & (np.arange(8) == 0)).astype(np.float32)
    marked = np.ones(count, bool)
    return Encoded(tokens.astype(np.int32), length, label, relevant, content, marked, pad=0, n_ctx=8, cut=0, empty=0)


@pytest.fixture(scope="module")
def small():
    """A tiny model on 24 posts: six updates an epoch."""
    data = TextData(few(24, 0), few(8, 1), few(12, 2), 20, (), {"dataset.json": "a"})
    sizes = {"d_model": 8, "n_heads": 2, "d_head": 4, "d_mlp": None, "n_ctx": 8, "positions": 9, "batch": 4}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(posts, "load", lambda recipe, folder, limit: data)
        patch.setattr(posts, "Recipe", lambda: Recipe(**sizes))
        patch.setattr(text_campaign, "begin", drawn)
        yield


def arm(name, **changed):
    usual = {"eta_ov": 0.02, "epochs": 3, "max_steps": 18, "seeds": (3, 5), "levels": (1.02, 1e-3)}
    return replace(ALL[name], **{**usual, **changed})


STILL = Schedule.delayed(100.0)
ARMS = [
    arm("plain"),
    arm("ratio-30"),
    arm("gain-adamw"),
    arm("start-qk-10000"),
    arm("factors-ov-10"),
    replace(arm("plain"), name="hatexplain-still", on=Intervention(qk=OnCircuit(schedule=STILL))),
]


@pytest.fixture(scope="module")
def records(small):
    return hatexplain.train(ARMS, Work())


def test_a_record_has_runs_read_at_the_losses_that_they_reach(records):
    assert list(records) == [arm.name for arm in ARMS]
    json.dumps(records, allow_nan=False)
    for record in records.values():
        assert [run["seed"] for run in record["runs"]] == [3, 5] and record["predicted"] == []
        for run in record["runs"]:
            assert run["status"] == "budget" and run["diverged_at"] is None and run["end"]["step"] == 18
            for line in run["matched"]:
                assert line["level"] == 1.02 and 6 <= line["step"] < 18 and 0 <= line["accuracy"] <= 1
    for name in ("plain", "gain-adamw", "still"):
        assert all(len(run["matched"]) == 1 for run in records[f"hatexplain-{name}"]["runs"]), name


def test_interventions_do_what_they_say(records):
    ends = {name.removeprefix("hatexplain-"): [run["end"] for run in r["runs"]] for name, r in records.items()}
    for a, b in zip(ends["plain"], ends["gain-adamw"], strict=True):
        assert a["attention"] == pytest.approx(b["attention"], rel=1e-3)
    for name in ("ratio-30", "start-qk-10000", "factors-ov-10", "still"):
        assert all(a["loss"] != b["loss"] for a, b in zip(ends[name], ends["plain"], strict=True)), name
    # Query-key matrices that are held still near zero leave attention nearly uniform, whatever the embeddings learn.
    data = few(12, 2)
    uniform = (1 / data.length).mean()
    for still, fast in zip(ends["still"], ends["ratio-30"], strict=True):
        assert still["attention"] == pytest.approx(uniform, abs=0.01)
        assert fast["attention"] > uniform + 0.3


def test_a_group_that_was_stopped_goes_on_to_the_same_records_and_other_strengths_compile_nothing(records, tmp_path):
    request = Request()
    request.name = "SIGTERM"
    store = open_store(tmp_path / "s", {"it": "same"}, every=0.0)
    with pytest.raises(Interrupted):
        hatexplain.train(ARMS, Work(store, request))
    seen = []
    with compilations() as names:
        again = hatexplain.train(ARMS, Work(store, update=lambda share, status: seen.append((share, status))))
    assert again == records
    assert not [name for name in names if "advance" in name or "_read" in name], names
    # The first epoch was there.
    assert [share for share, status in seen if "update" in status] == [2 / 3, 1.0]


def test_arms_that_do_not_fit_the_posts_or_each_other_are_refused(small):
    with pytest.raises(InputError, match="equal epochs"):
        hatexplain.train([arm("plain"), arm("ratio-30", epochs=2)], Work())
    with pytest.raises(InputError, match="optimizer; put others"):
        hatexplain.train([arm("plain"), arm("ratio-30", optimizer="sgd")], Work())
    with pytest.raises(InputError, match="made for 24 updates, but 24 posts make 18"):
        hatexplain.train([arm("plain", max_steps=24)], Work())
    with pytest.raises(InputError, match="multiple of epochs"):
        arm("plain", max_steps=19)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"posts": 0}, "posts must be .*, got 0"),
        ({"posts": -1}, "posts must be .*, got -1"),
        ({"embed": -1.0}, "embed must be .*, got -1"),
        ({"embed": float("nan")}, "embed must be .*, got nan"),
        ({"r": 1e7}, "qk must be"),
        ({"rate": 2.0}, "rate must be .* 1, got 2"),
        ({"rate": 0.0}, "rate must be .*, got 0"),
        ({"decay": -1.0}, "decay must be .*, got -1"),
        ({"decay": 1.0}, "must be below 1"),
    ],
)
def test_an_arm_that_no_run_can_have_is_refused_when_it_is_made(changed, message):
    with pytest.raises(InputError, match=message):
        replace(hatexplain_sgd.arms(False)[1], **changed)


def test_without_posts_it_is_said_before_any_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QKDYN_DATA", raising=False)
    with pytest.raises(DataError, match="hatexplain"):
        hatexplain.ready(None)


def test_starts_are_scaled_arm_by_arm():
    ones = lambda: jnp.ones((1, 3, 2, 2))  # noqa: E731
    qk = {name: ones() for name in ("W_Q", "W_K", "b_Q")}
    params = {"layers": ({"qk": qk, "ov": {name: ones() for name in ("W_V", "W_O")}},), "embed": {"W_pos": ones()}}
    chosen = [ALL["plain"], ALL["start-qk-100"], ALL["factors-ov-10"]]
    state = TextState(params, (), jnp.ones((4, 3, 2)), (), jnp.zeros(4), (), 0)
    found = jax.tree.map(lambda leaf: leaf[0, :, 0, 0].tolist(), posts._start(chosen)(state).params)
    layer = found["layers"][0]
    assert layer["qk"] == {"W_Q": [1, 10, 1], "W_K": [1, 10, 1], "b_Q": [1, 1, 1]}
    assert layer["ov"]["W_O"] == [1, 1, 10] and layer["ov"]["W_V"] == pytest.approx([1, 1, 0.1])
    assert found["embed"]["W_pos"] == [1, 1, 1]


def test_a_run_is_read_where_its_training_loss_crosses_and_not_after_it_diverged():
    # Five epochs of two updates whose loss halves each epoch; attention grows by 0.1 an epoch.
    own = {"losses": np.repeat(0.5 ** np.arange(5.0), 2), "test/attention": 0.1 * np.arange(1, 6)}
    own |= {"test/loss": np.ones(5), "test/step": 2.0 * np.arange(1, 6)}
    five = replace(ALL["plain"], epochs=5, max_steps=10, levels=(0.5, 0.125, 0.01))
    run = posts._run(five, 7, own)
    assert run["status"] == "budget" and run["end"]["attention"] == 0.5 and run["end"]["training_loss"] == 0.0625
    # At the centres of the second and fourth epoch: 1.5 and 3.5 epochs in.
    assert [line["step"] for line in run["matched"]] == [3.0, 7.0]
    assert [line["attention"] for line in run["matched"]] == pytest.approx([0.15, 0.35])
    assert posts._run(replace(five, levels=(0.5, 0.125)), 7, own)["status"] == "stopped"
    wild = {**own, "losses": np.where(np.arange(10) < 5, own["losses"], np.nan)}
    run = posts._run(five, 7, wild)
    assert run["status"] == "diverged" and run["diverged_at"] == 5 and run["end"]["training_loss"] is None
    assert [line["level"] for line in run["matched"]] == [0.5]


def test_measures_are_means_of_the_posts_that_they_are_about():
    split = types.SimpleNamespace(
        data=types.SimpleNamespace(marked=np.array([1, 1, 0], bool), label=np.array([0, 1, 2]))
    )
    split.ranked = np.array([1, 0, 0], bool)
    each = np.array([[[0.2, 0.4, 0.9]], [[0.1, 0.3, 0.5]]])
    found = {name: each.copy() for name in ("mass", "entropy", "top_mass", "auprc", "loss")}
    found["predicted"] = np.array([[[0, 1, 1]], [[-1, -1, -1]]])
    found["loss"][1] = np.nan
    means = posts.means(found, split)
    np.testing.assert_allclose(means["attention"], [[0.3], [0.2]])
    np.testing.assert_allclose(means["auprc"], [[0.2], [0.1]])
    np.testing.assert_allclose(means["accuracy"], [[2 / 3], [np.nan]])


def test_under_sgd_a_group_trains_and_momentum_is_a_rate(small):
    """A gain of QK is its ratio, as nothing decays; embeddings and head have the base rate whatever circuits have."""
    still = Intervention(OnCircuit(schedule=STILL), OnCircuit(schedule=STILL))
    chosen = [
        sgd("plain"),
        sgd("ratio-10"),
        sgd("gain-sgd"),
        replace(sgd("plain"), name="hatexplain-sgd-still", on=still),
        replace(sgd("momentum-both-0.9"), name="hatexplain-sgd-slow", on=still),
    ]
    assert hatexplain_sgd.groups(chosen) == [chosen]
    found = hatexplain_sgd.train(chosen, Work())
    ends = {name.removeprefix("hatexplain-sgd-"): [run["end"] for run in r["runs"]] for name, r in found.items()}
    for fast, gain, plain in zip(ends["ratio-10"], ends["gain-sgd"], ends["plain"], strict=True):
        assert (
            gain["attention"] == pytest.approx(fast["attention"], rel=1e-3) and gain["attention"] != plain["attention"]
        )
    # With circuits at rest nothing is left of their own rate.
    assert ends["slow"] == ends["still"] != ends["plain"]


def sgd(name):
    own = next(arm for arm in hatexplain_sgd.arms(False) if arm.name == f"hatexplain-sgd-{name}")
    usual = {"eta_ov": 0.5 * own.eta_ov, "epochs": 3, "max_steps": 18, "seeds": (3, 5), "levels": (1.02, 1e-3)}
    return replace(own, **usual, rate=0.5)


def test_arms_under_sgd_start_alike_and_leave_all_else_at_the_base_rate():
    every = {arm.name.removeprefix("hatexplain-sgd-"): arm for arm in hatexplain_sgd.arms(False)}
    assert len(every) == len(hatexplain_sgd.arms(False))
    for name, arm in every.items():
        scaled = tuple(x / hatexplain_sgd.GLOROT for x in arm.start)
        assert scaled == pytest.approx((1, 1)) or name.startswith("start-")
        if arm.optimizer == "adamw":
            assert arm.others == (arm.eta_ov, posts.DECAY) and arm.eta_ov in hatexplain_sgd.ADAM
            assert arm.family == "Adam" and arm.label.startswith("AdamW, ") and f"rate {arm.eta_ov:g}" in arm.label
        elif not name.startswith("base-"):
            assert arm.others == (hatexplain_sgd.RATE, 0.0), name
    assert every["start-both"].start == pytest.approx((1, 1))
    assert [every[f"base-{rate}"].others[0] for rate in ("0.1", "0.3")] == [0.1, 0.3]
    assert [posts._without(arm) for arm in (*every.values(), *ALL.values())]
    assert posts._with_decay(every["plain"].on, every["plain"].others[1]).qk.decay == 0
    assert every["start-qk-10"].start == (hatexplain_sgd.GLOROT, 10 * hatexplain_sgd.GLOROT)
    one, two = (posts._without(every[f"momentum-{which}-0.9"]) for which in ("both", "qk"))
    assert (one.rate, one.qk, one.ov) == pytest.approx((1.0, 0.1, 0.1)) and (two.qk, two.ov) == (1.0, 1.0)
    alone = posts._without(every["normalized-ov-3.33333"])
    assert (alone.rate, alone.qk, alone.ov) == pytest.approx((1.0, 1.0, 0.3))
    kinds = [{arm.optimizer for arm in group} for group in hatexplain_sgd.groups(list(every.values()))]
    assert all(len(kind) == 1 for kind in kinds) and sum(map(len, hatexplain_sgd.groups(list(every.values())))) == len(
        every
    )
    assert [(arm.r, arm.posts, arm.optimizer) for arm in hatexplain_sgd.arms(True)] == [
        (1, 600, "sgd"),
        (10, 600, "sgd"),
    ]


def test_arms_are_adamw_with_names_of_their_own():
    assert len(ALL) == len(hatexplain.arms(False)) and {arm.optimizer for arm in ALL.values()} == {"adamw"}
    assert ALL["gain-adamw"].gain == (1.0, 30.0) and ALL["gain-adamw"].r == 1.0 and "gain-sgd" not in ALL
    assert all(len(group) <= posts.GROUP for group in hatexplain.groups(list(ALL.values())))
    quick = hatexplain.arms(True)
    assert [arm.r for arm in quick] == [1.0, 30.0] and {arm.posts for arm in quick} == {600}
    # Decay of the recipe, unless the arm chooses its own.
    assert posts._with_decay(Intervention(), ALL["plain"].others[1]).qk.decay == posts.DECAY
    assert posts._with_decay(ALL["decay-ov-10"].on, posts.DECAY).ov.decay == 10.0
    alone = posts._without(ALL["normalized-ov-3"])
    assert (alone.rate, alone.qk, alone.ov) == pytest.approx((5e-5, 1.0, 1 / 3)) and alone.decay == posts.DECAY

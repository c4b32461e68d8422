"""Figure 3 as a command: records and tables, one-sided incentives, stopping and resuming to the bit, wrong input."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

from experiments import fig3_fixed_attention as fig3
from experiments.synthetic import fixed_tables, published
from helpers import trees_equal
from qkdyn import results
from qkdyn.errors import ConflictError, InputError, Interrupted, OutputError
from qkdyn.figures.fig3 import draw_fig3
from qkdyn.tasks.tokens import TokensTask
from qkdyn.train import fixed_campaign
from qkdyn.train.fixed_attention import advance_fixed, fixed_runs, start_fixed
from qkdyn.train.interrupt import Request
from qkdyn.train.store import open_store

# Rate, batches and offset are the published ones, so that published values are drawn: wrong ones, of another task.
TINY = fig3.Config(("collapsed-bias", "factorized-plain"), (1, 2), (0.2, 1.0), epochs=10, batches=250, evaluation=2)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(fig3, "TASK", TokensTask(length=8, batch=8, equal=True, swapped=True))
    monkeypatch.setattr(fixed_campaign, "CHUNK_STEPS", 1000)
    monkeypatch.setitem(fig3.PROTOCOLS, "quick", TINY)
    monkeypatch.setitem(fig3.PROTOCOLS, "as_coded", dataclasses.replace(TINY, trained=("collapsed-bias",)))


def run(folder, *arguments):
    return fig3.main(["--quick", "--out", str(folder), *arguments])


def test_protocols_share_their_arms_and_records_are_taken_up(tiny, tmp_path, monkeypatch, capsys):
    trained, real = [], fig3.train_arm
    monkeypatch.setattr(fig3, "train_arm", lambda arm, *rest: trained.append(arm.name) or real(arm, *rest))
    assert fig3.main(["--protocol", "as_coded", "--out", str(tmp_path)]) == 0 and trained == ["collapsed-bias"]
    assert run(tmp_path) == 0 and trained == list(TINY.trained)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix in (".csv", ".png")}
    assert set(before) == {"summary.csv", "curves.csv", "published.csv", "fig3.png"}
    assert run(tmp_path, "--draw-only") == 0 and len(trained) == 2
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix in (".csv", ".png")}
    assert results.verify(tmp_path) == [] and "factorized-plain" in capsys.readouterr().out
    assert not list((tmp_path / "checkpoints").iterdir())

    records = [json.loads((tmp_path / "arms" / f"{name}.json").read_text()) for name in TINY.trained]
    curves = records[1]["curves"]
    assert [(c["seed"], c["alpha"]) for c in curves] == [(1, 0.2), (1, 1.0), (2, 0.2), (2, 1.0)]
    assert all(len(c["loss"]) == len(c["incentive"]) == 11 and c["loss"][10] < c["loss"][0] for c in curves)
    summary = pd.read_csv(tmp_path / "summary.csv").set_index(["arm", "alpha"])
    np.testing.assert_allclose(
        summary.loc[("factorized-plain", 1.0), "loss"], (curves[1]["loss"][-1] + curves[3]["loss"][-1]) / 2, rtol=1e-5
    )
    theirs = pd.read_csv(tmp_path / "published.csv")
    assert theirs[["quantity", "epoch", "published"]].to_numpy().tolist() == [["loss", 10, 1.380], ["loss", 10, 0.477]]
    curve = pd.read_csv(tmp_path / "curves.csv")
    assert len(curve) == 2 * 2 * 7 and curve["epoch"].max() == 10

    with pytest.raises(ConflictError, match="independent: false there, true here"):
        run(tmp_path, "--independent")
    (tmp_path / "arms/collapsed-bias.json").write_text(json.dumps(records[0] | {"curves": curves[:3]}))
    with pytest.raises(OutputError, match="its curves are not those of an arm"):
        run(tmp_path)
    (tmp_path / "arms/collapsed-bias.json").write_text('{"arm": ')
    with pytest.raises(OutputError, match=r"cannot read .*collapsed-bias\.json"):
        run(tmp_path)


def test_a_signal_and_a_second_start_change_no_bit(tiny, tmp_path):
    arm = dataclasses.replace(TINY.arms()[0], seeds=(3,))
    whole = fig3.train_arm(arm)
    store, request, seen = open_store(tmp_path, {}, every=1e9), Request(), []

    def hear(share, status):
        seen.append(round(share * arm.epochs))
        request.name = "SIGTERM"

    with pytest.raises(Interrupted):
        fig3.train_arm(arm, store, request, hear)
    assert fig3.train_arm(arm, store, None, lambda share, _: seen.append(round(share * arm.epochs))) == whole
    assert seen == [4, 8, 10]

    # The states too, and in one piece.
    runs = fixed_runs([3, 3], [0.2, 1.0])
    starts = start_fixed(runs, factorized=False, bias=True)
    how = {"epochs": 8, "batches": 250, "fresh": 2}
    request = Request()
    ends = []
    for store in (None, open_store(tmp_path / "other", {}, every=0.0)):
        request.name = "SIGINT" if store else None
        if store:
            with pytest.raises(Interrupted):
                fixed_campaign.finish_fixed(starts, runs, fig3.TASK, "k", store=store, request=request, **how)
        ends.append(fixed_campaign.finish_fixed(starts, runs, fig3.TASK, "k", store=store, **how))
    assert trees_equal(*ends) and trees_equal(ends[0], advance_fixed(starts, runs, fig3.TASK, **how))


def test_the_incentive_is_a_derivative_from_the_side_of_attentions(tiny, monkeypatch):
    """With losses that are known functions of alpha: slope at alpha, forwards below 1 and backwards at 1."""

    def losses(states, runs, task, key, *, epochs, offsets, **how):
        alpha = runs.alpha.astype(float)[:, None]
        places = np.concatenate([np.where(alpha + o > 1, alpha - o, alpha + o) for o in offsets], 1)
        return states, np.tile(3 - 2 * places[:, None, :], (1, epochs + 1, 1))

    monkeypatch.setattr(fig3, "finish_fixed", losses)
    record = fig3.train_arm(TINY.arms()[0])
    for curve in record["curves"]:
        np.testing.assert_allclose(curve["incentive"], 2, rtol=1e-3)
        np.testing.assert_allclose(curve["loss"], 3 - 2 * curve["alpha"], rtol=1e-5)


def test_what_is_compared_with_what_was_published():
    arm = {"factorized": False, "bias": True, "alpha": [1.0], "epochs": 500, "batches": 250, "eta": 0.01}
    loss = np.geomspace(4, 0.021552 * 1.01, 501)
    curves = [{"seed": 1, "alpha": 1.0, "loss": (loss * f).tolist(), "incentive": loss.tolist()} for f in (0.9, 1.1)]
    record = {"arm": arm | {"offset": 0.005, "seeds": [1, 2]}, "curves": curves}
    known = fig3.comparable([record])
    row = fixed_tables.summary_frame([record], known).iloc[0]
    np.testing.assert_allclose([row["published"], row["difference"]], [0.021552, 0.01], rtol=1e-6)
    assert row["peak_epoch"] == 0 and row["seeds"] == 2
    assert fig3.comparable([record | {"arm": record["arm"] | {"eta": 0.05}}]) == []
    assert len(known) == len(published.points(500)) == 64
    assert {point[3] for point in published.points(15)} == {10, 11, 15}


def test_protocols_tell_factorization_from_biases():
    arms = {name: [arm.name for arm in config.arms()] for name, config in fig3.PROTOCOLS.items()}
    assert arms["controlled"] == ["collapsed-bias", "collapsed-plain", "factorized-bias", "factorized-plain"]
    assert set(arms["as_written"]) | set(arms["as_coded"]) == set(arms["controlled"])
    arm = fig3.PROTOCOLS["as_coded"].arms()[0]
    assert arm == fig3.PROTOCOLS["controlled"].arms()[0]
    assert (arm.epochs, arm.batches, arm.eta, arm.evaluation) == (500, 250, 0.01, 100) and arm.seeds[0] == 1234
    assert (fig3.TASK.length, fig3.TASK.batch, fig3.TASK.equal, fig3.TASK.swapped) == (64, 128, True, True)


@pytest.mark.parametrize(
    "changed, told",
    [
        ({"epochs": 0}, "epochs must be"),
        ({"eta": -1.0}, "eta must be"),
        ({"offset": 0.5}, "offset must be at most 0.1"),
        ({"seeds": (1, 1)}, "seeds must be distinct"),
        ({"seeds": (-1,)}, "each seed must be"),
        ({"alpha": ()}, "alpha must be distinct"),
        ({"alpha": (1.5,)}, "each alpha must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changed, told):
    with pytest.raises(InputError, match=told):
        dataclasses.replace(TINY, **changed)


def test_nothing_to_draw_is_refused(tmp_path):
    with pytest.raises(OutputError, match="has no finished arm"):
        run(tmp_path / "x", "--draw-only")
    with pytest.raises(InputError, match="at least one finished arm"):
        draw_fig3([], [], tmp_path / "x.png")

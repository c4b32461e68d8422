"""Table 1 on SQuAD as a command: protocols, records of runs, tuning, wrong input; training is made."""

import json
import types
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import made_squad_records as made
from experiments import table1_squad as table1
from experiments.squad import arms, cost, readings, tune
from experiments.squad.recipe import Recipe
from experiments.text.recipe import TextArm
from qkdyn import results
from qkdyn.config import main_guard
from qkdyn.errors import ConflictError, DataError, InputError, Interrupted, OutputError

TINY = replace(Recipe(), vocabulary=400, d_model=8, n_heads=2, d_mlp=8, n_layers=1)


@pytest.fixture
def calls(monkeypatch):
    """A made trainer that draws nothing; what it was asked for."""
    heard = []

    def train_run(recipe, run, data, store, request, update):
        heard.append(run.name)
        update(1.0, "made")
        return made.made_run(run)

    def load(recipe, folder, vectors=None):
        heard.append("load")
        return types.SimpleNamespace(notes=("a note",), sha256=made.SHA)

    monkeypatch.setattr(table1, "train_run", train_run)
    monkeypatch.setattr(table1, "load", load)
    monkeypatch.setattr(cost, "cost_of", lambda recipe, run, data: cost.Cost(3, 100, 1e9, 1e8))
    monkeypatch.setattr(cost, "product_speed", lambda recipe: 1e9)
    monkeypatch.setattr(table1, "draw_squad", lambda arms, title, reading, folder: [])
    monkeypatch.setattr(table1, "draw_squad_tuning", lambda rates, multipliers, path: results.write_text(path, "drawn"))
    small = arms.Protocol(
        TINY,
        (TextArm("base", 3, 5e-4), TextArm("base-qk20", 3, 5e-4, qk=20.0)),
        (1, 2, 3),
        (arms.Comparison("quick", ("base", "base-qk20")),),
    )
    monkeypatch.setitem(table1.PROTOCOLS, "quick", table1.Config(small))
    return heard


def run(folder, *arguments):
    return table1.main(["--quick", "--out", str(folder), *arguments])


def drawn(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".csv", ".png", ".md")}


# The protocols.


def test_the_published_recipes_and_what_they_leave_out():
    full = arms.SCALES["full"]
    coded, written, own = (arms.protocol(name, "full") for name in ("as_coded", "as_written", "controlled"))
    same, fast = coded.arms
    assert (same.rate, same.qk, same.embed, same.decay, same.epochs) == (5e-4, 1, 0.1, 0.05, 70)
    assert (fast.rate, fast.qk, fast.embed, fast.decay, fast.epochs) == (5e-5, 20, 0.1, 0.05, 100)
    assert [(a.rate, a.qk, a.embed, a.epochs) for a in written.arms] == [(5e-5, 1, 1, 70), (5e-5, 20, 1, 70)]
    r = coded.recipe
    assert (r.n_layers, r.d_model, r.n_heads, r.d_mlp, r.n_ctx, r.vocabulary) == (6, 300, 6, 1200, 256, 50_257)
    assert (r.chosen_by, r.selection, r.windows, r.evaluated, r.keep_cue) == ("dev", 300, "centred", "centred", False)
    assert (r.batch, r.micro, r.clip, r.smoothing, r.dropout, r.questions) == (32, 2, 0.5, 0.1, 0.2, 60_000)
    assert coded.recipe == written.recipe and coded.published and written.published and not own.published
    settings = {a.name: (a.rate, a.qk, a.embed) for a in own.arms}
    assert settings == {
        "base": (5e-4, 1, 0.1),
        "slow": (5e-5, 1, 0.1),
        "base-qk20": (5e-4, 20, 0.1),
        "slow-qk20": (5e-5, 20, 0.1),
        "base-qk2": (5e-4, 2, 0.1),
        # All parameters at 5e-5: what the paper says of its baseline.
        "slow-even": (5e-5, 1, 1),
    }
    assert len({a.epochs for a in own.arms}) == 1
    # 1,000 updates of warm-up for both published arms, of 937 an epoch; on a laptop the same part of the baseline's.
    assert round(r.warmup * 937) == 1000
    small = arms.protocol("as_coded").recipe
    assert small.warmup / arms.SCALES["laptop"].epochs == pytest.approx(1000 / 65_590)
    assert (own.recipe.chosen_by, own.recipe.windows, own.recipe.evaluated) == ("articles", "random", "question")
    # The published faster arm: a tenth of the OV rate, twice the QK rate.
    assert fast.rate * fast.ov == pytest.approx(same.rate / 10) and fast.rate * fast.qk == pytest.approx(2 * same.rate)
    assert {name for c in own.comparisons for name in c.arms} == set(settings)
    model = r.model()
    assert (model.d_head, model.tied, model.mask_padding, model.layer_norm) == (50, True, False, "pre")
    laptop = [arms.protocol(name) for name in ("controlled", "as_coded", "as_written")]
    assert [len(p.runs) for p in laptop] == [18, 2, 2] and full.sizes == {"bfloat16": True}


@pytest.mark.parametrize(
    "change, told",
    [
        ({"d_model": 9}, "d_model must be a multiple of n_heads, 2"),
        ({"windows": "middle"}, "windows must be one of"),
        ({"evaluated": "random"}, "evaluated must be one of centred, question"),
        ({"chosen_by": "test"}, "chosen_by must be one of articles, dev"),
        ({"questions": 0}, "questions must be an integer >= 1"),
        ({"most": 51}, "most must be at most 50"),
        ({"share": 0.0}, "share must be"),
        ({"keep_cue": 1}, "keep_cue must be True or False"),
        ({"vectors": "abc"}, "vectors must be a SHA-256"),
        ({"dropout": 1.0}, "dropout must be a share"),
    ],
)
def test_wrong_recipes_are_refused(change, told):
    with pytest.raises(InputError, match=told):
        replace(TINY, **change)


# Records.


def test_runs_leave_records_that_are_taken_up(calls, tmp_path, capsys):
    assert run(tmp_path, "--arms", "base-qk20", "--seeds", "2") == 0 and calls == ["load", "base-qk20-2"]
    error = capsys.readouterr().err
    assert "note: a note" in error and "base-qk20-2: 3 updates" in error and "about 0.1 minutes" in error
    assert run(tmp_path) == 0
    # A seed of every arm before the next seed.
    assert calls[2:] == ["load", "base-1", "base-qk20-1", "base-2", "base-3", "base-qk20-3"]
    before = drawn(tmp_path)
    assert set(before) == {"summary.csv", "table.csv", "costs.csv", "baselines.csv", "verdict.md"}
    assert run(tmp_path) == 0 and run(tmp_path, "--draw-only") == 0 and len(calls) == 8
    assert drawn(tmp_path) == before and results.verify(tmp_path) == []
    assert not list((tmp_path / "checkpoints").iterdir())
    out = capsys.readouterr().out
    assert "uniform attention" in out and "9 training questions (published: 60,000 of v2.0)" in out
    assert run(tmp_path, "--fresh", "--seeds", "3") == 0 and calls[8:] == ["load", "base-3", "base-qk20-3"]


def test_other_seeds_than_the_protocols_have_records_of_their_own(calls, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert table1.main(["--quick", "--seeds", "2"]) == 0 and calls == ["load", "base-2", "base-qk20-2"]
    first = drawn(tmp_path / "results/quick/squad")
    assert table1.main(["--quick", "--seeds", "2", "9"]) == 0
    assert calls[3:] == ["load", "base-2", "base-qk20-2", "base-9", "base-qk20-9"]
    own = tmp_path / "results/quick/squad-2-9"
    assert sorted(path.stem for path in (own / "arms").iterdir()) == ["base-2", "base-9", "base-qk20-2", "base-qk20-9"]
    assert first == drawn(tmp_path / "results/quick/squad")
    # The same run is the same record, whichever folder it is in.
    digests = [json.loads((home / "arms/base-2.json").read_text())["digest"] for home in (own, own.parent / "squad")]
    assert digests[0] == digests[1]
    before = drawn(own)
    (own / "summary.csv").unlink()
    assert table1.main(["--quick", "--seeds", "2", "9", "--draw-only"]) == 0 and drawn(own) == before
    assert main_guard(lambda: table1.main(["--quick", "--seeds", "8", "--draw-only"])) == 2
    told = capsys.readouterr().err
    assert "there is no" in told and "squad-8; leave out --seeds to draw all of" in told


def test_that_more_is_drawn_than_was_asked_for_is_said(calls, tmp_path, capsys):
    run(tmp_path, "--arms", "base", "--seeds", "1")
    assert "Drawn are" not in capsys.readouterr().out
    run(tmp_path, "--arms", "base-qk20", "--seeds", "1")
    assert "Drawn are all finished runs of the folder, also base-1." in capsys.readouterr().out


def test_a_signal_loses_no_finished_run(calls, tmp_path, monkeypatch):
    whole = table1.train_run

    def stopped(recipe, own, *rest):
        if own.name == "base-2":
            raise Interrupted("SIGTERM")
        return whole(recipe, own, *rest)

    monkeypatch.setattr(table1, "train_run", stopped)
    with pytest.raises(Interrupted):
        run(tmp_path)
    assert sorted(path.stem for path in (tmp_path / "arms").iterdir()) == ["base-1", "base-qk20-1"]
    monkeypatch.setattr(table1, "train_run", whole)
    del calls[:]
    assert run(tmp_path) == 0 and calls == ["load", "base-2", "base-qk20-2", "base-3", "base-qk20-3"]


def test_records_of_other_settings_or_data_are_refused(calls, tmp_path, monkeypatch):
    run(tmp_path, "--arms", "base")
    monkeypatch.setattr(
        table1, "load", lambda *a: types.SimpleNamespace(notes=(), sha256={"train-v1.1.json": "b" * 64})
    )
    with pytest.raises(ConflictError, match=r"base-1\.json is the record of other data"):
        run(tmp_path)
    old = table1.PROTOCOLS["quick"].trained
    for changed, told in (
        (replace(old, recipe=replace(old.recipe, share=0.5)), "recipe.share: 0.05 there, 0.5 here"),
        (replace(old, arms=(replace(old.arms[0], epochs=5),)), "epochs: 3 there, 5 here"),
    ):
        monkeypatch.setitem(table1.PROTOCOLS, "quick", table1.Config(changed))
        with pytest.raises(ConflictError, match=told):
            run(tmp_path)
    monkeypatch.setitem(table1.PROTOCOLS, "quick", table1.Config(old))
    path, good = tmp_path / "arms/base-1.json", json.loads((tmp_path / "arms/base-1.json").read_text())
    for change, told in (
        (
            lambda r: r["runs"][0]["epochs"]["training_loss"].pop(),
            "its epochs.training_loss must be a list of 3 numbers",
        ),
        (lambda r: r["runs"][0]["end"]["dev"].pop("mass"), "its end.dev must be an object with mass"),
        (lambda r: r["runs"][0]["best"].update(epoch=4), "its best.epoch must be an integer from 0 to 3"),
        (lambda r: r["runs"][0]["best"]["dev"].update(dtap=[[1.0]]), "its best.dev.dtap must be a table of 4 x 4"),
        (lambda r: r["runs"].pop(), "its runs are not those of an arm"),
        (lambda r: r["data"].pop("dev"), "its data must be an object with dev"),
    ):
        bad = json.loads(json.dumps(good))
        change(bad)
        path.write_text(json.dumps(bad))
        with pytest.raises(OutputError, match=told):
            run(tmp_path, "--draw-only")


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--arms", "qk31"], "each of arms must be one of base, base-qk20, got 'qk31'"),
        (["--seeds", "-9"], "each of seeds must be an integer >= 0, got -9"),
        (["--seeds", "9", "9"], "seeds must be at least one seed, all different"),
        (
            ["--draw-only", "--seeds", "1"],
            "--seeds 1 have none of their own, but are in the protocol's; leave out --seeds",
        ),
        (["--scale", "huge"], "scale must be one of laptop, full"),
        (["--scale", "full"], "scale must be left out beside the quick protocol"),
        (["--tune", "--arms", "base"], "--arms and --seeds must be left out beside --tune"),
        (["--draw-only"], "has no finished arm"),
        (["--vectors", "nowhere.txt"], "cannot read nowhere.txt"),
    ],
)
def test_wrong_input_is_one_line_before_any_work(calls, tmp_path, capsys, arguments, told):
    assert main_guard(lambda: run(tmp_path, *arguments)) == 2
    assert told in capsys.readouterr().err and calls == []


def test_where_results_go(tmp_path):
    def folder(**options):
        return table1.Options(**options).folder.relative_to(tmp_path.cwd()).as_posix()

    assert folder() == "results/squad/controlled" and folder(quick=True) == "results/quick/squad"
    assert folder(protocol="as_coded", scale="full") == "results/squad/as_coded-full"
    # Seeds of the protocol go to its folder; others, in place of them, to their own.
    assert folder(protocol="as_coded", seeds=(1234,)) == "results/squad/as_coded"
    assert folder(protocol="as_coded", seeds=(1235, 1234)) == "results/squad/as_coded-1235-1234"
    assert folder(protocol="as_coded", scale="full", seeds=(1235,)) == "results/squad/as_coded-full"
    assert folder(quick=True, seeds=(1235,)) == "results/quick/squad-1235"
    assert folder(tune=True) == "results/squad/tune" and folder(tune=True, scale="full") == "results/squad/tune-full"


# Tuning.


def test_tuning_chooses_a_rate_and_then_trains_multipliers_at_it(calls, tmp_path, monkeypatch):
    score = {1e-2: None, 1e-3: 0.5, 5e-4: 0.7, 1e-4: 0.6, 5e-5: 0.4, 1e-5: 0.3}
    whole = table1.train_run

    def train_run(recipe, own, *rest):
        record = whole(recipe, own, *rest)
        value = score[own.arm.rate] and score[own.arm.rate] + 0.01 * (own.arm.qk == 10)
        record["runs"][0]["best"]["selection"]["f1"] = value
        record["runs"][0]["diverged_at"] = 2 if value is None else None
        return record

    monkeypatch.setattr(table1, "train_run", train_run)
    assert run(tmp_path, "--tune") == 0
    assert calls[1:7] == [f"rate-{rate:g}-1" for rate in arms.RATES]
    assert calls[7:] == [f"rate-0.0005-qk{r}-1" for r in (5, 10, 20, 30, 100)]
    frame = pd.read_csv(tmp_path / "tuned.csv").set_index("arm")
    assert frame.index[frame["chosen"]].tolist() == ["rate-0.0005", "rate-0.0005-qk10"]
    assert frame.index[frame["published"]].tolist() == ["rate-0.0005"] and frame.loc["rate-0.01", "diverged"] == 1
    said = (tmp_path / "verdict.md").read_text()
    assert "is 0.0005 (published 0.0005, in the faster arm 5e-05)" in said and "the best is x10 (published x20)" in said
    before = drawn(tmp_path)
    assert run(tmp_path, "--tune", "--draw-only") == 0 and drawn(tmp_path) == before
    assert run(tmp_path, "--tune") == 0 and len(calls) == 12 and results.verify(tmp_path) == []


def test_where_nothing_answers_the_loss_chooses():
    rates, _ = arms.tuning(arms.protocol("quick"))
    records = readings.by_arm(made.made(rates), rates)
    for record in records:
        (one,) = record["runs"]
        # The best F1, all of it below any rule's, is at another rate than the least loss.
        one["best"]["selection"] |= {
            "f1": 0.02 + record["arm"]["rate"],
            "loss": abs(np.log(record["arm"]["rate"] / 1e-4)),
        }
    assert tune.measure_of(records) == "loss" and tune.chosen_rate(records) == 1e-4
    assert "so that the loss chooses" in tune.tuning_verdict(records, "quick")
    records[0]["runs"][0]["best"]["selection"]["f1"] = 0.9
    assert tune.measure_of(records) == "f1" and tune.chosen_rate(records) == records[0]["arm"]["rate"]


def test_data_that_cannot_be_used_are_refused_before_anything_is_made(calls, tmp_path, monkeypatch):
    def load(*arguments, **options):
        raise DataError("train.json leaves 18 questions to train on, and an update needs 33")

    monkeypatch.setattr(table1, "load", load)
    with pytest.raises(DataError, match="an update needs 33"):
        run(tmp_path)
    assert not (tmp_path / "arms").exists() and not (tmp_path / "checkpoints").exists()

"""Table 1 on HateXplain as a command: protocols, records of groups, tuning, wrong input."""

import json
import types
from dataclasses import replace

import pandas as pd
import pytest

import made_records
from experiments import table1_hatexplain as table1
from experiments.text import arms, command, tune
from experiments.text.recipe import Recipe, TextArm
from qkdyn import results
from qkdyn.config import main_guard
from qkdyn.errors import ConflictError, Interrupted, OutputError

SEEDS = (1, 2, 3)


@pytest.fixture
def calls(monkeypatch):
    """A made trainer that draws nothing; what it was asked for."""
    heard = []
    made_records.instead(monkeypatch, heard)
    monkeypatch.setattr(
        command, "draw_tuning", lambda rates, multipliers, path, called, by, chosen: results.write_text(path, by)
    )
    small = replace(Recipe(), seeds=SEEDS)
    groups = ((TextArm("baseline", 3), TextArm("qk30", 3, qk=30.0)), (TextArm("embed30", 4, embed=30.0),))
    compared = (arms.Comparison("quick", ("baseline", "qk30", "embed30")),)
    monkeypatch.setitem(table1.PROTOCOLS, "quick", table1.Config(arms.Protocol(small, groups, compared, limit=9)))
    return heard


def run(folder, *arguments):
    return table1.main(["--quick", "--out", str(folder), *arguments])


def drawn(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".csv", ".png", ".md")}


# The protocols.


def test_as_coded_has_every_confound_and_as_written_none_but_the_rate():
    coded, written = arms.as_coded(), arms.as_written()
    assert [arm.name for arm in coded.arms] == ["baseline", "faster"]
    baseline, faster = coded.arms
    assert baseline == written.arms[0] == TextArm("baseline", 30)
    assert (faster.qk, faster.embed, faster.mlp, faster.decay, faster.stale) == (30, 30, 0, 1e-3, True)
    assert (faster.ov, faster.head, faster.rest, faster.rate, faster.epochs) == (1, 1, 1, 5e-5, 30)
    assert written.arms[1] == TextArm("qk30", 30, qk=30.0)
    assert coded.recipe.apart == ("W_pos", "b_Q", "b_K") and written.recipe.apart == ()
    assert replace(coded.recipe, apart=()) == written.recipe
    recipe = coded.recipe
    assert (recipe.vocabulary, recipe.readout, recipe.measured, recipe.agreement) == (
        "wordpiece",
        "first_pad",
        "last_slot",
        "mean3",
    )
    assert not (recipe.query_token or recipe.mask_padding or recipe.by_length) and recipe.residual == 1
    assert (recipe.n_ctx, recipe.positions, recipe.share, recipe.share_of, recipe.order) == (
        128,
        256,
        0.05,
        "slots",
        "rank",
    )


def test_controlled_takes_apart_what_was_changed_together():
    protocol = arms.controlled()
    named = {arm.name: arm for arm in protocol.arms}
    assert len(named) == len(protocol.arms) == 16 + 5 + 5 and protocol.recipe == Recipe()
    crossed = [named[name] for name in protocol.comparisons[0].arms]
    settings = {(arm.qk, arm.embed, arm.mlp, arm.decay) for arm in crossed}
    assert len(settings) == 16 and {s[0] for s in settings} == {s[1] for s in settings} == {1, 30}
    assert {s[2] for s in settings} == {0, 1} and {s[3] for s in settings} == {1e-4, 1e-3}
    assert {(arm.epochs, arm.rate, arm.stale, arm.ov) for arm in crossed} == {(10, 5e-5, False, 1)}
    combination = named["qk30+embed30+frozen+decay"]
    assert (combination.qk, combination.embed, combination.mlp, combination.decay) == (30, 30, 0, 1e-3)
    assert [named[name].qk for name in protocol.comparisons[1].arms[:5]] == [1, 5, 10, 30, 100]
    assert named["ov30"].ov == 30 and named["all30"] == TextArm("all30", 10, rate=30 * 5e-5)
    for name in protocol.comparisons[2].arms:
        assert named[name] == replace(named[name.removesuffix("-long")], name=name, epochs=30)
    assert all(len(group) <= 8 and len({arm.epochs for arm in group}) == 1 for group in protocol.groups)
    known = {name for comparison in protocol.comparisons for name in comparison.arms}
    assert known == set(named) and all("baseline" in comparison.arms[0] for comparison in protocol.comparisons)


def test_deeper_models_are_those_of_the_paper():
    two, four = (arms.deepened(arms.as_coded(), layers).recipe for layers in (2, 4))
    assert (two.n_layers, two.d_model, two.d_head, two.d_mlp, two.n_ctx, two.positions) == (2, 32, 8, 128, 96, 96)
    assert four == replace(arms.as_coded().recipe, n_layers=4) and two.residual == 1
    faster = arms.deepened(arms.as_coded(), 4).arms[1]
    assert (faster.mlp, faster.stale, faster.embed) == (1, False, 30)
    own = arms.deepened(arms.controlled(), 2).recipe
    assert (own.positions, own.residual, own.n_layers) == (97, 0.5, 2)
    assert arms.deepened(arms.controlled(), 1) == arms.controlled()


# Records.


def test_groups_leave_records_that_are_taken_up(calls, tmp_path, capsys):
    assert run(tmp_path, "--arms", "qk30") == 0 and calls == ["load", ["qk30"]]
    assert run(tmp_path) == 0 and calls[2:] == ["load", ["baseline"], ["embed30"]]
    before = drawn(tmp_path)
    assert set(before) == {"summary.csv", "table.csv", "costs.csv", "verdict.md"}
    assert run(tmp_path) == 0 and run(tmp_path, "--draw-only") == 0 and len(calls) == 5
    assert drawn(tmp_path) == before and results.verify(tmp_path) == []
    assert not list((tmp_path / "checkpoints").iterdir())
    out = capsys.readouterr().out
    assert "uniform attention" in out and "**HateXplain, quick**" in out
    record = json.loads((tmp_path / "arms/qk30.json").read_text())
    assert record["recipe"]["seeds"] == list(SEEDS) and record["limit"] == 9 and record["wall_seconds"] >= 0


def test_other_seeds_are_trained_in_place_of_the_protocols(calls, tmp_path):
    assert run(tmp_path, "--arms", "qk30", "--seeds", "7") == 0
    record = json.loads((tmp_path / "arms/qk30.json").read_text())
    assert record["recipe"]["seeds"] == [7] and [own["seed"] for own in record["runs"]] == [7]
    with pytest.raises(ConflictError, match="seeds"):
        run(tmp_path, "--arms", "qk30")


def test_a_signal_between_groups_loses_no_finished_arm_and_fresh_forgets(calls, tmp_path, monkeypatch):
    whole = command.train_group

    def stopped(task, recipe, group, *rest):
        if group[0].name == "embed30":
            raise Interrupted("SIGTERM")
        return whole(task, recipe, group, *rest)

    monkeypatch.setattr(command, "train_group", stopped)
    with pytest.raises(Interrupted):
        run(tmp_path)
    assert sorted(path.stem for path in (tmp_path / "arms").iterdir()) == ["baseline", "qk30"]
    # Both as a group of one and of two, an interrupted arm leaves checkpoints, which --fresh forgets with the record.
    for home, names in (("embed30", ["embed30"]), ("x-1", ["qk30", "embed30"]), ("y", ["qk30"])):
        (tmp_path / "checkpoints" / home).mkdir(exist_ok=True)
        (tmp_path / "checkpoints" / home / "job.json").write_text(json.dumps({"arms": dict.fromkeys(names)}))
    with pytest.raises(Interrupted):
        run(tmp_path, "--fresh", "--arms", "embed30")
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"embed30", "y"}
    monkeypatch.setattr(command, "train_group", whole)
    del calls[:]
    assert run(tmp_path) == 0 and calls == ["load", ["embed30"]]


def test_records_of_other_settings_or_data_are_refused(calls, tmp_path, monkeypatch):
    run(tmp_path, "--arms", "baseline")
    made_records.load_by(monkeypatch, lambda *a, **k: types.SimpleNamespace(notes=(), sha256={"dataset.json": "b"}))
    with pytest.raises(ConflictError, match=r"baseline\.json is the record of other data"):
        run(tmp_path)
    old = table1.PROTOCOLS["quick"].trained
    for changed, told in (
        (replace(old, recipe=replace(old.recipe, share=0.5)), "recipe.share: 0.2 there, 0.5 here"),
        (replace(old, groups=((replace(old.arms[0], epochs=5),),)), "epochs: 3 there, 5 here"),
        (replace(old, limit=8), "limit: 9 there, 8 here"),
    ):
        monkeypatch.setitem(table1.PROTOCOLS, "quick", table1.Config(changed))
        with pytest.raises(ConflictError, match=told):
            run(tmp_path)
    monkeypatch.setitem(table1.PROTOCOLS, "quick", table1.Config(old))
    path = tmp_path / "arms/baseline.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"runs": [{"seed": 1}] * 3}))
    with pytest.raises(OutputError, match="its runs are not those of an arm"):
        run(tmp_path)


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--arms", "qk31"], "each of arms must be one of baseline, qk30, embed30, got 'qk31'"),
        (["--seeds", "1", "1"], "seeds must be at least one seed, all different"),
        (["--layers", "3"], "layers must be one of 1, 2, 4"),
        (["--tune", "--arms", "qk30"], "--arms must be left out beside --tune"),
        (["--early"], "--early must be given beside --tune"),
        (["--draw-only"], "has no finished arm"),
    ],
)
def test_wrong_input_is_one_line_before_any_work(calls, tmp_path, capsys, arguments, told):
    assert main_guard(lambda: run(tmp_path, *arguments)) == 2
    assert told in capsys.readouterr().err and calls == []


def test_missing_data_name_every_place_that_was_looked_at(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("QKDYN_DATA", str(tmp_path / "there"))
    monkeypatch.chdir(tmp_path)
    assert main_guard(lambda: run(tmp_path / "out", "--data", str(tmp_path / "option"))) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1 and "option" in error
    assert main_guard(lambda: run(tmp_path / "out")) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1 and "there" in error and "data/hatexplain" in error


# Tuning.


def tuned(calls, monkeypatch, accuracy, reading="end"):
    """Make the trainer give each arm the validation accuracy that `accuracy` says, None for a run that diverges."""
    whole = command.train_group

    def train_group(task, recipe, group, *rest):
        found = whole(task, recipe, group, *rest)
        for arm in group:
            for own in found[arm.name]["runs"]:
                value = accuracy(arm)
                own[reading]["validation"] = own[reading]["validation"] | {"accuracy": value}
                own["diverged_at"] = 2 if value is None else None
        return found

    monkeypatch.setattr(command, "train_group", train_group)


def test_tuning_chooses_a_rate_and_then_trains_multipliers_at_it(calls, tmp_path, monkeypatch, capsys):
    score = {1e-2: None, 1e-3: 0.5, 1e-4: 0.7, 5e-5: 0.6, 1e-5: 0.4, 1e-6: 0.3}
    tuned(calls, monkeypatch, lambda arm: score[arm.rate] and score[arm.rate] + 0.001 * (arm.qk == 10))
    assert run(tmp_path, "--tune") == 0
    assert [len(group) for group in calls if group != "load"] == [6, 5]
    assert calls[-1] == [f"rate-0.0001-qk{r}" for r in (5, 10, 20, 30, 100)]
    frame = pd.read_csv(tmp_path / "tuned.csv").set_index("arm")
    assert frame.index[frame["chosen"]].tolist() == ["rate-0.0001", "rate-0.0001-qk10"]
    assert frame.index[frame["published"]].tolist() == ["rate-5e-05"] and frame.loc["rate-0.01", "diverged"] == 3
    said = (tmp_path / "verdict.md").read_text()
    assert "after the last epoch is 0.0001 (published 5e-05)" in said and "the best is x10 (published x30)" in said
    assert "asks for a faster QK" in said and said in capsys.readouterr().out
    before = drawn(tmp_path)
    assert set(before) == {"tuned.csv", "verdict.md", "tuned.png"}
    assert run(tmp_path, "--tune", "--draw-only") == 0 and drawn(tmp_path) == before and len(calls) == 3
    assert run(tmp_path, "--tune") == 0 and len(calls) == 3 and results.verify(tmp_path) == []


def test_tuning_by_the_best_epoch_is_not_that_by_the_last(calls, tmp_path, monkeypatch):
    score = {1e-2: 0.5, 1e-3: 0.9, 1e-4: 0.7, 5e-5: 0.6, 1e-5: 0.4, 1e-6: 0.3}
    tuned(calls, monkeypatch, lambda arm: score[arm.rate] + 0.001 * (arm.qk == 20), "best")
    assert run(tmp_path, "--tune", "--early") == 0
    assert calls[-1] == [f"rate-0.001-qk{r}" for r in (5, 10, 20, 30, 100)]
    frame = pd.read_csv(tmp_path / "tuned.csv").set_index("arm")
    assert frame.index[frame["chosen"]].tolist() == ["rate-0.001", "rate-0.001-qk20"]
    said = (tmp_path / "verdict.md").read_text()
    assert "at each run's best epoch is 0.001 (published 5e-05); after the last epoch it would be" in said
    assert "the best is x20 (published x30); its validation accuracy is +0.0010" in said
    assert run(tmp_path, "--tune", "--early", "--draw-only") == 0


def test_tuning_where_nothing_can_be_chosen_says_so(calls, tmp_path, monkeypatch):
    tuned(calls, monkeypatch, lambda arm: None)
    assert run(tmp_path, "--tune") == 0
    assert "every base rate has a run that diverged" in (tmp_path / "verdict.md").read_text()
    assert tune.best_of([]) is None and tune.sharpest_of([]) is None


def test_the_sharpest_arm_is_one_of_those_that_did_not_diverge():
    protocol = replace(arms.as_written(), recipe=replace(arms.as_written().recipe, seeds=SEEDS))
    first, other = made_records.made(protocol)
    assert tune.sharpest_of([first, other]) is first
    # Its numbers are those of an earlier time, and look like any other.
    first["runs"][1]["diverged_at"] = 3
    assert tune.sharpest_of([first, other]) is other and tune.best_of([first]) is None


def test_where_results_go(tmp_path):
    def folder(**options):
        return table1.Options(**options).folder.relative_to(tmp_path.cwd()).as_posix()

    assert folder() == "results/hatexplain/controlled" and folder(quick=True) == "results/quick/hatexplain"
    assert folder(protocol="as_coded", layers=2) == "results/hatexplain/as_coded-2layers"
    assert (
        folder(tune=True) == "results/hatexplain/tune"
        and folder(tune=True, early=True) == "results/hatexplain/tune-early"
        and folder(quick=True, tune=True) == "results/quick/hatexplain-tune"
    )
    assert folder(protocol="as_written", tune=True) == "results/hatexplain/as_written-tune"
    assert folder(protocol="as_coded", layers=4, seeds=(3, 1)) == "results/hatexplain/as_coded-4layers-3-1"

"""Faults of the text half: wrong recipes and arms, edited records, --fresh that must lose nothing."""

import copy
import json
import shutil
from dataclasses import replace

import pytest

import made_records
from experiments import fig2_parameterizations as fig2
from experiments import fig3_fixed_attention as fig3
from experiments import table1_hatexplain as table1
from experiments.text import arms
from experiments.text.recipe import Recipe, TextArm
from experiments.text.schema import check_record
from qkdyn import results
from qkdyn.config import main_guard
from qkdyn.errors import ConflictError, DataError, InputError, OutputError, OutputWarning

SMALL = replace(Recipe(), seeds=(1, 2))
ARMS = (TextArm("baseline", 3), TextArm("qk30", 3, qk=30.0))


def replaced(monkeypatch):
    """A made trainer, and a verdict alone for all tables and figures; what the trainer was asked for."""
    heard = []
    made_records.instead(monkeypatch, heard)
    monkeypatch.setattr(table1.tables, "frames", lambda records, protocol: {})
    monkeypatch.setattr(table1.tables, "show", lambda *rest: None)
    monkeypatch.setattr(table1, "verdict", lambda records, protocol, name: f"{len(records)} arms")
    protocol = arms.Protocol(SMALL, (ARMS,), (arms.Comparison("quick", ("baseline", "qk30")),), limit=9)
    monkeypatch.setitem(table1.PROTOCOLS, "quick", table1.Config(protocol))
    return heard


@pytest.fixture
def calls(monkeypatch):
    return replaced(monkeypatch)


def run(folder, *arguments):
    return table1.main(["--quick", "--out", str(folder), *arguments])


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


# Recipes, arms and protocols.


@pytest.mark.parametrize(
    "changed, told",
    [
        ({"seeds": (1, 2.0)}, "each of seeds must be an integer >= 0, got 2.0"),
        ({"seeds": (True,)}, "each of seeds must be an integer"),
        ({"seeds": (-1,)}, "each of seeds must be an integer >= 0"),
        ({"seeds": (2**32,)}, "each of seeds must be an integer from 0 to 4294967295"),
        ({"seeds": [1, 2]}, "seeds must be a tuple"),
        ({"seeds": 7}, "seeds must be a tuple"),
        ({"seeds": (3, 3)}, "seeds must be at least one seed, all different"),
        ({"d_mlp": 0}, "d_mlp must be an integer >= 1, got 0; for a model without MLP write None"),
        ({"d_mlp": 2.5}, "d_mlp must be an integer"),
        ({"apart": ("W_X",)}, "each of apart must be one of W_pos, .*, got 'W_X'"),
        ({"apart": ("W_E",)}, "each of apart must be one of"),
        ({"apart": "W_Q"}, "apart must be a tuple"),
        ({"apart": ("W_in",), "d_mlp": None}, "each of apart must be one of"),
        ({"undecayed": "qk"}, "undecayed must be a tuple"),
        ({"undecayed": ("QK",)}, "each of undecayed must be one of qk, ov"),
        ({"causal": 1}, "causal must be True or False, got 1"),
        ({"by_length": "no"}, "by_length must be True or False"),
        ({"batch": 10**6 + 1}, "batch must be at most 1,000,000 posts"),
    ],
)
def test_a_wrong_recipe_is_refused(changed, told):
    with pytest.raises(InputError, match=told):
        replace(Recipe(), **changed)


def test_what_a_recipe_may_be():
    every = ("W_pos", "W_Q", "W_K", "b_Q", "b_K", "W_V", "W_O", "b_V", "b_O", "W_in", "b_in", "W_out", "b_out", "W_U")
    assert replace(Recipe(), apart=every, d_mlp=1, seeds=(0, 2**32 - 1)).apart == every
    assert replace(Recipe(), d_mlp=None, undecayed=("qk", "rest")).d_mlp is None


@pytest.mark.parametrize(
    "changed, told",
    [
        ({"name": ""}, "name must be a word"),
        ({"name": "../x"}, "name must be a word"),
        ({"name": ".x"}, "name must be a word"),
        ({"name": "a b"}, "name must be a word"),
        ({"name": "a\n"}, "name must be a word"),
        ({"name": "a" * 101}, "name must be a word"),
        ({"name": 3}, "name must be a word"),
        ({"stale": 1}, "stale must be True or False, got 1"),
        ({"epochs": 10_001}, "epochs must be at most 10,000"),
        ({"rate": 0.5, "qk": 30.0, "decay": 0.1}, "arm x, group qk: .* must be below 1, got '0.5 x 30 x 0.1'"),
        ({"rate": 1.0, "decay": 1.0}, "arm x, group qk: .* got '1 x 1 x 1'"),
        ({"rate": 1e-3, "rest": 1e4, "decay": 0.1}, "arm x, group rest: "),
    ],
)
def test_a_wrong_arm_is_refused(changed, told):
    with pytest.raises(InputError, match=told):
        TextArm(**{"name": "x"} | changed)


def test_a_group_of_different_epochs_and_equal_names_are_refused():
    with pytest.raises(InputError, match=r"arms of a group must be .*, got \{'a': 3, 'b': 4\}"):
        arms.Protocol(SMALL, ((TextArm("a", 3), TextArm("b", 4)),), ())
    with pytest.raises(InputError, match="arms of a group must be at least one"):
        arms.Protocol(SMALL, ((),), ())
    with pytest.raises(InputError, match="names of arms must be all different"):
        arms.Protocol(SMALL, ((TextArm("a"),), (TextArm("a"),)), ())
    with pytest.raises(InputError, match="limit must be an integer >= 1"):
        arms.Protocol(SMALL, (ARMS,), (), limit=0)


# --fresh loses nothing before everything else is known to be right.


@pytest.mark.parametrize("module", [table1, fig2, fig3])
@pytest.mark.parametrize("value", ["-1", "nan", "inf"])
def test_a_wrong_option_beside_fresh_is_refused_at_once(module, value, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        module.main(["--quick", "--out", str(tmp_path / "x"), "--fresh", "--checkpoint-seconds", value])
    assert "checkpoint_seconds must be a finite number" in capsys.readouterr().err and not (tmp_path / "x").exists()


def test_fresh_forgets_nothing_where_there_are_no_data(calls, tmp_path, monkeypatch):
    run(tmp_path)
    before = content(tmp_path)

    def gone(*rest, **named):
        raise DataError("the files are gone")

    made_records.load_by(monkeypatch, gone)
    with pytest.raises(DataError, match="gone"):
        run(tmp_path, "--fresh")
    # Nor where the record that stays is of other data.
    other = made_records.trainer([]).load(None, None)
    other.sha256 = {"dataset.json": "b" * 64}
    made_records.load_by(monkeypatch, lambda *rest, **named: other)
    with pytest.raises(ConflictError, match=r"baseline\.json is the record of other data"):
        run(tmp_path, "--fresh", "--arms", "qk30")
    assert content(tmp_path) == before and results.verify(tmp_path) == []


def test_fresh_takes_the_place_of_records_of_other_data_and_of_damaged_ones(calls, tmp_path, monkeypatch):
    run(tmp_path)
    (tmp_path / "arms/qk30.json").write_text("{")
    other = made_records.trainer([]).load(None, None)
    other.sha256 = {"dataset.json": "b" * 64}
    made_records.load_by(monkeypatch, lambda *rest, **named: other)
    assert run(tmp_path, "--fresh") == 0 and calls[2:] == [["baseline", "qk30"]]


# What is only drawn.


def test_drawing_makes_no_folder_and_takes_no_data(tmp_path, capsys):
    for module in (table1, fig2, fig3):
        with pytest.raises(OutputError, match="has no finished arm"):
            module.main(["--quick", "--draw-only", "--out", str(tmp_path / "x/y")])
        with pytest.raises(SystemExit, match="2"):
            module.main(["--quick", "--draw-only", "--fresh", "--out", str(tmp_path / "x/y")])
        assert "--fresh trains anew" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        run(tmp_path / "x/y", "--draw-only", "--data", str(tmp_path))
    assert "takes no --data" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_what_encoding_takes_away_is_a_note_for_each_split(calls, tmp_path, capsys):
    run(tmp_path)
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note:")]
    assert notes == [
        "note: train: of its posts 2 cut to the length of the model",
        "note: validation: of its posts 3 left without a token by the cleaning",
        "note: test: of its posts 1 cut to the length of the model",
    ]


# Records.


@pytest.fixture(scope="module")
def record():
    return {"wall_seconds": 1.0} | made_records.made_record(SMALL, ARMS[0])


def put(path, value):
    """A change of a record: the value at a path of keys; what is called is given the value that was there."""

    def change(record):
        record = copy.deepcopy(record)
        place = record
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value(place[path[-1]]) if callable(value) else value
        return record

    return change


def without(*path):
    """A change that takes the last key of a path away."""
    return put(path[:-1], lambda held: {name: part for name, part in held.items() if name != path[-1]})


RUN, END, BEST = ("runs", 0), ("runs", 1, "end", "test"), ("runs", 0, "best", "validation")
DAMAGES = {
    "data-none": put(["data"], None),
    "data-empty": put(["data"], {}),
    "data-missing": lambda record: {name: part for name, part in record.items() if name != "data"},
    "no-sha": put(["data", "sha256"], {}),
    "sha": put(["data", "sha256", "dataset.json"], "abc"),
    "count": put(["data", "train"], 0),
    "cut": put(["data", "cut"], 3),
    "empty": put(["data", "empty", "test"], -1),
    "vocabulary": put(["data", "vocabulary"], True),
    "tokens": put(["tokens_per_second"], "fast"),
    "notes": put(["notes"], [1]),
    "sha-list": put(["data", "sha256"], ["a" * 64]),
    "thresholds": put(["thresholds"], lambda levels: levels[::-1]),
    "far": put(["thresholds", 20], 2),
    "shares": put(["shares"], None),
    "runs": put(["runs"], lambda runs: runs[:1]),
    "run": put(RUN, 5),
    "seed": put([*RUN, "seed"], 9),
    "diverged": put([*RUN, "diverged_at"], 1.5),
    "late": put([*RUN, "diverged_at"], 4),
    "no-loss": without(*RUN, "epochs", "training_loss"),
    "short": put([*RUN, "epochs", "training_loss"], lambda column: column[:2]),
    "column": put([*RUN, "epochs", "test", "mrta"], lambda column: [*column, 0.5]),
    "text": put([*RUN, "epochs", "test", "mrta", 1], "0.5"),
    "bool": put([*RUN, "epochs", "validation", "accuracy", 0], True),
    "infinite": put([*RUN, "epochs", "validation", "loss", 0], float("inf")),
    "nan": put([*RUN, "epochs", "validation", "loss", 0], float("nan")),
    "no-split": without("runs", 1, "end", "train"),
    "no-number": without(*END, "accuracy"),
    "object": put([*END, "accuracy"], {}),
    "huge": put([*END, "accuracy"], 10**400),
    "no-column": without(*RUN, "epochs", "test", "mrta"),
    "map": put([*END, "dtap"], lambda rows: [*rows, [1, 2, 3]]),
    "row": put([*END, "dtap_all", 2], [1, 2]),
    "curve": put([*END, "ac_curve"], lambda curve: curve[1:]),
    "faithful": put([*END, "sufficiency_curve"], lambda curve: curve[1:]),
    "uniform": put([*BEST, "uniform_acmc_curve"], 4),
    "heads": put([*END, "heads"], []),
    "head": put([*END, "heads", 1], 3),
    "head-text": put([*END, "heads", 1, "mrta"], "0.5"),
    "no-auprc": without(*END, "heads", 1, "auprc"),
    "bins": put([*END, "heads", 0, "bins"], [1]),
    "best": put([*RUN, "best"], None),
    "epoch": put([*RUN, "best", "epoch"], 0),
    "best-split": put([*RUN, "best", "test"], [1]),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_of_a_record_is_found(record, name):
    check_record(record, ARMS[0], SMALL)
    with pytest.raises(ValueError, match="its [a-z]"):
        check_record(DAMAGES[name](record), ARMS[0], SMALL)


def test_nulls_of_a_diverged_run_are_no_damage(record):
    gone = copy.deepcopy(record)
    own = gone["runs"][0]
    own["diverged_at"] = 2
    for split in ("validation", "test"):
        own["epochs"][split] = {name: [None] * 3 for name in own["epochs"][split]}
    own["end"]["test"] |= {"accuracy": None, "dtap": [[None] * 3] * 3, "ac_curve": [None] * 21}
    own["end"]["test"]["heads"] = [{"mrta": None, "entropy": None, "auprc": None, "bins": [None] * 3}]
    gone["tokens_per_second"] = None
    del gone["data"]["empty"]
    check_record(gone, ARMS[0], SMALL)


TEXTS = {
    "deep": lambda text: text[:-1] + ', "more": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "long": lambda text: text[:-1] + ', "more": ' + "1" * 5000 + "}",
    "cut": lambda text: text[: len(text) // 2],
    "other": lambda text: "[]",
    "null": lambda text: "null",
    "bytes": lambda text: b"\xff\xfe",
    "seconds": lambda text: json.dumps(json.loads(text) | {"wall_seconds": None}),
    "no-data": lambda text: json.dumps(json.loads(text) | {"data": {}}),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder with two finished arms."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("trained")
        replaced(patch)
        run(folder)
    return folder


@pytest.mark.parametrize("name", TEXTS)
def test_a_damaged_file_is_one_line_and_everything_stays(calls, trained, tmp_path, capsys, name):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "arms/baseline.json"
    damaged = TEXTS[name](path.read_text().strip())
    path.write_bytes(damaged if isinstance(damaged, bytes) else damaged.encode())
    before = content(tmp_path)
    capsys.readouterr()
    for option in ([], ["--draw-only"], ["--fresh", "--arms", "qk30"]):
        assert main_guard(lambda option=option: run(tmp_path, *option)) == 2
        error = capsys.readouterr().err.strip()
        assert len(error.splitlines()) == 1 and len(error) < 1000 and f"cannot read {path} (" in error
    assert content(tmp_path) == before and calls == []


def test_an_edited_record_is_warned_of_when_redrawing_and_when_going_on(calls, tmp_path):
    run(tmp_path)
    path = tmp_path / "arms/qk30.json"
    edited = json.loads(path.read_text())
    edited["runs"][0]["end"]["test"]["accuracy"] = 0.999
    for option in ([], ["--draw-only"]):
        path.write_text(json.dumps(edited))
        with pytest.warns(OutputWarning, match=r"qk30\.json is not the file that run\.json vouches for") as told:
            assert run(tmp_path, *option) == 0
        assert len(told) == 1
        # What was drawn from it is vouched for, as it is; the next edit is told again.
        assert results.verify(tmp_path) == []
        edited["runs"][0]["end"]["test"]["accuracy"] = 0.998


def test_tables_that_fail_leave_what_was_there(calls, tmp_path, monkeypatch):
    run(tmp_path)
    before = content(tmp_path)

    def fail(*rest):
        raise OutputError("no verdict")

    monkeypatch.setattr(table1, "verdict", fail)
    with pytest.raises(OutputError, match="no verdict"):
        run(tmp_path, "--draw-only")
    assert content(tmp_path) == before

"""Seeds that were trained apart, put together by --join: as if trained at once, or refused before anything is written."""

import functools
import json
import shutil
from dataclasses import replace

import pandas as pd
import pytest

import made_records
from experiments import table1_hatexplain as table1
from experiments import table1_sva
from experiments.text import arms, command, sva_arms
from experiments.text.recipe import Recipe, TextArm
from qkdyn import results
from qkdyn.config import main_guard
from qkdyn.errors import ConflictError, OutputError, OutputWarning
from qkdyn.train.lock import lock

SMALL = replace(Recipe(), seeds=(1, 2, 3))
ARMS = (TextArm("baseline", 3), TextArm("qk30", 3, qk=30.0))
JOIN = ("--join", "a", "b")
# What a joined record says otherwise than one that was trained at once.
OTHER = ("wall_seconds", "tokens_per_second", "source", "joined")


def replaced(patch, *, tables=False):
    """A made trainer, and unless with `tables` a verdict alone for all of them; what the trainer was asked for."""
    heard = []
    made_records.instead(patch, heard)
    if not tables:
        patch.setattr(table1.tables, "frames", lambda records, protocol: {})
        patch.setattr(table1.tables, "show", lambda *rest: None)
        patch.setattr(table1, "verdict", lambda records, protocol, name: f"{len(records)} arms")
    protocol = arms.Protocol(SMALL, (ARMS,), (arms.Comparison("quick", ("baseline", "qk30")),), limit=9)
    patch.setitem(table1.PROTOCOLS, "quick", table1.Config(protocol))
    return heard


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Seed 1 in folder a, seeds 3 and 2 in folder b; each as a run of its own left it."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("parts")
        replaced(patch)
        run(folder / "a", "--seeds", "1")
        run(folder / "b", "--seeds", "3", "2")
        for number, name in enumerate(("a", "b", "a", "b")):
            path = folder / name / "arms" / f"{ARMS[number // 2].name}.json"
            told = {"wall_seconds": 10.5 + number, "source": {"commit": name * 40, "dirty": False}}
            path.write_text(json.dumps(json.loads(path.read_text()) | told))
            results.retract(folder / name)
    return folder


@pytest.fixture
def copied(parts, tmp_path, monkeypatch):
    """A copy of the parts, to work in."""
    shutil.copytree(parts, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def calls(copied, monkeypatch):
    """What a trainer is asked for, beside the parts."""
    return replaced(monkeypatch)


def run(folder, *arguments):
    return table1.main(["--quick", "--out", str(folder), *arguments])


def record(path, name="qk30"):
    return json.loads((path / f"arms/{name}.json").read_text())


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def edit(path, change):
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def without(found):
    return {name: value for name, value in found.items() if name not in OTHER}


# As if trained at once.


@pytest.mark.parametrize("seeds", [(), ("3", "1", "2")])
def test_joined_is_as_trained_at_once(copied, tmp_path, monkeypatch, seeds):
    asked = ("--seeds", *seeds) if seeds else ()
    replaced(monkeypatch, tables=True)
    assert run("c", *asked, *JOIN) == 0
    run("d", *asked)
    for number, arm in enumerate(ARMS):
        ours, theirs = record(tmp_path / "c", arm.name), record(tmp_path / "d", arm.name)
        assert without(ours) == without(theirs)
        assert [own["seed"] for own in ours["runs"]] == ([3, 1, 2] if seeds else [1, 2, 3])
        assert ours["wall_seconds"] == 22 + 4 * number and ours["tokens_per_second"] is None
        assert ours["source"] == theirs["source"]
        assert [part["seeds"] for part in ours["joined"]] == [[1], [3, 2]]
        assert [part["source"]["commit"][0] for part in ours["joined"]] == ["a", "b"]
        assert [part["wall_seconds"] for part in ours["joined"]] == [10.5 + 2 * number, 11.5 + 2 * number]
        assert [part["tokens_per_second"] for part in ours["joined"]] == [1e5, 1e5]
    drawn = {path.name for path in (tmp_path / "d").iterdir() if path.suffix in (".csv", ".md")}
    assert {"verdict.md", "costs.csv", "summary.csv"} < drawn
    for name in drawn - {"costs.csv"}:
        assert (tmp_path / "c" / name).read_bytes() == (tmp_path / "d" / name).read_bytes()
    costs = pd.read_csv("c/costs.csv")
    assert list(costs["group_seconds_per_arm"]) == [22, 26] and costs["group_tokens_per_second"].isna().tolist() == [
        True,
        True,
    ]
    assert results.verify("c") == []
    ran = [json.loads((tmp_path / name / "run.json").read_text()) for name in "cd"]
    assert ran[0]["digest"] == ran[1]["digest"] and ran[0]["config"] == ran[1]["config"]
    assert not [path for path, held in content(tmp_path / "c").items() if str(tmp_path).encode() in held]


def test_what_is_joined_is_drawn_again_and_taken_up_by_a_run_of_all_seeds(calls, tmp_path):
    run("c", *JOIN)
    before = content(tmp_path / "c")
    del before[tmp_path / "c/run.json"]  # It has times.
    assert run("c", "--draw-only") == 0 and run("c") == 0 and run("c", *JOIN) == 0 and calls == []
    assert before.items() <= content(tmp_path / "c").items()
    # A part itself may have been joined, and says so.
    run("e", "--seeds", "4")
    assert run("f", "--seeds", "1", "2", "3", "4", "--join", "c", "e") == 0
    joined = record(tmp_path / "f")["joined"]
    assert [part["seeds"] for part in joined] == [[1, 2, 3], [4]]
    assert [part["seeds"] for part in joined[0]["joined"]] == [[1], [3, 2]] and "joined" not in joined[1]


def test_sentences_are_joined_with_their_baselines(tmp_path, monkeypatch):
    made = made_records.trainer([])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "train_group", made.train_group)
    made_records.load_by(monkeypatch, made.load, table1_sva, "SVA")
    monkeypatch.setattr(table1_sva, "draw_sva", lambda *rest: [])
    monkeypatch.setattr(table1_sva, "read_off", lambda *rest: ({}, ""))
    monkeypatch.setattr(command.tables, "show", lambda *rest: None)
    quick = replace(sva_arms.quick(), groups=sva_arms.quick().groups[:1])
    monkeypatch.setitem(table1_sva.PROTOCOLS, "quick", command.Config(quick))
    for folder, rest in {"a": ["5"], "b": ["6"], "d": ["5", "6"], "c": ["5", "6", *JOIN]}.items():
        assert table1_sva.main(["--quick", "--out", folder, "--seeds", *rest]) == 0
    name = quick.arms[0].name
    ours = record(tmp_path / "c", name)
    assert "baselines" in ours and without(ours) == without(record(tmp_path / "d", name))
    results.retract("b")
    edit(tmp_path / "b/arms" / f"{name}.json", lambda found: found["baselines"]["test"][0].update(majority=0.7))
    with pytest.raises(ConflictError, match="cannot be joined with .* \\(baselines.test: "):
        table1_sva.main(["--quick", "--out", "e", "--seeds", "5", "6", *JOIN])


# Refused before any work.


def test_a_folder_that_links_to_itself_or_to_the_records_of_a_source_is_refused(copied, tmp_path, capsys):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "arms").symlink_to(tmp_path / "a" / "arms")
    for target, asked, told in (("d", ["--join", "a", "loop"], "no such folder"), ("c", JOIN, "to this very folder")):
        assert main_guard(functools.partial(run, target, *asked, "--fresh")) == 2
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--join", "a", "gone"], "--join gone: there is no such folder"),
        (["--join", "a", "b" * 300], "File name too long"),
        (["--join", "a", "a/arms"], "--join a/arms: it has no finished arm of those that are put together"),
        (["--join", "a", "b", "c/../c"], "the results go to this very folder; take another --out"),
        (["--join", "a", "b", "a"], "a and a both have seed 1"),
        (["--join", "a", "./a", "b"], "a and a both have seed 1"),
        (["--join", "a", "b", "--seeds", "1", "2"], "--join b: its seed 3 is none of those asked for (1 2)"),
        (["--join", "b"], "no folder has seed 1 of those asked for (1 2 3)"),
        ([*JOIN, "--seeds", "1", "2", "3", "4", "5"], "no folder has seed 4 5 of those asked for (1 2 3 4 5)"),
        ([*JOIN, "--tune"], "takes no --tune"),
        ([*JOIN, "--data", "a"], "takes no --data"),
        ([*JOIN, "--checkpoint-seconds", "3"], "takes no --checkpoint-seconds"),
        ([*JOIN, "--arms", "qk3"], "each of arms must be one of baseline, qk30"),
    ],
)
def test_wrong_input_is_one_line_before_any_work(calls, tmp_path, capsys, arguments, told):
    before = content(tmp_path)
    assert main_guard(lambda: run("c", *arguments, "--fresh")) == 2
    error = capsys.readouterr().err.strip()
    assert told in error and len(error.splitlines()) == 1
    assert content(tmp_path) == before and calls == [] and not (tmp_path / "c").exists()


def test_what_is_only_drawn_is_not_joined(calls, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        run("c", *JOIN, "--draw-only")
    assert "takes no --join" in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_records_that_are_not_alike_are_refused_by_file_and_difference(calls, tmp_path):
    path = tmp_path / "b/arms/qk30.json"
    whole = path.read_text()
    unlike = r"^b/arms/qk30.json cannot be joined with a/arms/qk30.json \("
    for change, told in (
        (lambda found: found["data"].update(train=7), unlike + "data.train: 7 there, 6 here"),
        (lambda found: found["data"]["sha256"].update(x="b" * 64), unlike + "data.sha256.x: "),
        (lambda found: found["notes"].append("more"), unlike + "notes: "),
        (lambda found: found["thresholds"].__setitem__(1, 0.06), unlike + "thresholds: "),
        (lambda found: found["shares"].__setitem__(1, 0.06), unlike + "shares: "),
        (lambda found: found.update(more=3), unlike + "more: 3 there, null here"),
        (lambda found: found.update(limit=8), "record of other settings .limit: 8 there, 9 here.*; leave its folder"),
        (lambda found: found["recipe"].update(batch=8), "record of other settings .recipe.batch"),
        (lambda found: found["recipe"].update(seeds=[2, 3]), "record of other settings .recipe.seeds"),
        (lambda found: found["arm"].update(qk=31.0), "record of other settings .qk: 31"),
        (lambda found: found.update(digest="0" * 64), "digest of other settings; leave its folder out of --join"),
        (lambda found: found["runs"].reverse(), "cannot read .*seed must be 3.*; leave its folder out of --join"),
    ):
        path.write_text(whole)
        edit(path, change)
        with pytest.raises((ConflictError, OutputError), match=told):
            run("c", *JOIN)
    # The first record of a folder says which seeds it has.
    for damaged in (whole[:-9], whole.replace('"seeds": [3, 2]', '"seeds": [true]'), "[]"):
        (tmp_path / "b/arms/baseline.json").write_text(damaged)
        with pytest.raises(OutputError, match=r"cannot read b/arms/baseline.json .*; leave its folder out of --join"):
            run("c", *JOIN)
    assert not (tmp_path / "c").exists() and calls == []


def test_arms_of_other_data_are_refused(calls, tmp_path):
    for name in "ab":
        edit(tmp_path / name / "arms/qk30.json", lambda found: found["data"]["sha256"].update(x="b" * 64))
    with pytest.raises(ConflictError, match=r"^a/arms/qk30.json cannot be joined with a/arms/baseline.json \(data.sha"):
        run("c", *JOIN)
    assert run("c", *JOIN, "--arms", "qk30") == 0


def test_an_edited_part_is_warned_of(calls, tmp_path):
    run("b", "--seeds", "3", "2")
    edit(tmp_path / "b/arms/qk30.json", lambda found: found["runs"][0]["end"]["test"].update(accuracy=0.999))
    with pytest.warns(OutputWarning, match=r"b/arms/qk30.json is not the file that run.json vouches for"):
        assert run("c", *JOIN) == 0


def test_an_arm_that_a_folder_lacks_is_named_and_not_joined(calls, tmp_path, capsys):
    (tmp_path / "b/arms/qk30.json").unlink()
    assert run("c", *JOIN) == 0
    assert "note: arm qk30 is not joined: b has not finished it\n" in capsys.readouterr().err
    assert [path.stem for path in (tmp_path / "c/arms").iterdir()] == ["baseline"]
    with pytest.raises(OutputError, match="--join b: it has no finished arm of those that are put together .qk30"):
        run("e", *JOIN, "--arms", "qk30")
    with pytest.raises(OutputError, match="--join b: it has no finished arm qk30, which --arms names"):
        run("e", *JOIN, "--arms", "qk30", "baseline")
    (tmp_path / "a/arms/baseline.json").unlink()
    with pytest.raises(OutputError, match="no arm is finished in all of a, b"):
        run("e", *JOIN)
    assert not (tmp_path / "e").exists()


# What is there already.


def test_a_record_that_is_there_is_taken_up_and_fresh_forgets_what_is_joined_alone(calls, tmp_path, capsys):
    run("c")
    before = content(tmp_path / "c/arms")
    capsys.readouterr()
    assert run("c", *JOIN) == 0 and content(tmp_path / "c/arms") == before
    told = [
        f"note: {tmp_path}/c/arms/{arm.name}.json is there and stays as it is; --fresh joins it anew" for arm in ARMS
    ]
    assert capsys.readouterr().err.splitlines() == told
    (tmp_path / "b/arms/qk30.json").unlink()
    assert run("c", *JOIN, "--fresh") == 0
    assert "joined" in record(tmp_path / "c", "baseline") and "joined" not in record(tmp_path / "c", "qk30")
    assert len(calls) == 2 and results.verify("c") == []


def test_a_folder_of_other_data_or_settings_is_left_as_it_is(calls, tmp_path, monkeypatch):
    run("c", "--seeds", "1", "2")
    with pytest.raises(
        ConflictError, match=r"c/arms/baseline.json is the record of other settings .*; take another --out"
    ):
        run("c", *JOIN)
    run("d", "--arms", "qk30")
    edit(tmp_path / "d/arms/qk30.json", lambda found: found["data"]["sha256"].update(x="b" * 64))
    before = content(tmp_path / "d")
    for more in ([], ["--fresh", "--arms", "baseline"]):
        with pytest.raises(
            ConflictError, match=r"qk30.json is the record of other data; take another --out, or --fresh"
        ):
            run("d", *JOIN, *more)
    with lock(tmp_path / "d"), pytest.raises(ConflictError, match="another process is writing"):
        run("d", *JOIN, "--fresh")
    # What is wrong with a part is found before --fresh forgets.
    edit(tmp_path / "b/arms/qk30.json", lambda found: found.update(notes=[]))
    with pytest.raises(ConflictError, match="cannot be joined"):
        run("d", *JOIN, "--fresh")
    assert content(tmp_path / "d") == before
    edit(tmp_path / "b/arms/qk30.json", lambda found: found.update(notes=["made posts"]))
    assert run("d", *JOIN, "--fresh") == 0 and record(tmp_path / "d")["joined"]


def test_ended_between_two_records_it_goes_on(calls, tmp_path, monkeypatch):
    written = command.RecordPlace.write

    def full(place, found, seconds):
        if place.name == "qk30":
            raise OutputError("disk full")
        return written(place, found, seconds)

    with monkeypatch.context() as patch:
        patch.setattr(command.RecordPlace, "write", full)
        with pytest.raises(OutputError, match="disk full"):
            run("c", *JOIN)
    assert [path.name for path in content(tmp_path / "c")] == ["baseline.json"]
    before = content(tmp_path / "c")
    assert run("c", *JOIN) == 0 and before.items() <= content(tmp_path / "c").items() and calls == []
    assert record(tmp_path / "c")["joined"] and results.verify("c") == []

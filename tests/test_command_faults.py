"""Faults of the commands that leave records: options passed over, data that are not theirs, two protocols in one place."""

import json
import types
from dataclasses import replace

import numpy as np
import pytest

import made_records
import made_squad_records
from experiments import fig2_parameterizations as fig2
from experiments import fig3_fixed_attention as fig3
from experiments import fig4_growth, step_size, sweep, table1_squad, theory
from experiments import table1_hatexplain as table1
from experiments.squad import arms as squad_arms
from experiments.squad import cost, verdict
from experiments.squad.data import SPLITS
from experiments.squad.recipe import Recipe as SquadRecipe
from experiments.text import arms, train
from experiments.text.recipe import Recipe, TextArm
from qkdyn import results
from qkdyn.config import as_dict, main_guard
from qkdyn.errors import ConflictError, DataError, Interrupted, OutputError
from qkdyn.train.interrupt import Request
from qkdyn.train.store import open_store

SMALL = replace(Recipe(), seeds=(1, 2))
TINY = replace(SquadRecipe(), vocabulary=400, d_model=8, n_heads=2, d_mlp=8, n_layers=1)


def text_protocol(*names):
    group = tuple(TextArm(name, 3) for name in names)
    return table1.Config(arms.Protocol(SMALL, (group,), (arms.Comparison("quick", names),), limit=9))


def squad_protocol(*names):
    own = tuple(TextArm(name, 3, 5e-4) for name in names)
    return table1_squad.Config(squad_arms.Protocol(TINY, own, (1, 2), (arms.Comparison("quick", names),)))


@pytest.fixture
def text(monkeypatch):
    """Trainer, tables and figures of HateXplain made; what the trainer was asked for."""
    heard = []
    made_records.instead(monkeypatch, heard)
    monkeypatch.setattr(table1, "read_off", lambda records, protocol, name: ({}, name))
    monkeypatch.setattr(table1.tables, "show", lambda *rest: None)
    monkeypatch.setitem(table1.PROTOCOLS, "quick", text_protocol("baseline", "qk30"))
    monkeypatch.setitem(table1.PROTOCOLS, "as_coded", text_protocol("baseline", "faster"))
    return types.SimpleNamespace(module=table1, calls=heard, arms=["baseline", "qk30"], other="faster")


@pytest.fixture
def squad(monkeypatch):
    """The same of SQuAD."""
    heard = []

    def train_run(recipe, run, *rest):
        heard.append(run.name)
        return made_squad_records.made_run(run)

    def load(*rest):
        heard.append("load")
        return types.SimpleNamespace(notes=(), sha256=made_squad_records.SHA)

    monkeypatch.setattr(table1_squad, "train_run", train_run)
    monkeypatch.setattr(table1_squad, "load", load)
    monkeypatch.setattr(cost, "cost_of", lambda *rest: cost.Cost(3, 100, 1e9, 1e8))
    monkeypatch.setattr(cost, "product_speed", lambda recipe: 1e9)
    monkeypatch.setattr(table1_squad.tables, "frames", lambda records, protocol: {})
    monkeypatch.setattr(table1_squad.tables, "show", lambda *rest: None)
    monkeypatch.setattr(table1_squad, "verdict", lambda records, protocol, name: name)
    monkeypatch.setattr(table1_squad, "draw_squad", lambda *rest: [])
    monkeypatch.setitem(table1_squad.PROTOCOLS, "quick", squad_protocol("base", "base-qk20"))
    monkeypatch.setitem(table1_squad.PROTOCOLS, "as_coded", squad_protocol("base", "fast"))
    names = ["base-1", "base-2", "base-qk20-1", "base-qk20-2"]
    return types.SimpleNamespace(module=table1_squad, calls=heard, arms=names, other="fast-1")


@pytest.fixture(params=["text", "squad"])
def made(request):
    return request.getfixturevalue(request.param)


def content(folder):
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "module, arguments, told",
    [
        (table1, ["--arms", "baseline"], "takes no --arms"),
        (table1_squad, ["--arms", "base"], "takes no --arms"),
        (fig2, ["--arms", "CACO-0.01"], "takes no --arms"),
        (fig3, ["--checkpoint-seconds", "1"], "takes no --checkpoint-seconds"),
        (sweep, ["--fresh"], "takes no --fresh"),
        (sweep, ["--no-draw"], "takes no --no-draw"),
        (step_size, ["--devices", "1"], "takes no --devices"),
    ],
)
def test_what_drawing_would_pass_over_is_refused(module, arguments, told, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        module.main(["--quick", "--draw-only", *arguments, "--out", str(tmp_path / "x")])
    assert told in " ".join(capsys.readouterr().err.replace("│", " ").split()) and not (tmp_path / "x").exists()


def test_seeds_are_drawn_from_their_own_folder_or_not_at_all(made, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "results/quick" / ("hatexplain" if made.module is table1 else "squad")
    made.module.main(["--quick"])
    before, count = content(home), len(made.calls)
    # Seed 1 is the protocol's, and recorded in its folder; nothing was recorded of seed 7.
    for seed in ("1", "7"):
        assert main_guard(lambda seed=seed: made.module.main(["--quick", "--draw-only", "--seeds", seed])) == 2
        told = capsys.readouterr().err
        assert f"--seeds {seed} have none of their own" in told and f"leave out --seeds to draw all of {home}," in told
    made.module.main(["--quick", "--seeds", "7"])
    trained = len(made.calls)
    assert trained > count and made.module.main(["--quick", "--draw-only", "--seeds", "7"]) == 0
    assert len(made.calls) == trained and content(home) == before


def test_that_all_finished_arms_are_drawn_is_said(text, tmp_path, capsys):
    text.module.main(["--quick", "--out", str(tmp_path), "--arms", "baseline"])
    assert "Drawn are" not in capsys.readouterr().out
    text.module.main(["--quick", "--out", str(tmp_path), "--arms", "qk30"])
    assert "Drawn are all finished arms of the folder, also baseline." in capsys.readouterr().out


def test_data_that_are_named_are_looked_at_though_all_is_trained(made, tmp_path, monkeypatch):
    run = lambda *more: made.module.main(["--quick", "--out", str(tmp_path), *more])  # noqa: E731
    run()
    before, count = content(tmp_path), len(made.calls)
    run()
    assert len(made.calls) == count
    run("--data", "there")
    assert made.calls[count:] == ["load"]

    def load(*rest, **named):
        raise DataError("the files are not there")

    def put(load):
        if made.module is table1:
            made_records.load_by(monkeypatch, load)
        else:
            monkeypatch.setattr(table1_squad, "load", load)

    put(load)
    with pytest.raises(DataError, match="are not there"):
        run("--data", "nowhere")
    other = made_records.trainer([]).load(None, None)
    other.sha256 = {"dataset.json": "b" * 64}
    put(lambda *rest, **named: other)
    with pytest.raises(ConflictError, match="is the record of other data"):
        run("--data", "elsewhere")
    assert {name: content(tmp_path)[name] for name in before if "arms" in name} == {
        name: before[name] for name in before if "arms" in name
    }


def test_two_protocols_in_one_folder_are_refused_before_any_work(made, tmp_path):
    run = lambda *more: made.module.main([*more, "--out", str(tmp_path)])  # noqa: E731
    run("--quick")
    (tmp_path / "published.csv").write_text("drawn")
    vouched = json.loads((tmp_path / "run.json").read_text())
    vouched["sha256"]["published.csv"] = ""
    (tmp_path / "run.json").write_text(json.dumps(vouched))
    before, count = content(tmp_path), len(made.calls)
    told = (
        r"of another protocol \(arms .*{}.*, made by `python -m experiments\..* --quick --out .*`\), .* --protocol {}"
    )
    last = made.arms[-1].split("-1")[0]
    for arguments, mine in (
        (["--protocol", "as_coded"], "as_coded would overwrite; take another --out, or --fresh, which removes them"),
        (["--protocol", "as_coded", "--draw-only"], "as_coded would .* or the protocol that they are of"),
        (["--quick", "--tune"], "quick --tune would overwrite"),
    ):
        with pytest.raises(ConflictError, match=told.format(last[:4], mine)):
            run(*arguments)
    assert len(made.calls) == count and content(tmp_path) == before
    assert sorted(path.stem for path in (tmp_path / "arms").iterdir()) == sorted(made.arms)
    run("--protocol", "as_coded", "--fresh")
    there = {path.stem for path in (tmp_path / "arms").iterdir()}
    assert made.other in there and not there & set(made.arms[-1:]) and not (tmp_path / "published.csv").exists()
    assert results.verify(tmp_path) == [] and (tmp_path / "verdict.md").read_text() == "as_coded"


def test_fresh_removes_checkpoints_of_the_other_protocol_alone(text, tmp_path):
    table1.main(["--quick", "--out", str(tmp_path)])
    for home, names in (("x", ["qk30"]), ("y", ["qk30", "faster"])):
        (tmp_path / "checkpoints" / home).mkdir()
        (tmp_path / "checkpoints" / home / "job.json").write_text(json.dumps({"arms": dict.fromkeys(names)}))
    table1.main(["--protocol", "as_coded", "--arms", "baseline", "--fresh", "--out", str(tmp_path)])
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["y"]


def test_fig3_draws_what_every_protocol_left(tmp_path, monkeypatch):
    own = fig3.Config(seeds=(1,), alpha=(0.2,), epochs=1, batches=1)
    monkeypatch.setitem(fig3.PROTOCOLS, "controlled", own)
    monkeypatch.setitem(fig3.PROTOCOLS, "as_written", replace(own, trained=("collapsed-plain", "factorized-plain")))
    curve = {"seed": 1, "alpha": 0.2, "loss": [2.0, 1.0], "incentive": [1.0, 1.0]}
    monkeypatch.setattr(fig3, "train_arm", lambda *rest: {"curves": [curve]})
    monkeypatch.setattr(fig3, "draw_fig3", lambda records, known, path: results.write_text(path, str(len(records))))
    fig3.main(["--out", str(tmp_path)])
    before = content(tmp_path)
    fig3.main(["--protocol", "as_written", "--out", str(tmp_path)])
    after, name = content(tmp_path), "run.json"
    assert {k: v for k, v in after.items() if k != name} == {k: v for k, v in before.items() if k != name}
    assert json.loads(after[name])["digest"] == json.loads(before[name])["digest"]


@pytest.mark.parametrize(
    "module, mine, theirs",
    [(fig4_growth, "as_coded", "reference"), (theory, "quick", "reference"), (step_size, "quick", "reference")],
)
def test_a_table_of_another_protocol_is_not_overwritten(module, mine, theirs, tmp_path, monkeypatch):
    known = (vars(module).get("PROTOCOLS") or {})[theirs]
    (tmp_path / "run.json").write_text(json.dumps({"config": as_dict(known), "sha256": {}}))
    before = content(tmp_path)
    monkeypatch.setattr(module, "run", lambda *rest: pytest.fail("work began"))
    with pytest.raises(
        ConflictError, match=f"the results of --protocol {theirs}, which --protocol {mine} would overwrite"
    ):
        module.main(["--protocol", mine, "--out", str(tmp_path)])
    assert content(tmp_path) == before


def test_an_integer_beyond_every_float_is_a_damaged_record(made, tmp_path):
    made.module.main(["--quick", "--out", str(tmp_path)])
    path = tmp_path / f"arms/{made.arms[0]}.json"
    record = json.loads(path.read_text())
    # Where no schema asks for a number.
    path.write_text(json.dumps(record | {"more": 10**400}))
    with pytest.raises(OutputError, match="it holds an integer of 401 digits"):
        made.module.main(["--quick", "--draw-only", "--out", str(tmp_path)])


@pytest.mark.parametrize("name", ["controlled", "as_coded"])
def test_where_every_run_diverged_the_verdict_says_so(name):
    own = squad_arms.protocol(name)
    records = made_squad_records.made(own)
    for record in records:
        run = record["runs"][0]
        run |= {"diverged_at": 2, "end": {split: {} for split in SPLITS}}
        run["best"] = {"epoch": 0} | run["end"]
    told = "**In short.** Every run of every arm diverged: there is nothing to say of what QK does."
    said = verdict.verdict(records, own, name)
    assert told in said and "hardly learned" not in said and "not known" not in said and "no arm answers" not in said
    # Read at the best epoch, which one run had.
    records[0]["runs"][0]["best"] = made_squad_records.made(own)[0]["runs"][0]["best"]
    told = (
        told
        if name == "controlled"
        else told.replace("diverged", "diverged; what is said below is of the best epochs before")
    )
    assert told in verdict.verdict(records, own, name)
    # An arm of which every run diverged is not one that does not answer.
    records[0] = made_squad_records.made(own)[0]
    assert "1 of 1 arms answer better" in verdict.verdict(records, own, name)


def test_a_signal_while_the_last_epoch_is_measured_saves_it(tmp_path, monkeypatch):
    state, records, request = {"w": np.arange(3.0)}, {"losses": np.ones((1, 1, 2))}, Request()
    campaign = types.SimpleNamespace(job=types.SimpleNamespace(steps=2), finish=lambda *rest: (state, records))
    monkeypatch.setattr(train, "prepare", lambda *rest: (campaign, None))
    monkeypatch.setattr(train.Reader, "of", lambda *rest: None)
    monkeypatch.setattr(train, "_end", lambda *rest: request.check())
    store, data = open_store(tmp_path, {}, every=1e9), types.SimpleNamespace(sha256={}, train=())
    request.name = "SIGTERM"
    with pytest.raises(Interrupted, match="SIGTERM: saved"):
        train.train_group(None, SMALL, (), data, store, request, lambda share, status: None)
    (home,) = (tmp_path / "checkpoints").iterdir()
    found, _ = store.newest(home.name)
    assert np.array_equal(found["state/w"], state["w"]) and np.array_equal(found["records/losses"], records["losses"])

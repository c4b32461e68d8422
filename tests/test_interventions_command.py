"""`make interventions` as a command: records taken up, groups, what is asked for, wrong input; arms and their records."""

import json
from dataclasses import replace

import pytest

from experiments import interventions
from experiments.intervened import orthogonal, tokens
from experiments.intervened.arms import Arm, Strengths, Work, cases
from experiments.intervened.schema import check_record
from made_interventions import MadeSetting, made_arms, made_record
from qkdyn import results
from qkdyn.errors import ConflictError, DataError, InputError, Interrupted, OutputError
from qkdyn.figures import canvas
from qkdyn.interventions import Intervention, OnCircuit
from qkdyn.parameterization import Parameterization
from qkdyn.train.intervened_runs import intervened_run

SGD = 6


@pytest.fixture
def made(monkeypatch):
    """Two settings whose records are made."""
    settings = {name: MadeSetting(name) for name in ("made", "other")}
    monkeypatch.setattr(interventions, "SETTINGS", settings)
    monkeypatch.setitem(interventions.PROTOCOLS, "quick", interventions.protocol(True))
    # What is drawn is looked at in the tests of the page.
    monkeypatch.setattr(interventions, "draw_interventions", lambda *_: canvas.new_figure(1.0, 1.0))
    return settings


def run(folder, *arguments):
    return interventions.main(["--quick", "--out", str(folder), *arguments])


def test_arms_leave_records_that_are_taken_up(made, tmp_path, capsys):
    assert run(tmp_path, "--settings", "made", "--arms", "made-CACO-plain", "made-CACO-adam-1") == 0
    assert made["made"].asked == [["made-CACO-plain"], ["made-CACO-adam-1"]]
    assert run(tmp_path) == 0
    # By groups: one optimizer each, without what is there already.
    assert [len(group) for group in made["made"].asked[2:]] == [SGD - 1, 2]
    assert [len(group) for group in made["other"].asked] == [SGD, 3]
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix in (".csv", ".png", ".md")}
    assert set(before) == {"verdict.md", "arms.md", "summary.csv", "interventions.png"}
    assert run(tmp_path) == 0 and run(tmp_path, "--draw-only") == 0
    assert len(made["made"].asked) == 4
    assert before == {
        path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix in (".csv", ".png", ".md")
    }
    assert results.verify(tmp_path) == []
    assert before["verdict.md"].decode() in capsys.readouterr().out
    (tmp_path / "arms" / "made-CACO-plain.json").unlink()
    assert run(tmp_path) == 0 and made["made"].asked[4:] == [["made-CACO-plain"]]


def test_a_command_that_is_stopped_goes_on_where_it_was(made, tmp_path):
    real = made["other"].train

    def stopped(arms, work):
        raise Interrupted("SIGTERM")

    made["other"].train = stopped
    with pytest.raises(Interrupted):
        run(tmp_path)
    assert len(list((tmp_path / "arms").glob("made-*.json"))) == len(made_arms()) and results.verify(tmp_path) != []
    made["other"].train = real
    assert run(tmp_path) == 0 and len(made["made"].asked) == 2 == len(made["other"].asked)


def test_missing_data_are_said_before_any_work(made, tmp_path):
    made["other"].missing = DataError("the files of other were not found")
    with pytest.raises(DataError, match=r"were not found; or without it: --settings made$"):
        run(tmp_path)
    assert made["made"].asked == []
    assert run(tmp_path, "--settings", "made") == 0
    # What is finished needs no data.
    made["other"].missing = None
    assert run(tmp_path) == 0
    made["other"].missing = DataError("gone")
    assert run(tmp_path) == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--settings", "squad"], InputError, "each of settings must be one of made, other, got 'squad'"),
        (
            ["--settings", "made", "--arms", "other-CACO-plain"],
            InputError,
            "one of the 9 arms of made, got 'other-CACO",
        ),
        (["--draw-only"], OutputError, "has no finished arm"),
    ],
)
def test_wrong_options(made, tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        run(tmp_path, *arguments)
    assert made["made"].asked == []


def test_a_record_of_other_settings_is_refused(made, tmp_path):
    run(tmp_path, "--settings", "made")
    path = tmp_path / "arms" / "made-CACO-ratio-10.json"
    record = json.loads(path.read_text())
    record["arm"]["eta_ov"] = 0.25
    path.write_text(json.dumps(record))
    with pytest.raises(ConflictError, match="eta_ov: 0.25 there, 0.5 here"):
        run(tmp_path)


def test_what_only_draws_does_not_advise_to_train(made, tmp_path):
    run(tmp_path, "--settings", "made")
    path = tmp_path / "arms" / "made-CACO-ratio-10.json"
    record = json.loads(path.read_text())
    record["runs"][0]["matched"][0]["attention"] = 2.5
    path.write_text(json.dumps(record))
    with pytest.raises(OutputError, match=r"made-CACO-ratio-10.json .*attention must be from 0 to 1.*or --fresh$"):
        run(tmp_path)
    for change in (lambda r: None, lambda r: r["arm"].update(eta_ov=0.25), lambda r: r.update(digest="0")):
        path.write_text(json.dumps(damaged(record, change)))
        with pytest.raises((OutputError, ConflictError), match=r"made-CACO-ratio-10.json .*remove it") as caught:
            run(tmp_path, "--draw-only")
        assert "--fresh" not in str(caught.value)


def damaged(record, change):
    record = json.loads(json.dumps(record))
    change(record)
    return record


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["runs"][0].update(seed=9), "the seeds of runs"),
        (lambda r: r["runs"][0].update(status="lost"), "seed 1: status"),
        (lambda r: r["runs"][1].update(diverged_at=-1), "seed 2: diverged_at"),
        (lambda r: r["runs"][1].update(diverged_at=3), "seed 2: diverged_at"),
        (lambda r: r["runs"][0].update(end=[]), "seed 1: end"),
        (lambda r: r["runs"][0]["matched"][0].update(level=0.3), "seed 1: matched: levels"),
        (lambda r: r["runs"][0]["matched"].append(r["runs"][0]["matched"][0]), "seed 1: matched: levels"),
        (lambda r: r["runs"][0]["matched"][0].update(attention=None), "seed 1: matched: attention"),
        (lambda r: r["runs"][0]["matched"][0].update(accuracy="high"), "seed 1: matched: accuracy"),
        (lambda r: r["runs"][0]["matched"][0].update(step=-2), "seed 1: matched: step"),
        (lambda r: r["runs"][0]["matched"][0].update(attention=2.5), "seed 1: matched: attention must be from 0 to 1"),
        (lambda r: r["runs"][0]["matched"][0].update(attention=-1.0), "seed 1: matched: attention"),
        (lambda r: r["runs"][0]["matched"][0].update(accuracy=7.0), "seed 1: matched: accuracy must be from 0 to 1"),
        (lambda r: r["runs"][0]["end"].update(attention=3.0), "seed 1: end: attention"),
        (lambda r: r["runs"][0]["matched"][1].update(step=901.0), "seed 1: matched: step must be from 0 to 900"),
        (lambda r: r["runs"][0]["matched"][0].update(step=899.0), "seed 1: matched: step must be no earlier"),
        (lambda r: r["runs"][2]["matched"].pop(), "seed 3: status must be another than stopped"),
        (lambda r: r["runs"][2].update(status="diverged", diverged_at=901), "seed 3: diverged_at must be at most 900"),
        (lambda r: r["predicted"].append({"level": 0.1, "step": 4.0}), "predicted"),
    ],
)
def test_what_a_record_must_hold(change, message):
    arm = made_arms()[0]
    record = made_record(arm)
    check_record(record, arm)
    with pytest.raises(ValueError, match=f"its {message}"):
        check_record(damaged(record, change), arm)


PLAIN = made_arms()[0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"apart": (1.0, 2.0)}, "apart of the qk circuit must be 1, got 2.0; the single matrix of a collapsed circuit"),
        ({"apart": (2.0, 1.0)}, "apart of the ov circuit must be 1"),
        ({"apart": (1.0, 0.0)}, "each of apart must be a finite number > 0, got 0"),
        ({"start": (-1.0, 1.0)}, "each of start must be a finite number > 0"),
        ({"gain": (1.0, float("nan"))}, "each of gain must be a finite number > 0, got nan"),
        ({"r": 0.0}, "r must be a finite number > 0"),
        ({"eta_ov": float("inf")}, "eta_ov must be a finite number > 0"),
        ({"levels": (0.1, 0.5)}, "levels must be decreasing losses"),
        ({"levels": ()}, "levels must be decreasing losses, at least one"),
        ({"seeds": (1, 1)}, "seeds must be distinct"),
        ({"max_steps": 0}, "max_steps must be an integer >= 1"),
        (
            {"optimizer": "adam", "on": Intervention(OnCircuit(momentum=0.5))},
            "momentum of the qk circuit must be 0 under",
        ),
        ({"on": Intervention(OnCircuit(imbalance=5.0))}, "imbalance of the qk circuit must be 0 in `on`, got 5.0"),
        ({"form": "FAFO", "on": Intervention(ov=OnCircuit(imbalance=5.0))}, "imbalance of the ov circuit .* `apart`"),
        (
            {"form": "FACO", "on": Intervention(OnCircuit(gradient="sign"))},
            "gradient of the qk circuit must not be 'sign'",
        ),
        (
            {"on": Intervention(OnCircuit(decay=1.0, decoupled=True))},
            "decoupled decay of the qk circuit must be below 1",
        ),
        ({"on": None}, "on must be an Intervention, got None"),
        ({"seeds": ("a",)}, "each of seeds must be an integer >= 0, got 'a'"),
        ({"seeds": (2**40,)}, "each of seeds must be at most 2147483647"),
        ({"seeds": (1.5, 2.5)}, "each of seeds must be an integer"),
        ({"seeds": 1}, "seeds must be a list"),
        ({"gain": (1.0,)}, r"gain must be two numbers, of \(OV, QK\), got \(1.0,\)"),
        ({"start": ()}, "start must be two numbers"),
        ({"apart": 2.0}, "apart must be a list"),
        ({"levels": (float("nan"),)}, "each of levels must be a finite number > 0, got nan"),
        ({"levels": (0.5, -1.0)}, "each of levels must be a finite number > 0"),
        ({"levels": ("a",)}, "each of levels must be a finite number > 0, got 'a'"),
        ({"name": "../../x"}, "name must be letters, digits"),
        ({"name": ""}, "name must be a text"),
        ({"family": None}, "family must be a text"),
    ],
)
def test_wrong_arms(changed, message):
    with pytest.raises(InputError, match=message):
        replace(PLAIN, **changed)


@pytest.mark.parametrize("setting", [orthogonal, tokens])
@pytest.mark.parametrize("changed", [{"levels": (0.5,)}, {"max_steps": 7}, {"form": "FAFO"}, {"optimizer": "adam"}])
def test_arms_of_another_plan_do_not_train_together(setting, changed):
    other = replace(PLAIN, name="other", **changed)
    name = next(iter(changed))
    with pytest.raises(InputError, match=f"{name} of other must be .*, that of made-CACO-plain"):
        setting.train([PLAIN, other], Work())


def test_training_knows_no_imbalance():
    with pytest.raises(
        InputError, match="imbalance of the ov circuit must be 0 in training, got 2.0; bring the factors"
    ):
        intervened_run(Intervention(ov=OnCircuit(imbalance=2.0)), (1,), r=1.0, eta_ov=0.1)


def test_imbalance_is_of_factors():
    assert replace(PLAIN, form="CAFO", apart=(2.0, 1.0)) and replace(PLAIN, form="FAFO", apart=(2.0, 3.0))


def test_there_are_no_arms_of_imbalance_where_it_means_nothing():
    strengths = Strengths(ratios=(1.0,), factors_qk=(2.0,), factors_ov=(3.0,))
    for form, families in (("CACO", set()), ("CAFO", {"imbalance of OV"}), ("FACO", {"imbalance of QK"})):
        found = {case["family"] for case in cases(strengths, 1.0, Parameterization(form))}
        assert found - {"ratio", "gradient of QK rescaled"} == families


def test_the_arms_of_the_orthogonal_setting():
    arms = orthogonal.arms(False)
    names = [arm.name for arm in arms]
    assert len(set(names)) == len(names) and all(arm.seeds == (1234, 1235, 1236, 1237, 1238) for arm in arms)
    assert {arm.r for arm in arms if arm.family == "ratio"} == {0.1, 1.0, 3.0, 10.0, 30.0, 100.0}
    families = {form: {arm.family for arm in arms if arm.form == form} for form in ("CACO", "FAFO")}
    # A single matrix has no factors.
    assert families["FAFO"] - families["CACO"] == {"imbalance of QK", "imbalance of OV"}
    assert sum(arm.name.endswith("-plain") for arm in arms) == 2 and len(families["FAFO"]) == 19
    assert all(isinstance(arm, Arm) and len(arm.seeds) == 2 for arm in orthogonal.arms(True))
    assert len(orthogonal.groups(arms)) == 4

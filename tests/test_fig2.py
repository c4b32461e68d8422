"""Figure 2 as a command: records that are taken up, settings that differ, heat maps that add up, wrong input."""

import json

import numpy as np
import pandas as pd
import pytest

from experiments import fig2_parameterizations as fig2
from experiments.synthetic import tables, train
from experiments.synthetic.arms import Arm, as_coded, as_written, controlled
from qkdyn import results
from qkdyn.circuits import balancedness, collapse
from qkdyn.errors import ConflictError, InputError, Interrupted, OutputError
from qkdyn.figures.fig2 import draw_fig2

TINY = {"epochs": 4, "batches": 5, "multipliers": (1.0, 10.0), "seeds": (1, 2), "eta_ov": 0.5, "length": 12}


@pytest.fixture
def tiny(monkeypatch):
    arms = (
        Arm("one", "CACO", "common", "common", levels=(3.9, 3.0), **TINY),
        Arm("two", "FACO", "common", "common", levels=(3.9, 3.0), **TINY),
    )
    monkeypatch.setitem(fig2.PROTOCOLS, "quick", fig2.Config(arms, evaluation=2))


def run(folder, *arguments):
    return fig2.main(["--quick", "--out", str(folder), *arguments])


def test_arms_leave_records_that_are_taken_up(tiny, tmp_path, monkeypatch, capsys):
    assert run(tmp_path, "--arms", "one") == 0
    assert sorted(path.name for path in (tmp_path / "arms").iterdir()) == ["one.json"]
    trained, real = [], fig2.train_arm
    monkeypatch.setattr(fig2, "train_arm", lambda arm, *a: trained.append(arm.name) or real(arm, *a))
    assert run(tmp_path) == 0 and trained == ["two"]
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix in (".csv", ".png")}
    assert run(tmp_path) == 0 and trained == ["two"]
    assert run(tmp_path, "--draw-only") == 0 and trained == ["two"]
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix in (".csv", ".png")}
    assert results.verify(tmp_path) == []
    assert {"summary.csv", "runs.csv", "matched.csv", "heatmaps.png", "matched.png"} == set(before)
    assert "one" in capsys.readouterr().out
    assert not (tmp_path / "checkpoints" / "one").exists()


def test_a_record_of_other_settings_is_refused_and_forgotten_when_asked(tiny, tmp_path, monkeypatch):
    run(tmp_path, "--arms", "one")
    other = (Arm("one", "CACO", "common", "common", **TINY | {"epochs": 3}),)
    monkeypatch.setitem(fig2.PROTOCOLS, "quick", fig2.Config(other, evaluation=2))
    with pytest.raises(ConflictError, match="epochs: 4 there, 3 here"):
        run(tmp_path)
    assert run(tmp_path, "--fresh") == 0
    assert json.loads((tmp_path / "arms/one.json").read_text())["arm"]["epochs"] == 3
    (tmp_path / "arms/one.json").write_text('{"arm": ')
    with pytest.raises(OutputError, match=r"cannot read .*one\.json"):
        run(tmp_path)


def test_fresh_forgets_every_chosen_record_before_it_trains(tiny, tmp_path, monkeypatch):
    """A command that is stopped early and goes on without --fresh must not take up what was to be forgotten."""
    run(tmp_path)
    real, started = fig2.train_arm, []

    def stopped(arm, *rest):
        raise Interrupted("SIGTERM")

    monkeypatch.setattr(fig2, "train_arm", stopped)
    with pytest.raises(Interrupted):
        run(tmp_path, "--fresh", "--arms", "one")
    assert [path.name for path in (tmp_path / "arms").iterdir()] == ["two.json"] and results.verify(tmp_path) != []
    with pytest.raises(Interrupted):
        run(tmp_path, "--fresh")
    monkeypatch.setattr(fig2, "train_arm", lambda arm, *rest: started.append(arm.name) or real(arm, *rest))
    assert run(tmp_path) == 0 and started == ["one", "two"] and results.verify(tmp_path) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record | {"runs": None},
        lambda record: record | {"runs": record["runs"][:3]},
        lambda record: record | {"runs": [{}] * 4},
        lambda record: record | {"matched": [1]},
        lambda record: record | {"trace": [{"step": 1}]},
        lambda record: {name: value for name, value in record.items() if name != "trace"},
        lambda record: [],
    ],
)
def test_a_damaged_record_is_told_before_any_training(tiny, tmp_path, monkeypatch, change):
    """Also that of an arm which was not asked for: the tables would stop at it afterwards."""
    run(tmp_path, "--arms", "two")
    path = tmp_path / "arms/two.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    monkeypatch.setattr(fig2, "train_arm", lambda *rest: pytest.fail("trains"))
    for arm in ("one", "two"):
        with pytest.raises(OutputError, match=r"cannot read .*two\.json"):
            run(tmp_path, "--arms", arm)


def test_a_record_of_another_digest_and_a_file_in_the_way_are_told(tiny, tmp_path):
    run(tmp_path / "x", "--arms", "two")
    path = tmp_path / "x/arms/two.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"digest": "0"}))
    with pytest.raises(ConflictError, match="digest of other settings"):
        run(tmp_path / "x")
    (tmp_path / "y").mkdir()
    (tmp_path / "y/arms").write_text("")
    with pytest.raises(OutputError, match="a file is in the way"):
        run(tmp_path / "y")


def test_a_run_that_diverges_is_told_and_not_measured():
    arm = Arm("far", "FAFO", "common", "common", **TINY | {"eta_ov": 1e4})
    with pytest.raises(InputError, match="arm far, multiplier 1, seed 1 has diverged by epoch 4"):
        train.train_arm(arm, 1)


def test_what_a_record_says(tiny, tmp_path):
    run(tmp_path, "--arms", "one")
    record = json.loads((tmp_path / "arms/one.json").read_text())
    assert [(line["multiplier"], line["seed"]) for line in record["runs"]] == [(1, 1), (1, 2), (10, 1), (10, 2)]
    for line in record["runs"]:
        counts = np.array(line["counts"])
        assert counts.shape == (5, 5) and counts.sum() == 2 * 32 and line["steps"] == 20
        # Mean attention lies between what the heat map's bins allow.
        share = counts.sum(0) / counts.sum()
        assert share @ np.arange(5) / 5 <= line["distinct"] <= share @ np.arange(1, 6) / 5
    frame = tables.arms_frame([record])
    assert len(frame) == 2 and frame["seeds"].tolist() == [2, 2]
    np.testing.assert_allclose(tables.percent(record, 1.0).sum((1, 2)), 100)
    assert {line["level"] for line in record["matched"]} == {3.9}


def test_the_scalars_are_on_theorem_1s_curve_and_uniform_attention_is_the_mean_share():
    for r, loss in ((0.1, 0.01), (40.0, 0.5)):
        arm = {"form": "CACO", "length": 64}
        alpha, odds = tables.scalars(arm, r, loss), 22 / 41
        # q + (m/n)(e^q - 1) = K mu^2 / 2 with alpha mu from the loss, m = 22, M = 50, b = 10, r times 2 / 50.
        q, mu = np.log(alpha / (1 - alpha) / odds), np.log(49 / np.expm1(loss)) / alpha
        np.testing.assert_allclose(q + odds * np.expm1(q), 2 * r / 50 * 49 / 500 * mu**2 / 2, rtol=1e-9)
        assert np.isnan(tables.scalars(arm | {"form": "FACO"}, r, loss))
    np.testing.assert_allclose([tables.uniform(64), tables.uniform(128)], [0.3492, 0.3520], atol=5e-5)


def test_levels_are_read_in_the_logarithm_of_the_loss():
    arm = Arm("x", "CACO", "common", "common", levels=(2.0, 0.5, 0.1), **TINY)
    whole = {
        "evaluation": np.array([4.0, 1.0, 0.25, 0.3]),
        "distinct": np.array([0.0, 1.0, 2.0, 9.0]),
        "query": np.zeros(4),
    }
    found = train._matched(arm, whole)
    assert [line["level"] for line in found] == [2.0, 0.5]
    np.testing.assert_allclose([line["step"] for line in found], [0.5 * 5, 1.5 * 5])
    np.testing.assert_allclose([line["distinct"] for line in found], [0.5, 1.5])


def test_the_protocols_are_as_specified():
    coded, written = {arm.name: arm for arm in as_coded()}, {arm.name: arm for arm in as_written()}
    assert list(coded) == list("abcdefgh") == list(written)
    assert sum(arm.epochs * arm.batches * len(arm.seeds) for arm in coded.values()) == 5 * 3_450_000
    assert (coded["e"].multipliers, written["e"].multipliers) == ((20.0,), (10.0,))
    assert (coded["f"].ramp, written["f"].ramp, coded["h"].ramp) == (40.0, 20.0, 10.0)
    assert (coded["g"].length, written["g"].length) == (128, 64)
    assert all(arm.stop_loss == 0.001 and arm.reset == 1 for arm in written.values())
    assert [arm.stop_loss for arm in coded.values()] == [0.001] * 5 + [0.0] * 3


def test_the_panels_start_and_run_as_the_notebooks():
    """Panel by panel: which circuits start uniform (U), which at 1e-6 (I); epochs, batches, length."""
    said = {
        "a": ("FAFO", "UI", 2500, 250, 64),
        "b": ("FACO", "II", 2500, 250, 64),
        "c": ("CAFO", "II", 5000, 200, 64),
        "d": ("CACO", "UU", 2500, 200, 64),
        "e": ("FAFO", "II", 1000, 100, 64),
        "f": ("FAFO", "II", 2000, 100, 64),
        "g": ("CACO", "UU", 2000, 100, 128),
        "h": ("CACO", "UU", 2000, 100, 128),
    }
    for coded, written in zip(as_coded(), as_written(), strict=True):
        form, kinds, epochs, batches, length = said[coded.name]
        assert (coded.form, coded.epochs, coded.batches, coded.length, coded.eta_ov) == (
            form,
            epochs,
            batches,
            length,
            0.01,
        )
        assert (written.form, written.qk, written.ov, written.epochs) == (form, coded.qk, coded.ov, epochs)
        assert coded.gamma is None and written.gamma == 5.5 / 15.5 and coded.reset == 100
        params = coded.start(1234)
        for circuit, kind in zip(("qk", "ov"), kinds, strict=True):
            for matrix in map(np.asarray, params[circuit].values()):
                if kind == "I":
                    np.testing.assert_array_equal(matrix, np.float32(1e-6) * np.eye(50, dtype=np.float32))
                else:
                    assert 0.14 < np.abs(matrix).max() <= 50**-0.5 and abs(matrix.mean()) < 0.01


def test_the_controlled_protocol_starts_all_four_as_one_function():
    arms = controlled()
    assert len(arms) == 14 and sum(arm.multipliers == (0.1, 1.0, 10.0, 40.0) for arm in arms) == 8
    assert {arm.eta_ov for arm in arms if arm.name.endswith("slow")} == {0.01}
    for scale in (1.0, 0.01):
        flat = [collapse(arm.start(7)) for arm in arms if arm.scale == scale and arm.qk == "common"]
        for other in flat[1:]:
            for circuit, name in (("qk", "W_QK"), ("ov", "W_OV")):
                np.testing.assert_allclose(other[circuit][name], flat[0][circuit][name], atol=1e-6 * scale)
        factored = next(arm for arm in arms if arm.scale == scale and arm.form == "FAFO")
        assert all(float(defect) < 1e-5 for defect in balancedness(factored.start(7)).values())


@pytest.mark.parametrize(
    "arguments, error, told",
    [
        (["--arms", "three"], InputError, "one of one, two, got 'three'"),
        (["--draw-only"], OutputError, "has no finished arm"),
    ],
)
def test_wrong_input_is_refused(tiny, tmp_path, arguments, error, told):
    with pytest.raises(error, match=told):
        run(tmp_path / "x", *arguments)


def test_arms_that_make_no_sense_are_refused():
    with pytest.raises(InputError, match="start must be one of identity, uniform, common, got 'zeros'"):
        Arm("x", "CACO", "zeros", "common", epochs=1, batches=1)
    for wrong in ({"seeds": (1, 1)}, {"seeds": (-1,)}, {"multipliers": ()}, {"multipliers": (1, 1)}, {"levels": (0,)}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))[:-1]}s? must be"):
            Arm("x", "CACO", "common", "common", **TINY | wrong)
    with pytest.raises(InputError, match="starts must be both common or neither"):
        Arm("x", "CACO", "common", "uniform", **TINY)
    with pytest.raises(InputError, match="at least one finished arm"):
        draw_fig2([], "anywhere")
    with pytest.raises(InputError, match="evaluation must be"):
        fig2.Config(as_coded(), evaluation=0)
    assert isinstance(tables.matched_frame([]), pd.DataFrame)

"""Table 1 on HateXplain as a command: records of groups, readings, effects, published numbers, verdicts, wrong input."""

import copy
import json
import types
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import made_records
from experiments import table1_hatexplain as table1
from experiments.text import arms, effects, published, readings, tables, tune, verdict
from experiments.text.recipe import Recipe, TextArm
from qkdyn import results
from qkdyn.config import main_guard
from qkdyn.errors import ConflictError, InputError, Interrupted, OutputError
from qkdyn.figures.text import draw_curves, draw_dtap, draw_text, draw_training, words
from qkdyn.figures.text_tuning import draw_tuning

SEEDS = (1, 2, 3)
PICTURES = {"dtap.png", "training.png", "curves.png"}


@pytest.fixture
def calls(monkeypatch):
    """A made trainer that draws nothing; what it was asked for."""
    heard = []
    made = made_records.trainer(heard)
    monkeypatch.setattr(table1, "train_group", made.train_group)
    monkeypatch.setattr(table1, "load", made.load)
    monkeypatch.setattr(table1, "draw_text", lambda groups, effects, folder: [])
    monkeypatch.setattr(table1, "draw_tuning", lambda rates, multipliers, path: results.write_text(path, "drawn"))
    small = replace(Recipe(), seeds=SEEDS)
    groups = ((TextArm("baseline", 3), TextArm("qk30", 3, qk=30.0)), (TextArm("embed30", 4, embed=30.0),))
    compared = (arms.Comparison("quick", ("baseline", "qk30", "embed30")),)
    monkeypatch.setitem(table1.PROTOCOLS, "quick", table1.Config(arms.Protocol(small, groups, compared, limit=9)))
    return heard


def run(folder, *arguments):
    return table1.main(["--quick", "--out", str(folder), *arguments])


def drawn(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".csv", ".png", ".md")}


def made(protocol):
    """Records as the command would have them."""
    places = table1.places(None, protocol)
    found = [made_records.made_record(protocol.recipe, arm) for arm in protocol.arms]
    return [
        {"arm": dict(place.arm), "wall_seconds": 1.0, **record, **place.shared}
        for place, record in zip(places, found, strict=True)
    ]


@pytest.fixture(scope="module")
def frames(controlled):
    return tables.frames(*controlled)


@pytest.fixture(scope="module")
def controlled():
    protocol = arms.controlled()
    protocol = replace(protocol, recipe=replace(protocol.recipe, seeds=SEEDS))
    return made(protocol), protocol


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


def test_a_signal_between_groups_loses_no_finished_arm_and_fresh_forgets(calls, tmp_path, monkeypatch):
    whole = table1.train_group

    def stopped(recipe, group, *rest):
        if group[0].name == "embed30":
            raise Interrupted("SIGTERM")
        return whole(recipe, group, *rest)

    monkeypatch.setattr(table1, "train_group", stopped)
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
    monkeypatch.setattr(table1, "train_group", whole)
    del calls[:]
    assert run(tmp_path) == 0 and calls == ["load", ["embed30"]]


def test_records_of_other_settings_or_data_are_refused(calls, tmp_path, monkeypatch):
    run(tmp_path, "--arms", "baseline")
    monkeypatch.setattr(table1, "load", lambda *a, **k: types.SimpleNamespace(notes=(), sha256={"dataset.json": "b"}))
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
        (["--layers", "3"], "layers must be one of 1, 2, 4"),
        (["--tune", "--arms", "qk30"], "--arms must be left out beside --tune"),
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


# Readings.


def test_levels_are_read_in_the_logarithm_of_the_loss():
    lines = {"training_loss": [1.0, 0.25, 0.3, 0.0625], "test": {"mrta": [0.0, 1.0, 2.0, 3.0]}}
    own = {"seed": 1, "diverged_at": None, "epochs": lines}
    assert readings.at_level(own, "test", "mrta", 0.5) == pytest.approx(0.5)
    assert np.isnan(readings.at_level(own, "test", "sharpest_head", 0.5))
    # At the first crossing, though the loss rises above the level once more.
    assert readings.at_level(own, "test", "mrta", 0.26) == pytest.approx(1 - np.log(0.26 / 0.25) / np.log(4))
    assert np.isnan(readings.at_level(own, "test", "mrta", 0.01)) and np.isnan(
        readings.at_level(own, "test", "mrta", 1.0)
    )


def test_the_matched_level_is_reached_by_every_run_that_did_not_diverge(controlled):
    records, _ = controlled
    two = copy.deepcopy(records[:1] + records[8:9])
    # exp(-0.1 e) and exp(-0.12 e), ten epochs.
    assert readings.matched_level(two) == pytest.approx(np.exp(-1.0))
    two[0]["runs"][0]["epochs"]["training_loss"][-1] = None
    assert readings.matched_level(two) == pytest.approx(np.exp(-0.9))
    two[0]["runs"][0] |= {"diverged_at": 5}
    assert readings.matched_level(two) == pytest.approx(np.exp(-1.0))
    found = readings.values(two[1], "matched", "test", "accuracy", np.exp(-1.0))
    # The made quantities rise by a tenth of what ln(loss) falls by, and are linear in it.
    np.testing.assert_allclose(found, [0.3 + 0.001 * seed + 0.1 + 0.02 for seed in SEEDS], atol=1e-5)
    assert np.isfinite(readings.values(two[1], "matched", "test", "uniform_mrta", 0.5)).all()


def test_numbers_over_heads_and_areas_are_those_of_their_parts():
    heads = [{"mrta": 0.2, "entropy": 1.0, "auprc": 0.5}, {"mrta": 0.4, "entropy": 3.0, "auprc": None}]
    own = {
        "heads": heads,
        "ac_curve": [100.0] * 11 + [0.0] * 10,
        "position_auprc_first": 0.3,
        "position_auprc_last": 0.4,
    }
    found = [readings.number(own, n) for n in ("head_entropy", "sharpest_head", "best_head_mrta", "position_auprc")]
    assert found == [2.0, 1.0, 0.4, 0.4] and readings.number(own, "ac_area") == pytest.approx(52.5)
    assert np.isnan(readings.number(own, "acmc_area")) and np.isnan(readings.number(None, "mrta"))


# Tables.


def test_the_tables_hold_means_intervals_and_paired_differences(frames):
    found = frames
    long = found["summary"].set_index(["comparison", "arm", "reading", "split", "quantity"]).sort_index()
    row = long.loc[("dose", "qk30", "end", "test", "mrta")]
    index = [q.name for q in readings.QUANTITIES if "head" not in q.name and "area" not in q.name].index("mrta")
    expected = 0.3 + 0.002 + 0.1 * 0.12 * 10 + 0.02 + 0.01 * index
    half = 4.302653 * 0.001 / np.sqrt(3)
    np.testing.assert_allclose([row["mean"], row["high"] - row["mean"], row["sd"]], [expected, half, 1e-3], atol=1e-6)
    # Seeds shift both arms alike: the difference has no spread.
    np.testing.assert_allclose([row["change_mean"], row["change_low"]], [0.1 + 0.1 * 0.02 * 10] * 2, atol=1e-6)
    assert row["uniform"] == 0.25 and np.isnan(row["position"])
    assert np.isnan(long.loc[("dose", "baseline", "end", "test", "mrta"), "change_mean"])
    auprc = long.loc[("long", "qk30-long", "best", "validation", "auprc")]
    assert (auprc["uniform"], auprc["random"], auprc["position"]) == (0.25, 0.27, 0.3)
    claims = found["summary"].groupby("quantity")["claim"].first()
    assert claims["entropy"] == claims["top_mass"] == claims["sharpest_head"] == "sharper"
    assert claims["mrta"] == claims["auprc"] == "sharper on the relevant tokens"
    short = found["table"].set_index(["comparison", "arm", "reading", "split"]).sort_index()
    assert short.loc[("dose", "qk30", "end", "test"), "mrta_ci"] == pytest.approx(half)
    assert set(found["summary"]["split"]) == {"train", "validation", "test"}
    assert len(found["costs"]) == 26 and (found["costs"]["diverged"] == 0).all()


def test_effects_of_the_factorial_are_those_that_were_put_in(controlled, frames):
    (records, protocol), frame = controlled, frames["effects"]
    own = frame.loc[(frame["reading"] == "end") & (frame["split"] == "test") & (frame["quantity"] == "mrta")]
    found = {(kind, factor): mean for kind, factor, mean in own[["kind", "factor", "mean"]].itertuples(index=False)}
    qk, embed, both, frozen = 0.1 + 0.1 * 0.02 * 10, 0.05, 0.02, -0.01
    expected = {
        ("total", "all"): qk + embed + both + frozen,
        ("alone", "qk30"): qk,
        ("last", "qk30"): qk + both,
        ("main", "qk30"): qk + both / 2,
        ("interaction", "qk30 x embed30"): both / 2,
        ("interaction", "qk30 x frozen"): 0.0,
        ("share", "qk30"): qk + both / 2,
        ("share", "embed30"): embed + both / 2,
        ("main", "frozen"): frozen,
        ("share", "decay"): 0.0,
    }
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=1e-6), key
    assert len(found) == 1 + 4 + 4 + 4 + 6 + 4
    assert not len(effects.effects_frame(records[1:], protocol.comparisons[0]))


@settings(max_examples=8)
@given(arrays(float, (2, 2, 2, 3), elements=st.floats(-1, 1, width=32)))
def test_shares_sum_to_the_total_and_vanish_for_what_does_nothing(found):
    own = {(kind, name): interval.mean for kind, name, interval in effects.effects(found, tuple("abc"))}
    assert sum(own["share", name] for name in "abc") == pytest.approx(float(own["total", "all"]), abs=1e-6)
    idle = np.repeat(found[:, :, :1], 2, 2)
    own = {(kind, name): interval.mean for kind, name, interval in effects.effects(idle, tuple("abc"))}
    assert own["share", "c"] == own["main", "c"] == own["alone", "c"] == 0


def test_published_numbers_agree_with_each_other_and_stand_beside_ours():
    lines = published.printed(1)
    told = {(x.source, x.arm, x.split, x.quantity, x.reading): x for x in lines}
    accuracy = told["notebook", "faster", "validation", "accuracy", "end"].interval
    table = next(
        x for x in lines if "Table" in x.source and x.arm == "faster" and x.quantity == "accuracy" and x.half > 0.02
    )
    np.testing.assert_allclose(accuracy, table.interval, atol=2e-4)
    means = {"baseline": (0.8777, 0.5593, 0.5752), "faster": (0.9152, 0.5690, 0.5548)}
    for arm, expected in means.items():
        seen = [told["notebook", arm, s, "accuracy", "end"].interval[0] for s in ("train", "validation", "test")]
        np.testing.assert_allclose(seen, expected, atol=6e-5)
    mass = told["notebook", "faster", "test", "mrta_all", "end"].interval
    np.testing.assert_allclose([mass[0], mass[2] - mass[0]], [0.311, 0.012], atol=1e-3)
    # Heat maps in percent: each run sums to 100, and with seed 1235 twice they have the printed AC and ACMC.
    cells = {x.quantity[-3:]: np.array(x.values) for x in lines if x.quantity.startswith("dtap_all")}
    np.testing.assert_allclose(sum(cells.values()), 100, atol=0.03)
    twice = np.array([2, 1, 1, 1]) / 5
    ac = sum(cells[f"{i}.{j}"] for i in range(3) for j in (1, 2)) @ twice
    acmc = sum(cells[f"{i}.{j}"] for i in (1, 2) for j in (1, 2)) @ twice
    np.testing.assert_allclose([ac, acmc], [43.52, 30.30], atol=0.01)
    assert {layers: len(published.printed(layers)) for layers in (1, 2, 4)} == {1: 63, 2: 22, 4: 14}

    records = made(replace(arms.as_coded(), recipe=replace(arms.as_coded().recipe, seeds=SEEDS)))
    frame = published.compared_frame(records)
    cell = frame.loc[frame["quantity"] == "dtap_all.2.0"].iloc[0]
    assert (cell["printed"], cell["ours"]) == (pytest.approx(cells["2.0"].mean()), 30)
    row = frame.loc[
        (frame["quantity"] == "accuracy") & (frame["reading"] == "epoch-10") & (frame["arm"] == "baseline")
    ].iloc[0]
    assert row["ours"] == pytest.approx(0.2 + 0.002 + 0.1 * 0.1 * 10) and not row["intervals_overlap"]
    assert row["printed"] == pytest.approx(np.mean([0.6009, 0.6061, 0.6145, 0.6098, 0.5952]))
    at_20 = frame.loc[frame["quantity"] == "comprehensiveness_20"].iloc[0]
    own = [run["end"]["validation"]["comprehensiveness_curve"][3] for run in records[0]["runs"]]
    assert at_20["ours"] == pytest.approx(np.mean(own))
    assert np.isclose(frame.loc[frame["quantity"] == "head_0_low", "ours"], 0.5).all()
    records[0]["runs"] = [copy.deepcopy(records[0]["runs"][0]) for _ in range(5)]
    for own, value in zip(records[0]["runs"], (0.56, 0.561, 0.559, 0.558, 0.562), strict=True):
        own["end"]["validation"]["accuracy"] = value
    frame = published.compared_frame(records)
    same = (frame["quantity"] == "accuracy") & (frame["split"] == "validation") & (frame["reading"] == "end")
    assert frame.loc[same & (frame["arm"] == "baseline") & (frame["source"] == "notebook"), "intervals_overlap"].item()


# Verdicts.


def test_a_verdict_keeps_the_two_claims_apart(controlled):
    base = copy.deepcopy(controlled[0][0])
    other = copy.deepcopy(base)
    for own in other["runs"]:
        own["end"]["test"]["entropy"] -= 0.1 + 0.01 * own["seed"]
        own["end"]["test"]["mrta"] += 0.1 + 0.01 * own["seed"]
        own["end"]["test"]["auprc"] += 0.01 * (-1) ** own["seed"]
    said = verdict.claims(other, base)
    assert said.startswith("is sharper (entropy -0.120 [-0.145, -0.095] nats")
    assert "puts more on the relevant tokens (MRTA +0.120" in said and "ranks them no better that could be told" in said
    said = verdict.claims(base, other)
    assert "is flatter" in said and "puts less on the relevant tokens" in said and "ranks them no better" in said
    assert verdict.claims(other, base, "matched", level=1e-9) == "cannot be read there"


def test_the_verdicts_hold_what_is_asked_for(controlled):
    text = verdict.verdict(*controlled, "controlled")
    assert text.startswith("**HateXplain, controlled**: 26 of 26 arms, 3 runs each")
    shares = "MRTA +0.180 [0.180, 0.180], of it QK x30 +0.130 [0.130, 0.130], embeddings x30 +0.0600"
    for part in (shares, "Trained 30 epochs instead of 10, baseline", "OV x30 and nothing else", "random order 0.270"):
        assert part in text, part
    some = [record for record in controlled[0] if record["arm"]["name"] in ("baseline", "qk30")]
    assert "QK x30 and nothing else" in verdict.verdict(some, controlled[1], "controlled")
    coded = replace(arms.as_coded(), recipe=replace(arms.as_coded().recipe, seeds=SEEDS))
    text = verdict.verdict(made(coded), coded, "as_coded")
    assert "faster, validation, all posts: AC" in text and "printed 43.6 [41.9, 45.2]%" in text
    assert "union of the annotators'" in text and "Beside the baseline, attention of faster" in text


# Figures.


def test_figures_show_diverged_runs_and_single_seeds(controlled, frames, tmp_path):
    records, protocol = controlled
    records = copy.deepcopy(records)
    broken = next(record for record in records if record["arm"]["name"] == "all30")
    for own in broken["runs"]:
        own["diverged_at"] = 2
        gone = [None] * len(own["epochs"]["training_loss"])
        own["epochs"] = {"training_loss": gone} | {
            split: dict.fromkeys(own["epochs"][split], gone) for split in ("validation", "test")
        }
        for split in own["end"].values():
            split |= dict.fromkeys(split) | {"heads": [], "dtap": [[None] * 3] * 3, "dtap_all": [[None] * 3] * 3}
            split |= {"ac_curve": [None] * 21, "acmc_curve": [None] * 21}
        own["best"] |= {split: own["end"][split] for split in ("validation", "test")}
    wanted = {"dose": ("baseline", "qk5", "qk30", "qk100", "all30"), "long": ("baseline-long", "qk30-long")}
    protocol = replace(protocol, comparisons=tuple(arms.Comparison(*pair) for pair in wanted.items()))
    found = tables.frames(records, protocol)
    groups = [(comparison.name, there) for comparison, there in tables.compared(records, protocol)]
    names = {path.name for path in draw_text(groups, frames["effects"], tmp_path)}
    assert names == PICTURES | {"effects.png", "dose.png"}
    assert "all30" not in set(found["summary"]["arm"]) and found["costs"].set_index("arm").loc["all30", "diverged"] == 3
    single = [record | {"runs": record["runs"][:1]} for record in (broken, records[0])]
    for figure in (draw_dtap(single), draw_training([("quick", single)]), draw_curves(single)):
        assert figure.axes
    with pytest.raises(InputError, match="at least one finished arm"):
        draw_text([("x", [])], None, tmp_path)
    with pytest.raises(InputError, match="at least one finished arm"):
        draw_tuning([], [], tmp_path / "x.png")


def test_names_of_arms_in_words():
    assert words("qk30+embed30+frozen+decay-long") == "QK x30 + embeddings x30 + MLP frozen + decay x10"
    assert [words(name) for name in ("baseline", "all30", "ov30", "faster")] == [
        "baseline",
        "every rate x30",
        "OV x30",
        "faster",
    ]


# Tuning.


def tuned(calls, monkeypatch, accuracy):
    """Make the trainer give each arm the validation accuracy that `accuracy` says, None for a run that diverges."""
    whole = table1.train_group

    def train_group(recipe, group, *rest):
        found = whole(recipe, group, *rest)
        for arm in group:
            for own in found[arm.name]["runs"]:
                value = accuracy(arm)
                own["end"]["validation"]["accuracy"] = value
                own["diverged_at"] = 2 if value is None else None
        return found

    monkeypatch.setattr(table1, "train_group", train_group)


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


def test_tuning_where_nothing_can_be_chosen_says_so(calls, tmp_path, monkeypatch):
    tuned(calls, monkeypatch, lambda arm: None)
    assert run(tmp_path, "--tune") == 0
    assert "every base rate has a run that diverged" in (tmp_path / "verdict.md").read_text()
    assert tune.best_of([]) is None


def test_where_results_go(tmp_path):
    def folder(**options):
        return table1.Options(**options).folder.relative_to(tmp_path.cwd()).as_posix()

    assert folder() == "results/hatexplain/controlled" and folder(quick=True) == "results/quick/hatexplain"
    assert folder(protocol="as_coded", layers=2) == "results/hatexplain/as_coded-2layers"
    assert (
        folder(tune=True) == "results/hatexplain/tune"
        and folder(quick=True, tune=True) == "results/quick/hatexplain-tune"
    )
    assert folder(protocol="as_written", tune=True) == "results/hatexplain/as_written-tune"

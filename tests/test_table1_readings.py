"""What is read off records of Table 1 on HateXplain: readings, tables, effects, published numbers, verdicts, figures."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import made_records
from experiments.text import arms, claims, effects, published, readings, sva_arms, sva_verdict, tables, verdict
from qkdyn.errors import InputError
from qkdyn.figures.text import draw_curves, draw_dtap, draw_text, draw_training, words
from qkdyn.figures.text_tuning import draw_tuning

SEEDS = (1, 2, 3)
PICTURES = {"dtap.png", "training.png", "curves.png"}


@pytest.fixture(scope="module")
def frames(controlled):
    return tables.frames(*controlled)


@pytest.fixture(scope="module")
def controlled():
    protocol = arms.controlled()
    protocol = replace(protocol, recipe=replace(protocol.recipe, seeds=SEEDS))
    return made_records.made(protocol), protocol


def published_pair(protocol, seeds=SEEDS):
    protocol = replace(protocol, recipe=replace(protocol.recipe, seeds=seeds))
    return made_records.made(protocol), protocol


# Readings.


def one_run(loss, test, diverged=None):
    """A run with these columns, and at the end and best epoch what its last epoch has, as the trainer writes it."""
    last = {name: column[-1] for name, column in test.items()}
    end = {split: dict(last) for split in ("train", "validation", "test")}
    epochs = {"training_loss": loss, "validation": test, "test": test}
    return {"seed": 1, "diverged_at": diverged, "epochs": epochs, "end": end, "best": {"epoch": len(loss)} | end}


def test_a_matched_loss_is_that_of_the_middle_of_an_epoch_and_a_measure_that_of_its_end():
    # loss(t) = 2 exp(-t / 2), t in epochs; a measure that is 3 + t / 4. The mean of an epoch is near that of its middle.
    time = np.arange(1, 7)
    own = one_run((2 * np.exp(-(time - 0.5) / 2)).tolist(), {"mrta": (3 + time / 4).tolist()})
    for t in (1.001, 1.7, 2.5, 5.0, 5.4999):
        assert readings.at_level(own, "test", "mrta", 2 * np.exp(-t / 2) + 1e-12) == pytest.approx(3 + t / 4)
    # Before the end of the first epoch, after the middle of the last, not measured at all.
    for t, name in ((0.4, "mrta"), (0.99, "mrta"), (5.501, "mrta"), (2.0, "sharpest_head")):
        assert np.isnan(readings.at_level(own, "test", name, 2 * np.exp(-t / 2)))


def test_a_level_is_passed_once_and_from_above():
    own = one_run([1.0, 0.25, 0.3, 0.0625], {"mrta": [0.0, 1.0, 4.0, 3.0]})
    # At the first crossing, though the loss rises above the level once more.
    assert readings.at_level(own, "test", "mrta", 0.26) == pytest.approx(0.5 - np.log(0.26 / 0.25) / np.log(4))
    assert np.isnan(readings.at_level(own, "test", "mrta", 0.01))
    assert np.isnan(readings.at_level(own, "test", "mrta", 1.0))
    # Below the level to begin with: it rises above it and falls again.
    assert np.isnan(readings.at_level(one_run([0.4, 0.6, 0.3], {"mrta": [0.0, 1.0, 2.0]}), "test", "mrta", 0.5))


def test_a_run_that_diverged_is_known_nowhere_after_that(controlled):
    record = copy.deepcopy(controlled[0][0])
    whole = {q.name: readings.values(record, "end", "test", q.name) for q in readings.QUANTITIES}
    assert all(np.isfinite(own).all() for own in whole.values())
    for run, best in zip(record["runs"], (1, 2, 3), strict=True):
        run["diverged_at"], run["best"]["epoch"] = 2, best
    for q in readings.QUANTITIES:
        assert np.isnan(readings.values(record, "end", "test", q.name)).all(), q.name
        best = readings.values(record, "best", "test", q.name)
        assert np.isfinite(best).tolist() == [True, False, False], q.name
    assert np.isnan(readings.curve(record, "test", "mrta")[:, 1:]).all()
    assert np.isfinite(readings.curve(record, "test", "mrta")[:, 0]).all()
    assert np.isnan(readings.values(record, "matched", "test", "mrta", 0.9)).all()
    assert np.isnan(readings.matched_level([record]))
    # What depends on the posts alone is known all the same.
    for name in ("uniform_mrta", "position_auprc", "uniform_ac_area"):
        assert np.isfinite(readings.values(record, "end", "test", name)).all()
    assert np.isnan(readings.values(record, "end", "test", "uniform_acmc")).all()
    frame = published.compared_frame([record])
    assert frame.loc[frame["reading"] == "end", "ours"].isna().all()


def test_the_matched_level_is_reached_by_every_run_that_did_not_diverge(controlled):
    records, _ = controlled
    two = copy.deepcopy(records[:1] + records[8:9])
    # exp(-0.1 (e - 1/2)) and exp(-0.12 (e - 1/2)), ten epochs.
    assert readings.matched_level(two) == pytest.approx(np.exp(-0.95))
    two[0]["runs"][0]["epochs"]["training_loss"][-1] = None
    assert readings.matched_level(two) == pytest.approx(np.exp(-0.85))
    two[0]["runs"][0] |= {"diverged_at": 5}
    assert readings.matched_level(two) == pytest.approx(np.exp(-0.95))
    found = readings.values(two[1], "matched", "test", "accuracy", np.exp(-1.0))
    # The made quantities rise by a tenth of what ln(loss) has fallen by at that time.
    np.testing.assert_allclose(found, [0.3 + 0.001 * seed + 0.1 + 0.02 for seed in SEEDS], atol=1e-5)
    assert np.isfinite(readings.values(two[1], "matched", "test", "uniform_mrta", 0.5)).all()


def test_a_head_is_picked_on_validation_and_areas_are_those_of_their_curves():
    run = one_run([1.0], {"head_entropy": [2.0]})
    for split, mrta, entropy in (("validation", (0.2, 0.4), (3.0, 1.0)), ("test", (0.5, 0.3), (1.5, 2.5))):
        run["end"][split]["heads"] = [
            {"mrta": m, "entropy": e, "auprc": a} for m, e, a in zip(mrta, entropy, (0.5, None), strict=True)
        ]
    found = [readings.number(run, "end", "test", n) for n in ("best_head_mrta", "sharpest_head", "best_head_auprc")]
    assert found == [0.3, 2.5, 0.5] and readings.number(run, "end", "validation", "best_head_mrta") == 0.4
    assert readings.number(run, "end", "test", "head_entropy") == 2.0
    assert np.isnan(readings.number(run, "end", "train", "best_head_mrta"))
    run["end"]["test"] |= {"ac_curve": [100.0] * 11 + [0.0] * 10, "uniform_ac_curve": [40.0] * 21}
    run["end"]["test"] |= {"position_auprc_first": 0.3, "position_auprc_last": 0.4}
    found = [readings.number(run, "end", "test", n) for n in ("ac_area", "uniform_ac_area", "position_auprc")]
    assert found == pytest.approx([52.5, 40.0, 0.4]) and np.isnan(readings.number(run, "end", "test", "acmc_area"))


def test_every_number_of_attention_has_one_of_uniform_attention_and_names_its_posts():
    for q in readings.QUANTITIES:
        about_attention = q.claim in (readings.SHARPER, readings.RELEVANT)
        assert (q.uniform is not None) == about_attention, q.name
        assert ("toxic posts" in q.label) != ("all posts" in q.label), q.label
        assert "_marked" not in q.name or "toxic posts" in q.label
    both = {"entropy", "top_mass", "comprehensiveness", "sufficiency", "accuracy"}
    assert both | {f"{name}_marked" for name in both} <= set(readings.NAMED)


# Tables.


def test_the_tables_hold_means_intervals_and_paired_differences(frames):
    found = frames
    long = found["summary"].set_index(["comparison", "arm", "reading", "split", "quantity"]).sort_index()
    row = long.loc[("dose", "qk30", "end", "test", "mrta")]
    index = list(made_records.measured(0.0)).index("mrta")
    expected = 0.3 + 0.002 + 0.1 * 0.12 * 10 + 0.02 + 0.01 * index
    half = 4.302653 * 0.001 / np.sqrt(3)
    np.testing.assert_allclose([row["mean"], row["high"] - row["mean"], row["sd"]], [expected, half, 1e-3], atol=1e-6)
    # Seeds shift both arms alike: the difference has no spread.
    np.testing.assert_allclose([row["change_mean"], row["change_low"]], [0.1 + 0.1 * 0.02 * 10] * 2, atol=1e-6)
    assert row["uniform"] == 0.25 and np.isnan(row["position"])
    assert np.isnan(long.loc[("dose", "baseline", "end", "test", "mrta"), "change_mean"])
    auprc = long.loc[("long", "qk30-long", "best", "validation", "auprc")]
    np.testing.assert_allclose(auprc[["uniform", "random", "position"]].to_numpy(float), [0.25, 0.27, 0.3])
    area = long.loc[("long", "qk30-long", "end", "validation", "acmc_area")]
    np.testing.assert_allclose(area[["mean", "uniform"]].to_numpy(float), [25.0, 15.0])
    about = found["summary"].groupby("quantity")["claim"].first()
    assert about["entropy"] == about["top_mass_marked"] == about["sharpest_head"] == "sharper"
    assert about["mrta"] == about["auprc"] == about["token_f1"] == "sharper on the relevant tokens"
    short = found["table"].set_index(["comparison", "arm", "reading", "split"]).sort_index()
    assert short.loc[("dose", "qk30", "end", "test"), "mrta_ci"] == pytest.approx(half)
    assert {"entropy", "entropy_marked", "head_entropy", "head_top_mass"} <= set(short.columns)
    assert {"group_seconds_per_arm", "group_tokens_per_second"} <= set(found["costs"].columns)
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


def test_effects_rest_on_the_seeds_that_every_arm_has(controlled):
    records, protocol = controlled
    records = copy.deepcopy(records[:16])
    records[5]["runs"][0]["diverged_at"] = 4
    for run in records[0]["runs"]:
        # Another effect of each seed, so that the parts of other seeds would not sum to the total.
        run["end"]["test"]["mrta"] += 0.1 * run["seed"]
    frame = effects.effects_frame(records, protocol.comparisons[0])
    own = frame.loc[(frame["reading"] == "end") & (frame["split"] == "test") & (frame["quantity"] == "mrta")]
    found = own.set_index(["kind", "factor"])["mean"]
    assert (own["seeds"] == 2).all() and own["low"].notna().all()
    assert found["share"].sum() == pytest.approx(found["total", "all"]) and found["total", "all"] == pytest.approx(
        -0.07
    )
    text = verdict.verdict(records, protocol, "controlled")
    assert "MRTA -0.0700 [-0.7053, 0.5653] on 2 of 3 seeds, of it" in text


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

    records = made_records.made(replace(arms.as_coded(), recipe=replace(arms.as_coded().recipe, seeds=SEEDS)))
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


def test_the_paper_s_own_text_stands_beside_the_printed_faster_arm():
    records, protocol = published_pair(arms.as_written())
    frame = published.compared_frame(records)
    assert set(zip(frame["arm"], frame["our_arm"], strict=True)) == {("baseline", "baseline"), ("faster", "qk30")}
    text = verdict.verdict(records, protocol, "as_written")
    assert "published arms differ by 0.276 in MRTA (validation, all posts); ours, with QK x30 and nothing else" in text
    assert "by +0.160 [0.160, 0.160], 58% of it, less than the published effect" in text
    assert "printed of the faster arm 43.6" in text
    lines = {(x.split, x.quantity): x.note for x in published.printed(1) if x.arm == "faster" and len(x.values) == 5}
    assert "two annotators had marked nothing" in lines["train", "mrta_all"]
    assert "numpy's partition" in lines["test", "sufficiency"] and not lines["test", "comprehensiveness"]


# Verdicts.


def test_a_verdict_keeps_the_two_claims_apart(controlled):
    base = copy.deepcopy(controlled[0][0])
    other = copy.deepcopy(base)
    for own in other["runs"]:
        own["end"]["test"]["entropy_marked"] -= 0.1 + 0.01 * own["seed"]
        own["end"]["test"]["head_entropy"] -= 0.5
        # All posts: not what the claim is about.
        own["end"]["test"]["entropy"] += 1.0
        own["end"]["test"]["mrta"] += 0.1 + 0.01 * own["seed"]
        own["end"]["test"]["auprc"] += 0.01 * (-1) ** own["seed"]
    said = claims.claims(other, base)
    assert said.startswith("is sharper (entropy -0.120 [-0.145, -0.095] nats")
    assert "all posts, -0.500 [-0.500, -0.500] nats" in said
    assert "puts more on the relevant tokens (MRTA +0.120" in said and "ranks them no better that could be told" in said
    said = claims.claims(base, other)
    assert "is flatter" in said and "puts less on the relevant tokens" in said and "ranks them no better" in said
    assert claims.claims(other, base, "matched", level=1e-9) == "cannot be read there"
    other["runs"][0]["diverged_at"] = 2
    assert "on 2 of 3 seeds" in claims.claims(other, base)


def test_the_verdicts_hold_what_is_asked_for(controlled):
    text = verdict.verdict(*controlled, "controlled")
    assert text.startswith("**HateXplain, controlled**: 26 of 26 arms, 3 runs each")
    shares = "MRTA +0.180 [0.180, 0.180], of it QK x30 +0.130 [0.130, 0.130], embeddings x30 +0.0600"
    assert f"{shares} [0.0600, 0.0600], MLP frozen -0.0100" in text
    for part in (
        "(main effects: QK x30 +0.130 [0.130, 0.130], embeddings x30 +0.0600",
        "24 can be told from 0, about 1 expected by chance",
        "Trained 30 epochs instead of 10, baseline",
        "OV x30 and nothing else",
        "(uniform attention 0.250), mass of the top 20%",
        "random order 0.270",
        "Data: made posts; posts cut to the length of the model: train 2, test 1; posts that cleaning leaves empty: vali",
    ):
        assert part in text, part
    short = text.splitlines()[2]
    assert "alter MRTA by +0.180 [0.180, 0.180] in 10 epochs, QK x30 alone by +0.120" in short
    assert "QK x30 72%, embeddings x30 33%, MLP frozen -6%, decay x10 0%" in short
    assert "Training 30 epochs instead of 10 changes entropy by +0.200" in short
    assert "QK x30, 10 epochs: flatter but ranked better" in short
    some = [record for record in controlled[0] if record["arm"]["name"] in ("baseline", "qk30")]
    assert "QK x30 and nothing else" in verdict.verdict(some, controlled[1], "controlled")
    records, coded = published_pair(arms.as_coded())
    text = verdict.verdict(records, coded, "as_coded")
    assert "faster, validation, all posts: AC" in text and "printed 43.6 [41.9, 45.2]%" in text
    assert "two annotators had marked nothing" in text and "Beside the baseline, attention of faster" in text


@pytest.mark.parametrize("protocol", [arms.as_coded(), arms.controlled()])
def test_one_run_has_no_interval_and_nothing_is_told_from_it(protocol):
    text = verdict.verdict(*published_pair(protocol, (1,)), "x")
    assert "1 run each" in text and "One run has no interval" in text and "cannot be judged without an interval" in text
    for part in ("overlap.", "Of 0", "0 of 0", "that could be told", "nan", "is sharper", "is flatter"):
        assert part not in text, part


# Figures.


def test_of_arms_all_of_whose_runs_diverged_nothing_else_is_said():
    """Of HateXplain and of sentences; one run that did not diverge brings everything back."""
    sentences = sva_arms.controlled()
    for own, say, name in (
        (arms.as_coded(), verdict.verdict, "as_coded"),
        (sentences, sva_verdict.verdict, "controlled"),
    ):
        records = made_records.made(own)[:2]
        for record in records:
            for run in record["runs"]:
                run["diverged_at"] = 1
        text = say(records, own, name)
        assert "Every run of all 2 finished arms diverged: there is nothing to say of what QK does." in text
        assert "Every run of the only finished arm diverged" in say(records[:1], own, name)
        assert "MRTA" not in text and "Data: " in text
        records[1]["runs"][0]["diverged_at"] = None
        assert "nothing to say" not in say(records, own, name)


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

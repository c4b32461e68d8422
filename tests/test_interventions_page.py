"""The page on interventions from made records: what is compared, how it is ranked, and what the two sentences then say."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from experiments.intervened import orthogonal
from experiments.intervened.arms import both, one
from experiments.intervened.page import arms_table, page
from experiments.intervened.tables import WITH_RATIO, arms_frame, by_rank, families, ranking
from made_interventions import made_arms, made_record
from qkdyn.errors import InputError
from qkdyn.figures import canvas
from qkdyn.figures.interventions import draw_interventions
from qkdyn.interventions import Schedule
from qkdyn.theory import at_loss

# Attention at the last level by the end of an arm's name.
USUAL = {
    "plain": 0.50,
    "ratio-10": 0.70,
    "ratio-100": 0.90,
    "clip-ov-0.1": 0.80,
    "decay-qk-0.01": 0.40,
    "gain-sgd": 0.70,
    "adam-1": 0.60,
    "adam-10": 0.85,
    "gain-adam": 0.61,
}
STEPS = {"ratio-100": 50.0, "clip-ov-0.1": 300.0}


def records(attention=None, *, setting="made", skip=(), diverged=(), predicted=None):
    attention = USUAL | (attention or {})
    found = []
    for arm in made_arms(setting):
        short = arm.name.removeprefix(f"{setting}-CACO-")
        if short not in skip:
            status = "diverged" if short in diverged else "stopped"
            told = None if predicted is None else predicted * attention[short]
            found.append(made_record(arm, attention[short], STEPS.get(short, 100.0), status=status, predicted=told))
    return found


def also(short, attention, steps=100.0, *, runs=3, predicted=None, **changed):
    """A further arm of the setting, named after another family."""
    arm = replace(made_arms()[0], name=f"made-CACO-{short}", **changed)
    record = made_record(arm, attention, steps, predicted=predicted)
    for run in record["runs"][runs:]:
        run |= {"status": "budget", "matched": []}
    return record


def by_adamw(*given):
    """The records as those of a setting that is trained by AdamW."""
    for record in given:
        record["arm"] |= {
            "setting": "posts",
            "optimizer": "adamw",
            "name": record["arm"]["name"].replace("made", "posts"),
        }
    return list(given)


def sentences(frame):
    text = page(frame).splitlines()[2]
    assert text.endswith(".") and "nan" not in text
    return text[:-1].split(". ")


def row(frame, short, level=0.1):
    own = frame[(frame["name"] == f"made-CACO-{short}") & (frame["level"] == level)]
    assert len(own) == 1
    return own.iloc[0]


def test_arms_are_compared_seed_by_seed_at_each_level():
    frame = arms_frame(records())
    assert len(frame) == 2 * len(USUAL) and set(frame["ranked"]) == {True, False}
    clip = row(frame, "clip-ov-0.1")
    # What seeds have in common cancels; over seeds 1, 2, 3 attention is 0.8 + 0.01, 0.02, 0.03.
    assert clip["change"] == pytest.approx(0.3) and clip["change_low"] == pytest.approx(0.3, abs=1e-9)
    assert clip["attention"] == pytest.approx(0.82)
    assert clip["attention_high"] - clip["attention"] == pytest.approx(4.302653 * 0.01 / np.sqrt(3), rel=1e-6)
    assert clip["steps_ratio"] == pytest.approx(np.mean([(600 + s) / (200 + s) for s in (1, 2, 3)]))
    assert clip["accuracy_change"] == 0 and not clip["own_rate"] and row(frame, "adam-1")["own_rate"]
    assert row(frame, "clip-ov-0.1", 0.5)["attention"] == pytest.approx(0.72)


def test_what_an_arm_is_worth_as_a_ratio():
    """Between r = 1, 10, 100 of attention 0.52, 0.72, 0.92 its logit is linear in ln r; outside there is none."""
    frame = arms_frame(records())

    def logit(a):
        return np.log(a / (1 - a))

    share = (logit(0.82) - logit(0.72)) / (logit(0.92) - logit(0.72))
    assert row(frame, "clip-ov-0.1")["r_eq"] == pytest.approx(10 ** (1 + share))
    assert row(frame, "ratio-100")["r_eq"] == pytest.approx(100)
    assert np.isnan(row(frame, "decay-qk-0.01")["r_eq"])
    # Updates of the ratio, 202 and 102 in the mean, are at this attention between them in ln too.
    assert row(frame, "clip-ov-0.1")["price"] == pytest.approx(602 / (202 * (102 / 202) ** share))
    assert row(frame, "ratio-10")["price"] == pytest.approx(1) and np.isnan(row(frame, "decay-qk-0.01")["price"])
    told = arms_frame(records(), {"made": lambda form, alpha, level: None if alpha > 0.9 else 100 * alpha + level})
    assert row(told, "clip-ov-0.1")["r_eq"] == pytest.approx(82.1) and np.isnan(row(told, "ratio-100")["r_eq"])


def test_the_orthogonal_setting_knows_the_ratio_of_an_attention():
    for r in (3.0, 30.0):
        at = at_loss(orthogonal.SIZES, r, [0.1], initial=orthogonal.START)
        assert orthogonal.equivalent("CACO", float(at.alpha[0]), 0.1) == pytest.approx(r, rel=1e-4)
    assert orthogonal.equivalent("CACO", 1.0, 0.1) is None


def test_the_ranking():
    frame = arms_frame(records())
    names = [name.removeprefix("made-CACO-") for name in ranking(frame)["name"]]
    assert names[:4] == ["ratio-100", "adam-10", "clip-ov-0.1", "ratio-10"] and names[-1] == "decay-qk-0.01"
    found = families(frame).set_index("family")
    assert found.loc["clipping of OV", "share"] == pytest.approx(0.75) and found.loc["clipping of OV", "sharpens"]
    assert not found.loc["weight decay of QK", "sharpens"]
    # Adam at another ratio has the ratio too.
    assert found.loc["Adam", "arms"] == 2 and found.loc["Adam", "change"] == pytest.approx(0.11)
    order = ["ratio", "Adam with another r", "clipping of OV", "gradient of QK rescaled", "Adam", "weight decay of QK"]
    assert by_rank(families(frame)) == order


def test_of_a_family_that_blunts_the_strongest_effect_is_shown():
    weak = also("decay-qk-0.1", 0.3, family="weight decay of QK", label="lambda = 0.1")
    mild = also("decay-qk-0.2", 0.49, family="weight decay of QK", label="lambda = 0.2")
    text = page(arms_frame([*records(), mild, weak]))
    assert "| weight decay of QK | -0.200 (1.00 x) |" in text


def test_a_sentence_of_gradient_descent_where_others_sharpen_too():
    said = sentences(arms_frame(records(predicted=1.0 + 0.02 / 0.5)))
    assert len(said) == 1 and said[0].startswith(
        "**Under gradient descent (made) the learning-rate ratio is one of several knobs**"
    )
    assert "2 of 3 other families of interventions sharpen attention" in said[0]
    reach = "1 of them to at least 50% of what the strongest ratio adds there: clipping of OV"
    assert f"in at least one of 1 column of the table ({reach})" in said[0]
    assert "several knobs**; in made they move the ratio of the circuits' effective rates" in said[0]
    (adam,) = sentences(arms_frame(records({"adam-1": 0.9})))
    assert (
        "2 of them to at least 50% of what the strongest ratio adds there: Adam in the place of SGD and clipping of OV)"
        in adam
    )
    assert "gives the attention of 9 arms in made to within" in said[0] and "as start and imbalance do" in said[0]


def test_knobs_have_something_in_common_where_there_is_a_theory():
    (said,) = sentences(arms_frame(records()))
    assert "several knobs**: 2 of 3" in said and "effective rates" not in said
    (said,) = sentences(arms_frame([*records(predicted=1.0 + 0.02 / 0.5), *records(setting="other")]))
    assert "(made and other)" in said and "several knobs**; in made they move" in said


def test_under_adam_an_arm_with_another_ratio_is_no_other_family():
    three = also("normalized-qk-3", 0.7, 90.0, family="normalization of QK", label="rates 3 and 1", r=3.0)
    frame = arms_frame(by_adamw(*records(), three))
    assert (
        list(frame[frame["name"].str.endswith("normalized-qk-3")]["family"]) == [f"normalization of QK{WITH_RATIO}"] * 2
    )
    under_sgd = arms_frame(
        [*records(), also("normalized-qk-3", 0.7, 90.0, family="normalization of QK", label="x", r=3.0)]
    )
    assert "normalization of QK" in set(under_sgd["family"])


def test_entropy_and_rank_of_attention_stand_in_the_table_of_arms():
    found = records()
    for run in found[0]["runs"]:
        run["matched"][-1] |= {"entropy": 1.5 + 0.25 * run["seed"], "auprc": 0.7}
    assert row(arms_frame(found), found[0]["arm"]["name"].split("CACO-")[1])["entropy"] == pytest.approx(2.0)
    assert arms_table(arms_frame(found)).count("| 0.900 | 2.00 | 0.700 | 3 of 3 |") == 1


def test_a_setting_without_its_plain_arm_is_of_no_optimizer():
    text = page(arms_frame([*records(), *records(setting="other", skip=set(USUAL) - {"adam-1", "adam-10"})]))
    assert "**Under gradient descent (made) the" in text and "Under Adam" not in text
    assert "- Not counted: other CACO, whose plain arm is missing." in text


def test_adams_limit_stands_beside_what_adam_did():
    text = page(arms_frame(records()), limits={("made", "CACO"): lambda r, level: 0.6 + 0.01 * r + level})
    (line,) = (line for line in text.splitlines() if line.startswith("- Adam, made CACO"))
    assert line.endswith("theory has 0.710 and 0.800.")
    assert "signs" not in page(arms_frame(records())) and "took 2 minutes" in page(arms_frame(records()), 119.0)


def test_prices_are_at_equal_attention():
    """Of an arm that is cheap beside the plain one the ratio may be as cheap for its attention."""
    cheap = also("start-qk-3", 0.69, 98.0, family="start of QK", label="times 3", start=(1.0, 3.0))
    text = page(arms_frame([*records(), cheap]))
    line = next(line for line in text.splitlines() if line.startswith("Price of these arms"))
    assert "made CACO: as many by start of QK 0.98 x and Adam 1.00 x*; more by" in line
    assert "more by clipping of OV 3.87 x." in line and "Price" not in page(
        arms_frame(records(skip=("ratio-10", "ratio-100")))
    )


def test_a_sentence_where_none_does():
    others = {"clip-ov-0.1": 0.45, "adam-1": 0.5, "adam-10": 0.9, "gain-adam": 0.5}
    for barely in (0.45, 0.505):  # A narrow interval about next to nothing is no knob.
        (said,) = sentences(arms_frame(records(others | {"clip-ov-0.1": barely})))
        assert said.startswith("**Under gradient descent (made) the learning-rate ratio is special**: none of 3 other")


def test_a_second_sentence_is_of_adamw():
    arms = [
        also("plain", 0.5),
        also("ratio-30", 0.9, r=30.0, label="r = 30"),
        also(
            "gain-adamw",
            0.4999,
            family="gradient of QK rescaled",
            label="AdamW, QK gradient times 30",
            gain=(1.0, 30.0),
        ),
        also("start-qk-3", 0.58, family="start of QK", label="times 3", start=(1.0, 3.0)),
        also("clip-qk-1", 0.49, family="clipping of QK", label="norm at most 1"),
    ]
    first, second = sentences(arms_frame([*records(), *by_adamw(*arms)]))
    assert "several knobs" in first and second.startswith(
        "**Under AdamW (posts) the learning-rate ratio is nearly alone**: of 2"
    )
    assert (
        "only start of QK (times 3) sharpens attention at a matched loss, by 20% of what the strongest ratio adds"
        in second
    )
    assert second.endswith("and the QK gradient times 30 adds +0.000 where its rate times 30 adds +0.400")
    text = page(arms_frame(by_adamw(*arms)))
    told = (
        "AdamW, posts CACO: attention 0.520 [0.495, 0.545] at r = 1, 0.920 [0.895, 0.945] with the rate of QK times 30"
    )
    assert f"{told} (+0.400)" in text


def test_families_that_cannot_be_compared_are_named_and_not_counted():
    """They do not make the ratio special, nor are they of those that do not sharpen."""
    gone = arms_frame(records({"adam-1": 0.5, "gain-adam": 0.5}, diverged=("clip-ov-0.1",)))
    (said,) = sentences(gone)
    assert "special" in said and "none of 2 other families" in said
    assert "- Not counted under gradient descent: clipping of OV (no run that compares)." in page(gone)
    alone = arms_frame(records(skip=("decay-qk-0.01", "adam-1", "gain-adam"), diverged=("clip-ov-0.1",)))
    (said,) = sentences(alone)
    assert "nothing can be judged" in said


@pytest.mark.parametrize("runs", [1, 2])
def test_too_few_runs_say_nothing(runs):
    """One run that survived is no evidence, nor are two of three."""
    few = also("start-qk-3", 0.95, family="start of QK", label="times 3", runs=runs)
    frame = arms_frame([*records(), few])
    found = families(frame).set_index("family")
    assert not found.loc["start of QK", "sharpens"] and not found.loc["start of QK", "known"]
    text = page(frame)
    assert "2 of 3 other families" in text and "start of QK (too few runs)" in text
    assert "| start of QK | +0.450 (1.00 x), too few runs |" in text


def test_rates_and_optimizers_of_ones_own_are_marked():
    normal = also(
        "normalized-qk-0.1", 0.8, family="normalization of QK", label="n", r=0.1, on=one("qk", gradient="normalized")
    )
    slow = also("momentum-both", 0.8, family="momentum", label="m", eta_ov=0.05, on=both(momentum=0.9))
    late = also(
        "delay-ov-9", 0.75, family="delayed OV", label="d", r=10.0, on=one("ov", schedule=Schedule.delayed(9.0))
    )
    frame = arms_frame([*records(), normal, slow, late])
    own = {short: bool(row(frame, short)["own_rate"]) for short in ("normalized-qk-0.1", "momentum-both", "delay-ov-9")}
    assert own == {"normalized-qk-0.1": True, "momentum-both": True, "delay-ov-9": False}
    assert not row(frame, "ratio-10")["own_rate"] and row(frame, "adam-1")["own_rate"]
    assert "(1.00 x*)" in page(frame)


def test_schedules_stand_beside_their_fastest_ratio():
    late = also(
        "delay-ov-9", 0.75, family="delayed OV", label="d", r=10.0, on=one("ov", schedule=Schedule.delayed(9.0))
    )
    ramp = also("ramp-up-9", 0.68, family="ramp up", label="u", on=one("qk", schedule=Schedule.ramp(1.0, 10.0, 9.0)))
    down = also("ramp-down-9", 0.6, family="ramp down", label="u", on=one("qk", schedule=Schedule.ramp(10.0, 1.0, 9.0)))
    frame = arms_frame([*records(), late, ramp, down])
    found = [row(frame, short)["beside_fast"] for short in ("delay-ov-9", "ramp-up-9", "ramp-down-9", "ratio-100")]
    assert found == pytest.approx([0.05, -0.02, -0.1, np.nan], nan_ok=True)
    assert "2 of 3 other families" in page(frame)
    assert "| +0.250 (seeds agree) | +0.050 (seeds agree) |" in arms_table(frame)


def test_next_to_all_attention_order_means_nothing():
    assert "| clipping of OV | +0.480= (2.98 x) |" in page(arms_frame(records({"clip-ov-0.1": 0.98})))


def test_seeds_that_agree_have_no_interval():
    same = records()
    for record in same:
        for run in record["runs"]:
            run["matched"] = [
                {**line, "attention": round(line["attention"] - 0.01 * run["seed"], 6)} for line in run["matched"]
            ]
    frame = arms_frame(same)
    assert "the setting is deterministic (made CACO)" in page(frame) and "+0.300 (seeds agree)" in arms_table(frame)
    assert "deterministic" not in page(arms_frame(records()))


def test_accuracy_is_said_where_it_changes():
    given = records()
    clip = next(record for record in given if record["arm"]["name"].endswith("clip-ov-0.1"))
    for run in clip["runs"]:
        run["matched"] = [{**line, "accuracy": 0.873} for line in run["matched"]]
    text = page(arms_frame(given))
    assert "| clipping of OV | +0.300 (2.98 x), accuracy -2.7 |" in text and text.count("), accuracy ") == 1


def test_theory_that_is_not_met_is_not_said_to_be():
    (off,), (on,) = sentences(arms_frame(records(predicted=1.3))), sentences(arms_frame(records(predicted=1.03)))
    assert "but theory, of effective rates and start alone, is off by up to" in off and "effective rates or" not in off
    assert "is off by" not in on and "theory" not in sentences(arms_frame(records()))[0]


def test_levels_that_only_one_of_runs_and_theory_reached_are_named():
    given = records(predicted=1.03)
    given[1]["predicted"] = []
    for run in given[2]["runs"]:
        run |= {"status": "budget", "matched": []}
    text = page(arms_frame(given))
    assert "- made CACO, ratio, r = 10: 0.1 is reached by runs and not by theory." in text
    assert "- made CACO, ratio, r = 100: 0.1 is reached by theory and by no run." in text
    # There is none at the first level for any arm of theirs, and none of Adam.
    assert text.count("by theory") == 2


def test_runs_that_diverged_are_said_and_the_others_stand():
    found = arms_frame(records(diverged=("clip-ov-0.1",)))
    text = page(found)
    assert "| clipping of OV | diverged |" in text
    assert "made CACO, clipping of OV, norm at most 0.1: 0 of 3 runs are read at 0.1; 3 diverged." in text
    assert "0 of 3, 3 diverged |" in arms_table(found)
    some = records()
    clip = next(record for record in some if record["arm"]["name"].endswith("clip-ov-0.1"))
    clip["runs"][0] |= {"status": "diverged", "diverged_at": 3, "matched": []}
    one = row(arms_frame(some), "clip-ov-0.1")
    assert (one["reached"], one["diverged"]) == (2, 1) and one["change"] == pytest.approx(0.3)


@pytest.mark.parametrize("gone", [tuple(USUAL), ("plain",)])
def test_all_diverged(gone):
    frame = arms_frame(records(diverged=gone))
    assert page(frame).splitlines()[2].startswith("**No run of an intervention can be compared with a plain one**")
    assert sum(line.startswith("| made") for line in arms_table(frame).splitlines()) == len(USUAL)
    figure = draw_interventions(ranking(frame), by_rank(families(frame)))
    assert "no arm that reached the loss" in figure.axes[0].texts[-1].get_text()


def test_a_few_arms():
    text = page(arms_frame(records(skip=[name for name in USUAL if name not in ("plain", "ratio-10")])))
    assert "**Under gradient descent (made) only rates were varied so far (2 arms)**" in text
    alone = arms_frame(records(skip=[name for name in USUAL if name != "plain"]))
    assert "**No run of an intervention can be compared" in page(alone) and families(alone).empty
    without = page(arms_frame(records(skip=("plain",))))
    assert "**No run of an intervention can be compared" in without
    no_ratio = page(arms_frame(records(skip=("ratio-10", "ratio-100"))))
    assert "there is no ratio to compare with**: 2 of 3" in no_ratio and "nan" not in no_ratio and "50%" not in no_ratio
    one_arm = page(arms_frame([*records(skip=("plain",))[:1], also("plain", 0.5, predicted=0.5)]))
    assert "attention of 1 arm at" in one_arm


def test_a_run_that_is_not_read_may_have_been_below_the_level():
    few = also("start-qk-3", 0.95, family="start of QK", label="times 3", runs=1)
    assert "1 of 3 runs are read at 0.1; 2 ended before, or were below it before the first" in page(
        arms_frame([*records(), few])
    )


def test_the_figure(tmp_path):
    frame = arms_frame([*records(predicted=1.02), *records(setting="other", diverged=("adam-10",))])
    figure = draw_interventions(ranking(frame), by_rank(families(frame)))
    axes = figure.axes[:2]
    assert [ax.get_title() for ax in axes] == ["made CACO\nat loss 0.1", "other CACO\nat loss 0.1"]
    assert next(label.get_text() for label in axes[0].get_yticklabels()) == "ratio"
    # Grey are arms whose updates do not compare; theory stands behind the dots.
    dots: Any = axes[0].collections[-3:]
    ticks, apart, coloured = dots
    assert (len(apart.get_offsets()), len(coloured.get_offsets())) == (3, 5)
    assert apart.get_array() is None
    assert sorted(set(np.round(coloured.get_array(), 1))) == [0.5, 1.0, 3.0]
    assert ticks.get_zorder() < min(apart.get_zorder(), coloured.get_zorder())
    assert any("1 of 1 did not reach the loss" in text.get_text() for text in axes[1].texts)
    saved = canvas.save(figure, tmp_path / "a.png").read_bytes()
    assert (
        saved
        == canvas.save(draw_interventions(ranking(frame), by_rank(families(frame))), tmp_path / "b.png").read_bytes()
    )
    with pytest.raises(InputError, match="lacks the columns steps_ratio"):
        draw_interventions(ranking(frame).drop(columns="steps_ratio"), ["ratio"])
    with pytest.raises(InputError, match="there is no arm to draw"):
        draw_interventions(ranking(frame), [])

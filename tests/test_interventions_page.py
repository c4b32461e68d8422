"""The page on interventions from made records: what is compared, how it is ranked, and what the two sentences then say."""

import numpy as np
import pytest

from experiments.intervened.page import arms_table, page
from experiments.intervened.tables import arms_frame, by_rank, families, ranking
from made_interventions import made_arms, made_record
from qkdyn.errors import InputError
from qkdyn.figures import canvas
from qkdyn.figures.interventions import draw_interventions

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
    """Between r = 1, 10, 100 of attention 0.5, 0.7, 0.9 it is linear in ln r; outside there is none."""
    frame = arms_frame(records())
    assert row(frame, "clip-ov-0.1")["r_eq"] == pytest.approx(10**1.5)
    assert row(frame, "adam-1")["r_eq"] == pytest.approx(10**0.5)
    assert row(frame, "ratio-100")["r_eq"] == pytest.approx(100)
    assert np.isnan(row(frame, "decay-qk-0.01")["r_eq"])


def test_the_ranking():
    frame = arms_frame(records())
    names = [name.removeprefix("made-CACO-") for name in ranking(frame)["name"]]
    assert names[:4] == ["ratio-100", "adam-10", "clip-ov-0.1", "ratio-10"] and names[-1] == "decay-qk-0.01"
    found = families(frame).set_index("family")
    assert found.loc["clipping of OV", "share"] == pytest.approx(0.75) and found.loc["clipping of OV", "sharpens"]
    assert not found.loc["weight decay of QK", "sharpens"] and found.loc["Adam", "arms"] == 3
    assert by_rank(families(frame)) == [
        "ratio",
        "Adam",
        "clipping of OV",
        "gradient of QK rescaled",
        "weight decay of QK",
    ]


def test_two_sentences_where_others_sharpen_too():
    text = page(arms_frame(records(predicted=1.0 + 0.02 / 0.5)))
    verdict = text.splitlines()[2]
    assert verdict.startswith("**The learning-rate ratio is one of several knobs**: 2 of 3 other families")
    assert "at least 50% of what the strongest ratio adds is reached by Adam and clipping of OV." in verdict
    assert "attention of 9 arms to within" in verdict and "the strongest takes 0.50 x the plain arm's" in verdict
    assert "clipping of OV 2.98 x for +0.300 at the same rates" in verdict
    # Updates at rates of one's own are no price.
    assert "Adam" not in verdict.split("price")[1]
    assert verdict.count(". ") == 1 and verdict.endswith(".")
    assert "| clipping of OV | +0.300 (2.98 x)" in text and "| Adam | +0.350 (1.00 x*)" in text
    assert "Adam, made CACO: attention 0.620 at r = 1, 0.870 with the rate of QK times 10, 0.630 with" in text


def test_two_sentences_where_none_does():
    others = {"clip-ov-0.1": 0.45, "adam-1": 0.5, "adam-10": 0.5, "gain-adam": 0.5}
    assert "**The learning-rate ratio is special**: none of 3 other families" in page(arms_frame(records(others)))
    # A narrow interval about next to nothing is no knob.
    barely = others | {"clip-ov-0.1": 0.505}
    assert "**The learning-rate ratio is special**" in page(arms_frame(records(barely)))


def test_theory_that_is_not_met_is_not_said_to_be():
    assert "does not tell all" in page(arms_frame(records(predicted=1.3)))
    assert "does not tell all" not in page(arms_frame(records(predicted=1.03)))
    assert "theory" not in page(arms_frame(records())).splitlines()[2].replace("there is a theory", "theory?")


def test_runs_that_diverged_are_said_and_the_others_stand():
    found = arms_frame(records(diverged=("clip-ov-0.1",)))
    text = page(found)
    assert "| clipping of OV | diverged |" in text
    assert "made CACO, clipping of OV, norm at most 0.1: 0 of 3 runs reached 0.1; 3 diverged." in text
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
    assert arms_table(frame).count("\n") == len(USUAL) + 2
    figure = draw_interventions(ranking(frame), by_rank(families(frame)))
    assert "no arm that reached the loss" in figure.axes[0].texts[-1].get_text()


def test_a_few_arms():
    text = page(arms_frame(records(skip=[name for name in USUAL if name not in ("plain", "ratio-10")])))
    assert "**Only rates were varied so far** (2 arms)" in text
    alone = arms_frame(records(skip=[name for name in USUAL if name != "plain"]))
    assert "**No run of an intervention can be compared" in page(alone) and families(alone).empty
    without = page(arms_frame(records(skip=("plain",))))
    assert "**No run of an intervention can be compared" in without
    no_ratio = page(arms_frame(records(skip=("ratio-10", "ratio-100"))))
    assert "one of several knobs" in no_ratio and "nan" not in no_ratio and "50%" not in no_ratio


def test_the_figure(tmp_path):
    frame = arms_frame([*records(predicted=1.02), *records(setting="other", diverged=("adam-10",))])
    figure = draw_interventions(ranking(frame), by_rank(families(frame)))
    axes = figure.axes[:2]
    assert [ax.get_title() for ax in axes] == ["made CACO\nat loss 0.1", "other CACO\nat loss 0.1"]
    assert next(label.get_text() for label in axes[0].get_yticklabels()) == "ratio"
    assert any("1 of 3 not there" in text.get_text() for text in axes[1].texts)
    saved = canvas.save(figure, tmp_path / "a.png").read_bytes()
    assert (
        saved
        == canvas.save(draw_interventions(ranking(frame), by_rank(families(frame))), tmp_path / "b.png").read_bytes()
    )
    with pytest.raises(InputError, match="lacks the columns steps_ratio"):
        draw_interventions(ranking(frame).drop(columns="steps_ratio"), ["ratio"])
    with pytest.raises(InputError, match="there is no arm to draw"):
        draw_interventions(ranking(frame), [])

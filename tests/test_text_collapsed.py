"""Runs that collapse are named, with what their arms are without them; printed numbers are counted once; pairs are matched."""

import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import made_records
import made_squad_records
from experiments.squad import arms as squad_arms
from experiments.squad import tables as squad_tables
from experiments.squad.readings import by_arm
from experiments.text import (
    arms,
    collapsed,
    effects,
    printed,
    published,
    readings,
    sva_arms,
    sva_published,
    sva_verdict,
    tables,
    verdict,
)
from qkdyn.figures.text_records import POSTS

SEEDS = (1, 2, 3)


def made(protocol, names=None):
    recipe = replace(protocol.recipe, seeds=SEEDS)
    kept = tuple(arm for arm in protocol.arms if names is None or arm.name in names)
    protocol = replace(protocol, recipe=recipe, groups=tuple((arm,) for arm in kept))
    return made_records.made(protocol), protocol


def run(*loss, diverged=None):
    return {"seed": 7, "diverged_at": diverged, "epochs": {"training_loss": list(loss)}}


# Collapse.


@pytest.mark.parametrize(
    "own, found",
    [
        # Fell by 0.6, and gave back 0.3 of it.
        (run(0.7, 0.1, 0.3, 0.4), (7, 0.7, 0.1, 2, 0.4)),
        # Gave back a sixth of what it had learned.
        (run(0.7, 0.1, 0.2), None),
        # Back where it had been.
        (run(0.7, 0.1, 0.5, 0.1), None),
        # Many times a loss of next to nothing.
        (run(0.7, 1e-6, 1e-3), None),
        # Learned nothing: the difference is one of chance.
        (run(0.692, 0.690, 0.6915), None),
        (run(0.7, 0.6, 0.5), None),
        (run(0.7), None),
        (run(), None),
        # Known as what it is.
        (run(0.7, 0.1, 0.4, None, diverged=4), None),
    ],
)
def test_a_run_has_collapsed_that_ends_far_above_its_own_least(own, found):
    assert collapsed.collapses({"runs": [own]}) == ([found] if found else [])


def collapse(records, name, seed):
    """These records with one run that ends at 0.9 and whose numbers after the last epoch are half a unit larger."""
    records = copy.deepcopy(records)
    gone = next(record for record in records if record["arm"]["name"] == name)["runs"][SEEDS.index(seed)]
    gone["epochs"]["training_loss"][-1] = 0.9
    for split in ("validation", "test"):
        for quantity in ("accuracy", "mrta"):
            gone["end"][split][quantity] += 0.5
    return records


def test_a_collapsed_run_is_named_beside_the_numbers_without_it():
    records, protocol = made(arms.as_coded())
    whole = verdict.verdict(records, protocol, "as_coded")
    assert "ollapsed" not in whole
    records = collapse(records, "faster", 2)
    text = verdict.verdict(records, protocol, "as_coded")
    accuracy = [readings.values(record, "end", "test", "accuracy") for record in records]
    with_it, without_it = (accuracy[1].mean(), accuracy[1][[0, 2]].mean())
    line = next(line for line in text.splitlines() if line.startswith("- faster: 1 of 3 runs collapsed"))
    assert "(seed 2, whose training loss fell from 0.942 to " in line and "and ends at 0.900)" in line
    assert f"accuracy (all posts) {with_it:.3f} [" in line and f"] | {without_it:.3f} [" in line
    line = next(line for line in text.splitlines() if line.startswith("- faster beside the baseline, with runs"))
    assert f"{(accuracy[1] - accuracy[0]).mean():+.3f} [" in line
    assert f"| {(accuracy[1] - accuracy[0])[[0, 2]].mean():+.3f} [" in line
    assert "Collapsed and counted all the same: faster seed 2;" in text.splitlines()[2]
    assert "; without the 1 run that collapsed, " in text and "without runs that collapsed" in text
    costs, long = tables.costs_frame(records), tables.summary_frame(records, protocol)
    assert costs.set_index("arm")["collapsed"].to_dict() == {"baseline": 0, "faster": 1}
    assert long.groupby("arm")["collapsed"].unique().map(list).to_dict() == {"baseline": [0], "faster": [1]}
    # Where it is the first arm that has such a run, every change beside it is told without.
    other = collapse(made(arms.as_coded())[0], "baseline", 1)
    said = collapsed.collapsed_lines(other, POSTS, tables.firsts(other, protocol))
    assert [line.split(",")[0] for line in said][1:] == ["faster beside the baseline"] and len(said) == 2


def test_the_verdict_on_sentences_names_it_too():
    records, protocol = made(sva_arms.controlled(), ("baseline", "embed100", "qk100", "qk100+embed100"))
    text = sva_verdict.verdict(collapse(records, "qk100", 3), protocol, "controlled")
    assert "QK x100: 1 of 3 runs collapsed" in text and "balanced accuracy with attractors" in text
    assert "Collapsed and counted all the same: QK x100 seed 3;" in text.splitlines()[2]


# Printed numbers.


def test_a_number_that_is_printed_several_times_is_one():
    line = {"arm": "faster", "split": "test", "quantity": "mrta", "reading": "end", "summed": False}
    rows = [line | {"intervals_overlap": True}, line | {"intervals_overlap": False}]
    assert printed.met(pd.DataFrame(rows)) == (0, 1)
    rows += [line | {"quantity": "ac", "intervals_overlap": True, "summed": summed} for summed in (False, True)]
    assert printed.met(pd.DataFrame(rows)) == (1, 2)
    rows += [line | {"quantity": "sum", "intervals_overlap": True, "summed": True}]
    rows += [line | {"arm": "baseline", "intervals_overlap": None}]
    assert printed.met(pd.DataFrame(rows)) == (1, 2)


def test_distinct_printed_numbers_are_fewer_than_lines_that_print_them():
    records, protocol = made(sva_arms.as_coded())
    frame = sva_published.compared_frame(records)
    # 14 of the table, of which 10 are the notebooks' as well; their 16 lists and 18 cells.
    assert len(frame) == 58 and printed.met(frame)[1] == 14 - 10 + 16 + 18
    assert " of 38 distinct printed numbers have" in sva_verdict.verdict(records, protocol, "as_coded")
    # Ten of the table are the notebooks' as well, three of the second notebook's the first's; two are sums.
    frame = published.compared_frame(made(arms.as_coded())[0])
    keys = frame.loc[~frame["summed"], ["arm", "split", "quantity", "reading"]].drop_duplicates()
    assert printed.met(frame)[1] == len(keys) < len(frame) and frame["summed"].sum() == 2


# Matched losses.


def slowed(records, name, epochs):
    """These records with an arm of which no run comes further than in so many epochs."""
    records = copy.deepcopy(records)
    for own in next(record for record in records if record["arm"]["name"] == name)["runs"]:
        column = own["epochs"]["training_loss"]
        column[epochs:] = [column[epochs - 1]] * (len(column) - epochs)
    return records


def test_each_arm_is_matched_with_the_first_alone():
    records, protocol = made(arms.controlled(), ("baseline", "qk5", "qk10"))
    protocol = replace(protocol, comparisons=(arms.Comparison("dose", ("baseline", "qk5", "qk10")),))
    before = tables.summary_frame(records, protocol)
    after = tables.summary_frame(slowed(records, "qk5", 4), protocol)
    key = ["arm", "split", "quantity"]

    def matched(frame, arm):
        return frame.loc[(frame["reading"] == "matched") & (frame["arm"] == arm)].set_index(key)

    # exp(-0.1 (e - 1/2)) of ten epochs, and exp(-0.12 (e - 1/2)) of four.
    pd.testing.assert_frame_equal(matched(before, "qk10"), matched(after, "qk10"))

    def levels(frame, arm):
        return sorted(set(matched(frame, arm)["loss_level"]))

    assert levels(after, "qk10") == pytest.approx([np.exp(-0.95)])
    assert levels(after, "qk5") == pytest.approx([np.exp(-0.42)])
    # The first has a row for each level it is compared at, and what a change is a change from.
    assert levels(before, "baseline") == pytest.approx([np.exp(-0.95)])
    assert levels(after, "baseline") == pytest.approx([np.exp(-0.95), np.exp(-0.42)])
    both = matched(after, "baseline")
    for arm in ("qk5", "qk10"):
        own, at = matched(after, arm).loc[(arm, "test", "accuracy")], both.loc[("baseline", "test", "accuracy")]
        line = at.loc[np.isclose(at["loss_level"], own["loss_level"])].iloc[0]
        assert own["mean"] - own["change_mean"] == pytest.approx(line["mean"])


def test_without_the_first_arm_nothing_is_matched():
    records, protocol = made(arms.controlled(), ("qk5", "qk10"))
    protocol = replace(protocol, comparisons=(arms.Comparison("dose", ("baseline", "qk5", "qk10")),))
    assert set(tables.summary_frame(records, protocol)["reading"]) == {"end", "best"}


def test_a_factorial_is_matched_by_its_own_arms_and_says_where():
    records, protocol = made(sva_arms.controlled(), ("baseline", "embed100", "qk100", "qk100+embed100", "qk5"))
    own = protocol.comparisons[0]
    frame = effects.effects_frame(slowed(records, "qk5", 2), own)
    level = frame.loc[frame["reading"] == "matched", "loss_level"].unique()
    assert level == pytest.approx([readings.matched_level(records)]) and level[0] < np.exp(-0.18)
    assert frame.loc[frame["reading"] != "matched", "loss_level"].isna().all()


def test_questions_are_matched_the_same_way():
    own = squad_arms.protocol("controlled")
    protocol = replace(own, arms=tuple(replace(arm, epochs=4) for arm in own.arms))
    comparison = next(one for one in protocol.comparisons if len(one.arms) > 2)
    joined = slowed(by_arm(made_squad_records.made(protocol), protocol), comparison.arms[1], 2)
    long = squad_tables.summary_frame(joined, protocol)
    kept = long.loc[(long["comparison"] == comparison.name) & (long["reading"] == "matched")]
    levels = {arm: sorted(part["loss_level"].unique()) for arm, part in kept.groupby("arm")}
    assert levels[comparison.arms[1]] == pytest.approx([np.exp(-1.5)])
    assert levels[comparison.arms[2]][0] < np.exp(-1.6)
    assert levels[comparison.arms[0]] == sorted({*levels[comparison.arms[1]], *levels[comparison.arms[2]]})

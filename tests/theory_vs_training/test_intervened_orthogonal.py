"""Arms of the orthogonal setting, trained as the experiment trains them, against the scalar theory beside them: within 1%."""

import functools
from dataclasses import replace

import pytest

from experiments.intervened import orthogonal
from experiments.intervened.arms import Work
from qkdyn.train import engine

# One arm of each family: those that are soon at a loss of 0.1.
SHORTS = (
    "plain",
    "ratio-30",
    "ramp-up-60",
    "ramp-down-200",
    "delay-qk-60",
    "delay-ov-60",
    "decay-qk-0.003",
    "decay-ov-0.001",
    "apart-qk-0.0004",
    "start-qk-10",
    "start-ov-30",
    "factors-qk-8",
    "factors-ov-8",
    "clip-qk-0.03",
    "clip-ov-0.1",
    "normalized-qk-0.08",
    "normalized-ov-4.16667",
    "normalized-both-1",
    "momentum-both-0.5",
    "gain-sgd",
)


@functools.cache
def trained():
    """{short name: (measured, predicted)} of one run of each arm of FAFO at losses 0.5 and 0.1, all by one program."""
    chosen = [
        replace(arm, levels=(0.5, 0.1), max_steps=800, seeds=(1234,))
        for arm in orthogonal.arms(False)
        if arm.form == "FAFO" and arm.name.removeprefix("orthogonal-FAFO-") in SHORTS
    ]
    before = engine.advance_block._cache_size()
    records = orthogonal.train(chosen, Work())
    assert engine.advance_block._cache_size() == before + 1
    return {
        name.removeprefix("orthogonal-FAFO-"): (record["runs"][0]["matched"], record["predicted"])
        for name, record in records.items()
    }


@pytest.mark.parametrize("short", SHORTS)
def test_an_arm_is_within_one_percent_of_its_theory(short):
    measured, predicted = trained()[short]
    assert [line["level"] for line in measured] == [line["level"] for line in predicted] == [0.5, 0.1]
    for ours, theirs in zip(measured, predicted, strict=True):
        assert ours["attention"] == pytest.approx(theirs["attention"], rel=0.01)
        assert ours["step"] == pytest.approx(theirs["step"], rel=0.02)


def test_what_the_arms_are_worth():
    """As theory.md says it: what raises the effective ratio raises attention at a matched loss."""
    found = {short: predicted[1]["r_eq"] for short, (_, predicted) in trained().items()}
    assert found["plain"] == pytest.approx(1, abs=1e-3) and found["ratio-30"] == pytest.approx(30, rel=1e-3)
    assert found["gain-sgd"] == pytest.approx(10, rel=1e-3)
    assert found["momentum-both-0.5"] == pytest.approx(1, rel=1e-3)
    assert found["factors-qk-8"] > 4 > 1 > found["factors-ov-8"]
    assert found["clip-ov-0.1"] > 1.4 > 1 > found["clip-qk-0.03"]
    assert found["decay-ov-0.001"] > 1.05 > 1 > max(found["decay-qk-0.003"], found["start-ov-30"])


def test_theory_is_silent_under_adam():
    adam = next(arm for arm in orthogonal.arms(False) if arm.optimizer == "adam")
    assert orthogonal.predicted(adam) == []

"""Interventions on Sec. 4's tokens: the trainer against the token engine, starts, arms that are the same, resumption."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from experiments.intervened import tokens
from experiments.intervened.arms import Work
from experiments.intervened.starts import multiple
from helpers import compilations, max_difference, quick
from qkdyn.circuits import collapse
from qkdyn.errors import InputError, Interrupted
from qkdyn.tasks.tokens import TokensTask
from qkdyn.train.interrupt import Request
from qkdyn.train.step import data_key
from qkdyn.train.store import open_store
from qkdyn.train.tokens import reference

TASK = TokensTask(length=8, batch=8)
ALL = {arm.name.removeprefix("tokens-"): arm for arm in tokens.arms(False)}
SHORT = {"levels": (3.9, 0.01), "max_steps": 100, "seeds": (1234, 1235)}
gradient = quick(lambda params, key: reference(params, TASK.tally(TASK.words(key)), TASK)[1])


def arm(name, **changed):
    return replace(ALL[name], **{**SHORT, **changed})


@pytest.fixture(scope="module")
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "TASK", TASK)
        patch.setattr(tokens, "CHUNK", 50)
        yield


NAMES = ("plain", "ratio-10", "gain-sgd", "factors-qk-4", "decay-ov-0.001")


@pytest.fixture(scope="module")
def arms():
    return [arm(f"FAFO-{name}") for name in NAMES]


@pytest.fixture(scope="module")
def records(small, arms):
    return tokens.train(arms, Work())


def test_what_is_descended_along_is_the_gradient_of_the_batch_of_seed_and_step():
    params = jax.tree.map(lambda leaf: 5 * leaf, tokens.start(ALL["FAFO-plain"], 1234))
    key = data_key(1234, 7)
    found = quick(tokens.Descent(TASK))(params, key)
    expected = gradient(params, key)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert max_difference(a, b) < 3e-6 * np.abs(b).max()


def test_without_an_intervention_it_is_gradient_descent_at_the_two_rates(records):
    for name, r in (("plain", 1.0), ("ratio-10", 10.0)):
        params = jax.device_get(tokens.start(ALL["FAFO-plain"], 1235))
        for step in range(100):
            found = gradient(params, data_key(1235, step))
            rates = {"qk": 0.1 * r, "ov": 0.1}
            params = {c: {n: W - rates[c] * found[c][n] for n, W in own.items()} for c, own in params.items()}
        expected = quick(tokens.Probe(TASK))(params)
        run = records[f"tokens-FAFO-{name}"]["runs"][1]
        assert run["seed"] == 1235 and run["end"]["step"] == 100
        for measure, value in expected.items():
            assert run["end"][measure] == pytest.approx(value, rel=1e-4), measure


def test_records_say_how_runs_ended_and_where_they_crossed(records):
    for name, record in records.items():
        assert record["predicted"] == [] and len(record["runs"]) == 2
        for run in record["runs"]:
            assert run["status"] == "budget" and run["diverged_at"] is None, name
            # From ln 50 down: the second level is not reached in so few updates.
            assert [line["level"] for line in run["matched"]] == [3.9]
            line = run["matched"][0]
            assert 0 < line["step"] <= 100 and line["attention"] == pytest.approx(
                line["distinct"] + line["query"], rel=1e-5
            )
            assert 0 <= line["accuracy"] <= 1


def test_a_gain_is_a_rate_and_other_interventions_are_not_plain(records):
    runs = {name: records[f"tokens-FAFO-{name}"]["runs"] for name in NAMES}
    assert runs["gain-sgd"] == runs["ratio-10"]
    for name in ("ratio-10", "factors-qk-4", "decay-ov-0.001"):
        assert all(a["end"]["loss"] != b["end"]["loss"] for a, b in zip(runs[name], runs["plain"], strict=True)), name


def test_other_strengths_compile_nothing_and_wild_ones_leave_the_others_alone(records, arms):
    # A mistake of a rate in the place of an arm whose numbers do not matter.
    wild = replace(arm("FAFO-plain"), name="tokens-FAFO-wild", r=1e12)
    others = [arms[0], wild, arm("FAFO-clip-qk-0.01"), *arms[3:]]
    with compilations() as names:
        found = tokens.train(others, Work())
    assert not [name for name in names if "advance_block" in name], names
    ended = found["tokens-FAFO-wild"]["runs"]
    assert all(run["status"] == "diverged" and 0 < run["diverged_at"] <= 100 for run in ended)
    assert found["tokens-FAFO-plain"] == records["tokens-FAFO-plain"]


def test_a_group_that_was_stopped_goes_on_to_the_same_records(records, arms, tmp_path):
    request = Request()
    request.name = "SIGTERM"
    stop = Work(open_store(tmp_path / "s", {"it": "same"}, every=0.0), request)
    with pytest.raises(Interrupted):
        tokens.train(arms, stop)
    seen = []
    again = Work(stop.store, update=lambda share, status: seen.append(share))
    assert tokens.train(arms, again) == records
    # The first half was there.
    assert seen == [1.0, 1.0]


@pytest.mark.parametrize("form", ["CACO", "FAFO"])
def test_starts_are_scaled_as_products_and_imbalance_leaves_the_products(form):
    plain = tokens.start(ALL[f"{form}-plain"], 1234)
    flat = collapse(plain)
    for circuit, (qk, ov) in {"qk": (10.0, 1.0), "ov": (1.0, 10.0)}.items():
        scaled = collapse(tokens.start(ALL[f"{form}-start-{circuit}-10"], 1234))
        np.testing.assert_allclose(scaled["qk"]["W_QK"], qk * flat["qk"]["W_QK"], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(scaled["ov"]["W_OV"], ov * flat["ov"]["W_OV"], rtol=1e-4, atol=1e-6)
    if form == "FAFO":
        apart = tokens.start(ALL["FAFO-factors-qk-4"], 1234)
        np.testing.assert_allclose(apart["qk"]["W_K"], 4 * plain["qk"]["W_K"], rtol=1e-6)
        np.testing.assert_allclose(collapse(apart)["qk"]["W_QK"], flat["qk"]["W_QK"], atol=1e-6)
    assert multiple(ALL["FAFO-factors-ov-2"], "b_Q") == 1.0


def test_arms_are_of_both_forms_with_names_of_their_own():
    assert len(ALL) == len(tokens.arms(False)) and all(arm.setting == "tokens" for arm in ALL.values())
    assert sum(arm.name.endswith("-plain") for arm in ALL.values()) == 2
    # What has no factors has no imbalance.
    assert not [name for name in ALL if name.startswith("CACO-factors")] and "FAFO-factors-qk-2" in ALL
    with pytest.raises(InputError, match="collapsed"):
        replace(ALL["CACO-plain"], apart=(1.0, 2.0))
    kinds = [{(arm.form, arm.optimizer) for arm in group} for group in tokens.groups(list(ALL.values()))]
    assert kinds == [{("CACO", "sgd")}, {("CACO", "adam")}, {("FAFO", "sgd")}, {("FAFO", "adam")}]
    few = tokens.arms(True)
    assert {arm.name for arm in few} == {f"tokens-FAFO-{name}" for name in tokens.QUICK} and len(few[0].seeds) == 2

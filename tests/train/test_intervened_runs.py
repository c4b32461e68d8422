"""Runs under interventions: stopped and resumed to the bit, one that diverges beside others, what is read of them."""

import functools
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import trees_equal
from qkdyn.circuits import on_ansatz
from qkdyn.errors import InputError, Interrupted
from qkdyn.interventions import Intervention, OnCircuit, Schedule
from qkdyn.tasks.orthogonal import OrthogonalTask
from qkdyn.train import engine
from qkdyn.train.interrupt import Request
from qkdyn.train.intervened_runs import IntervenedJob, IntervenedRun, finish, intervened_run, read
from qkdyn.train.probe import AnsatzProbe
from qkdyn.train.state import Plan
from qkdyn.train.store import open_store

TASK = OrthogonalTask(m=2, n=2, b=2, M=3, backgrounds=2, batch=12)
PLAN = Plan(losses=(0.9, 0.6), stop_loss=0.6, max_steps=60, records=1, chunk=20, block=2)
JOB = IntervenedJob(TASK, AnsatzProbe(TASK), PLAN)
# Of the four arms the second one diverges and the last one never learns within its budget.
ARMS = (
    intervened_run(Intervention(), (1, 2), r=2.0, eta_ov=0.7),
    intervened_run(Intervention(OnCircuit(decay=1e20), OnCircuit(decay=1e20)), (1,), r=2.0, eta_ov=1e10),
    intervened_run(Intervention(ov=OnCircuit(Schedule.delayed(20.0))), (1,), r=2.0, eta_ov=0.7),
    intervened_run(Intervention(OnCircuit(decay=0.1), OnCircuit(decay=9.0, momentum=0.5)), (1,), r=2.0, eta_ov=0.01),
)
RUNS = jax.tree.map(lambda *leaves: np.concatenate(leaves), *ARMS)
STARTS = [on_ansatz(TASK.directions(), "CACO", mu_ov=0.1, mu_qk=0.1)] * 5


def trained(**options):
    return finish(JOB, STARTS, RUNS, key="k", **options)


@functools.cache
def whole():
    seen = []
    return trained(hear=lambda states: seen.append(states.step.tolist())), seen


def test_a_signal_and_a_resumption_change_no_bit(tmp_path):
    states, seen = whole()
    request, store, before, after = Request(), open_store(tmp_path, {}, every=1e9), [], []

    def hear(states):
        before.append(states.step.tolist())
        request.name = "SIGTERM"

    compiled = engine.advance_block._cache_size()
    with pytest.raises(Interrupted):
        trained(store=store, request=request, hear=hear)
    resumed = trained(store=store, hear=lambda states: after.append(states.step.tolist()))
    assert before + after == seen and len(before) == 1 < len(seen)
    assert trees_equal(resumed, states)
    # All arms, whatever their strengths, are runs of one program.
    assert engine.advance_block._cache_size() == compiled


def test_what_is_read_of_runs():
    states, _ = whole()
    one, two, diverged, late, never = read(JOB, states, RUNS.seed.tolist())
    assert [run["status"] for run in (one, two, diverged, late, never)] == [
        "stopped",
        "stopped",
        "diverged",
        "stopped",
        "budget",
    ]
    assert diverged["diverged_at"] == 2 and one["diverged_at"] is None
    assert diverged["matched"] == [] and diverged["end"] == {"step": 2} | dict.fromkeys(
        ("loss", "mu_ov", "mu_qk", "alpha")
    )
    assert never["matched"] == [] and never["end"]["step"] == 60 and never["end"]["mu_ov"] < 0.1
    assert [line["level"] for line in one["matched"]] == [0.9, 0.6]
    assert (one["seed"], two["seed"]) == (1, 2)
    first, second = (line["step"] for line in one["matched"])
    assert 0 < first < second <= one["end"]["step"]
    # While OV waits QK alone sharpens attention: later, and sharper at the same loss.
    assert late["matched"][0]["step"] > first + 15 and late["matched"][0]["alpha"] > one["matched"][0]["alpha"]


@dataclass(frozen=True)
class Ones:
    """A gradient of ones times the key's first number."""

    def __call__(self, params, key):
        return jax.tree.map(lambda leaf: jnp.ones_like(leaf) * jax.random.uniform(key), params)


def test_a_gradient_of_ones_own():
    key = jax.random.key(3)
    run = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), RUNS)
    own = replace(JOB, gradient_of=Ones()).gradient(STARTS[0], key, run)
    assert all(np.allclose(leaf, jax.random.uniform(key)) for leaf in jax.tree.leaves(own))


def test_wrong_input():
    with pytest.raises(InputError, match="initial and runs must be equally many, got 1 and 5"):
        finish(JOB, STARTS[:1], RUNS)
    with pytest.raises(InputError, match=r"momentum of the ov circuit must be 0 under adam, got 0\.9"):
        intervened_run(Intervention(ov=OnCircuit(momentum=0.9)), (1,), r=1.0, eta_ov=1.0, kind="adam")
    with pytest.raises(InputError, match="seeds must be 5, as many as there are runs, got 1"):
        read(JOB, whole()[0], [1])


def test_runs_of_an_arm():
    run = intervened_run(Intervention(OnCircuit(decay=0.5)), (3, 4), r=2.0, eta_ov=0.1, gain=(1.0, 10.0))
    assert isinstance(run, IntervenedRun) and run.seed.tolist() == [3, 4]
    assert run.on.decay.tolist() == [[0.0, 0.5]] * 2 and run.gain.tolist() == [[1.0, 10.0]] * 2
    assert run.on.schedule.shape == (2, 2, 4) and run.on.clipped.dtype == bool

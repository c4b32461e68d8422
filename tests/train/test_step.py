"""One run step by step: records, crossings, ends, divergence, and golden values of one update."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from helpers import trees_equal
from qkdyn.circuits import Parameterization, on_ansatz
from qkdyn.errors import InputError, RangeError
from qkdyn.optim import circuit_optimizer
from qkdyn.tasks.orthogonal import OrthogonalTask
from qkdyn.train.probe import AnsatzProbe
from qkdyn.train.state import Plan, Run, Status, check_reachable, start
from qkdyn.train.step import advance, gradient_on

TASK = OrthogonalTask(m=2, n=3, b=2, M=3, backgrounds=4, batch=12)
RUN = Run(r=jnp.float32(2.0), seed=jnp.int32(7), sampled=jnp.bool_(True), eta_ov=jnp.float32(0.5))


def begin(plan, form="CACO", rate=0.5, r=2.0, measure=None, task=TASK):
    scale = {"mu_ov": 0.1 * form.endswith("FO"), "mu_qk": 0.1 * form.startswith("FA")}
    params = on_ansatz(task.directions(), form, **scale)
    tx = circuit_optimizer(optax.sgd, multipliers={"qk": r, "ov": 1.0}, learning_rate=rate)
    measure = measure or AnsatzProbe(task)
    state = start(params, tx.init(params), jax.eval_shape(measure, params), plan)
    return state, jax.jit(
        functools.partial(advance, run=RUN, tx=tx, measure=measure, gradient=gradient_on(task.batch_of), plan=plan)
    )


def falling(values):
    """A probe whose loss after k updates of W_OV by exactly one is values[k]."""
    values = jnp.asarray(values)

    def measure(params):
        k = params["ov"]["W_OV"][0, 0].astype(int)
        return {"loss": values[k], "alpha": k * 10.0}

    return measure


def counting(plan, values, every=1):
    """A run that only counts its updates, through a transform that adds one to every parameter."""
    tx = optax.stateless(lambda updates, params: jax.tree.map(jnp.ones_like, updates))
    params = on_ansatz(TASK.directions(), "CACO", mu_ov=0.0, mu_qk=0.0)
    measure = falling(values)
    state = start(params, tx.init(params), jax.eval_shape(measure, params), plan)
    gradient = gradient_on(TASK.batch_of)
    step = functools.partial(advance, run=RUN, tx=tx, measure=measure, gradient=gradient, plan=plan, every=every)
    return state, jax.jit(step)


def go(state, step, times):
    for _ in range(times):
        state = step(state)
    return state


# One update of the sampled design at seed 7, r = 2, eta_OV = 0.5 from the start of `begin`: measures after it. If a change
# of the model, the optimizer, the sampler or the probe was meant to change them, run the test and copy the values it prints.
GOLDEN = {
    "FAFO": {"loss": 1.06771, "mu_ov": 0.1101, "mu_qk": 0.10054, "alpha": 0.42435},
    "CAFO": {"loss": 1.0696, "mu_ov": 0.10952, "mu_qk": 0.00132, "alpha": 0.40032},
    "FACO": {"loss": 1.08864, "mu_ov": 0.03535, "mu_qk": 0.1, "alpha": 0.42422},
    "CACO": {"loss": 1.08974, "mu_ov": 0.03333, "mu_qk": 0.0, "alpha": 0.4},
}


@pytest.mark.parametrize("form", list(Parameterization))
def test_golden_values_of_one_update(form):
    state, step = begin(Plan(), form)
    measured = {k: round(float(v), 5) for k, v in go(state, step, 2).previous.items()}
    assert measured == pytest.approx(GOLDEN[form], abs=2e-5), f"if this was meant, the new values are {measured}"


def test_one_update_is_the_batch_gradient_times_the_rates():
    from qkdyn.train.step import batch_loss, data_key

    state, step = begin(Plan())
    gradient = jax.grad(batch_loss)(state.params, TASK.batch_of(data_key(7, 0), True))
    after = step(state).params
    np.testing.assert_allclose(after["ov"]["W_OV"], -0.5 * gradient["ov"]["W_OV"], rtol=1e-6)
    after = go(state, step, 2).params  # the QK gradient vanishes at zero: look at the second update
    before = go(state, step, 1).params
    gradient = jax.grad(batch_loss)(before, TASK.batch_of(data_key(7, 1), True))
    np.testing.assert_allclose(after["qk"]["W_QK"], -1.0 * gradient["qk"]["W_QK"], rtol=1e-5, atol=1e-9)
    assert np.abs(after["qk"]["W_QK"]).max() > 0


def test_records_stand_at_their_steps_and_nowhere_else():
    plan = Plan(losses=(0.5,), stop_loss=0.1, max_steps=20, records=4)
    assert plan.record_steps.tolist() == [0, 1, 3, 7, 20]
    state = go(*counting(plan, np.linspace(9, 2, 30)), 6)
    np.testing.assert_array_equal(state.records["alpha"], [0, 10, 30, np.nan, np.nan])


def test_crossings_are_interpolated_in_ln_loss():
    plan = Plan(losses=(1.0, 0.1, 0.05), stop_loss=0.01, max_steps=100)
    values = np.array([2.0, 0.5, 0.02, 0.3, 0.02, 0.02])
    state = go(*counting(plan, values), 5)

    def crossing(k, level):
        return k + np.log(values[k] / level) / np.log(values[k] / values[k + 1])

    expected = [crossing(0, 1.0), crossing(1, 0.1), crossing(1, 0.05)]  # the second crossing of 0.1 does not count
    np.testing.assert_allclose(state.matched["step"], expected, rtol=1e-6)
    np.testing.assert_allclose(state.matched["alpha"], 10 * np.array(expected), rtol=1e-6)
    np.testing.assert_allclose(state.matched["loss"], plan.losses, rtol=1e-6)


def test_updates_between_two_measurements():
    """Measured at every third update: the same updates, crossings between the measurements, steps that count updates."""
    params, keys = on_ansatz(TASK.directions(), "CACO", mu_ov=0.0, mu_qk=0.0), []
    measure = falling(np.full(99, 0.9))
    for every in (1, 3):
        tx = optax.sgd(-1.0)
        # The sum of what the updates' keys draw: another key anywhere would show.
        parts = {"gradient": lambda params, key, run: jax.tree.map(lambda _: jax.random.uniform(key), params)}
        step = functools.partial(advance, run=RUN, tx=tx, measure=measure, plan=Plan(), every=every, **parts)
        state = start(params, tx.init(params), jax.eval_shape(measure, params), Plan())
        state = go(state, jax.jit(step), 6 // every)
        assert state.step == 6
        keys.append(float(state.params["qk"]["W_QK"][0, 0]))
    assert keys[0] == pytest.approx(keys[1], rel=1e-6) and keys[0] > 0
    plan = Plan(losses=(0.5,), stop_loss=0.2, max_steps=100)
    state = go(*counting(plan, [1.0, 0.9, 0.45, 0.4, 0.3, 0.2, 0.1, 0.05], every=3), 4)
    np.testing.assert_allclose(state.matched["step"], 3 * np.log(2) / np.log(2.5), rtol=1e-6)
    assert state.status == Status.stopped and state.step == 6


def test_a_level_met_exactly_counts_once():
    state = go(*counting(Plan(losses=(0.5,), stop_loss=0.1, max_steps=9), [1.0, 0.5, 0.4, 0.3]), 4)
    assert float(state.matched["step"][0]) == 1.0


def test_a_run_stops_at_its_loss_and_stays_as_it_was():
    plan = Plan(losses=(0.5,), stop_loss=0.3, max_steps=100)
    state, step = counting(plan, [1.0, 0.6, 0.3, 0.2, 0.1])
    state = go(state, step, 3)
    assert state.status == Status.stopped and state.step == 2 and float(state.params["ov"]["W_OV"][0, 0]) == 2
    assert trees_equal(go(state, step, 3), state)


def test_a_run_ends_at_its_budget_with_its_last_state_recorded():
    plan = Plan(losses=(0.5,), stop_loss=0.3, max_steps=4, records=3)
    state, step = counting(plan, np.full(9, 0.9))
    state = go(state, step, 7)
    assert state.status == Status.budget and state.step == 4
    np.testing.assert_array_equal(state.records["alpha"], [0, 10, 20, 40])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_run_without_a_finite_loss_is_frozen_and_marked(bad):
    plan = Plan(losses=(0.5,), stop_loss=0.3, max_steps=9, records=9)
    state, step = counting(plan, [1.0, 0.9, bad, 0.1, 0.1])
    state = go(state, step, 5)
    assert state.status == Status.diverged and state.diverged_step == 2 and state.step == 2
    np.testing.assert_array_equal(state.records["alpha"][:4], [0, 10, np.nan, np.nan])
    assert np.isnan(state.matched["step"]).all()


@pytest.mark.parametrize(
    "change,message",
    [
        ({"losses": ()}, "losses must name at least one level"),
        ({"losses": (0.1, 0.5)}, "losses must be decreasing and distinct"),
        ({"losses": (0.5, 0.5)}, "losses must be decreasing and distinct"),
        ({"losses": (0.50000000001, 0.5)}, "distinct in single precision"),
        ({"losses": (1e-8,), "stop_loss": 1e-8}, "at least 1e-06, got 1e-08"),
        ({"losses": 0.1}, r"losses must be a list of values, got 0.1; for one value write \(0.1,\)"),
        ({"max_steps": 2**31}, "max_steps must be at most 1,000,000,000"),
        ({"records": 10**12}, "records must be at most 100,000"),
        ({"chunk": 10**9}, "chunk must be at most 1,000,000"),
        ({"losses": (0.5, -0.1)}, "each of losses and stop_loss must be a finite number > 0, got -0.1"),
        ({"stop_loss": 0.2}, "stop_loss must be at most the smallest of losses, 0.01, got 0.2"),
        ({"stop_loss": float("nan")}, "must be a finite number > 0, got nan"),
        ({"max_steps": 0}, "max_steps must be an integer >= 1"),
        ({"block": 2.5}, "block must be an integer >= 1"),
    ],
)
def test_plans_are_refused(change, message, unchecked):
    with pytest.raises(InputError, match=message):
        Plan(**change)


def test_levels_above_the_start_are_refused():
    with pytest.raises(
        RangeError, match=r"losses must lie in \(0, 0.4\), below the loss at the start of CACO, got 0.5"
    ):
        check_reachable(Plan(), 0.4, "CACO")
    check_reachable(Plan(), 0.6, "CACO")

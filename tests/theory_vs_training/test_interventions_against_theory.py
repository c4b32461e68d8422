"""Interventions in gradient descent on the orthogonal task, single precision, against their scalars: within 1%."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from helpers import quick
from qkdyn.circuits import collapse, on_ansatz
from qkdyn.interventions import Intervention, Numbers, OnCircuit, Schedule
from qkdyn.tasks.orthogonal import OrthogonalTask
from qkdyn.theory import Setting
from qkdyn.theory.intervened import imbalance, integrate_intervened
from qkdyn.theory.intervened_matrices import unbalance
from qkdyn.train.step import batch_loss, data_key

TASK = OrthogonalTask(m=2, n=2, b=2, M=3, backgrounds=2, batch=12)
SETTING = Setting(2, 2, 2, 3)
R = np.array([0.5, 5.0])
STEPS = 1500
READ = np.linspace(5, STEPS, 200).round()
START = (0.2, 0.1)


def both(**on):
    return Intervention(OnCircuit(**on), OnCircuit(**on))


# Time that the steps take together at eta_ov = 1; the times of schedules and of decoupled decay count steps.
ARMS = {
    "none": (45.0, Intervention()),
    "ramps": (45.0, Intervention(OnCircuit(Schedule.ramp(0.1, 3.0, 400.0)), OnCircuit(Schedule.ramp(2.0, 0.5, 900.0)))),
    "delayed qk": (45.0, Intervention(qk=OnCircuit(Schedule.delayed(500.0)))),
    "delayed ov": (45.0, Intervention(ov=OnCircuit(Schedule.delayed(500.0)))),
    "decay": (45.0, Intervention(OnCircuit(decay=0.01), OnCircuit(decay=0.02))),
    "decoupled": (45.0, Intervention(OnCircuit(decay=2e-4, decoupled=True), OnCircuit(decay=1e-4, decoupled=True))),
    "normalized": (5.0, Intervention(OnCircuit(gradient="normalized", decay=0.1), OnCircuit(gradient="normalized"))),
    "clipped": (90.0, both(gradient="clipped", threshold=0.02)),
    # As a rate 1/(1 - beta) it is behind by beta/(1 - beta) steps: little where it is small.
    "momentum": (12.0, Intervention(OnCircuit(momentum=0.4, decay=0.02), OnCircuit(momentum=0.2))),
    "sign": (1.5, both(gradient="sign")),
    "unbalanced": (45.0, both(decay=0.02)),
}
FORMS = {"CACO": [arm for arm in ARMS if arm != "unbalanced"], "FAFO": [arm for arm in ARMS if arm != "sign"]}
SCALES = {"ov": 1.3, "qk": 0.6}


def descend(params, on, eta_ov, r):
    """Plain loops of the update as trainers write it: bound the gradient, add decay, momentum, rate, decoupled decay."""
    rates, directions = {"ov": eta_ov, "qk": r * eta_ov}, TASK.directions()

    def update(state, step):
        params, buffers = state
        batch = TASK.batch_of(data_key(0, step), False)
        loss, gradient = jax.value_and_grad(batch_loss)(params, batch)
        flat = collapse(params)
        mu_ov = jnp.vdot(flat["ov"]["W_OV"], directions["ov"]) / (directions["ov"] ** 2).sum()
        mu_qk = jnp.vdot(flat["qk"]["W_QK"], directions["qk"]) / (directions["qk"] ** 2).sum()
        for place, circuit in enumerate(("ov", "qk")):
            start, end, begin, length = on.schedule[place]
            ramp = start + (end - start) * (step - begin) / jnp.maximum(length, 1e-6)
            rate = rates[circuit] * jnp.where(step < begin, start, jnp.where(step < begin + length, ramp, end))
            size, most = optax.tree.norm(gradient[circuit]), on.threshold[place]
            for name, W in params[circuit].items():
                G = gradient[circuit][name]
                G = jnp.where(on.clipped[place] & (size > most), G * most / size, G)
                G = jnp.where(on.normalized[place], G / jnp.maximum(size, most), G)
                G = jnp.where(on.sign[place], G / jnp.maximum(jnp.abs(G), most), G)
                added, apart = (
                    jnp.where(on.decoupled[place], jnp.array([0.0, 1.0]), jnp.array([1.0, 0.0])) * on.decay[place]
                )
                momentum = on.momentum[place] * buffers[circuit][name] + G + added * W
                buffers = buffers | {circuit: buffers[circuit] | {name: momentum}}
                params = params | {circuit: params[circuit] | {name: W - rate * momentum - apart * W}}
        return (params, buffers), jnp.stack([mu_ov, mu_qk, loss])

    return jax.lax.scan(update, (params, jax.tree.map(jnp.zeros_like, params)), jnp.arange(STEPS + 1))[1]


@functools.cache
def descended(form):
    """(mu_ov, mu_qk, loss) of every arm, ratio and step."""
    starts, numbers, rates = [], [], []
    for arm in FORMS[form]:
        last, on = ARMS[arm]
        params = on_ansatz(TASK.directions(), form, mu_ov=START[0], mu_qk=START[1])
        starts.append(unbalance(params, SCALES) if arm == "unbalanced" else params)
        numbers.append(jax.tree.map(lambda x: x.astype(np.float32) if x.dtype.kind == "f" else x, Numbers.of(on)))
        rates.append(np.float32(last / STEPS))
    stack = lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves])  # noqa: E731
    arms = jax.tree.map(stack, *starts), jax.tree.map(stack, *numbers), jnp.stack(rates)
    ratios = jax.vmap(descend, in_axes=(None, None, None, 0))
    return quick(jax.vmap(ratios, in_axes=(0, 0, 0, None)))(*arms, jnp.asarray(R, jnp.float32))


@pytest.mark.parametrize(("form", "arm"), [(form, arm) for form, arms in FORMS.items() for arm in arms])
def test_descent_is_within_one_percent(form, arm):
    last, on = ARMS[arm]
    if arm == "unbalanced":
        ov, qk = (imbalance(SETTING, name, mu, SCALES[name]) for name, mu in zip(("ov", "qk"), START, strict=True))
        on = Intervention(replace(on.qk, imbalance=qk), replace(on.ov, imbalance=ov))
    run = integrate_intervened(SETTING, R, READ, on, eta_ov=last / STEPS, parameterization=form, initial=START)
    found = descended(form)[FORMS[form].index(arm)][:, READ.astype(int)]
    if arm == "sign":
        # Rounding of the backgrounds' zero gradient takes whole steps as well: the loss knows, the projections do not.
        found[..., 2] = SETTING.loss(SETTING.attention(found[..., 1]) * found[..., 0])
    late = READ >= STEPS / 2
    for name, place in (("mu_ov", 0), ("mu_qk", 1), ("loss", 2)):
        np.testing.assert_allclose(found[:, late, place], getattr(run, name)[:, late], rtol=0.01, err_msg=name)
    # Of attention at a matched loss, read off both alike, less is left.
    for index in range(2):
        level = run.loss[index, 120]
        log = [np.log(loss[index][::-1]) for loss in (found[..., 2], run.loss)]
        alpha = [SETTING.attention(q[index][::-1]) for q in (found[..., 1], run.mu_qk)]
        theirs, ours = (np.interp(np.log(level), x, y) for x, y in zip(log, alpha, strict=True))
        assert theirs == pytest.approx(ours, rel=0.005)

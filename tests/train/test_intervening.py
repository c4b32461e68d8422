"""An intervention as an optax transform: against optax's own chains, in its order, one program, zero gradients, refusals."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from helpers import max_difference
from qkdyn.circuits import init_params
from qkdyn.errors import InputError
from qkdyn.interventions import Intervention, Numbers, OnCircuit, Schedule
from qkdyn.optim import circuit_optimizer
from qkdyn.train.intervening import check_optimizer, on_circuit, single

NORMAL = jax.nn.initializers.normal(0.5)
PARAMS = init_params(jax.random.key(0), "FACO", d=4, M=3, qk=NORMAL, ov=NORMAL)
STEPS, ETA, R = 60, 0.004, 3.0
TRACES = []


def loss(params):
    return sum(jnp.sum(jnp.sin(leaf) * leaf) for leaf in jax.tree.leaves(params))


def descend(tx, params=PARAMS):
    def step(carry, _):
        params, state = carry
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(step, (params, tx.init(params)), length=STEPS)[0][0]


def ours(numbers, gain=(1.0, 1.0), optimizer="sgd"):
    TRACES.append(optimizer)
    bases = {name: on_circuit(numbers, i, optimizer=optimizer, gain=gain[i]) for name, i in (("ov", 0), ("qk", 1))}
    return descend(circuit_optimizer(bases, multipliers={"qk": R, "ov": 1.0}, learning_rate=ETA))


ONE = jax.jit(ours, static_argnames="optimizer")


def of(intervention):
    return jax.tree.map(jnp.asarray, Numbers.of(intervention))


def ramp(eta):
    return lambda count: eta * jnp.clip(0.5 + 1.5 * (count - 10) / 20, 0.5, 2.0)


def normalized(threshold):
    def update(G, state, params=None):
        return jax.tree.map(lambda g: g / jnp.maximum(optax.tree.norm(G), threshold), G), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def on_qk(**on):
    return Intervention(qk=OnCircuit(**on))


LATE = Schedule(0.5, 2.0, 10.0, 20.0)
# Intervention, and optax's chain for the query-key circuit at rate eta.
SGD = {
    "nothing": (Intervention(), optax.sgd),
    "schedule": (on_qk(schedule=LATE), lambda eta: optax.sgd(ramp(eta))),
    "delayed": (
        on_qk(schedule=Schedule.delayed(45.0)),
        lambda eta: optax.sgd(lambda count: jnp.where(count < 45, 0.0, eta)),
    ),
    "momentum": (on_qk(momentum=0.7), lambda eta: optax.sgd(eta, momentum=0.7)),
    "clipped, decay, momentum": (
        on_qk(gradient="clipped", threshold=0.6, decay=0.3, momentum=0.5),
        lambda eta: optax.chain(
            optax.clip_by_global_norm(0.6), optax.add_decayed_weights(0.3), optax.sgd(eta, momentum=0.5)
        ),
    ),
    "normalized, decoupled": (
        on_qk(gradient="normalized", decay=0.02, decoupled=True, schedule=LATE),
        lambda eta: optax.chain(normalized(1e-8), optax.sgd(ramp(eta)), optax.add_decayed_weights(-0.02)),
    ),
    "sign": (
        on_qk(gradient="sign"),
        lambda eta: optax.chain(optax.stateless(lambda G, _: jax.tree.map(jnp.sign, G)), optax.sgd(eta)),
    ),
}


def theirs(chain, base=optax.sgd):
    return jax.jit(lambda: {"qk": descend(chain(R * ETA))["qk"], "ov": descend(base(ETA))["ov"]})()


@pytest.mark.parametrize("arm", SGD)
def test_sgd_is_optax_own_chain(arm):
    on, chain = SGD[arm]
    # The loss is a sum over leaves: each circuit trains as if it were alone, and the other one is left as it was.
    assert max_difference(ONE(of(on)), theirs(_alone(chain))) < 3e-6


def _alone(chain):
    """The chain, but for one circuit: its norms are not to see the other's gradients."""
    return lambda eta: optax.multi_transform({"qk": chain(eta), "ov": optax.set_to_zero()}, {"qk": "qk", "ov": "ov"})


def test_adam_and_adamw_are_optax_own():
    decay = Intervention(OnCircuit(decay=0.3), OnCircuit(decay=0.3))
    plain = jax.jit(lambda: {"qk": descend(optax.adamw(R * ETA, weight_decay=0.3))["qk"]})()["qk"]
    assert max_difference(ONE(of(decay), optimizer="adamw")["qk"], plain) < 1e-5
    coupled = jax.jit(lambda: descend(optax.chain(optax.add_decayed_weights(0.3), optax.adam(R * ETA))))()["qk"]
    assert max_difference(ONE(of(decay), optimizer="adam")["qk"], coupled) < 1e-5
    assert max_difference(plain, coupled) > 0.01


def test_one_program_serves_all_strengths():
    ONE(of(Intervention()))
    before = len(TRACES)
    for on, _ in SGD.values():
        ONE(of(on))
    assert len(TRACES) == before


def test_a_gain_is_a_rate_under_sgd_and_nothing_under_adam():
    plain = ONE(of(Intervention()))
    faster = ONE(of(Intervention()), (1.0, 2.0))
    assert max_difference(faster["ov"], plain["ov"]) == 0.0
    scheduled = ONE(of(on_qk(schedule=Schedule(2.0, 2.0))))
    assert max_difference(faster, scheduled) < 1e-6 < 1e-2 < max_difference(faster["qk"], plain["qk"])
    same = [ONE(of(Intervention()), (1.0, gain), optimizer="adam") for gain in (1.0, 10.0)]
    assert max_difference(*same) < 1e-5


def test_a_zero_gradient_stays_zero():
    tiny = replace(OnCircuit(gradient="normalized"), threshold=1e-70)
    for on in (OnCircuit(gradient="normalized"), OnCircuit(gradient="sign"), tiny):
        made = on_circuit(of(Intervention(on, on)), 0)(0.1)
        zeros = jax.tree.map(jnp.zeros_like, PARAMS["ov"])
        updates, _ = made.update(zeros, made.init(PARAMS["ov"]), PARAMS["ov"])
        assert all(np.array_equal(leaf, np.zeros_like(leaf)) for leaf in jax.tree.leaves(updates))


def test_refusals():
    on = of(Intervention())
    with pytest.raises(InputError, match="i must be 0 .* or 1 .*, got 2"):
        on_circuit(on, 2)
    with pytest.raises(InputError, match="momentum of the qk circuit must be 0 under adam, got 0.5"):
        check_optimizer(on_qk(momentum=0.5), "adam")
    assert check_optimizer(on_qk(momentum=0.5), "sgd")
    made = on_circuit(on, 1)(0.1)
    with pytest.raises(InputError, match="needs the parameters, got None"):
        made.update(PARAMS["qk"], made.init(PARAMS["qk"]))


def test_no_such_optimizer(unchecked):
    with pytest.raises(InputError, match="optimizer must be one of sgd, adam, adamw, got 'lion'"):
        on_circuit(of(Intervention()), 0, optimizer="lion")
    with pytest.raises(InputError, match="optimizer must be one of"):
        check_optimizer(Intervention(), "lion")


def test_a_threshold_beyond_single_precision_is_a_large_one():
    huge, plain = single(Numbers.of(on_qk(gradient="clipped", threshold=1e39))), of(Intervention())
    assert np.isfinite(huge.threshold).all() and huge.threshold.dtype == np.float32
    for numbers in (huge, huge._replace(threshold=np.full(2, np.inf, np.float32))):
        assert max_difference(ONE(jax.tree.map(jnp.asarray, numbers)), ONE(plain)) == 0


def test_decoupled_decay_takes_less_than_a_weight():
    check_optimizer(on_qk(decay=0.99, decoupled=True), "sgd")
    check_optimizer(on_qk(decay=30.0), "sgd")
    with pytest.raises(InputError, match="decoupled decay of the qk circuit must be below 1 in training, got 1.0"):
        check_optimizer(on_qk(decay=1.0, decoupled=True), "adamw")

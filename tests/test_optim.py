"""Per-circuit rates: equal to the plain optimizer at one, exact multiples under SGD, schedules, and every refusal."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from helpers import max_difference, quick, trees_equal
from qkdyn.circuits import init_params
from qkdyn.errors import InputError, LabelError
from qkdyn.optim import circuit_optimizer

NORMAL = jax.nn.initializers.normal(0.5)
PARAMS = init_params(jax.random.key(0), "FAFO", d=4, M=3, qk=NORMAL, ov=NORMAL)
MOMENTUM = functools.partial(optax.sgd, momentum=0.9)
ADAMW = functools.partial(optax.adamw, weight_decay=0.01)


def loss(params):
    return sum(jnp.sum(jnp.sin(leaf) * leaf) for leaf in jax.tree.leaves(params))


def train(tx, steps=100, params=PARAMS):
    @jax.jit
    def step(carry, _):
        params, state = carry
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    return jax.jit(lambda p: jax.lax.scan(step, (p, tx.init(p)), length=steps)[0])(params)[0]


@pytest.mark.parametrize("base", [optax.sgd, MOMENTUM])
@pytest.mark.parametrize("rate", [0.03, optax.linear_schedule(0.05, 0.01, 60)])
def test_multipliers_of_one_are_the_plain_optimizer_to_the_bit(base, rate):
    ours = train(circuit_optimizer(base, multipliers={"qk": 1.0, "ov": 1.0}, learning_rate=rate))
    assert trees_equal(ours, train(base(rate)))
    assert max_difference(ours, PARAMS) > 1e-2


def test_multipliers_of_one_are_plain_adamw_to_rounding():
    ours = train(circuit_optimizer(ADAMW, multipliers={"qk": 1.0, "ov": 1.0}, learning_rate=0.01))
    assert max_difference(ours, train(ADAMW(0.01))) < 1e-6 < max_difference(ours, PARAMS)


@pytest.mark.parametrize("base", [optax.sgd, MOMENTUM, ADAMW])
def test_each_circuit_moves_at_its_own_rate(base):
    ours = train(circuit_optimizer(base, multipliers={"qk": 10.0, "ov": 0.5}, learning_rate=0.01))
    # The loss is a sum over leaves, so each circuit trains as if it were alone.
    assert max_difference(ours["qk"], train(base(0.1))["qk"]) < 1e-6
    assert max_difference(ours["ov"], train(base(0.005))["ov"]) < 1e-6


def test_without_a_learning_rate_the_multipliers_are_the_rates():
    a = train(circuit_optimizer(optax.sgd, multipliers={"qk": 0.1, "ov": 0.02}))
    b = train(circuit_optimizer(optax.sgd, multipliers={"qk": 5.0, "ov": 1.0}, learning_rate=0.02))
    assert max_difference(a, b) < 1e-6


def test_what_is_frozen_keeps_its_bits_and_has_no_state():
    tx = circuit_optimizer(ADAMW, multipliers={"ov": 1.0}, learning_rate=0.01, freeze=("qk",))
    ours = train(tx, steps=3)
    assert trees_equal(ours["qk"], PARAMS["qk"]) and not trees_equal(ours["ov"], PARAMS["ov"])
    state = jax.eval_shape(tx.init, PARAMS)
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) == 1 + 2 * sum(map(np.size, jax.tree.leaves(PARAMS["ov"])))


def test_a_traced_zero_holds_a_part_still():
    def step(r):
        tx = circuit_optimizer(ADAMW, multipliers={"qk": r, "ov": 1.0}, learning_rate=0.01)
        return tx.update(PARAMS, tx.init(PARAMS), PARAMS)[0]

    updates = quick(step)(jnp.float32(0))
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(updates["qk"])) and np.all(updates["ov"]["W_O"])


@pytest.mark.parametrize("zero", [0.0, 0, jnp.float32(0)])
def test_a_multiplier_of_zero_says_to_freeze(zero):
    with pytest.raises(InputError, match=r"multipliers\['qk'\] must be a finite number > 0.*got 0.*freeze=\(\"qk\",\)"):
        circuit_optimizer(optax.sgd, multipliers={"qk": zero, "ov": 1.0})


def test_a_ramp_counts_updates():
    ramp = optax.linear_schedule(1.0, 3.0, 2)  # 1, 2, 3, 3, ...
    tx = circuit_optimizer(optax.sgd, multipliers={"qk": ramp, "ov": 1.0}, learning_rate=0.1)
    ones, state, rates = jax.tree.map(jnp.ones_like, PARAMS), tx.init(PARAMS), []
    for _ in range(4):
        updates, state = tx.update(ones, state, PARAMS)
        rates.append((-float(updates["qk"]["W_K"][0, 0]), -float(updates["ov"]["W_O"][0, 0])))
    np.testing.assert_allclose(rates, [(0.1, 0.1), (0.2, 0.1), (0.3, 0.1), (0.3, 0.1)], rtol=1e-6)


def test_traced_multipliers_compile_once_and_equal_the_constant_ones():
    traces = []

    @jax.jit
    @jax.vmap
    def sweep(r, rate):
        traces.append(r)
        return train.__wrapped__(circuit_optimizer(MOMENTUM, multipliers={"qk": r, "ov": 1.0}, learning_rate=rate))

    train.__wrapped__ = train
    ratios = jnp.array([0.1, 1.0, 10.0])
    swept = sweep(ratios, jnp.full(3, 0.01))
    sweep(ratios * 2, jnp.full(3, 0.02))
    assert len(traces) == 1
    for i, r in enumerate((0.1, 1.0, 10.0)):
        single = train(circuit_optimizer(MOMENTUM, multipliers={"qk": r, "ov": 1.0}, learning_rate=0.01))
        assert max_difference(jax.tree.map(lambda leaf, i=i: leaf[i], swept), single) < 2e-6


def test_under_sgd_a_multiplier_rescales_the_gradient_and_under_adam_it_does_not():
    def scaled(base):
        return optax.chain(
            optax.multi_transform({"qk": optax.scale(7.0), "ov": optax.identity()}, {"qk": "qk", "ov": "ov"}),
            base(0.01),
        )

    for base, same in ((optax.sgd, True), (optax.adam, False)):
        ours = train(circuit_optimizer(base, multipliers={"qk": 7.0, "ov": 1.0}, learning_rate=0.01), steps=30)
        assert (max_difference(ours, train(scaled(base), steps=30)) < 1e-6) is same


def test_labels_as_prefix_tree_and_as_function_for_a_model_of_ones_own():
    model = {"attn": {"q": jnp.ones(2), "v": jnp.ones(2)}, "mlp": jnp.ones(3)}
    tree = {"attn": {"q": "qk", "v": "ov"}, "mlp": "rest"}
    for labels in (tree, lambda params: tree):
        tx = circuit_optimizer(
            optax.sgd, multipliers={"qk": 2.0, "ov": 1.0, "rest": 3.0}, learning_rate=0.1, labels=labels
        )
        updates, _ = tx.update(model, tx.init(model), model)
        np.testing.assert_allclose([-u[0] for u in jax.tree.leaves(updates)], [0.2, 0.1, 0.3], rtol=1e-6)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "10", None, True, np.ones(2)])
def test_rates_that_are_no_rates_are_refused_at_once(value, unchecked):
    with pytest.raises(InputError, match=r"multipliers\['qk'\] must be"):
        circuit_optimizer(optax.sgd, multipliers={"qk": value, "ov": 1.0})
    with pytest.raises(InputError, match="learning_rate must be"):
        circuit_optimizer(optax.sgd, multipliers={"qk": 1.0, "ov": 1.0}, learning_rate=value)


def test_array_scalars_are_checked_like_numbers():
    with pytest.raises(InputError, match=r"must be a finite number > 0, at most 1e\+30, got -2.0"):
        circuit_optimizer(optax.sgd, multipliers={"qk": jnp.float32(-2.0), "ov": 1.0})
    with pytest.raises(InputError, match="multipliers must be a rate for each label"):
        circuit_optimizer(optax.sgd, multipliers={})


def test_labels_and_multipliers_must_match():
    def init(multipliers, labels):
        return circuit_optimizer(optax.sgd, multipliers=multipliers, labels=labels).init(PARAMS)

    both = {"qk": "qk", "ov": "ov"}
    with pytest.raises(LabelError, match="no multiplier for ov/W_O -> 'ov', ov/W_V -> 'ov'; the multipliers are 'qk'"):
        init({"qk": 1.0}, both)
    with pytest.raises(LabelError, match="multipliers 'mlp' match no parameter; the labels are 'ov', 'qk'"):
        init({"qk": 1.0, "ov": 1.0, "mlp": 1.0}, both)
    with pytest.raises(LabelError, match="labels must be a tree, or a prefix"):
        init({"qk": 1.0, "ov": 1.0}, {"qk": "qk"})
    with pytest.raises(LabelError, match=r"no attention found in these parameters"):
        circuit_optimizer(optax.sgd, multipliers={"qk": 1.0}).init({"loose": jnp.ones(2)})

"""An intervention on one circuit as an optax transform, its strengths traced: one program serves all arms of a family.

Of every matrix W of the circuit, in this order: the gradient is bounded by the norm of the whole circuit's, decay is added to
it, momentum or Adam's averages follow, then the rate times the schedule, then decoupled decay. As `qkdyn.interventions` has it.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from qkdyn.bounding import bounding, multiplier
from qkdyn.errors import InputError, reject
from qkdyn.interventions import Intervention, Numbers

Optimizer = Literal["sgd", "adam", "adamw"]
# Where `Numbers` has its circuits.
PLACES = {"ov": 0, "qk": 1}
# Thresholds below are zero in single precision, and a zero gradient over zero no number.
LEAST = 1e-30
# Thresholds above are infinite there, and so would be their ratio to themselves not a number.
MOST = 1e30


class CircuitState(NamedTuple):
    """Updates taken (int32), and trees of averages: of gradients (SGD: its momentum) and, of Adam, of their squares."""

    count: Any
    first: Any
    second: Any


def check_optimizer(intervention: Intervention, optimizer: str) -> Intervention:
    """Return the intervention, or raise InputError where it means nothing under this optimizer."""
    if optimizer not in get_args(Optimizer):
        reject("optimizer", optimizer, "one of " + ", ".join(get_args(Optimizer)))
    for name in PLACES:
        if optimizer != "sgd" and (momentum := getattr(intervention, name).momentum):
            reject(f"momentum of the {name} circuit", momentum, f"0 under {optimizer}", "its averages are b1 and b2")
        on = getattr(intervention, name)
        if on.decoupled and on.decay >= 1:
            do = "an update would take more than all of a weight away"
            reject(f"decoupled decay of the {name} circuit", on.decay, "below 1 in training", do)
    return intervention


def single(numbers: Numbers) -> Numbers:
    """The numbers in single precision, those beyond it at `MOST`."""
    return jax.tree.map(
        lambda leaf: np.minimum(leaf, MOST).astype(np.float32) if leaf.dtype.kind == "f" else leaf, numbers
    )


def on_circuit(
    numbers: Numbers,
    i: int,
    *,
    optimizer: Optimizer = "sgd",
    gain: Array | float = 1.0,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
) -> Callable[[Any], optax.GradientTransformation]:
    """What `circuit_optimizer` takes as the base of one circuit: the intervention's transform as a function of the rate.

    For example `circuit_optimizer({"qk": on_circuit(on, 1), "ov": on_circuit(on, 0)}, multipliers={"qk": r, "ov": 1.0},
    learning_rate=eta_ov)`. The norm that bounds is that of all gradients that this base is given.

    Args:
        numbers: the intervention; traced, or numpy's of `Numbers.of`. Schedules count updates, from 0.
        i: place of the circuit in `numbers`: 0 of OV, 1 of QK (`PLACES`).
        optimizer: "sgd", with the intervention's momentum; "adam", where decay joins the gradient before the averages;
            "adamw", where it is added after them and the rate multiplies it. Decoupled decay knows no rate in any of them.
        gain: what the circuit's gradient is multiplied by before anything else: under SGD a rate, under Adam (nearly) nothing.
        b1: of Adam's average of gradients.
        b2: of Adam's average of squares.
        eps: what is added to Adam's root; entries without a gradient take whole steps where it is below their rounding.

    Raises:
        InputError: there is no such optimizer or place.
    """
    if optimizer not in get_args(Optimizer):
        reject("optimizer", optimizer, "one of " + ", ".join(get_args(Optimizer)))
    if i not in PLACES.values():
        raise InputError(f"i must be 0 (output-value) or 1 (query-key), got {i!r}")
    on: Any = jax.tree.map(lambda number: jnp.asarray(number)[i], numbers)
    threshold = jnp.clip(on.threshold, LEAST, MOST)
    adam = optimizer != "sgd"

    def made(rate: Any) -> optax.GradientTransformation:
        def init(params: Any) -> CircuitState:
            zeros = jax.tree.map(jnp.zeros_like, params)
            return CircuitState(jnp.zeros((), jnp.int32), zeros, zeros if adam else ())

        def update(gradient: Any, state: CircuitState, params: Any = None) -> tuple[Any, CircuitState]:
            if params is None:
                raise InputError("an intervention's update needs the parameters, got None; pass them to `update`")
            gradient = jax.tree.map(lambda G: gain * G, gradient)
            bound = bounding(optax.tree.norm(gradient), threshold, on.clipped, on.normalized)
            base: Any = rate(state.count) if callable(rate) else rate
            eta = base * multiplier(state.count, on.schedule)
            by_rate = jnp.where(on.decoupled, 0.0, on.decay)
            apart = jnp.where(on.decoupled, on.decay, 0.0)
            before = 0.0 if optimizer == "adamw" else by_rate

            def bounded(G: Array, W: Array) -> Array:
                return jnp.where(on.sign, G / jnp.maximum(jnp.abs(G), threshold), bound * G) + before * W

            moved = jax.tree.map(bounded, gradient, params)
            if adam:
                count = state.count + 1
                first = jax.tree.map(lambda m, G: b1 * m + (1 - b1) * G, state.first, moved)
                second = jax.tree.map(lambda v, G: b2 * v + (1 - b2) * G**2, state.second, moved)
                to_first, to_second = 1 / (1 - b1**count), 1 / (1 - b2**count)
                after = by_rate if optimizer == "adamw" else 0.0
                moved = jax.tree.map(
                    lambda m, v, W: m * to_first / (jnp.sqrt(v * to_second) + eps) + after * W, first, second, params
                )
            else:
                moved = first = jax.tree.map(lambda m, G: on.momentum * m + G, state.first, moved)
                second = ()
            updates = jax.tree.map(lambda step, W: -eta * step - apart * W, moved, params)
            return updates, CircuitState(optax.safe_increment(state.count), first, second)

        return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]

    return made

"""Per-circuit optimizers: one optax transform for each label of the parameter tree, each at its own multiple of the rate."""

import math
import numbers
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import jax.core
import optax

from qkdyn.circuits import circuit_labels
from qkdyn.errors import InputError, LabelError, reject

# The largest rate that single precision holds with room for a gradient.
MOST = 1e30
Rate = float | jax.Array | optax.Schedule


def circuit_optimizer(
    base: Callable[[Any], optax.GradientTransformation] | Mapping[str, Callable[[Any], optax.GradientTransformation]],
    *,
    multipliers: Mapping[str, Rate],
    learning_rate: Rate = 1.0,
    labels: Any = circuit_labels,
) -> optax.GradientTransformationExtraArgs:
    """Train every labelled part of a model by `base`, at `multipliers[label]` times the learning rate.

    The paper's ratio is r = eta_QK / eta_OV = multipliers["qk"] / multipliers["ov"] (Sec. 6.1). Under SGD a multiplier is a
    rescaling of that circuit's gradient; under Adam, whose updates are scale-free, it is not.

    Args:
        base: makes the transform of one part from its learning rate (a number, a traced scalar or a schedule), e.g.
            `optax.sgd`, `functools.partial(optax.sgd, momentum=0.9)`, `optax.adamw`. Decay that `base` scales by its rate
            (as adamw does) is scaled by the multiplier too. A mapping has one for each label, e.g. of its own decay.
        multipliers: a rate multiplier for each label: a number >= 0 (0 freezes the part), a traced scalar, so that one
            compilation serves a whole grid of ratios, or a schedule of the update count, such as `optax.linear_schedule`.
        learning_rate: what the multipliers multiply: a number, a traced scalar or a schedule. With the default 1.0 the
            multipliers are the learning rates themselves.
        labels: a tree of labels (or a prefix of one) for the parameters, or a function that makes it from the parameters.

    Returns:
        An optax transform. With every multiplier 1 it is `base(learning_rate)`: the same bits under SGD and momentum,
        the same to rounding under Adam, where the compiler orders the operations differently.

    Raises:
        InputError: a multiplier or the learning rate is negative, not finite, or not a rate at all (at once).
        LabelError: a leaf without a label, a label without a multiplier, or a multiplier that no leaf uses (at `init`).
    """
    if not multipliers:
        reject("multipliers", dict(multipliers), "a rate for each label", 'e.g. {"qk": 10.0, "ov": 1.0}')
    _check_rate("learning_rate", learning_rate)
    for name, value in multipliers.items():
        _check_rate(f"multipliers[{name!r}]", value)
    bases = base if isinstance(base, Mapping) else dict.fromkeys(multipliers, base)
    if set(bases) != set(multipliers):
        reject("base", sorted(bases), f"one transform for each of {', '.join(map(repr, sorted(multipliers)))}")
    transforms: dict[Hashable, optax.GradientTransformation] = {
        name: bases[name](_product(learning_rate, value)) for name, value in multipliers.items()
    }
    grouped = optax.multi_transform(transforms, labels)

    def init(params: Any) -> optax.OptState:
        check_labels(labels(params) if callable(labels) else labels, params, multipliers)
        return grouped.init(params)

    return optax.GradientTransformationExtraArgs(init, grouped.update)


def check_labels(labels: Any, params: Any, multipliers: Mapping[str, Any]) -> None:
    """Raise LabelError unless every leaf has one label and labels and multipliers are the same set."""
    try:
        full = jax.tree.map(lambda label, part: jax.tree.map(lambda _: label, part), labels, params)
    except (ValueError, TypeError) as error:
        raise LabelError(f"labels must be a tree, or a prefix of the tree, of the parameters: {error}") from error
    wrong = {
        jax.tree_util.keystr(path, simple=True, separator="/"): label
        for path, label in jax.tree_util.tree_leaves_with_path(full)
        if label not in multipliers
    }
    if wrong:
        leaves = ", ".join(f"{path} -> {label!r}" for path, label in wrong.items())
        raise LabelError(f"no multiplier for {leaves}; the multipliers are {', '.join(map(repr, multipliers))}")
    unused = set(multipliers) - set(jax.tree.leaves(full))
    if unused:
        raise LabelError(
            f"multipliers {', '.join(map(repr, sorted(unused)))} match no parameter; the labels are "
            f"{', '.join(map(repr, sorted(set(jax.tree.leaves(full)))))}: remove them, or mend the name"
        )


def _check_rate(name: str, value: Any) -> None:
    if callable(value):
        return None
    if isinstance(value, jax.core.Tracer):
        shape = value.shape
    elif isinstance(value, numbers.Real) and not isinstance(value, bool):
        shape = ()
        if not math.isfinite(value) or not 0 <= float(value) <= MOST:
            reject(name, value, f"a finite number >= 0, at most {MOST:g}")
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        shape = tuple(value.shape)
        if shape == ():
            return _check_rate(name, value.item())
    else:
        reject(name, value, "a number, a scalar array or a schedule (a function of the update count)")
    if shape != ():
        raise InputError(f"{name} must be a scalar, got an array of shape {shape}; vmap over its entries instead")
    return None


def _product(rate: Rate, multiplier: Rate) -> Rate:
    """The rate times the multiplier, a schedule where either is one."""
    if callable(rate) or callable(multiplier):

        def schedule(count: Any) -> Any:
            value = rate(count) if callable(rate) else rate
            return value * (multiplier(count) if callable(multiplier) else multiplier)

        return schedule
    return rate * multiplier

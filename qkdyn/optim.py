"""Per-circuit optimizers: one optax transform for each label of the parameter tree, each at its own multiple of the rate."""

import inspect
import numbers
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from qkdyn.circuits import circuit_labels
from qkdyn.errors import InputError, LabelError, as_tuple, reject
from qkdyn.factors import Factors, scaled
from qkdyn.labels import NAMED, is_module, labels_for, paths_of
from qkdyn.rates import MOST, Rate, check_rate, product
from qkdyn.slices import Fused, Slices
from qkdyn.splitting import merge, part_labels, split

__all__ = [
    "MOST",
    "Rate",
    "check_arrays",
    "check_labels",
    "check_options",
    "circuit_optimizer",
    "full_labels",
]

Base = Callable[[Any], optax.GradientTransformation] | optax.GradientTransformation


def circuit_optimizer(
    base: Base | Mapping[str, Base],
    *,
    multipliers: Mapping[str, Rate],
    learning_rate: Rate = 1.0,
    labels: Any = circuit_labels,
    decay: Mapping[str, Rate] | None = None,
    clip: Any = None,
    freeze: Sequence[str] = (),
    layers: Mapping[str, Any] | None = None,
    heads: Mapping[str, Any] | None = None,
    layer_axis: int = 0,
    head_axes: Mapping[str, int] | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Train every labelled part of a model by `base`, at `multipliers[label]` times the learning rate.

    The paper's ratio is r = eta_QK / eta_OV = multipliers["qk"] / multipliers["ov"] (Sec. 6.1). Under SGD a multiplier is a
    rescaling of that circuit's gradient; under Adam, whose updates are scale-free, it is not.

    Args:
        base: makes the transform of one part from its learning rate (a number, a traced scalar or a schedule), e.g.
            `optax.sgd`, `functools.partial(optax.sgd, momentum=0.9)`, `optax.adamw`. Decay that `base` scales by its rate
            (as adamw does) is scaled by the multiplier too. Or a transform with a rate of its own, `optax.adamw(1e-3)`, whose
            updates are multiplied. A mapping has one for each label. No line search (`optax.lbfgs`), which moves all
            parameters at once. `optax.contrib.schedule_free` goes around `circuit_optimizer(...)`, not inside, so that
            `schedule_free_eval_params` finds its state.
        multipliers: a rate multiplier for each label: a number > 0, a traced scalar, so that one compilation serves a whole
            grid of ratios, or a schedule of the update count, such as `optax.linear_schedule`. A traced zero holds a part
            still, at the cost of a trained one. What is traced or comes out of a schedule is not looked at: where it is
            negative, in any argument here, the part ascends. Labels "embed", "mlp" and "head" without one have that of "rest".
        learning_rate: what the multipliers multiply: a number, a traced scalar or a schedule. With the default 1.0 the
            multipliers are the learning rates themselves.
        labels: a tree of labels (or a prefix of one) for the parameters, or a function that makes it from the parameters, such
            as `functools.partial(circuit_labels, rules=...)`. A leaf with `Slices` is trained as the parts that it fuses.
        decay: decoupled weight decay of each label: an update also takes rate x multiplier x decay of every parameter away,
            as in AdamW. For a base without decay of its own: refused is one whose first updates of a zero gradient, at a
            rate of 1, depend on the parameters; decay that starts later, or under a mask by names, is not seen.
        clip: largest global norm of the gradient, over all circuits together, before anything else; what is frozen does not
            count. As `optax.clip_by_global_norm` before `base`.
        freeze: labels that are not trained: no update, no state, no multiplier.
        layers: of a label, what multiplies its rate in each layer, (L,); layers are told apart by numbers in the paths, where
            several count to L by that of a name with "layer" or "block", or lie along `layer_axis` of scanned parameters. An
            axis of seeds or heads of length L in all of attention looks the same.
        heads: of a label, what multiplies its rate in each head, (H,) or (L, H), H the number of query heads; where several
            share a key and a value, these have the mean. Biases of the output and normalizations belong to no head. Flat
            kernels do not show how many heads the model has: any H that divides them is taken (see `circuit_table`).
        layer_axis: of scanned parameters.
        head_axes: {regular expression of a path: its axis of heads}, where names and shapes do not say it. The first rule
            found in a path, of an axis that the parameter has, holds.

    Returns:
        An optax transform. With every multiplier 1 it is `base(learning_rate)`: the same bits under SGD and momentum,
        the same to rounding under Adam, where the compiler orders the operations differently. Not so where `base` looks
        at more than single entries: norms of whole tensors (adafactor, lamb, lars, novograd, sm3, fromage, muon) are of the
        parts of a fused leaf, norms of all (clipping inside `base`) are of each label, and noise is drawn for each label.

    Raises:
        InputError: a multiplier that is zero, negative, not finite, or not a rate at all; a negative decay, clip or rate (at
            once); a line search (at `init`); gradients of other parameters (at `update`).
        LabelError: a leaf without a label, a label without a multiplier, a multiplier that no leaf uses, slices that do not
            divide their axis, or layers or heads that are not in the shapes (at `init`).
    """
    frozen = check_options(multipliers, learning_rate, decay, clip, freeze)
    bases = base if isinstance(base, Mapping) else dict.fromkeys(multipliers, base)
    if set(bases) != set(multipliers):
        reject("base", sorted(bases), f"one transform for each of {', '.join(map(repr, sorted(multipliers)))}")
    transforms: dict[Hashable, optax.GradientTransformation] = {
        name: _transform(bases[name], product(learning_rate, value), (decay or {}).get(name))
        for name, value in multipliers.items()
    }
    transforms |= {name: optax.set_to_zero() for name in frozen}
    factors = Factors(layers or {}, heads or {}, layer_axis, head_axes or {})
    factors.check(multipliers)

    def found(tree: Any) -> Any:
        return full_labels(labels_for(labels, tree), tree, multipliers, frozen)

    def grouped_by(full: Any) -> optax.GradientTransformationExtraArgs:
        # By a function: optax too would call a tree of labels that is callable.
        own = part_labels(full)
        return optax.multi_transform(transforms, lambda _: own)

    def init(params: Any) -> optax.OptState:
        check_arrays(params)
        full = found(params)
        check_labels(full, params, multipliers, frozen)
        scaled(full, split(full, params), factors)
        try:
            state = grouped_by(full).init(split(full, params))
        except IndexError:  # a line search of a label without parameters
            _check_state({name: jax.eval_shape(own.init, jnp.zeros(())) for name, own in transforms.items()})
            raise
        _check_state(state)
        return state

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        full = found(updates)
        updates = split(full, updates)
        if clip is not None:
            updates = _clipped(updates, part_labels(full), frozen, clip)
        params = None if params is None else _split_beside(full, params)
        grouped = grouped_by(full)
        if any(isinstance(label, Slices) for label in jax.tree.leaves(full)):
            state = _as_made(grouped, state, updates if params is None else params)
        updates, state = grouped.update(updates, state, params, **extra)
        return merge(full, scaled(full, updates, factors)), state

    return optax.GradientTransformationExtraArgs(init, update)


def check_options(
    multipliers: Any, rate: Any = 1.0, decay: Any = None, clip: Any = None, freeze: Any = ()
) -> tuple[str, ...]:
    """Raise InputError for what `circuit_optimizer` refuses without parameters; what is frozen."""
    frozen = as_tuple("freeze", freeze)
    for name, value in (("multipliers", multipliers), ("decay", {} if decay is None else decay)):
        if not isinstance(value, Mapping) or (name == "multipliers" and not value):
            reject(name, value, "a rate for each label", f'e.g. {name}={{"qk": 0.1, "ov": 0.01}}')
    check_rate("learning_rate", rate)
    for name, value in multipliers.items():
        check_rate(f"multipliers[{name!r}]", value, f'to train this part not at all: freeze=("{name}",), no multiplier')
    for name, value in (decay or {}).items():
        check_rate(f"decay[{name!r}]", value)
    if clip is not None:
        check_rate("clip", clip, "the largest norm of the gradient; None not to clip", schedule=False)
    for names, what in ((set(decay or {}) - set(multipliers), "decay"), (set(frozen) & set(multipliers), "freeze")):
        if names:
            allowed = "of labels that have a multiplier" if what == "decay" else "labels without a multiplier"
            reject(what, sorted(names), allowed, f"the multipliers are of {', '.join(map(repr, multipliers))}")
    return frozen


def check_arrays(params: Any) -> None:
    """Raise LabelError unless all leaves are arrays, shapes of arrays or numbers."""
    if is_module(params):
        raise LabelError(
            f"params must be a tree of arrays, got the module {type(params).__name__}; pass nnx.state(model, nnx.Param)"
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not hasattr(leaf, "shape") and not isinstance(leaf, numbers.Number):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            do = "of an Equinox model pass eqx.filter(model, eqx.is_inexact_array)"
            raise LabelError(f"{name} is no array: {leaf!r:.200}; {do}")


def _check_state(state: Any) -> None:
    """Raise InputError for a line search, which cannot move one part alone."""

    def searches(node: Any) -> bool:
        return "linesearch" in type(node).__name__.lower()

    if any(map(searches, jax.tree.leaves(state, is_leaf=searches))):
        do = "optax.lbfgs(linesearch=None) and optax.sgd have none"
        raise InputError(
            f"base must be without a line search, which evaluates the loss at all parameters at once; {do}"
        )


def _split_beside(full: Any, params: Any) -> Any:
    """The parts of the parameters; InputError where the gradients, of which `full` are the labels, lack some or have others."""
    try:
        return split(full, params)
    except ValueError:
        given, wanted = (set(map("/".join, paths_of(tree))) for tree in (full, params))
        shown = ", ".join(sorted(given ^ wanted)[:30])
        raise InputError(
            f"gradients must be of the same tree as the parameters, got only one of the two for {shown or 'other containers'}; "
            "give zeros where there is no gradient, or freeze it by a label of its own"
        ) from None


def _transform(base: Base, rate: Rate, decay: Rate | None) -> optax.GradientTransformation:
    """The transform of one part at its rate."""
    if not callable(base) and not isinstance(base, optax.GradientTransformation):
        reject(
            "base", base, "a function of the rate that makes an optax transform, or such a transform", "e.g. optax.adam"
        )
    own = _own_decay(base)
    if decay is not None and (own or _decays(base)):
        zero = f"{base!r:.200}, whose updates of a zero gradient depend on the parameters"
        shown = f"one with weight_decay={own}" if own else zero
        reject("base", shown, "without decay of its own beside decay", "e.g. optax.adam")
    if isinstance(base, optax.GradientTransformation):
        made = optax.chain(base, optax.scale_by_schedule(rate) if callable(rate) else optax.scale(rate))
    else:
        made = base(rate)
    if decay is None:
        return made
    return optax.chain(made, optax.add_decayed_weights(product(product(rate, decay), -1.0)))


def _own_decay(base: Base) -> Any:
    """The weight decay that a base has by itself, as its signature says; None where it says nothing."""
    try:
        parameter = inspect.signature(base).parameters.get("weight_decay")  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        return None
    own = None if parameter is None else parameter.default
    return own if isinstance(own, int | float) and own else None


def _decays(base: Base) -> bool:
    """Whether updates of a zero gradient depend on the parameters; False where it cannot be tried."""

    def updates(size: float) -> list[Any]:
        params = {"w": jnp.full((2, 2), size)}
        made: Any = base if isinstance(base, optax.GradientTransformation) else base(1.0)
        state, found = made.init(params), []
        for _ in range(2):  # a rate that warms up from 0 shows nothing at first
            update, state = made.update({"w": jnp.zeros((2, 2))}, state, params)
            found.append(update["w"])
        return found

    try:
        with jax.ensure_compile_time_eval():
            return not np.array_equal(updates(1.0), updates(2.0))
    except Exception:  # whatever a base needs: the loss, names of parameters, traced numbers
        return False


def _as_made(grouped: optax.GradientTransformationExtraArgs, state: Any, parts: Any) -> Any:
    """The state in the containers that `init` made; nnx.Optimizer keeps tuples, such as parts, in containers of its own."""
    made = jax.tree.structure(jax.eval_shape(grouped.init, parts))
    return state if jax.tree.structure(state) == made else jax.tree.unflatten(made, jax.tree.leaves(state))


def _clipped(updates: Any, labels: Any, frozen: tuple[str, ...], clip: Any) -> Any:
    """Gradients whose global norm, without frozen parts, is at most `clip`."""
    names, leaves = jax.tree.leaves(labels), jax.tree.leaves(updates)
    trained = [name not in frozen for name in names]
    some = [leaf for leaf, used in zip(leaves, trained, strict=True) if used]
    found: Any = optax.clip_by_global_norm(clip).update(some, optax.EmptyState())[0]
    clipped = iter(found)
    whole = [next(clipped) if used else leaf for leaf, used in zip(leaves, trained, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(updates), whole)


def full_labels(labels: Any, params: Any, multipliers: Mapping[str, Any], freeze: Sequence[str] = ()) -> Any:
    """A label for every leaf, from a tree of labels or a prefix of one; of "embed", "mlp", "head" without a multiplier "rest".

    Raises:
        LabelError: it is no prefix of the parameters' tree.
    """
    known = {*multipliers, *freeze}
    others = set(NAMED[3:]) - known if "rest" in known else set()
    try:
        full = jax.tree.map(lambda label, part: jax.tree.map(lambda _: label, part), labels, params)
    except (ValueError, TypeError) as error:
        given = set(paths_of(labels))
        without = [path for path in paths_of(params) if not any(path[:i] in given for i in range(len(path) + 1))]
        shown = ", ".join(map("/".join, without[:30]))
        why = f"no label for {shown}" if without else str(error)
        raise LabelError(f"labels must be a tree, or a prefix of the tree, of the parameters: {why}") from error
    if any(isinstance(label, Fused) for label in jax.tree.leaves(full)):
        full = jax.tree_util.tree_map_with_path(_resolved, full, params)
    return jax.tree.map(lambda label: "rest" if isinstance(label, str) and label in others else label, full)


def _resolved(path: Any, label: Any, leaf: Any) -> Any:
    if not isinstance(label, Fused):
        return label
    return label.of(tuple(np.shape(leaf)), jax.tree_util.keystr(path, simple=True, separator="/"))


def check_labels(full: Any, params: Any, multipliers: Mapping[str, Any], freeze: Sequence[str] = ()) -> None:
    """Raise LabelError unless labels and multipliers (and what is frozen) are the same set, and all slices fit."""
    known, names, wrong = {*multipliers, *freeze}, set(), []
    shapes = jax.tree.leaves(params)
    for (path, label), leaf in zip(jax.tree_util.tree_leaves_with_path(full), shapes, strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if isinstance(label, Slices):
            label.check(tuple(leaf.shape), name)
        own = label.labels if isinstance(label, Slices) else (label,)
        hashable = [one for one in own if isinstance(one, Hashable)]
        names |= set(hashable)
        if len(hashable) < len(own) or set(hashable) - known:
            wrong.append(f"{name} -> {label if isinstance(label, Slices) else repr(label)}")
    if wrong:
        shown = ", ".join(wrong[:30]) + (f" and {len(wrong) - 30} more" if len(wrong) > 30 else "")
        raise LabelError(f"no multiplier for {shown}; the multipliers are {', '.join(map(repr, multipliers))}")
    unused = known - names - {"rest"}  # everything else may be nothing
    if unused:
        sides = (("multipliers", unused & set(multipliers)), ("freeze", unused - set(multipliers)))
        what = [f"{side} {', '.join(map(repr, sorted(some)))}" for side, some in sides if some]
        raise LabelError(
            f"{' and '.join(what)} match no parameter; the labels are "
            f"{', '.join(map(repr, sorted(names)))}: remove them, or mend the name"
        )

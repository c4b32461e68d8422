"""PyTorch: parameter groups in which the query-key circuit has a rate of its own, fused projections included.

Nothing in the package imports this module; it needs PyTorch, which is an extra. Labels come from names and shapes by the same
code as for JAX (`qkdyn.grouping`).

    split_fused(model)                   # in_proj_weight, c_attn, qkv: query, key and value become parameters of their own
    groups = circuit_groups(model, learning_rate=1e-3, multipliers={"qk": 10.0, "ov": 1.0, "rest": 1.0})
    optimizer = torch.optim.AdamW(groups)
    ...
    merge_fused(model)                   # as it was, for a checkpoint that others read

A tensor that fuses query, key and value cannot stand in two groups, and to scale a slice of its gradient by a hook changes
nothing under Adam, whose updates do not depend on the gradient's scale. So the tensor is replaced by a parametrization: its
parts are the parameters, and the module sees their concatenation. That is right under every optimizer, with decay and clipping.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from qkdyn.errors import LabelError, as_tuple, check_positive, reject
from qkdyn.grouping import CIRCUITS, NAMED, Label, Path, Rules, label_paths
from qkdyn.slices import Slices

try:
    import torch  # pyright: ignore[reportMissingImports]
    from torch.nn.utils import parametrize  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("qkdyn.torch_groups needs PyTorch, which is an extra: pip install torch") from error


class Parts(torch.nn.Module):
    """A parametrization: a fused tensor as what it fuses."""

    def __init__(self, slices: Slices) -> None:
        super().__init__()
        self.slices = slices

    def forward(self, *parts: Any) -> Any:
        """The fused tensor of these parts."""
        axis = self.slices.axis % parts[0].ndim
        blocks = [part.unflatten(axis, (self.slices.repeats, -1)) for part in parts]
        return torch.cat(blocks, axis + 1).flatten(axis, axis + 1)

    def right_inverse(self, whole: Any) -> tuple[Any, ...]:
        """The parts of a fused tensor, each with memory of its own."""
        axis = self.slices.axis % whole.ndim
        sizes = [stop - start for _, start, stop in self.slices.parts]
        blocks = whole.unflatten(axis, (self.slices.repeats, -1)).split(sizes, axis + 1)
        return tuple(block.flatten(axis, axis + 1).clone(memory_format=torch.contiguous_format) for block in blocks)


class _Tensor(NamedTuple):
    """A parameter as its module sees it; `parts` are what is trained: itself alone, unless it is split."""

    module: Any
    name: str
    path: Path
    shape: tuple[int, ...]
    parts: tuple[Any, ...]
    slices: Slices | None


def circuit_labels(model: Any, *, rules: Rules | None = None) -> dict[str, Label]:
    """The label of every parameter by its name: "qk", "ov", "rest", ..., of a fused one `Slices`, whether it is split or not.

    Args:
        model: a `torch.nn.Module`.
        rules: as for `qkdyn.labels.circuit_labels`; paths are names with a slash for each dot, "h/0/attn/c_attn/weight".

    Raises:
        LabelError: no attention, or a doubt; the message shows the parameters and what they were taken for.
    """
    return {".".join(tensor.path): label for tensor, label in _labelled(model, rules)}


def split_fused(model: Any, *, rules: Rules | None = None) -> list[str]:
    """Make every part of every fused parameter a parameter of its own; the model computes what it did.

    Do it before the optimizer and before `DistributedDataParallel` and the like. The names in `state_dict` change until
    `merge_fused`.

    Args:
        model: a `torch.nn.Module`, changed in place.
        rules: as for `circuit_labels`.

    Returns:
        The names of the fused parameters, none where nothing is fused (any more).

    Raises:
        LabelError: as for `circuit_labels`; or a fused parameter that two modules share.
    """
    fused = [(tensor, label) for tensor, label in _labelled(model, rules) if isinstance(label, Slices)]
    fused = [(tensor, label) for tensor, label in fused if tensor.slices is None]
    owners = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())
    for tensor, _ in fused:
        if owners[id(tensor.parts[0])] != 1:
            do = "share the module instead, or remove its other parametrization"
            reject(".".join(tensor.path), "a fused parameter of other modules too", "of one module", do, LabelError)
    for tensor, label in fused:
        parametrize.register_parametrization(tensor.module, tensor.name, Parts(label))
    return [".".join(tensor.path) for tensor, _ in fused]


def merge_fused(model: Any) -> None:
    """Undo `split_fused`: fused parameters again, with the values that were learned."""
    for tensor in list(_tensors(model)):
        if tensor.slices is not None:
            trained = tensor.parts[0].requires_grad
            parametrize.remove_parametrizations(tensor.module, tensor.name, leave_parametrized=True)
            whole = getattr(tensor.module, tensor.name).detach()
            delattr(tensor.module, tensor.name)
            tensor.module.register_parameter(tensor.name, torch.nn.Parameter(whole, trained))


def circuit_groups(
    model: Any,
    *,
    learning_rate: Any,
    multipliers: Mapping[str, Any],
    freeze: Sequence[str] = (),
    rules: Rules | None = None,
) -> list[dict[str, Any]]:
    """Parameter groups for any PyTorch optimizer, one for each label, at `multipliers[label]` times the learning rate.

    AdamW's weight decay is times a group's rate, so it is scaled too; a group may be given one of its own,
    `group["weight_decay"] = 0.1`. Schedulers multiply all groups alike and keep the ratio (OneCycleLR wants its max_lr as a
    list, one for each group).

    Args:
        model: a `torch.nn.Module`, after `split_fused` if it fuses anything.
        learning_rate: > 0; a number or a tensor of one.
        multipliers: > 0, for each label, numbers or tensors of one; "embed", "mlp" and "head" without one have that of "rest",
            which may be no parameter's. The paper's ratio r is multipliers["qk"] / multipliers["ov"].
        freeze: labels that are in no group, and so are not trained. Their requires_grad stays as it is: they still have
            gradients, which `clip_grad_norm_(model.parameters(), ...)` counts; to clip by what is trained give it the groups'
            parameters, or set requires_grad_(False) on the others.
        rules: as for `circuit_labels`.

    Returns:
        [{"params": [...], "lr": ..., "label": "qk"}, ...] of what requires a gradient.

    Raises:
        InputError: a rate or a multiplier that is not a finite number > 0.
        LabelError: as for `circuit_labels`; a fused parameter that is not split, a label without a multiplier, a multiplier
            or a frozen label that no parameter has, a multiplier of parameters that all have requires_grad=False.
    """
    frozen = as_tuple("freeze", freeze)
    if not isinstance(multipliers, Mapping) or not multipliers:
        reject("multipliers", multipliers, "a rate for each label", 'e.g. {"qk": 10.0, "ov": 1.0, "rest": 1.0}')
    learning_rate = check_positive("learning_rate", _number(learning_rate))
    multipliers = {
        name: check_positive(
            f"multipliers[{name!r}]", _number(value), do=f'to train this part not at all: freeze=("{name}",)'
        )
        for name, value in multipliers.items()
    }
    if set(frozen) & set(multipliers):
        reject("freeze", frozen, "labels without a multiplier", error=LabelError)
    known = {*multipliers, *frozen}
    taken = _by_label(_labelled(model, rules), known)
    wrong = [f"{name} -> {label!r}" for name, label, _ in taken if label not in known]
    if wrong:
        shown = ", ".join(wrong[:30]) + (f" and {len(wrong) - 30} more" if len(wrong) > 30 else "")
        raise LabelError(f"no multiplier for {shown}; the multipliers are {', '.join(map(repr, multipliers))}")
    used = {label for _, label, _ in taken}
    for what, names in (("multipliers", set(multipliers) - {"rest"}), ("freeze:", set(frozen) - {"rest"})):
        if names - used:
            said, has = (", ".join(map(repr, sorted(some))) for some in (names - used, used))
            raise LabelError(
                f"{what} {said} match no parameter; the labels are {has}: remove what is too much, or mend the name"
            )
    groups = {label: [part for _, own, part in taken if own == label and part.requires_grad] for label in multipliers}
    still = [label for label, parts in groups.items() if not parts and label != "rest"]
    if still:
        do = "call requires_grad_(True) on what is to be trained, or " + " ".join(
            f'freeze=("{name}",)' for name in still
        )
        reject(
            "multipliers",
            still,
            "of parameters that are trained",
            f"all of theirs have requires_grad=False: {do}",
            LabelError,
        )
    return [
        {"params": groups[label], "lr": learning_rate * by, "label": label}
        for label, by in multipliers.items()
        if groups[label]
    ]


def _number(value: Any) -> Any:
    """A tensor of one number as the number."""
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def _by_label(labelled: list[tuple[_Tensor, Label]], known: set[str]) -> list[tuple[str, str, Any]]:
    """(name, label, parameter) of every parameter once, however many modules share it."""
    taken: dict[int, tuple[str, str, Any]] = {}
    for tensor, label in labelled:
        name = ".".join(tensor.path)
        if isinstance(label, Slices) and label != tensor.slices:
            reject(name, f"one parameter for {label}", "split", "call split_fused(model) first", LabelError)
        labels = label.labels if isinstance(label, Slices) else (label,) * len(tensor.parts)
        for said, part in zip(labels, tensor.parts, strict=True):
            own = "rest" if said in NAMED[3:] and said not in known and "rest" in known else said
            before, of, _ = taken.setdefault(id(part), (name, own, part))
            if of != own and {of, own} & set(CIRCUITS):
                do = "say which by rules" if name != before else ""
                reject(
                    f"the label of {name}",
                    own,
                    f"{of!r}, that of {before}, which is the same parameter",
                    do,
                    LabelError,
                )
    return list(taken.values())


def _labelled(model: Any, rules: Rules | None) -> list[tuple[_Tensor, Label]]:
    tensors = list(_tensors(model))
    labels = label_paths({t.path: t.shape for t in tensors}, rules, {t.path: t.parts[0] for t in tensors})
    return [(tensor, labels[tensor.path]) for tensor in tensors]


def _tensors(model: Any) -> Iterator[_Tensor]:
    """What the modules hold, each once; what is split as one. Of other parametrizations (weight_norm, LoRA) each parameter."""
    if not isinstance(model, torch.nn.Module):
        reject("model", type(model).__name__, "a torch.nn.Module")
    split: set[int] = set()
    for prefix, module in model.named_modules():
        folder = tuple(prefix.split(".")) if prefix else ()
        replaced: Any = module.parametrizations if parametrize.is_parametrized(module) else {}
        for name, held in replaced.items():
            if len(held) == 1 and isinstance(held[0], Parts):
                split.add(id(held))
                parts = tuple(getattr(held, f"original{i}") for i in range(held.ntensors))
                yield _Tensor(module, name, (*folder, name), tuple(getattr(module, name).shape), parts, held[0].slices)
        if id(module) not in split:
            path = tuple(part for part in folder if part != "parametrizations")
            for name, parameter in module.named_parameters(recurse=False):
                yield _Tensor(module, name, (*path, name), tuple(parameter.shape), (parameter,), None)

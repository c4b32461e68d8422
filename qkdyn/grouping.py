"""Which parameters of a model are its query-key and output-value circuits, from paths and shapes alone.

Neither JAX nor PyTorch: `qkdyn.labels` applies it to trees of parameters; for PyTorch give {name split at the dots: shape} of
`named_parameters()`.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

from qkdyn.errors import LabelError, reject
from qkdyn.guesses import CIRCUITS, NAMED, Guesses, Label, Path, all_bias, doubt, kernels_of, stripped
from qkdyn.naming import Place, blocks_of, place_of
from qkdyn.outputs import outputs_of
from qkdyn.slices import CIRCUIT, Fused, Shape, Slices, bias_slices, layouts, slices_of

Rules = Mapping[str, Label | Fused] | Callable[[str, Any], Label | Fused | None]
# What one folder with attention must hold.
_WHOLE = ({"q", "k", "v"}, {"q", "kv"}, {"qkv"}, {"qk", "v"}, {"qk", "ov"}, {"q", "k", "ov"})
# Lines of a tree that a message shows.
_SHOWN = 60


def label_paths(
    shapes: Mapping[Path, Shape], rules: Rules | None = None, leaves: Mapping[Path, Any] | None = None
) -> dict[Path, Label]:
    """Label every parameter "qk", "ov", "rest", or "embed", "mlp", "head" where a component of its path is one of these.

    Args:
        shapes: of every parameter, by the components of its path.
        rules: what to call parameters whose names say nothing or mislead: {regular expression of "a/b/c": label}, the first
            that is found in a path holds; or a function of path and leaf, None where it has nothing to say. A label is a
            string, `Slices`, or `fused("qkv", axis=-1)`.
        leaves: what a rule that is a function is given beside the path; the shapes if not given.

    Raises:
        LabelError: no attention, a doubt about a parameter, or a rule that no parameter follows; the message shows the tree
            with what each parameter was taken for and how to say what it is.
    """
    if not shapes:
        reject(
            "the parameters",
            "none",
            "a tree with an attention's",
            "a model's parameters, not an empty tree",
            LabelError,
        )
    guesses = guess(shapes)
    used = _apply(guesses, rules, leaves or shapes) if rules is not None else set()
    unused = [rule for rule in rules if rule not in used] if isinstance(rules, Mapping) else []
    if unused:
        raise LabelError(f"rules {', '.join(map(repr, unused))} match no parameter\n{shown(guesses)}")
    if guesses.doubts:
        lines = [f"  {'/'.join(path)}: {why}" for path, why in guesses.doubts.items()]
        raise LabelError("what these parameters are is not clear:\n" + "\n".join(lines[:20]) + f"\n{shown(guesses)}")
    if not any(set(_labels_in(label)) & set(CIRCUITS) for label in guesses.labels.values()):
        raise LabelError(f"no attention found in these parameters\n{shown(guesses)}")
    return guesses.labels


def _labels_in(label: Label) -> tuple[str, ...]:
    return label.labels if isinstance(label, Slices) else (label,)


def guess(shapes: Mapping[Path, Shape]) -> Guesses:
    """What names and shapes say, doubts included."""
    guesses = Guesses(dict(shapes))
    folders: dict[Path, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    explicit = any(set(path) & set(CIRCUITS) for path in shapes)
    guesses.places = _places(shapes)
    said = []
    for path in shapes:
        own = next((name for name in reversed(path) if name in NAMED), None)
        guesses.labels[path] = own or "rest"
        place = guesses.places.get(path)
        if place is None:
            continue
        # A key that says so goes before a guess; so do mlp and head in a tree that names its circuits by keys.
        if own in ("qk", "ov", "rest") or (explicit and own):
            said += [(path, place)] if place.name == own else []
            continue
        folders[place.folder][place.part.letters].append(path)
    for path, place in said:  # beside parts of the same attention: {"qk", "v", "o"}
        if set(folders.get(place.folder, ())) - {"", "o"}:
            folders[place.folder][place.part.letters].append(path)
    for folder, found in folders.items():
        _judge(guesses, folder, found, folders)
    return guesses


def _places(shapes: Mapping[Path, Shape]) -> dict[Path, Place]:
    """What names say of each path; what lies deeper in a module of a part belongs to the part."""
    found = {path: place_of(stripped(path, shapes)) for path in shapes}
    modules: dict[Path, Place] = {
        (*p.folder, p.name): p for p in found.values() if p and p.part.letters and not p.part.norm
    }
    for path, place in found.items():
        above = (modules[path[:i]] for i in reversed(range(1, len(path))) if path[:i] in modules)
        found[path] = place or next(above, None)
    return {path: place for path, place in found.items() if place}


def _judge(guesses: Guesses, folder: Path, found: dict[str, list[Path]], folders: Mapping[Path, Any]) -> None:
    """Label what one folder holds of attention."""
    places = guesses.places
    normal = {letters for letters, paths in found.items() if letters not in ("", "o") and not _all_norm(guesses, paths)}
    # Biases of other parts beside the matrices of these: in_proj_bias beside q_proj_weight, bias_k beside in_proj_weight.
    normal = {letters for letters in normal if not all_bias(guesses, found[letters])} or normal
    if not normal:
        # Names that only hint, beside an output, look like an attention that is written another way.
        if any(places[path].part.rank < 3 for path in found.get("o", ())):
            doubt(guesses, found.get("", ()), "names a query, key or value, but not in a way that is known")
        for letters in set(found) - {"", "o"}:
            doubt(guesses, found[letters], "a normalization of queries and keys, without these beside it")
        return
    if normal == {"qkv", "q"} or normal == {"qkv", "q", "kv"}:
        # GPT-2's cross-attention: c_attn holds keys and values where the query stands beside it.
        normal, found = {"q", "kv"}, {**found, "kv": [*found["qkv"], *found.get("kv", ())], "qkv": []}
    if normal == {"qkv"} and all(places[path].part.rank for path in found["qkv"]) and not _fused(guesses, found, {}):
        return  # an in_proj that is no attention's, as in state space models
    doubt(
        guesses, found.get("", ()), "stands in an attention and names a query, key or value, not in a way that is known"
    )
    letters = {"".join(sorted(name, key="qkvo".index)): name for name in normal}
    if not any(set(letters) == whole for whole in _WHOLE):
        said = ", ".join(sorted(normal))
        for name in normal:
            doubt(
                guesses,
                found[name],
                f"part of an attention of which only {said} stand in {'/'.join(folder) or 'one place'}",
            )
        return
    # W_OV holds the output projection.
    found = {**found, "o": outputs_of(guesses, folder, found, folders) if found.get("o") or "ov" not in normal else []}
    labels = _fused(guesses, found, guesses.doubts)
    for name in normal | set(found) - {"", "o"}:
        for path in found[name]:
            circuits = {CIRCUIT[letter] for letter in name}
            if len(circuits) == 1:
                guesses.labels[path] = circuits.pop()
            elif path in labels:
                guesses.labels[path] = labels[path]
    for path in found["o"]:
        guesses.labels[path] = "ov"


def _all_norm(guesses: Guesses, paths: list[Path]) -> bool:
    return all(guesses.places[path].part.norm for path in paths)


def _fused(guesses: Guesses, found: Mapping[str, list[Path]], doubts: dict[Path, str]) -> dict[Path, Slices]:
    """Slices of every fused parameter of one attention; doubts are added to `doubts`."""
    shapes, labels, outputs = guesses.shapes, {}, {guesses.places[path].name for path in found.get("o", ())}
    largest = {name: max((shapes[path] for path in found.get(name, ())), key=len, default=None) for name in ("o", "q")}
    for name, paths in found.items():
        if len({CIRCUIT[letter] for letter in name}) < 2:
            continue
        paths = [path for path in paths if not guesses.places[path].part.norm]
        most = max((len(shapes[path]) for path in paths), default=0)
        kernels = [path for path in paths if len(shapes[path]) == most]
        letters = {"kv": "kv"}.get(name) or guesses.places[kernels[0]].part.letters if kernels else name
        if "q" in found and "k" in found and all_bias(guesses, paths):
            labels |= _thirds(guesses, paths, letters, found, doubts)
            continue
        for path in kernels:
            several = layouts(shapes[path], letters, largest["o"], largest["q"])
            if guesses.places[path].part.rank:  # in_proj: of a state space model it may be as wide as grouped queries
                several = [slices for slices in several if len({b - a for _, a, b in slices.parts}) == 1]
            labels |= _settled(guesses, path, several, doubts, outputs)
        for path in (path for path in paths if len(shapes[path]) < most):
            several = {
                slices
                for kernel in kernels
                if kernel in labels
                for slices in bias_slices(shapes[path], shapes[kernel], labels[kernel])
            }
            labels |= _settled(guesses, path, sorted(several, key=str), doubts, ())
    return labels


def _thirds(
    guesses: Guesses, paths: list[Path], letters: str, found: Mapping[str, list[Path]], doubts: dict[Path, str]
) -> dict[Path, Slices]:
    """Slices of a fused bias beside matrices that are not fused, as torch.nn.MultiheadAttention(kdim=...) has it."""
    labels, kernels = {}, [s for letter in letters for s in kernels_of(guesses, found.get(letter, [])).values()]
    for path in paths:
        size, left = divmod(guesses.shapes[path][-1] if guesses.shapes[path] else 0, len(letters))
        if size and not left and kernels and all(size in kernel for kernel in kernels):
            labels[path] = slices_of(letters, -1, (size,) * len(letters))
        else:
            doubts[path] = "a fused bias, but not of the widths of the query, key and value beside it"
    return labels


def _settled(
    guesses: Guesses, path: Path, several: list[Slices], doubts: dict[Path, str], outputs: Collection[str]
) -> dict[Path, Slices]:
    """The one reading there is; else a doubt."""
    shape, blocks = guesses.shapes[path], blocks_of(guesses.places[path].name, outputs)
    if len(several) == 1 and blocks and several[0].parts[0][2] > 1:
        doubts[path] = (
            f"of this name some models have {blocks[0]}, others one after the other: say which, {blocks[1]} or "
            "fused('qkv', axis=...), where needed with the sizes of the parts"
        )
        return {}
    if len(several) == 1:
        return {path: several[0]}
    if several:
        doubts[path] = f"fused, of shape {shape}, in more than one way: {'; '.join(map(str, several))}"
    else:
        doubts[path] = f"fused, but no axis of {shape} is queries, keys and values beside the output projection"
    return {}


def _apply(guesses: Guesses, rules: Rules, leaves: Mapping[Path, Any]) -> set[str]:
    """Overrule guesses by rules; returns the regular expressions that were used."""
    if not callable(rules) and not isinstance(rules, Mapping):
        reject("rules", rules, "{regular expression: label} or a function of path and leaf", 'e.g. {"to_qs": "qk"}')
    compiled = {rule: _compiled(rule) for rule in rules} if isinstance(rules, Mapping) else {}
    used: set[str] = set()
    for path, shape in guesses.shapes.items():
        name = "/".join(path)
        if isinstance(rules, Mapping):
            matching = [rule for rule, expression in compiled.items() if expression.search(name)]
            used |= set(matching)
            label = rules[matching[0]] if matching else None
        else:
            label = rules(name, leaves[path])
        if label is None:
            continue
        if isinstance(label, Fused):
            label = label.of(shape, name)
        elif isinstance(label, Slices):
            label.check(shape, name)
        elif not isinstance(label, str) or not label:
            reject(f"the label of {name}", label, 'a string such as "qk", Slices or fused(...)', error=LabelError)
        guesses.labels[path] = label
        guesses.doubts.pop(path, None)
    return used


def _compiled(rule: Any) -> re.Pattern[str]:
    try:
        return re.compile(rule)
    except (re.error, TypeError) as error:
        raise LabelError(
            f"rules must be regular expressions of paths such as 'layers/0/attn/query', got {rule!r}: {error}"
        ) from None


def shown(guesses: Guesses) -> str:
    """The tree with what each parameter was taken for, and how to say what it is."""
    paths = sorted(guesses.shapes, key=lambda path: path not in guesses.doubts)[:_SHOWN]
    names = {path: "/".join(path) for path in guesses.shapes if path in set(paths)}
    width = max(map(len, names.values()), default=0)
    lines = [
        f"  {name:<{width}}  {'x'.join(map(str, guesses.shapes[path])) or 'scalar':<14} "
        f"{'?' if path in guesses.doubts else guesses.labels[path]}"
        for path, name in names.items()
    ]
    if len(guesses.shapes) > _SHOWN:
        lines.append(f"  ... and {len(guesses.shapes) - _SHOWN} more")
    return (
        "the parameters, and what they were taken for:\n" + "\n".join(lines) + "\n"
        "say what they are by regular expressions of these paths, the first that matches holds, or by a function:\n"
        '  labels = functools.partial(circuit_labels, rules={"Dense_[01]/": "qk", "Dense_[23]/": "ov", "to_all": fused("qkv", '
        "axis=-1)})\n"
        '  labels = functools.partial(circuit_labels, rules=lambda path, leaf: "qk" if "score" in path else None)'
    )

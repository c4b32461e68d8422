"""Which parameters of a model are its query-key and output-value circuits, from paths and shapes alone.

Neither JAX nor PyTorch: `qkdyn.labels` applies it to trees of parameters; for PyTorch give {name split at the dots: shape} of
`named_parameters()`.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from qkdyn.errors import LabelError, reject
from qkdyn.naming import Place, blocks_of, is_bias, place_of, words
from qkdyn.slices import CIRCUIT, Fused, Shape, Slices, bias_slices, fits, layouts, slices_of

Path = tuple[str, ...]
Label = str | Slices
Rules = Mapping[str, Label | Fused] | Callable[[str, Any], Label | Fused | None]
# Labels that a key may name; the two circuits first, the others for models that are more than attention.
CIRCUITS = ("qk", "ov")
NAMED = (*CIRCUITS, "rest", "embed", "mlp", "head")
# What one folder with attention must hold.
_WHOLE = ({"q", "k", "v"}, {"q", "kv"}, {"qkv"}, {"qk", "v"}, {"qk", "ov"}, {"q", "k", "ov"})
# Lines of a tree that a message shows.
_SHOWN = 60


@dataclass
class Guesses:
    """What was found.

    Attributes:
        labels: of each path.
        places: which part of attention each path is, where a name says so.
        doubts: path -> why nothing can be said of it.
        shapes: of each path.
    """

    shapes: dict[Path, Shape]
    labels: dict[Path, Label] = field(default_factory=dict)
    places: dict[Path, Place] = field(default_factory=dict)
    doubts: dict[Path, str] = field(default_factory=dict)


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


def stripped(path: Path, paths: Iterable[Path]) -> Path:
    """The path without the "value" that boxes such as `nnx.Param` add below every array."""
    boxed = (
        len(path) > 1 and path[-1] == "value" and not any(p[: len(path) - 1] == path[:-1] for p in paths if p != path)
    )
    return path[:-1] if boxed else path


def _judge(guesses: Guesses, folder: Path, found: dict[str, list[Path]], folders: Mapping[Path, Any]) -> None:
    """Label what one folder holds of attention."""
    places = guesses.places
    normal = {letters for letters, paths in found.items() if letters not in ("", "o") and not _all_norm(guesses, paths)}
    # Biases of other parts beside the matrices of these: in_proj_bias beside q_proj_weight, bias_k beside in_proj_weight.
    normal = {letters for letters in normal if not _all_bias(guesses, found[letters])} or normal
    if not normal:
        # Names that only hint, beside an output, look like an attention that is written another way.
        if any(places[path].part.rank < 3 for path in found.get("o", ())):
            _doubt(guesses, found.get("", ()), "names a query, key or value, but not in a way that is known")
        for letters in set(found) - {"", "o"}:
            _doubt(guesses, found[letters], "a normalization of queries and keys, without these beside it")
        return
    if normal == {"qkv", "q"} or normal == {"qkv", "q", "kv"}:
        # GPT-2's cross-attention: c_attn holds keys and values where the query stands beside it.
        normal, found = {"q", "kv"}, {**found, "kv": [*found["qkv"], *found.get("kv", ())], "qkv": []}
    if normal == {"qkv"} and all(places[path].part.rank for path in found["qkv"]) and not _fused(guesses, found, {}):
        return  # an in_proj that is no attention's, as in state space models
    _doubt(
        guesses, found.get("", ()), "stands in an attention and names a query, key or value, not in a way that is known"
    )
    letters = {"".join(sorted(name, key="qkvo".index)): name for name in normal}
    if not any(set(letters) == whole for whole in _WHOLE):
        said = ", ".join(sorted(normal))
        for name in normal:
            _doubt(
                guesses,
                found[name],
                f"part of an attention of which only {said} stand in {'/'.join(folder) or 'one place'}",
            )
        return
    # W_OV holds the output projection.
    found = {**found, "o": _outputs(guesses, folder, found, folders) if found.get("o") or "ov" not in normal else []}
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


def _all_bias(guesses: Guesses, paths: list[Path]) -> bool:
    return all(is_bias(stripped(path, guesses.shapes)) for path in paths)


def _doubt(guesses: Guesses, paths: Any, why: str) -> None:
    guesses.doubts.update(dict.fromkeys(paths, why))


def _outputs(guesses: Guesses, folder: Path, found: dict[str, list[Path]], folders: Mapping[Path, Any]) -> list[Path]:
    """The output projection beside query, key and value, by its shape and name; else in a folder above."""
    beside = [path for path in found.get("o", ()) if not guesses.places[path].part.norm]
    if not beside:
        return _outputs_above(guesses, folder, found, folders)
    return _chosen(guesses, beside, found, _fitting(guesses, beside, found))


def _outputs_above(
    guesses: Guesses, folder: Path, found: dict[str, list[Path]], folders: Mapping[Path, Any]
) -> list[Path]:
    """The output projection of BERT's trees, or of heads that are modules of their own; one that only fits is a doubt."""
    number = re.compile(r"\d+$")
    siblings = [f for f in folders if len(f) == len(folder) and f[:-1] == folder[:-1] and set(folders[f]) - {"", "o"}]
    siblings = [f for f in siblings if folder and number.sub("", f[-1]) == number.sub("", folder[-1])]
    listed = bool(folder) and bool(number.search(folder[-1]))
    heads = listed and bool({"head", "heads"} & set(words("_".join(folder[-2:]))))
    bert = bool(folder) and (folder[-1] == "self" or bool({"attn", "attention"} & set(words("_".join(folder[-2:-1])))))
    for up in range(1, len(folder) + 1):
        above = folders.get(folder[:-up], {})
        outputs = [path for path in above.get("o", ()) if not guesses.places[path].part.norm]
        if set(above) - {"o", ""} or not _kernels(guesses, outputs):
            continue
        fitting = _fitting(guesses, outputs, found, len(siblings) if listed else 1)
        if (bert and up == 1) or (heads and up <= 2):
            return _chosen(guesses, outputs, found, fitting)
        near = [path for path in outputs if fitting is None or guesses.places[path].name in fitting]
        if near:
            why = f"stands above the attention in {'/'.join(folder)}: its output projection, or another part?"
            _doubt(guesses, near, why)
            return []
    why = "stands beside query, key and value: the output projection, or another part?"
    _doubt(guesses, _unknown(guesses, folder), why)
    return []


def _chosen(
    guesses: Guesses, outputs: list[Path], found: dict[str, list[Path]], fitting: set[str] | None
) -> list[Path]:
    """The paths of `outputs` that are the output projection; doubts are noted.

    Args:
        guesses: so far.
        outputs: what names call an output.
        found: the attention's parts.
        fitting: those whose shapes fit; None where shapes do not say.
    """
    places = guesses.places
    ranks = {places[path].name: places[path].part.rank for path in outputs}
    named = _kernels(guesses, outputs)
    if not named:
        return outputs
    best = min(ranks[name] for name in named)
    chosen = {name for name in named if ranks[name] == best}
    odd = False
    if fitting is not None and best == 0:  # o_proj, W_O: the paper's W_O has as many rows as there are classes
        odd = bool(fitting) and not chosen & fitting
    elif fitting is None:
        chosen = set(named) if best else chosen
    elif best and (len(named) > 1 or not _free(guesses, *next(iter(named.items())), found)):
        odd, chosen = not fitting, fitting
    # Self and cross attention side by side have as many outputs as values.
    values = [path for name, paths in found.items() if "v" in name for path in paths if not places[path].part.norm]
    several = len(chosen) > 1 and (
        max(ranks[name] for name in chosen) > 1 or len(chosen) != len(_kernels(guesses, values))
    )
    if odd or several:
        unclear = sorted(named) if odd else sorted(chosen)
        why = f"one of {len(unclear)} that may be the output projection: {', '.join(unclear)}"
        if len(named) == 1:
            why = "may be the output projection, or another part such as a head: its shape is not that of one"
        _doubt(guesses, [path for path in outputs if places[path].name in unclear], why)
        return []
    return [path for path in outputs if places[path].name in chosen or places[path].name not in named]


def _fitting(guesses: Guesses, outputs: list[Path], found: dict[str, list[Path]], times: int = 1) -> set[str] | None:
    """The names among `outputs` whose kernels have the shape of an output projection; None where that cannot be told."""
    named = _kernels(guesses, outputs)
    whole = [path for letters, paths in found.items() if len(letters) == 3 for path in paths]
    if _kernels(guesses, whole):
        fused = [(shape, guesses.places[path].part.letters) for path in whole for shape in (guesses.shapes[path],)]
        if times > 1:
            return None
        return {name for name, out in named.items() if any(layouts(shape, of, out, None) for shape, of in fused)}
    queries, values = (list(_kernels(guesses, found.get(letter, [])).values()) for letter in "qv")
    queries, values = queries or values, values or queries
    if not queries:
        return None
    return {name for name, out in named.items() if any(fits(out, q, v, times) for q in queries for v in values)}


def _free(guesses: Guesses, name: str, out: Shape, found: dict[str, list[Path]]) -> bool:
    """Whether the shape of the one output is not asked for.

    A fused kernel's axis is found by it. Flax and Equinox may write another width than they read: (heads, size, width), or
    an output_proj that takes in what values give.
    """
    if any(len(letters) == 3 and paths for letters, paths in found.items()):
        return True
    values = _kernels(guesses, found.get("v", [])).values()
    if len(out) > 2 and any(out[-3:-1] == value[-2:] for value in values):
        return True
    projection = len(words(name)) > 1 and bool({"proj", "projection"} & set(words(name)))
    return projection and any(set(out) & set(value) for value in values)


def _kernels(guesses: Guesses, paths: list[Path]) -> dict[str, Shape]:
    """The components that hold matrices, and the largest of each; a bias may stand beside its own (W_O and b_O)."""
    found: dict[str, Shape] = {}
    for path in paths:
        shape, name = guesses.shapes[path], guesses.places[path].name
        if len(shape) < 2 or guesses.places[path].part.norm or is_bias(stripped(path, guesses.shapes)):
            continue
        found[name] = max(found.get(name, ()), shape, key=lambda s: (len(s) > 0, math.prod(s)))
    return found


def _unknown(guesses: Guesses, folder: Path) -> list[Path]:
    """Matrices right in the folder whose names say nothing."""
    near = [path for path in guesses.shapes if path[: len(folder)] == folder and len(path) - len(folder) <= 2]
    return [
        path
        for path in near
        if len(guesses.shapes[path]) > 1 and path not in guesses.places and not set(path) & set(NAMED)
    ]


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
        if "q" in found and "k" in found and _all_bias(guesses, paths):
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
    labels, kernels = {}, [s for letter in letters for s in _kernels(guesses, found.get(letter, [])).values()]
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

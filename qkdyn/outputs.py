"""Which parameter is the output projection of an attention: by shape and name, beside query, key and value or above them."""

import re
from collections.abc import Mapping
from typing import Any

from qkdyn.guesses import NAMED, Guesses, Path, doubt, kernels_of
from qkdyn.naming import words
from qkdyn.slices import Shape, fits, layouts


def outputs_of(guesses: Guesses, folder: Path, found: dict[str, list[Path]], folders: Mapping[Path, Any]) -> list[Path]:
    """The output projection beside query, key and value, by its shape and name; else in a folder above."""
    beside = [path for path in found.get("o", ()) if not guesses.places[path].part.norm]
    if not beside:
        return _outputs_above(guesses, folder, found, folders)
    chosen = _chosen(guesses, beside, found, _fitting(guesses, beside, found))
    # "proj" and "dense" say little beside a name that says nothing and has the same shape.
    shapes = {guesses.shapes[path] for path in chosen if len(guesses.shapes[path]) > 1}
    if chosen and all(guesses.places[path].part.rank > 1 for path in chosen):
        like = [path for path in _unknown(guesses, folder) if guesses.shapes[path] in shapes]
        if like:
            shown = ", ".join(sorted("/".join(path[len(folder) :]) for path in [*chosen, *like]))
            doubt(guesses, [*chosen, *like], f"one of several of one shape that may be the output projection: {shown}")
    return chosen


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
        if set(above) - {"o", ""} or not kernels_of(guesses, outputs):
            continue
        fitting = _fitting(guesses, outputs, found, len(siblings) if listed else 1)
        if (bert and up == 1) or (heads and up <= 2):
            return _chosen(guesses, outputs, found, fitting)
        near = [path for path in outputs if fitting is None or guesses.places[path].name in fitting]
        if near:
            why = f"stands above the attention in {'/'.join(folder)}: its output projection, or another part?"
            doubt(guesses, near, why)
            return []
    why = "stands beside query, key and value: the output projection, or another part?"
    doubt(guesses, _unknown(guesses, folder), why)
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
    named = kernels_of(guesses, outputs)
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
        max(ranks[name] for name in chosen) > 1 or len(chosen) != len(kernels_of(guesses, values))
    )
    if odd or several:
        unclear = sorted(named) if odd else sorted(chosen)
        why = f"one of {len(unclear)} that may be the output projection: {', '.join(unclear)}"
        if len(named) == 1:
            why = "may be the output projection, or another part such as a head: its shape is not that of one"
        doubt(guesses, [path for path in outputs if places[path].name in unclear], why)
        return []
    return [path for path in outputs if places[path].name in chosen or places[path].name not in named]


def _fitting(guesses: Guesses, outputs: list[Path], found: dict[str, list[Path]], times: int = 1) -> set[str] | None:
    """The names among `outputs` whose kernels have the shape of an output projection; None where that cannot be told."""
    named = kernels_of(guesses, outputs)
    whole = [path for letters, paths in found.items() if len(letters) == 3 for path in paths]
    if kernels_of(guesses, whole):
        fused = [(shape, guesses.places[path].part.letters) for path in whole for shape in (guesses.shapes[path],)]
        if times > 1:
            return None
        return {name for name, out in named.items() if any(layouts(shape, of, out, None) for shape, of in fused)}
    queries, values = (list(kernels_of(guesses, found.get(letter, [])).values()) for letter in "qv")
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
    values = kernels_of(guesses, found.get("v", [])).values()
    if len(out) > 2 and any(out[-3:-1] == value[-2:] for value in values):
        return True
    projection = len(words(name)) > 1 and bool({"proj", "projection"} & set(words(name)))
    return projection and any(set(out) & set(value) for value in values)


def _unknown(guesses: Guesses, folder: Path) -> list[Path]:
    """Matrices right in the folder whose names say nothing."""
    near = [path for path in guesses.shapes if path[: len(folder)] == folder and len(path) - len(folder) <= 2]
    return [
        path
        for path in near
        if len(guesses.shapes[path]) > 1 and path not in guesses.places and not set(path) & set(NAMED)
    ]

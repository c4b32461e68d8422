"""What is known, and what is in doubt, of a model's parameters while they are labelled."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from qkdyn.naming import Place, is_bias
from qkdyn.slices import Shape, Slices

Path = tuple[str, ...]
Label = str | Slices
# Labels that a key may name; the two circuits first, the others for models that are more than attention.
CIRCUITS = ("qk", "ov")
NAMED = (*CIRCUITS, "rest", "embed", "mlp", "head")


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


def stripped(path: Path, paths: Iterable[Path]) -> Path:
    """The path without the "value" that boxes such as `nnx.Param` add below every array."""
    boxed = (
        len(path) > 1 and path[-1] == "value" and not any(p[: len(path) - 1] == path[:-1] for p in paths if p != path)
    )
    return path[:-1] if boxed else path


def all_bias(guesses: Guesses, paths: list[Path]) -> bool:
    """Whether all of them are biases."""
    return all(is_bias(stripped(path, guesses.shapes)) for path in paths)


def doubt(guesses: Guesses, paths: Iterable[Path], why: str) -> None:
    """Note why nothing can be said of these paths."""
    guesses.doubts.update(dict.fromkeys(paths, why))


def kernels_of(guesses: Guesses, paths: list[Path]) -> dict[str, Shape]:
    """The components that hold matrices, and the largest of each; a bias may stand beside its own (W_O and b_O)."""
    found: dict[str, Shape] = {}
    for path in paths:
        shape, name = guesses.shapes[path], guesses.places[path].name
        if len(shape) < 2 or guesses.places[path].part.norm or is_bias(stripped(path, guesses.shapes)):
            continue
        found[name] = max(found.get(name, ()), shape, key=lambda of: math.prod(of) if of else 0)
    return found

"""Along which axis each parameter of attention has its heads, and how many."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from qkdyn.errors import LabelError
from qkdyn.grouping import CIRCUITS, Label, Path, Shape, stripped
from qkdyn.naming import Place, place_of, words
from qkdyn.slices import Slices


class HeadAxis(NamedTuple):
    """The axis of heads, alone or together with their size, and how many heads lie along it."""

    axis: int
    number: int


class Entry(NamedTuple):
    """One parameter, or one part of a fused one.

    Attributes:
        path: as the names say it.
        shape: without an axis of layers.
        label: the parameter's; `Slices` where it is fused.
        axis: in `shape`, the fused axis; None where the part has none (left).
        width: of the widest part that it is fused with.
        place: which part of attention.
    """

    path: Path
    shape: Shape
    label: Label
    axis: int | None
    width: int
    place: Place | None

    @property
    def letters(self) -> str:
        """Of the part; those of one slice of a fused parameter are not told apart."""
        return self.place.part.letters if self.place else ""


def entries_of(
    paths: Sequence[Path], shapes: Sequence[Shape], labels: Sequence[Label], axes: Sequence[int | None]
) -> list[Entry]:
    """Entries of all parts; see `Entry`."""
    every = set(paths)
    own = {path: place_of(stripped(path, every)) for path in every}
    return [
        Entry(
            path,
            shape,
            label,
            axis,
            max(b - a for _, a, b in label.parts) * label.repeats if isinstance(label, Slices) else 0,
            own[path],
        )
        for path, shape, label, axis in zip(paths, shapes, labels, axes, strict=True)
    ]


def head_axes_of(
    entries: Sequence[Entry], heads: int, wanted: Sequence[int], given: Mapping[str, int]
) -> dict[int, HeadAxis | None]:
    """The axis of heads of the entries `wanted`.

    Args:
        entries: of the whole model.
        heads: number of query heads.
        wanted: indices of entries.
        given: {regular expression: axis} of those that a caller knows better.

    Returns:
        None for what belongs to no head: biases of the output, normalizations.

    Raises:
        LabelError: names and shapes do not show it, or it does not hold so many heads.
    """
    groups: dict[Path, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.place:
            groups[_folder(entry)].append(entry)
    found = {}
    # Queries first: they say more of what is wrong.
    for i in sorted(wanted, key=lambda i: entries[i].letters != "q"):
        entry = entries[i]
        if entry.axis is not None and not _one_part_each(entry):
            raise LabelError(
                f"heads of {'/'.join(entry.path)} lie in its queries, keys and values, and {entry.label} does not tell "
                "these apart; give one part to each, as fused('qkv', axis=-1) does, and no label to single heads"
            )
        axis = next((axis for rule, axis in given.items() if re.search(rule, "/".join(entry.path))), None)
        if axis is not None and -len(entry.shape) <= axis < len(entry.shape):
            length = entry.shape[axis]
            found[i] = HeadAxis(axis % len(entry.shape), heads if length % heads == 0 else length)
        else:
            found[i] = _axis(entry, groups[_folder(entry)] if entry.place else [], heads)
        at = found[i]
        if at and (heads % at.number or entry.shape[at.axis] % at.number):
            _fail(entry, heads)
    return found


def _folder(entry: Entry) -> Path:
    folder = entry.place.folder if entry.place else ()
    return folder[:-1] if set(folder[-1:]) & set(CIRCUITS) else folder


def _axis(entry: Entry, group: list[Entry], heads: int) -> HeadAxis | None:
    shape, letters = entry.shape, entry.letters
    if entry.place and entry.place.part.norm:
        return None
    if entry.axis is not None:
        return _counted(entry, entry.axis, entry.width, heads)
    kind = [other for other in group if other.letters == letters and not (other.place and other.place.part.norm)]
    most = max((len(other.shape) for other in kind), default=len(shape))
    if letters == "o":
        if len(shape) < most or len(shape) == 1:
            return None
        if len(shape) == 2:
            return _counted(entry, 1 - _outward(entry, group, heads), 0, heads)
        return HeadAxis(0 if _first(entry, heads) else _one_of(entry, (1,), heads), heads)
    if letters in ("qk", "ov", "") or len(shape) > 3:
        _fail(entry, heads)
    plain = [other for other in group if not (other.place and other.place.part.norm)]
    if most == 3:
        # (d, heads, size) or (heads, d, size), biases (heads, size); keys and values as the query that has all heads.
        like = next((other for other in plain if other.letters == "q" and len(other.shape) == len(shape)), entry)
        axes = (0,) if len(shape) == 2 else (1,) if "kernel" in entry.path else (0, 1)
        axis = 0 if len(shape) == 2 else _one_of(like, axes, heads)
        if len(like.shape) == 3 and axis == 0:
            _first(like, heads)
        return HeadAxis(axis, shape[axis])
    kernel = next((other for other in plain if other.letters == "q" and len(other.shape) == 2), entry)
    axis = 0 if len(shape) == 1 else _outward(entry, group, heads)
    key = next((other for other in plain if other.letters == "k"), None)
    if letters == "v" and key is not None:
        at = _axis(key, group, heads)
        return HeadAxis(axis, at.number if at else heads)
    whole = kernel.shape[_outward(kernel, group, heads)] if letters == "k" and len(kernel.shape) == 2 else 0
    return _counted(entry, axis, whole, heads)


def _one_part_each(entry: Entry) -> bool:
    """Whether the parts of a fused parameter may be its queries, keys and values, one each, of which queries may be wider."""
    if not isinstance(entry.label, Slices):
        return True
    labels, sizes = entry.label.labels, sorted(stop - start for _, start, stop in entry.label.parts)
    letters, same = entry.letters, len(set(sizes)) == 1
    if len(letters) == 1 or (letters and len(labels) != len(letters)):
        return False
    if not letters and (len(labels) not in (2, 3) or (len(labels) == 2 and len(set(labels)) == 2 and not same)):
        return False
    most = {"qk": 2, "ov": 1 + ("o" in letters)}
    if any(labels.count(label) > number for label, number in most.items()):
        return False
    return same or (len(set(sizes[:-1])) == 1 and sizes[-1] % sizes[0] == 0)


def _first(entry: Entry, heads: int) -> bool:
    """Whether the first of three axes holds the heads; LabelError where as many layers or seeds of flat kernels look alike."""
    _, a, b = entry.shape
    if entry.shape[0] != heads:
        return False
    if "kernel" not in entry.path and heads not in (a / b, b / a) and (a % heads == 0 or b % heads == 0):
        _fail(entry, heads)
    return True


def _counted(entry: Entry, axis: int, width: int, heads: int) -> HeadAxis:
    """Heads along an axis on which `heads` heads would be `width` wide; 0 if it holds all of them."""
    width = width or entry.shape[axis]
    if width % heads or entry.shape[axis] % (width // heads):
        _fail(entry, heads)
    return HeadAxis(axis, entry.shape[axis] // (width // heads))


def _one_of(entry: Entry, axes: Sequence[int], heads: int) -> int:
    possible = [axis for axis in axes if entry.shape[axis] == heads]
    if len(possible) != 1:
        _fail(entry, heads)
    return possible[0]


def _outward(entry: Entry, group: list[Entry], heads: int) -> int:
    """Of the matrices of an attention, which axis is the output: by fused ones, grouped keys, biases, or the leaf's name."""
    for other in group:
        if isinstance(other.label, Slices) and other.axis is not None and len(other.shape) == 2:
            return other.axis
    matrices = {e.letters: e.shape for e in group if len(e.shape) == 2 and e.letters in ("q", "k", "v")}
    query = matrices.get("q")
    for shape in matrices.values():
        differ = [axis for axis in (0, 1) if query and shape[axis] != query[axis]]
        if len(differ) == 1:
            return differ[0]
    bias = next(
        (e.shape[0] for e in group if len(e.shape) == 1 and e.letters == "q" and not (e.place and e.place.part.norm)),
        None,
    )
    if query and bias is not None and query[0] != query[1] and bias in query:
        return query.index(bias)
    last = words("_".join(entry.path[-2:] if entry.path[-1:] == ("value",) else entry.path[-1:]))
    if "kernel" in last:
        return 1
    if "weight" in last:
        return 0
    possible = [axis for axis in (0, 1) if query and query[axis] % heads == 0]
    if len(possible) == 1:
        return possible[0]
    _fail(entry, heads)


def _fail(entry: Entry, heads: int) -> NoReturn:
    path = "/".join(entry.path)
    if entry.letters not in ("k", "v") and all(length % heads for length in entry.shape):
        raise LabelError(
            f"no axis of {path} (shape {entry.shape}) can be cut into {heads} heads; give one factor for each head"
        )
    raise LabelError(
        f"which axis of {path} (shape {entry.shape}) holds {heads} heads cannot be told; say it by head_axes="
        f"{{{'/'.join(entry.path[-2:])!r}: 0}}, counted without the axis of scanned layers, for which heads are of shape (L, H)"
    )

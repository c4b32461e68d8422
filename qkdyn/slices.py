"""Parameters that hold several parts at once, such as a fused query-key-value kernel: which slice is which part.

Shapes and integers alone; neither JAX nor PyTorch.
"""

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass

from qkdyn.errors import LabelError, as_tuple, check_count, reject

Shape = tuple[int, ...]
# What each letter of a fused parameter is trained as.
CIRCUIT = {"q": "qk", "k": "qk", "v": "ov", "o": "ov"}


@dataclass(frozen=True)
class Slices:
    """The parts of one parameter along one axis.

    Attributes:
        axis: the fused axis; counted from the end (negative), it also holds for the parameter without a leading layer axis.
        parts: (label, start, stop) of each part, in order and without gaps. Parts of one label stay apart: the optimizer sees
            query and key as the two parameters they are.
        repeats: how often the parts come one after the other along the axis; of GPT-NeoX's kernels, which are interleaved
            head by head, the number of heads.
    """

    axis: int
    parts: tuple[tuple[str, int, int], ...]
    repeats: int = 1

    def __post_init__(self) -> None:
        check_count("repeats", self.repeats)
        _check_axis(self.axis)
        allowed = "(label, start, stop) one after the other from 0, none empty"
        do = 'e.g. (("qk", 0, 16), ("ov", 16, 24)); by sizes and letters: fused("qkv", axis=-1)'
        if not isinstance(self.parts, list | tuple) or not all(map(_is_part, self.parts)):
            reject("parts", self.parts, allowed, do, LabelError)
        object.__setattr__(self, "parts", tuple((label, int(a), int(b)) for label, a, b in self.parts))
        stops = [0, *(stop for _, _, stop in self.parts)]
        starts = [start for _, start, _ in self.parts]
        if not self.parts or starts != stops[:-1] or any(a >= b for a, b in zip(starts, stops[1:], strict=True)):
            reject("parts", self.parts, allowed, do, LabelError)

    @property
    def labels(self) -> tuple[str, ...]:
        """The label of each part."""
        return tuple(label for label, _, _ in self.parts)

    @property
    def size(self) -> int:
        """The length of the axis."""
        return self.parts[-1][2] * self.repeats

    def check(self, shape: Shape, name: str) -> None:
        """Raise LabelError unless the parts make up the axis of `shape`."""
        if not -len(shape) <= self.axis < len(shape) or shape[self.axis] != self.size:
            length = shape[self.axis] if -len(shape) <= self.axis < len(shape) else "no such axis"
            raise LabelError(
                f"slices of {name} do not divide its axis {self.axis}: they end at {self.size}, the axis has {length} (shape "
                f"{shape}); give the axis and the size of each part, e.g. fused('qkv', axis=-1, sizes=(64, 16, 16))"
            )

    def __str__(self) -> str:
        shown = ", ".join(f"{label} {start}:{stop}" for label, start, stop in self.parts)
        return f"{shown} of axis {self.axis}{f', {self.repeats} times over' if self.repeats > 1 else ''}"


def _check_axis(axis: object) -> None:
    if isinstance(axis, bool) or not isinstance(axis, numbers.Integral):
        reject("axis", axis, "an integer", "-1 is the last", LabelError)


def _is_part(part: object) -> bool:
    """Whether it is a label, an integer and an integer."""
    if not isinstance(part, list | tuple) or len(part) != 3 or not isinstance(part[0], str) or not part[0]:
        return False
    return all(isinstance(at, numbers.Integral) and not isinstance(at, bool) for at in part[1:])


@dataclass(frozen=True)
class Fused:
    """A rule for a fused parameter: `fused("qkv", axis=-1)`; see `fused`."""

    letters: str
    axis: int
    sizes: tuple[int, ...] | None
    heads: int

    def of(self, shape: Shape, name: str) -> Slices:
        """The slices of a parameter of this shape.

        Raises:
            LabelError: they do not divide the axis.
        """
        inside = -len(shape) <= self.axis < len(shape)
        length = shape[self.axis] if inside else 0
        count = self.heads * len(self.letters)
        if self.sizes is None and (not inside or length % count or not length):
            split = f"{len(self.letters)} equal parts" + (f" of each of {self.heads} heads" if self.heads > 1 else "")
            raise LabelError(
                f"slices of {name} do not divide its axis {self.axis}: {split} of {length or 'no such axis'} (shape {shape}); "
                f"give the axis and the size of each part, e.g. fused({self.letters!r}, axis=-1, sizes=(64, 16, 16))"
            )
        slices = slices_of(self.letters, self.axis, self.sizes or (length // count,) * len(self.letters), self.heads)
        slices.check(shape, name)
        return slices


def fused(letters: str, *, axis: int, sizes: Sequence[int] | None = None, heads: int = 1) -> Fused:
    """A rule for `circuit_labels`: the parameter holds these parts one after the other along `axis`.

    Args:
        letters: the parts in order, of q, k, v and o: "qkv", "kv", "vqk".
        axis: the fused axis; from the end (negative) if the parameter may have leading axes.
        sizes: of each part; equal parts if not given. With `heads`, of one head.
        heads: how many times the parts follow one another: 1 where all queries come first; the number of heads where a
            head's query, key and value come together (GPT-NeoX); the number of key-value heads where a group's do (Megatron,
            with sizes=(queries of the group * head size, head size, head size)).

    Raises:
        InputError: other letters, as many sizes as there are no parts, or a size or number of heads below 1.
    """
    if not isinstance(letters, str) or not letters or set(letters) - set(CIRCUIT) or len(set(letters)) < len(letters):
        reject("letters", letters, "parts of q, k, v, o, each once, in their order", 'e.g. fused("qkv", axis=-1)')
    _check_axis(axis)
    if sizes is not None:
        sizes = tuple(check_count("each of sizes", size) for size in as_tuple("sizes", sizes))
        if len(sizes) != len(letters):
            reject("sizes", sizes, f"one for each of {letters!r}")
    return Fused(letters, axis, sizes, check_count("heads", heads))


def slices_of(letters: str, axis: int, sizes: Sequence[int], repeats: int = 1) -> Slices:
    """Parts of these sizes, one after the other."""
    stops = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    parts = zip(letters, stops, sizes, strict=True)
    return Slices(axis, tuple((CIRCUIT[letter], stop - size, stop) for letter, stop, size in parts), repeats)


# --- which axis of a fused parameter is the fused one -------------------------------------------------------------------------


def layouts(shape: Shape, letters: str, out: Shape | None, query: Shape | None) -> list[Slices]:
    """All ways in which `shape` can be a fused kernel beside an output (or a query) kernel of these shapes.

    Args:
        shape: of the fused kernel, perhaps with leading axes (layers, seeds) that the other kernel has too.
        letters: "qkv" in any order, or "kv".
        out: of the output projection, (inner, d) or (d, inner) or (heads, size, d) or (d, heads, size).
        query: of the query projection, where there is no output.

    Returns:
        One where the shapes leave no doubt. A reading with inner = d goes before one without.
    """
    found: dict[Slices, bool] = {}
    for lead in range(len(shape) - 1):
        for inner, d, heads in _widths(shape, lead, out or query):
            for axis, sizes in _readings(shape[lead:], letters, inner, d, heads):
                slices = slices_of(letters, axis - len(shape) + lead, sizes)
                found[slices] = found.get(slices, False) or inner == d
    return [slices for slices, usual in found.items() if usual or not any(found.values())]


def _widths(shape: Shape, lead: int, other: Shape | None) -> list[tuple[int, int, Shape]]:
    """(inner, d, (heads, size) if the other kernel has them) that the other kernel allows after `lead` leading axes."""
    if other is None:
        return [(d, d, ()) for d in shape[lead:]] if len(shape) - lead == 2 else []
    if other[:lead] != shape[:lead]:
        return []
    rest = other[lead:]
    if len(rest) == 2:
        return [(rest[0], rest[1], ()), (rest[1], rest[0], ())]
    if len(rest) == 3:
        a, b, c = rest
        return [(a * b, c, (a, b)), (b * c, a, (b, c)), (a * c, b, (a, c))]
    return []


def _readings(shape: Shape, letters: str, inner: int, d: int, heads: Shape) -> list[tuple[int, Shape]]:
    """(axis, size of each part) of every reading of a kernel without leading axes."""
    n, found = len(letters), []
    if len(shape) == 2:
        for axis in (0, 1):
            sizes = _sizes(shape[axis], letters, inner)
            if sizes and (shape[1 - axis] == d or (n == 2 and shape[axis] == n * inner)):
                found.append((axis, sizes))
    if len(shape) == 3 and heads and shape[0] == d:
        count, size = heads
        if shape[1:] == (count, n * size):
            found.append((2, (size,) * n))
        sizes = _sizes(shape[1], letters, count)
        if shape[2] == size and sizes:
            found.append((1, sizes))
    if len(shape) in (3, 4):
        for axis in (axis for axis, length in enumerate(shape) if length == n):
            rest = shape[:axis] + shape[axis + 1 :]
            for i in (i for i, length in enumerate(rest) if length == d):
                own = rest[:i] + rest[i + 1 :]
                if math.prod(own) == inner and (len(own) == 1 or not heads or own == heads):
                    found.append((axis, (1,) * n))
    return found


def _sizes(length: int, letters: str, inner: int) -> Shape:
    """Of each part along an axis of this length: all alike, or narrower keys and values (grouped queries); () if neither."""
    n = len(letters)
    if length == n * inner:
        return (inner,) * n
    own = length - inner if "q" in letters else length
    narrow = own // 2
    if own <= 0 or own % 2 or narrow >= inner or inner % narrow:
        return ()
    return tuple(inner if letter == "q" else narrow for letter in letters)


def fits(out: Shape, query: Shape, value: Shape, times: int = 1) -> bool:
    """Whether a kernel of shape `out` can be the output projection beside a query and a value of these shapes.

    It takes the width of the queries (or values), `times` of them where heads are modules of their own, back to the width
    that they read. Whatever the order of axes; leading axes of layers or seeds count as a part of the width.
    """
    read = list(zip(_divided(query), _divided(value), strict=True)) if len(query) == len(value) else []
    read = read or [(q, v) for q in _divided(query) for v in _divided(value)]
    return any(
        d in (q[0], v[0]) and inner in (times * q[1], times * v[1]) for d, inner in _divided(out) for q, v in read
    )


def _divided(shape: Shape) -> list[tuple[int, int]]:
    """(length of an axis, entries along all others) of every axis."""
    return [(length, math.prod(shape) // length) for length in shape if length]


def bias_slices(shape: Shape, kernel: Shape, slices: Slices) -> list[Slices]:
    """All ways in which `shape` can be the bias beside a fused kernel: the kernel's shape without its input axis."""
    axis = slices.axis % len(kernel)
    places = {
        (axis if axis < gone else axis - 1) - len(shape)
        for gone in range(len(kernel))
        if gone != axis and kernel[:gone] + kernel[gone + 1 :] == shape
    }
    return [Slices(place, slices.parts, slices.repeats) for place in sorted(places)]

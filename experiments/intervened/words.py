"""Words and numbers of the page."""

import math
from collections.abc import Sequence
from typing import Any

from experiments.intervened.tables import WHERE

NONE = "·"


def listed(names: Sequence[str]) -> str:
    """Names, the last two joined by "and"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def plural(count: int, what: str) -> str:
    """A count of something."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def number(value: float, form: str) -> str:
    """A number in a form; a dot where there is none."""
    return format(value, form) if math.isfinite(value) else NONE


def signed(value: float, digits: int = 3) -> str:
    """A change with its sign; what rounds to zero is +0."""
    if not math.isfinite(value):
        return NONE
    return format(round(value, digits) + 0.0, f"+.{digits}f")


def times(value: float) -> str:
    """A multiple."""
    return f"{value:.2f} x" if math.isfinite(value) else NONE


def interval(row: dict[str, Any], name: str) -> str:
    """A change and its interval; where seeds agree to all digits there is nothing to estimate."""
    ends = row[f"{name}_low"], row[f"{name}_high"]
    if not math.isfinite(row[name]) or not all(map(math.isfinite, ends)):
        return signed(row[name])
    if ends[1] - ends[0] < 1e-9:
        return f"{signed(row[name])} (seeds agree)"
    return f"{signed(row[name])} [{signed(ends[0])}, {signed(ends[1])}]"


def places(found: Any) -> list[str]:
    """Settings and forms, in order."""
    return list(dict.fromkeys(f"{s} {f}".strip() for s, f in zip(*(found[name] for name in WHERE), strict=True)))


def of_family(found: Any, family: str) -> Any:
    """The rows of a family."""
    return found[found["family"] == family]

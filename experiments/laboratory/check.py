"""One line of the laboratory's page: a statement, where it was tried, the number that came out, and what it says."""

import math
from typing import NamedTuple


class Check(NamedTuple):
    """A statement tried on numbers.

    Attributes:
        part: the part of the laboratory.
        statement: what is claimed, with its place in the paper.
        setting: sizes and choices it was tried with.
        value: the residual, or another number that is small where the statement holds.
        limit: it holds where value <= limit.
        expected: whether it ought to hold; the paper has statements that do not.
        note: what else there is to say, such as measured and predicted values.
    """

    part: str
    statement: str
    setting: str
    value: float
    limit: float
    expected: bool = True
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether the number is within its limit; a number that is none is not."""
        return math.isfinite(self.value) and self.value <= self.limit

    @property
    def verdict(self) -> str:
        """In words: holds, or does not hold; marked where that is not what was expected."""
        words = "holds" if self.holds else "does not hold"
        return words if self.holds == self.expected else f"{words} (UNEXPECTED)"


def relative(found: float, true: float) -> float:
    """|found / true - 1|."""
    return abs(found / true - 1)

"""The data sets of Table 1 that are classified: how each is named, and who reads it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from experiments.text import data, sva_data
from experiments.text.data import TextData
from qkdyn.figures.text_records import POSTS, SENTENCES, Called
from qkdyn.text import hatexplain, sva


@dataclass(frozen=True)
class Task:
    """A data set; what is learned of it is the recipe's. No part of any digest.

    Attributes:
        name: of its folder under results/.
        title: in tables and texts.
        labels: its classes, in the order of their indices.
        called: how its instances are called where people read of them.
        load: (recipe, folder named by the user or None, limit=) -> its posts.
    """

    name: str
    title: str
    labels: tuple[str, ...]
    called: Called
    load: Callable[..., TextData] = field(repr=False)


HATEXPLAIN = Task("hatexplain", "HateXplain", hatexplain.LABELS, POSTS, data.load)
SVA = Task("sva", "Subject-verb agreement", sva.LABELS, SENTENCES, sva_data.load)

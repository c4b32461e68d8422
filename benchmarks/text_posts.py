"""Posts to measure on: HateXplain where QKDYN_DATA says where it is, else made ones of its lengths, counts and vocabulary."""

import os

import numpy as np

from experiments.text.data import TextData, load
from experiments.text.recipe import Recipe
from qkdyn.text.encoded import MULTIPLE, Encoded

VOCABULARY, SPLITS, CLASSES = 25_000, (15_383, 1_922, 1_924), 3
# Deciles of the lengths in words of the training posts, the query token included; the last per cent is longer still.
DECILES = (3, 8, 11, 15, 18, 22, 26, 31, 39, 46, 62)
# Ids of padding, unknown words and the query token stand before those of words.
QUERY, FIRST = 2, 3


def posts_of(recipe: Recipe) -> tuple[str, TextData]:
    """What the posts are called, and the posts."""
    if os.environ.get("QKDYN_DATA"):
        return "HateXplain", load(recipe, None)
    rng = np.random.default_rng(0)
    train, validation, test = (made_posts(rng, size, recipe.n_ctx) for size in SPLITS)
    return "made posts", TextData(train, validation, test, VOCABULARY, (), {})


def made_posts(rng: np.random.Generator, posts: int, n_ctx: int, vocabulary: int = VOCABULARY) -> Encoded:
    """Posts whose words' frequencies fall as 1/rank; every seventh word or so is marked, and tells the class."""
    length = np.interp(rng.random(posts), np.linspace(0, 1, len(DECILES)), DECILES)
    length = np.minimum(length, n_ctx).astype(np.int32)
    slots = -(-int(length.max()) // MULTIPLE) * MULTIPLE
    content = np.arange(slots) < length[:, None] - 1
    law = 1 / (np.arange(vocabulary - FIRST) + 2.5)
    word = np.searchsorted(np.cumsum(law[:-1]) / law.sum(), rng.random(content.shape))
    relevant = content & (rng.random(content.shape) < 1 / 7)
    label = rng.integers(CLASSES, size=posts)
    word = np.where(relevant, word // CLASSES * CLASSES + label[:, None], word) % (vocabulary - FIRST)
    tokens = np.where(content, word + FIRST, 0)
    tokens[np.arange(posts), length - 1] = QUERY
    return Encoded(
        tokens.astype(np.int32),
        length,
        label.astype(np.int32),
        relevant.astype(np.float32),
        content,
        np.any(relevant, axis=1),
        pad=0,
        n_ctx=n_ctx,
        cut=0,
        empty=0,
    )

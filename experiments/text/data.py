"""What is trained on and measured: the encoded splits of a data set, and those of HateXplain."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from experiments.text.recipe import Recipe
from qkdyn.readings.agreement import Agreement
from qkdyn.text.cleaning import clean
from qkdyn.text.encoded import Encoded, encode_posts
from qkdyn.text.hatexplain import read_hatexplain
from qkdyn.text.sources import checksums, data_folder, find
from qkdyn.text.vocabulary import Vocabulary, word_vocabulary, wordpiece

SPLITS = ("validation", "test")


@dataclass(frozen=True, eq=False)
class TextData:
    """The posts of a recipe.

    Attributes:
        train: to be learned.
        validation: by which epochs and rates are chosen.
        test: by which nothing is chosen.
        vocabulary: its size.
        notes: what differs from the published data.
        sha256: of each file.
        agreement: of validation and test, where the posts are sentences with a subject; empty where they are not.
    """

    train: Encoded
    validation: Encoded
    test: Encoded
    vocabulary: int
    notes: tuple[str, ...]
    sha256: dict[str, str]
    agreement: Mapping[str, Agreement] = field(default_factory=dict)


def load(recipe: Recipe, option: Path | None, *, limit: int | None = None) -> TextData:
    """Read and encode HateXplain as a recipe has it.

    Args:
        recipe: vocabulary, query token, agreement of annotators, longest post.
        option: folder named by the user, of the files or of folders named hatexplain and bert_base_uncased; None looks
            where the environment says, and in data/.
        limit: only so many posts of each split.

    Raises:
        DataError: a file is missing, or not as its schema says.
    """
    folder = data_folder(option, "hatexplain")
    posts = read_hatexplain(folder)
    sums, cleaning = dict(checksums(folder, "hatexplain")), None
    vocabulary: Vocabulary
    if recipe.vocabulary == "wordpiece":
        pieces = data_folder(option, "bert_base_uncased")
        vocabulary, cleaning = wordpiece(find(pieces, "vocab.txt")), clean
        sums |= checksums(pieces, "bert_base_uncased")
    else:
        vocabulary = word_vocabulary(post.words for post in posts.train)
    known = {post.words for post in posts.train}
    twice = {name: sum(post.words in known for post in getattr(posts, name)) for name in SPLITS}
    notes = list(posts.notes)
    if any(twice.values()):
        said = ", ".join(f"{count:,} of {name}" for name, count in twice.items())
        notes.append(f"posts whose words a post of training has too, kept as published: {said}")
    train, validation, test = (
        encode_posts(
            split[:limit],
            vocabulary,
            n_ctx=recipe.n_ctx,
            truncate=True,
            query=recipe.query_token,
            agreement=recipe.agreement,
            prepare=cleaning,
            pad_to_n_ctx=recipe.measured == "last_slot",
        )
        for split in (posts.train, posts.validation, posts.test)
    )
    return TextData(train, validation, test, vocabulary.size, tuple(notes), sums)

"""Questions as a recipe has them: read, split by article, drawn, encoded; whatever is left out is counted and said."""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.squad.recipe import Recipe
from qkdyn.errors import DataError
from qkdyn.text.prompts import Prompts, askable, encode_prompts
from qkdyn.text.sources import checksums, data_folder, find, find_published, source
from qkdyn.text.squad import Question, read_squad
from qkdyn.text.vocabulary import Vocabulary, byte_bpe
from qkdyn.train.language_batches import updates_of
from qkdyn.transformer_init import load_vectors

SPLITS = ("train", "selection", "dev")
# One article in so many is kept for the selection of epochs.
SHARE = 10
# How a note ends that says what is left out because it is evaluated.
_KNOWN = ", left out"


@dataclass(frozen=True, eq=False)
class QuestionData:
    """The questions of a recipe.

    Attributes:
        train: to be learned.
        selection: by which epochs are chosen.
        dev: reported.
        learned: some of those to be learned, which are read as the others are.
        vocabulary: byte-level.
        notes: what was drawn, and what was left out or cut.
        sha256: of each file.
        vectors: token vectors known before, a row for each token; None for none.
    """

    train: Prompts
    selection: Prompts
    dev: Prompts
    learned: Prompts
    vocabulary: Vocabulary
    notes: tuple[str, ...]
    sha256: dict[str, str]
    vectors: np.ndarray | None = None

    @property
    def counts(self) -> dict[str, Any]:
        """What a record says of them."""
        return {
            **{name: len(getattr(self, name).ids) for name in SPLITS},
            "vocabulary": self.vocabulary.size,
            "sha256": self.sha256,
        }


def load(recipe: Recipe, option: Path | None, vectors: Path | None = None) -> QuestionData:
    """Read, split, draw and encode the questions of a recipe.

    Args:
        recipe: sizes, windows, split.
        option: folder named by the user, of the files or of folders named squad and gpt2_bpe; None looks where the
            environment says, and in data/.
        vectors: file of pretrained token vectors of the model's width.

    Raises:
        DataError: a file is missing or not as published; no question, or none to select by, is left, or too few for an
            update; vectors of another width.
        InputError: all questions of a split are too long.
    """
    folder, pairs = data_folder(option, "squad"), data_folder(option, "gpt2_bpe")
    train_file, dev_file = (find_published(folder, file) for file in source("squad").files)
    vocabulary = byte_bpe(find(pairs, "encoder.json"), find(pairs, "vocab.bpe"), size=recipe.vocabulary)
    every, more = _asked(train_file)
    dev, more_dev = _asked(dev_file)
    notes = [*more, *more_dev]
    train_name, dev_name = (path.name.removesuffix(".gz") for path in (train_file, dev_file))
    every = _without(every, dev, f"of {train_name} that {dev_name} has too", notes)
    if recipe.chosen_by == "articles":
        train, held = split_by_article(every)
        train = _without(train, held, "to train on that those to select by have too", notes)
        selection = draw(held, recipe.selection, recipe.drawn)
        untitled = sum(not one.title for one in every)
        if untitled:
            notes.append(
                f"{untitled:,} training questions name no article; of these, those on the last tenth of the paragraphs are not "
                "trained on"
            )
    else:
        train, selection = every, dev[: recipe.selection]
    for name, part in (("train on", train), ("select by", selection)):
        if not part:
            said = "".join(f" ({note})" for note in notes if note.endswith(_KNOWN))
            raise DataError(f"{train_file} leaves no question to {name}{said}; take the file as published")
    drawn = draw(train, recipe.questions, recipe.drawn)
    measured = draw(dev, recipe.dev, recipe.drawn)
    notes.append(f"{len(drawn):,} of {len(train):,} training questions drawn, {len(measured):,} of {len(dev):,} of dev")
    selected_from = train_file if recipe.chosen_by == "articles" else dev_file
    learned, chosen_on, reported, read = (
        _encode(recipe, part, vocabulary, windows, f"{path}: questions of {name}")
        for part, windows, path, name in (
            (drawn, recipe.windows, train_file, "train"),
            (selection, recipe.evaluated, selected_from, "selection"),
            (measured, recipe.evaluated, dev_file, "dev"),
            (draw(drawn, recipe.learned, recipe.drawn), recipe.windows, train_file, "train that are read beside"),
        )
    )
    if not updates_of(len(learned.ids), recipe.batch, recipe.micro):
        needed = recipe.batch * (recipe.micro - 1) + 1
        raise DataError(
            f"{train_file} leaves {len(learned.ids):,} questions to train on, and an update needs {needed:,}; take a file of "
            f"more questions, or a smaller batch"
        )
    for name, prompts in zip(SPLITS, (learned, chosen_on, reported), strict=True):
        notes += [f"{name}: {line}" for line in prompts.left_out.lines()]
    sums = {**checksums(folder, "squad"), **checksums(pairs, "gpt2_bpe")}
    rows = None
    if vectors is not None:
        rows = load_vectors(vectors, vocabulary)
        if rows.shape[1] != recipe.d_model:
            text = f"{vectors} has {rows.shape[1]} numbers a word, the model {recipe.d_model}"
            raise DataError(f"{text}; take another file")
        notes.append(f"{np.isfinite(rows).all(1).sum():,} of {len(rows):,} tokens begin at a vector of {vectors.name}")
    return QuestionData(learned, chosen_on, reported, read, vocabulary, tuple(notes), sums, rows)


def _asked(path: Path) -> tuple[tuple[Question, ...], list[str]]:
    """The questions of a file that can be asked, and a line for each kind of those that cannot."""
    kept, left = askable(read_squad(path))
    lines = [f"{path.name.removesuffix('.gz')}: {line}" for line in left.lines()]
    if not kept:
        raise DataError(f"{path} has no question with an answer at its place; take the file as published")
    return kept, lines


def _without(
    questions: Sequence[Question], others: Sequence[Question], said: str, notes: list[str]
) -> tuple[Question, ...]:
    """The questions that the others are not, by id or by question and paragraph; how many are left out is noted."""
    ids, texts = {one.id for one in others}, {(one.question, one.context) for one in others}
    kept = tuple(one for one in questions if one.id not in ids and (one.question, one.context) not in texts)
    if len(kept) < len(questions):
        notes.append(f"{len(questions) - len(kept):,} questions {said}{_KNOWN}")
    return kept


def _encode(
    recipe: Recipe, questions: Sequence[Question], vocabulary: Vocabulary, windows: str, called: str
) -> Prompts:
    return encode_prompts(
        questions,
        vocabulary,
        n_ctx=recipe.n_ctx,
        windows=windows,
        size=recipe.size,
        seed=recipe.drawn,
        keep_cue=recipe.keep_cue,
        called=called,
    )


def split_by_article(questions: Sequence[Question]) -> tuple[tuple[Question, ...], tuple[Question, ...]]:
    """The questions to train on, and those of about a tenth of the articles, by a hash of the title.

    Of questions whose article is not named, those on the last tenth of the paragraphs: paragraphs of an article stand
    together, so that no more than one article can be in both.
    """
    untitled = list(dict.fromkeys(one.context for one in questions if not one.title))
    last = set(untitled[len(untitled) - math.ceil(len(untitled) / SHARE) :])
    held = [zlib.crc32(one.title.encode()) % SHARE == 0 if one.title else one.context in last for one in questions]
    kept = tuple(one for one, out in zip(questions, held, strict=True) if not out)
    return kept, tuple(one for one, out in zip(questions, held, strict=True) if out)


def draw(questions: Sequence[Question], count: int, seed: int) -> tuple[Question, ...]:
    """So many of the questions, drawn without return and in their order; all where they are no more."""
    if len(questions) <= count:
        return tuple(questions)
    chosen = np.random.default_rng(seed).choice(len(questions), count, replace=False)
    return tuple(questions[index] for index in np.sort(chosen))

"""Sentences for subject-verb agreement as a recipe has them: read, without repetitions, split, encoded."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.text.data import SPLITS, TextData
from experiments.text.sva_recipe import SvaRecipe
from qkdyn.errors import DataError
from qkdyn.readings.agreement import Agreement, simple_rules
from qkdyn.text.catalogue import PREAMBLES
from qkdyn.text.cleaning import clean
from qkdyn.text.encoded import Encoded
from qkdyn.text.sources import checksums, data_folder, find, find_published, sha256, source
from qkdyn.text.sva import (
    PUBLISHED_ROWS,
    Sentence,
    Splits,
    attractor_indices,
    distinct,
    encode_sentences,
    hash_split,
    miscounted,
    noun_numbers,
    published_split,
    read_sva,
    shared,
    subject_and_verb,
)
from qkdyn.text.vocabulary import Vocabulary, word_vocabulary, wordpiece

# Sources of sentences that stand for the language as it is: those that are said to, and the published file, which has no
# column of sources and is itself the sentences as they come.
NATURAL = ("val", source("sva").files[0].name.split(".")[0])
# Of the published split, which has no validation: the rows that the published measures were read on, and the next ones.
PUBLISHED_TEST, PUBLISHED_VALIDATION = 480_000, 20_000


def load(recipe: SvaRecipe, option: Path | None, *, limit: int | None = None) -> TextData:
    """Read, split and encode sentences or preambles.

    Args:
        recipe: kind and mix of sentences, split, vocabulary, relevant words.
        option: folder named by the user, of the files or of folders named sva and bert_base_uncased; None looks where the
            environment says, and in data/.
        limit: only so many sentences of each split.

    Raises:
        DataError: a file is missing or not as its schema says, or a split has no sentence, or none of the mix.
    """
    preambles = recipe.rows == "preambles"
    folder = data_folder(option, "sva", enough=PREAMBLES if preambles else None)
    begun = _preambles(folder) if preambles else None
    path = begun or find_published(folder, source("sva").files[0])
    sums = {PREAMBLES: sha256(begun)} if begun else dict(checksums(folder, "sva"))
    sentences = read_sva(folder, "preamble" if preambles else "full")
    splits, notes = split(sentences, recipe)
    notes += _miscounted(sentences)
    mixed = _checked(path, splits, recipe, limit)
    numbers = noun_numbers(splits.train)
    splits = splits._replace(train=mixed)
    cleaning = None
    vocabulary: Vocabulary
    if recipe.vocabulary == "wordpiece":
        pieces = data_folder(option, "bert_base_uncased")
        vocabulary, cleaning = wordpiece(find(pieces, "vocab.txt")), clean
        sums |= checksums(pieces, "bert_base_uncased")
    else:
        vocabulary = word_vocabulary(sentence.words for sentence in splits.train)
    marked = subject_and_verb if recipe.relevant == "subject_and_verb" else _subject

    def encoded(sentences: Sequence[Sentence], marked: Callable[[Any], Iterable[int]] = marked) -> Encoded:
        return encode_sentences(
            sentences,
            vocabulary,
            marked,
            n_ctx=recipe.n_ctx,
            truncate=True,
            query=recipe.query_token,
            prepare=cleaning,
            pad_to_n_ctx=recipe.measured == "last_slot",
        )

    chosen = {name: getattr(splits, name)[:limit] for name in ("train", *SPLITS)}
    every = {name: encoded(sentences) for name, sentences in chosen.items()}
    passes = recipe.passes(len(every["train"]))
    if passes > 1:
        notes.append(
            f"the {len(every['train']):,} training sentences are passed over {passes} times in an epoch, which thereby has "
            f"about as many updates as one of {recipe.epoch_size:,} sentences"
        )
    own = {name: _agreement(chosen[name], mixed, numbers, every[name], recipe, encoded) for name in SPLITS}
    return TextData(**every, vocabulary=vocabulary.size, notes=tuple(notes), sha256=sums, agreement=own)


def split(sentences: Sequence[Sentence], recipe: SvaRecipe) -> tuple[Splits, list[str]]:
    """The splits of a recipe, and what is to be said of them."""
    if recipe.split == "published" and len(sentences) == PUBLISHED_ROWS:
        train, others = published_split(sentences)
        end = PUBLISHED_TEST + PUBLISHED_VALIDATION
        splits = Splits(train, others[PUBLISHED_TEST:end], others[:PUBLISHED_TEST])
        twice = {name: shared(train, getattr(splits, name)) for name in SPLITS}
        return splits, [
            f"split as published; test is the first {PUBLISHED_TEST:,} of its test sentences, validation the next "
            f"{PUBLISHED_VALIDATION:,}, which the published runs did not choose by",
            "sentences that training has too, kept as published: "
            + ", ".join(f"{count:,} of {name}" for name, count in twice.items()),
        ]
    notes = []
    if recipe.split == "published":
        notes.append(
            f"{len(sentences):,} sentences in place of the {PUBLISHED_ROWS:,} of the published file, split 80/10/10 by "
            "hash: accuracy is not comparable with the published one"
        )
    once = distinct(sentences)
    if once.repeated:
        notes.append(
            f"{once.repeated:,} repeated texts left out, so that no two splits share one; {once.contradicting:,} of them "
            "had another label than the first"
        )
    return hash_split(once.sentences), notes


def _checked(path: Path, splits: Splits, recipe: SvaRecipe, limit: int | None) -> tuple[Sentence, ...]:
    """The sentences of the mix to learn from, where there are some to learn from, to validate by and to test on."""
    for part, what in zip(splits, ("learn from", "validate by", "test on"), strict=True):
        if not part:
            raise DataError(
                f"{path} leaves no sentence to {what}: it has {sum(map(len, splits)):,} of different words (in a preamble, "
                "before the verb), a tenth for validation and a tenth for testing; take a file of more sentences"
            )
    if recipe.mix == "all":
        return splits.train
    train, validation = ([s for s in part if s.source in NATURAL] for part in (splits.train, splits.validation[:limit]))
    for part, what in ((train, "learn from"), (validation, "validate by")):
        if not part:
            raise DataError(
                f"{path} has no sentence to {what} of source {' or '.join(NATURAL)}, those as they come; take --protocol "
                "controlled_all, which learns from all sources"
            )
    return tuple(train)


def _miscounted(sentences: Sequence[Sentence]) -> list[str]:
    """What is to be said of counts of attractors that cannot be, or are not what the parts of speech say."""
    many, other = miscounted(sentences)
    lines = []
    if many:
        lines.append(f"{many:,} sentences count more attractors than there are words between subject and verb")
    if other:
        lines.append(f"{other:,} sentences count other attractors than their parts of speech show; the count is taken")
    return lines


def _preambles(folder: Path) -> Path | None:
    """The file of preambles, where there is one."""
    try:
        return find(folder, PREAMBLES)
    except DataError:
        return None


def _subject(sentence: Sentence) -> tuple[int, ...]:
    return (sentence.subject,)


def _agreement(
    sentences: Sequence[Sentence],
    train: Sequence[Sentence],
    numbers: Mapping[str, str],
    data: Encoded,
    recipe: SvaRecipe,
    encoded: Callable[..., Encoded],
) -> Agreement:
    """Attractors, their places, and simple rules of a split."""
    where = [attractor_indices(sentence, numbers) for sentence in sentences]
    places = dict(zip(map(id, sentences), where, strict=True))
    tokens = [encoded(sentences, _subject), encoded(sentences, lambda s: places[id(s)] or ())]
    reach = data.length if recipe.mask_padding else np.full(len(data), data.n_ctx)
    natural = np.array([sentence.source in NATURAL for sentence in sentences])
    return Agreement(
        label=data.label,
        attractors=np.array([-1 if s.attractors is None else s.attractors for s in sentences]),
        known=np.array([place is not None for place in where]),
        places=np.stack([one.relevant > 0 for one in tokens], 1),
        allowed=np.arange(data.tokens.shape[1]) < reach[:, None],
        chosen=natural if recipe.mix == "natural" else np.ones(len(sentences), bool),
        natural=natural,
        rules=simple_rules(sentences, train),
    )

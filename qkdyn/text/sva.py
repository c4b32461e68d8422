"""Subject-verb agreement (Linzen et al. 2016): sentences or their beginnings, who the subject is, splits, and as arrays."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from qkdyn.errors import DataError, reject
from qkdyn.text.catalogue import PREAMBLES
from qkdyn.text.encoded import Encoded, encode_posts
from qkdyn.text.hatexplain import LABELS as POST_LABELS
from qkdyn.text.hatexplain import Post
from qkdyn.text.sources import find, find_published, read_lines, source
from qkdyn.text.vocabulary import Vocabulary

# Index = class, as in the published label encoder: the verb of a singular, of a plural subject.
LABELS = ("VBZ", "VBP")
KINDS = ("full", "preamble")
# Rows of the published agr_50_mostcommon_10K.tsv, and those that the published runs trained on.
PUBLISHED_ROWS, PUBLISHED_TRAIN = 1_577_211, 157_721
# Shares of train and of validation in a split by hash; the rest is for testing.
SHARES = (0.8, 0.1)
_COLUMNS = ("verb_pos", "subj_index", "verb_index")
_TEXT = ("orig_sentence", "sentence")
# Number of the nouns that stand for a rare word, by their part of speech.
_NOUNS = {"NN": "VBZ", "NNP": "VBZ", "NNS": "VBP", "NNPS": "VBP"}
_AS_PUBLISHED = "take the file as published"
_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, or its beginning up to the verb.

    Attributes:
        words: those of the sentence; of a preamble, those before the verb.
        subject: index of the subject's head, from 0.
        verb: index of the verb, from 0; the number of words in a preamble, where the verb is not there.
        label: VBZ or VBP, the number of the verb.
        source: where the sentence is from; the name of its file where that does not say.
        attractors: nouns of the other number between subject and verb, proper nouns included; None where not known.
        kind: full or preamble.
        between: indices of the attractors; None where the file does not say.
    """

    words: tuple[str, ...]
    subject: int
    verb: int
    label: str
    source: str
    attractors: int | None
    kind: str = "full"
    between: tuple[int, ...] | None = None


class _Row(NamedTuple):
    """The fields of a line, by the names of their columns."""

    path: Path
    line: int
    fields: Mapping[str, str]

    def reject(self, field: str, allowed: str) -> NoReturn:
        value = self.fields[field]
        reject(f"{self.path}: line {self.line}: {field}", value, allowed, _AS_PUBLISHED, DataError)

    def number(self, field: str, least: int, most: int, of: str = "") -> int:
        """A number written in digits; `of` says what it is at most."""
        text = self.fields[field]
        # Python refuses thousands of digits; none of these numbers has more than a few.
        if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS and least <= int(text) <= most):
            self.reject(field, f"an integer from {least} to {most}{of}")
        return int(text)


def _between(tags: Sequence[str], words: int, subject: int, verb: int, label: str) -> tuple[int, ...] | None:
    """Indices of the nouns of the other number, by the words' parts of speech; None where these are of other words."""
    if len(tags) != words:
        return None
    return tuple(i for i in range(subject + 1, verb) if _NOUNS.get(tags[i], label) != label)


def _sentence(row: _Row, text: str, kind: str) -> Sentence:
    fields = row.fields
    if not fields[text].strip():
        row.reject(text, "a sentence")
    words = tuple(fields[text].split(" "))
    if fields["verb_pos"] not in LABELS:
        row.reject("verb_pos", " or ".join(LABELS))
    label = fields["verb_pos"]
    # The verb of a beginning would be its next word.
    least = len(words) + 1 if kind == "preamble" else 1
    verb = row.number("verb_index", least, len(words) + (kind == "preamble")) - 1
    subject = row.number("subj_index", 1, len(words)) - 1
    if subject == verb:
        row.reject("subj_index", "another word than the verb")
    attractors = None
    if fields.get("n_diff_intervening"):
        # Some sources of sentences count nouns before the subject too: see `miscounted`.
        of = ", the other words before verb or subject, whichever is later"
        attractors = row.number("n_diff_intervening", 0, max(subject, verb) - 1, of)
    tags = fields.get("pos_sentence")
    between = None if tags is None else _between(tags.split(" "), len(words), subject, verb, label)
    origin = fields.get("source") or row.path.name.split(".")[0]
    return Sentence(words, subject, verb, label, origin, attractors, kind, between)


def read_sentences(path: str | Path, kind: str = "full") -> tuple[Sentence, ...]:
    """The sentences of one tab-separated file, plain or gzipped, in its order, repeated ones included.

    Columns are found by their names: orig_sentence or else sentence, verb_pos, subj_index and verb_index (from 1), and where
    they are there source, n_diff_intervening and pos_sentence.

    Args:
        path: agr_50_mostcommon_10K.tsv or a file of its columns.
        kind: "full", or "preamble" for beginnings, whose verb index is one more than their words.

    Raises:
        DataError: the file cannot be read, or is not as published; the message names file, line and field.
    """
    path = Path(path)
    if kind not in KINDS:
        reject("kind", kind, " or ".join(KINDS))
    lines = read_lines(path)
    names = next(lines, "").removesuffix("\r").split("\t")
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise DataError(f"{path}: line 1 has the column {twice!r} twice; {_AS_PUBLISHED}")
    text = next((name for name in _TEXT if name in names), None)
    missing = [name for name in _COLUMNS if name not in names]
    if text is None or missing:
        wanted = f"at least {', '.join(_COLUMNS)}, and {' or '.join(_TEXT)}"
        reject(f"{path}: line 1: its columns", names, wanted, _AS_PUBLISHED, DataError)
    sentences = []
    for number, line in enumerate(lines, start=2):
        values = line.removesuffix("\r").split("\t")
        if len(values) != len(names):
            allowed = f"{len(names)}, as many as line 1 has columns"
            reject(f"{path}: line {number}: number of fields", len(values), allowed, _AS_PUBLISHED, DataError)
        sentences.append(_sentence(_Row(path, number, dict(zip(names, values, strict=True))), text, kind))
    if not sentences:
        raise DataError(f"{path} has no sentence; {_AS_PUBLISHED}")
    return tuple(sentences)


def read_sva(folder: str | Path, kind: str = "full") -> tuple[Sentence, ...]:
    """The sentences of a folder: agr_50_mostcommon_10K.tsv, or else sentences.tsv.

    Of kind "preamble": those of preambles.tsv, or where it is not there the beginnings of these sentences.

    Raises:
        DataError: no such file, or as `read_sentences`.
    """
    if kind == "preamble" and any((Path(folder) / name).exists() for name in (PREAMBLES, f"{PREAMBLES}.gz")):
        return read_sentences(find(folder, PREAMBLES), kind)
    sentences = read_sentences(find_published(folder, source("sva").files[0]))
    return sentences if kind == "full" else beginnings(sentences)


def beginnings(sentences: Iterable[Sentence]) -> tuple[Sentence, ...]:
    """The words before the verb; sentences whose subject comes after it, which cannot be predicted from them, are left out."""
    return tuple(
        replace(sentence, words=sentence.words[: sentence.verb], kind="preamble")
        for sentence in sentences
        if sentence.subject < sentence.verb
    )


def miscounted(sentences: Iterable[Sentence]) -> tuple[int, int]:
    """How many count more attractors than they have words between subject and verb; and others than their tags show."""
    counted = [one for one in sentences if one.attractors is not None]
    return (
        sum((one.attractors or 0) >= abs(one.verb - one.subject) for one in counted),
        sum(one.between is not None and len(one.between) != one.attractors for one in counted),
    )


class Distinct(NamedTuple):
    """Sentences without repetitions.

    Attributes:
        sentences: the first of each text, in the order given.
        repeated: how many were left out.
        contradicting: those of them whose label is not that of the first, as beginnings may have.
    """

    sentences: tuple[Sentence, ...]
    repeated: int
    contradicting: int


def distinct(sentences: Sequence[Sentence]) -> Distinct:
    """Every text once."""
    first: dict[tuple[str, ...], Sentence] = {}
    contradicting = 0
    for sentence in sentences:
        contradicting += first.setdefault(sentence.words, sentence).label != sentence.label
    return Distinct(tuple(first.values()), len(sentences) - len(first), contradicting)


def shared(train: Iterable[Sentence], other: Iterable[Sentence]) -> int:
    """How many sentences of `other` have a text of `train`."""
    known = {sentence.words for sentence in train}
    return sum(sentence.words in known for sentence in other)


class Splits(NamedTuple):
    """Sentences to learn from, to choose by, and to test on."""

    train: tuple[Sentence, ...]
    validation: tuple[Sentence, ...]
    test: tuple[Sentence, ...]


def hash_split(sentences: Iterable[Sentence]) -> Splits:
    """80 / 10 / 10 percent by a hash of the text: a sentence is in the same split everywhere, whatever stands beside it."""
    parts: tuple[list[Sentence], ...] = ([], [], [])
    for sentence in sentences:
        digest = blake2b(" ".join(sentence.words).encode(), digest_size=8).digest()
        place = int.from_bytes(digest, "big") / 2**64
        parts[(place >= SHARES[0]) + (place >= sum(SHARES))].append(sentence)
    return Splits(*map(tuple, parts))


def published_rows() -> np.ndarray:
    """The rows of agr_50_mostcommon_10K.tsv that the published runs trained on, in their order, from 0."""
    return np.random.RandomState(42).choice(PUBLISHED_ROWS, PUBLISHED_TRAIN, replace=False)


def published_split(sentences: Sequence[Sentence]) -> tuple[tuple[Sentence, ...], tuple[Sentence, ...]]:
    """Training sentences (a tenth) and all others, in their order, as published: no validation, repetitions not removed.

    Raises:
        InputError: not as many sentences as the published file has.
    """
    if len(sentences) != PUBLISHED_ROWS:
        reject(
            "the number of sentences", len(sentences), f"{PUBLISHED_ROWS:,}, the published file's", "or use hash_split"
        )
    rows = published_rows()
    others = np.ones(PUBLISHED_ROWS, bool)
    others[rows] = False
    return tuple(sentences[row] for row in rows.tolist()), tuple(
        sentences[row] for row in np.flatnonzero(others).tolist()
    )


def counts(sentences: Iterable[Sentence]) -> dict[tuple[str, int | None], int]:
    """How many there are of each source (what stands before a colon) and number of attractors."""
    return dict(Counter((sentence.source.split(":")[0], sentence.attractors) for sentence in sentences))


def noun_numbers(sentences: Iterable[Sentence], least: int = 3, share: float = 0.9) -> dict[str, str]:
    """The number of nouns, as the label of their verb, from the sentences of which they are the subject.

    Those that are the subject `least` times and of one number in at least `share` of them; and the parts of speech that stand
    for rare nouns.
    """
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for sentence in sentences:
        found[sentence.words[sentence.subject]][sentence.label] += 1
    numbers = {}
    for word, labels in found.items():
        label, count = labels.most_common(1)[0]
        if labels.total() >= least and count >= share * labels.total():
            numbers[word] = label
    return numbers | _NOUNS


def attractor_indices(sentence: Sentence, numbers: Mapping[str, str]) -> tuple[int, ...] | None:
    """Where the attractors of a sentence are; None where this is not known.

    Preambles come with the count of their attractors but not with the words that these are. Taken are the nouns of the other
    number between subject and verb, by `numbers`, where they are as many as counted.
    """
    if sentence.attractors == 0:
        return ()
    if sentence.between is not None or sentence.attractors is None:
        return sentence.between
    label = sentence.label
    indices = range(sentence.subject + 1, sentence.verb)
    found = tuple(i for i in indices if numbers.get(sentence.words[i], label) != label)
    return found if len(found) == sentence.attractors else None


def encode_sentences(
    sentences: Sequence[Sentence],
    vocabulary: Vocabulary,
    marked: Callable[[Sentence], Iterable[int]] = lambda sentence: (sentence.subject,),
    *,
    n_ctx: int,
    truncate: bool = False,
    query: bool = False,
    prepare: Callable[[str], Sequence[str]] | None = None,
    pad_to_n_ctx: bool = False,
) -> Encoded:
    """Token ids, classes (index in `LABELS`) and marks of sentences, as `encode_posts` has them.

    Args:
        sentences: of one kind.
        vocabulary: from `qkdyn.text.vocabulary`.
        marked: the indices of the words of a sentence that are relevant: the subject; `subject_and_verb`, as published; or
            others whose attention is asked for.
        n_ctx: most tokens, the query token included.
        truncate: cut the end of what is longer; otherwise it is an error.
        query: append the vocabulary's query token.
        prepare: cleaning, word -> words.
        pad_to_n_ctx: T = n_ctx.

    Raises:
        InputError: a marked word that is not there, or as `encode_posts`.
    """
    posts = []
    for number, sentence in enumerate(sentences):
        mask = [False] * len(sentence.words)
        for index in marked(sentence):
            if not 0 <= index < len(mask):
                reject(f"marked word of sentence {number}", index, f"from 0 to {len(mask) - 1}")
            mask[index] = True
        posts.append(Post(str(number), sentence.words, POST_LABELS[0], (tuple(mask),)))
    encoded = encode_posts(
        posts,
        vocabulary,
        n_ctx=n_ctx,
        truncate=truncate,
        query=query,
        agreement="union",
        prepare=prepare,
        pad_to_n_ctx=pad_to_n_ctx,
    )
    return replace(encoded, label=np.array([LABELS.index(sentence.label) for sentence in sentences], np.int32))


def subject_and_verb(sentence: Sentence) -> tuple[int, int]:
    """The words that the published metrics take as relevant in a full sentence."""
    return sentence.subject, sentence.verb

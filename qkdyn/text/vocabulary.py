"""Words to token ids: the words of a training split, BERT's word pieces, GPT-2's byte-level pairs; whose piece is whose."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from jaxtyping import Int32

from qkdyn.errors import DataError, check_count, reject
from qkdyn.text.sources import open_text, read_json

PAD, UNKNOWN, QUERY = "[PAD]", "[UNK]", "[QUERY]"
END = "<|endoftext|>"
# Entries of bert-base-uncased's vocab.txt and of GPT-2's encoder.json.
BERT_SIZE, GPT2_SIZE = 30_522, 50_257
# A word of more characters is unknown as a whole, as in BERT's own tokenizer.
LONGEST_WORD = 100


class Encoding(NamedTuple):
    """The pieces of a text: their ids, and for each the index of the word that it is of."""

    ids: Int32[np.ndarray, "n"]
    word: Int32[np.ndarray, "n"]


def _check_word(word: str) -> None:
    """Raise InputError unless the word is a string that UTF-8 can write."""
    if not isinstance(word, str) or any("\ud800" <= character <= "\udfff" for character in word):
        reject("words", word, "strings without halves of surrogate pairs")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Tokens and their ids, 0 to size - 1.

    Attributes:
        symbols: the token of each id, as its file writes it.
        pad: id that fills the slots after a text.
        unknown: id of what has no other; None where everything can be spelled.
        query: id of the learned query token; None where there is none (see `with_query`).
        split: ids of the pieces of one word, none where nothing of it is left.
        spaced: a word that is not the first is split with a space before it.
    """

    symbols: tuple[str, ...] = field(repr=False)
    pad: int
    unknown: int | None
    query: int | None
    split: Callable[[str], Sequence[int]] = field(repr=False)
    spaced: bool = False
    _known: dict[str, tuple[int, ...]] = field(default_factory=dict, init=False, repr=False)

    @property
    def size(self) -> int:
        """How many ids there are."""
        return len(self.symbols)

    def pieces(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        """The ids of the pieces of each word; each word is split once and remembered."""
        known, found = self._known, []
        for index, word in enumerate(words):
            text = " " + word if self.spaced and index else word
            ids = known.get(text)
            if ids is None:
                _check_word(word)
                ids = known[text] = tuple(self.split(text))
            found.append(ids)
        return found

    def encode(self, words: Sequence[str]) -> Encoding:
        """The pieces of a text.

        Args:
            words: the text's words, cased as the vocabulary wants them.

        Returns:
            Ids (n,) and, for each piece, the index of its word (n,), never decreasing; int32. A word may have any number
            of pieces, none included (a word of control characters, for WordPiece).

        Raises:
            InputError: a single string instead of words, or a word that is not text.
        """
        if isinstance(words, str):
            reject("words", words, "a list of words", "split the text first")
        pieces = self.pieces(words)
        ids = np.array([id_ for piece in pieces for id_ in piece], np.int32)
        return Encoding(ids, np.repeat(np.arange(len(pieces), dtype=np.int32), [len(piece) for piece in pieces]))


def with_query(vocabulary: Vocabulary) -> Vocabulary:
    """The same vocabulary with one more id, the last, for a learned query token; unchanged where it has one."""
    if vocabulary.query is not None:
        return vocabulary
    symbols = (*vocabulary.symbols, QUERY)
    return Vocabulary(
        symbols, vocabulary.pad, vocabulary.unknown, len(symbols) - 1, vocabulary.split, vocabulary.spaced
    )


def word_vocabulary(posts_words: Iterable[Sequence[str]], min_count: int = 1) -> Vocabulary:
    """The words of a training split: 0 pad, 1 unknown, 2 query, then words by falling count, equal counts by alphabet.

    Args:
        posts_words: the words of each post.
        min_count: words that occur less often are unknown.

    Raises:
        InputError: no words at all, or none that occurs `min_count` times.
    """
    check_count("min_count", min_count)
    counts = Counter(word for words in posts_words for word in words)
    kept = sorted(
        (word for word, count in counts.items() if count >= min_count), key=lambda word: (-counts[word], word)
    )
    if not kept:
        reject("posts_words", f"{len(counts)} words", f"posts with words that occur {min_count} times or more")
    ids = {word: (index,) for index, word in enumerate(kept, start=3)}
    return Vocabulary((PAD, UNKNOWN, QUERY, *kept), 0, 1, 2, lambda word: ids.get(word, (1,)))


def _refuse(path: str | Path, what: str, do: str) -> NoReturn:
    """Raise DataError: the file, what is wrong with it, and what to do."""
    raise DataError(f"{path} {what}; {do}")


def _check_size(path: str | Path, found: int, size: int | None, do: str) -> None:
    """Raise DataError unless the file has `size` entries; None allows any number."""
    if size is not None and found != size:
        _refuse(path, f"has {found:,} entries, not {size:,}", do)


def wordpiece(path: str | Path, *, size: int | None = BERT_SIZE) -> Vocabulary:
    """BERT's word pieces, each word split by itself: at punctuation first, then into the longest pieces known.

    Case is kept and no [CLS] or [SEP] is added, as in the published protocol, whose text is lower-cased by its cleaning.

    Args:
        path: vocab.txt or vocab.txt.gz, one piece a line.
        size: entries expected; None for any number.

    Raises:
        DataError: no such file, not as many entries as expected, an entry twice, or no [PAD] or [UNK].
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer

    do = "give BERT's vocab.txt as it is published"
    symbols = open_text(path).removesuffix("\n").split("\n")
    _check_size(path, len(symbols), size, do)
    ids = {symbol: index for index, symbol in enumerate(symbols)}
    if len(ids) < len(symbols):
        _refuse(path, f"lists {Counter(symbols).most_common(1)[0][0]!r} more than once", do)
    for name in (PAD, UNKNOWN):
        if name not in ids:
            _refuse(path, f"has no {name}", do)
    model = WordPiece(ids, unk_token=UNKNOWN, max_input_chars_per_word=LONGEST_WORD)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = BertNormalizer(lowercase=False, strip_accents=False)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return Vocabulary(tuple(symbols), ids[PAD], ids[UNKNOWN], None, lambda word: tokenizer.encode(word).ids)


def _read_encoder(path: str | Path, size: int | None) -> dict[str, int]:
    """GPT-2's encoder.json, checked: symbol -> id, with every id from 0 once and all 256 bytes."""
    from tokenizers.pre_tokenizers import ByteLevel

    do = "give GPT-2's encoder.json as it is published"
    ids = read_json(path)
    if not isinstance(ids, dict):
        _refuse(path, f"holds a {type(ids).__name__}, not an object of symbols and ids", do)
    _check_size(path, len(ids), size, do)
    if any(type(id_) is not int for id_ in ids.values()) or sorted(ids.values()) != list(range(len(ids))):
        _refuse(path, f"does not give each id from 0 to {len(ids) - 1} once", do)
    missing = [symbol for symbol in (*sorted(ByteLevel.alphabet()), END) if symbol not in ids]
    if missing:
        _refuse(path, f"has no {missing[0]!r}", do)
    return ids


def _read_merges(path: str | Path, encoder_json: str | Path, ids: dict[str, int]) -> list[tuple[str, str]]:
    """GPT-2's vocab.bpe, checked against its encoder: pairs in the order in which they are merged."""
    from tokenizers.pre_tokenizers import ByteLevel

    do = "give the vocab.bpe and encoder.json of one model"
    pairs, known, lines = [], set(ByteLevel.alphabet()), {}
    for number, line in enumerate(open_text(path).split("\n"), start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not all(pair):
            _refuse(path, f"line {number} is not a pair of symbols: {line[:40]!r}", do)
        for symbol in (*pair, "".join(pair)):
            if symbol not in ids:
                _refuse(path, f"line {number} needs {symbol!r}, which {encoder_json} lacks", do)
        for symbol in pair:
            if symbol not in known:
                _refuse(path, f"line {number} merges {symbol!r}, which no earlier line makes", do)
        if (first := lines.setdefault(line, number)) < number:
            _refuse(path, f"line {number} is line {first} again", do)
        known.add("".join(pair))
        pairs.append((pair[0], pair[1]))
    unmade = [symbol for symbol in ids if symbol not in known and symbol != END]
    if unmade:
        _refuse(path, f"makes no {unmade[0]!r}, which {encoder_json} has", do)
    return pairs


def _first(
    ids: dict[str, int], pairs: list[tuple[str, str]], size: int, path: str | Path
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Ids of `size` symbols, numbered anew in their order, the end last: the bytes and what the first pairs make."""
    from tokenizers.pre_tokenizers import ByteLevel

    kept = set(ByteLevel.alphabet())
    least = len(kept) + 1
    if not least <= check_count("size", size) <= len(ids):
        reject("size", size, f"from {least} (bytes and the end alone) to {len(ids)}, the entries of {path}")
    taken = 0
    while len(kept) + 1 < size:
        kept.add("".join(pairs[taken]))
        taken += 1
    symbols = [*sorted(kept, key=ids.__getitem__), END]
    return {symbol: index for index, symbol in enumerate(symbols)}, pairs[:taken]


def byte_bpe(
    encoder_json: str | Path,
    vocab_bpe: str | Path,
    *,
    size: int | None = None,
    expected: int | None = GPT2_SIZE,
    spaced: bool = True,
) -> Vocabulary:
    """GPT-2's byte-level pair encoding: what it gives for the words joined by single spaces.

    Args:
        encoder_json: symbols and ids.
        vocab_bpe: the merges, one pair a line.
        size: entries to keep: the bytes, what the first merges make, and the end of a text, which comes last; None for all.
            Pairs are merged in the order learned, so that the tokens are those of a vocabulary that stopped learning early.
        expected: entries of the encoder; None for any number.
        spaced: a space before every word but the first belongs to the word; False splits words without spaces.

    Raises:
        InputError: a size that leaves no room for the bytes, or is larger than the encoder.
        DataError: no such file, not as many entries as expected, ids that leave gaps, a byte or <|endoftext|> without an
            entry, merges whose symbols the encoder lacks or no earlier merge makes, a merge twice, or entries that no merge
            makes.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    ids = _read_encoder(encoder_json, expected)
    pairs = _read_merges(vocab_bpe, encoder_json, ids)
    if size is not None:
        ids, pairs = _first(ids, pairs, size, encoder_json)
    tokenizer = Tokenizer(BPE(ids, pairs))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    symbols = tuple(sorted(ids, key=ids.__getitem__))
    return Vocabulary(symbols, ids[END], None, None, lambda word: tokenizer.encode(word).ids, spaced)

"""Vocabularies against their definitions: a naive WordPiece, the bytes themselves, published ids; files that are wrong."""

import json
import os
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import bpe_entries, byte_letters, wordpiece_entries, write, write_data

from qkdyn.errors import DataError, InputError
from qkdyn.text.sources import find
from qkdyn.text.vocabulary import byte_bpe, with_query, word_vocabulary, wordpiece

# Letters and syllables of the made vocabularies, punctuation, digits, bytes of several lengths.
WORDS = st.lists(st.text(st.sampled_from("badozkuBA'!-[]<>7é\u0660€😂\u200d"), min_size=1, max_size=7), max_size=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"), 30, zipped=True, bpe=None)


@pytest.fixture(scope="module")
def bert(folder):
    return wordpiece(find(folder / "bert_base_uncased", "vocab.txt"), size=None)


@pytest.fixture(scope="module")
def gpt2(folder):
    return byte_bpe(folder / "gpt2_bpe" / "encoder.json", folder / "gpt2_bpe" / "vocab.bpe", expected=None)


@pytest.fixture(scope="module")
def unspaced(folder):
    return byte_bpe(
        folder / "gpt2_bpe" / "encoder.json", folder / "gpt2_bpe" / "vocab.bpe", expected=None, spaced=False
    )


def test_words_are_numbered_by_count_then_alphabet():
    posts = [["pear", "fig", "apple"], ["fig", "plum", "pear"], ["fig"]]
    vocabulary = word_vocabulary(iter(posts))
    assert vocabulary.symbols[3:] == ("fig", "pear", "apple", "plum")
    assert (vocabulary.pad, vocabulary.unknown, vocabulary.query, vocabulary.size) == (0, 1, 2, 7)
    ids, word = vocabulary.encode(["plum", "cherry", "fig"])
    assert ids.tolist() == [6, 1, 3] and word.tolist() == [0, 1, 2]
    assert word_vocabulary(posts, 2).encode(["pear", "plum"]).ids.tolist() == [4, 1]


def test_special_names_in_a_text_are_words_like_others():
    ids, _ = word_vocabulary([["fig", "[PAD]", "[QUERY]"]]).encode(["[PAD]", "[QUERY]", "[UNK]"])
    assert ids.tolist() == [3, 4, 1]


def _naive_wordpiece(word, entries):
    """Punctuation apart, then the longest piece known from the left; one unknown for a run that cannot be spelled."""
    spaced = "".join(f" {c} " if c in string.punctuation else c for c in word if c != "\u200d")
    out = []
    for run in spaced.split():
        pieces, start = [], 0
        while start < len(run):
            prefix = "##" if start else ""
            ends = [end for end in range(start + 1, len(run) + 1) if prefix + run[start:end] in entries]
            if not ends:
                pieces = ["[UNK]"]
                break
            pieces.append(prefix + run[start : ends[-1]])
            start = ends[-1]
        out += pieces
    return [entries[piece] for piece in out]


@given(words=WORDS)
def test_wordpiece_is_longest_match_first_within_each_word(bert, words):
    entries = {entry: index for index, entry in enumerate(wordpiece_entries())}
    expected = [_naive_wordpiece(word, entries) for word in words]
    ids, word = bert.encode(words)
    assert ids.tolist() == [id_ for pieces in expected for id_ in pieces]
    assert word.tolist() == [index for index, pieces in enumerate(expected) for _ in pieces]
    assert ids.dtype == word.dtype == np.int32


@given(words=WORDS, spaced=st.booleans())
def test_byte_pieces_spell_the_text_and_lie_in_their_word(gpt2, unspaced, spaced, words):
    vocabulary = gpt2 if spaced else unspaced
    ids, word = vocabulary.encode(words)
    of_letter = {letter: byte for byte, letter in enumerate(byte_letters())}
    spelled = [bytes(of_letter[letter] for letter in vocabulary.symbols[id_]) for id_ in ids]
    texts = [(" " if spaced and index else "") + text for index, text in enumerate(words)]
    assert b"".join(spelled) == "".join(texts).encode()
    # The word of every byte, from the text alone, against the word of the piece that the byte is in.
    owner = [index for index, text in enumerate(texts) for _ in text.encode()]
    assert owner == [index for index, piece in zip(word, spelled, strict=True) for _ in piece]


@given(words=WORDS)
def test_byte_pieces_are_those_of_the_joined_text(gpt2, words):
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    entries, merges = bpe_entries()
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    whole = Tokenizer(BPE(entries, pairs))
    whole.pre_tokenizer = ByteLevel(add_prefix_space=False)
    assert gpt2.symbols[gpt2.pad] == "<|endoftext|>" and gpt2.unknown is None
    assert gpt2.encode(words).ids.tolist() == whole.encode(" ".join(words)).ids


def test_case_is_kept_and_long_words_are_unknown(bert):
    assert [bert.symbols[id_] for id_ in bert.encode(["Bada", "b" * 101, "b" * 100]).ids[:5]] == [
        "B",
        "##a",
        "##da",
        "[UNK]",
        "b",
    ]


def test_nothing_to_encode(bert, gpt2):
    for vocabulary in (bert, gpt2, word_vocabulary([["fig"]])):
        ids, word = vocabulary.encode([])
        assert ids.shape == word.shape == (0,)
    # Characters that BERT's cleaning removes leave no piece; the next word keeps its number.
    assert bert.encode(["\u200d", "ba"]).word.tolist() == [1]


def test_query_is_one_more_id(bert):
    more = with_query(bert)
    assert bert.query is None and more.query == bert.size == more.size - 1
    assert more.encode(["bado"]).ids.tolist() == bert.encode(["bado"]).ids.tolist()
    assert with_query(more) is more


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda entries: entries[:-1], r"has {fewer} entries, not {size}; give BERT's vocab\.txt"),
        (lambda entries: [*entries[:-1], "ba"], "lists 'ba' more than once"),
        (lambda entries: ["[pad]", *entries[1:]], r"has no \[PAD\]"),
        (lambda entries: [entries[0], "[unk]", *entries[2:]], r"has no \[UNK\]"),
    ],
)
def test_a_wrong_vocab_is_refused(tmp_path, spoil, message):
    entries = wordpiece_entries()
    path = write(tmp_path / "vocab.txt", "\n".join(spoil(entries)) + "\n")
    with pytest.raises(DataError, match=message.format(fewer=len(entries) - 1, size=len(entries))):
        wordpiece(path, size=len(entries))


def test_published_sizes_are_expected(folder):
    with pytest.raises(DataError, match=r"vocab\.txt\.gz has .* not 30,522; give BERT's"):
        wordpiece(find(folder / "bert_base_uncased", "vocab.txt"))
    with pytest.raises(DataError, match=r"encoder\.json has .* not 50,257"):
        byte_bpe(folder / "gpt2_bpe" / "encoder.json", folder / "gpt2_bpe" / "vocab.bpe")
    with pytest.raises(DataError, match=r"nowhere"):
        wordpiece(folder / "nowhere")


@pytest.mark.parametrize(
    ("encoder", "merges", "message"),
    [
        (lambda e: {**e, "ba": 0}, None, "does not give each id from 0 to"),
        (lambda e: {**e, "ba": "7"}, None, "does not give each id"),
        (lambda e: list(e), None, "holds a list"),
        (lambda e: {("??" if key == "a" else key): id_ for key, id_ in e.items()}, None, "has no 'a'"),
        (lambda e: {("??" if key == "<|endoftext|>" else key): id_ for key, id_ in e.items()}, None, "endoftext"),
        (None, ["q u"], r"line 2 needs 'qu', which .*encoder\.json lacks"),
        (None, ["b a", "b"], "line 3 is not a pair of symbols: 'b'"),
        (None, ["b a  "], "line 2 is not a pair"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, encoder, merges, message):
    entries, pairs = bpe_entries()
    write(tmp_path / "encoder.json", json.dumps(encoder(entries) if encoder else entries))
    write(tmp_path / "vocab.bpe", "\n".join(["#version: 0.2", *(merges or pairs)]) + "\n")
    with pytest.raises(DataError, match=message):
        byte_bpe(tmp_path / "encoder.json", tmp_path / "vocab.bpe", expected=None)


@pytest.mark.parametrize("size", [None, 300])
def test_merges_of_what_is_not_there_yet_are_refused(tmp_path, size):
    entries, pairs = bpe_entries()
    encoder = write(tmp_path / "encoder.json", json.dumps(entries))
    for changed, message in (
        (
            pairs[::-1],
            "line 2 merges 'zu', which no earlier line makes; give the vocab.bpe and encoder.json of one model",
        ),
        ([*pairs[1:], pairs[0]], "line 81 merges 'ba', which no earlier line makes"),
        ([*pairs, pairs[3]], f"line {len(pairs) + 2} is line 5 again; give"),
    ):
        merges = write(tmp_path / "vocab.bpe", "\n".join(["#version: 0.2", *changed]) + "\n")
        with pytest.raises(DataError, match=rf"vocab\.bpe {message}"):
            byte_bpe(encoder, merges, size=size, expected=None)


def test_words_must_be_text(bert, unchecked):
    with pytest.raises(InputError, match="words must be a list of words"):
        bert.encode("ba da")
    for word in ("\ud83d", 7, None):
        with pytest.raises(InputError, match="words must be strings without halves of surrogate pairs"):
            bert.encode(["ba", word])
    with pytest.raises(InputError, match="words that occur 3 times or more"):
        word_vocabulary([["fig", "fig"]], 3)


@pytest.mark.skipif("QKDYN_DATA" not in os.environ, reason="the published vocabularies are not here")
def test_published_vocabularies_give_the_published_ids():
    root = os.environ["QKDYN_DATA"]
    bert = wordpiece(find(os.path.join(root, "bert_base_uncased"), "vocab.txt"))
    assert bert.size == 30_522 and bert.pad == 0 and bert.unknown == 100
    assert bert.encode(["hello", "world"]).ids.tolist() == [7592, 2088]
    assert [bert.symbols[id_] for id_ in bert.encode(["unaffable"]).ids] == ["una", "##ffa", "##ble"]
    gpt2 = byte_bpe(
        find(os.path.join(root, "gpt2_bpe"), "encoder.json"), find(os.path.join(root, "gpt2_bpe"), "vocab.bpe")
    )
    assert gpt2.size == 50_257 and gpt2.pad == 50_256
    assert gpt2.encode(["Hello", "world"]).ids.tolist() == [15496, 995]


def _merged(word, merges, entries):
    """Byte pairs by the definition: the earliest merge that applies, everywhere, until none does."""
    letters = byte_letters()
    pieces = [letters[byte] for byte in word.encode()]
    for left, right in merges:
        at = 0
        while at < len(pieces) - 1:
            if pieces[at : at + 2] == [left, right]:
                pieces[at : at + 2] = [left + right]
            at += 1
    return [entries[piece] for piece in pieces]


def test_a_cut_vocabulary_has_the_first_merges_alone(folder, gpt2):
    files = folder / "gpt2_bpe" / "encoder.json", folder / "gpt2_bpe" / "vocab.bpe"
    _, merges = bpe_entries()
    size = 256 + 30 + 1
    cut = byte_bpe(*files, size=size, expected=None)
    assert cut.size == size and cut.pad == size - 1 and cut.symbols[-1] == "<|endoftext|>"
    assert cut.symbols[:-1] == gpt2.symbols[: size - 1]
    entries = {symbol: index for index, symbol in enumerate(cut.symbols)}
    first = [tuple(merge.split(" ")) for merge in merges[:30]]
    for word in (" badoku", "ziba", "é ba", " bubabo"):
        assert list(cut.split(word)) == _merged(word, first, entries)
    bytes_alone = byte_bpe(*files, size=257, expected=None)
    assert bytes_alone.pad == 256 and len(bytes_alone.split("badoé")) == 6
    whole = byte_bpe(*files, size=gpt2.size, expected=None)
    assert whole.symbols == gpt2.symbols and whole.split(" badoku") == gpt2.split(" badoku")
    for wrong in (256, gpt2.size + 1):
        with pytest.raises(InputError, match=rf"size must be from 257 \(bytes .*\) to {gpt2.size}, .*, got {wrong}"):
            byte_bpe(*files, size=wrong, expected=None)


def test_entries_that_no_merge_makes_are_refused(tmp_path):
    entries, pairs = bpe_entries()
    write(tmp_path / "encoder.json", json.dumps(entries))
    write(tmp_path / "vocab.bpe", "\n".join(["#version: 0.2", *pairs[:-3]]) + "\n")
    with pytest.raises(
        DataError, match=r"vocab\.bpe makes no '.*', which .*encoder\.json has; give the vocab\.bpe and"
    ):
        byte_bpe(tmp_path / "encoder.json", tmp_path / "vocab.bpe", expected=None)

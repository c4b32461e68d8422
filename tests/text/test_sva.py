"""The reader of subject-verb agreement: every field of Linzen's schema, splits that do not mix, marks on the right words."""

from dataclasses import replace

import numpy as np
import pytest
from made import made_words, write

from qkdyn.errors import DataError, InputError
from qkdyn.text.sva import (
    LABELS,
    PUBLISHED_ROWS,
    PUBLISHED_TRAIN,
    Sentence,
    attractor_indices,
    beginnings,
    counts,
    distinct,
    encode_sentences,
    hash_split,
    miscounted,
    noun_numbers,
    published_rows,
    published_split,
    read_sentences,
    read_sva,
    shared,
    subject_and_verb,
)
from qkdyn.text.vocabulary import word_vocabulary

# The published schema, of which others have fewer columns in another order.
COLUMNS = ("sentence", "orig_sentence", "pos_sentence", "verb_pos", "subj_index", "verb_index", "n_diff_intervening")
KEYS = dict(
    zip(
        COLUMNS,
        ("the NN of the ba run", "the da of the ba run", "DT NN IN DT NNS VBZ", "VBZ", "2", "6", "1"),
        strict=True,
    )
)
OWN = ("source", "sentence", "verb_pos", "subj_index", "verb_index", "n_intervening", "n_diff_intervening")


def row(**change):
    """One row of the published schema."""
    return {**KEYS, **change}


def file_of(path, *rows, columns=COLUMNS, zipped=False):
    lines = ["\t".join(columns), *("\t".join(r[name] for name in columns) for r in rows)]
    return write(path, "\n".join(lines) + "\n", zipped)


def sentence(text, subject=0, label="VBZ", attractors=None, **other):
    """A preamble, unless said otherwise."""
    words = tuple(text.split())
    values = {"verb": len(words), "source": "made", "kind": "preamble"} | other
    return Sentence(words, subject, label=label, attractors=attractors, **values)


def made(count, seed=0):
    """Beginnings of invented words, all different."""
    rng = np.random.default_rng(seed)
    words = made_words(500)
    texts = dict.fromkeys(" ".join(rng.choice(words, rng.integers(2, 9))) for _ in range(count))
    return tuple(
        sentence(text, int(rng.integers(len(text.split()))), LABELS[int(rng.integers(2))], int(rng.integers(3)))
        for text in texts
    )


def test_the_published_schema(tmp_path):
    second = row(orig_sentence="a b\x85 c", verb_pos="VBP", subj_index="1", verb_index="3", n_diff_intervening="")
    path = file_of(tmp_path / "agr_50_mostcommon_10K.tsv", row(), second, zipped=True)
    first, other = read_sva(tmp_path)
    assert (first, other) == read_sentences(path)
    assert first == Sentence(
        ("the", "da", "of", "the", "ba", "run"), 1, 5, "VBZ", "agr_50_mostcommon_10K", 1, "full", between=(4,)
    )
    (tmp_path / "windows.tsv").write_bytes(b"\r\n".join("\t".join(x).encode() for x in (COLUMNS, KEYS.values())))
    assert read_sentences(tmp_path / "windows.tsv")[0] == replace(first, source="windows")
    # What is not aligned with the words says nothing about them.
    assert other == Sentence(("a", "b\x85", "c"), 0, 2, "VBP", "agr_50_mostcommon_10K", None, "full", None)
    begun = read_sva(tmp_path, "preamble")
    assert begun[0] == Sentence(
        ("the", "da", "of", "the", "ba"), 1, 5, "VBZ", "agr_50_mostcommon_10K", 1, "preamble", between=(4,)
    )
    assert begun[1].words == ("a", "b\x85")


def test_files_of_fewer_columns(tmp_path):
    rows = [
        {"source": "val", "n_intervening": "2", **row(verb_index="7")},
        {"source": "test.2", "n_intervening": "0", **row(sentence="since NNP models", verb_index="4", verb_pos="VBP")},
    ]
    file_of(tmp_path / "preambles.tsv", *rows, columns=OWN)
    file_of(tmp_path / "sentences.tsv", row(n_diff_intervening="0"), columns=COLUMNS[3:] + COLUMNS[:1], zipped=True)
    first, second = read_sva(tmp_path, "preamble")
    assert first == Sentence(("the", "NN", "of", "the", "ba", "run"), 1, 6, "VBZ", "val", 1, "preamble")
    assert second == Sentence(("since", "NNP", "models"), 1, 3, "VBP", "test.2", 1, "preamble")
    (full,) = read_sva(tmp_path)
    assert full == Sentence(("the", "NN", "of", "the", "ba", "run"), 1, 5, "VBZ", "sentences", 0, "full")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verb_pos": "VBD"}, "line 3: verb_pos must be VBZ or VBP, got 'VBD'; take the file as published"),
        ({"subj_index": "0"}, "line 3: subj_index must be an integer from 1 to 6, got '0'"),
        ({"subj_index": "7"}, "line 3: subj_index must be an integer from 1 to 6, got '7'"),
        ({"verb_index": "7"}, "line 3: verb_index must be an integer from 1 to 6, got '7'"),
        ({"verb_index": "2.0"}, "line 3: verb_index must be an integer from 1 to 6, got '2.0'"),
        ({"subj_index": "6"}, "line 3: subj_index must be another word than the verb, got '6'"),
        ({"n_diff_intervening": "-1"}, "line 3: n_diff_intervening must be an integer from 0 to 4, .*, got '-1'"),
        ({"n_diff_intervening": "5"}, "line 3: n_diff_intervening must be .* other words before verb or subject.* '5'"),
        ({"n_diff_intervening": "9" * 5000}, "line 3: n_diff_intervening must be an integer from 0 to 4, .*, got '99"),
        ({"subj_index": "9" * 5000}, "line 3: subj_index must be an integer from 1 to 6, got '9999"),
        ({"orig_sentence": " "}, "line 3: orig_sentence must be a sentence, got ' '"),
        ({"verb_pos": "VBZ\tx"}, "line 3: number of fields must be 7, as many as line 1 has columns, got 8"),
    ],
)
def test_a_wrong_field_is_named(tmp_path, change, message):
    path = file_of(tmp_path / "a.tsv", row(), row(**change))
    with pytest.raises(DataError, match=f"{path}: {message}"):
        read_sentences(path)


def test_columns_behind_a_mark_of_byte_order_and_columns_twice(tmp_path):
    path = file_of(tmp_path / "a.tsv", row(), columns=COLUMNS[3:] + COLUMNS[:3])
    plain = read_sentences(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_sentences(path) == plain
    for twice in ("subj_index", "sentence"):
        with pytest.raises(
            DataError, match=rf"b\.tsv: line 1 has the column '{twice}' twice; take the file as published"
        ):
            read_sentences(file_of(tmp_path / "b.tsv", row(), columns=(*COLUMNS, twice)))


def test_counts_of_attractors_that_cannot_be(tmp_path):
    # Four words stand before the verb beside the subject, three of them between the two.
    counts = ("", "0", "1", "3", "4")
    inverted = row(subj_index="6", verb_index="1", n_diff_intervening="4")
    some = read_sentences(file_of(tmp_path / "a.tsv", *(row(n_diff_intervening=n) for n in counts), inverted))
    # By the tags one attractor is in the first five, and two are in the last.
    assert [one.attractors for one in some] == [None, 0, 1, 3, 4, 4]
    assert miscounted(some[:4]) == (0, 2) and miscounted(some) == (1, 4)
    assert miscounted(replace(one, between=None) for one in some) == (1, 0)


def test_wrong_files_are_named(tmp_path):
    good = file_of(tmp_path / "a.tsv", row())
    with pytest.raises(DataError, match=r"a.tsv: line 2: verb_index must be an integer from 7 to 7, got '6'"):
        read_sentences(good, "preamble")
    with pytest.raises(InputError, match="kind must be full or preamble"):
        read_sentences(good, "beginning")
    for columns in (COLUMNS[2:], COLUMNS[:4] + COLUMNS[5:], COLUMNS[:3] + COLUMNS[4:]):
        path = file_of(tmp_path / "b.tsv", row(), columns=columns)
        with pytest.raises(DataError, match=r"b.tsv: line 1: its columns must be at least verb_pos, subj_index, verb_"):
            read_sentences(path)
    with pytest.raises(DataError, match="has no sentence"):
        read_sentences(file_of(tmp_path / "c.tsv"))
    (tmp_path / "d.tsv").write_bytes("\t".join(COLUMNS).encode() + b"\n\xff")
    with pytest.raises(DataError, match="d.tsv is not UTF-8"):
        read_sentences(tmp_path / "d.tsv")
    with pytest.raises(DataError, match="none of agr_50_mostcommon_10K.tsv, .*sentences.tsv"):
        read_sva(tmp_path, "preamble")


def test_repetitions_are_counted_and_left_out():
    twice = sentence("da ba", 1, source="first")
    other = sentence("da ba", 1, "VBP")
    found = distinct([twice, sentence("da"), twice, other])
    assert found == ((twice, sentence("da")), 2, 1)
    assert shared([twice], [other, sentence("ba da"), other]) == 2
    inverted = Sentence(("are", "they"), 1, 0, "VBP", "x", None)
    assert beginnings([inverted]) == ()


def test_a_sentence_is_in_the_same_split_everywhere():
    some = made(1000)
    splits = hash_split(some)
    for part, share in zip(splits, (0.8, 0.1, 0.1), strict=True):
        assert abs(len(part) / len(some) - share) < 0.04
    texts = [{s.words for s in part} for part in splits]
    assert len(set.union(*texts)) == sum(map(len, texts)) == len(some)
    # Order, company and all that is not the text make no difference.
    changed = [sentence(" ".join(s.words), s.subject, source="other") for s in some[::-1] if s.label == "VBP"]
    for part, whole in zip(hash_split(changed), texts, strict=True):
        assert part and {s.words for s in part} <= whole
    # Told once for all: where these are on every machine.
    fixed = hash_split(map(sentence, ("dogs", "lo", "da ba", "the man", "ba")))
    assert [[" ".join(s.words) for s in part] for part in fixed] == [["dogs", "the man"], ["lo"], ["da ba", "ba"]]


def test_the_published_split(unchecked):
    rows = published_rows()
    assert rows[:5].tolist() == [1407142, 80973, 233479, 1533334, 42107]
    assert rows[-5:].tolist() == [1415628, 1303133, 1055265, 1036156, 181349]
    assert len(np.unique(rows)) == PUBLISHED_TRAIN == 157_721
    # Numbers will do for sentences.
    train, test = published_split(range(PUBLISHED_ROWS))
    assert train == tuple(rows.tolist())
    assert test[:3] == (0, 1, 2) and len(test) == 1_419_490 and np.all(np.diff(test) > 0)
    assert not set(test) & set(train)
    with pytest.raises(InputError, match=r"must be 1,577,211, the published file's, got 3; or use hash_split"):
        published_split(made(3))


def test_counts_by_source_and_attractors():
    some = [sentence("a", source="linzen:x", attractors=1), sentence("b", source="linzen:y", attractors=1)]
    some += [sentence("c", source="val", attractors=0), sentence("d", source="val")]
    assert counts(some) == {("linzen", 1): 2, ("val", 0): 1, ("val", None): 1}


def test_where_attractors_are():
    # da is a singular noun, ba a plural one, to both, lo seldom either.
    known = [sentence("da", 0, "VBZ")] * 9 + [sentence("ba", 0, "VBP")] * 3
    known += [sentence("da", 0, "VBP"), sentence("to", 0, "VBP"), *[sentence("to", 0, "VBZ")] * 3]
    known += [sentence("lo", 0, "VBZ")] * 2
    numbers = noun_numbers(known)
    assert numbers == {"da": "VBZ", "ba": "VBP", "NN": "VBZ", "NNS": "VBP", "NNP": "VBZ", "NNPS": "VBP"}
    expected = (
        ("ba da to ba lo", 1, "VBZ", 1, (3,)),
        ("ba da to ba NNS", 1, "VBZ", 2, (3, 4)),
        ("ba da to ba NNS", 1, "VBZ", 1, None),
        ("da to lo", 0, "VBZ", 1, None),
        ("ba NNP ba", 0, "VBP", 1, (1,)),
        ("ba NNP ba", 0, "VBP", 0, ()),
        ("da ba", 0, "VBZ", None, None),
    )
    for text, subject, label, attractors, found in expected:
        assert attractor_indices(sentence(text, subject, label, attractors), numbers) == found
    # What comes after the verb is none, and what the file says counts for more.
    assert attractor_indices(sentence("da ba runs ba", 0, "VBZ", 1, verb=2, kind="full"), numbers) == (1,)
    assert attractor_indices(sentence("da lo ba", 0, "VBZ", 1, between=(1,)), numbers) == (1,)


def test_marks_are_on_the_right_tokens():
    some = (
        sentence("da da ba", 1, "VBP"),
        sentence("lo", 0),
        sentence("ba lo lo da ba runs ba", 3, verb=5, kind="full"),
    )
    vocabulary = word_vocabulary([("da", "ba", "lo")])
    data = encode_sentences(some, vocabulary, n_ctx=9, query=True)
    assert data.label.tolist() == [1, 0, 0]
    assert data.length.tolist() == [4, 2, 8]
    assert [vocabulary.symbols[token] for token in data.tokens[0, :4]] == ["da", "da", "ba", "[QUERY]"]
    assert [np.flatnonzero(marks).tolist() for marks in data.relevant] == [[1], [0], [3]]
    both = encode_sentences(some[2:], vocabulary, subject_and_verb, n_ctx=9)
    assert np.flatnonzero(both.relevant[0]).tolist() == [3, 5] and both.length.tolist() == [7]
    # A word of two pieces has both marked; what is cut off is marked no more.
    pieces = encode_sentences(some, vocabulary, n_ctx=4, truncate=True, prepare=lambda word: (word, word))
    assert [np.flatnonzero(marks).tolist() for marks in pieces.relevant] == [[2, 3], [0, 1], []]
    assert pieces.cut == 2 and pieces.marked.tolist() == [True, True, False]
    with pytest.raises(InputError, match=r"marked word of sentence 0 must be from 0 to 2, got 3"):
        encode_sentences(some, vocabulary, subject_and_verb, n_ctx=9)
    with pytest.raises(InputError, match="tokens of post 2 must be at most n_ctx = 6, got 7"):
        encode_sentences(some, vocabulary, n_ctx=6)

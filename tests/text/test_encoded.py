"""Encoded posts: marks follow the words through every tokenizer, padding is on the right, what is cut is counted."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import write_data

from qkdyn.errors import InputError
from qkdyn.text.cleaning import clean
from qkdyn.text.encoded import encode_posts
from qkdyn.text.hatexplain import LABELS, Post, read_hatexplain
from qkdyn.text.sources import find
from qkdyn.text.vocabulary import byte_bpe, with_query, word_vocabulary, wordpiece

WORDS = ("ba", "badozi", "ze", "kuku", "Bozo-ba", "x", "it's", "<user>", "s")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"), 60, bpe=None)


@pytest.fixture(scope="module")
def vocabularies(folder):
    bpe = folder / "gpt2_bpe"
    return {
        "words": word_vocabulary([WORDS[:5]]),
        "wordpiece": wordpiece(find(folder / "bert_base_uncased", "vocab.txt"), size=None),
        "bpe": byte_bpe(find(bpe, "encoder.json"), find(bpe, "vocab.bpe"), expected=None),
    }


@st.composite
def _posts(draw):
    """Fields of posts: the type checker of the tests draws random numbers, which a strategy must not."""
    posts = []
    for number in range(draw(st.integers(1, 4))):
        words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6))
        mask = st.lists(st.booleans(), min_size=len(words), max_size=len(words)).map(tuple)
        masks = draw(st.lists(mask, max_size=3))
        posts.append((f"p{number}", tuple(words), draw(st.sampled_from(LABELS)), tuple(masks)))
    return posts


def _weight(post, word, agreement):
    """The weight of one word, from the words of its definition."""
    marks = [mask[word] for mask in post.rationales]
    if agreement == "mean3":
        return sum(marks) / 3
    if agreement == "union":
        return float(any(marks))
    return float(marks.count(True) > len(marks) - marks.count(True))


@pytest.mark.parametrize("name", ["words", "wordpiece", "bpe"])
@given(posts=_posts(), agreement=st.sampled_from(("majority", "union", "mean3")), cleaned=st.booleans())
def test_every_piece_has_the_weight_of_its_word(vocabularies, name, posts, agreement, cleaned):
    """Characters are the judge: those of the pieces, one after the other, are those of the words, weights beside them."""
    posts, vocabulary = [Post(*fields) for fields in posts], vocabularies[name]
    prepare = clean if cleaned else None
    encoded = encode_posts(posts, vocabulary, n_ctx=128, agreement=agreement, prepare=prepare)
    for row, post in enumerate(posts):
        real = encoded.content[row]
        if name == "words":
            parts = [(clean(word) if cleaned else (word,)) for word in post.words]
            expected = [_weight(post, index, agreement) for index, part in enumerate(parts) for _ in part] or [0.0]
            found = encoded.relevant[row, real]
        else:
            expected, text = [], ""
            for index, word in enumerate(post.words):
                kept = "".join(clean(word)) if cleaned else word
                expected += [_weight(post, index, agreement)] * len(kept)
                text += kept
            shown = [vocabulary.symbols[id_] for id_ in encoded.tokens[row, real]]
            pieces = [piece.removeprefix("##").replace("Ġ", "") for piece in shown]
            if not text:
                assert encoded.empty and real.sum() == 1 and encoded.relevant[row].sum() == 0
                continue
            assert "".join(pieces) == text
            counts = [len(piece) for piece in pieces]
            found = np.repeat(encoded.relevant[row, real], counts)
        np.testing.assert_array_equal(found, np.array(expected, np.float32))
        assert encoded.marked[row] == any(weight > 0 for weight in expected)


@pytest.mark.parametrize("name", ["words", "wordpiece", "bpe"])
@given(posts=_posts(), query=st.booleans(), filled=st.booleans())
def test_real_tokens_first_then_the_query_then_padding(vocabularies, name, posts, query, filled):
    posts, vocabulary = [Post(*fields) for fields in posts], with_query(vocabularies[name])
    encoded = encode_posts(posts, vocabulary, n_ctx=128, query=query, pad_to_n_ctx=filled)
    slots = encoded.tokens.shape[1]
    assert slots == 128 if filled else slots % 8 == 0 and slots - encoded.length.max() < 8
    for row, post in enumerate(posts):
        ids = vocabulary.encode(post.words).ids.tolist()
        tail = [vocabulary.query] if query else []
        assert encoded.length[row] == len(ids) + query
        assert encoded.tokens[row].tolist() == ids + tail + [vocabulary.pad] * (slots - len(ids) - query)
        assert encoded.content[row].tolist() == [True] * len(ids) + [False] * (slots - len(ids))
        assert not encoded.relevant[row, len(ids) :].any()
        assert LABELS[encoded.label[row]] == post.label
    assert encoded.tokens.dtype == encoded.length.dtype == encoded.label.dtype == np.int32
    assert encoded.relevant.dtype == np.float32 and (encoded.cut, encoded.empty) == (0, 0)


def _post(*words, masks=(), label="normal", name="p7"):
    return Post(name, words, label, tuple(tuple(map(bool, mask)) for mask in masks))


@pytest.mark.parametrize(
    ("masks", "majority", "union", "mean3"),
    [
        ([], [0, 0, 0], [0, 0, 0], [0, 0, 0]),
        ([[0, 1, 1]], [0, 1, 1], [0, 1, 1], [0, 1 / 3, 1 / 3]),
        ([[0, 1, 1], [0, 0, 1]], [0, 0, 1], [0, 1, 1], [0, 1 / 3, 2 / 3]),
        ([[0, 1, 1], [0, 0, 1], [0, 1, 1]], [0, 1, 1], [0, 1, 1], [0, 2 / 3, 1]),
    ],
)
def test_agreement(masks, majority, union, mean3):
    vocabulary = word_vocabulary([["fig"]])
    for agreement, expected in {"majority": majority, "union": union, "mean3": mean3}.items():
        encoded = encode_posts([_post("fig", "fig", "fig", masks=masks)], vocabulary, n_ctx=8, agreement=agreement)
        np.testing.assert_array_equal(encoded.relevant[0, :3], np.float32(expected))


@pytest.mark.parametrize("query", [False, True])
def test_what_is_cut_is_the_end_and_is_counted(vocabularies, query):
    vocabulary = with_query(vocabularies["wordpiece"])
    # 6 pieces, the last of them marked; 3 pieces; 1 piece.
    posts = [_post("badozi", "kuku", "x", masks=[[0, 0, 1]]), _post("badozi"), _post("x")]
    whole = encode_posts(posts, vocabulary, n_ctx=6 + query, query=query)
    assert whole.cut == 0 and whole.length.tolist() == [6 + query, 3 + query, 1 + query] and whole.marked.tolist()[0]
    short = encode_posts(posts, vocabulary, n_ctx=3 + query, query=query, truncate=True)
    assert short.cut == 1 and short.length.tolist() == [3 + query, 3 + query, 1 + query]
    assert not short.marked.any()
    np.testing.assert_array_equal(short.tokens[0, :3], whole.tokens[0, :3])
    assert not query or short.tokens[0, 3] == vocabulary.query
    with pytest.raises(
        InputError, match=rf"tokens of post p7 must be at most n_ctx = {5 + query}, got {6 + query}; .*trunc"
    ):
        encode_posts(posts, vocabulary, n_ctx=5 + query, query=query)


def test_posts_of_which_nothing_is_left_stay_and_are_counted(vocabularies):
    posts = [_post("fig"), _post("s", "'", masks=[[1, 1]], label="offensive")]
    for vocabulary in vocabularies.values():
        encoded = encode_posts(posts, vocabulary, n_ctx=8, prepare=clean)
        assert encoded.empty == 1 and encoded.length[1] == 1 and encoded.content[1].sum() == 1
        assert encoded.tokens[1, 0] == (vocabulary.pad if vocabulary.unknown is None else vocabulary.unknown)
        assert not encoded.marked[1] and encoded.label[1] == LABELS.index("offensive")


def test_take(vocabularies):
    posts = [_post(*["ba"] * count, masks=[[1] * count], label="offensive") for count in (3, 9, 1)]
    encoded = encode_posts(posts, vocabularies["words"], n_ctx=20)
    assert encoded.tokens.shape[1] == 16 and len(encoded) == 3
    some = encoded.take(np.array([2, -1, 0]), 8)
    assert some.length.tolist() == [1, 0, 3] and some.label.tolist() == [2, 0, 2] and some.marked.tolist() == [1, 0, 1]
    for name in ("tokens", "relevant", "content"):
        rows, taken = getattr(encoded, name), getattr(some, name)
        assert rows.dtype == taken.dtype
        np.testing.assert_array_equal(taken[[0, 2]], rows[[2, 0], :8])
        assert not taken[1].any()
    wide = encoded.take(np.array([1]), 24)
    np.testing.assert_array_equal(wide.tokens[0], [*encoded.tokens[1], *[0] * 8])
    for field in dataclasses.fields(encoded):
        np.testing.assert_array_equal(getattr(encoded.take(np.arange(3)), field.name), getattr(encoded, field.name))
    with pytest.raises(InputError, match="width must be at least 9"):
        encoded.take(np.array([0, 1]), 8)
    for posts in ([0, 3], [-2]):
        with pytest.raises(InputError, match="posts must be from 0 to 2"):
            encoded.take(np.array(posts))


@pytest.mark.parametrize(
    ("post", "options", "message"),
    [
        (
            _post("ba", "ze", masks=[[1, 0], [1]]),
            {},
            "mask 1 of post p7 must be one entry for each of its 2 words, got '1",
        ),
        (_post(), {}, "post p7 must be a post of at least one word"),
        (_post("ba", label="funny"), {}, "label of post p7 must be one of hatespeech, normal, offensive, got 'funny'"),
        (_post("ba", masks=[[1]] * 4), {"agreement": "mean3"}, "masks of post p7 must be at most 3, got 4"),
        (_post("ba"), {"agreement": "all"}, "agreement must be one of majority, union, mean3, got 'all'"),
        (_post("ba"), {"n_ctx": 1, "query": True}, "n_ctx must be an integer >= 2"),
        (_post("ba"), {"n_ctx": 0}, "n_ctx must be an integer >= 1"),
    ],
)
def test_wrong_posts_are_named(vocabularies, unchecked, post, options, message):
    with pytest.raises(InputError, match=message):
        encode_posts([_post("ba", name="fine"), post], vocabularies["words"], **{"n_ctx": 8, **options})


def test_no_posts_and_no_query(vocabularies):
    with pytest.raises(InputError, match="posts must be at least one post"):
        encode_posts([], vocabularies["words"], n_ctx=8)
    with pytest.raises(InputError, match="query must be False for a vocabulary without query token"):
        encode_posts([_post("ba")], vocabularies["bpe"], n_ctx=8, query=True)


def test_a_data_folder_end_to_end(folder):
    """Toxic posts of the made data hold one to three words of 40 that mark them, and nothing else is marked."""
    data = read_hatexplain(folder / "hatexplain")
    vocabulary = word_vocabulary(post.words for post in data.train)
    encoded = encode_posts(data.train, vocabulary, n_ctx=32, query=True)
    toxic = encoded.label != LABELS.index("normal")
    np.testing.assert_array_equal(encoded.marked, toxic)
    assert encoded.relevant.sum(1)[toxic].min() >= 1 and encoded.relevant.sum(1).max() <= 3
    marked = {vocabulary.symbols[id_] for id_ in encoded.tokens[encoded.relevant > 0]}
    masks = [(post.words, mask) for post in data.train for mask in post.rationales]
    assert marked == {word for words, mask in masks for word, m in zip(words, mask, strict=True) if m}

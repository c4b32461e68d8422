"""The reader of HateXplain: labels, splits and rationales as published, counts reported, every damage named."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import made_posts, write, write_data

from qkdyn.errors import DataError
from qkdyn.text.hatexplain import LABELS, Post, read_hatexplain

MASKS = [[0, 1, 1], [0, 1, 0]]


def record(identity="1_made", labels=("normal", "offensive", "offensive"), tokens=("a", "b", "c"), masks=MASKS):
    """One post in the published schema."""
    return {
        "post_id": identity,
        "annotators": [{"label": label, "annotator_id": 1, "target": []} for label in labels],
        "rationales": masks,
        "post_tokens": list(tokens),
    }


def folder_of(root: Path, dataset, divisions=None) -> Path:
    """A folder with these two files; all posts are in train unless told, and one more in each other split."""
    if divisions is None:
        divisions = {"train": list(dataset), "val": ["8_made"], "test": ["9_made"]}
        dataset = (
            dataset | {name: record(name) for name in ("8_made", "9_made")} if isinstance(dataset, dict) else dataset
        )
    write(root / "dataset.json", json.dumps(dataset))
    write(root / "post_id_divisions.json", json.dumps(divisions))
    return root


def test_posts_come_as_they_were_written(tmp_path):
    dataset, divisions = made_posts(60, undecided=5)
    data = read_hatexplain(write_data(tmp_path, 60, undecided=5) / "hatexplain")
    for split, posts in (("train", data.train), ("val", data.validation), ("test", data.test)):
        assert [post.id for post in posts] == divisions[split]
        for post in posts:
            written = dataset[post.id]
            labels = Counter(annotator["label"] for annotator in written["annotators"])
            assert labels[post.label] >= 2
            assert list(post.words) == written["post_tokens"]
            assert [list(map(int, mask)) for mask in post.rationales] == written["rationales"]
            assert bool(post.rationales) == (post.label != "normal")
    assert data.undecided == 5
    assert Counter(post.label for post in data.train) == dict.fromkeys(LABELS, 16)


def test_gzipped_files_read_the_same(tmp_path):
    plain, zipped = write_data(tmp_path / "plain"), write_data(tmp_path / "zipped", zipped=True)
    assert (zipped / "hatexplain" / "dataset.json.gz").exists() and not (
        zipped / "hatexplain" / "dataset.json"
    ).exists()
    assert read_hatexplain(plain / "hatexplain") == read_hatexplain(zipped / "hatexplain")


@given(st.lists(st.sampled_from(LABELS), min_size=3, max_size=3))
def test_majority_of_three(tmp_path_factory, labels):
    dataset = {"1_made": record(labels=labels), "2_made": record("2_made", ["normal"] * 3)}
    data = read_hatexplain(folder_of(tmp_path_factory.mktemp("data"), dataset))
    winners = [label for label in LABELS if labels.count(label) >= 2]
    assert [post.label for post in data.train] == [*winners, "normal"]
    assert data.undecided == 1 - len(winners)


def test_an_undecided_post_is_in_no_split_even_if_a_list_names_it(tmp_path):
    dataset = {"1_made": record(), "2_made": record("2_made", labels=LABELS)}
    data = read_hatexplain(folder_of(tmp_path, dataset))
    assert [post.id for post in data.train] == ["1_made"] and data.undecided == 1


def test_counts_and_what_else_differs_are_notes(tmp_path):
    dataset = {
        "1_made": record(masks=[[0, 0, 0]]),
        "2_made": record("2_made", labels=["normal"] * 3, masks=[]),
        **{name: record(name, labels=["normal"] * 3, masks=[]) for name in ("3_made", "4_made", "5_made")},
    }
    divisions = {"train": ["1_made", "2_made"], "val": ["4_made"], "test": ["5_made"]}
    data = read_hatexplain(folder_of(tmp_path, dataset, divisions))
    assert data.train[0] == Post("1_made", ("a", "b", "c"), "offensive", ((False,) * 3,))
    assert data.notes == (
        "train: 2 posts, published are 15,383",
        "train: 1 posts with rationales, published are 9,132",
        "train: one rationale a post, not one for each annotator",
        "train: 1 posts with rationales in which no word is marked",
        "val: 1 posts, published are 1,922",
        "val: 0 posts with rationales, published are 1,141",
        "test: 1 posts, published are 1,924",
        "test: 0 posts with rationales, published are 1,142",
        "1 posts with a majority label are in no split and were left out",
    )


@pytest.mark.skipif("QKDYN_DATA" not in os.environ, reason="needs the real data (the same on made data above)")
def test_the_published_counts():
    data = read_hatexplain(Path(os.environ["QKDYN_DATA"]) / "hatexplain")
    assert [len(split) for split in (data.train, data.validation, data.test)] == [15383, 1922, 1924]
    given = [sum(bool(post.rationales) for post in split) for split in (data.train, data.validation, data.test)]
    assert given == [9132, 1141, 1142]
    assert data.undecided == 919
    assert not any("published are" in note for note in data.notes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"post_tokens": []}, r"post '1_made': post_tokens must be a list of at least one token, got \[\]; take the"),
        ({"post_tokens": "a b c"}, "post '1_made': post_tokens must be a list"),
        ({"post_tokens": ["a", 2, "c"]}, r"post '1_made': post_tokens\[1\] must be a string that is not empty, got 2"),
        ({"post_tokens": ["a", " ", "c"]}, r"post '1_made': post_tokens\[1\] must be a string that is not empty"),
        ({"post_tokens": ["a", "b", "\ud83d"]}, r"1_made\.post_tokens\[2\] holds half of a surrogate pair"),
        ({"post_id": "\udc00"}, r"1_made\.post_id holds half of a surrogate pair"),
        ({"rationales": [[0, 1]]}, r"post '1_made': length of rationales\[0\] must be that of post_tokens, 3, got 2"),
        ({"rationales": [[0, 1, 0], 5]}, r"post '1_made': length of rationales\[1\] must be .* got 5"),
        ({"rationales": [[0, 2, 0]]}, r"post '1_made': rationales\[0\]\[1\] must be 0 or 1, got 2"),
        ({"rationales": [[0, True, 0]]}, r"rationales\[0\]\[1\] must be 0 or 1, got True"),
        ({"rationales": [[0, 1.0, 0]]}, r"rationales\[0\]\[1\] must be 0 or 1, got 1.0"),
        ({"rationales": MASKS * 2}, "post '1_made': rationales must be a list of at most 3 masks"),
        ({"rationales": None}, "post '1_made': rationales must be a list of at most 3 masks, got None"),
        ({"annotators": []}, r"post '1_made': annotators must be a list of 3 annotators, got \[\]"),
        (
            {"annotators": [{"label": "rude"}] * 3},
            r"annotators\[0\].label must be one of hatespeech, normal, offensive",
        ),
        ({"annotators": [{"label": ["normal"]}] * 3}, r"annotators\[0\].label must be one of"),
        ({"annotators": [{}] * 3}, r"annotators\[0\] must be an object with the key \"label\", got {}"),
        ({"post_id": "9_made"}, "post '1_made': post_id must be the key under which the post stands, got '9_made'"),
    ],
)
def test_a_wrong_field_is_named_with_its_post(tmp_path, change, message):
    folder_of(tmp_path, {"0_made": record("0_made"), "1_made": record() | change})
    with pytest.raises(DataError, match=message) as raised:
        read_hatexplain(tmp_path)
    assert str(tmp_path / "dataset.json") in str(raised.value)


@pytest.mark.parametrize("key", ["post_tokens", "annotators", "rationales"])
def test_a_missing_key_is_named(tmp_path, key):
    bad = record()
    del bad[key]
    with pytest.raises(DataError, match=rf"post '1_made': its keys .*\({key} is missing\)"):
        read_hatexplain(folder_of(tmp_path, {"1_made": bad}))


@pytest.mark.parametrize(
    ("divisions", "message"),
    [
        ([], r"post_id_divisions.json: its keys must be train, val, test, got \[\]"),
        ({"train": [], "val": []}, r"its keys must be train, val, test, got \['train', 'val'\]"),
        ({"train": 3, "val": [], "test": []}, "post_id_divisions.json: train must be a list of post ids, got 3"),
        ({"train": [1], "val": [], "test": []}, "an id in train must be a string, got 1"),
        ({"train": ["1_made"], "val": ["1_made"], "test": []}, "post '1_made' stands twice, in train and in val"),
        ({"train": ["1_made", "1_made"], "val": [], "test": []}, "post '1_made' stands twice, in train and in train"),
        (
            {"train": ["1_made"], "val": ["7_made", "8_made"], "test": []},
            "2 posts of val are not in .*dataset.json, the first is '7_made'; take both",
        ),
    ],
)
def test_wrong_splits_are_named(tmp_path, divisions, message):
    with pytest.raises(DataError, match=message):
        read_hatexplain(folder_of(tmp_path, {"1_made": record()}, divisions))


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_split_without_a_labelled_post_is_named(tmp_path, split):
    dataset = {name: record(name) for name in ("1_made", "2_made", "3_made")}
    divisions = dict(zip(("train", "val", "test"), ([name] for name in dataset), strict=True))
    undecided = dataset | {divisions[split][0]: record(divisions[split][0], labels=LABELS)}
    told = rf"divisions\.json: {split} must be at least one post with a label, got '1 posts, none of them"
    with pytest.raises(DataError, match=told):
        read_hatexplain(folder_of(tmp_path, undecided, divisions))
    with pytest.raises(DataError, match=rf"{split} must be .*, got 'no posts'; take"):
        read_hatexplain(folder_of(tmp_path, dataset, divisions | {split: []}))


def test_content_that_is_no_object(tmp_path):
    folder_of(tmp_path, [], {"train": [], "val": [], "test": []})
    with pytest.raises(DataError, match=r"dataset.json: its content must be an object: post id -> post, got \[\]"):
        read_hatexplain(tmp_path)
    folder_of(tmp_path, {"1_made": []})
    with pytest.raises(DataError, match=r"post '1_made': the record must be an object, got \[\]"):
        read_hatexplain(tmp_path)

"""Arrays, posts and files that are not what the text modules take: each refused by a message that names it."""

from typing import Any

import numpy as np
import pytest

from qkdyn.errors import DataError, InputError
from qkdyn.metrics.rollout import head_rows
from qkdyn.text.batches import bucket_widths, epoch_plan, evaluation_plan, unique_tokens
from qkdyn.text.encoded import encode_posts
from qkdyn.text.hatexplain import Post
from qkdyn.text.sources import read_json
from qkdyn.text.vocabulary import word_vocabulary


def test_an_integer_of_thousands_of_digits_is_no_json(tmp_path):
    (tmp_path / "x.json").write_text('{"a": ' + "1" * 5000 + "}")
    with pytest.raises(DataError, match=r"x\.json is not valid JSON \(Exceeds the limit"):
        read_json(tmp_path / "x.json")
    (tmp_path / "x.json").write_text('{"a": 1, "a": 2}')
    with pytest.raises(DataError, match="the key 'a' twice"):
        read_json(tmp_path / "x.json")


@pytest.fixture
def encoded():
    posts = [Post(str(n), ("ba", "do")[: n + 1], "normal", ()) for n in range(2)]
    return encode_posts(posts, word_vocabulary([("ba", "do")]), n_ctx=8)


TOKENS = np.ones((2, 3, 4), np.int32)
NO_POST: Any = "ba"
WRONG = {
    "float tokens": (lambda e: unique_tokens(TOKENS * 1.5, 9), r"tokens must be integers .*float64 of shape"),
    "flat tokens": (lambda e: unique_tokens(TOKENS[0], 9), "tokens must be integers of shape"),
    "read": (lambda e: unique_tokens(TOKENS, 9, TOKENS[:, :2] > 0), r"read must be bool of shape \(2, 3, 4\)"),
    "read ints": (lambda e: unique_tokens(TOKENS, 9, TOKENS), "read must be bool"),
    "take": (lambda e: e.take(np.array([0.0, 1.0])), "posts must be a list of integers"),
    "take one": (lambda e: e.take(np.array(1)), "posts must be a list of integers"),
    "no post": (
        lambda e: encode_posts([NO_POST], word_vocabulary([("ba",)]), n_ctx=8),
        "each of posts must be a Post, got 'ba'",
    ),
    "long": (lambda e: bucket_widths(np.array([5, 10_001])), "longest of lengths must be at most 10,000 .*got 10001"),
    "batch": (
        lambda e: epoch_plan(np.ones(3, int), batch=10**6 + 1, widths=(8,), seed=0, epoch=0, by_length=True),
        "batch must be at most 1,000,000",
    ),
    "evaluation": (
        lambda e: evaluation_plan(np.ones(3, int), batch=10**6 + 1, widths=(8,)),
        "batch must be at most 1,000,000",
    ),
    "heads": (
        lambda e: head_rows([np.full((h, 4, 4), 0.25) for h in (2, 3)], -1),
        r"heads of attentions must be as many in every layer, got \[2, 3\]",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arrays_are_named(encoded, unchecked, name):
    call, told = WRONG[name]
    with pytest.raises(InputError, match=told):
        call(encoded)


def test_a_batch_larger_than_the_data_keeps_its_size():
    plan = epoch_plan(np.array([2, 3]), batch=7, widths=(8,), seed=0, epoch=0, by_length=False)
    assert plan.posts.shape == (1, 7) and sorted(plan.posts[0].tolist()) == [-1] * 5 + [0, 1]
    assert bucket_widths(np.array([10_000, 1]), 2) == (8, 10_000)

"""Exact match and F1 against the results of SQuAD's official script, by hand, and on the published dev file."""

import os
import re
import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkdyn.errors import InputError
from qkdyn.text.answers import exact_match, f1, normalize
from qkdyn.text.sources import find
from qkdyn.text.squad import read_squad

# Answer, references, exact match and F1 as the official definitions give them.
CASES = [
    ("The Denver Broncos!", ["Denver Broncos"], 1, 1),
    ("denver  broncos", ["the Carolina Panthers", "Denver\tBroncos"], 1, 1),
    ("Denver", ["Denver Broncos"], 0, 2 / 3),
    ("in the city of Paris", ["Paris"], 0, 2 / 5),
    ("Paris", ["London", "the city of Paris", "Paris, France"], 0, 2 / 3),
    # Bags of words: a word counts as often as both have it.
    ("no no no", ["no no yes"], 0, 2 / 3),
    # Words whose letters begin like an article; hyphens go without leaving a space.
    ("Anthem and theory", ["anthem and theory"], 1, 1),
    ("24-10", ["2410"], 1, 1),
    ("24 10", ["24–10"], 0, 0),  # An en dash is no ASCII punctuation.
    ("", ["Paris"], 0, 0),
    ("the", ["A."], 1, 1),
    ("the", ["Paris", "an"], 1, 1),
]


@pytest.mark.parametrize(("answer", "references", "exact", "overlap"), CASES)
def test_cases_by_hand(answer, references, exact, overlap):
    assert exact_match(answer, references) == exact
    assert f1(answer, references) == pytest.approx(overlap, abs=1e-12)


def test_the_published_order_keeps_and_drops_other_articles():
    assert normalize("The-end of A.B.") == "theend of ab"
    assert normalize("The-end of A.B.", articles_first=True) == "end of b"
    assert exact_match("end", ["the-end"], articles_first=True) == 1 and exact_match("end", ["the-end"]) == 0
    assert f1("big end", ["the-end"], articles_first=True) == pytest.approx(2 / 3) and f1("big end", ["the-end"]) == 0


def official(answer, reference):
    """The official script, step by step."""
    bags = []
    for text in (answer, reference):
        text = "".join(c for c in text.lower() if c not in set(string.punctuation))
        bags.append(re.sub(r"\b(a|an|the)\b", " ", text).split())
    if not bags[0] or not bags[1]:
        return float(bags[0] == bags[1]), float(bags[0] == bags[1])
    common = sum((Counter(bags[0]) & Counter(bags[1])).values())
    if not common:
        return 0.0, 0.0
    precision, recall = common / len(bags[0]), common / len(bags[1])
    return float(bags[0] == bags[1]), 2 * precision * recall / (precision + recall)


TEXT = st.lists(st.sampled_from(["the", "A", "an", "fig", "Fig,", "'pear'", "-", "the.fig", " "]), max_size=5).map(
    " ".join
)


@given(answer=TEXT, references=st.lists(TEXT, min_size=1, max_size=3))
def test_the_best_of_the_references(answer, references):
    each = [official(answer, one) for one in references]
    assert exact_match(answer, references) == max(exact for exact, _ in each)
    assert f1(answer, references) == pytest.approx(max(overlap for _, overlap in each), abs=1e-12)


def test_references_must_be_a_list_of_some(unchecked):
    for wrong in ([], "Paris"):
        with pytest.raises(InputError, match=r"references must be a list of at least one right answer, got"):
            f1("Paris", wrong)
        with pytest.raises(InputError, match="references must be"):
            exact_match("Paris", wrong)


@pytest.mark.skipif("QKDYN_DATA" not in os.environ, reason="the published questions are not here")
def test_on_the_published_dev_file():
    questions = read_squad(find(os.path.join(os.environ["QKDYN_DATA"], "squad"), "dev-v1.1.json"))
    scores = []
    for question in questions[::9]:
        texts = [answer.text for answer in question.answers]
        assert exact_match(texts[0], texts) == f1(texts[0], texts[:1]) == 1
        scores.append([exact_match(texts[-1], texts[:1]), f1(texts[-1], texts[:1]), *official(texts[-1], texts[0])])
    exact, overlap, wanted_exact, wanted_overlap = zip(*scores, strict=True)
    assert exact == wanted_exact and overlap == pytest.approx(wanted_overlap, abs=1e-12)
    # Annotators agree with each other often, not always.
    assert 0.5 < sum(exact) / len(exact) < sum(overlap) / len(overlap) < 1

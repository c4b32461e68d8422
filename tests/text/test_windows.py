"""Windows of a paragraph: what they hold, where the answer lies in them, and what they may not depend on."""

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkdyn.errors import InputError
from qkdyn.text.windows import window

WORDS = [f"word{number:03}" for number in range(200)]
CONTEXT = " ".join(WORDS)  # Eight characters a word.
START = CONTEXT.index("word100")
END = START + 15  # "word100 word101"


def test_centred_windows_are_the_published_ones():
    assert window(CONTEXT, "?", START, END, choice="centred") == (START - 200, END + 200)
    assert window(CONTEXT, "?", 16, 23, choice="centred") == (0, 223)
    assert window(CONTEXT, "?", 1584, 1591, choice="centred") == (1384, len(CONTEXT))


@given(
    start=st.integers(0, len(CONTEXT) - 1),
    size=st.integers(1, 400),
    long=st.integers(1, 60),
    seed=st.integers(0, 3),
)
def test_random_windows_hold_the_answer_and_whole_words(start, size, long, seed):
    end = min(len(CONTEXT), start + long)
    low, high = window(CONTEXT, "?", start, end, choice="random", size=size, seed=seed, identity="q")
    assert low <= start and end <= high
    if end - start > size:
        assert (low, high) == (start, end)
    # Only one place for an answer at the beginning.
    assert window(CONTEXT, "?", 0, 7, choice="random", size=80, seed=seed, identity="q") == (0, 79)
    assert high - low <= max(size, end - start)
    # A cut word is the answer's.
    assert low in (0, start) or CONTEXT[low - 1] == " "
    assert low == start or CONTEXT[low] != " "
    assert high in (end, len(CONTEXT)) or CONTEXT[high] == " "


def test_random_places_are_uniform_and_of_seed_and_question_alone():
    places = collections.Counter()
    for number in range(600):
        low, _ = window(CONTEXT, "?", START, END, choice="random", size=400, seed=1, identity=str(number))
        places[(START - low) * 4 // 400] += 1
        assert (low, _) == window(CONTEXT, "any", START, END, choice="random", size=400, seed=1, identity=str(number))
    # A quarter of 600 each, give or take five standard deviations.
    assert set(places) == {0, 1, 2, 3} and all(abs(count - 150) < 55 for count in places.values())
    others = {window(CONTEXT, "?", START, END, choice="random", size=400, seed=s, identity="7") for s in range(9)}
    assert len(others) > 5


def test_windows_by_the_question_do_not_look_at_the_answer():
    def shown(question, start=START, end=END):
        low, high = window(CONTEXT, question, start, end, choice="question", size=80)
        assert high - low <= 80
        return CONTEXT[low:high].split()

    assert shown("what is near Word150, word152 and nothing else?") == shown("word150 word152", 3, 4)
    assert {"word148", "word150", "word152", "word154"} <= set(shown("word150 word152?"))
    # The most different words of the question, each counted once.
    text = "fig fig fig fig " + CONTEXT
    low, high = window(text, "word060 fig word062", START, END, choice="question", size=80)
    assert {"word060", "word062"} <= set(text[low:high].split())
    # Nothing in common: the beginning, whole words.
    assert shown("who?") == WORDS[:10]
    assert shown("word199") == WORDS[190:]


@pytest.mark.parametrize("choice", ["random", "question"])
def test_paragraphs_that_fit_are_taken_whole(choice):
    assert window(" a b ", "b?", 1, 2, choice=choice, size=5) == (0, 5)
    # One word that fills the window and more.
    low, high = window("x" * 50, "x?", 20, 22, choice=choice, size=10)
    assert high - low <= 10 and (choice == "question" or (low <= 20 and high >= 22))


def test_wrong_choices_are_refused(unchecked):
    for change, message in (
        ({"choice": "middle"}, "window must be one of centred, random, question, got 'middle'"),
        ({"choice": "random"}, "size must be an integer >= 1, got 0; give the characters of a window"),
        ({"choice": "random", "size": 9, "seed": -1}, "seed must be an integer >= 0"),
    ):
        with pytest.raises(InputError, match=message):
            window(CONTEXT, "?", START, START + 3, **change)
    for start, end in ((-1, 3), (5, 5), (7, 4), (0, len(CONTEXT) + 1), (5000, 5003)):
        for choice in ("centred", "random"):
            with pytest.raises(InputError, match=rf"start and end .* 1599 characters, got \({start}, {end}\)"):
                window(CONTEXT, "?", start, end, choice=choice, size=9)
        assert window(CONTEXT, "?", start, end, choice="question", size=9) == (0, 7)

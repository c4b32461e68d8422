"""What the cleaning makes of words: by the published list of steps, one case each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkdyn.text.cleaning import DROPPED, clean


@pytest.mark.parametrize(
    ("word", "cleaned"),
    [
        ("garden", "garden"),
        ("Garden", "garden"),
        ("<user>", "user"),
        ("<censored>", "censored"),
        ("#garden", "garden"),
        ("g*rden", "g rden"),
        ("*garden*", "garden"),
        ("<3", "3"),
        ("*", ""),
        # Normalized to tags.
        ("https://example.org/a?b", "url"),
        ("www.example.org", "url"),
        ("someone@example.org", "email"),
        ("@someone", "user"),
        ("50%", "percent"),
        ("$5", "money"),
        ("3.50€", "money"),
        ("$10k", "money"),
        ("555-123-4567", "phone"),
        ("5551234567", "phone"),
        ("12:30", "time"),
        ("5pm", "time"),
        ("24/12/2019", "date"),
        ("2019-12-24", "date"),
        ("24dec2019", "date"),
        ("7", "number"),
        ("1,000", "number"),
        ("ww2", "ww2"),
        ("may", "may"),
        # Contractions, and what is left of other words with apostrophes.
        ("can't", "can not"),
        ("won't", "will not"),
        ("Don't", "do not"),
        ("they’re", "they are"),
        ("i'm", "i am"),
        ("we've", "we have"),
        ("she'll", "she will"),
        ("let's", "let us"),
        ("gardener's", "gardener"),
        ("o'clock", "o clock"),
        ("’", "’"),
        # Dropped by the published list.
        ("<allcaps>", ""),
        ("</allcaps>", ""),
        ("<hashtag>", ""),
        ("</hashtag>", ""),
        ("<elongated>", ""),
        ("<emphasis>", ""),
        ("<repeated>", ""),
        ("'", ""),
        ("s", ""),
        ("S", ""),
        # A letter twice at most; digits and signs as they are.
        ("sooo", "soo"),
        ("gooooood", "good"),
        ("x555", "x555"),
        ("&amp;", "&"),
        ("naïve", "naïve"),
    ],
)
def test_each_step(word, cleaned):
    assert clean(word) == tuple(cleaned.split())


@given(word=st.text("<>*'’#@.:$€%0123mSsaAé😂&;", min_size=1, max_size=8))
def test_what_is_left_holds_no_spaces_and_none_of_the_signs(word):
    for part in clean(word):
        assert part and not set(part) & set("<>* ") and part == part.lower()


@given(word=st.text("abcdeXYZ", min_size=1, max_size=4), dropped=st.sampled_from(sorted(DROPPED)))
def test_letters_are_lowered_and_listed_words_dropped(word, dropped):
    assert clean(dropped) == ()
    if max(map(word.lower().count, word.lower())) < 3:
        assert clean(word) == (word.lower(),)

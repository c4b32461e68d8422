"""What the published cleaning of HateXplain's posts does to one word, as far as it can be known without its package.

The published code runs ekphrasis over the words of a post, though the data set's words have been through such a cleaning
already: tags such as <user> and <number> occur as words, punctuation is gone. What is left for a second pass to do is done here
word by word: tags for what looks like a url, an address, a number and so on, HTML entities, lower case, contractions, then the
published list of dropped words, and a space for each of < > * (so <user> becomes user).

Approximated: patterns that span several words are not seen; hashtags are not cut into words (the # goes); emoticons get no
tags; <censored> is not added once more; a letter repeated more than twice is repeated twice. Few of HateXplain's words differ.
"""

import html
import re

# Dropped by the published code after ekphrasis.
DROPPED = frozenset(
    ("<allcaps>", "</allcaps>", "<hashtag>", "</hashtag>", "<elongated>", "<emphasis>", "<repeated>", "'", "s")
)

_NUMBER = r"\d+(?:[.,']\d+)*"
_MONTH = r"(?:jan|feb|mar|apr|may|june?|july?|aug|sept?|oct|nov|dec)"
# In the published order; the first pattern that fits the whole word decides.
_TAGS = tuple(
    (tag, re.compile(pattern, re.IGNORECASE))
    for tag, pattern in (
        ("<url>", r"(?:https?://|www\.)\S+"),
        ("<email>", r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
        ("<percent>", _NUMBER + "%"),
        ("<money>", rf"[$€£¢]{_NUMBER}(?:[kmb]n?)?|{_NUMBER}[$€£¢]"),
        ("<phone>", r"\(?\d{3}\)?[.-]?\d{3}[.-]?\d{4}"),
        ("<user>", r"@\w+"),
        ("<time>", r"\d{1,2}:\d{2}(?::\d{2})?(?:[ap]m)?|\d{1,2}[ap]m"),
        ("<date>", rf"\d{{1,4}}([/.-])\d{{1,2}}\1\d{{2,4}}|\d{{1,2}}{_MONTH}(?:\d{{2,4}})?"),
        ("<number>", _NUMBER),
    )
)
_ELONGATED = re.compile(r"[a-z]*([a-z])\1\1[a-z]*")
_TAG = re.compile(r"</?\w+>")
# Whole words first, then endings.
_CONTRACTIONS = {"can't": "can not", "won't": "will not", "shan't": "shall not", "let's": "let us", "y'all": "you all"}
_ENDINGS = {"n't": " not", "'re": " are", "'ve": " have", "'ll": " will", "'m": " am"}


def _tagged(word: str) -> str:
    """The tag of what the word looks like, or the word."""
    return next((tag for tag, pattern in _TAGS if pattern.fullmatch(word)), word)


def _unpacked(word: str) -> str:
    """A contraction in full; another word with an apostrophe is cut there."""
    word = re.sub("(?<=[a-z])’(?=[a-z])", "'", word)
    if word in _CONTRACTIONS:
        return _CONTRACTIONS[word]
    ending = next((ending for ending in _ENDINGS if word.endswith(ending) and word != ending), "")
    if ending:
        return word.removesuffix(ending) + _ENDINGS[ending]
    return word.replace("'", " ' ")


def _shortened(word: str) -> str:
    """A word of letters of which one comes more than twice in a row: twice is kept."""
    return re.sub(r"(.)\1{2,}", r"\1\1", word) if _ELONGATED.fullmatch(word) else word


def clean(word: str) -> tuple[str, ...]:
    """The words that the published cleaning makes of one word of a post: usually one, none where it is dropped.

    Args:
        word: one word, without spaces.
    """
    # No tag fits a word of letters alone.
    if not word.isalpha() and not _TAG.fullmatch(word):
        word = _tagged(html.unescape(word))
    if not _TAG.fullmatch(word):
        word = _unpacked(_shortened(word.lower().removeprefix("#")))
    kept = " ".join(part for part in word.split() if part not in DROPPED)
    return tuple(re.sub("[<>*]", " ", kept).split())

"""How right an answer is: exact match and F1 of SQuAD's official evaluation, against one reference or the best of several.

As in the official script for version 2.0, which on answers that are not empty once normalized is that of version 1.1. (There
F1 of two empty answers is 0; here it is 1, as their exact match is in both.)
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

from qkdyn.errors import reject

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str, *, articles_first: bool = False) -> str:
    """Lower case without punctuation (ASCII's), articles and extra white space.

    Args:
        text: an answer.
        articles_first: drop articles before punctuation, as the published notebooks do: an article beside a hyphen or a dot
            goes too ("the-end" is "end", officially "theend"), one that punctuation had split stays.
    """
    text = text.lower()
    if articles_first:
        return " ".join(_ARTICLES.sub(" ", text).translate(_PUNCTUATION).split())
    return " ".join(_ARTICLES.sub(" ", text.translate(_PUNCTUATION)).split())


def exact_match(answer: str, references: Sequence[str], *, articles_first: bool = False) -> float:
    """1 where the normalized answer is one of the normalized references, else 0.

    Args:
        answer: what was answered.
        references: right answers; give only the first for the published measure, all of them for the official one.
        articles_first: as for `normalize`.

    Raises:
        InputError: no references, or a single string.
    """
    found = normalize(answer, articles_first=articles_first)
    return float(any(found == normalize(one, articles_first=articles_first) for one in _checked(references)))


def f1(answer: str, references: Sequence[str], *, articles_first: bool = False) -> float:
    """F1 of the words of answer and reference as bags, the largest over the references; arguments as for `exact_match`.

    2 c / (n + m) for n and m words of which c are common. Where one of the two has no words it is 1 if neither has, else 0.
    """
    words = Counter(normalize(answer, articles_first=articles_first).split())
    return max(
        _f1(words, Counter(normalize(one, articles_first=articles_first).split())) for one in _checked(references)
    )


def _f1(left: Counter[str], right: Counter[str]) -> float:
    total = left.total() + right.total()
    return 2 * (left & right).total() / total if total else 1.0


def _checked(references: Sequence[str]) -> Sequence[str]:
    if isinstance(references, str) or not len(references):
        reject("references", references, "a list of at least one right answer", "for one, write [answer]")
    return references

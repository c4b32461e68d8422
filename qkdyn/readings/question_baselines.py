"""What questions get without learning: a frequent answer, a sentence, words near those of the question, the middle of the text.

Each rule sees what the model sees, the text of its prompt, and not the paragraph that it was cut from.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from qkdyn.readings.questions import scores
from qkdyn.text.answers import normalize
from qkdyn.text.prompts import CUE, Prompts, written
from qkdyn.text.vocabulary import Vocabulary
from qkdyn.text.windows import AROUND

# Words of an answer, at most and where its end is not known; how far from it a word of the question counts.
LONGEST, FEW, NEAR = 3, 2, 10
_SENTENCE = re.compile(r"[.!?](?=\s)")
_LAST = (".", "!", "?", '"', ")")


def baselines(prompts: Prompts, vocabulary: Vocabulary, learned: Sequence[str] = ()) -> dict[str, dict[str, float]]:
    """Means of F1 and exact match over the questions, as `qkdyn.readings.questions.read` has them, by each rule.

    Args:
        prompts: the questions.
        vocabulary: that they are encoded by.
        learned: answers of the questions that are trained on; without them there is no most frequent one.

    Returns:
        f1_first, em_first, f1 and em of "frequent", the answer that is most frequent in training; "sentence", the first of
        the text; "nearest", see `nearest`; "middle", see `middle`.
    """
    texts = [
        _parts(written(vocabulary, row[:length].tolist()))
        for row, length in zip(prompts.prompt, prompts.prompt_length, strict=True)
    ]
    rules: dict[str, Callable[[str, str], str]] = {"sentence": first_sentence, "nearest": nearest, "middle": middle}
    answers = {name: [rule(*text) for text in texts] for name, rule in rules.items()}
    if learned:
        answers["frequent"] = [most_frequent(learned)] * len(texts)
    return {
        name: {measure: float(np.mean(values)) for measure, values in scores(found, prompts.references).items()}
        for name, found in answers.items()
    }


def _parts(text: str) -> tuple[str, str]:
    """Question and context of a prompt."""
    question, _, context = text.removeprefix("Q: ").partition(" C: ")
    return question, context.removesuffix(CUE)


def most_frequent(answers: Sequence[str]) -> str:
    """The most frequent answer once normalized; of equals the first by alphabet."""
    counts = Counter(map(normalize, answers))
    return min(counts, key=lambda answer: (-counts[answer], answer))


def first_sentence(question: str, context: str) -> str:
    """The text up to the first full stop, exclamation or question mark before a space."""
    return _SENTENCE.split(context, maxsplit=1)[0]


def nearest(question: str, context: str) -> str:
    """Up to three words in a row that the question lacks, beside which most of its words stand.

    Each word of the question counts once, by how near its nearest place is: 1 beside them, 0 from ten words on. Of equally
    good places, the one with most words, then the first.
    """
    asked = set(normalize(question).split())
    words = [(word, normalize(word)) for word in context.split()]
    at: dict[str, list[int]] = {}
    for place, (_, word) in enumerate(words):
        if word in asked:
            at.setdefault(word, []).append(place)
    best, chosen = (0.0, 0), (0, 0)
    for start in range(len(words)):
        for end in range(start + 1, min(start + LONGEST, len(words)) + 1):
            if words[end - 1][1] in asked or not words[end - 1][1]:
                break
            closest = (min(max(start - i, i - end + 1) for i in places) for places in at.values())
            score = (sum(max(0.0, 1 - (gap - 1) / NEAR) for gap in closest), end - start)
            if score > best:
                best, chosen = score, (start, end)
    return " ".join(word for word, _ in words[slice(*chosen)])


def middle(question: str, context: str) -> str:
    """What stands as many characters from both ends as a published window shows around an answer: what centring gives away.

    Where the paragraph has them, this is the answer itself, and nobody has read a word. Of a shorter text, one of whose ends is
    the paragraph's: two words from there on if it ends with a sentence, else two words up to there.
    """
    if len(context) > 2 * AROUND:
        return context[AROUND:-AROUND]
    if context.endswith(_LAST) and len(context) > AROUND:
        return " ".join(context[AROUND:].split()[:FEW])
    return " ".join(context[: max(0, len(context) - AROUND)].split()[-FEW:])

"""Which part of a paragraph a question is asked of: around its answer, at a random place that holds it, or chosen without it.

Published contexts are the 200 characters on both sides of the answer, in training and evaluation alike: the answer begins at
character 200 unless the paragraph does, and can be found without reading. Instead, all windows may be of one size, and

- training sees the answer at a random place of its window ("random"), uniform over the places that the paragraph allows;
- evaluation sees a window chosen by the words of the question alone ("question"), which may miss the answer: that is counted,
  and such a question is answered wrongly, as it would be of any reader that sees a part of the text. Measured on 600 questions
  of the dev file, a window of 400, 600 or 800 characters holds the answer in 86, 90 and 96 % (the paragraph's first as many
  characters: 67, 85 and 93 %).

A paragraph that fits is taken as it is; windows of longer ones end at whole words.
"""

import re
import zlib

import numpy as np

from qkdyn.errors import check_count, reject

CHOICES = ("centred", "random", "question")
# Characters on either side of a published context's answer.
AROUND = 200
_WORD = re.compile(r"\w+")


def window(
    context: str, question: str, start: int, end: int, *, choice: str, size: int = 0, seed: int = 0, identity: str = ""
) -> tuple[int, int]:
    """First character of the part of a paragraph that is shown, and the one after its last.

    Args:
        context: the paragraph.
        question: what is asked.
        start: first character of the answer; "question" ignores it.
        end: the character after the answer; "question" ignores it.
        choice: "centred", as published; "random"; or "question".
        size: most characters of the last two. An answer that is longer is shown alone by "random".
        seed: of the random places, which are a pure function of it and of `identity`.
        identity: the question's.

    Raises:
        InputError: another choice, no size where one is needed, a seed below 0, an answer that is not in the paragraph.
    """
    if choice not in CHOICES:
        reject("window", choice, "one of " + ", ".join(CHOICES))
    if choice != "question" and not 0 <= start < end <= len(context):
        reject(
            "start and end of the answer", (start, end), f"rising, from 0 to the paragraph's {len(context)} characters"
        )
    if choice == "centred":
        return max(0, start - AROUND), min(len(context), end + AROUND)
    size = check_count("size", size, do="give the characters of a window")
    if len(context) <= size:
        return 0, len(context)
    if choice == "question":
        return _by_question(context, question, size)
    first, last = max(0, end - size), min(start, len(context) - size)
    if first > last:
        return start, end
    words = (check_count("seed", seed, minimum=0), zlib.crc32(identity.encode()))
    low = int(np.random.Generator(np.random.PCG64(np.random.SeedSequence(words))).integers(first, last + 1))
    return _whole_words(context, low, low + size, start, end)


def _whole_words(context: str, low: int, high: int, start: int, end: int) -> tuple[int, int]:
    """The window without the words that it cuts and the space around the rest; the answer stays."""
    first, last = low, high
    while first < start and (context[first].isspace() or (first and not context[first - 1].isspace())):
        first += 1
    while last > end and (context[last - 1].isspace() or (last < len(context) and not context[last].isspace())):
        last -= 1
    # One word that fills the window stays cut.
    return (first, last) if first < last else (low, high)


def _by_question(context: str, question: str, size: int) -> tuple[int, int]:
    """The window with most of the question's words, each counted once; of equals, the one in whose middle they lie."""
    asked = {word.lower() for word in _WORD.findall(question)}
    hits = [(found.group().lower(), found.start(), found.end()) for found in _WORD.finditer(context)]
    hits = [hit for hit in hits if hit[0] in asked]
    best, chosen = (0, 0.0), 0
    lows = [found.start() for found in re.finditer(r"\S+", context)]
    for low in sorted({min(low, len(context) - size) for low in lows}):
        inside = [(word, at) for word, at, to in hits if at >= low and to <= low + size]
        if inside:
            off = abs(sum(at for _, at in inside) / len(inside) - (low + size / 2))
            score = (len({word for word, _ in inside}), -off)
            if score > best:
                best, chosen = score, low
    return _whole_words(context, chosen, chosen + size, len(context), 0)

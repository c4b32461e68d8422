"""Questions as token ids for a model that writes the answer: `Q: {question} C: {context} A:`, then ` {answer}` and the end.

Byte-level pairs (`qkdyn.text.vocabulary.byte_bpe`); the end of an answer is the padding's id, as published. The last token of
an answer needs no slot: what follows it is only read as a label.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32

from qkdyn.errors import check_count, reject
from qkdyn.text.encoded import MULTIPLE
from qkdyn.text.squad import Question
from qkdyn.text.vocabulary import Vocabulary
from qkdyn.text.windows import window

# Most tokens of an answer without its end; what n_ctx leaves for the prompt is two less, as published.
ANSWER = 50
CUE = " A:"


@dataclass(frozen=True)
class LeftOut:
    """Questions that are not among the prompts, and what was cut of those that are.

    Attributes:
        unanswerable: ids of questions without an answer (SQuAD 2.0).
        mismatched: ids of questions whose first answer is blank, or does not stand at its place in the context.
        too_long: ids of questions that leave no room for a context.
        cut: prompts that were cut.
        answers_cut: answers that were cut.
        outside: prompts that do not show the whole answer.
        references: ids of questions of which another answer than the first is blank or not at its place, which is left out.
    """

    unanswerable: tuple[str, ...]
    mismatched: tuple[str, ...]
    too_long: tuple[str, ...]
    cut: int
    answers_cut: int
    outside: int
    references: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """One line for each kind that occurred, to be shown."""
        told = [
            (self.unanswerable, "without an answer, left out"),
            (self.mismatched, "whose first answer is not at its place in the context, left out"),
            (self.too_long, "that leave no room for a context, left out"),
            (self.references, "with a further answer that is not at its place in the context, which is no reference"),
        ]
        lines = [
            f"{len(ids):,} questions {what}: {', '.join(ids[:3])}{', ...' * (len(ids) > 3)}"
            for ids, what in told
            if ids
        ]
        counts = [
            (self.cut, "prompts cut to their room"),
            (self.answers_cut, f"answers cut to {ANSWER} tokens"),
            (self.outside, "prompts that do not show the whole answer"),
        ]
        return lines + [f"{count:,} {what}" for count, what in counts if count]


@dataclass(frozen=True)
class Prompts:
    """N questions in numpy, padded on the right with `pad`, in the order given.

    Attributes:
        ids: of the questions.
        references: texts of all answers of each, the one trained on first.
        prompt: (N, P) token ids.
        prompt_length: (N,).
        answer: (N, A), ` {answer}` and its end.
        answer_length: (N,), the end counted.
        unspaced: (N, U), the answer without the space before it and without an end: what the published notebooks read
            probabilities of, though the model never learned to write it.
        unspaced_length: (N,).
        relevant: (N, P), tokens of the prompt that overlap the answer's place in the context.
        shown: (N,), the prompt shows the whole answer.
        pad: id that fills the slots, and ends an answer.
        n_ctx: most tokens of prompt and answer together.
        left_out: what is missing.
    """

    ids: tuple[str, ...]
    references: tuple[tuple[str, ...], ...]
    prompt: Int32[np.ndarray, "N P"]
    prompt_length: Int32[np.ndarray, "N"]
    answer: Int32[np.ndarray, "N A"]
    answer_length: Int32[np.ndarray, "N"]
    unspaced: Int32[np.ndarray, "N U"]
    unspaced_length: Int32[np.ndarray, "N"]
    relevant: Bool[np.ndarray, "N P"]
    shown: Bool[np.ndarray, "N"]
    pad: int
    n_ctx: int
    left_out: LeftOut

    @property
    def length(self) -> Int32[np.ndarray, "N"]:
        """Slots that training needs of each question, (N,): prompt and answer without its end. For `epoch_plan`."""
        return self.prompt_length + self.answer_length - 1


class _Prompt(NamedTuple):
    """One prompt, and whether it was cut and shows the whole answer."""

    ids: Sequence[int]
    relevant: Bool[np.ndarray, "n"]
    cut: bool
    whole: bool


def spans(vocabulary: Vocabulary, text: str, ids: Sequence[int]) -> Int[np.ndarray, "n 2"]:
    """First character of each token of a text, and the one after its last; a space before a word is its token's.

    A symbol of a byte-level vocabulary has one letter for each byte. Tokens that share a character both have it.
    """
    size = np.array([len(vocabulary.symbols[id_]) for id_ in ids], np.int64)
    to = size.cumsum()
    character = np.repeat(np.arange(len(text)), [len(letter.encode()) for letter in text])
    if size.sum() != len(character):
        reject("vocabulary", vocabulary, "byte-level, so that tokens spell the text", "see byte_bpe")
    return np.stack([character[to - size], character[to - 1] + 1], 1)


def written(vocabulary: Vocabulary, ids: Sequence[int]) -> str:
    """The text that the tokens of an answer spell, without the space around it; bytes that are no text become U+FFFD."""
    from tokenizers.decoders import ByteLevel

    return ByteLevel().decode([vocabulary.symbols[id_] for id_ in ids]).strip()


def askable(questions: Sequence[Question]) -> tuple[tuple[Question, ...], LeftOut]:
    """Questions whose first answer stands at its place in the context, with those of their answers that do; and the others."""
    kept, unanswerable, mismatched, references = [], [], [], []
    for one in questions:
        if not one.answers or one.impossible:
            unanswerable.append(one.id)
            continue
        there = tuple(
            each for each in one.answers if each.text.strip() and one.context.startswith(each.text, each.start)
        )
        if there[:1] != one.answers[:1]:
            mismatched.append(one.id)
            continue
        if len(there) < len(one.answers):
            references.append(one.id)
        kept.append(replace(one, answers=there))
    return tuple(kept), LeftOut(tuple(unanswerable), tuple(mismatched), (), 0, 0, 0, tuple(references))


def encode_prompts(
    questions: Sequence[Question],
    vocabulary: Vocabulary,
    *,
    n_ctx: int = 256,
    windows: str = "centred",
    size: int = 0,
    seed: int = 0,
    keep_cue: bool = True,
    every_occurrence: bool = False,
    called: str = "questions",
) -> Prompts:
    """Prompts and answers of all questions that have one; the first answer is the one that is trained on and marked.

    Args:
        questions: as `read_squad` gives them.
        vocabulary: byte-level pairs.
        n_ctx: tokens of prompt and answer: n_ctx - 52 at most for the prompt, 50 for the answer, one for its end.
        windows: which part of the paragraph is shown: "centred" as published, "random" to train without, "question" to
            evaluate without knowing the answer; see `qkdyn.text.windows`.
        size: most characters of a window that is not centred.
        seed: of random windows.
        keep_cue: cut a prompt that is too long at the end of its context, so that `A:` stays; False cuts the end of the
            prompt, as published.
        every_occurrence: mark all places of the context that read like the answer, not only the annotated one.
        called: what messages call the questions, such as where they are from.

    Raises:
        InputError: nothing left to encode; sizes or choices that are not allowed.
    """
    room = check_count("n_ctx", n_ctx, minimum=ANSWER + 2 + MULTIPLE) - ANSWER - 2
    asked, left_out = askable(questions)
    kept: list[tuple[Question, _Prompt]] = []
    too_long = []
    for one in asked:
        first = one.answers[0]
        end = first.start + len(first.text)
        shown = window(
            one.context, one.question, first.start, end, choice=windows, size=size, seed=seed, identity=one.id
        )
        prompt = _prompt(one, shown, vocabulary, room, keep_cue, every_occurrence)
        if prompt is None:
            too_long.append(one.id)
        else:
            kept.append((one, prompt))
    if not kept:
        found = (
            f"{len(questions)} questions, {len(asked)} with an answer at its place, {len(too_long)} of these too long"
        )
        allowed = f"some with an answer, which with Q:, C: and A: leave room for a context in {room} tokens"
        reject(called, found, allowed, "take shorter questions, or a larger n_ctx" if too_long else "")
    prompts = [prompt for _, prompt in kept]
    texts = [one.answers[0].text for one, _ in kept]
    answers = [vocabulary.split(" " + text) for text in texts]
    tokens, lengths = _stacked([prompt.ids for prompt in prompts], vocabulary.pad)
    answer, answer_length = _stacked([[*ids[:ANSWER], vocabulary.pad] for ids in answers], vocabulary.pad)
    unspaced, unspaced_length = _stacked([vocabulary.split(text)[:ANSWER] for text in texts], vocabulary.pad)
    relevant = np.zeros(tokens.shape, bool)
    for row, prompt in zip(relevant, prompts, strict=True):
        row[: len(prompt.ids)] = prompt.relevant
    return Prompts(
        ids=tuple(one.id for one, _ in kept),
        references=tuple(tuple(answer.text for answer in one.answers) for one, _ in kept),
        prompt=tokens,
        prompt_length=lengths,
        answer=answer,
        answer_length=answer_length,
        unspaced=unspaced,
        unspaced_length=unspaced_length,
        relevant=relevant,
        shown=np.array([prompt.whole for prompt in prompts]),
        pad=vocabulary.pad,
        n_ctx=n_ctx,
        left_out=replace(
            left_out,
            too_long=tuple(too_long),
            cut=sum(prompt.cut for prompt in prompts),
            answers_cut=sum(len(ids) > ANSWER for ids in answers),
            outside=sum(not prompt.whole for prompt in prompts),
        ),
    )


def _prompt(
    one: Question, shown: tuple[int, int], vocabulary: Vocabulary, room: int, keep_cue: bool, every_occurrence: bool
) -> _Prompt | None:
    """One prompt of at most `room` tokens; None where the question alone fills it."""
    low, high = shown
    head = f"Q: {one.question} C: "
    body = head + one.context[low:high]
    text = body + CUE
    ids = vocabulary.split(text)
    place = spans(vocabulary, text, ids)
    cue = int((place[:, 0] >= len(body)).sum())
    if int((place[:, 0] < len(head)).sum()) + cue >= room:
        return None
    if cut := len(ids) > room:
        keep = np.r_[: room - cue, len(ids) - cue : len(ids)] if keep_cue else np.arange(room)
        ids, place = np.asarray(ids)[keep].tolist(), place[keep]
    answer = one.answers[0]
    shift = len(head) - low
    at = answer.start + shift
    marked = _overlap(place, at, at + len(answer.text))
    covered = place[marked]
    whole = answer.start >= low and answer.start + len(answer.text) <= high
    whole = whole and len(covered) > 0 and int(covered[-1, 1]) >= at + len(answer.text)
    # Not in the window: no token is the answer's, whatever stands at that distance.
    marked &= (place[:, 0] < len(body)) & (place[:, 1] > len(head))
    if every_occurrence:
        found = text.find(answer.text, len(head), len(body))
        while found >= 0:
            marked |= _overlap(place, found, found + len(answer.text))
            found = text.find(answer.text, found + 1, len(body))
    return _Prompt(ids, marked, cut, whole)


def _overlap(place: Int[np.ndarray, "n 2"], start: int, end: int) -> Bool[np.ndarray, "n"]:
    return (place[:, 0] < end) & (place[:, 1] > start)


def _stacked(rows: Sequence[Sequence[int]], pad: int) -> tuple[Int32[np.ndarray, "N T"], Int32[np.ndarray, "N"]]:
    """Rows padded to the longest, in a multiple of 8 slots; and their lengths."""
    length = np.array([len(row) for row in rows], np.int32)
    stacked = np.full((len(rows), -(-int(length.max()) // MULTIPLE) * MULTIPLE), pad, np.int32)
    for slots, row in zip(stacked, rows, strict=True):
        slots[: len(row)] = row
    return stacked, length

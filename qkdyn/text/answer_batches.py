"""Prompts with their answers as training reads them: one list of labels for a batch, so that no head is computed in vain."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int, Int32

from qkdyn.errors import reject
from qkdyn.text.prompts import Prompts


class AnswerBatch(NamedTuple):
    """Prompts with their answers, as training reads them; B posts of T slots, L labelled positions.

    Attributes:
        tokens: (B, T).
        length: (B,), prompt and answer without its end; 1 where there is no question.
        queries: (B, A), positions whose next token is part of the answer; where an answer has fewer, its last one again.
        row: (L,), which of the B * A queries a label is for.
        label: (L,), the token that follows.
        weight: (L,), 1, or 0 for no label.
    """

    tokens: Int32[np.ndarray, "B T"]
    length: Int32[np.ndarray, "B"]
    queries: Int32[np.ndarray, "B A"]
    row: Int32[np.ndarray, "L"]
    label: Int32[np.ndarray, "L"]
    weight: Float32[np.ndarray, "L"]


def most_labels(prompts: Prompts, posts: Int[np.ndarray, "steps B"], multiple: int = 32) -> int:
    """Labels of the batch that has most, rounded up: L for `answer_batch`, so that one program serves all batches."""
    count = np.where(posts >= 0, prompts.answer_length[posts], 0).sum(1)
    return -(-int(count.max()) // multiple) * multiple


def answer_batch(
    prompts: Prompts, posts: Int[np.ndarray, "B"], width: int, *, labels: int, unspaced: bool = False
) -> AnswerBatch:
    """The batch of some questions.

    Args:
        prompts: all questions.
        posts: indices of those in the batch, -1 for none: a row of `epoch_plan` on `prompts.length`.
        width: slots T, at least the longest of them.
        labels: room for labels L, see `most_labels`.
        unspaced: the answer without the space before it and without its end, see `Prompts`.

    Raises:
        InputError: a width or a number of labels that does not hold the batch.
    """
    answer, count = (prompts.unspaced, prompts.unspaced_length) if unspaced else (prompts.answer, prompts.answer_length)
    there = posts >= 0
    start = np.where(there, prompts.prompt_length[posts], 1)
    count = np.where(there, count[posts], 0)
    length = start + np.maximum(count - 1, 0)
    if length.max() > width:
        reject("width", width, f"at least {int(length.max())}, the slots of the longest question of the batch")
    if count.sum() > labels:
        reject("labels", labels, f"at least {int(count.sum())}, the labels of the batch", "see most_labels")
    slot = np.arange(width)
    tokens = np.full((len(posts), width), prompts.pad, np.int32)
    in_prompt = there[:, None] & (slot < start[:, None])
    b, t = np.nonzero(in_prompt)
    tokens[b, t] = prompts.prompt[posts[b], t]
    b, t = np.nonzero((slot >= start[:, None]) & (slot < length[:, None]))
    tokens[b, t] = answer[posts[b], t - start[b]]
    place = np.arange(answer.shape[1])
    queries = start[:, None] - 1 + np.minimum(place, np.maximum(count - 1, 0)[:, None])
    b, a = np.nonzero(place < count[:, None])
    row, label, weight = np.zeros(labels, np.int32), np.zeros(labels, np.int32), np.zeros(labels, np.float32)
    row[: len(b)], label[: len(b)], weight[: len(b)] = b * answer.shape[1] + a, answer[posts[b], a], 1
    return AnswerBatch(tokens, length.astype(np.int32), queries.astype(np.int32), row, label, weight)

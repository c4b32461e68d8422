"""An epoch of questions with their answers, as the engine of language models reads them: few shapes, micro-batches."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from qkdyn.errors import reject
from qkdyn.text.answer_batches import AnswerBatch, answer_batch
from qkdyn.text.batches import bucket_widths, epoch_plan
from qkdyn.text.prompts import Prompts

# Deviations of the labels of a batch from their mean that a shape provides for; batches with more take a larger one.
DEVIATIONS = 3
# Share of the questions whose answers are no longer than all shapes but the largest hold.
SHORT = 0.9


class Shape(NamedTuple):
    """The room of one kind of micro-batch, compiled once.

    Attributes:
        slots: tokens of a question with its answer, T.
        answers: labelled positions of a question, A.
        labels: of the whole micro-batch, L.
    """

    slots: int
    answers: int
    labels: int


class Batches(NamedTuple):
    """Updates of an epoch.

    Attributes:
        posts: leaves (updates, micro, ...) of `AnswerBatch`, in the room of the largest shape.
        shape: (updates,), which shape holds the update's micro-batches.
    """

    posts: AnswerBatch
    shape: Any


def batch_shapes(prompts: Prompts, batch: int, count: int = 4) -> tuple[Shape, ...]:
    """The shapes for micro-batches of some questions, from narrow to wide; the last holds any of them.

    Args:
        prompts: all questions.
        batch: questions of a micro-batch, B.
        count: most shapes.
    """
    answers, slots = prompts.answer_length.astype(np.int64), prompts.length
    largest = Shape(_up(int(slots.max()), 8), prompts.answer.shape[1], _up(int(np.sort(answers)[-batch:].sum()), batch))
    short = min(_up(int(np.quantile(answers, SHORT, method="higher")), 8), largest.answers)
    if count < 2:
        return (largest,)
    shapes, below = [], 0
    for width in bucket_widths(slots[answers <= short], count - 1):
        own = answers[(answers <= short) & (slots > below) & (slots <= width)]
        labels = batch * own.mean() + DEVIATIONS * own.std() * batch**0.5
        shapes.append(Shape(width, short, min(_up(int(labels), batch), largest.labels)))
        below = width
    return (*shapes, largest)


def updates_of(questions: int, batch: int, micro: int) -> int:
    """Updates of an epoch: micro-batches that are left over at its end, too few for one, are dropped as published."""
    return -(-questions // batch) // micro


def epoch_batches(
    prompts: Prompts, shapes: Sequence[Shape], *, seed: int, epoch: int, batch: int, micro: int, by_length: bool = True
) -> Batches:
    """All updates of an epoch, a pure function of the arguments.

    Args:
        prompts: all questions.
        shapes: see `batch_shapes`.
        seed: of the order.
        epoch: from 0.
        batch: questions of a micro-batch.
        micro: micro-batches of an update.
        by_length: updates of questions that fit one shape; else of any, and each takes the narrowest that holds it.

    Raises:
        InputError: fewer questions than an update needs.
    """
    count = len(prompts.ids)
    if not updates_of(count, batch, micro):
        reject(
            "batch", batch, f"such that {micro} micro-batches are not more than {count} questions", "take a smaller one"
        )
    room = np.array([shape[:2] for shape in shapes])
    need = np.stack([prompts.length, prompts.answer_length], 1)
    kind = np.logical_and.reduce(need[:, None] <= room, 2).argmax(1) + 1
    plan = epoch_plan(
        kind, batch=batch * micro, widths=range(1, len(shapes) + 1), seed=seed, epoch=epoch, by_length=by_length
    )
    posts = plan.posts.reshape(-1, micro, batch)
    # An update without questions for each of its micro-batches: at most one, which the published code drops.
    whole = (posts[:, -1] >= 0).any(1)
    posts, kind = posts[whole], plan.width[whole] - 1
    labels = np.where(posts >= 0, prompts.answer_length[posts], 0).sum(2).max(1)
    fits = (np.arange(len(shapes)) >= kind[:, None]) & (np.array([shape.labels for shape in shapes]) >= labels[:, None])
    kind = fits.argmax(1)
    last = shapes[-1]
    each = [answer_batch(prompts, one, last.slots, labels=last.labels) for update in posts for one in update]
    stacked = (np.stack(leaves).reshape(-1, micro, *leaves[0].shape) for leaves in zip(*each, strict=True))
    return Batches(AnswerBatch(*stacked), kind.astype(np.int32))


def cut(batches: Batches, start: int, count: int, size: int) -> Batches:
    """Updates from `start`, `count` of them, filled up to `size` by repeating the last: one program serves all chunks."""
    rows = np.minimum(np.arange(start, start + size), start + count - 1)
    return Batches(AnswerBatch(*(leaf[rows] for leaf in batches.posts)), batches.shape[rows])


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple

"""Shapes and batches of questions: every question once, in room that holds it and no more than that."""

import numpy as np
import pytest
from made_language import made_prompts

from qkdyn.errors import InputError
from qkdyn.text.answer_batches import answer_batch
from qkdyn.train.language_batches import Shape, batch_shapes, cut, epoch_batches, updates_of

PROMPTS = made_prompts(150)
B, MICRO = 4, 2


def posts_of(prompts, batches):
    """Which question each row is, by its tokens: all are different."""
    known = {(tuple(p[:n]), tuple(a[:m])): i for i, (p, n, a, m) in enumerate(_rows(prompts))}
    found = []
    for update in range(len(batches.shape)):
        for micro in range(MICRO):
            one = type(batches.posts)(*(leaf[update, micro] for leaf in batches.posts))
            labels = {b: one.label[(one.row // one.queries.shape[1] == b) & (one.weight > 0)] for b in range(B)}
            for b in range(B):
                if len(labels[b]):
                    prompt = tuple(one.tokens[b, : one.length[b] - len(labels[b]) + 1])
                    found.append((update, known[prompt, tuple(labels[b])]))
    return found


def _rows(prompts):
    return zip(prompts.prompt, prompts.prompt_length, prompts.answer, prompts.answer_length, strict=True)


def test_shapes_hold_all_and_grow():
    shapes = batch_shapes(PROMPTS, B, 4)
    assert len(shapes) == 3 and shapes[-1] == Shape(16, 8, 4 * 6)
    assert all((np.diff([shape[i] for shape in shapes]) >= 0).all() for i in range(3))
    assert all(shape.labels % B == 0 for shape in shapes)
    assert batch_shapes(PROMPTS, B, 1) == shapes[-1:]


@pytest.mark.parametrize("by_length", [True, False])
def test_an_epoch_has_every_question_once_in_the_narrowest_room(by_length):
    shapes = (Shape(8, 4, 8), Shape(8, 4, 12), Shape(16, 8, 24))
    batches = epoch_batches(PROMPTS, shapes, seed=3, epoch=1, batch=B, micro=MICRO, by_length=by_length)
    found = posts_of(PROMPTS, batches)
    # 150 questions are 37 micro-batches and a half: 19 updates.
    assert (
        sorted(post for _, post in found) == list(range(150)) and len(batches.shape) == updates_of(150, B, MICRO) == 19
    )
    assert not by_length or set(batches.shape) == {0, 1, 2}
    for update, kind in enumerate(batches.shape):
        own = [post for u, post in found if u == update]
        labels = batches.posts.weight[update].sum(1).max()
        need = np.array([PROMPTS.length[own].max(), PROMPTS.answer_length[own].max(), labels])
        assert kind == next(k for k, shape in enumerate(shapes) if (need <= shape).all())
        assert batches.posts.length[update].max() == need[0]
    again, later = (
        epoch_batches(PROMPTS, shapes, seed=3, epoch=epoch, batch=B, micro=MICRO, by_length=by_length).posts.tokens
        for epoch in (1, 2)
    )
    assert (again == batches.posts.tokens).all() and not (later == batches.posts.tokens).all()


@pytest.mark.parametrize(("questions", "updates", "left"), [(27, 3, 3), (24, 3, 0), (29, 4, 0)])
def test_an_odd_micro_batch_is_dropped(questions, updates, left):
    prompts = made_prompts(questions)
    shapes = batch_shapes(prompts, B)
    batches = epoch_batches(prompts, shapes, seed=0, epoch=0, batch=B, micro=MICRO)
    assert len(batches.shape) == updates == updates_of(questions, B, MICRO)
    assert len({post for _, post in posts_of(prompts, batches)}) == questions - left


def test_micro_batches_are_answer_batches_in_the_last_shapes_room():
    prompts, shapes = PROMPTS, batch_shapes(PROMPTS, B)
    batches = epoch_batches(prompts, shapes, seed=0, epoch=0, batch=B, micro=MICRO)
    update, post = posts_of(prompts, batches)[0]
    first = answer_batch(prompts, np.array([post]), 16, labels=24)
    assert (batches.posts.tokens[update, 0, 0] == first.tokens[0]).all()
    assert batches.posts.label.shape == (19, MICRO, 24)
    chunk = cut(batches, 17, 2, 4)
    assert (chunk.shape == batches.shape[[17, 18, 18, 18]]).all()
    assert (chunk.posts.row == batches.posts.row[[17, 18, 18, 18]]).all()


def test_too_few_questions_are_refused():
    with pytest.raises(
        InputError, match=r"batch must be such that 2 micro-batches .* not more than 27 questions, got 30"
    ):
        epoch_batches(made_prompts(), batch_shapes(made_prompts(), 30), seed=0, epoch=0, batch=30, micro=2)

"""What is measured of a language model on questions: its answers, their probability, where it looked, what deleting does.

Answers are written greedily. Attention is measured of the row that chooses each token, the end of the answer included, and
averaged over these steps. Comprehensiveness and sufficiency are the fall of a chosen token's probability when the most attended
tokens of the text so far - prompt and answer, every one of them eligible - are deleted, or they alone are left in their order;
positions are those of the shorter text, whose last token is the one that is read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax.sharding import Mesh

from qkdyn.errors import check_count, reject
from qkdyn.metrics import cores
from qkdyn.readings.question_passes import QuestionReading, devices, everywhere, force, likelihood, write
from qkdyn.readings.question_summary import summary
from qkdyn.text.answer_batches import answer_batch
from qkdyn.text.answers import exact_match, f1
from qkdyn.text.batches import bucket_widths, evaluation_plan
from qkdyn.text.encoded import MULTIPLE
from qkdyn.text.prompts import ANSWER, Prompts, written
from qkdyn.text.vocabulary import Vocabulary

__all__ = ["QuestionReading", "read", "scores", "summary"]

Found = dict[str, np.ndarray]


@dataclass(frozen=True)
class _Reader:
    """One model on some questions."""

    how: QuestionReading
    mesh: Mesh
    params: Any
    prompts: Prompts
    batch: int
    widths: tuple[int, ...]

    def with_room(self, more: int) -> int:
        """Slots for the longest text and more tokens."""
        return min(self.how.model.n_ctx, _rounded(self.widths[-1] + more))


def read(
    how: QuestionReading,
    params: Any,
    prompts: Prompts,
    vocabulary: Vocabulary,
    *,
    batch: int = 64,
    widths: Sequence[int] | None = None,
    faithful: bool = True,
) -> Found:
    """Measures of every question.

    Args:
        how: what is measured.
        params: of the model.
        prompts: N questions.
        vocabulary: that they are encoded by.
        batch: questions read together; bounds the memory.
        widths: slots of the batches, each compiled once: the same for all sets of questions save time. By default two.
        faithful: read comprehensiveness and sufficiency, which cost more than all else.

    Returns:
        By name, (N,) each: f1_first, em_first, of the answer against the first reference, normalized as published; f1, em,
        against the best of all, as official; loss, nats per token of the right answer and its end; probability, mean over
        the right answer's tokens, without its end; probability_unspaced, the same of the answer without the space before
        it, which is never learned but was published; mass of the rollout on the answer in the prompt, mass_layers of the
        layers' own attention, and entropy of the rollout in nats, means over steps; uniform_mass, uniform_mass_layers and
        uniform_entropy, the same if every head attended alike to all tokens before it; uniform_head_mass and
        uniform_head_entropy, of a head in the row that writes the first token; comprehensiveness, sufficiency; steps,
        tokens written and the end; shown, whether the prompt shows the answer. Of each head of each layer, (N, layers *
        heads): head_mass and head_entropy in that row. A question whose probabilities are not finite has NaN everywhere,
        and -1 steps.

    Raises:
        InputError: prompts that do not fit the model, or leave it no room to answer; a share that leaves nothing of one.
    """
    widths = _checked(how, prompts, vocabulary, batch, widths)
    mesh = devices()
    reader = _Reader(how, mesh, everywhere(mesh, params), prompts, batch + -batch % mesh.size, widths)
    answers = _written(reader)
    found = _right_answers(reader)
    texts = [
        written(vocabulary, row[:count].tolist())
        for row, count in zip(answers["tokens"], answers["count"], strict=True)
    ]
    found |= scores(texts, prompts.references)
    found |= {name: answers[name] for name in ("mass", "mass_layers", "entropy")}
    found |= _uniform(reader, answers["steps"])
    known = np.isfinite(found["loss"]) & np.isfinite(answers["chosen"]).all(1) & np.isfinite(found["mass"])
    if faithful:
        found |= _drops(reader, answers, known)
    for values in found.values():
        values[~known] = np.nan
    return found | {"steps": np.where(known, answers["steps"], -1), "shown": prompts.shown}


def _checked(
    how: QuestionReading, prompts: Prompts, vocabulary: Vocabulary, batch: int, widths: Sequence[int] | None
) -> tuple[int, ...]:
    check_count("batch", batch)
    model, longest, shortest = how.model, int(prompts.prompt_length.max()), int(prompts.prompt_length.min())
    if vocabulary.size != model.vocabulary:
        reject("the size of vocabulary", vocabulary.size, f"that of the model, {model.vocabulary}")
    room = model.n_ctx + 1 - max(how.most, int(max(prompts.answer_length.max(), prompts.unspaced_length.max())))
    if longest > room:
        reject("the longest of prompts", longest, f"at most {room} tokens, which leaves room to answer", "cut prompts")
    if how.kept(shortest) >= shortest:
        reject("share", how.share, f"such that something is left of {shortest} tokens, the shortest prompt")
    return bucket_widths(prompts.prompt_length, 2) if widths is None else tuple(widths)


def _rounded(length: int) -> int:
    return length + -length % MULTIPLE


def _by_batch(
    lengths: np.ndarray, batch: int, widths: tuple[int, ...], call: Callable[[np.ndarray, int], Any]
) -> Found:
    """`call(which, width)`, a named tuple of arrays, of every batch; each array put together in the order of `lengths`."""
    plan, found, waiting = evaluation_plan(lengths, batch=batch, widths=widths), {}, []

    def put(posts: np.ndarray, new: Any) -> None:
        there = posts >= 0
        for name, values in new._asdict().items():
            values = np.asarray(values)
            whole = found.setdefault(name, np.zeros((len(lengths), *values.shape[1:]), values.dtype))
            whole[posts[there]] = values[there]

    for posts, width in zip(plan.posts, plan.width, strict=True):
        # A batch is filled up with its first one.
        waiting.append((posts, call(np.where(posts >= 0, posts, posts[0]), int(width))))
        if len(waiting) > 1:
            put(*waiting.pop(0))
    for ready in waiting:
        put(*ready)
    return found


def _written(reader: _Reader) -> Found:
    """The answers that the model writes; see `Written`."""
    how, prompts = reader.how, reader.prompts
    top = int(how.kept(int(prompts.prompt_length.max()) + how.most - 1))

    def call(posts: np.ndarray, width: int) -> Any:
        tokens, relevant = (_slots(array[posts], width) for array in (prompts.prompt, prompts.relevant))
        return write(how, reader.mesh, prompts.pad, top, reader.params, tokens, prompts.prompt_length[posts], relevant)

    return _by_batch(prompts.prompt_length, reader.batch, reader.widths, call)


def _slots(rows: np.ndarray, width: int) -> np.ndarray:
    """Rows cut, or filled with zeros, to a width: what is cut is padding."""
    return np.pad(rows[:, :width], ((0, 0), (0, max(0, width - rows.shape[1]))))


def _right_answers(reader: _Reader) -> Found:
    """Loss and probability of the right answers, and the heads' rows where the first token is written."""
    prompts = reader.prompts
    found = _forced(reader, prompts)
    of_answer = np.arange(found["log_p"].shape[1]) < prompts.answer_length[:, None] - 1
    without_space = replace(prompts, answer=prompts.unspaced, answer_length=prompts.unspaced_length)
    log_p = _forced(reader, without_space)["log_p"]
    there = np.arange(log_p.shape[1]) < prompts.unspaced_length[:, None]
    return {
        "loss": -found["log_p"].sum(1) / prompts.answer_length,
        "probability": _mean(np.exp(found["log_p"]), of_answer),
        "probability_unspaced": _mean(np.exp(log_p), there),
        "head_mass": found["head_mass"],
        "head_entropy": found["head_entropy"],
    }


def _forced(reader: _Reader, prompts: Prompts) -> Found:
    """The model on prompts and right answers; see `Forced`."""
    # One number of slots for the answers of all sets of questions.
    most = _rounded(ANSWER + 1)
    prompts = replace(prompts, answer=_slots(prompts.answer, most))

    def call(posts: np.ndarray, width: int) -> Any:
        some = answer_batch(prompts, posts, width, labels=len(posts) * most)
        label, count = prompts.answer[posts], prompts.answer_length[posts]
        relevant = _slots(prompts.relevant[posts], width)
        model = reader.how.model
        return force(model, reader.mesh, reader.params, some.tokens, some.length, some.queries, label, count, relevant)

    return _by_batch(prompts.length, reader.batch, (*reader.widths[:-1], reader.with_room(most)), call)


def _mean(values: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Mean over the last axis of what is there."""
    return np.where(there, values, 0).sum(1) / there.sum(1)


def scores(answers: Sequence[str], references: Sequence[Sequence[str]]) -> Found:
    """How right answers are: f1_first, em_first, f1, em, as `read` has them, each (N,)."""
    found = [
        (
            f1(answer, every[:1], articles_first=True),
            exact_match(answer, every[:1], articles_first=True),
            f1(answer, every),
            exact_match(answer, every),
        )
        for answer, every in zip(answers, references, strict=True)
    ]
    return dict(zip(("f1_first", "em_first", "f1", "em"), np.array(found).T.copy(), strict=True))


def _steps(prompts: Prompts, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each step of each question: the question, the step's number, and the tokens before it."""
    question = np.repeat(np.arange(len(steps)), steps)
    step = np.arange(len(question)) - np.repeat(np.cumsum(steps) - steps, steps)
    return question, step, prompts.prompt_length[question] + step


def _uniform(reader: _Reader, steps: np.ndarray) -> Found:
    """What the attention of heads that attend alike to all tokens before them would be."""
    how, prompts = reader.how, reader.prompts
    question, _, length = _steps(prompts, steps)
    size = int(length.max())
    mixed = how.residual * np.tri(size) / np.arange(1, size + 1)[:, None] + (1 - how.residual) * np.eye(size)
    rolled = np.linalg.matrix_power(mixed, how.model.n_layers)
    relevant = _slots(prompts.relevant, size).astype(float)
    mass, marked = rolled @ relevant.T, relevant.sum(1)

    def mean(of_steps: np.ndarray) -> np.ndarray:
        return np.bincount(question, of_steps, len(steps)) / steps

    return {
        "uniform_mass": mean(mass[length - 1, question]),
        "uniform_mass_layers": mean(marked[question] / length),
        "uniform_entropy": mean(cores.entropy(np, rolled)[length - 1]),
        "uniform_head_mass": marked / prompts.prompt_length,
        "uniform_head_entropy": np.log(prompts.prompt_length),
    }


def _drops(reader: _Reader, answers: Found, known: np.ndarray) -> Found:
    """Comprehensiveness and sufficiency: means over steps; NaN of questions that are not known."""
    how, prompts, steps = reader.how, reader.prompts, np.where(known, answers["steps"], 0)
    nothing = np.full(len(steps), np.nan)
    question, step, length = _steps(prompts, steps)
    if not len(question):
        return {"comprehensiveness": nothing, "sufficiency": nothing.copy()}
    kept = how.kept(length)
    label, chosen = answers["tokens"][question, step], answers["chosen"][question, step]

    def drop(left: np.ndarray, widths: tuple[int, ...], batch: int, alone: bool) -> np.ndarray:
        def call(which: np.ndarray, width: int) -> Any:
            q, s = question[which], step[which]
            tokens = _cut_down(reader, answers, q, length[which], answers["top"][q, s], kept[which], alone, width)
            return likelihood(how.model, reader.mesh, reader.params, tokens, left[which], label[which])

        fall = chosen - _by_batch(left, batch, widths, call)["chance"]
        return np.bincount(question, fall, len(steps)) / np.where(known, steps, np.nan)

    # Answers of all lengths: the widths of the prompts, and one for the longest answers to the longest.
    widths = tuple(sorted({*reader.widths, reader.with_room(how.most)}))
    few = _rounded(answers["top"].shape[2])
    return {
        "comprehensiveness": drop(length - kept, widths, reader.batch, False),
        # Texts are short: more of them together.
        "sufficiency": drop(kept, (min(few, how.model.n_ctx),), 8 * reader.batch, True),
    }


def _cut_down(
    reader: _Reader,
    answers: Found,
    question: np.ndarray,
    length: np.ndarray,
    top: np.ndarray,
    kept: np.ndarray,
    alone: bool,
    width: int,
) -> np.ndarray:
    """Texts (B, width) of so many tokens of prompt and answer, without the first `kept` of `top`, or of these alone."""
    prompts = reader.prompts
    each, most = np.arange(len(question)), answers["tokens"].shape[1]
    text = np.full((len(question), prompts.prompt.shape[1] + most), prompts.pad, np.int32)
    text[:, : prompts.prompt.shape[1]] = prompts.prompt[question]
    after = prompts.prompt_length[question][:, None] + np.arange(most)
    text[each[:, None], after] = answers["tokens"][question]
    # One column more, for what is not among the first.
    chosen = np.zeros((len(text), text.shape[1] + 1), bool)
    chosen[each[:, None], np.where(np.arange(top.shape[1]) < kept[:, None], top, -1)] = True
    stays = (np.arange(text.shape[1]) < length[:, None]) & (chosen[:, :-1] == alone)
    row, column = np.nonzero(stays)
    out = np.full((len(text), width), prompts.pad, np.int32)
    out[row, stays.cumsum(1)[row, column] - 1] = text[row, column]
    return out

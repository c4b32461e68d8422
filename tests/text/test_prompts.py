"""Prompts spelled back to text, marks against the tokenizers library's offsets, batches against the records they are of."""

import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import bpe_entries, made_squad, write, write_data

from qkdyn.errors import InputError
from qkdyn.text.answer_batches import answer_batch, most_labels
from qkdyn.text.batches import bucket_widths, epoch_plan
from qkdyn.text.prompts import LeftOut, askable, encode_prompts, spans, written
from qkdyn.text.sources import find
from qkdyn.text.squad import Answer, Question, read_squad
from qkdyn.text.vocabulary import byte_bpe
from qkdyn.text.windows import window


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    folder = write_data(tmp_path_factory.mktemp("data"), 3, bpe=None) / "gpt2_bpe"
    return byte_bpe(folder / "encoder.json", folder / "vocab.bpe", expected=None)


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    return read_squad(write(tmp_path_factory.mktemp("squad") / "a.json", json.dumps(made_squad(20))))


@pytest.fixture(scope="module")
def library():
    """The tokenizers library on the whole text, with its own offsets."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    entries, merges = bpe_entries()
    tokenizer = Tokenizer(BPE(entries, [tuple(merge.split(" ")) for merge in merges]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    return tokenizer


def asked(context="bado kuzo é€ mefi kuzo", answer="kuzo", question="what?", start=None, **change):
    """One question; its answer is the first place of the context that reads so."""
    start = context.find(answer) if start is None else start
    return Question("q1", "T", context, question, (Answer(answer, start), Answer("bado", 0)), **change)


def one(prompts, index=0):
    """Prompt, marked tokens and answer of one question, without padding."""
    n, a = prompts.prompt_length[index], prompts.answer_length[index]
    assert (prompts.prompt[index, n:] == prompts.pad).all() and not prompts.relevant[index, n:].any()
    return prompts.prompt[index, :n], prompts.relevant[index, :n], prompts.answer[index, :a]


@given(text=st.text(st.sampled_from("bado kuzo\n'€é\u0660😂-7.A:"), max_size=25))
def test_spans_are_the_librarys_offsets(gpt2, library, text):
    encoding = library.encode(text)
    assert spans(gpt2, text, gpt2.split(text)).tolist() == [list(span) for span in encoding.offsets]


@pytest.mark.parametrize("change", [{}, {"windows": "random", "size": 60}, {"windows": "question", "size": 60}])
def test_prompts_are_the_published_text_and_mark_the_answer(gpt2, library, questions, change):
    prompts = encode_prompts(questions, gpt2, **change)
    outside = 0
    for index, question in enumerate(questions):
        first = question.answers[0]
        start, end = first.start, first.start + len(first.text)
        choice, size = change.get("windows", "centred"), change.get("size", 0)
        low, high = window(
            question.context, question.question, start, end, choice=choice, size=size, identity=question.id
        )
        text = f"Q: {question.question} C: {question.context[low:high]} A:"
        ids, relevant, answer = one(prompts, index)
        encoding = library.encode(text)
        assert ids.tolist() == encoding.ids
        assert answer.tolist() == [*library.encode(" " + first.text).ids, gpt2.pad]
        n = prompts.unspaced_length[index]
        assert prompts.unspaced[index, :n].tolist() == library.encode(first.text).ids
        shift = len(text) - 3 - high
        inside = [a < min(end, high) + shift and b > max(start, low) + shift for a, b in encoding.offsets]
        assert relevant.tolist() == inside
        assert prompts.shown[index] == (low <= start < end <= high)
        outside += not prompts.shown[index]
        assert prompts.references[index] == tuple(answer.text for answer in question.answers)
    assert prompts.left_out.outside == outside and (outside > 0) == (choice == "question")
    assert prompts.ids == tuple(question.id for question in questions)


def test_all_occurrences_can_be_marked(gpt2):
    for every, count in ((False, 1), (True, 2)):
        prompts = encode_prompts([asked(question="is it kuzo?")], gpt2, every_occurrence=every)
        ids, relevant, _ = one(prompts)
        assert written(gpt2, ids[relevant].tolist()).split() == ["kuzo"] * count


def test_long_prompts_are_cut_with_or_without_their_cue(gpt2):
    # 82 tokens less 52 for the answer leave 30, of which Q:, the question, C: and A: take some.
    question = asked(context="bado " * 30 + "kuzo", answer="bado")
    texts = []
    for keep_cue in (True, False):
        prompts = encode_prompts([question], gpt2, n_ctx=82, keep_cue=keep_cue)
        ids, _, _ = one(prompts)
        assert len(ids) == 30 and prompts.left_out.cut == 1 and prompts.left_out.outside == 0
        texts.append(written(gpt2, ids.tolist()))
    full = f"Q: what? C: {question.context[:204]} A:"
    assert full.startswith(texts[1]) and not texts[1].endswith("A:")
    assert texts[0].endswith(" A:") and full.startswith(texts[0][:-3])
    # An answer behind the cut is not shown.
    last = encode_prompts([asked(context="bado " * 30 + "kuzo")], gpt2, n_ctx=82)
    assert last.left_out.outside == 1 and not last.relevant.any()


def test_what_is_left_out_is_named_and_counted(gpt2):
    good = asked()
    many = [
        good,
        Question("u1", "T", "bado", "what?", (Answer("bado", 0),), True),
        Question("u2", "T", "bado", "what?", ()),
        Question("m1", "T", "bado kuzo", "what?", (Answer("kuzo", 4),)),
        Question("m2", "T", "bado kuzo", "what?", (Answer("", 4),)),
        Question("l1", "T", "bado kuzo", "what " * 300, (Answer("kuzo", 5),)),
        Question("a1", "T", "bado " * 60, "what?", (Answer("bado " * 59, 0),)),
    ]
    prompts = encode_prompts(many, gpt2)
    left = prompts.left_out
    assert prompts.ids == ("q1", "a1")
    assert (left.unanswerable, left.mismatched, left.too_long) == (("u1", "u2"), ("m1", "m2"), ("l1",))
    assert left.answers_cut == 1 and prompts.answer_length[1] == 51 and prompts.answer[1, 50] == gpt2.pad
    told = left.lines()
    assert told[0] == "2 questions without an answer, left out: u1, u2"
    assert told[1].startswith("2 questions whose first answer is not at its place") and told[1].endswith("m1, m2")
    assert told[2] == "1 questions that leave no room for a context, left out: l1"
    assert told[-1] == "1 answers cut to 50 tokens"
    assert encode_prompts([good], gpt2).left_out.lines() == []
    with pytest.raises(
        InputError, match="questions must be some .*, got '2 questions, 0 with an answer at its place, 0 of"
    ):
        encode_prompts(many[1:3], gpt2)
    told = r"file: questions .* context in 204 tokens, got '2 questions, 1 with .*, 1 of these too long'; take shorter"
    with pytest.raises(InputError, match=told):
        encode_prompts(many[4:6], gpt2, called="file: questions")
    with pytest.raises(InputError, match="n_ctx must be an integer >= 60"):
        encode_prompts([good], gpt2, n_ctx=50)


def test_answers_that_are_not_there_are_no_references(gpt2):
    first, there = Answer("kuzo", 5), Answer("bado", 0)
    wrong = (Answer("bado", 1), Answer("", 0), Answer(" ", 4), Answer("nonsense", 3))
    many = [
        Question("g1", "T", "bado kuzo", "what?", (first, there)),
        Question("r1", "T", "bado kuzo", "what?", (first, *wrong, there)),
        Question("m1", "T", "bado kuzo", "what?", (wrong[2], first)),
    ]
    prompts = encode_prompts(many, gpt2)
    assert prompts.ids == ("g1", "r1") and prompts.references == (("kuzo", "bado"),) * 2
    assert prompts.left_out.mismatched == ("m1",) and prompts.left_out.references == ("r1",)
    said = "1 questions with a further answer that is not at its place in the context, which is no reference: r1"
    assert said in prompts.left_out.lines()


@pytest.mark.parametrize("unspaced", [False, True])
def test_labels_are_what_follows_in_prompt_and_answer(gpt2, questions, unspaced):
    prompts = encode_prompts(questions, gpt2)
    widths = bucket_widths(prompts.length + 8, 2)
    plan = epoch_plan(prompts.length, batch=8, widths=widths, seed=0, epoch=1, by_length=True)
    assert sorted(plan.posts[plan.posts >= 0]) == list(range(20)) and (plan.posts == -1).sum() == 4
    room = most_labels(prompts, plan.posts)
    for posts in plan.posts:
        batch = answer_batch(prompts, posts, widths[-1], labels=room + 32, unspaced=unspaced)
        taken = []
        for row, label in zip(batch.row[batch.weight > 0], batch.label[batch.weight > 0], strict=True):
            b, position = row // batch.queries.shape[1], batch.queries.flat[row]
            assert position < batch.length[b]
            taken.append((b, [*batch.tokens[b, : position + 1], label]))
        wanted = []
        for b, post in enumerate(posts):
            if post < 0:
                assert batch.length[b] == 1
                continue
            prompt, _, answer = one(prompts, post)
            if unspaced:
                answer = prompts.unspaced[post, : prompts.unspaced_length[post]]
            text = [*prompt, *answer]
            wanted += [(b, text[: len(prompt) + n + 1]) for n in range(len(answer))]
            assert batch.length[b] == len(text) - 1
            assert (batch.tokens[b, len(text) - 1 :] == gpt2.pad).all()
        assert taken == wanted


def test_batches_that_do_not_fit_are_refused(gpt2, questions):
    prompts = encode_prompts(questions, gpt2)
    posts = np.arange(4)
    with pytest.raises(InputError, match="width must be at least .* longest question of the batch, got 8"):
        answer_batch(prompts, posts, 8, labels=99)
    with pytest.raises(InputError, match="labels must be at least .* labels of the batch, got 3; see most_labels"):
        answer_batch(prompts, posts, 256, labels=3)


@pytest.mark.skipif("QKDYN_DATA" not in os.environ, reason="the published questions are not here")
def test_on_the_published_dev_file():
    root = os.environ["QKDYN_DATA"]
    gpt2 = byte_bpe(*(find(os.path.join(root, "gpt2_bpe"), name) for name in ("encoder.json", "vocab.bpe")))
    every = read_squad(find(os.path.join(root, "squad"), "dev-v1.1.json"))
    assert askable(every) == (every, LeftOut((), (), (), 0, 0, 0))
    questions = every[::100]
    prompts = encode_prompts(questions, gpt2)
    assert len(prompts.ids) == len(questions)
    for index, texts in enumerate(prompts.references):
        ids, relevant, answer = one(prompts, index)
        assert written(gpt2, answer[:-1].tolist()) == texts[0].strip() or len(answer) == 51
        if prompts.prompt_length[index] < 204:
            assert texts[0].strip() in written(gpt2, ids[relevant].tolist())
            assert written(gpt2, ids.tolist()).endswith(" A:")

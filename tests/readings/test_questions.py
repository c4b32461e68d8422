"""Readings of questions against one question at a time: plain loops, the whole model on the whole text for every number."""

import dataclasses
import functools
import json
import math

import jax
import numpy as np
import pytest
from made import made_squad, write, write_data

from qkdyn.errors import InputError
from qkdyn.metrics.attention import acmc, attention_confidence, mrta
from qkdyn.metrics.dtap import dtap
from qkdyn.metrics.rollout import head_rows, rollout
from qkdyn.metrics.sharpness import attention_entropy
from qkdyn.readings import question_baselines
from qkdyn.readings.questions import QuestionReading, read, summary
from qkdyn.text.answers import exact_match, f1
from qkdyn.text.prompts import encode_prompts, written
from qkdyn.text.squad import read_squad
from qkdyn.text.vocabulary import byte_bpe
from qkdyn.transformer import TransformerConfig, forward
from qkdyn.transformer_config import is_shape, shapes

WIDTHS = (48, 64)
N_CTX, MOST, SHARE, RESIDUAL = 112, 5, 0.1, 0.4
MEANS = ("mass", "mass_layers", "entropy", "comprehensiveness", "sufficiency")
UNIFORM = ("uniform_mass", "uniform_mass_layers", "uniform_entropy")


@pytest.fixture(scope="module", autouse=True)
def quickly():
    """Compiled quickly, not to be fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    folder = write_data(tmp_path_factory.mktemp("data"), 3, bpe=None) / "gpt2_bpe"
    return byte_bpe(folder / "encoder.json", folder / "vocab.bpe", expected=None)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory, vocabulary):
    """Of windows that miss some answers, and of different lengths."""
    questions = read_squad(write(tmp_path_factory.mktemp("squad") / "a.json", json.dumps(made_squad(7))))
    questions = [dataclasses.replace(one, question=one.question + " ..." * (i % 3)) for i, one in enumerate(questions)]
    return encode_prompts(questions, vocabulary, n_ctx=N_CTX, windows="question", size=60)


@pytest.fixture(scope="module")
def how(vocabulary):
    size = vocabulary.size
    model = TransformerConfig(
        vocabulary=size,
        n_ctx=N_CTX,
        n_outputs=size,
        n_layers=2,
        d_model=6,
        n_heads=2,
        d_head=3,
        d_mlp=8,
        activation="gelu",
        layer_norm="pre",
        mask_padding=False,
        tied=True,
    )
    return QuestionReading(model, most=MOST, residual=RESIDUAL, share=SHARE)


@pytest.fixture(scope="module")
def params(how, vocabulary):
    """All parameters away from zero, and an end that is likely enough to be chosen."""
    rng = np.random.default_rng(18)
    params = jax.tree.map(
        lambda shape: rng.normal(0, 0.8, shape).astype(np.float32), shapes(how.model), is_leaf=is_shape
    )
    params["head"]["b_U"] *= 0.1
    params["head"]["b_U"][vocabulary.pad] = 3
    return params


@pytest.fixture(scope="module")
def found(how, params, prompts, vocabulary):
    return read(how, params, prompts, vocabulary, batch=4, widths=WIDTHS)


@functools.partial(jax.jit, static_argnums=1)
def whole(params, model, tokens, length):
    return forward(params, model, tokens, length, every=True)


def at_the_end(params, model, words):
    """Probabilities after a text, and its maps of attention."""
    tokens = np.zeros((1, N_CTX), np.int32)
    n = len(words)
    tokens[0, :n] = words
    out = jax.device_get(whole(params, model, tokens, np.array([n], np.int32)))
    p = np.exp(np.float64(out.logits[0, n - 1]))
    maps = [np.float64(layer[0, :, :n, :n]) for layer in out.attention]
    return p / p.sum(), [layer / layer.sum(-1, keepdims=True) for layer in maps]


def one_by_one(how, params, words, relevant, end):
    """What is written after one prompt, and the measures of each step."""
    text, steps = list(words), []
    while len(steps) < MOST:
        p, maps = at_the_end(params, how.model, text)
        n = len(text)
        row, token = rollout(maps, RESIDUAL)[-1], int(p.argmax())
        marked = np.pad(relevant, (0, n - len(relevant)))
        flat = [np.tile(np.tri(n) / np.arange(1, n + 1)[:, None], (2, 1, 1))] * 2
        uniform = rollout(flat, RESIDUAL)[-1]
        top = set(np.argsort(-row, kind="stable")[: math.ceil(SHARE * n - 1e-9)].tolist())
        without, only = [word for t, word in enumerate(text) if t not in top], [text[t] for t in sorted(top)]
        each = {
            "mass": row[marked].sum(),
            "mass_layers": np.mean([layer.mean(0)[-1][marked].sum() for layer in maps]),
            "entropy": attention_entropy(row),
            "comprehensiveness": p[token] - at_the_end(params, how.model, without)[0][token],
            "sufficiency": p[token] - at_the_end(params, how.model, only)[0][token],
            "uniform_mass": uniform[marked].sum(),
            "uniform_mass_layers": marked.mean(),
            "uniform_entropy": attention_entropy(uniform),
        }
        steps.append(each)
        text.append(token)
        if token == end:
            break
    return text[len(words) :], steps


def chances(params, model, words, answer):
    """Probability of each token of an answer after the words before it."""
    return [at_the_end(params, model, [*words, *answer[:t]])[0][token] for t, token in enumerate(answer)]


def test_every_measure_is_that_of_one_question_alone(how, params, prompts, vocabulary, found):
    counts = set()
    for i, references in enumerate(prompts.references):
        n = prompts.prompt_length[i]
        words, relevant = prompts.prompt[i, :n].tolist(), prompts.relevant[i, :n]
        answer, steps = one_by_one(how, params, words, relevant, vocabulary.pad)
        assert found["steps"][i] == len(steps)
        counts.add(len(steps))
        for name in (*MEANS, *UNIFORM):
            wanted = np.mean([step[name] for step in steps])
            np.testing.assert_allclose(found[name][i], wanted, atol=3e-5, err_msg=f"{name} of {i}")
        text = written(vocabulary, [token for token in answer if token != vocabulary.pad])
        assert found["f1_first"][i] == f1(text, references[:1], articles_first=True)
        assert found["em_first"][i] == exact_match(text, references[:1], articles_first=True)
        assert found["f1"][i] == f1(text, references) and found["em"][i] == exact_match(text, references)
        right = prompts.answer[i, : prompts.answer_length[i]].tolist()
        p = chances(params, how.model, words, right)
        assert right[-1] == vocabulary.pad
        np.testing.assert_allclose(found["loss"][i], -np.mean(np.log(p)), rtol=1e-4)
        np.testing.assert_allclose(found["probability"][i], np.mean(p[:-1]), rtol=1e-4)
        unspaced = prompts.unspaced[i, : prompts.unspaced_length[i]].tolist()
        p = chances(params, how.model, words, unspaced)
        np.testing.assert_allclose(found["probability_unspaced"][i], np.mean(p), rtol=1e-4)
        heads = head_rows(at_the_end(params, how.model, words)[1], -1).reshape(4, n)
        np.testing.assert_allclose(found["head_mass"][i], heads[:, relevant].sum(1), atol=1e-5)
        np.testing.assert_allclose(found["head_entropy"][i], attention_entropy(heads), atol=1e-5)
        np.testing.assert_allclose(found["uniform_head_mass"][i], relevant.mean())
        np.testing.assert_allclose(found["uniform_head_entropy"][i], np.log(n))
    # Answers that end, and that do not; windows that show the answer, and that do not.
    assert len(counts) > 1 and max(counts) == MOST
    assert 0 < found["shown"].sum() < len(found["shown"]) and (found["mass"][found["shown"]] > 0).all()


def test_attention_without_queries_is_uniform(how, params, prompts, vocabulary):
    flat = jax.tree.map(np.copy, params)
    for layer in flat["layers"]:
        layer["qk"]["W_Q"][:], layer["qk"]["b_Q"][:] = 0, 0
    found = read(how, flat, prompts, vocabulary, batch=4, widths=WIDTHS, faithful=False)
    assert "comprehensiveness" not in found
    for name in ("mass", "mass_layers", "entropy", "head_mass", "head_entropy"):
        wanted = found[f"uniform_{name}"]
        np.testing.assert_allclose(found[name].T, np.broadcast_to(wanted, found[name].T.shape), atol=3e-5)


def test_runs_that_are_lost_say_so(how, params, prompts, vocabulary):
    lost = jax.tree.map(np.copy, params)
    lost["layers"][0]["mlp"]["W_in"][:] = np.inf
    found = read(how, lost, prompts, vocabulary, batch=4, widths=WIDTHS)
    for name, values in found.items():
        if name not in ("steps", "shown"):
            assert np.isnan(values).all(), name
    assert (found["steps"] == -1).all()
    told = summary(found)
    assert told.pop("questions") == 7 and np.isnan(np.hstack([np.ravel(value) for value in told.values()])).all()


def test_summaries_are_the_public_measures(found):
    edges, level = (0.0, 0.02, 0.4, 1.0), 0.05
    # Such that some reach the level.
    found = found | {name: 120 * found[name] for name in ("probability", "probability_unspaced")}
    for which in (None, found["shown"]):
        some = slice(None) if which is None else which
        told = summary(found, edges, level=level, which=which)
        mass, uniform = found["mass"][some], found["uniform_mass"][some]
        assert told["questions"] == len(mass)
        np.testing.assert_allclose(told["mass"], mrta(mass), rtol=1e-6)
        np.testing.assert_allclose(told["head_entropy"], found["head_entropy"][some].mean(0), rtol=1e-6)
        assert told["ac"] == attention_confidence(mass, level)
        assert told["uniform_ac"] == attention_confidence(uniform, level)
        for name in ("probability", "probability_unspaced"):
            end, chance = name.removeprefix("probability"), found[name][some]
            np.testing.assert_array_equal(told["dtap" + end], dtap(mass, chance, edges))
            assert told["acmc" + end] == acmc(mass, chance, level, level) > 0
            assert told["uniform_acmc" + end] == acmc(uniform, chance, level, level)
            assert told["acmc_curve" + end] == [acmc(mass, chance, i / 20, level) for i in range(21)]
    json.dumps(told, allow_nan=False)


def test_what_cannot_be_read_is_refused(how, params, prompts, vocabulary, unchecked):
    def call(**change):
        return read(dataclasses.replace(how, **change), params, prompts, vocabulary)

    for change, message in (
        ({"most": 70}, "the longest of prompts must be at most 43 tokens"),
        ({"most": 0}, "most must be an integer >= 1"),
        ({"share": 0.0}, "share must be above 0 and below 1"),
        ({"share": 0.99}, "share must be such that something is left of"),
        ({"residual": 2.0}, "residual must"),
        ({"model": dataclasses.replace(how.model, vocabulary=9, n_outputs=9)}, "the size of vocabulary must be"),
        ({"model": dataclasses.replace(how.model, causal=False)}, "causal must be True"),
    ):
        with pytest.raises(InputError, match=message):
            call(**change)


def test_baselines(prompts, vocabulary):
    assert question_baselines.first_sentence("", "One 2.5 two! Three.") == "One 2.5 two"
    context = "It was the Duke of Kuzo who built a bridge. Later, in 1903, Bado burned."
    assert question_baselines.nearest("Who built the bridge?", context) == "Duke of Kuzo"
    assert question_baselines.nearest("When did Bado burn?", context) == "Later, in 1903,"
    assert question_baselines.nearest("Why?", "") == ""
    assert question_baselines.nearest("Why?", "All of it is new") == "All of it"
    around = "x" * 199 + " "
    assert question_baselines.middle("", around + "the answer here" + around[::-1]) == "the answer here"
    assert question_baselines.middle("", "before the answer" + around[::-1]) == "the answer"
    assert question_baselines.middle("", around + "the answer it is.") == "the answer"
    assert question_baselines.most_frequent(["Paris", "the Bado", "paris", "Bado!", "x"]) == "bado"
    found = question_baselines.baselines(prompts, vocabulary, [prompts.references[0][0]] * 2)
    assert set(found) == {"frequent", "sentence", "nearest", "middle"}
    wanted = [exact_match(prompts.references[0][0], references) for references in prompts.references]
    assert found["frequent"]["em"] == np.mean(wanted) > 0

"""What is read of every post, against the public measures and the model itself, one post and one run at a time."""

import functools
import operator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_text import config_of, drawn_params, made_posts
from scipy.special import softmax

import transformer_reference
from qkdyn.metrics.attention import acmc, attention_confidence, attention_mass, mrta
from qkdyn.metrics.curves import THRESHOLDS
from qkdyn.metrics.dtap import dtap
from qkdyn.metrics.faithfulness import top_tokens
from qkdyn.metrics.plausibility import auprc, iou_f1, position_auprc, token_f1
from qkdyn.metrics.rollout import head_rows, rollout_row
from qkdyn.metrics.sharpness import attention_entropy, entropy_share, top_k_mass, uniform_top_k_mass
from qkdyn.readings import posts
from qkdyn.readings.levels import EDGES, Levels
from qkdyn.readings.posts import Reading, read
from qkdyn.readings.splits import distributions, extended, floors, means, split_of
from qkdyn.train.text_batches import readouts
from qkdyn.train.text_engine import TextState

S, A, SHARE = 2, 2, 0.3
PUBLISHED = {"readout": "first_pad", "mask_padding": False, "n_layers": 2, "d_mlp": None}
SENTENCES = {"readout": "last", "residual": False, "d_mlp": None, "n_ctx": 24}
LAST_SLOT = {"last_slot": True, "slots": True, "by_rank": True}
LEVELS = Levels(0.33, 0.33)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Eight posts each."""
    monkeypatch.setattr(posts, "ROOM", 1)


def state_of(config):
    """Two seeds of two arms with weights large enough for attention to be far from uniform."""
    runs = [drawn_params(config, seed, 0.4) for seed in range(S * A)]
    whole = jax.tree.map(lambda *leaves: jnp.stack(leaves).reshape(S, A, *leaves[0].shape), *runs)
    table = whole["embed"].pop("W_E").swapaxes(1, 2).reshape(S * config.vocabulary, A, config.d_model)
    return TextState(whole, (), table, (), (), (), ()), [runs[A * s : A * s + A] for s in range(S)]


def in_slots(data, n_ctx):
    """The same posts in another number of slots."""
    wide = lambda values: np.pad(values, ((0, 0), (0, n_ctx - values.shape[1])))  # noqa: E731
    wider = {name: wide(getattr(data, name)) for name in ("tokens", "relevant", "content")}
    return replace(data, n_ctx=n_ctx, **wider)


def one_post(how, params, data, i, readout):
    """Class probabilities and attention of one post."""
    measured = how.model.n_ctx - 1 if how.last_slot else readout
    width = data.n_ctx if how.last_slot else max(int(data.length[i]), readout + 1)
    tokens = np.pad(data.tokens[i], (0, max(0, width - data.tokens.shape[1])))[:width]
    logits, maps = transformer_reference.post(params, how.model, tokens, int(data.length[i]))
    maps[-1] = maps[-1][:, [measured]]
    return softmax(logits[readout]), maps, measured


def reduced(how, params, tokens, pad, query):
    """Class probabilities of a list of tokens, as the model reads it."""
    if how.model.readout == "first_pad":
        readout = tokens.index(pad) if pad in tokens else 0
        length = len(tokens)
    elif how.slots:
        # The mask goes along: what is read is the token before the first padding; where only padding is left, one of it.
        length = max(1, tokens.index(pad) if pad in tokens else len(tokens))
        readout = length - 1
    else:
        readout, length = len(tokens) - 1, len(tokens)
    return softmax(transformer_reference.post(params, how.model, tokens, length)[0][readout])


@pytest.mark.parametrize(
    ("changed", "how", "query"),
    [
        ({}, {}, True),
        (PUBLISHED, {**LAST_SLOT, "residual": 0.5}, False),
        (SENTENCES, LAST_SLOT, False),
    ],
)
def test_readings_are_those_of_one_post_and_one_run_at_a_time(changed, how, query):
    config = config_of(**changed)
    how = Reading(config, **how)
    data = made_posts(config, posts=20, query=query)
    state, runs = state_of(config)
    runs = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), runs)
    # Sixteen slots hold all posts; of the last case they are not all that there are.
    data, places = in_slots(data, config.n_ctx), None
    if changed is SENTENCES:
        places = np.random.default_rng(1).random((len(data), 2, config.n_ctx)) < 0.4
    found = read(how, state, data, SHARE, widths=(16,), seeds=S, places=places)
    where = readouts(data, config)
    for s, a, i in [(0, 0, 0), (0, 1, 3), (1, 0, 5), (1, 1, 8), (0, 0, 7)]:
        at = (s, a, i)
        probability, maps, measured = one_post(how, runs[s][a], data, i, int(where[i]))
        row = rollout_row(maps, measured, how.residual)
        width = len(row)
        relevant, content = (np.zeros(max(width, 16), x.dtype) for x in (data.relevant, data.content))
        relevant[: data.tokens.shape[1]], content[: data.tokens.shape[1]] = data.relevant[i], data.content[i]
        relevant, content = relevant[:width], content[:width]
        assert found["predicted"][at] == probability.argmax()
        close = lambda name, value: np.testing.assert_allclose(found[name][at], value, atol=2e-5, err_msg=name)  # noqa: E731, B023
        close("probability", probability[data.label[i]])
        close("loss", -np.log(probability[data.label[i]]))
        close("mass", attention_mass(row, relevant))
        close("entropy", attention_entropy(row))
        top = top_tokens(row[None], content[None], how.top)[0]
        close("top_mass", row[top].sum())
        close("token_f1", token_f1(top, relevant > 0))
        close("iou_f1", iou_f1(top, relevant > 0))
        if (relevant > 0).any():
            close("auprc", auprc(row, relevant > 0, content))
        heads = head_rows(maps, measured)
        close("heads_mass", [attention_mass(head, relevant) for head in heads.reshape(-1, width)])
        close("heads_entropy", [attention_entropy(head) for head in heads.reshape(-1, width)])
        close("heads_top_mass", [top_k_mass(head, top.sum(), content) for head in heads.reshape(-1, width)])
        if places is not None:
            close("places", [attention_mass(row, own) for own in places[i]])
            each = heads.reshape(-1, width)
            close("heads_places", [[attention_mass(head, own) for own in places[i]] for head in each])
        # Tokens are deleted from a list, and what is left is read as a post of its own.
        candidates = np.ones(data.n_ctx, bool) if how.slots else content
        chosen = top_tokens(row[None], candidates[None], SHARE)[0]
        real = data.n_ctx if how.slots else int(data.length[i])
        tokens = data.tokens[i]
        without = [int(tokens[t]) for t in range(real) if not chosen[t]]
        kept = [t for t in range(real) if chosen[t] or not candidates[t]]
        if how.by_rank:
            kept = sorted(kept, key=lambda t: -row[t])
        only = [int(tokens[t]) for t in kept]
        best = probability.argmax()
        for name, words in (("comprehensiveness", without), ("sufficiency", only)):
            close(name, probability[best] - reduced(how, runs[s][a], words, data.pad, query)[best])


def test_measures_of_a_split_are_the_public_ones():
    config = config_of()
    how = Reading(config)
    data = made_posts(config, posts=12)
    split = split_of(data, how)
    state, _ = state_of(config)
    found = read(how, state, data, SHARE, widths=(16,), seeds=S)
    out = means(found, split, LEVELS, 3)
    marked = data.marked
    mass, probability = found["mass"], found["probability"]
    np.testing.assert_allclose(out["mrta_all"], mrta(mass), rtol=1e-5)
    np.testing.assert_allclose(out["mrta"], mrta(mass[..., marked]), rtol=1e-5)
    np.testing.assert_allclose(out["ac"], attention_confidence(mass[..., marked], 0.33), rtol=1e-5)
    np.testing.assert_allclose(out["acmc_all"], acmc(mass, probability, 0.33, 0.33), rtol=1e-5)
    np.testing.assert_allclose(out["accuracy"], (found["predicted"] == data.label).mean(-1))
    np.testing.assert_allclose(out["auprc"], found["auprc"][..., split.ranked].mean(-1), rtol=1e-5)
    assert split.ranked.sum() < marked.sum() < len(data)
    records = extended({}, {"validation": found, "test": found}, {"validation": split, "test": split}, LEVELS, 3)
    np.testing.assert_allclose(
        records["best/validation/dtap"][1, 0], dtap(mass[1, 0][marked], probability[1, 0][marked], EDGES)
    )
    curve = [attention_confidence(mass[0, 1][marked], level) for level in THRESHOLDS]
    np.testing.assert_allclose(records["best/test/ac_curve"][0, 1], curve, rtol=1e-5)
    known = floors(split, how, 0.33)
    allowed = np.arange(16) < data.length[:, None]
    uniform = allowed / allowed.sum(1, keepdims=True)
    np.testing.assert_allclose(known["uniform_mrta"], mrta(attention_mass(uniform, data.relevant)[marked]), rtol=1e-5)
    np.testing.assert_allclose(known["uniform_entropy"], attention_entropy(uniform).mean(), rtol=1e-5)
    np.testing.assert_allclose(entropy_share(uniform, allowed), 1, rtol=1e-6)
    content = data.content & marked[:, None]
    k = np.maximum(np.ceil(0.2 * data.content.sum(1) - 1e-9), 1).astype(int)
    masses = uniform_top_k_mass(allowed, k, data.content)
    np.testing.assert_allclose(known["uniform_top_mass"], masses.mean(), rtol=1e-5)
    np.testing.assert_allclose(known["uniform_top_mass_marked"], masses[marked].mean(), rtol=1e-5)
    flat = attention_mass(uniform, data.relevant)
    np.testing.assert_allclose(known["uniform_ac"], attention_confidence(flat[marked], 0.33), rtol=1e-5)
    np.testing.assert_allclose(
        known["uniform_ac_curve"], [attention_confidence(flat[marked], level) for level in THRESHOLDS], rtol=1e-5
    )
    spread = distributions(found, split, LEVELS)
    np.testing.assert_allclose(spread["uniform_acmc_all"][0, 1], acmc(flat, probability[0, 1], 0.33, 0.33), rtol=1e-5)
    np.testing.assert_allclose(
        spread["uniform_acmc_curve"][1, 1],
        [acmc(flat[marked], probability[1, 1][marked], level, level) for level in THRESHOLDS],
        rtol=1e-5,
    )
    hits = (data.relevant > 0) & content
    earliest = data.content & (np.arange(16) < k[:, None])
    np.testing.assert_allclose(known["uniform_token_f1"], token_f1(earliest, hits)[marked].mean(), rtol=1e-5)
    np.testing.assert_allclose(known["uniform_iou_f1"], iou_f1(earliest, hits)[marked].mean(), rtol=1e-5)
    rng = np.random.default_rng(0)
    drawn = [token_f1(top_tokens(rng.random(hits.shape), data.content, 0.2), hits)[marked].mean() for _ in range(400)]
    np.testing.assert_allclose(known["random_token_f1"], np.mean(drawn), atol=4 * np.std(drawn) / 400**0.5)
    hits = (data.relevant > 0)[split.ranked]
    first = position_auprc(hits, data.content[split.ranked])
    np.testing.assert_allclose(known["position_auprc_first"], first.mean(), rtol=1e-5)


def test_the_best_epoch_is_the_first_of_the_highest_validation_accuracy():
    config = config_of()
    how = Reading(config)
    data = made_posts(config, posts=12)
    split = split_of(data, how)
    state, _ = state_of(config)
    found = read(how, state, data, SHARE, widths=(16,), seeds=S)
    records = {}
    for epoch, wrong in enumerate((6, 2, 2, 4)):
        predicted = np.where(np.arange(12) < wrong, (data.label + 1) % 3, data.label)
        now = {
            **found,
            "predicted": np.broadcast_to(predicted, found["mass"].shape),
            "mass": np.full_like(found["mass"], epoch / 10),
        }
        records = extended(records, {"validation": now, "test": now}, {"validation": split, "test": split}, LEVELS, 3)
    assert (records["best/epoch"] == 2).all()
    assert records["validation/accuracy"].shape == (S, A, 4)
    np.testing.assert_allclose(records["best/test/ac_curve"][0, 0], 100.0 * (np.asarray(THRESHOLDS, np.float32) <= 0.1))


@pytest.mark.parametrize("broken", [("layers", 0, "qk", "W_Q"), ("head", "W_U")])
def test_of_a_run_that_is_not_finite_nothing_is_said_and_of_the_others_all(broken):
    config = config_of()
    how = Reading(config)
    data = made_posts(config, posts=12)
    split = split_of(data, how)
    state, _ = state_of(config)
    *path, name = broken
    owner = functools.reduce(operator.getitem, path, state.params)
    owner[name] = owner[name].at[0, 0].set(jnp.nan)
    found = read(how, state, data, SHARE, widths=(16,), seeds=S)
    records = extended({}, {"validation": found}, {"validation": split}, LEVELS, 3)
    for name, values in records.items():
        if name != "best/epoch":
            assert np.isnan(values[0, 0]).all(), name
            assert np.isfinite(values[1]).all(), name
    np.testing.assert_allclose(records["best/validation/dtap"][1].sum((-2, -1)), 100)


def test_heads_are_counted_in_the_bins_of_their_own_attention():
    config = config_of()
    how = Reading(config)
    data = made_posts(config, posts=12)
    state, _ = state_of(config)
    found = read(how, state, data, SHARE, widths=(16,), seeds=S)
    bins = distributions(found, split_of(data, how), LEVELS)["heads_bins"]
    for s, a, h in np.ndindex(*bins.shape[:3]):
        expected = np.histogram(found["heads_mass"][s, a, :, h], np.asarray(EDGES, np.float32))[0] / 12
        np.testing.assert_allclose(bins[s, a, h], expected)

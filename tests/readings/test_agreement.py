"""Readings by the number of attractors, and simple rules, sentence by sentence."""

import numpy as np
import pytest

from qkdyn.readings.agreement import Agreement, baselines, by_attractors, lines, simple_rules
from qkdyn.readings.levels import Levels
from qkdyn.readings.posts import Reading
from qkdyn.readings.splits import distributions, extended, means, split_of
from qkdyn.text.encoded import Encoded
from qkdyn.text.sva import LABELS, Sentence
from qkdyn.transformer_config import TransformerConfig

S, A, N, H, T = 2, 2, 40, 3, 8


@pytest.fixture(scope="module")
def own():
    rng = np.random.default_rng(0)
    length = rng.integers(3, T + 1, N)
    allowed = np.arange(T) < length[:, None]
    places = np.zeros((N, 2, T), bool)
    places[:, 0, 0] = True
    attractors = rng.choice([-1, 0, 1, 2, 5, 7], N)
    for n, count in enumerate(np.minimum(attractors, length - 1)):
        places[n, 1, 1 : 1 + max(count, 0)] = True
    # What is not seen is not counted.
    places[:, 1, T - 1] |= (attractors > 0) & (length < T)
    known = (attractors < 7) & (attractors >= 0)
    natural = rng.random(N) < 0.4
    rules = {name: rng.random(N) < 0.5 for name in ("majority", "subject", "inverse")}
    return Agreement(rng.integers(0, 2, N), attractors, known, places, allowed, natural, natural, rules)


@pytest.fixture(scope="module")
def found(own):
    """Measures of runs whose first is not finite."""
    rng = np.random.default_rng(1)
    heads = rng.dirichlet(np.ones(3), (S, A, N, H))[..., :2]
    probability = rng.random((S, A, N))
    out = {
        "predicted": rng.integers(0, 2, (S, A, N)),
        "probability": probability,
        "loss": -np.log(probability),
        "mass": heads[..., 0].mean(-1),
        "places": heads.mean(3),
        "heads_places": heads,
        "heads_mass": heads[..., 0],
    }
    of_posts = ("entropy", "top_mass", "auprc", "token_f1", "iou_f1", "comprehensiveness", "sufficiency")
    of_heads = ("heads_entropy", "heads_auprc", "heads_top_mass")
    out |= {name: rng.random((S, A, N)) for name in of_posts} | {name: rng.random((S, A, N, H)) for name in of_heads}
    for name, values in out.items():
        out[name] = values.astype(np.float32) if values.dtype == np.float64 else values
        out[name][0, 0] = -1 if name == "predicted" else np.nan
    return out


@pytest.fixture(scope="module")
def split(own):
    length = own.allowed.sum(1).astype(np.int32)
    tokens, relevant = np.zeros((N, T), np.int32), own.places[:, 0].astype(np.float32)
    label = own.label.astype(np.int32)
    data = Encoded(tokens, length, label, relevant, own.allowed, np.ones(N, bool), pad=0, n_ctx=T, cut=0, empty=0)
    return split_of(data, Reading(TransformerConfig(4, T, 3, readout="last")), own)


def test_each_cell_is_the_mean_of_its_sentences(own, found):
    measured = by_attractors(found, own)
    for s, a in np.ndindex(S, A):
        told = lines({name: values[s, a] for name, values in measured.items()}, own)
        assert [(line["attractors"], line["label"]) for line in told] == [
            (number, label) for number in range(6) for label in (*LABELS, "both")
        ]
        for line in told:
            here = [
                n
                for n in range(N)
                if (own.attractors[n] >= 5 if line["attractors"] == 5 else own.attractors[n] == line["attractors"])
                and line["label"] in (LABELS[own.label[n]], "both")
            ]
            known = [n for n in here if own.known[n]]
            assert (line["n"], line["n_known"]) == (len(here), len(known))
            right = [found["predicted"][s, a, n] == own.label[n] for n in here]
            expected = {"accuracy": np.mean(right) if here and (s, a) != (0, 0) else np.nan}
            if known:
                subject, attractor = found["places"][s, a, known].mean(0)
                expected |= {"subject": subject, "attractor": attractor, "elsewhere": 1 - subject - attractor}
                for h, head in enumerate(line["heads"]):
                    each = found["heads_places"][s, a, known, h].mean(0)
                    np.testing.assert_allclose([head["subject"], head["attractor"]], each, rtol=1e-5)
            else:
                expected |= dict.fromkeys(("subject", "attractor", "elsewhere"), np.nan)
                assert np.isnan([list(head.values()) for head in line["heads"]]).all() and len(line["heads"]) == H
            np.testing.assert_allclose([line[name] for name in expected], list(expected.values()), rtol=1e-5)


def test_baselines_are_those_of_uniform_attention_and_of_the_rules(own):
    for line in baselines(own):
        there = np.minimum(own.attractors, 5) == line["attractors"]
        if line["label"] != "both":
            there &= own.label == LABELS.index(line["label"])
        known = there & own.known
        assert line["n"] == there.sum()
        if known.any():
            for k, name in enumerate(("subject", "attractor")):
                uniform = [own.places[n, k, own.allowed[n]].mean() for n in np.flatnonzero(known)]
                np.testing.assert_allclose(line[f"uniform_{name}"], np.mean(uniform))
            sums = sum(line[f"uniform_{name}"] for name in ("subject", "attractor", "elsewhere"))
            np.testing.assert_allclose(sums, 1)
            np.testing.assert_allclose(line["inverse"], own.rules["inverse"][there].mean())
        elif not there.any():
            assert np.isnan(line["majority"])


def test_epochs_are_chosen_by_the_sentences_of_the_mix(own, found, split):
    levels, records = Levels(0.5, 0.5), {}
    natural = own.natural
    assert natural.any() and not natural.all()
    # The first epoch is right on the natural sentences alone, the second on all others.
    for right in (natural, ~natural):
        predicted = np.broadcast_to(np.where(right, own.label, 1 - own.label), (S, A, N)).copy()
        now = {**found, "predicted": predicted}
        records = extended(records, {"validation": now}, {"validation": split}, levels, 2)
    assert (records["best/epoch"] == 1).all()
    np.testing.assert_array_equal(records["validation/accuracy_natural"][1, 1], [1, 0])
    assert records["validation/accuracy"][1, 1, 1] > records["validation/accuracy"][1, 1, 0]
    # What is kept of the best epoch is of that epoch.
    cells = records["best/validation/agreement_accuracy"][1, 1]
    expected = by_attractors({**found, "predicted": np.broadcast_to(np.where(natural, own.label, -1), (S, A, N))}, own)
    here = np.array([(which & natural).any() and not (which & ~natural).any() for *_, which in own.cells()])
    assert here.any()
    np.testing.assert_allclose(cells[here], expected["accuracy"][1, 1][here])


def test_confidence_asks_for_the_thresholds_of_its_levels(own, found, split):
    levels = Levels(0.3, 0.5, 0.2, (0.0, 0.1, 0.5, 1.1))
    out, spread = means(found, split, levels, 2), distributions(found, split, levels)
    mass, head, probability = (found[name][1, 0] for name in ("mass", "heads_mass", "probability"))
    np.testing.assert_allclose(out["ac"][1, 0], 100 * np.mean((mass >= 0.3) & (probability >= 0.2)))
    np.testing.assert_allclose(out["acmc"][1, 0], 100 * np.mean((mass >= 0.3) & (probability >= 0.5)))
    first = (head[:, 0] >= 0.3) & (probability >= 0.2)
    np.testing.assert_allclose(out["heads_ac"][1, 0, 0], 100 * first.mean())
    flat = (split.uniform >= 0.3) & (probability >= 0.2)
    np.testing.assert_allclose(spread["uniform_ac"][1, 0], 100 * flat.mean())
    grid = spread["dtap_first_head"][1, 0]
    # Columns are attention, rows probability: at most a tenth of the mass, and more than half of the probability.
    np.testing.assert_allclose(grid.sum(), 100, rtol=1e-5)
    expected = 100 * np.mean((head[:, 0] < 0.1) & (probability >= 0.5))
    assert np.isclose(grid, expected).any() and expected > 0
    assert np.isnan(out["heads_ac"][0, 0]).all() and np.isnan(spread["agreement_accuracy"][0, 0]).all()
    plain = Levels(0.3, 0.5)
    assert "dtap_first_head" not in distributions(found, split, plain)
    np.testing.assert_allclose(means(found, split, plain, 2)["ac"][1, 0], 100 * np.mean(mass >= 0.3))


def sentence(text, subject, label, attractors=0):
    words = tuple(text.split())
    return Sentence(words, subject, len(words), label, "val", attractors, "preamble")


def test_simple_rules_know_words_and_nothing_else():
    train = (
        [sentence("the key", 1, "VBZ")] * 3
        + [sentence("the keys", 1, "VBP")] * 4
        + [sentence("cabinets", 0, "VBP")] * 3
    )
    asked = [
        # Who inverts the last noun is right where that is an attractor, and wrong where it is none.
        (sentence("the key to the cabinets", 1, "VBZ"), {"majority": False, "subject": True, "inverse": True}),
        (sentence("the keys of the cabinets", 1, "VBP"), {"majority": True, "subject": True, "inverse": False}),
        (sentence("the key near the keys by a key", 1, "VBP"), {"majority": True, "subject": False, "inverse": True}),
        (sentence("the keys of something", 1, "VBP"), {"majority": True, "subject": True, "inverse": True}),
        (sentence("the unheard of thing", 1, "VBZ"), {"majority": False, "subject": False, "inverse": False}),
    ]
    right = simple_rules([one for one, _ in asked], train)
    for number, (_, expected) in enumerate(asked):
        assert {name: bool(values[number]) for name, values in right.items()} == expected

"""AUPRC, token F1 and IOU F1 against scikit-learn, explainkit and loops; floors against permutations; what is refused."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import measures_by_hand as hand
from qkdyn.errors import InputError
from qkdyn.metrics.plausibility import (
    auprc,
    eraser_iou_f1,
    iou_f1,
    position_auprc,
    random_auprc,
    token_f1,
    uniform_auprc,
)


@given(hand.instances())
def test_auprc_against_scikit_learn_and_by_hand(of):
    from sklearn.metrics import average_precision_score

    score, relevant, allowed = of
    found = auprc(score, relevant, allowed)
    for n in range(len(score)):
        assert found[n] == pytest.approx(hand.auprc(score[n], relevant[n], allowed[n]), abs=1e-12)
        if relevant[n].any():
            expected = average_precision_score(relevant[n][allowed[n]], score[n][allowed[n]])
            assert found[n] == pytest.approx(expected, abs=1e-12)
        else:
            assert found[n] == 0


def test_auprc_of_long_texts_against_scikit_learn():
    """Unlike a trapezoid's area, which ERASER gives beside it."""
    from sklearn.metrics import auc, average_precision_score, precision_recall_curve

    rng = np.random.default_rng(0)
    score, relevant = rng.random((5, 200)).astype(np.float32), rng.random((5, 200)) < 0.2
    score[:, ::3] = np.round(score[:, ::3], 1)
    found = auprc(score, relevant)
    expected = [average_precision_score(*row) for row in zip(relevant, score, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    precision, recall, _ = precision_recall_curve(relevant[0], score[0])
    assert auc(recall, precision) != pytest.approx(found[0], rel=1e-6)


@given(hand.instances(largest=5))
def test_floors_against_every_order(of):
    score, relevant, allowed = of
    uniform, chance = uniform_auprc(relevant, allowed), random_auprc(relevant, allowed)
    first, last = position_auprc(relevant, allowed), position_auprc(relevant, allowed, first="last")
    places = np.arange(score.shape[-1], dtype=float)
    for n in range(len(score)):
        row, there = relevant[n], allowed[n]
        assert uniform[n] == pytest.approx(hand.auprc(0 * places, row, there))
        assert first[n] == pytest.approx(hand.auprc(-places, row, there))
        assert last[n] == pytest.approx(hand.auprc(places, row, there))
        orders = [hand.auprc(np.array(values), row, there) for values in itertools.permutations(places)]
        assert chance[n] == pytest.approx(np.mean(orders))
        assert chance[n] >= uniform[n] - 1e-12


def test_a_random_order_beats_its_share_on_short_texts():
    relevant = np.arange(20) < 4
    assert uniform_auprc(relevant) == 0.2
    assert float(random_auprc(relevant)) == pytest.approx(0.309379, abs=1e-6)
    assert float(random_auprc(np.arange(4000) < 800)) == pytest.approx(0.2, abs=2e-3)


@given(hand.instances(), hand.instances(), st.sampled_from([0.5, 0.6, 1.0]))
def test_token_and_iou_f1_by_hand(of, other, threshold):
    _, relevant, allowed = of
    N, T = relevant.shape
    selected = np.resize(other[1], (N, T)) & allowed
    found, spans = token_f1(selected, relevant), iou_f1(selected, relevant, threshold)
    rows = [hand.matches(*pair, threshold) for pair in zip(selected, relevant, strict=True)]
    for n, (matched, mine, theirs) in enumerate(rows):
        assert found[n] == pytest.approx(hand.f1(selected[n], relevant[n]))
        assert spans[n] == pytest.approx(2 * matched / (mine + theirs) if mine + theirs else 0)
    macro = eraser_iou_f1(selected, relevant, threshold)
    precision = [matched / mine for matched, mine, _ in rows if mine]
    recall = [matched / theirs for matched, _, theirs in rows if theirs]
    p, r = sum(precision) / max(len(precision), 1), sum(recall) / max(len(recall), 1)
    assert macro == pytest.approx((p, r, 2 * p * r / (p + r) if p and r else 0))


@given(hand.instances())
def test_token_f1_against_scikit_learn(of):
    from sklearn.metrics import f1_score, precision_recall_fscore_support

    score, relevant, _ = of
    selected = score >= 0.25
    found = token_f1(selected, relevant)
    for n in range(len(score)):
        assert found[n] == pytest.approx(f1_score(relevant[n], selected[n], zero_division=0))
        expected = precision_recall_fscore_support(relevant[n], selected[n], average="binary", zero_division=0)[2]
        assert found[n] == pytest.approx(expected)


@given(hand.instances(), st.integers(1, 5))
def test_token_f1_of_top_tokens_against_explainkit(of, k):
    from explainkit import Explanation, rationale_f1

    from qkdyn.metrics.cores import top_mask

    score, relevant, allowed = of
    found = token_f1(top_mask(np, score, allowed, k), relevant)
    for n in range(len(score)):
        words = [f"w{i}" for i in np.flatnonzero(allowed[n])]
        starts = np.cumsum([0, *(len(word) + 1 for word in words)])
        text = Explanation(
            text=" ".join(words), tokens=words, scores=score[n][allowed[n]].tolist(), method="made",
            spans=[(int(a), int(a) + len(word)) for a, word in zip(starts, words, strict=False)],
            base_value=0.0, prediction=1.0, predicted_class=0, target_class=0,
        )  # fmt: skip
        # Where nothing is selected and nothing relevant, explainkit has 1, scikit-learn and ERASER 0.
        expected = rationale_f1(text, np.flatnonzero(relevant[n]).tolist(), k=k) if relevant[n].any() else 0
        assert found[n] == pytest.approx(expected)


def test_spans_and_not_tokens_are_matched():
    relevant = np.array([[1, 1, 1, 1, 0, 0, 1, 0]], bool)
    half, less = relevant.copy(), relevant.copy()
    half[0, 2:4], less[0, 1:4] = False, False
    assert iou_f1(half, relevant)[0] == 1
    assert iou_f1(less, relevant)[0] == iou_f1(half, relevant, 0.51)[0] == 0.5
    assert token_f1(less, relevant)[0] == pytest.approx(2 / 3.5)
    # A bridge of one token makes two spans one, which matches neither.
    joined = relevant.copy()
    joined[0, 4:6] = True
    assert iou_f1(joined, relevant)[0] == pytest.approx(2 / 3)
    joined[0, 7] = True
    assert iou_f1(joined, relevant)[0] == pytest.approx(2 / 3)
    assert iou_f1(joined, relevant, 0.6)[0] == 0


def test_eraser_averages_precision_and_recall_apart():
    selected = np.array([[1, 0, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], bool)
    relevant = np.array([[1, 0, 0, 0, 0], [1, 0, 1, 0, 1], [0, 1, 0, 0, 0]], bool)
    precision, recall, f1 = eraser_iou_f1(selected, relevant)
    assert (float(precision), float(recall)) == pytest.approx(((0.5 + 1) / 2, (1 + 1 / 3 + 0) / 3))
    assert float(f1) == pytest.approx(2 * 0.75 * (4 / 9) / (0.75 + 4 / 9))
    assert iou_f1(selected, relevant).mean() == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)


def test_leading_axes_broadcast():
    rng = np.random.default_rng(3)
    score, relevant = rng.random((2, 4, 6)), rng.random((4, 6)) < 0.5
    whole = auprc(score, relevant)
    assert whole.shape == (2, 4) == token_f1(score > 0.5, relevant).shape
    for s in range(2):
        np.testing.assert_array_equal(whole[s], auprc(score[s], relevant))
        np.testing.assert_array_equal(iou_f1(score > 0.5, relevant)[s], iou_f1(score[s] > 0.5, relevant))
    assert auprc(score[0, 0], relevant[0]).shape == ()


ONE = np.array([[True, False]])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: auprc([[0.1, np.nan]], ONE), r"score\[0, 1\] must be finite, got nan"),
        (lambda: auprc([[0.1, np.inf]], ONE), r"score\[0, 1\] must be finite, got inf"),
        (lambda: auprc([[0.1, 0.2]], [[1, 0]]), r"type of relevant must be bool, got 'int64'"),
        (lambda: auprc([[0.1, 0.2]], ONE, [[1.0, 0.0]]), r"type of mask must be bool"),
        (lambda: auprc([[0.1, 0.2, 0.3]], ONE), r"shapes of score and relevant and mask .*\(\(1, 3\), \(1, 2\)"),
        (lambda: uniform_auprc(ONE, ONE[:, :1]), "shapes of relevant and mask"),
        (lambda: random_auprc(np.zeros((0, 2), bool)), r"shape of relevant must be one of .*got \(0, 2\)"),
        (lambda: position_auprc(ONE, first="middle"), "first must be 'first' or 'last', got 'middle'"),
        (lambda: token_f1([[0.5, 0.1]], ONE), "type of selected must be bool"),
        (lambda: token_f1(ONE, ONE[:, :1]), "shapes of selected and relevant"),
        (lambda: iou_f1(ONE, ONE, 0.4), r"threshold must be a number from 0\.5 to 1, got 0\.4"),
        (lambda: iou_f1(ONE, ONE, 1.1), "threshold must be .*got 1.1"),
        (lambda: eraser_iou_f1(ONE[0], ONE[0]), r"shape of selected must be \(\.\.\., instances, tokens\), got \(2,\)"),
    ],
)
def test_refused(call, message, unchecked):
    with pytest.raises(InputError, match=message):
        call()

"""Comprehensiveness, sufficiency and AOPC, batched, against explainkit and against lists of tokens one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import measures_by_hand as hand
from qkdyn.errors import InputError
from qkdyn.metrics.faithfulness import SHARES, aopc, comprehensiveness, reduced_inputs, sufficiency, top_tokens

PAD, QUERY, WORDS, CLASSES = 0, 1, 30, 3
TABLE = np.random.default_rng(0).normal(size=(WORDS, CLASSES))


def model(tokens):
    """Class probabilities of one list of tokens, which depend on their order."""
    logits = sum((TABLE[token] / (1 + place) for place, token in enumerate(tokens)), np.zeros(CLASSES))
    weight = np.exp(logits)
    return weight / weight.sum()


def batched(tokens, length):
    """The same of padded tokens, (N, T)."""
    places = np.arange(tokens.shape[-1])
    logits = (TABLE[tokens] / (1 + places)[:, None] * (places < length[:, None])[..., None]).sum(-2)
    weight = np.exp(logits)
    return weight / weight.sum(-1, keepdims=True)


def posts(seed, N=5, T=9, query=True):
    """Tokens, real and content masks, tied scores; lengths from one content token to all that fits."""
    rng = np.random.default_rng(seed)
    content = np.arange(T) < np.append(rng.integers(1, T - query + 1, N - 2), [1, T - query])[:, None]
    length = content.sum(-1) + query
    real = np.arange(T) < length[:, None]
    tokens = np.where(content, rng.integers(2, WORDS, (N, T), np.int32), np.int32(PAD))
    if query:
        tokens[np.arange(N), length - 1] = QUERY
    return tokens, real, content, rng.integers(0, 4, (N, T)) / 4


def by_list(tokens, real, content, score, share, keep, how):
    """One reduced post as a list."""
    n = content.sum()
    chosen = hand.order(score, content)[: max(1, -(-round(share * 100) * n // 100))]
    gone = set(chosen) if keep == "without" else set(np.flatnonzero(content)) - set(chosen)
    places = list(np.flatnonzero(real))
    if how == "rank":
        places = hand.order(score, content) + [i for i in places if not content[i]]
    if how == "replace":
        return [29 if i in gone else tokens[i] for i in places]
    return [tokens[i] for i in places if i not in gone]


@given(st.integers(0, 99), st.booleans(), st.sampled_from(SHARES), st.sampled_from(["delete", "replace", "rank"]))
def test_reduced_inputs_and_drops_one_by_one(seed, query, share, how):
    tokens, real, content, score = posts(seed, query=query)
    full = batched(tokens, real.sum(-1))
    for keep, measure in (("without", comprehensiveness), ("only", sufficiency)):
        fill = 29 if how == "replace" else PAD
        found = reduced_inputs(tokens, real, content, score, share, keep=keep, fill=fill, how=how)
        drop = measure(full, batched(*found))
        for n in range(len(tokens)):
            expected = by_list(tokens[n], real[n], content[n], score[n], share, keep, how)
            assert found.length[n] == len(expected)
            assert found.tokens[n].tolist() == expected + [PAD] * (tokens.shape[-1] - len(expected))
            whole = model(tokens[n][real[n]])
            assert drop[n] == pytest.approx(whole.max() - model(expected)[whole.argmax()], abs=1e-12)
    assert found.tokens.dtype == np.int32


@settings(max_examples=8)
@given(st.integers(0, 99))
def test_against_explainkit(seed):
    import explainkit

    tokens, real, content, score = posts(seed, T=25, query=False)
    full = batched(tokens, real.sum(-1))

    def predict(texts):
        return np.array([model([int(word) for word in text.split()]) for text in texts])

    def reduced(keep):
        each = [reduced_inputs(tokens, real, content, score, share, keep=keep, fill=PAD) for share in SHARES]
        return np.stack([batched(*one) for one in each])

    without, only = reduced("without"), reduced("only")
    both = aopc(full, without), aopc(full, only)
    for n in range(len(tokens)):
        words = [str(token) for token in tokens[n][real[n]]]
        ends = np.cumsum([len(word) + 1 for word in words]) - 1
        explanation = explainkit.Explanation(
            text=" ".join(words), tokens=words, scores=score[n][real[n]].tolist(), method="made", base_value=0.0,
            spans=[(int(end) - len(word), int(end)) for end, word in zip(ends, words, strict=True)],
            prediction=float(full[n].max()), predicted_class=int(full[n].argmax()), target_class=int(full[n].argmax()),
        )  # fmt: skip
        assert both[0][n] == pytest.approx(explainkit.aopc(explanation, predict, fractions=SHARES), abs=1e-12)
        ks = [max(1, int(np.ceil(share * len(words)))) for share in SHARES]
        for measure, theirs, found in (
            (comprehensiveness, explainkit.comprehensiveness, without),
            (sufficiency, explainkit.sufficiency, only),
        ):
            expected = [theirs(explanation, predict, k=k) for k in ks]
            np.testing.assert_allclose([measure(full[n], one[n]) for one in found], expected, atol=1e-12)
        # explainkit has no AOPC of sufficiency: the mean over the bins, as ERASER's code has both.
        assert both[1][n] == pytest.approx(np.mean(expected), abs=1e-12)


@given(hand.instances(), st.sampled_from([0.01, 0.2, 0.34, 1.0]))
def test_top_tokens(of, share):
    score, _, content = of
    top = top_tokens(score, content, share)
    for n in range(len(score)):
        count = max(1, -(-round(share * 100) * content[n].sum() // 100))
        assert set(np.flatnonzero(top[n])) == set(hand.order(score[n], content[n])[:count])


def test_the_predicted_class_is_that_of_the_whole_input():
    full, reduced = np.array([[0.2, 0.5, 0.3], [0.5, 0.5, 0.0]]), np.array([[0.9, 0.1, 0.0], [0.1, 0.8, 0.1]])
    np.testing.assert_allclose(comprehensiveness(full, reduced), [0.4, 0.4])
    np.testing.assert_allclose(sufficiency(full, full), [0, 0])
    # One probability is that of the predicted class.
    np.testing.assert_allclose(sufficiency(full[:, 1:2], reduced[:, 1:2]), [0.4, -0.3])
    np.testing.assert_allclose(aopc(full, np.stack([reduced, full, full])), [0.4 / 3, 0.4 / 3])
    assert aopc(full[0], reduced).shape == ()
    # Leading axes, such as seeds, broadcast.
    assert aopc(np.stack([full, full[::-1]]), np.stack([reduced, full, full])[:, None]).shape == (2, 2)


TOKENS, REAL = np.array([[3, 4, 0]]), np.array([[True, True, False]])
SCORE, P = np.array([[0.5, 0.5, 0.0]]), np.array([[0.5, 0.5]])


def reduce(**changes):
    given = {"tokens": TOKENS, "real": REAL, "content": REAL, "score": SCORE, "share": 0.5, "keep": "only", "fill": 0}
    return reduced_inputs(**given | changes)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: top_tokens(SCORE, REAL, 0), "share must be a number above 0 and at most 1, got 0"),
        (lambda: top_tokens(SCORE, REAL, 20), "share must be a number above 0 and at most 1, got 20"),
        (lambda: top_tokens(SCORE, REAL, np.nan), "share must be .*got nan"),
        (lambda: top_tokens(SCORE, REAL.astype(int), 0.2), "type of content must be bool"),
        (lambda: top_tokens(SCORE[:, :2], REAL, 0.2), "shapes of score and content"),
        (lambda: top_tokens(SCORE * np.nan, REAL, 0.2), r"score\[0, 0\] must be finite, got nan"),
        (lambda: reduce(keep="top"), "keep must be 'without' or 'only', got 'top'"),
        (lambda: reduce(how="drop"), "how must be 'delete', 'replace', 'rank', got 'drop'"),
        (lambda: reduce(tokens=TOKENS * 1.0), "tokens must be an array of integers"),
        (lambda: reduce(tokens=TOKENS[:, :2]), "shapes of tokens and real and content and score"),
        (lambda: reduce(real=REAL * 1), "type of real must be bool"),
        (lambda: reduce(content=~REAL), "content must be True at real tokens alone"),
        (
            lambda: reduce(fill=2**40, tokens=TOKENS.astype(np.int32)),
            "fill must be integers from -2147483648 to 2147483647",
        ),
        (lambda: comprehensiveness(P, 3 * P), r"without\[0, 0\] must be from 0 to 1 .*got 1\.5"),
        (lambda: comprehensiveness(P * np.nan, P), r"full\[0, 0\] must be from 0 to 1 .*got nan"),
        (lambda: sufficiency(P, P[:, :1]), r"shapes of full and only .*\(\(1, 2\), \(1, 1\)\)"),
        (lambda: aopc(P[0], P[0]), r"shape of reduced must be \(bins, \.\.\., classes\), got \(2,\)"),
        (lambda: aopc(P, np.ones((5, 3, 3)) / 3), "shapes of full and reduced"),
    ],
)
def test_refused(call, message, unchecked):
    with pytest.raises(InputError, match=message):
        call()

"""The measures on text one instance at a time, by loops and sets; and instances for them, with ties, padding and extremes."""

import itertools

import numpy as np
from hypothesis import strategies as st


@st.composite
def instances(draw, largest=7):
    """(score, relevant, allowed), each (N, T): scores of few values, so tied; padding on the right, sometimes everything."""
    N, T = draw(st.integers(1, 4)), draw(st.integers(1, largest))
    length = draw(st.lists(st.integers(0, T), min_size=N, max_size=N))
    score = draw(
        st.lists(st.lists(st.sampled_from([0.0, 0.125, 0.25, 1.0]), min_size=T, max_size=T), min_size=N, max_size=N)
    )
    marks = st.one_of(st.just([True] * T), st.just([False] * T), st.lists(st.booleans(), min_size=T, max_size=T))
    relevant = draw(st.lists(marks, min_size=N, max_size=N))
    allowed = np.arange(T) < np.array(length)[:, None]
    return np.array(score), np.array(relevant) & allowed, allowed


def order(score, allowed):
    """Allowed places by falling score, of equals the earlier first."""
    return sorted(np.flatnonzero(allowed), key=lambda i: (-score[i], i))


def auprc(score, relevant, allowed):
    """Precision times the gain in recall, one distinct score after another."""
    area, recall = 0.0, 0.0
    hits = [i for i in np.flatnonzero(allowed) if relevant[i]]
    for level in sorted({score[i] for i in np.flatnonzero(allowed)}, reverse=True):
        taken = [i for i in np.flatnonzero(allowed) if score[i] >= level]
        found = sum(relevant[i] for i in taken)
        if hits:
            area += found / len(taken) * (found / len(hits) - recall)
            recall = found / len(hits)
    return area


def spans(mask):
    """Runs of True as sets of places."""
    runs = itertools.groupby(enumerate(mask), key=lambda pair: bool(pair[1]))
    return [{i for i, _ in run} for true, run in runs if true]


def matches(selected, relevant, threshold):
    """(matched selected spans, selected spans, relevant spans), by the best intersection over union as in ERASER."""
    mine, theirs = spans(selected), spans(relevant)
    best = [max((len(a & b) / len(a | b) for b in theirs), default=0) for a in mine]
    return sum(value >= threshold for value in best), len(mine), len(theirs)


def f1(selected, relevant):
    both, mine, theirs = (set(np.flatnonzero(mask)) for mask in (selected & relevant, selected, relevant))
    if not both:
        return 0.0
    precision, recall = len(both) / len(mine), len(both) / len(theirs)
    return 2 * precision * recall / (precision + recall)


def rollout(layers, weight):
    """The matrix product of mixed and normalized head means, layers of (heads, T, T), entry by entry."""
    T = layers[0].shape[-1]
    product = [[float(i == j) for j in range(T)] for i in range(T)]
    for maps in layers:
        mixed = []
        for i in range(T):
            row = [weight * sum(head[i][j] for head in maps) / len(maps) + (1 - weight) * (i == j) for j in range(T)]
            mixed.append([value / sum(row) if sum(row) else 0.0 for value in row])
        product = [[sum(mixed[i][k] * product[k][j] for k in range(T)) for j in range(T)] for i in range(T)]
    return np.array(product)

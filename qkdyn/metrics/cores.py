"""The formulas of the measures on text, for numpy and jax.numpy alike: no checks, so that they run inside jit and vmap.

Every function takes `xp`, which is numpy or jax.numpy, and arrays whose last axis is the T tokens of a padded sequence;
leading axes are instances, of the same number in all arguments. Masks are bool and False at padding. Nothing depends on
data for its shape. The checked functions for people stand in this package's other modules.

Order is found by comparing all pairs of tokens rather than by sorting: exact for ties, and on a CPU 7 to 16 times faster
than XLA's sort as long as the pairs of a batch fit into its cache (some hundred texts of 128 tokens).
"""

from collections.abc import Sequence
from fractions import Fraction
from types import ModuleType
from typing import Any


def mass(xp: ModuleType, attention: Any, relevant: Any) -> Any:
    """Attention on relevant tokens (App. D.6), (...); `relevant` as bools or weights in [0, 1]."""
    return (attention * relevant).sum(-1)


def entropy(xp: ModuleType, attention: Any) -> Any:
    """Entropy of attention in nats, (...), with 0 ln 0 = 0."""
    some = attention > 0
    return -xp.where(some, attention * xp.log(xp.where(some, attention, 1)), 0).sum(-1)


def entropy_share(xp: ModuleType, attention: Any, allowed: Any) -> Any:
    """Entropy over that of uniform attention to the allowed tokens, ln of their number, (...); 1 where there is but one."""
    count = allowed.sum(-1)
    return xp.where(count > 1, entropy(xp, attention) / xp.log(xp.maximum(count, 2)), 1)


def rollout_row(xp: ModuleType, attentions: Sequence[Any], position: Any, residual: float) -> Any:
    """Row `position` (...,) of the attention rollout, (..., T): e A'_L ... A'_1, A' = rownorm(w mean_heads(A) + (1 - w) I).

    `attentions` are maps (..., heads, T, T) from the first layer to the last, the last of which may be (..., heads, 1, T),
    the one row at `position`. `residual` is w: 1/2 in Abnar & Zuidema (2020), 1 for attention alone. A row of zeros stays
    the identity's, or zero where w is 1.
    """
    last = attentions[-1]
    one = last[..., 0, 0, :]
    row = xp.where(_places(xp, one) == _each(xp, position), 1.0, 0.0).astype(last.dtype)
    for maps in reversed(attentions):
        mean = maps.mean(-3)
        total = residual * mean.sum(-1) + (1 - residual)
        row = xp.where(total > 0, row / xp.where(total > 0, total, 1), 0)
        # A map of one row goes for all rows: there, only that at `position` has a weight.
        row = residual * (row[..., :, None] * mean).sum(-2) + (1 - residual) * row
    return row


def rank(xp: ModuleType, score: Any, allowed: Any) -> Any:
    """Place of each token by falling score, (..., T), from 0: of equals the earlier first, what is not allowed last."""
    value = xp.where(allowed, score, -xp.inf)
    mine, other = value[..., None, :], value[..., :, None]
    place = _places(xp, value)
    earlier = place[..., :, None] < place[..., None, :]
    return ((other > mine) | ((other == mine) & earlier)).sum(-2)


def top_count(xp: ModuleType, count: Any, share: float) -> Any:
    """ceil(share * count), at least 1: how many of `count` tokens a share is. `share` is one number, read as a decimal.

    Integers alone, so that 20 % of 35 is 7 in any precision. Where `count` is 0 it is 1, of which `top_mask` finds none.
    """
    over, under = Fraction(share).limit_denominator(10_000).as_integer_ratio()
    return xp.maximum(-((-count * over) // under), 1)


def top_mask(xp: ModuleType, score: Any, allowed: Any, k: Any) -> Any:
    """True at the k allowed tokens of highest score, (..., T), of equals the earlier; all of them where k is more."""
    return allowed & (rank(xp, score, allowed) < _each(xp, k))


def topk_mass(xp: ModuleType, attention: Any, k: Any, allowed: Any = None) -> Any:
    """Attention on the k most attended tokens, (...); with `allowed`, on the k most attended of those."""
    allowed = xp.ones(attention.shape, bool) if allowed is None else allowed
    return mass(xp, attention, top_mask(xp, attention, allowed, k))


def auprc(xp: ModuleType, score: Any, relevant: Any, allowed: Any) -> Any:
    """Area under precision and recall of a ranking of tokens, (...): sum of (R_i - R_i-1) P_i, tied scores being one step.

    That is the mean, over relevant tokens, of the precision among all tokens that score at least as high. 0 where no
    token is relevant.
    """
    hit, base = relevant & allowed, score.shape[-1] + 1
    at_least = score[..., :, None] >= score[..., None, :]
    # Hits and allowed tokens counted in one sum, as the two digits of a number: one pass over the pairs.
    count = xp.where(at_least, (allowed + base * hit)[..., :, None], 0).sum(-2)
    precision = (count // base) / xp.maximum(count % base, 1)
    return xp.where(hit, precision, 0).sum(-1) / xp.maximum(hit.sum(-1), 1)


def chance_auprc(xp: ModuleType, relevant: Any, allowed: Any) -> Any:
    """`auprc` of uniform attention, all of whose scores are tied, (...): the share of relevant tokens."""
    return (relevant & allowed).sum(-1) / xp.maximum(allowed.sum(-1), 1)


def random_auprc(xp: ModuleType, relevant: Any, allowed: Any) -> Any:
    """Expected `auprc` of a ranking in random order without ties, (...); 0 where no token is relevant.

    With R of N tokens relevant, the mean over ranks k of (1 + (k - 1)(R - 1)/(N - 1))/k. On few tokens it is well above
    their share R/N, which it approaches as N grows.
    """
    count, hits = allowed.sum(-1), (relevant & allowed).sum(-1)
    harmonic = xp.where(allowed, 1 / xp.maximum(xp.cumsum(allowed, -1), 1), 0).sum(-1)
    pairs = (hits - 1) / xp.maximum(count - 1, 1)
    return xp.where(hits > 0, (harmonic + pairs * (count - harmonic)) / xp.maximum(count, 1), 0)


def position_auprc(xp: ModuleType, relevant: Any, allowed: Any, last: bool = False) -> Any:
    """`auprc` of ranking tokens by position alone, (...): the first one first; or the last one first."""
    if last:
        relevant, allowed = relevant[..., ::-1], allowed[..., ::-1]
    hit = relevant & allowed
    precision = xp.cumsum(hit, -1) / xp.maximum(xp.cumsum(allowed, -1), 1)
    return xp.where(hit, precision, 0).sum(-1) / xp.maximum(hit.sum(-1), 1)


def token_f1(xp: ModuleType, selected: Any, relevant: Any) -> Any:
    """F1 of selected against relevant tokens, (...): 2 |both| / (|selected| + |relevant|), 0 where there are neither."""
    return 2 * (selected & relevant).sum(-1) / xp.maximum(selected.sum(-1) + relevant.sum(-1), 1)


def span_matches(xp: ModuleType, selected: Any, relevant: Any, threshold: float = 0.5) -> tuple[Any, Any, Any]:
    """Numbers of matched, selected and relevant spans, each (...).

    A span is a maximal run of tokens. Two match if their tokens' intersection over union is at least `threshold`; from 1/2
    on, no span matches two others.
    """
    both = selected & relevant
    overlap, mine, theirs = (_run_length(xp, mask) for mask in (both, selected, relevant))
    # A run of tokens in both masks is the intersection of the one span of each that holds it.
    match = overlap >= threshold * (mine + theirs - overlap)
    return (_starts(xp, both) & match).sum(-1), _starts(xp, selected).sum(-1), _starts(xp, relevant).sum(-1)


def iou_f1(xp: ModuleType, selected: Any, relevant: Any, threshold: float = 0.5) -> Any:
    """F1 of matched spans, (...): 2 matched / (selected + relevant spans), 0 where there are none."""
    matched, mine, theirs = span_matches(xp, selected, relevant, threshold)
    return 2 * matched / xp.maximum(mine + theirs, 1)


def without_top(xp: ModuleType, real: Any, top: Any) -> Any:
    """What comprehensiveness keeps: every real token but the top ones, (..., T)."""
    return real & ~top


def only_top(xp: ModuleType, real: Any, content: Any, top: Any) -> Any:
    """What sufficiency keeps: the top tokens and what is real but no content, such as a query token, (..., T)."""
    return real & (top | ~content)


def compact(xp: ModuleType, tokens: Any, keep: Any, pad: Any, order: Any = None) -> tuple[Any, Any]:
    """Delete the tokens that are not kept: (tokens moved to the front, their number), the rest filled with `pad`.

    They keep their order; or, given `order` (..., T) of distinct numbers such as `rank`, stand by increasing order.
    """
    place = xp.cumsum(keep, -1) - 1 if order is None else rank(xp, -order, keep)
    slot = _places(xp, tokens)
    goes = keep[..., :, None] & (place[..., :, None] == slot[..., None, :])
    moved = xp.where(goes, tokens[..., :, None], 0).sum(-2)
    length = keep.sum(-1)
    return xp.where(slot < length[..., None], moved, pad).astype(tokens.dtype), length


def probability_drop(xp: ModuleType, full: Any, reduced: Any) -> Any:
    """f(x) - f(reduced x), (...): by how much the probability of the class predicted from x falls; inputs are (..., M)."""
    predicted = _places(xp, full) == full.argmax(-1)[..., None]
    return xp.where(predicted, full - reduced, 0).sum(-1)


def macro_f1(xp: ModuleType, predicted: Any, label: Any, classes: int, counted: Any = None) -> Any:
    """Mean over classes of the F1 of predictions, over the last axis, (...); 0 for a class that never occurs.

    `counted` is False at instances that are left out, such as those that fill up a batch.
    """
    every = xp.arange(classes).reshape((1,) * (label.ndim - 1) + (classes, 1))
    guess, truth = predicted[..., None, :] == every, label[..., None, :] == every
    if counted is not None:
        guess, truth = guess & counted[..., None, :], truth & counted[..., None, :]
    return token_f1(xp, guess, truth).mean(-1)


def _places(xp: ModuleType, like: Any) -> Any:
    """0, 1, ..., T - 1 along the last axis, with as many axes as `like`."""
    return xp.arange(like.shape[-1]).reshape((1,) * (like.ndim - 1) + (-1,))


def _each(xp: ModuleType, number: Any) -> Any:
    """One number for all instances as it is, or one for each, (...), with an axis for the tokens."""
    array = xp.asarray(number)
    return array[..., None] if array.ndim else array


def _starts(xp: ModuleType, mask: Any) -> Any:
    """True where a run of True begins."""
    before = xp.concatenate([xp.zeros_like(mask[..., :1]), mask[..., :-1]], -1)
    return mask & ~before


def _run_length(xp: ModuleType, mask: Any) -> Any:
    """The length of the run of True that each token is in, 0 where it is False."""
    place = _places(xp, mask)
    before = xp.maximum.accumulate(xp.where(mask, -1, place), axis=-1)
    after = xp.minimum.accumulate(xp.where(mask, mask.shape[-1], place)[..., ::-1], axis=-1)[..., ::-1]
    return xp.where(mask, after - before - 1, 0)

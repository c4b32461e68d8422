"""How well attention agrees with people's rationales (ERASER, DeYoung et al., 2020): AUPRC, token F1, IOU F1.

AUPRC judges the order of tokens, and not how sharp attention is. Its floors depend on the text: `uniform_auprc` (all tokens
tied), `random_auprc` (a random order without ties, which on short texts is well above that), `position_auprc` (an order
that has not read a word). A measure is per instance, (...); its mean is that over instances, as ERASER's macro averages.
Padding and query tokens are in neither mask.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Real

from qkdyn.errors import reject
from qkdyn.metrics import cores
from qkdyn.metrics.blocks import by_blocks
from qkdyn.metrics.checks import as_finite, as_mask, check_match, check_share

Tokens = Bool[np.ndarray, "*#batch T"]
POSITIONS = ("first", "last")


def auprc(
    score: Real[np.ndarray, "*#batch T"], relevant: Tokens, mask: Tokens | None = None
) -> Float[np.ndarray, "*batch"]:
    """Area under the precision-recall curve of tokens ranked by score, sum of (R_i - R_i-1) P_i over the distinct scores.

    That is average precision, which ERASER reports beside the area by trapezoids, and which is not as optimistic; see
    `sklearn.metrics.average_precision_score`.

    Args:
        score: such as attention, (..., T), higher for more relevant; any finite numbers.
        relevant: True at the tokens of the rationale, (..., T).
        mask: True at the tokens that are ranked, (..., T), so not at padding; None for all.

    Returns:
        In [0, 1], float64; 0 where no token is relevant and 1 where all are: leave such instances out of an average.

    Raises:
        InputError: scores that are not finite, masks that are not bool, shapes that do not match.
    """
    values = as_finite("score", score).astype(np.float64)
    hits, allowed = _masks(relevant, mask)
    check_match(score=values, relevant=hits, mask=allowed)
    return by_blocks(lambda *rows: cores.auprc(np, *rows), values, hits, allowed)


def uniform_auprc(relevant: Tokens, mask: Tokens | None = None) -> Float[np.ndarray, "*batch"]:
    """The `auprc` of uniform attention: the share of relevant tokens. Arguments and errors as there."""
    return np.asarray(cores.chance_auprc(np, *_masks(relevant, mask)))


def random_auprc(relevant: Tokens, mask: Tokens | None = None) -> Float[np.ndarray, "*batch"]:
    """The mean `auprc` over all orders of the tokens: what attention gets that differs between tokens but knows nothing.

    Of 4 relevant tokens among 20 it is 0.31, where `uniform_auprc` is 0.2. Arguments and errors as there.
    """
    return np.asarray(cores.random_auprc(np, *_masks(relevant, mask)))


def position_auprc(
    relevant: Tokens, mask: Tokens | None = None, first: str = POSITIONS[0]
) -> Float[np.ndarray, "*batch"]:
    """The `auprc` of ranking tokens by position alone.

    Args:
        relevant: as for `auprc`.
        mask: as for `auprc`.
        first: the token that is ranked first: "first", and so on to the last one; or "last", and so on to the first.

    Raises:
        InputError: masks as there, another word for `first`.
    """
    if not isinstance(first, str) or first not in POSITIONS:
        reject("first", first, " or ".join(map(repr, POSITIONS)))
    return np.asarray(cores.position_auprc(np, *_masks(relevant, mask), last=first == "last"))


def token_f1(selected: Tokens, relevant: Tokens) -> Float[np.ndarray, "*batch"]:
    """F1 of the selected against the relevant tokens; 0 where either has none.

    Args:
        selected: True at the tokens that an explanation names, (..., T), such as `faithfulness.top_tokens` of attention.
        relevant: True at the tokens of the rationale, (..., T).

    Returns:
        In [0, 1], float64. The mean over instances is ERASER's instance-level macro F1.

    Raises:
        InputError: masks that are not bool, shapes that do not match.
    """
    return np.asarray(cores.token_f1(np, *_selection(selected, relevant)))


def iou_f1(selected: Tokens, relevant: Tokens, threshold: float = 0.5) -> Float[np.ndarray, "*batch"]:
    """F1 of spans, runs of neighbouring tokens: two match if their intersection over union is at least `threshold`.

    Args:
        selected: as for `token_f1`.
        relevant: as for `token_f1`.
        threshold: from 0.5, as in ERASER, to 1; there no span matches two.

    Returns:
        2 matched / (selected + relevant spans) of each instance, in [0, 1], float64; 0 where neither has any.

    Raises:
        InputError: masks as for `token_f1`, a threshold out of range.
    """
    least = check_share("threshold", threshold, least=0.5)
    return by_blocks(lambda a, b: cores.iou_f1(np, a, b, least), *_selection(selected, relevant))


class SpanScores(NamedTuple):
    """ERASER's macro averages of spans over instances, each in [0, 1]."""

    precision: Float[np.ndarray, "..."]
    recall: Float[np.ndarray, "..."]
    f1: Float[np.ndarray, "..."]


def eraser_iou_f1(selected: Tokens, relevant: Tokens, threshold: float = 0.5) -> SpanScores:
    """ERASER's macro IOU F1 of N instances, (..., N, T): the F1 of the mean precision and the mean recall.

    Precision is averaged over the instances that have a selected span, recall over those that have a relevant one. It is
    not the mean of `iou_f1`, which cannot be high for lack of precision in one instance and of recall in another.

    Args:
        selected: as for `iou_f1`, with instances as the last but one axis.
        relevant: likewise.
        threshold: as for `iou_f1`.

    Returns:
        SpanScores(precision, recall, f1), each (...), float64; 0 where no instance has a span.

    Raises:
        InputError: as `iou_f1`; masks of one instance.
    """
    least = check_share("threshold", threshold, least=0.5)
    pair = _selection(selected, relevant)
    matched, mine, theirs = by_blocks(lambda a, b: cores.span_matches(np, a, b, least), *pair)
    if matched.ndim == 0:
        reject("the shape of selected", np.shape(selected), "(..., instances, tokens)", "for one, selected[None]")
    precision, recall = (
        np.asarray((matched / np.maximum(spans, 1)).sum(-1) / np.maximum((spans > 0).sum(-1), 1))
        for spans in (mine, theirs)
    )
    total = precision + recall
    return SpanScores(
        precision, recall, np.where(total > 0, 2 * precision * recall / np.where(total > 0, total, 1), 0.0)
    )


def _masks(relevant: Tokens, mask: Tokens | None) -> tuple[np.ndarray, np.ndarray]:
    """Relevant and ranked tokens, checked, of one shape."""
    hits = as_mask("relevant", relevant)
    allowed = np.ones(hits.shape, bool) if mask is None else as_mask("mask", mask)
    check_match(relevant=hits, mask=allowed)
    hits, allowed = np.broadcast_arrays(hits, allowed)
    return hits, allowed


def _selection(selected: Tokens, relevant: Tokens) -> tuple[np.ndarray, np.ndarray]:
    """Selected and relevant tokens, checked."""
    mine, theirs = as_mask("selected", selected), as_mask("relevant", relevant)
    check_match(selected=mine, relevant=theirs)
    return mine, theirs

"""Whether attention names the tokens that the prediction rests on: comprehensiveness, sufficiency and their AOPC.

App. D.6 after ERASER (DeYoung et al., 2020). The tokens of highest score are found (`top_tokens`), the inputs without them
and with them alone are made for all instances at once (`reduced_inputs`), a model of any kind gives class probabilities
for these, and the measures compare them with those of the whole input.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Integer, Real

from qkdyn.errors import reject
from qkdyn.metrics import cores
from qkdyn.metrics.blocks import by_blocks
from qkdyn.metrics.checks import as_counts, as_finite, as_mask, as_shares, check_match, check_share

# ERASER's bins: 1, 5, 10, 20 and 50 percent of the tokens.
SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
KEEP = ("without", "only")
HOW = ("delete", "replace", "rank")
Score = Real[np.ndarray, "*#batch T"]
Tokens = Bool[np.ndarray, "*#batch T"]
Ids = Integer[np.ndarray, "*#batch T"]


class Reduced(NamedTuple):
    """Inputs of which tokens are gone: the tokens, padded on the right, and how many of them are real."""

    tokens: Integer[np.ndarray, "*batch T"]
    length: Integer[np.ndarray, "*batch"]


def top_tokens(score: Score, content: Tokens, share: float) -> Bool[np.ndarray, "*batch T"]:
    """The top k% of App. D.6: the ceil(share * content tokens) of highest score, at least one; of equals the earlier.

    Args:
        score: such as attention of the measured row, (..., T), finite.
        content: True at the tokens that count and may be chosen, (..., T): neither padding nor a query token.
        share: in (0, 1], read as a decimal: 0.2 of 35 tokens are 7.

    Returns:
        True at the tokens chosen, (..., T); none where there is no content.

    Raises:
        InputError: scores that are not finite, a mask that is not bool, shapes that do not match, a share out of range.
    """
    values, counted = as_finite("score", score).astype(np.float64), as_mask("content", content)
    check_match(score=values, content=counted)
    part = check_share("share", share, zero=False)

    def chosen(rows: np.ndarray, allowed: np.ndarray) -> np.ndarray:
        return cores.top_mask(np, rows, allowed, cores.top_count(np, allowed.sum(-1), part))

    return by_blocks(chosen, values, counted)


def reduced_inputs(
    tokens: Ids,
    real: Tokens,
    content: Tokens,
    score: Score,
    share: float,
    *,
    keep: str,
    fill: int,
    how: str = "delete",
) -> Reduced:
    """Inputs without their top tokens, or with those alone; what is real but not content, such as a query token, stays.

    Args:
        tokens: (..., T), padded on the right.
        real: True where there is no padding, (..., T).
        content: as for `top_tokens`, within `real`.
        score: as for `top_tokens`.
        share: as for `top_tokens`.
        keep: "without" for comprehensiveness, "only" for sufficiency.
        fill: the token that takes the place of what is gone: padding; for "replace" a mask or unknown token.
        how: "delete" moves the kept tokens together in their order; "replace" leaves them where they are; "rank" is "delete"
            but with content by falling score, as the published code, whose top tokens are not sorted, has it in effect.

    Returns:
        Reduced(tokens, length), (..., T) and (...).

    Raises:
        InputError: as `top_tokens`; tokens that are not integers, content outside `real`, another word for `keep` or `how`.
    """
    if not isinstance(keep, str) or keep not in KEEP:
        reject("keep", keep, " or ".join(map(repr, KEEP)))
    if not isinstance(how, str) or how not in HOW:
        reject("how", how, ", ".join(map(repr, HOW)))
    ids = np.asarray(tokens)
    if ids.dtype.kind not in "iu" or ids.ndim == 0:
        reject("tokens", tokens, "an array of integers")
    info = np.iinfo(ids.dtype)
    blank = int(as_counts("fill", fill, info.max, least=info.min))
    top, there, counted = top_tokens(score, content, share), as_mask("real", real), as_mask("content", content)
    check_match(tokens=ids, real=there, content=counted, score=top)
    if (counted & ~there).any():
        reject("content", "True where real is False", "True at real tokens alone")
    values = as_finite("score", score).astype(np.float64)

    def reduce(ids: np.ndarray, there: np.ndarray, counted: np.ndarray, top: np.ndarray, values: np.ndarray) -> tuple:
        kept = cores.without_top(np, there, top) if keep == "without" else cores.only_top(np, there, counted, top)
        if how == "replace":
            return np.where(kept, ids, np.where(there, blank, ids)), there.sum(-1)
        order = cores.rank(np, values, counted) if how == "rank" else None
        return cores.compact(np, ids, kept, blank, order)

    return Reduced(*by_blocks(reduce, ids, there, counted, top, values))


def comprehensiveness(
    full: Float[np.ndarray, "*#batch M"], without: Float[np.ndarray, "*#batch M"]
) -> Float[np.ndarray, "*batch"]:
    """f(x) - f(x / r_:k%) (App. D.6): the fall in the predicted class's probability once the top tokens are gone.

    Args:
        full: class probabilities of the whole inputs, (..., M), in [0, 1] give or take 1e-5. The predicted class is the
            largest, the first of equals. For one probability alone, (..., 1).
        without: those of the inputs without their top tokens, (..., M). Leading axes broadcast.

    Returns:
        In [-1, 1], (...), float64: higher where the prediction rests on those tokens.

    Raises:
        InputError: probabilities that are NaN or not in [0, 1], shapes that do not match.
    """
    return _drop("without", full, without)


def sufficiency(
    full: Float[np.ndarray, "*#batch M"], only: Float[np.ndarray, "*#batch M"]
) -> Float[np.ndarray, "*batch"]:
    """f(x) - f(r_:k%) (App. D.6): what the predicted class's probability loses if the top tokens are all there is.

    Lower where those tokens suffice. `only` are the class probabilities of the inputs with their top tokens alone; the rest
    as for `comprehensiveness`.
    """
    return _drop("only", full, only)


def aopc(
    full: Float[np.ndarray, "*#batch M"], reduced: Float[np.ndarray, "bins *#batch M"]
) -> Float[np.ndarray, "*batch"]:
    """Area over the perturbation curve: the mean of `comprehensiveness` or `sufficiency` over bins of tokens.

    This is ERASER's published code, with the bins in `SHARES`. The formula in its paper divides by |B| + 1, counting
    one bin more, k = 0; where that bin takes nothing away, its value is |B|/(|B| + 1) of this one.

    Args:
        full: as for `comprehensiveness`, (..., M).
        reduced: class probabilities of the inputs reduced by each share, (bins, ..., M).

    Returns:
        In [-1, 1], (...), float64.

    Raises:
        InputError: as `comprehensiveness`; no axis of bins.
    """
    if np.ndim(reduced) < 2:
        reject("the shape of reduced", np.shape(reduced), "(bins, ..., classes)", "for one bin, reduced[None]")
    return np.asarray(_drop("reduced", full, reduced).mean(0))


def _drop(name: str, full: np.ndarray, reduced: np.ndarray) -> np.ndarray:
    """By how much the predicted class's probability falls."""
    before, after = as_shares("full", full).astype(np.float64), as_shares(name, reduced).astype(np.float64)
    check_match(**{"full": before, name: after})
    return np.asarray(cores.probability_drop(np, before, after))

"""How sharp attention is, wherever it points: entropy, effective number of tokens, mass of the k most attended tokens.

Sharper attention need not be attention to the relevant tokens; for that see `attention` and `plausibility`. Beside each
measure stands its value for uniform attention, which alone is sharp on short texts. Leading axes broadcast.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from qkdyn.metrics import cores
from qkdyn.metrics.blocks import by_blocks
from qkdyn.metrics.checks import as_attention, as_counts, as_mask, check_match

Attention = Float[np.ndarray, "*#batch T"]
Tokens = Bool[np.ndarray, "*#batch T"]
Count = int | np.integer | Int[np.ndarray, "*#batch"]


def attention_entropy(attention: Attention) -> Float[np.ndarray, "*batch"]:
    """Entropy of attention, -sum a ln a, in nats: ln n if uniform over n tokens, 0 if all on one.

    Args:
        attention: (..., T), each row summing to 1, or all 0 where nothing may be attended to, whose entropy is 0.

    Returns:
        Nats, (...), float64.

    Raises:
        InputError: attention as for `qkdyn.metrics.attention.attention_mass`.
    """
    return np.asarray(cores.entropy(np, as_attention("attention", attention).astype(np.float64)))


def uniform_entropy(mask: Tokens) -> Float[np.ndarray, "*batch"]:
    """The entropy of uniform attention to the tokens of `mask`, (..., T): the logarithm of their number; 0 for none.

    Raises:
        InputError: a mask that is not bool or is empty.
    """
    return np.asarray(np.log(np.maximum(as_mask("mask", mask).sum(-1), 1)))


def entropy_share(attention: Attention, mask: Tokens) -> Float[np.ndarray, "*batch"]:
    """`attention_entropy` over `uniform_entropy`: comparable between texts of different lengths, and 1 if uniform.

    Where at most one token may be attended to, attention is uniform as it must be, and the share is 1.

    Args:
        attention: as for `attention_entropy`.
        mask: True where a token may be attended to, (..., T).

    Raises:
        InputError: attention as there, a mask that is not bool, shapes that do not match.
    """
    weights, allowed = as_attention("attention", attention).astype(np.float64), as_mask("mask", mask)
    check_match(attention=weights, mask=allowed)
    return np.asarray(cores.entropy_share(np, weights, allowed))


def effective_tokens(attention: Attention) -> Float[np.ndarray, "*batch"]:
    """Effective number of attended tokens, exp(entropy), from 1 to T; 0 where nothing is attended to.

    Of uniform attention it is the number of tokens that may be attended to. Arguments and errors: `attention_entropy`.
    """
    weights = as_attention("attention", attention).astype(np.float64)
    return np.where(weights.any(-1), np.exp(cores.entropy(np, weights)), 0.0)


def top_k_mass(attention: Attention, k: Count, among: Tokens | None = None) -> Float[np.ndarray, "*batch"]:
    """Share of attention on the k most attended tokens; of all of them where there are fewer than k.

    Args:
        attention: as for `attention_entropy`.
        k: a number of tokens from 1 to T, or one for each instance, (...); `cores.top_count` makes it of a share.
        among: True at the tokens that count, (..., T), such as those that are neither padding nor a query token.

    Returns:
        The mass, (...), in [0, 1], float64.

    Raises:
        InputError: attention as there, k out of range or not an integer, a mask that is not bool, shapes that do not match.
    """
    weights = as_attention("attention", attention).astype(np.float64)
    counted = np.ones(weights.shape, bool) if among is None else as_mask("among", among)
    number = as_counts("k", k, weights.shape[-1])[..., None]
    check_match(attention=weights, among=counted)
    check_match(attention=(weights * counted)[..., :1], k=number)
    mass = by_blocks(lambda a, n, m: cores.topk_mass(np, a, n[:, 0], m), weights, number, counted)
    return np.asarray(np.clip(mass, 0, 1))


def uniform_top_k_mass(mask: Tokens, k: Count, among: Tokens | None = None) -> Float[np.ndarray, "*batch"]:
    """The `top_k_mass` of uniform attention: min(k, tokens of `among`)/tokens of `mask`; 0 for none.

    Args:
        mask: True where a token may be attended to, (..., T).
        k: as for `top_k_mass`.
        among: as for `top_k_mass`; tokens that may not be attended to have no attention.

    Raises:
        InputError: masks that are not bool, k as there, shapes that do not match.
    """
    allowed = as_mask("mask", mask)
    counted = allowed if among is None else as_mask("among", among)
    check_match(mask=allowed, among=counted)
    number = as_counts("k", k, allowed.shape[-1])
    check_match(mask=allowed[..., :1], k=number[..., None])
    return np.asarray(np.minimum(number, (allowed & counted).sum(-1)) / np.maximum(allowed.sum(-1), 1))

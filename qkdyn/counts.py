"""Attention on token counts: without positions, a sequence is how often each token occurs. Else as `attention.forward`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qkdyn.attention import scores
from qkdyn.circuits import Params, parameterization_of


def forward(
    params: Params,
    E: Float[Array, "V d"],
    counts: Float[Array, "*#batch V"],
    x_T: Float[Array, "*#batch d"],
    *,
    scale: float | Float[Array, ""] = 1.0,
) -> tuple[Float[Array, "*batch M"], Float[Array, "*batch V"]]:
    """Logits and attention of one layer (Sec. 3, eq. (1)) on sequences given by their token counts.

    Args:
        params: `Params` in any parameterization.
        E: embedding of each token, (V, d).
        counts: how often each token may be attended to, (..., V), >= 0. Where nothing may, attention and logits are zero.
        x_T: the query's embedding, (..., d); whether the query is counted is the caller's choice.
        scale: multiplies the scores, e.g. d**-0.5.

    Returns:
        logits (..., M), and the attention that all occurrences of each token get together (..., V), which sums to one.
    """
    score = scale * scores(params, E, x_T)
    some = (counts > 0).any(-1, keepdims=True)
    score = jnp.where((counts > 0) | ~some, score, -jnp.inf)
    weight = counts * jnp.exp(score - jax.lax.stop_gradient(score.max(-1, keepdims=True)))
    attention = weight / jnp.where(some, weight.sum(-1, keepdims=True), 1.0)
    mixed = attention @ E
    ov = params["ov"]
    if parameterization_of(params).factorized_ov:
        return (mixed @ ov["W_V"].mT) @ ov["W_O"].mT, attention
    return mixed @ ov["W_OV"].mT, attention

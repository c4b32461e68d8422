"""One attention layer, f(X) = W_OV X^T softmax(X W_QK x_T), in whichever parameterization the tree says; and its loss."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from qkdyn.circuits import Params, parameterization_of


def scores(params: Params, X: Float[Array, "*#batch T d"], x_T: Float[Array, "*#batch d"]) -> Float[Array, "*batch T"]:
    """Attention scores X W_QK x_T, or X W_K (W_Q^T x_T), before scaling and softmax."""
    qk = params["qk"]
    if parameterization_of(params).factorized_qk:
        direction = (x_T @ qk["W_Q"]) @ qk["W_K"].mT
    else:
        direction = x_T @ qk["W_QK"].mT
    return jnp.einsum("...td,...d->...t", X, direction)


def forward(
    params: Params,
    X: Float[Array, "*#batch T d"],
    x_T: Float[Array, "*#batch d"],
    *,
    mask: Bool[Array, "*#batch T"] | None = None,
    scale: float | Float[Array, ""] = 1.0,
) -> tuple[Float[Array, "*batch M"], Float[Array, "*batch T"]]:
    """Logits and attention of one layer (Sec. 3, eq. (1)); leading axes broadcast.

    Args:
        params: `Params` in any parameterization.
        X: the tokens attended to, (..., T, d); whether the query is one of them is the caller's choice.
        x_T: the query token, (..., d).
        mask: True where a token may be attended to, (..., T). Where none may, attention and logits are zero.
        scale: multiplies the scores, e.g. d**-0.5.

    Returns:
        logits (..., M) and attention (..., T), which sums to one over T.
    """
    score = scale * scores(params, X, x_T)
    if mask is None:
        attention = _softmax(score)
    else:
        # A row with nothing to attend to would be 0/0: give it finite scores, then no attention at all.
        some = mask.any(-1, keepdims=True)
        attention = _softmax(jnp.where(mask | ~some, score, -jnp.inf)) * some
    mixed = jnp.einsum("...t,...td->...d", attention, X)
    ov = params["ov"]
    if parameterization_of(params).factorized_ov:
        return (mixed @ ov["W_V"].mT) @ ov["W_O"].mT, attention
    return mixed @ ov["W_OV"].mT, attention


def _softmax(score: Float[Array, "*batch T"]) -> Float[Array, "*batch T"]:
    """Softmax over the last axis, the quotient written as a product with the reciprocal.

    Compilers make either of a quotient by a sum, depending on what surrounds it; so written, a run has the same bits on
    one device and on many.
    """
    weight = jnp.exp(score - jax.lax.stop_gradient(score.max(-1, keepdims=True)))
    return weight * (1.0 / weight.sum(-1, keepdims=True))


def cross_entropy(logits: Float[Array, "*batch M"], y: Int[Array, "*batch"]) -> Float[Array, ""]:
    """The loss of Sec. 3, -log softmax(logits)_y in nats, averaged over all leading axes."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], -1).mean()

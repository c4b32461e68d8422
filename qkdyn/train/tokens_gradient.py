"""Loss and gradient of one batch of the synthetic task in closed form: `jax.value_and_grad` of the token-count loss, faster.

With one-hot embeddings the mixed token is the attention p itself, and of all queries only one a class occurs, so that four
rows of W_Q, or four columns of W_QK, are all that moves there (`split`, `join`); the rest has gradient zero. Arrays are laid
out [token, sequence]: the sequences are the vectors of the processor.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from qkdyn.circuits import Params, parameterization_of
from qkdyn.tasks.tokens import CLASSES, VOCABULARY, Tally, TokensTask, rows


def split(params: Params, task: TokensTask) -> Params:
    """The part of `params` that moves: of W_Q the queries' rows (C, d), of W_QK their columns (V, C), the rest whole."""
    q = _queries(task)
    qk = dict(params["qk"])
    if parameterization_of(params).factorized_qk:
        qk["W_Q"] = qk["W_Q"][q]
    else:
        qk["W_QK"] = qk["W_QK"][:, q]
    return {"qk": qk, "ov": params["ov"]}


def join(params: Params, moving: Params, task: TokensTask) -> Params:
    """`params` with the part that moves as in `moving`."""
    q = _queries(task)
    qk = dict(moving["qk"])
    if parameterization_of(params).factorized_qk:
        qk["W_Q"] = params["qk"]["W_Q"].at[q].set(qk["W_Q"])
    else:
        qk["W_QK"] = params["qk"]["W_QK"].at[:, q].set(qk["W_QK"])
    return {"qk": qk, "ov": moving["ov"]}


def _queries(task: TokensTask) -> slice:
    return slice(int(task.query_ids[0]), int(task.query_ids[-1]) + 1)


def loss_and_gradient(moving: Params, tally: Tally, task: TokensTask) -> tuple[Float[Array, ""], Params]:
    """Mean cross entropy of one batch, and its gradient in what moves."""
    qk, ov = moving["qk"], moving["ov"]
    form = parameterization_of(moving)
    scale = VOCABULARY**-0.5
    n, Y = task.columns(tally), task.one_hot(tally.c)
    size = n.shape[1]

    # Scores of each token under each class's query (C, V), and with them the attention p (V, N).
    S = scale * (qk["W_Q"] @ qk["W_K"].T if form.factorized_qk else qk["W_QK"].T)
    score = sum((S[c][:, None] * Y[c][None, :] for c in range(1, CLASSES)), S[0][:, None] * Y[0][None, :])
    score = jnp.where(n > 0, score, -jnp.inf)
    weight = n * jnp.exp(score - score.max(0, keepdims=True))
    p = weight * (1.0 / weight.sum(0, keepdims=True))

    h = ov["W_V"] @ p if form.factorized_ov else p
    logits = (ov["W_O"] if form.factorized_ov else ov["W_OV"]) @ h
    shifted = logits - logits.max(0, keepdims=True)
    e = jnp.exp(shifted)
    total = e.sum(0, keepdims=True)
    label = rows(Y, task.label_ids, VOCABULARY)
    loss = (jnp.log(total) - (label * shifted).sum(0, keepdims=True)).sum() / size

    D = (e * (1.0 / total) - label) / size
    if form.factorized_ov:
        dh = ov["W_O"].T @ D
        d_ov = {"W_O": D @ h.T, "W_V": dh @ p.T}
        dp = ov["W_V"].T @ dh
    else:
        d_ov = {"W_OV": D @ p.T}
        dp = ov["W_OV"].T @ D
    # Softmax backwards; p dp summed over tokens is D logits, since the logits are linear in p.
    dS = scale * (Y @ (p * (dp - (D * logits).sum(0, keepdims=True))).T)
    d_qk = {"W_K": dS.T @ qk["W_Q"], "W_Q": dS @ qk["W_K"]} if form.factorized_qk else {"W_QK": dS.T}
    return loss, {"qk": d_qk, "ov": d_ov}

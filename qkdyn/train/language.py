"""The loss of a language model on the tokens of answers, with the head computed at the labelled positions alone.

A head of V outputs on every position of a batch costs more than the model (V = 50,257), and all but a few per cent of its rows
have no label. The rows that have one are picked first: the same loss and the same gradient.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from qkdyn.errors import check_positive, reject
from qkdyn.transformer import TransformerConfig, head, states


def language_loss(
    params: Any,
    config: TransformerConfig,
    tokens: Int[Array | np.ndarray, "B T"],
    length: Int[Array | np.ndarray, " B"],
    queries: Int[Array | np.ndarray, "B Q"],
    row: Int[Array | np.ndarray, " L"],
    label: Int[Array | np.ndarray, " L"],
    weight: Float[Array | np.ndarray, " L"],
    *,
    smoothing: float | Float[Array, ""] = 0.0,
    key: Key[Array, ""] | None = None,
    embedded: Float[Array, "B T d"] | None = None,
) -> Float[Array, ""]:
    """Mean cross-entropy over the labels of a batch, in nats, with label smoothing.

    Args:
        params: of the transformer.
        config: static.
        tokens: (B, T), padded on the right.
        length: (B,).
        queries: (B, Q), positions of which some have a label.
        row: (L,), which of the B * Q queries each label is for, counted along the rows of `queries`.
        label: (L,), the token that follows.
        weight: (L,), of each label in the mean; 0 where there is none.
        smoothing: e; the loss of a label is (1 - e) (-log p_label) + e mean over all tokens of -log p, as PyTorch has it.
        key: for dropout.
        embedded: the token vectors, if the caller has gathered them.

    Raises:
        InputError: as `qkdyn.transformer.forward`; a row or label that is not there (where they are numpy arrays); smoothing
            outside [0, 1], where it is a number.
    """
    _check(config, queries, row, label, smoothing)
    x, _ = states(params, config, tokens, length, embedded=embedded, queries=queries, key=key)
    labelled = x.reshape(-1, x.shape[-1])[row]
    losses = smoothed(head(params, config, labelled[None])[0], jnp.asarray(label), smoothing)
    # 1 for a batch without labels: loss and gradient 0.
    return (weight * losses).sum() / jnp.maximum(jnp.asarray(weight).sum(), 1.0)


def _check(config: TransformerConfig, queries: Any, row: Any, label: Any, smoothing: Any) -> None:
    """Raise InputError for values out of range; traced and device arrays are trusted."""
    for name, array, count in (("row", row, math.prod(queries.shape)), ("label", label, config.n_outputs)):
        if isinstance(array, np.ndarray) and (wrong := (array < 0) | (array >= count)).any():
            place = int(wrong.argmax())
            reject(f"{name}[{place}]", int(array[place]), f"an integer from 0 to {count - 1}")
    if not isinstance(smoothing, jax.Array) and check_positive("smoothing", smoothing, zero=True) > 1:
        reject("smoothing", smoothing, "at most 1")


def smoothed(
    logits: Float[Array, "L M"], label: Int[Array, " L"], smoothing: float | Float[Array, ""]
) -> Float[Array, " L"]:
    """Cross-entropy against a label that has 1 - e of the weight, e being spread over all M evenly."""
    right = jnp.take_along_axis(logits, label[:, None], 1)[:, 0]
    return jax.nn.logsumexp(logits, 1) - (1 - smoothing) * right - smoothing * logits.mean(1)

"""What is measured of a run in the orthogonal setting: the two scalars of Theorem 1, attention and loss."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from qkdyn.attention import cross_entropy, forward
from qkdyn.circuits import Params, collapse


def ansatz_measures(params: Params, *, directions: Mapping[str, np.ndarray], batch: Any, m: int) -> dict[str, Array]:
    """Loss and alpha on `batch`, mu_OV and mu_QK by projection on the directions of Theorem 1.

    Args:
        params: any parameterization.
        directions: "qk" -> D (d, d) and "ov" -> Sbar (M, d).
        batch: a fixed evaluation design with X (N, T, d), x_T (N, d), y (N,); class tokens are the first m positions.
        m: number of class tokens in a context.

    Returns:
        Scalars: loss (mean, nats), mu_ov, mu_qk, alpha (attention mass on class tokens, mean over the batch).
    """
    flat = collapse(params)
    logits, attention = forward(flat, batch.X, batch.x_T)
    return {
        "loss": cross_entropy(logits, batch.y),
        "mu_ov": _projection(flat["ov"]["W_OV"], directions["ov"]),
        "mu_qk": _projection(flat["qk"]["W_QK"], directions["qk"]),
        "alpha": attention[:, :m].sum(-1).mean(),
    }


def _projection(W: Array, direction: np.ndarray) -> Float[Array, ""]:
    return jnp.vdot(W, jnp.asarray(direction / (direction**2).sum(), W.dtype))

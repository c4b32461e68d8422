"""What is measured of a run in the orthogonal setting: the two scalars of Theorem 1, attention and loss."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from qkdyn.attention import cross_entropy, forward
from qkdyn.circuits import Params, collapse
from qkdyn.tasks.orthogonal import OrthogonalTask


@dataclass(frozen=True)
class AnsatzProbe:
    """Measures parameters on a task's fixed evaluation design. Equal tasks give equal probes, so programs are shared."""

    task: OrthogonalTask

    def __call__(self, params: Params) -> dict[str, Float[Array, ""]]:
        """Loss (mean, nats), mu_ov and mu_qk by projection on Theorem 1's directions, alpha (mean mass on class tokens)."""
        flat = collapse(params)
        batch = self.task.evaluation()
        logits, attention = forward(flat, batch.X, batch.x_T)
        directions = self.task.directions()
        return {
            "loss": cross_entropy(logits, batch.y),
            "mu_ov": _projection(flat["ov"]["W_OV"], directions["ov"]),
            "mu_qk": _projection(flat["qk"]["W_QK"], directions["qk"]),
            "alpha": attention[:, : self.task.m].sum(-1).mean(),
        }


def _projection(W: Array, direction: np.ndarray) -> Float[Array, ""]:
    return jnp.vdot(W, jnp.asarray(direction / (direction**2).sum(), W.dtype))

"""What an intervention makes of a rate and of a gradient's length, as traced arithmetic for training and theory alike."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def multiplier(t: Array, schedule: Float[Array, "*circuits 4"]) -> Float[Array, "*circuits"]:
    """The schedule's rho(t); `schedule` has (start, end, begin, length) of one circuit or of several."""
    start, end, begin, length = schedule.T
    share = jnp.where(length > 0, jnp.clip((t - begin) / jnp.where(length > 0, length, 1.0), 0, 1), t >= begin)
    return start + (end - start) * share


def bounding(norm: Float[Array, "*n"], threshold: Array, clipped: Array, normalized: Array) -> Float[Array, "*n"]:
    """The number that multiplies a gradient of this norm; finite for a zero gradient."""
    least = jnp.maximum(norm, threshold)
    return jnp.where(clipped, threshold / least, jnp.where(normalized, 1 / least, 1.0))

"""What dropout keeps, by a hash of each entry's place: a few integer operations that fuse with whatever reads them.

`jax.random` fills whole arrays with bits of cryptographic strength first; on a CPU that took a quarter of a training step.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Key, UInt32

from qkdyn.errors import check_positive, reject


def survivors(key: Key[Array, ""], share: float, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """Which entries stay: each with probability 1 - share, to 2^-32, as if drawn apart; a pure function of key and place.

    Args:
        key: decides all.
        share: of entries that are dropped, in [0, 1).
        shape: of the array; the first 2^32 entries are drawn, then they repeat.

    Raises:
        InputError: another share.
    """
    if check_positive("share", share, zero=True) >= 1:
        reject("share", share, "below 1")
    place = jnp.zeros(shape, jnp.uint32)
    for axis, size in enumerate(shape):
        stride = math.prod(shape[axis + 1 :]) % 2**32
        if size > 1:
            place = place + jnp.uint32(stride) * jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    words = jax.random.bits(key, (2,), jnp.uint32)
    return _mixed(_mixed(place ^ words[0]) + words[1]) >= jnp.uint32(min(round(share * 2**32), 2**32 - 1))


def _mixed(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A bijection of 32 bits in which every bit decides about every other (C. Wellons' lowbias32)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)

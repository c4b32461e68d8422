"""The formulas of `cores` on arrays of any size, a block of instances at a time: comparing all pairs of tokens takes memory."""

from collections.abc import Callable
from typing import Any

import numpy as np

# Pairs of tokens in a block.
PAIRS = 2**20


def by_blocks(formula: Callable[..., Any], *arrays: np.ndarray) -> Any:
    """`formula(*arrays)` for arrays (..., T_i) whose leading axes broadcast; it returns arrays with those axes, or a tuple."""
    lead = np.broadcast_shapes(*(array.shape[:-1] for array in arrays))
    rows = [np.broadcast_to(array, (*lead, array.shape[-1])).reshape(-1, array.shape[-1]) for array in arrays]
    size = max(1, PAIRS // max(array.shape[-1] for array in arrays) ** 2)
    parts = [formula(*(array[i : i + size] for array in rows)) for i in range(0, len(rows[0]), size)]

    def whole(pieces: Any) -> np.ndarray:
        joined = np.concatenate(pieces)
        return joined.reshape((*lead, *joined.shape[1:]))

    if isinstance(parts[0], tuple):
        return tuple(whole(pieces) for pieces in zip(*parts, strict=True))
    return whole(parts)

"""PyTorch's one-cycle schedule: the rate rises and falls along half cosines, and AdamW's beta1 falls and rises against it."""

from typing import Any

import numpy as np

LOW, HIGH = 0.85, 0.95  # beta1 at the largest rate, and at both ends of the cycle.


def one_cycle(
    xp: Any, step: Any, *, cycle: int, warmup: int, divide: float = 25.0, final: float = 1e4
) -> tuple[Any, Any]:
    """Share of the largest rate, and beta1, of each update: `torch.optim.lr_scheduler.OneCycleLR` with cosines.

    Args:
        xp: numpy or jax.numpy.
        step: updates made before, from 0.
        cycle: updates of a whole cycle; the published runs end after half of theirs.
        warmup: the rate is largest at update `warmup` (from 1), i.e. pct_start * cycle.
        divide: the share at the start is 1 / divide.
        final: the share at the end is 1 / (divide * final).
    """
    top = warmup - 1
    rising = step <= top
    progress = xp.where(rising, step / max(top, 1), (step - top) / max(cycle - 1 - top, 1))

    def between(first: Any, last: Any) -> Any:
        return last + (first - last) * (1 + xp.cos(np.pi * progress)) / 2

    share = xp.where(rising, between(1 / divide, 1.0), between(1.0, 1 / (divide * final)))
    return share, xp.where(rising, between(HIGH, LOW), between(LOW, HIGH))

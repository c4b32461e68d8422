"""Runs under fixed attention brought to their end: chunk by chunk, saved on the way, resumed to the bit."""

from collections.abc import Callable

import numpy as np

from qkdyn.tasks.tokens import TokensTask
from qkdyn.train.fixed_attention import FixedRun, FixedState, advance_fixed
from qkdyn.train.interrupt import Request
from qkdyn.train.keeping import keep, restore
from qkdyn.train.store import Store

# Updates of one run between two returns to the host: a few seconds for forty runs, evaluation included.
CHUNK_STEPS = 2_500


def finish_fixed(
    states: FixedState,
    runs: FixedRun,
    task: TokensTask,
    key: str,
    *,
    epochs: int,
    batches: int,
    fresh: int,
    offsets: tuple[float, ...] = (0.0, 0.005),
    paired: bool = True,
    store: Store | None = None,
    request: Request | None = None,
    on_chunk: Callable[[np.ndarray], None] = lambda losses: None,
) -> tuple[FixedState, np.ndarray]:
    """Train from `states`, or go on from the newest checkpoint saved under `key`, to the end of all epochs.

    Args:
        states: N runs before their first step.
        runs: the N runs.
        task: what is learned.
        key: names all that decides their bits.
        epochs: epochs in all.
        batches: updates of an epoch.
        fresh: see `advance_fixed`, as for the next two.
        offsets: where losses are taken.
        paired: whether on the same batches.
        store: keeps checkpoints; None keeps nothing.
        request: noted signals.
        on_chunk: hears after each chunk the losses so far.

    Returns:
        The states, and losses (N, epochs + 1, offset), as of `advance_fixed`.

    Raises:
        Interrupted: a signal was noted; the state is saved. InputError: see `advance_fixed`.
    """
    records: dict[str, np.ndarray] = {}
    if store and (found := store.newest(key)):
        states, records = restore(found[0], states)
    while (done := records["losses"].shape[1] - 1 if records else 0) < epochs:
        count = min(max(1, CHUNK_STEPS // batches), epochs - done)
        states, new = advance_fixed(
            states, runs, task, epochs=count, batches=batches, fresh=fresh, offsets=offsets, paired=paired
        )
        # A chunk begins with the losses that the one before ended with.
        records = {"losses": np.concatenate([records["losses"], new[:, 1:]], 1) if records else new}
        on_chunk(records["losses"])
        keep(states, records, key, store, request)
    return states, records["losses"]

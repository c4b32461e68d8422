"""Runs on the synthetic task brought to their end: chunk by chunk, saved on the way, resumed to the bit."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from qkdyn.errors import InputError, check_count
from qkdyn.tasks.tokens import TokensTask
from qkdyn.train.interrupt import Request
from qkdyn.train.keeping import keep, restore
from qkdyn.train.store import Store
from qkdyn.train.tokens import Measure, TokenRun, TokenState, advance_tokens

# Updates of one run between two returns to the host: a few seconds for forty runs.
CHUNK_STEPS = 5_000


@dataclass(frozen=True)
class TokenCampaign:
    """What is trained, and how it is kept.

    Attributes:
        task: what is learned.
        epochs: at most so many epochs.
        batches: updates of an epoch.
        measure: further measures of one run's parameters at the end of each epoch.
        reset: the stop rule sums mean losses since the last multiple of this many epochs.
        store: keeps checkpoints; None keeps nothing.
        request: noted signals, after which the state is saved and `Interrupted` raised.
    """

    task: TokensTask
    epochs: int
    batches: int
    measure: Measure | None = None
    reset: int = 100
    store: Store | None = None
    request: Request | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batches", "reset"):
            check_count(name, getattr(self, name))

    def finish(
        self,
        states: TokenState,
        runs: TokenRun,
        key: str,
        on_chunk: Callable[[TokenState, dict[str, np.ndarray]], None] = lambda states, records: None,
    ) -> tuple[TokenState, dict[str, np.ndarray]]:
        """Train from `states`, or go on from the newest checkpoint saved under `key`, until every run has ended.

        Args:
            states: N runs before their first step.
            runs: the N runs.
            key: names all that decides their bits.
            on_chunk: hears after each chunk where the runs stand.

        Returns:
            The states, and for each measure an array (N, epochs, ...): loss is the mean training loss of each epoch; NaN
            after a run has stopped.

        Raises:
            Interrupted: a signal was noted; the state is saved.
        """
        if len(states.step) != len(runs.seed):
            raise InputError(f"states and runs must be equally many, got {len(states.step)} and {len(runs.seed)}")
        chunk = max(1, CHUNK_STEPS // self.batches)
        found = self.store.newest(key) if self.store else None
        records: dict[str, np.ndarray] = {}
        if found:
            states, records = restore(found[0], states)
        while (done := next((r.shape[1] for r in records.values()), 0)) < self.epochs and not states.stopped.all():
            active = np.flatnonzero(~states.stopped)
            some, new = advance_tokens(
                _rows(states, active),
                _rows(runs, active),
                self.task,
                epochs=min(chunk, self.epochs - done),
                batches=self.batches,
                measure=self.measure,
                reset=self.reset,
            )
            states = jax.tree.map(lambda whole, part: _with_rows(whole, active, part), states, some)  # noqa: B023
            records = _extend(records, new, active, len(states.step))
            on_chunk(states, records)
            keep(states, records, key, self.store, self.request)
        return states, records


def _rows(tree: Any, rows: np.ndarray) -> Any:
    return jax.tree.map(lambda leaf: leaf[rows], tree)


def _with_rows(whole: np.ndarray, rows: np.ndarray, part: np.ndarray) -> np.ndarray:
    out = np.array(whole)
    out[rows] = part
    return out


def _extend(
    records: dict[str, np.ndarray], new: dict[str, np.ndarray], active: np.ndarray, count: int
) -> dict[str, np.ndarray]:
    """The records with the epochs of `new` at their end; NaN for runs that are not `active`."""
    out = {}
    for name, values in new.items():
        wide = np.full((count, *values.shape[1:]), np.nan, values.dtype)
        wide[active] = values
        out[name] = np.concatenate([records[name], wide], axis=1) if records else wide
    return out

"""Runs on text brought to their end: chunk by chunk, measured after each epoch, saved on the way, resumed to the bit."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from qkdyn.errors import check_count
from qkdyn.text.encoded import Encoded
from qkdyn.train.devices import arms_mesh, filled_up, spread
from qkdyn.train.interrupt import Asked, Request
from qkdyn.train.keeping import keep, restore
from qkdyn.train.store import Store
from qkdyn.train.text_batches import Batches, cut, epoch_batches, room, widen
from qkdyn.train.text_engine import TextJob, TextRuns, TextState, advance, begin, idle_of, settle

# Updates between two returns to the host: a few seconds for forty runs.
CHUNK_STEPS = 64
# A record of the epoch that is trained but not measured yet.
UNMEASURED = "unmeasured"
Records = dict[str, np.ndarray]


@dataclass
class TextCampaign:
    """What is trained and measured, and how it is kept.

    Attributes:
        job: what all runs share.
        seeds: S of them.
        data: the posts to learn.
        batch: posts of an update.
        by_length: batches of posts of similar length.
        epochs: passes over the posts.
        measure: (settled state, epoch from 0, records so far) -> records, each (S, A or more, ...): called after each epoch;
            it may leave off by `Request.check`, and is called again when the run goes on.
        store: keeps checkpoints; None keeps nothing.
        request: noted signals.
        start: what is made of the state before the first update, of which all arms of a seed are alike.
        tokens: real tokens trained on by this process, all runs together.
        seconds: that their training took.
    """

    job: TextJob
    seeds: tuple[int, ...]
    data: Encoded
    batch: int
    by_length: bool
    epochs: int
    measure: Callable[[TextState, int, Records], Records]
    store: Store | None = None
    request: Request | None = None
    start: Callable[[TextState], TextState] = lambda state: state
    tokens: float = field(default=0.0, init=False)
    seconds: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs)

    def finish(
        self, runs: TextRuns, key: str, on_chunk: Callable[[int, Records], None] = lambda step, records: None
    ) -> tuple[TextState, Records]:
        """Train all arms of all seeds, or go on from the newest checkpoint saved under `key`.

        Args:
            runs: A arms.
            key: names all that decides the bits.
            on_chunk: hears after each chunk how many updates are made, and the records so far.

        Returns:
            The state, settled, and records: "losses" (S, A, updates) before each update, and what `measure` makes of them.

        Raises:
            Interrupted: a signal was noted; the state is saved.
        """
        arms, mesh = len(runs.rate), arms_mesh()
        runs = filled_up(runs, mesh.size)
        idle = spread(mesh, jax.tree.map(jnp.asarray, idle_of(self.job, runs)), -1)
        state = self.start(begin(self.job, self.seeds, arms))
        runs = spread(mesh, jax.tree.map(jnp.asarray, runs), 0)
        records: Records = {}
        if self.store and (found := self.store.newest(key)):
            state, records = restore(found[0], state)
        state = spread(mesh, filled_up(state, mesh.size, 1), 1)
        if UNMEASURED in records:
            records = self._measured(state, arms, int(records.pop(UNMEASURED)), records, key)
        batches, prepared, unique = None, -1, 0
        while (step := int(state.step)) < self.job.steps:
            epoch, start = divmod(step, self.job.steps // self.epochs)
            if prepared != epoch or batches is None:
                batches, prepared = self._batches(epoch), epoch
                unique = max(unique or room(batches), batches.ids.shape[-1])
                batches = widen(batches, unique, self.job.model.vocabulary)
            size = min(CHUNK_STEPS, len(batches.width))
            count = min(size, len(batches.width) - start)
            chunk = cut(batches, start, count, size)
            begun = time.monotonic()
            state, losses = advance(self.job, runs, idle, state, chunk, jnp.int32(count))
            losses = np.asarray(losses)[:count, :, :arms].transpose(1, 2, 0)
            self.seconds += time.monotonic() - begun
            self.tokens += float((chunk.weight * chunk.length)[:count].sum()) * arms
            records["losses"] = np.concatenate([records["losses"], losses], 2) if records else losses
            if start + count == len(batches.width):
                state = settle(self.job, state, idle)
                records = self._measured(state, arms, epoch, records, key)
            on_chunk(step + count, records)
            if (self.request and self.request.name) or (self.store and self.store.due()):
                # Without the copies that fill up the devices: another number of them goes on from there.
                keep(_first(state, arms), records, key, self.store, self.request)
        return _first(state, arms), records

    def _measured(self, state: TextState, arms: int, epoch: int, records: Records, key: str) -> Records:
        """The records with what is measured of a settled state, which is saved where that is left off."""
        try:
            if self.request:
                self.request.check()
            return self.measure(state, epoch, records)
        except Asked:
            keep(_first(state, arms), records | {UNMEASURED: np.array(epoch)}, key, self.store, self.request)
            raise

    def _batches(self, epoch: int) -> Batches:
        return epoch_batches(
            self.data,
            self.job.model,
            seeds=self.seeds,
            epoch=epoch,
            batch=self.batch,
            widths=self.job.widths,
            by_length=self.by_length,
        )


def _first(state: TextState, arms: int) -> TextState:
    """The state of the first arms alone."""
    return jax.tree.map(lambda leaf: leaf[:, :arms] if leaf.ndim > 1 and leaf.shape[1] > arms else leaf, state)

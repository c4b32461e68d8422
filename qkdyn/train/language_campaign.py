"""A run of a language model brought to its end: measured after each epoch, the best epoch kept, resumed to the bit."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qkdyn.errors import check_count, reject
from qkdyn.text.prompts import Prompts
from qkdyn.train.devices import arms_mesh, copied, spread
from qkdyn.train.interrupt import Asked, Request
from qkdyn.train.keeping import keep, restore
from qkdyn.train.language_batches import Batches, cut, epoch_batches, updates_of
from qkdyn.train.language_engine import LanguageJob, LanguageRun, LanguageState, advance, begin
from qkdyn.train.store import Store

# Updates between two returns to the host: a few seconds on two cores.
CHUNK_STEPS = 16
# The record that decides which epoch is the best.
SELECTION = "selection/f1"
# A record of the epoch that is trained but not measured yet.
UNMEASURED = "unmeasured"
Records = dict[str, np.ndarray]


@dataclass
class LanguageCampaign:
    """What is trained and measured, and how it is kept.

    Attributes:
        job: what all runs share.
        seed: of the start, of dropout and of the order of questions.
        prompts: the questions to learn.
        batch: questions of a micro-batch.
        epochs: passes over the questions.
        measure: (state, epoch from 0, records so far) -> records, each of shape (epochs so far, ...) or (updates so far,);
            "selection/f1", (epochs so far,), among them: called after each epoch; it may leave off by
            `Request.check`, and is called again when the run goes on.
        store: keeps checkpoints; None keeps nothing.
        request: noted signals.
        by_length: updates of questions of similar length.
        vectors: token vectors known before; they must be part of `key`.
        tokens: real tokens trained on by this process.
        seconds: that this took.

    Raises:
        InputError: a job that has not the updates of so many epochs.
    """

    job: LanguageJob
    seed: int
    prompts: Prompts
    batch: int
    epochs: int
    measure: Callable[[LanguageState, int, Records], Records]
    store: Store | None = None
    request: Request | None = None
    by_length: bool = True
    vectors: Any = None
    tokens: float = field(default=0.0, init=False)
    seconds: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        each = updates_of(len(self.prompts.ids), self.batch, self.job.micro)
        if self.job.steps != check_count("epochs", self.epochs) * each:
            reject("steps", self.job.steps, f"{self.epochs * each}, {each} updates for each of {self.epochs} epochs")

    def finish(
        self, run: LanguageRun, key: str, on_chunk: Callable[[int, Records], None] = lambda step, records: None
    ) -> tuple[LanguageState, Any, Records]:
        """Train to the end, or go on from the newest checkpoint saved under `key`.

        A run whose loss is no number any more ends where that happened, with fewer losses than `steps`.

        Args:
            run: settings of the arm.
            key: names all that decides the bits.
            on_chunk: hears after each chunk how many updates are made, and the records so far.

        Returns:
            The state; the parameters after the epoch of the highest `SELECTION`, of equals the first (those of the start
            if no epoch was measured); and records: "losses" (updates,) before each update, "best/epoch" (from 1; 0 for none),
            and what `measure` makes of them.

        Raises:
            Interrupted: a signal was noted; the state is saved.
        """
        mesh = arms_mesh(math.gcd(self.batch, jax.local_device_count()))
        state = begin(self.job, self.seed, self.vectors)
        best, records = _on_host(state.params), {}
        if self.store and (found := self.store.newest(key)):
            (state, best), records = restore(found[0], (state, best))
        state, run = copied(mesh, state), copied(mesh, jax.tree.map(jnp.float32, run))
        if UNMEASURED in records:
            best, records = self._measured(state, best, int(records.pop(UNMEASURED)), records, key)
        batches, prepared = None, -1
        each = self.job.steps // self.epochs
        while (step := int(state.step)) < self.job.steps:
            epoch, start = divmod(step, each)
            if prepared != epoch or batches is None:
                batches, prepared = self._batches(epoch), epoch
            size = min(CHUNK_STEPS, each)
            count = min(size, each - start)
            chunk = cut(batches, start, count, size)
            begun = time.monotonic()
            state, losses = advance(self.job, run, state, spread(mesh, chunk, 2), jnp.int32(count))
            losses = np.asarray(losses)[:count]
            self.seconds += time.monotonic() - begun
            self.tokens += float(chunk.posts.length[:count].sum())
            records["losses"] = np.concatenate([records["losses"], losses]) if records else losses
            if not np.isfinite(losses).all():
                break
            if start + count == each:
                best, records = self._measured(state, best, epoch, records, key)
            on_chunk(step + count, records)
            if (self.request and self.request.name) or (self.store and self.store.due()):
                keep((state, best), records, key, self.store, self.request)
        records.setdefault("best/epoch", np.array(0))
        return state, best, records

    def _measured(self, state: LanguageState, best: Any, epoch: int, records: Records, key: str) -> tuple[Any, Records]:
        """The best parameters and the records after measuring; the state is saved where that is left off."""
        try:
            if self.request:
                self.request.check()
            records = self.measure(state, epoch, records)
        except Asked:
            keep((state, best), records | {UNMEASURED: np.array(epoch)}, key, self.store, self.request)
            raise
        if epoch + 1 == 1 + int(np.argmax(records[SELECTION])):
            best, records["best/epoch"] = _on_host(state.params), np.array(epoch + 1)
        return best, records

    def _batches(self, epoch: int) -> Batches:
        return epoch_batches(
            self.prompts,
            self.job.shapes,
            seed=self.seed,
            epoch=epoch,
            batch=self.batch,
            micro=self.job.micro,
            by_length=self.by_length,
        )


def _on_host(tree: Any) -> Any:
    """A copy that the next update does not use up."""
    return jax.tree.map(lambda leaf: np.array(leaf, copy=True), tree)

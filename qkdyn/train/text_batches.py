"""An epoch of text batches for several seeds side by side, as the engine reads them: token ids once each, and their places."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from qkdyn.text.batches import UNIQUE_MULTIPLE, epoch_plan, unique_tokens
from qkdyn.text.encoded import Encoded
from qkdyn.transformer import TransformerConfig, readout_positions


class Batches(NamedTuple):
    """Steps of S seeds; posts that a batch lacks have weight 0.

    Attributes:
        ids: (steps, S, U), the embedding rows that each batch reads, each once; from the vocabulary's size on, none.
        inverse: (steps, S, B, T), where each token's row is among them.
        length: (steps, S, B), tokens of each post.
        readout: (steps, S, B), the position whose output is the prediction.
        label: (steps, S, B), class.
        weight: (steps, S, B), 1, or 0 for no post.
        width: (steps,), index of the bucket width that holds the batch.
    """

    ids: np.ndarray
    inverse: np.ndarray
    length: np.ndarray
    readout: np.ndarray
    label: np.ndarray
    weight: np.ndarray
    width: np.ndarray


def readouts(data: Encoded, config: TransformerConfig) -> np.ndarray:
    """The readout position of each post, (N,).

    The first pad of a post that fills all n_ctx slots is not there: position 0 then, as the published code's argmax has it.
    """
    return np.asarray(readout_positions(data.length, config, data.n_ctx))


def slots_read(data: Encoded, config: TransformerConfig) -> np.ndarray:
    """Slots that training needs of each post, (N,): up to the readout where attention is causal, else all real tokens.

    Bidirectional attention without a padding mask reads every slot.
    """
    if not (config.causal or config.mask_padding):
        return np.full(len(data), data.n_ctx)
    return np.maximum(readouts(data, config) + 1, data.length if not config.causal else 1)


def epoch_batches(
    data: Encoded,
    config: TransformerConfig,
    *,
    seeds: Sequence[int],
    epoch: int,
    batch: int,
    widths: Sequence[int],
    by_length: bool,
) -> Batches:
    """All batches of an epoch, those of the seeds side by side; a pure function of its arguments.

    The order of posts depends on seed and epoch alone, so that all arms of a seed see the same.
    """
    needed, where = slots_read(data, config), readouts(data, config)
    plans = [
        epoch_plan(needed, batch=batch, widths=widths, seed=seed, epoch=epoch, by_length=by_length) for seed in seeds
    ]
    posts = np.stack([plan.posts for plan in plans], 1)
    width = np.searchsorted(np.asarray(widths), np.stack([plan.width for plan in plans]).max(0))
    there = posts >= 0
    slots = min(widths[-1], data.tokens.shape[1])
    tokens = np.full((*posts.shape, widths[-1]), data.pad, np.int32)
    tokens[..., :slots] = data.tokens[posts, :slots]
    read = there[..., None] & (np.arange(widths[-1]) < needed[posts][..., None])
    flat = (-1, *tokens.shape[2:])
    spare = config.vocabulary
    ids, inverse = unique_tokens(tokens.reshape(flat), spare, read.reshape(flat))
    return Batches(
        ids=ids.reshape(*posts.shape[:2], -1),
        inverse=inverse.reshape(tokens.shape),
        length=np.where(there, data.length[posts], 1).astype(np.int32),
        readout=np.where(there, where[posts], 0).astype(np.int32),
        label=np.where(there, data.label[posts], 0).astype(np.int32),
        weight=there.astype(np.float32),
        width=width.astype(np.int32),
    )


def widen(batches: Batches, unique: int, spare: int) -> Batches:
    """The same with room for `unique` rows, so that one program serves all epochs."""
    missing = unique - batches.ids.shape[-1]
    return batches._replace(ids=np.pad(batches.ids, ((0, 0), (0, 0), (0, missing)), constant_values=spare))


def room(batches: Batches) -> int:
    """Rows to provide for, judged from one epoch: an eighth more than it needs."""
    return -(-batches.ids.shape[-1] * 9 // 8 // UNIQUE_MULTIPLE) * UNIQUE_MULTIPLE


def cut(batches: Batches, start: int, count: int, size: int) -> Batches:
    """Steps from `start`, `count` of them, filled up to `size` by repeating the last: one shape serves all chunks."""
    rows = np.minimum(np.arange(start, start + size), start + count - 1)
    return jax.tree.map(lambda leaf: leaf[rows], batches)

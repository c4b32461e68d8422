"""Which posts are in which batch, in how many slots: length buckets, seeded shuffles, the token ids that a batch reads."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32

from qkdyn.errors import as_tuple, check_count, reject
from qkdyn.text.encoded import MULTIPLE

# Unique ids are filled up to a multiple of this, so that few programs serve all epochs.
UNIQUE_MULTIPLE = 64
# No text here has more slots, and no batch more posts; the time and memory of what follows grow with them.
LARGEST_WIDTH, LARGEST_BATCH = 10_000, 10**6
# What each stream of random numbers is for: the posts of a batch, and the order of the widths.
_POSTS, _WIDTHS = 1, 2


class Plan(NamedTuple):
    """The batches of an epoch in their order.

    Attributes:
        posts: indices of posts, (steps, B); -1 where a batch has no post, which only the last posts of an epoch leave.
        width: slots of each batch, (steps,): the narrowest of the widths that holds its posts' bucket.
    """

    posts: Int32[np.ndarray, "steps B"]
    width: Int32[np.ndarray, "steps"]


def _checked_lengths(lengths: Int[np.ndarray, "N"]) -> Int[np.ndarray, "N"]:
    """The lengths as an array, or InputError where there are none or one is not positive."""
    values = np.asarray(lengths)
    if values.ndim != 1 or not len(values) or values.dtype.kind not in "iu" or values.min() < 1:
        reject("lengths", lengths, "the number of tokens of each post, integers >= 1")
    return values.astype(np.int64)


def _checked_widths(widths: Sequence[int], longest: int) -> np.ndarray:
    """Increasing widths of which the last holds the longest post, or InputError."""
    values = np.array([check_count("widths", width) for width in as_tuple("widths", widths)])
    if not len(values) or (np.diff(values) <= 0).any() or values[-1] < longest:
        reject("widths", widths, f"increasing, the last at least {longest} (the longest post)", "see bucket_widths")
    return values


def _checked_batch(batch: int) -> int:
    """The size of a batch, or InputError where it is not from 1 to a million."""
    if check_count("batch", batch) > LARGEST_BATCH:
        reject("batch", batch, f"at most {LARGEST_BATCH:,} posts")
    return int(batch)


def bucket_widths(lengths: Int[np.ndarray, "N"], count: int = 4) -> tuple[int, ...]:
    """The widths, at most `count`, that leave the fewest padding slots when each post takes the narrowest that holds it.

    Args:
        lengths: tokens of each post, (N,).
        count: most widths, each of which is compiled once.

    Returns:
        Increasing multiples of 8, the last at least the longest post. Of equally good choices, one of the fewest widths.

    Raises:
        InputError: no lengths, or lengths below 1 or above 10,000.
    """
    values, count = _checked_lengths(lengths), check_count("count", count)
    if values.max() > LARGEST_WIDTH:
        reject("the longest of lengths", int(values.max()), f"at most {LARGEST_WIDTH:,} tokens", "truncate the posts")
    edges = np.arange(0, int(values.max()) + MULTIPLE, MULTIPLE)
    held = np.searchsorted(np.sort(values), edges, side="right")
    # slots[i, j]: what the posts between edges i and j take in width j; total[j]: what all posts up to edge j take in the
    # best widths of which j is the last.
    slots = np.where(edges[:, None] < edges, edges * (held - held[:, None]), np.inf)
    total, chosen = np.where(edges == 0, 0.0, np.inf), [()] * len(edges)
    best, widths = np.inf, ()
    for _ in range(count):
        before = (total[:, None] + slots).argmin(0)
        total = (total[:, None] + slots).min(0)
        chosen = [(*chosen[i], int(edge)) for i, edge in zip(before, edges, strict=True)]
        if total[-1] < best:
            best, widths = total[-1], chosen[-1]
    return widths


def _generator(*words: int) -> np.random.Generator:
    """Random numbers that are a pure function of some integers >= 0."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


def _cut(order: Int[np.ndarray, "N"], batch: int) -> Int32[np.ndarray, "steps batch"]:
    """Posts in rows of `batch`, the last row filled up with -1."""
    steps = -(-len(order) // batch)
    rows = np.full(steps * batch, -1, np.int32)
    rows[: len(order)] = order
    return rows.reshape(steps, batch)


def _narrowest(
    lengths: np.ndarray, posts: Int32[np.ndarray, "steps B"], widths: np.ndarray
) -> Int32[np.ndarray, "steps"]:
    """The narrowest width that holds every post of each batch."""
    longest = np.where(posts >= 0, lengths[posts], 0).max(1)
    return widths[np.searchsorted(widths, longest)].astype(np.int32)


def epoch_plan(
    lengths: Int[np.ndarray, "N"], *, batch: int, widths: Sequence[int], seed: int, epoch: int, by_length: bool
) -> Plan:
    """The batches of one epoch: every post exactly once, ceil(N / batch) steps, a pure function of the arguments.

    With `by_length` the posts of a batch are of one bucket, drawn at random by (seed, epoch); what does not fill a batch
    goes with the next wider bucket, so that only one batch of the epoch is not full and the number of steps is that of a
    plain shuffle. The widths and their order depend on the epoch alone: runs of different seeds can be trained side by side.
    Without it, a uniform shuffle by (seed, epoch).

    Args:
        lengths: tokens of each post, (N,).
        batch: posts of a batch, B.
        widths: increasing slots of the buckets, see `bucket_widths`.
        seed: of the run, >= 0.
        epoch: >= 0.
        by_length: batches of posts of similar length.

    Raises:
        InputError: lengths below 1, widths that do not hold the longest post, or counts out of range.
    """
    values, batch = _checked_lengths(lengths), _checked_batch(batch)
    slots = _checked_widths(widths, int(values.max()))
    seed, epoch = check_count("seed", seed, minimum=0), check_count("epoch", epoch, minimum=0)
    order = _generator(_POSTS, seed, epoch).permutation(len(values))
    if not by_length:
        posts = _cut(order, batch)
        return Plan(posts, _narrowest(values, posts, slots))
    # A stable sort by bucket of shuffled posts: buckets from narrow to wide, random within, cut without regard to their
    # borders. A batch is as wide as the bucket of its last post.
    bucket = np.searchsorted(slots, values)
    posts = _cut(order[np.argsort(bucket[order], kind="stable")], batch)
    width = slots[bucket[posts].max(1, where=posts >= 0, initial=0)].astype(np.int32)
    steps = _generator(_WIDTHS, epoch).permutation(len(posts))
    return Plan(posts[steps], width[steps])


def evaluation_plan(lengths: Int[np.ndarray, "N"], *, batch: int, widths: Sequence[int]) -> Plan:
    """Every post once, in batches of rising length, each as narrow as the widths allow.

    Raises:
        InputError: as `epoch_plan`.
    """
    values, batch = _checked_lengths(lengths), _checked_batch(batch)
    slots = _checked_widths(widths, int(values.max()))
    posts = _cut(np.argsort(values, kind="stable"), batch)
    return Plan(posts, _narrowest(values, posts, slots))


def unique_tokens(
    tokens: Int32[np.ndarray, "steps B T"], spare: int, read: Bool[np.ndarray, "steps B T"] | None = None
) -> tuple[Int32[np.ndarray, "steps U"], Int32[np.ndarray, "steps B T"]]:
    """The ids that each batch reads, once each, and where each token is among them: what an update needs of an embedding.

    Args:
        tokens: token ids of many batches, (steps, B, T).
        spare: id that fills the list up; none that is read, such as the vocabulary's size.
        read: tokens whose embedding is read; all, if None. The others add no id.

    Returns:
        ids: (steps, U), rising, then `spare`; U is the most that a batch reads, rounded up to a multiple of 64.
        inverse: (steps, B, T), ids[step, inverse] = tokens where read, 0 elsewhere.

    Raises:
        InputError: tokens that are not integers, negative ids, `read` of another shape or not bool, a spare id that is read.
    """
    if tokens.ndim != 3 or tokens.dtype.kind not in "iu":
        reject("tokens", f"{tokens.dtype} of shape {tokens.shape}", "integers of shape (steps, B, T)")
    if read is not None and (read.shape != tokens.shape or read.dtype != np.bool_):
        reject("read", f"{read.dtype} of shape {read.shape}", f"bool of shape {tokens.shape}, that of tokens")
    if tokens.size and tokens.min() < 0:
        reject("tokens", int(tokens.min()), "ids >= 0")
    place = np.zeros(int(tokens.max(initial=0)) + 1, np.int32)
    present = np.zeros(len(place), bool)
    found, inverse = [], np.zeros(tokens.shape, np.int32)
    for step, batch in enumerate(tokens):
        mask = slice(None) if read is None else read[step]
        present[batch[mask]] = True
        ids = np.flatnonzero(present)
        present[ids] = False
        place[ids] = np.arange(len(ids))
        inverse[step][mask] = place[batch[mask]]
        found.append(ids)
    most = max((len(ids) for ids in found), default=0) or 1
    unique = np.full((len(found), -(-most // UNIQUE_MULTIPLE) * UNIQUE_MULTIPLE), spare, np.int32)
    for row, ids in zip(unique, found, strict=True):
        if len(ids) and ids[np.searchsorted(ids, spare) % len(ids)] == spare:
            reject("spare", spare, "an id that no token has", "give the vocabulary's size")
        row[: len(ids)] = ids
    return unique, inverse

"""The synthetic task of Sec. 4: sequences of token ids without order, so that a sequence is its token counts.

50 ids: 0 to 9 are common, class c of four owns 10 + 10 c to 19 + 10 c. A sequence has `length` - 2 context tokens, drawn
independently from its class's law, the query, which is attended to as well, and the label. Drawing goes in three stages,
`words`, `tally` and `place`, so that a training loop can keep them apart; `batch_of` is all three.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt32

from qkdyn.errors import check_count, check_positive, reject

CLASSES, COMMON, DISTINCT = 4, 10, 10
VOCABULARY = COMMON + CLASSES * DISTINCT
# The tally is written out over the context; far longer ones would take long to compile.
LONGEST = 514


class TokenBatch(NamedTuple):
    """N sequences: counts of every id in what is attended to (N, V), query id (N,), label id (N,)."""

    counts: Float[Array, "N V"]
    query: Int[Array, " N"]
    y: Int[Array, " N"]


class Tally(NamedTuple):
    """Context tokens of N sequences by outcome, the ten common ids first, then the ten of its class; and the classes.

    Attributes: below, how many tokens are at most outcome k (19, N); c, class (N,).
    """

    below: Int[Array, "19 N"]
    c: Int[Array, " N"]


@dataclass(frozen=True)
class TokensTask:
    """How sequences are drawn. The defaults are those of Fig. 2; Fig. 3 has batch 128, equal and swapped.

    Attributes:
        length: tokens of a sequence, its query and label included.
        batch: sequences in a batch.
        gamma: probability of a token of the class's own, uniform among the ten (the paper's gamma / C mixture); None
            weights them 0.1, 0.2, ..., 1.0 against 1 for each common id, so that gamma is 5.5 / 15.5.
        equal: equally many sequences of each class, in the order of the classes; otherwise each class is drawn.
        swapped: queries are the ids 1 + c and labels 5 + c, otherwise 5 + c and 1 + c.
    """

    length: int = 64
    batch: int = 32
    gamma: float | None = None
    equal: bool = False
    swapped: bool = False

    def __post_init__(self) -> None:
        if check_count("length", self.length, minimum=3, do="query, label and a context token") > LONGEST:
            reject("length", self.length, f"at most {LONGEST}")
        if check_count("batch", self.batch) * VOCABULARY > 10**8:
            reject("batch", self.batch, f"at most {10**8 // VOCABULARY:,}")
        if self.gamma is not None and check_positive("gamma", self.gamma) >= 1:
            reject("gamma", self.gamma, "in (0, 1)", "None takes the weights 0.1 to 1.0")
        self._check_size("batch", self.batch)

    def _check_size(self, name: str, size: int) -> int:
        if self.equal and size % CLASSES:
            reject(name, size, f"a multiple of {CLASSES}", "so that each class has equally many sequences")
        return size

    @property
    def context(self) -> int:
        """Context tokens of a sequence."""
        return self.length - 2

    @property
    def query_ids(self) -> np.ndarray:
        """Query id of each class."""
        return np.arange(CLASSES) + (1 if self.swapped else 5)

    @property
    def label_ids(self) -> np.ndarray:
        """Label id of each class."""
        return np.arange(CLASSES) + (5 if self.swapped else 1)

    def law(self) -> np.ndarray:
        """Probabilities of the twenty outcomes of a context token: ten common ids, ten of the class's own (float64)."""
        if self.gamma is None:
            weights = np.concatenate([np.ones(COMMON), np.arange(1, DISTINCT + 1) / DISTINCT])
            return weights / weights.sum()
        return np.repeat([(1 - self.gamma) / COMMON, self.gamma / DISTINCT], [COMMON, DISTINCT])

    def batch_of(self, key: Key[Array, ""], size: int | None = None) -> TokenBatch:
        """One batch of `size` (default `batch`) sequences. Raises InputError for a size that does not fit `equal`."""
        return self.place(self.tally(self.words(key, size)))

    def words(self, key: Key[Array, ""], size: int | None = None) -> UInt32[Array, "rows N"]:
        """The random words of a batch: a row for each context token and one more for the class."""
        size = self.batch if size is None else self._check_size("size", check_count("size", size))
        pairs = self.context // 2 + 1
        counter = jax.lax.broadcasted_iota(jnp.uint32, (pairs, size), 0) * size
        counter = counter + jax.lax.broadcasted_iota(jnp.uint32, (pairs, size), 1)
        return jnp.concatenate(threefry(jax.random.key_data(key), counter))

    def tally(self, words: UInt32[Array, "rows N"]) -> Tally:
        """Words to outcomes, by comparison with the cumulated law: its probabilities are rounded to 2^-32."""
        cumulated = np.round(np.cumsum(self.law())[:-1] * 2.0**32)
        threshold = jnp.asarray(np.minimum(cumulated, 2**32 - 1).astype(np.uint32))[:, None]
        below = jnp.zeros((threshold.shape[0], words.shape[1]), jnp.int32)
        # Written out, it is one vectorized expression; a sum over an axis is several times slower on CPUs.
        for token in range(self.context):
            below = below + (words[token][None, :] < threshold)
        if self.equal:
            return Tally(below, jnp.repeat(jnp.arange(CLASSES), words.shape[1] // CLASSES))
        return Tally(below, (words[-1] >> np.uint32(30)).astype(jnp.int32))

    def one_hot(self, c: Int[Array, " N"]) -> Float[Array, "C N"]:
        """Classes as columns."""
        return (c[None, :] == jnp.arange(CLASSES)[:, None]).astype(jnp.float32)

    def columns(self, tally: Tally) -> Float[Array, "V N"]:
        """Counts of every id in what is attended to, the query among them; a sequence is a column."""
        whole = jnp.full_like(tally.below[:1], self.context)
        upto = jnp.concatenate([tally.below, whole])
        n = jnp.concatenate([upto[:1], upto[1:] - upto[:-1]]).astype(jnp.float32)
        Y = self.one_hot(tally.c)
        common = n[:COMMON] + rows(Y, self.query_ids, COMMON)
        return jnp.concatenate([common, *(n[COMMON:] * Y[c][None, :] for c in range(CLASSES))])

    def place(self, tally: Tally) -> TokenBatch:
        """Outcomes to token counts, query and label ids."""
        query, label = jnp.asarray(self.query_ids)[tally.c], jnp.asarray(self.label_ids)[tally.c]
        return TokenBatch(self.columns(tally).T, query, label)


def rows(Y: Float[Array, "C N"], ids: np.ndarray, count: int) -> Float[Array, "count N"]:
    """The rows of Y at the consecutive ids `ids` of `count`, zeros elsewhere."""
    return jnp.pad(Y, ((int(ids[0]), count - 1 - int(ids[-1])), (0, 0)))


def threefry(key: UInt32[Array, "2"], counter: UInt32[Array, "*shape"]) -> tuple[Any, Any]:
    """Threefry-2x32 of the blocks (counter, 0): JAX's default generator, written out.

    As one expression it runs several times faster on CPUs than `jax.random.bits`, and both words of a block are used.
    """
    keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    a, b = counter + keys[0], jnp.zeros_like(counter) + keys[1]
    for group in range(5):
        for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            a = a + b
            b = a ^ ((b << np.uint32(rotation)) | (b >> np.uint32(32 - rotation)))
        a = a + keys[(group + 1) % 3]
        b = b + keys[(group + 2) % 3] + np.uint32(group + 1)
    return a, b

"""Theorem 1's population as a finite, weighted list of sequences: its expectations are sums, without sampling.

A `Population` says how sequences are made; its methods give a `Design`: every sequence (`enumerated`), few sequences with
the same gradient on the ansatz (`balanced`), or a training set (`sample`, `antithetic`). Tokens are chosen as indices
and signs first and embedded last, so that a variant of Sec. 6.1's assumptions is another embedding or another query.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import jax
import numpy as np
from jaxtyping import Array, Bool, Float64, Int, Key

from qkdyn.errors import RangeError, check_count, check_positive, reject

Query = Literal["single", "mean", "copied"]
MOST_SEQUENCES, MOST_NUMBERS = 10**5, 10**9


class Design(NamedTuple):
    """C contexts of T tokens, each beside Q queries (C Q sequences); float64.

    Attributes:
        X: the tokens attended to, class tokens first.
        x_T: the queries of each context, equally likely.
        y: class of each context.
        weight: probability of each context, sum 1.
        own: True for the positions in X that hold tokens of the sequence's class.
        S: the sum of each class's tokens, S_y.
        reflection: signs of R^d that turn each sequence into another of the same probability, which is left out of the
            list: the background changes sign. None where every sequence is in the list.
    """

    X: Float64[np.ndarray, "C T d"]
    x_T: Float64[np.ndarray, "C Q d"]
    y: Int[np.ndarray, " C"]
    weight: Float64[np.ndarray, " C"]
    own: Bool[np.ndarray, " T"]
    S: Float64[np.ndarray, "M d"]
    reflection: Float64[np.ndarray, " d"] | None

    def directions(self) -> dict[str, np.ndarray]:
        """The fixed directions of Theorem 1: "qk" is D = sum_y S_y S_y^T (d, d), "ov" is Sbar (M, d).

        Row k of Sbar is S_k minus the mean over classes.
        """
        return {"qk": self.S.T @ self.S, "ov": self.S - self.S.mean(0)}

    def unfolded(self) -> "Design":
        """The same distribution with every sequence in the list, so that rounding may break the symmetry."""
        if self.reflection is None:
            return self
        X, x_T, y = (
            np.concatenate([part, mirrored])
            for part, mirrored in (
                (self.X, self.X * self.reflection),
                (self.x_T, self.x_T * self.reflection),
                (self.y, self.y),
            )
        )
        return self._replace(X=X, x_T=x_T, y=y, weight=np.tile(self.weight / 2, 2), reflection=None)


@dataclass(frozen=True)
class Population:
    """How sequences are made: the defaults are Theorem 1's assumptions, the options what follows without one of them.

    A class y, uniform; m tokens of its b, drawn with replacement; n backgrounds, drawn from +-v_k (k = 1..K, `signed`)
    or from v_k; a query. Tokens are orthonormal, the coordinate axes of R^d with d = M b + K, unless an option says so.

    Attributes:
        m: class tokens in a context.
        n: background tokens in a context.
        b: tokens that a class owns.
        M: classes.
        backgrounds: K, background directions.
        query: "single", a token of the class independent of the context; "mean", S_y / b; "copied", one of the
            context's class tokens.
        included: the query is attended to as well.
        signed: backgrounds have a random sign, hence mean zero.
        norm: norm c of all tokens.
        cross_overlap: inner product (over c^2) of each second token of a class with the token before it of the next
            class; tokens of one position stay orthonormal over the classes, as Assumption 1 says literally.
        same_overlap: inner product (over c^2) of each second token of a class with the token before it; tokens of different
            classes stay orthogonal.

    Raises:
        InputError: a value is not allowed.
    """

    m: int = 2
    n: int = 2
    b: int = 2
    M: int = 3
    backgrounds: int = 2
    query: Query = "single"
    included: bool = False
    signed: bool = True
    norm: float = 1.0
    cross_overlap: float = 0.0
    same_overlap: float = 0.0

    def __post_init__(self) -> None:
        for name in ("m", "n", "b", "backgrounds"):
            check_count(name, getattr(self, name))
        check_count("M", self.M, minimum=2, do="one class leaves nothing to predict")
        if self.query not in get_args(Query):
            reject("query", self.query, "one of " + ", ".join(get_args(Query)))
        for name in ("included", "signed"):
            if not isinstance(getattr(self, name), bool):
                reject(name, getattr(self, name), "True or False")
        if self.included and self.query == "copied":
            reject("included", True, "False where query is 'copied'", "a copied query is in its context already")
        check_positive("norm", self.norm, least=1e-6, most=1e6)
        for name in ("cross_overlap", "same_overlap"):
            check_positive(name, getattr(self, name), zero=True, least=1e-9, most=0.99)
        if self.cross_overlap and self.same_overlap:
            do = "together they make other tokens overlap as well"
            reject("cross_overlap and same_overlap", (self.cross_overlap, self.same_overlap), "not both above 0", do)

    @property
    def d(self) -> int:
        """Embedding dimension M b + K."""
        return self.M * self.b + self.backgrounds

    @property
    def queries(self) -> int:
        """Queries of a context."""
        return {"single": self.b, "mean": 1, "copied": self.m}[self.query]

    @property
    def kinds(self) -> int:
        """Different background tokens: v_k and -v_k are numbers 2k and 2k + 1, or v_k alone is number k."""
        return self.backgrounds * (2 if self.signed else 1)

    def embedding(self) -> Float64[np.ndarray, "tokens d"]:
        """A row for every token: class y's token tau is row y b + tau, background direction k row M b + k."""
        rows = np.eye(self.d)
        own = rows[: self.M * self.b].reshape(self.M, self.b, self.d)
        even, odd = own[:, : self.b // 2 * 2 : 2].copy(), own[:, 1::2].copy()
        rest = math.sqrt(1 - self.cross_overlap**2 - self.same_overlap**2)
        own[:, 1::2] = self.cross_overlap * np.roll(even, -1, 0) + self.same_overlap * even + rest * odd
        return self.norm * rows

    def enumerated(self) -> Design:
        """Every sequence, with its exact probability.

        Raises:
            RangeError: there are too many; the message says how many.
        """
        log_contexts = math.log10(self.M) + self.m * math.log10(self.b) + self.n * math.log10(self.kinds)
        self._check_size("enumerated", log_contexts)
        # With signs, one of every pair nu, -nu: the one whose first background has the sign +.
        first = range(0, self.kinds, 2 if self.signed else 1)
        axes = [range(self.M), *[range(self.b)] * self.m, first, *[range(self.kinds)] * (self.n - 1)]
        chosen = np.array(list(itertools.product(*axes)))
        y, tau, background = chosen[:, 0], chosen[:, 1 : 1 + self.m], chosen[:, 1 + self.m :]
        return self._assemble(y, tau, self._backgrounds(background), self.signed)

    def balanced(self) -> Design:
        """Few sequences in which each class has its tokens, and its backgrounds, equally often; with all queries.

        For M = 5, b = 50, m = 5, n = 50, K = 25: ten disjoint blocks of five tokens for each class, and every signed
        background once in each context, so 50 contexts. On the ansatz its gradient is the population's; off it, not.

        Raises:
            RangeError: there are too many; the message says how many.
        """
        blocks, shifts = (size // math.gcd(size, count) for size, count in ((self.b, self.m), (self.kinds, self.n)))
        self._check_size("balanced", math.log10(self.M * blocks * shifts))
        y, block, shift = np.indices((self.M, blocks, shifts)).reshape(3, -1, 1)
        tau = (block * self.m + np.arange(self.m)) % self.b
        background = (shift * self.n + np.arange(self.n)) % self.kinds
        return self._assemble(y[:, 0], tau, self._backgrounds(background), self.signed)

    def sample(self, key: Key[Array, ""], size: int) -> Design:
        """A training set of `size` independent sequences, equally weighted and without any symmetry.

        Raises:
            RangeError: its numbers are too many.
        """
        self._check_size("sample", math.log10(check_count("size", size)), queries=1)
        keys = jax.random.split(key, 4)
        y, tau, background, chosen = (
            np.asarray(jax.random.randint(k, shape, 0, most))
            for k, shape, most in zip(
                keys,
                ((size,), (size, self.m), (size, self.n), (size, 1, 1)),
                (self.M, self.b, self.kinds, self.queries),
                strict=True,
            )
        )
        return self._assemble(y, tau, self._backgrounds(background), False, chosen)

    def antithetic(self, key: Key[Array, ""]) -> Design:
        """Class tokens x queries enumerated; each context once with Gaussian backgrounds nu and once with -nu.

        The nu are independent in R^K with mean square 1 (times c^2); Theorem 1 is exact on this training set already.

        Raises:
            RangeError: there are too many; the message says how many.
        """
        self._check_size("antithetic", math.log10(self.M) + self.m * math.log10(self.b))
        chosen = np.array(list(itertools.product(range(self.M), *[range(self.b)] * self.m)))
        drawn = np.asarray(jax.random.normal(key, (len(chosen), self.n, self.backgrounds)), np.float64)
        nu = drawn @ self.embedding()[self.M * self.b :] / math.sqrt(self.backgrounds)
        return self._assemble(chosen[:, 0], chosen[:, 1:], nu, True)

    def _check_size(self, name: str, log_contexts: float, queries: int | None = None) -> None:
        queries = self.queries if queries is None else queries
        sequences = log_contexts + math.log10(queries)
        numbers = (sequences if self.included else log_contexts) + math.log10((self.m + self.n + 1) * self.d)
        if sequences > math.log10(MOST_SEQUENCES) or numbers > math.log10(MOST_NUMBERS):
            do = "take smaller sizes" if name != "enumerated" else "take balanced(), or smaller sizes"
            allowed = f"at most {MOST_SEQUENCES:.0e} sequences and {MOST_NUMBERS:.0e} numbers"
            size = f"10^{sequences:.1f} sequences, 10^{numbers:.1f} numbers"
            raise RangeError(f"the {name} design must have {allowed}, got {size}; {do}")

    def _backgrounds(self, number: np.ndarray) -> np.ndarray:
        """Background tokens (..., d) by their number below `kinds`."""
        rows = self.embedding()[self.M * self.b :]
        return (1.0 - 2.0 * (number % 2))[..., None] * rows[number // 2] if self.signed else rows[number]

    def _assemble(
        self, y: np.ndarray, tau: np.ndarray, nu: np.ndarray, reflected: bool, chosen: np.ndarray | None = None
    ) -> Design:
        """Embed: classes (C,), class tokens (C, m), backgrounds (C, n, d), and of each one's queries all or `chosen`."""
        tokens = self.embedding()[: self.M * self.b].reshape(self.M, self.b, self.d)
        S_y = tokens[y[:, None], tau]
        x_T = {"single": tokens[y], "mean": tokens[y].mean(1, keepdims=True), "copied": S_y}[self.query]
        if chosen is not None:
            x_T = np.take_along_axis(x_T, chosen, 1)
        if self.included:
            # Each query has a context of its own.
            y, S_y, nu = (np.repeat(part, x_T.shape[1], 0) for part in (y, S_y, nu))
            x_T = x_T.reshape(-1, 1, self.d)
            S_y = np.concatenate([S_y, x_T], 1)
        X = np.concatenate([S_y, nu], 1)
        signs = np.where(np.arange(self.d) < self.M * self.b, 1.0, -1.0)
        return Design(
            X=X,
            x_T=x_T,
            y=y,
            weight=np.full(len(y), 1 / len(y)),
            own=np.arange(X.shape[1]) < S_y.shape[1],
            S=tokens.sum(1),
            reflection=signs if reflected else None,
        )

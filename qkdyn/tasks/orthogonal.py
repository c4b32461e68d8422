"""The orthogonal setting of Sec. 6.1: every token its own direction, backgrounds of mean zero, the query outside its context.

Two designs. `balanced`: the symmetries that Theorem 1 takes from the population hold exactly in each batch - every class,
context and query together once, backgrounds in pairs of opposite sign. `sampled`: the class tokens are drawn with
replacement, as Sec. 6.1 says; backgrounds stay paired, because a direction that is not symmetric grows and takes over.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from qkdyn.errors import InputError, check_count, reject

Query = Literal["single", "mean"]
DESIGNS = ("balanced", "sampled")


class Batch(NamedTuple):
    """N sequences: context X (N, T, d) with the m class tokens first, query x_T (N, d), class y (N,)."""

    X: Float[Array, "N T d"]
    x_T: Float[Array, "N d"]
    y: Int[Array, " N"]


@dataclass(frozen=True)
class OrthogonalTask:
    """M classes of b tokens; a context has m tokens of its class and n backgrounds; K = `backgrounds` directions.

    Tokens are signed unit vectors of R^d, d = M b + K: class token tau of class y is e_{y b + tau}, backgrounds are
    +-e_{M b + k}, so that kappa = 1/K. The query is one of its class's tokens ("single") or their mean ("mean").
    """

    m: int = 4
    n: int = 8
    b: int = 4
    M: int = 4
    backgrounds: int = 16
    batch: int = 64
    query: Query = "single"

    def __post_init__(self) -> None:
        for name in ("m", "n", "b", "backgrounds", "batch"):
            check_count(name, getattr(self, name))
        check_count("M", self.M, minimum=2, do="one class leaves nothing to predict")
        if self.query not in get_args(Query):
            reject("query", self.query, "one of " + ", ".join(get_args(Query)))
        numbers = self.batch * (self.m + self.n) * self.d
        if numbers > 10**9:
            raise InputError(
                f"batch x (m + n) x (M b + backgrounds) must be at most 1e9 numbers, got {numbers:.3g}; take smaller sizes"
            )
        if self.batch % self.unit:
            raise InputError(
                f"batch must be a multiple of {self.unit} (classes x contexts x queries x sign pairs, so that each batch "
                f"is balanced), got {self.batch}; take {math.ceil(self.batch / self.unit) * self.unit}"
            )

    @property
    def d(self) -> int:
        """Embedding dimension M b + K."""
        return self.M * self.b + self.backgrounds

    @property
    def contexts(self) -> int:
        """Contexts per class in which, taken together, each of its tokens occurs equally often: b / gcd(m, b)."""
        return self.b // math.gcd(self.m, self.b)

    @property
    def queries(self) -> int:
        """Different queries of a class."""
        return self.b if self.query == "single" else 1

    @property
    def unit(self) -> int:
        """The smallest balanced number of sequences."""
        return 2 * self.M * self.contexts * self.queries

    def directions(self) -> dict[str, np.ndarray]:
        """The fixed directions of Theorem 1 in float64: "qk" is D (d, d), "ov" is Sbar (M, d).

        D = sum_y S_y S_y^T with S_y the sum of class y's tokens; row k of Sbar is S_k minus the mean over classes.
        """
        S = np.zeros((self.M, self.d))
        S[:, : self.M * self.b] = np.repeat(np.eye(self.M), self.b, axis=1)
        return {"qk": S.T @ S, "ov": S - S.mean(0)}

    def batch_of(self, key: Key[Array, ""], sampled: Bool[Array, ""] | bool, size: int | None = None) -> Batch:
        """One batch of `size` (default `batch`) sequences; `sampled` may be traced, so one program serves both designs."""
        size = self.batch if size is None else check_count("size", size, minimum=2)
        if size % self.unit:
            reject("size", size, f"a multiple of {self.unit}", "so that the batch is balanced")
        pairs = size // 2
        class_key, background_key = jax.random.split(key)
        y, context, query = (
            jnp.asarray(np.resize(axis.ravel(), pairs))
            for axis in np.meshgrid(*map(np.arange, (self.M, self.contexts, self.queries)), indexing="ij")
        )
        even = (context[:, None] * self.m + jnp.arange(self.m)[None, :]) % self.b
        drawn = jax.random.randint(class_key, (pairs, self.m), 0, self.b)
        tau = jnp.where(sampled, drawn, even)
        S = jax.nn.one_hot(y[:, None] * self.b + tau, self.d)
        signed = jax.random.randint(background_key, (pairs, self.n), 0, 2 * self.backgrounds)
        nu = jax.nn.one_hot(self.M * self.b + signed // 2, self.d) * (1.0 - 2.0 * (signed % 2))[..., None]
        X = jnp.concatenate([jnp.concatenate([S, nu], 1), jnp.concatenate([S, -nu], 1)])
        if self.query == "single":
            x_T = jax.nn.one_hot(y * self.b + query, self.d)
        else:
            x_T = jax.nn.one_hot(y[:, None] * self.b + jnp.arange(self.b)[None, :], self.d).mean(1)
        return Batch(X, jnp.concatenate([x_T, x_T]), jnp.concatenate([y, y]))

    def evaluation(self) -> Batch:
        """The fixed evaluation design: one balanced unit, its backgrounds drawn once, the same for every run and step."""
        return self.batch_of(jax.random.key(0), False, self.unit)

"""The two circuits of an attention layer as one pytree, in any of the four parameterizations.

`Params = {"qk": {"W_K", "W_Q"} | {"W_QK"}, "ov": {"W_O", "W_V"} | {"W_OV"}}`, with the shapes of Sec. 3: W_K, W_Q, W_V, W_QK
are (d, d); W_O, W_OV are (M, d); W_QK = W_K W_Q^T and W_OV = W_O W_V. The shape of the tree *is* the circuit decomposition.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from qkdyn.errors import InputError, check_count, check_positive, reject
from qkdyn.labels import CIRCUITS, circuit_labels
from qkdyn.parameterization import Parameterization

__all__ = [
    "CIRCUITS",
    "Initializer",
    "Parameterization",
    "Params",
    "balanced_factors",
    "balancedness",
    "circuit_labels",
    "collapse",
    "factorize",
    "init_params",
    "on_ansatz",
    "parameterization_of",
    "scaled_identity",
    "torch_uniform",
]

Params = dict[str, dict[str, Array]]
# The signature of jax.nn.initializers, so that zeros, normal(0.1), orthogonal() and the rest can be passed as they are.
Initializer = Callable[[Array, tuple[int, ...], Any], Array]


def scaled_identity(scale: float) -> Initializer:
    """`scale` times the identity, rectangular if need be: the start of most panels of Fig. 2 (there 1e-6)."""
    check_positive("scale", scale)
    return lambda key, shape, dtype=jnp.float32: scale * jnp.eye(*shape, dtype=dtype)


def torch_uniform() -> Initializer:
    """U(-1/sqrt(d_in), 1/sqrt(d_in)) with d_in the last axis: the default of a linear layer in PyTorch."""

    def init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        bound = shape[-1] ** -0.5
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def _matrix_shapes(parameterization: Parameterization, d: int, M: int) -> dict[str, dict[str, tuple[int, int]]]:
    qk = {"W_K": (d, d), "W_Q": (d, d)} if parameterization.factorized_qk else {"W_QK": (d, d)}
    ov = {"W_O": (M, d), "W_V": (d, d)} if parameterization.factorized_ov else {"W_OV": (M, d)}
    return {"qk": qk, "ov": ov}


def init_params(
    key: Key[Array, ""],
    parameterization: Parameterization | str,
    *,
    d: int,
    M: int,
    qk: Initializer,
    ov: Initializer,
    dtype: Any = jnp.float32,
) -> Params:
    """Draw the matrices of both circuits, each by its circuit's initializer with a key of its own.

    Args:
        key: a typed key, `jax.random.key(seed)`.
        parameterization: one of the four, or its name.
        d: embedding dimension.
        M: number of classes (the vocabulary of Sec. 3).
        qk: initializer of every query-key matrix, e.g. `jax.nn.initializers.zeros` for a collapsed circuit.
        ov: initializer of every output-value matrix.
        dtype: a floating dtype.

    Returns:
        The parameters; to start on a given product instead, see `factorize`.

    Raises:
        InputError: sizes that are not positive integers, an unknown parameterization, or a factorized circuit that
            starts at zero: both factors' gradients vanish there, so plain gradient descent would never leave it.
    """
    form = Parameterization.parse(parameterization)
    shapes = _matrix_shapes(form, check_count("d", d), check_count("M", M))
    params: Params = {}
    for number, (circuit, init) in enumerate(zip(CIRCUITS, (qk, ov), strict=True)):
        keys = jax.random.split(jax.random.fold_in(key, number), len(shapes[circuit]))
        params[circuit] = {
            name: init(k, shape, dtype) for k, (name, shape) in zip(keys, shapes[circuit].items(), strict=True)
        }
        _refuse_saddle(circuit, params[circuit])
    return params


def _refuse_saddle(circuit: str, matrices: dict[str, Array]) -> None:
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in matrices.values())
    if len(matrices) == 2 and not traced and not any(np.any(np.asarray(leaf)) for leaf in matrices.values()):
        names = " and ".join(matrices)
        raise InputError(
            f"initial {names} must not both be zero: the factorized {circuit} circuit has a saddle there (each factor's "
            "gradient is proportional to the other), so it would never learn; start from a small scale such as 0.1"
        )


def parameterization_of(params: Params) -> Parameterization:
    """Read the parameterization off the tree's keys.

    Raises:
        InputError: the keys are those of none of the four.
    """
    keys = {circuit: frozenset(params[circuit]) for circuit in CIRCUITS if circuit in params}
    for form in Parameterization:
        if keys == {circuit: frozenset(names) for circuit, names in _matrix_shapes(form, 1, 1).items()}:
            return form
    reject(
        "params",
        {circuit: sorted(names) for circuit, names in keys.items()},
        '{"qk": {W_K, W_Q} or {W_QK}, "ov": {W_O, W_V} or {W_OV}}',
    )


def collapse(params: Params) -> Params:
    """The same function with both circuits collapsed: W_QK = W_K W_Q^T and W_OV = W_O W_V. Leading axes are kept."""
    form = parameterization_of(params)
    qk, ov = params["qk"], params["ov"]
    return {
        "qk": {"W_QK": qk["W_K"] @ qk["W_Q"].mT if form.factorized_qk else qk["W_QK"]},
        "ov": {"W_OV": ov["W_O"] @ ov["W_V"] if form.factorized_ov else ov["W_OV"]},
    }


def balanced_factors(W: Float[Array, "rows d"]) -> tuple[Float[Array, "rows d"], Float[Array, "d d"]]:
    """Factors (A, B) with A B = W and A^T A = B B^T, by SVD: the balanced point that Lemma 1 conserves.

    Any rows and d: the inner dimension is d, padded with zero columns where rows < d.
    """
    d = W.shape[1]
    U, s, Vh = jnp.linalg.svd(W, full_matrices=False)
    root = jnp.sqrt(s)
    pad = d - root.size
    return jnp.pad(U * root[None, :], ((0, 0), (0, pad))), jnp.pad(root[:, None] * Vh, ((0, pad), (0, 0)))


def factorize(params: Params, parameterization: Parameterization | str = "FAFO") -> Params:
    """The same function in `parameterization`, its factorized circuits balanced (Lemmas 1 and 4).

    Args:
        params: any parameterization, without leading axes.
        parameterization: the one wanted.

    Returns:
        Parameters with the same W_QK and W_OV; W_Q^T W_Q = W_K^T W_K and W_O^T W_O = W_V W_V^T where factorized.

    Raises:
        InputError: unknown parameterization, or a circuit to be factorized is zero (a saddle).
    """
    form = Parameterization.parse(parameterization)
    flat = collapse(params)
    W_QK, W_OV = flat["qk"]["W_QK"], flat["ov"]["W_OV"]
    result = flat
    if form.factorized_qk:
        W_K, W_Q_T = balanced_factors(W_QK)
        result = result | {"qk": {"W_K": W_K, "W_Q": W_Q_T.mT}}
    if form.factorized_ov:
        W_O, W_V = balanced_factors(W_OV)
        result = result | {"ov": {"W_O": W_O, "W_V": W_V}}
    for circuit in CIRCUITS:
        _refuse_saddle(circuit, result[circuit])
    return result


def on_ansatz(
    directions: Mapping[str, np.ndarray],
    parameterization: Parameterization | str,
    *,
    mu_ov: float,
    mu_qk: float,
    dtype: Any = jnp.float32,
) -> Params:
    """Parameters on Theorem 1's ansatz: W_OV = mu_OV Sbar and W_QK = mu_QK D, factorized circuits balanced.

    Args:
        directions: "qk" -> D (d, d) and "ov" -> Sbar (M, d), as a task gives them.
        parameterization: one of the four, or its name.
        mu_ov: scale of the output-value circuit, >= 0; > 0 where it is factorized.
        mu_qk: scale of the query-key circuit, likewise.
        dtype: of the result; computed in float64 whichever it is.

    Raises:
        InputError: a scale that is negative or not finite, or zero where the circuit is factorized (a saddle).
    """
    for name, mu in (("mu_ov", mu_ov), ("mu_qk", mu_qk)):
        if check_positive(name, mu, zero=True) and not 1e-15 <= mu <= 1e15:
            reject(name, mu, "0 or in [1e-15, 1e15]", "beyond that its products are no float32 numbers")
    W_OV, W_QK = mu_ov * directions["ov"], mu_qk * directions["qk"]
    # In double precision, so that tokens of one class start alike to the last bit: what sets them apart is amplified.
    with jax.enable_x64(True):
        flat = {"qk": {"W_QK": jnp.asarray(W_QK)}, "ov": {"W_OV": jnp.asarray(W_OV)}}
        return jax.tree.map(lambda leaf: leaf.astype(dtype), factorize(flat, parameterization))


def balancedness(params: Params) -> dict[str, Array]:
    """Relative defect of the conserved balance, for each factorized circuit (Lemmas 1 and 4).

    Returns:
        ||A^T A - B B^T|| / (||A^T A|| + ||B B^T||) in the Frobenius norm, in [0, 1], under "qk" (A = W_K, B = W_Q^T) and
        "ov" (A = W_O, B = W_V); a collapsed circuit has no factors and no entry.
    """
    form = parameterization_of(params)
    factors = {}
    if form.factorized_qk:
        factors["qk"] = (params["qk"]["W_K"], params["qk"]["W_Q"].mT)
    if form.factorized_ov:
        factors["ov"] = (params["ov"]["W_O"], params["ov"]["W_V"])
    return {circuit: _defect(A.mT @ A, B @ B.mT) for circuit, (A, B) in factors.items()}


def _defect(left: Array, right: Array) -> Array:
    size = [jnp.linalg.norm(x, axis=(-2, -1)) for x in (left - right, left, right)]
    return size[0] / (size[1] + size[2])

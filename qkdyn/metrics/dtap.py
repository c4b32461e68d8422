"""The DTAP heat map (Sec. 4): sequences by attention to relevant tokens and probability of the right answer."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Real

from qkdyn.errors import reject
from qkdyn.metrics.checks import ROUNDING, as_reals, as_shares, refuse_where

# Fig. 2's edges, written out: linspace(0, 1, 6) has a fourth edge above 0.6.
EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
# What callers may pass for edges.
Edges = Sequence[float] | Real[np.ndarray, " edges"]


def dtap(
    attention_mass: Float[np.ndarray, " N"], probability: Float[np.ndarray, " N"], edges: Edges = EDGES
) -> Float[np.ndarray, "probability_bin attention_bin"]:
    """The DTAP heat map (Sec. 4, Fig. 2) of N sequences, in percent of all of them.

    A bin holds its lower edge but not its upper, the last one both. Edges are rounded to the precision of the values, so
    that a float32 0.7 lies on the edge 0.7. What lies outside the edges is in no bin: if they cover [0, 1], as the
    default ones do, the bins sum to 100.

    Args:
        attention_mass: share of attention on the relevant (class-specific) tokens, (N,), in [0, 1] give or take 1e-5 for
            rounding, which counts as 0 or 1; see `attention_mass`.
        probability: predicted probability of the right answer, (N,), likewise.
        edges: at least two increasing finite numbers, for both axes.

    Returns:
        percent[probability_bin, attention_bin] in float64, both increasing: row 0 is the bottom row of the paper's figures.

    Raises:
        InputError: values outside [0, 1] or NaN, no sequence, shapes that are not both (N,), or edges as above that are
            not; names the value.
    """
    mass, chance = as_shares("attention_mass", attention_mass), as_shares("probability", probability)
    if mass.ndim != 1 or mass.shape != chance.shape:
        reject("the shapes of attention_mass and probability", (mass.shape, chance.shape), "one-dimensional and equal")
    bounds = check_edges(edges)
    k = len(bounds) - 1
    counts = np.bincount(_cells(np, mass, chance, bounds), minlength=k * k + 1)
    return 100.0 * counts[:-1].reshape(k, k) / mass.size


def dtap_counts(
    attention_mass: Float[Array, " N"], probability: Float[Array, " N"], edges: Edges = EDGES
) -> Int[Array, "probability_bin attention_bin"]:
    """`dtap` as numbers of sequences, for use inside jit, vmap and scan: batches add up without leaving the device.

    The heat map is 100 * counts / N once all batches are added. Edges are checked, values cannot be: a NaN or what is
    outside [0, 1] by more than 1e-5 and outside the edges is in no bin, so the counts then sum to less than N.

    Args:
        attention_mass: as for `dtap`, (N,); may be traced.
        probability: as for `dtap`, (N,); may be traced.
        edges: as for `dtap`; concrete numbers.

    Returns:
        counts[probability_bin, attention_bin], int32 unless JAX's 64-bit mode is on.

    Raises:
        InputError: edges that are not at least two increasing finite numbers.
    """
    bounds = check_edges(edges)
    k = len(bounds) - 1
    mass, chance = (_without_rounding(jnp.asarray(values)) for values in (attention_mass, probability))
    return jnp.bincount(_cells(jnp, mass, chance, bounds), length=k * k + 1)[:-1].reshape(k, k)


def mean_and_std(
    histograms: Float[np.ndarray, "seed probability_bin attention_bin"],
) -> tuple[Float[np.ndarray, "probability_bin attention_bin"], Float[np.ndarray, "probability_bin attention_bin"]]:
    """Mean and standard deviation of heat maps over seeds (App. D.5), bin by bin, in the histograms' own unit.

    The deviation has seeds - 1 in the denominator and is NaN for one seed, from which no spread is known. The published
    notebook divides the variance of its counts by 64 before the root instead of after it, where 64 counts are one percent:
    its deviations are sqrt(64) = 8 times too large. Deviations of percents, as here, need no such step.

    Args:
        histograms: heat maps of one `dtap` each, stacked along the first axis.

    Returns:
        mean and standard deviation, float64.

    Raises:
        InputError: not three-dimensional, empty, or not finite.
    """
    stack = as_reals("histograms", histograms).astype(np.float64)
    if stack.ndim != 3:
        reject("the shape of histograms", stack.shape, "(seeds, bins, bins)", "stack them along a first axis")
    refuse_where(~np.isfinite(stack), "histograms", stack, "finite")
    seeds = len(stack)
    return stack.mean(0), stack.std(0, ddof=1) if seeds > 1 else np.full(stack.shape[1:], np.nan)


def check_edges(edges: Any) -> np.ndarray:
    """Return `edges` as float64, or raise InputError unless they are at least two increasing finite numbers."""
    array = as_reals("edges", edges).astype(np.float64)
    if array.ndim != 1 or array.size < 2:
        reject("edges", edges, "a list of at least two numbers", f"e.g. {EDGES}")
    refuse_where(~np.isfinite(array), "edges", array, "finite")
    refuse_where(np.diff(array, prepend=-np.inf) <= 0, "edges", array, "above the edge before it")
    return array


def _without_rounding(values: Float[Array, " N"]) -> Float[Array, " N"]:
    """What `as_shares` makes of values, at least in float32, but leaving those that it refuses as they are."""
    values = values.astype(jnp.promote_types(values.dtype, jnp.float32))
    inside = jnp.clip(values, 0, 1)
    return jnp.where(jnp.abs(values - inside) <= ROUNDING, inside, values)


def _cells(xp: ModuleType, mass: Any, chance: Any, edges: np.ndarray) -> Any:
    """Each sequence's cell, probability bin * k + attention bin of k bins; k^2 for none. `xp` is numpy or jax.numpy."""
    k = len(edges) - 1
    row, column = (_bins(xp, values, _rounded(edges, values.dtype)) for values in (chance, mass))
    return xp.where((row < k) & (column < k), row * k + column, k * k)


def _bins(xp: ModuleType, values: Any, edges: np.ndarray) -> Any:
    """The bin of each value; the number of bins where it is in none."""
    k = len(edges) - 1
    place = xp.searchsorted(xp.asarray(edges), values, side="right") - 1
    return xp.where(values == edges[-1], k - 1, xp.where(place < 0, k, place))


def _rounded(edges: np.ndarray, dtype: Any) -> np.ndarray:
    """`edges` in the precision of the values, where two of them may turn out to be the same number."""
    with np.errstate(over="ignore"):  # What is beyond float32 is beyond every value.
        rounded = edges.astype(dtype)
    same = np.append(False, rounded[1:] == rounded[:-1]) & np.isfinite(rounded)
    refuse_where(same, "edges", edges, f"above the edge before it in {np.dtype(dtype)}, the precision of the values")
    return rounded

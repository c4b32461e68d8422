"""A sweep in one row per cell: mean and spread over seeds at each matched loss, beside the theory."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from qkdyn.files import write_text
from qkdyn.results.datasets import GRID, QUANTITIES, check_sweep

if TYPE_CHECKING:
    import pandas
    import xarray

DIVERGED = 3
CELL = (*GRID, "level")


def mean_and_sd(
    values: Float[np.ndarray, "*grid seed"],
) -> tuple[Float[np.ndarray, "*grid"], Float[np.ndarray, "*grid"], Int[np.ndarray, "*grid"]]:
    """Mean, standard deviation (n - 1 in the denominator) and count of the finite values along the last axis.

    In float64 whatever the input. The mean of none and the deviation of fewer than two are NaN, without a warning.
    """
    finite = np.isfinite(values)
    count = np.asarray(finite.sum(-1))
    kept = np.where(finite, values, 0.0).astype(np.float64)
    mean = np.where(count > 0, kept.sum(-1) / np.maximum(count, 1), np.nan)
    squares = np.where(finite, (kept - mean[..., None]) ** 2, 0.0).sum(-1)
    return mean, np.where(count > 1, np.sqrt(squares / np.maximum(count - 1, 1)), np.nan), count


def relative_difference(value: Float[np.ndarray, "..."], reference: Float[np.ndarray, "..."]) -> np.ndarray:
    """`value / reference - 1`, NaN where the reference is zero or either is not known."""
    known = np.isfinite(reference) & (reference != 0)
    return np.where(known, value / np.where(known, reference, 1.0) - 1.0, np.nan)


def _cells(ds: "xarray.Dataset", name: str, dims: tuple[str, ...]) -> np.ndarray:
    """Variable `name` as float64 with axes `dims`, repeated along those it lacks; NaN where the dataset lacks it."""
    shape = {dim: ds.sizes[dim] for dim in dims}
    if name not in ds:
        return np.full(tuple(shape.values()), np.nan)
    found = ds[name].astype(np.float64)
    missing = {dim: size for dim, size in shape.items() if dim not in found.dims}
    return found.expand_dims(missing).transpose(*dims).to_numpy()


def _bounds(ds: "xarray.Dataset") -> dict[str, np.ndarray]:
    """Lemma 3 over the seeds of each collapsed cell: 1 if all seeds hold, 0 if one fails, and the tightest ratio.

    NaN where nothing was recorded, and for the parameterizations to which the lemma does not apply.
    """
    holds, tightest = (_cells(ds, name, (*GRID, "seed")) for name in ("bounds_hold", "bounds_tightest"))
    known = (holds >= 0) & (ds["parameterization"].to_numpy() == "CACO")[None, :, None, None]
    any_known = known.any(-1)
    least = np.where(known & np.isfinite(tightest), tightest, np.inf).min(-1)
    return {
        "bounds_hold": np.where(any_known, np.where(known, holds, 1.0).min(-1), np.nan),
        "bounds_tightest": np.where(np.isfinite(least), least, np.nan),
    }


def summarize(ds: "xarray.Dataset") -> "xarray.Dataset":
    """Reduce a sweep over its seeds.

    Args:
        ds: a sweep with `matched_*` on (design, parameterization, r, seed, level) and, where they are known,
            `theory_matched_*`, `log_amplification`, `status`, `bounds_hold` and `bounds_tightest`.

    Returns:
        A dataset on (design, parameterization, r, level): for each of alpha, mu_ov, mu_qk (no units) and t (units of
        1/eta_OV) the variables `*_mean`, `*_sd` (n - 1), `*_theory` and `*_rel_diff` = mean / theory - 1; `reached`,
        the number of seeds that reached the level; `log_amplification` (natural logarithm). On (design,
        parameterization, r): `seeds`, `diverged`, `bounds_hold` (1, 0, or NaN where not recorded), `bounds_tightest`.

    Raises:
        InputError: `ds` is not a sweep or holds no run.
    """
    import xarray

    check_sweep(ds, [*(f"matched_{name}" for name in QUANTITIES), "level"])
    data: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    for name in QUANTITIES:
        mean, sd, count = mean_and_sd(_cells(ds, f"matched_{name}", (*CELL, "seed")))
        theory = _cells(ds, f"theory_matched_{name}", CELL)
        if name == "alpha":
            data["reached"] = (CELL, count)
        data |= {f"{name}_mean": (CELL, mean), f"{name}_sd": (CELL, sd), f"{name}_theory": (CELL, theory)}
        data[f"{name}_rel_diff"] = (CELL, relative_difference(mean, theory))
    data["log_amplification"] = (CELL, _cells(ds, "log_amplification", CELL))
    status = _cells(ds, "status", (*GRID, "seed"))
    data["seeds"] = (GRID, np.full(status.shape[:-1], status.shape[-1]))
    data["diverged"] = (GRID, (status == DIVERGED).sum(-1))
    data |= {name: (GRID, values) for name, values in _bounds(ds).items()}
    return xarray.Dataset(data, coords={name: ds[name].to_numpy() for name in CELL})


def summary_frame(ds: "xarray.Dataset") -> "pandas.DataFrame":
    """One row per (design, parameterization, r, level) in the order of `ds`: the variables of `summarize` as columns.

    Raises:
        InputError: `ds` is not a sweep or holds no run.
    """
    statistics = [f"{name}_{what}" for name in QUANTITIES for what in ("mean", "sd", "theory", "rel_diff")]
    columns = [
        *CELL,
        "seeds",
        "reached",
        "diverged",
        *statistics,
        "log_amplification",
        "bounds_hold",
        "bounds_tightest",
    ]
    return summarize(ds).to_dataframe(dim_order=list(CELL)).reset_index().loc[:, columns]


def write_summary(ds: "xarray.Dataset", path: str | Path) -> Path:
    """Write `summary_frame(ds)` as CSV with eight significant digits; what is not known is left blank.

    Returns:
        `path`.

    Raises:
        InputError: `ds` is not a sweep or holds no run.
        OutputError: the file cannot be written.
    """
    return write_text(path, summary_frame(ds).to_csv(index=False, float_format="%.8g", lineterminator="\n"))

"""The exact theory laid over a sweep's records, and Lemma 3's bounds checked on each of them."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qkdyn.errors import InputError, OutputWarning, QkdynError
from qkdyn.parameterization import Parameterization
from qkdyn.results.datasets import check_sweep
from qkdyn.theory import Setting, at_loss, class_competition, integrate, lemma3_bounds
from qkdyn.theory.setting import check_initial, check_ratio

if TYPE_CHECKING:
    import xarray as xr

# Records are float32 projections of whole matrices; a bound is broken only beyond their rounding.
ROUNDING = 1e-5
# Ratios at which the theory is drawn between the least and the largest of a sweep.
CURVE = 61
# Losses at which attention is drawn between the start and the smallest loss of a sweep.
LOSSES = 120
# How far below its start a trajectory is first asked for, relative to the loss there.
BELOW = 1e-6
AT_RECORD = ("loss", "mu_ov", "mu_qk", "alpha")
AT_LEVEL = ("alpha", "mu_ov", "mu_qk", "t")


class _Start(NamedTuple):
    """Where the theory of one parameterization begins."""

    form: str
    initial: tuple[float, float]
    loss: float

    @property
    def how(self) -> dict[str, Any]:
        """The start as the functions of `qkdyn.theory` are told of it."""
        return {"parameterization": self.form, "initial": self.initial}


def with_theory(ds: "xr.Dataset", setting: Setting, initial: Mapping[str, tuple[float, float]]) -> "xr.Dataset":
    """Add what the scalars of Theorem 1 (all four parameterizations) predict at the records and levels of a sweep.

    Where the theory cannot be computed, it is NaN for that parameterization, and an OutputWarning says why: no record of
    training is lost for it.

    Args:
        ds: a dataset of `run_sweep`; time t is step * eta_OV, so the theory runs at eta_OV = 1.
        setting: the sizes of the task.
        initial: (mu_OV, mu_QK) at t = 0 by parameterization.

    Returns:
        `ds` with theory_* on (parameterization, r, record), theory_matched_* and log_amplification (how much a difference
        between two tokens of a class has grown, see `class_competition`) on (parameterization, r, level); and, for figures
        that need not join a few points by lines, theory_alpha_at_loss on (parameterization, r, curve_loss) and, where there
        are several ratios, theory_curve_* between them on (parameterization, curve_r, level).

    Raises:
        InputError: `ds` is not a sweep, or `initial` lacks a parameterization or holds what is not a start.
    """
    check_sweep(ds, ["t", "loss", "level"])
    r, level = check_ratio(ds.r.values), ds.level.values
    starts = [_start(setting, str(form), initial) for form in ds.parameterization.values]
    added: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}

    def add(
        prefix: str, names: tuple[str, ...], axes: tuple[str, ...], tables: Sequence[Mapping[str, np.ndarray]]
    ) -> None:
        for name in names:
            added[prefix + name] = (("parameterization", *axes), np.stack([table[name] for table in tables]))

    rows, grid = r[:, None], np.geomspace(r.min(), r.max(), CURVE)
    add("theory_", AT_RECORD, ("r", "record"), [_at_records(ds, setting, r, start) for start in starts])
    add("theory_matched_", AT_LEVEL, ("r", "level"), [_at_levels(setting, rows, level, start) for start in starts])
    growth = [_growth(setting, rows, level, start) for start in starts]
    added["log_amplification"] = (("parameterization", "r", "level"), np.stack(growth))
    losses = _curve_losses(ds, starts)
    paths = [_at_losses(setting, rows, losses, start) for start in starts]
    added["theory_alpha_at_loss"] = (("parameterization", "r", "curve_loss"), np.stack(paths))
    if r.size == 1:
        return ds.assign(added).assign_coords(curve_loss=losses)
    curves = [_at_levels(setting, grid[:, None], level, start) for start in starts]
    add("theory_curve_", ("alpha", "mu_ov", "mu_qk"), ("curve_r", "level"), curves)
    return ds.assign(added).assign_coords(curve_loss=losses, curve_r=grid)


def _start(setting: Setting, form: str, initial: Mapping[str, tuple[float, float]]) -> _Start:
    """The start of one parameterization, checked."""
    if form not in initial:
        raise InputError(f"initial must have an entry for {form}, got entries for {', '.join(initial) or 'nothing'}")
    mu_ov, mu_qk = check_initial(initial[form], Parameterization.parse(form))
    return _Start(form, (mu_ov, mu_qk), float(setting.loss(setting.attention(mu_qk) * mu_ov)))


def _or_nan(
    what: str, form: str, names: tuple[str, ...], shape: tuple[int, ...], compute: Callable[[], object]
) -> dict[str, np.ndarray]:
    """The fields `names` of what `compute` gives; NaN of the same shape, and a warning, if the theory gives up."""
    blank = dict.fromkeys(names, np.full(shape, np.nan))
    if 0 in shape:
        return blank
    try:
        found = compute()
    except QkdynError as error:
        warnings.warn(f"{what} of {form} left out: {error}", OutputWarning, stacklevel=2)
        return blank
    return {name: getattr(found, name) for name in names}


def _at_records(ds: "xr.Dataset", setting: Setting, r: np.ndarray, start: _Start) -> dict[str, np.ndarray]:
    """Theory at the times of the records, (r, record)."""
    t = ds.t.sel(parameterization=start.form).values
    shape = (r.size, t.size)
    return _or_nan("theory at the records", start.form, AT_RECORD, shape, lambda: integrate(setting, r, t, **start.how))


def _at_levels(setting: Setting, r: np.ndarray, level: np.ndarray, start: _Start) -> dict[str, np.ndarray]:
    """Theory at matched losses, (r, level), for `r` of shape (r, 1)."""
    shape = (len(r), level.size)
    return _or_nan(
        "theory at matched losses", start.form, AT_LEVEL, shape, lambda: at_loss(setting, r, level, **start.how)
    )


def _growth(setting: Setting, r: np.ndarray, level: np.ndarray, start: _Start) -> np.ndarray:
    """log_amplification, (r, level), for `r` of shape (r, 1)."""
    shape = (len(r), level.size)
    found = _or_nan(
        "log_amplification",
        start.form,
        ("log_delta",),
        shape,
        lambda: class_competition(setting, r, level, **start.how),
    )
    return found["log_delta"]


def _curve_losses(ds: "xr.Dataset", starts: list[_Start]) -> np.ndarray:
    """Falling losses, evenly spaced in the logarithm, from just below the starts to the smallest recorded or matched."""
    tops = sorted({start.loss * (1 - BELOW) for start in starts})
    seen = np.concatenate([ds.loss.values.ravel(), ds.level.values.ravel()]).astype(np.float64)
    seen = seen[np.isfinite(seen) & (seen > 0)]
    end = min([float(seen.min())] if seen.size else [], default=tops[-1] / 100)
    # Every parameterization's own start is among them, so that its curve begins there.
    spaced = np.geomspace(tops[-1], min(end, tops[0] * (1 - BELOW)), LOSSES)
    return np.unique(np.concatenate([spaced, tops]))[::-1]


def _at_losses(setting: Setting, r: np.ndarray, losses: np.ndarray, start: _Start) -> np.ndarray:
    """Attention at each of `losses`, (r, curve_loss), for `r` of shape (r, 1); NaN above the start."""
    below = losses <= start.loss * (1 - BELOW)
    alpha = np.full((len(r), losses.size), np.nan)
    shape = (len(r), int(below.sum()))
    found = _or_nan(
        "attention against loss", start.form, ("alpha",), shape, lambda: at_loss(setting, r, losses[below], **start.how)
    )
    alpha[:, below] = found["alpha"]
    return alpha


def with_bounds(ds: "xr.Dataset", setting: Setting) -> "xr.Dataset":
    """Add whether Lemma 3's bounds, eqs. (24), (26) and (28), hold at every record of the CACO runs.

    Upper bounds are taken at t, lower ones at t - eta_OV, because gradient descent lags the flow by one step; delta is the
    run's own 1 - alpha(t), the sharpest that (27) admits.

    Returns:
        `ds` with bounds_hold (1, 0, or -1 where nothing was recorded) and bounds_tightest (the smallest of upper bound /
        value and value / lower bound; > 1 where all hold) on (design, r, seed); `ds` itself where it has no CACO runs.
        Where the bounds cannot be computed, nothing counts as recorded, and an OutputWarning says why.

    Raises:
        InputError: `ds` is not a sweep.
    """
    check_sweep(ds, ["t", "mu_ov", "mu_qk", "alpha"])
    if "CACO" not in ds.parameterization.values:
        return ds
    axes = ("design", "r", "seed")
    runs = ds.sel(parameterization="CACO").transpose("design", "r", "seed", "record", ...)
    shape = tuple(ds.sizes[axis] for axis in axes)
    hold, tightest = np.full(shape, -1, np.int8), np.full(shape, np.nan)
    # The start alone says nothing: all bounds are zero there.
    if runs.sizes["record"] > 1:
        try:
            hold, tightest = _check_bounds(runs, setting)
        except QkdynError as error:
            warnings.warn(f"the bounds of Lemma 3 left unchecked: {error}", OutputWarning, stacklevel=2)
    return ds.assign(bounds_hold=(axes, hold), bounds_tightest=(axes, tightest))


def _check_bounds(runs: "xr.Dataset", setting: Setting) -> tuple[np.ndarray, np.ndarray]:
    """bounds_hold and bounds_tightest of CACO `runs` on (design, r, seed, record)."""
    t = runs.t.values[1:]
    eta = t[0]
    mu_ov, mu_qk, alpha = (runs[name].values[..., 1:].astype(float) for name in ("mu_ov", "mu_qk", "alpha"))
    # The bounds' shape is r + record; seeds and designs enter through each run's own delta alone.
    r, recorded = runs.r.values, np.isfinite(mu_ov)
    delta = np.clip(1 - np.where(recorded, alpha, 0.5), 1e-300, 1 - 1e-16)
    upper = lemma3_bounds(setting, r, t, delta=0.5)
    lower = lemma3_bounds(setting, r, t - eta, delta=0.5)
    over_r = (slice(None), None, slice(None))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.stack(
            [
                upper.mu_ov_upper[over_r] / mu_ov,
                mu_ov / lower.mu_ov_lower[over_r],
                upper.mu_qk_upper[over_r] / mu_qk,
                mu_qk / (lower.mu_qk_lower[over_r] / 0.5 * delta),
            ]
        )
    # 0/0 at the first step says nothing: a value on a bound of zero.
    ratios = np.where(recorded & ~np.isnan(ratios), ratios, np.inf)
    tightest = ratios.min((0, -1))
    some = recorded.any(-1)
    hold = np.where(some, tightest >= 1 - ROUNDING, -1).astype(np.int8)
    return hold, np.where(some, tightest, np.nan)

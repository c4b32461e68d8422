"""The exact theory laid over a sweep's records, and Lemma 3's bounds checked on each of them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from qkdyn.theory import Setting, at_loss, class_competition, integrate, lemma3_bounds

if TYPE_CHECKING:
    import xarray as xr

# Records are float32 projections of whole matrices; a bound is broken only beyond their rounding.
ROUNDING = 1e-5
# Ratios at which the theory is drawn between the least and the largest of a sweep.
CURVE = 61


def with_theory(ds: "xr.Dataset", setting: Setting, initial: Mapping[str, tuple[float, float]]) -> "xr.Dataset":
    """Add what the scalars of Theorem 1 (all four parameterizations) predict at the records and levels of a sweep.

    Args:
        ds: a dataset of `run_sweep`; time t is step * eta_OV, so the theory runs at eta_OV = 1.
        setting: the sizes of the task.
        initial: (mu_OV, mu_QK) at t = 0 by parameterization.

    Returns:
        `ds` with theory_* on (parameterization, r, record), theory_matched_* and log_amplification (how much a difference
        between two tokens of a class has grown, see `class_competition`) on (parameterization, r, level); and, where there
        are several ratios, theory_curve_* between them on (parameterization, curve_r, level).
    """
    r, level = ds.r.values, ds.level.values
    forms = ds.parameterization.values
    paths, states, growth = [], [], []
    for form in forms:
        start = {"parameterization": form, "initial": initial[form]}
        paths.append(integrate(setting, r, ds.t.sel(parameterization=form).values, **start))
        states.append(at_loss(setting, r[:, None], level, **start))
        growth.append(class_competition(setting, r[:, None], level, **start).log_delta)
    at_record, at_level = ("parameterization", "r", "record"), ("parameterization", "r", "level")
    added = {
        f"theory_{k}": (at_record, np.stack([getattr(p, k) for p in paths]))
        for k in ("loss", "mu_ov", "mu_qk", "alpha")
    }
    added |= {
        f"theory_matched_{k}": (at_level, np.stack([getattr(s, k) for s in states]))
        for k in ("alpha", "mu_ov", "mu_qk", "t")
    }
    ds = ds.assign(added | {"log_amplification": (at_level, np.stack(growth))})
    return _with_curve(ds, setting, initial) if r.size > 1 else ds


def _with_curve(ds: "xr.Dataset", setting: Setting, initial: Mapping[str, tuple[float, float]]) -> "xr.Dataset":
    """Add theory_curve_* on (parameterization, curve_r, level), so that a figure need not join a few points by lines."""
    r, level = np.geomspace(ds.r.min(), ds.r.max(), CURVE), ds.level.values
    states = [
        at_loss(setting, r[:, None], level, parameterization=form, initial=initial[form])
        for form in ds.parameterization.values
    ]
    axes = ("parameterization", "curve_r", "level")
    curves = {
        f"theory_curve_{k}": (axes, np.stack([getattr(s, k) for s in states])) for k in ("alpha", "mu_ov", "mu_qk")
    }
    return ds.assign(curves).assign_coords(curve_r=r)


def with_bounds(ds: "xr.Dataset", setting: Setting) -> "xr.Dataset":
    """Add whether Lemma 3's bounds, eqs. (24), (26) and (28), hold at every record of the CACO runs.

    Upper bounds are taken at t, lower ones at t - eta_OV, because gradient descent lags the flow by one step; delta is the
    run's own 1 - alpha(t), the sharpest that (27) admits.

    Returns:
        `ds` with bounds_hold (1, 0, or -1 where nothing was recorded) and bounds_tightest (the smallest of upper bound /
        value and value / lower bound; > 1 where all hold) on (design, r, seed); `ds` itself where it has no CACO runs.
    """
    if "CACO" not in ds.parameterization.values:
        return ds
    runs = ds.sel(parameterization="CACO").transpose("design", "r", "seed", "record", ...)
    t = runs.t.values[1:]
    eta = t[0]
    mu_ov, mu_qk, alpha = (runs[name].values[..., 1:].astype(float) for name in ("mu_ov", "mu_qk", "alpha"))
    # The bounds' shape is r + record; seeds and designs enter through each run's own delta alone.
    r, recorded = ds.r.values, np.isfinite(mu_ov)
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
    axes = ("design", "r", "seed")
    return ds.assign(bounds_hold=(axes, hold), bounds_tightest=(axes, np.where(some, tightest, np.nan)))

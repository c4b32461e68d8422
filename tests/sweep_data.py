"""A synthetic sweep: the two scalar equations with noise in place of training, in the shape that real sweeps have."""

import functools
import json

import numpy as np
import xarray as xr
from scipy.integrate import solve_ivp

NAMES = ("FAFO", "CAFO", "FACO", "CACO")
RATIOS = (0.01, 0.1, 1.0, 10.0, 100.0)
LEVELS = (0.5, 0.1, 0.01)
M_OWN, N_OTHER, B, CLASSES = 5, 50, 50, 5


def attention(q):
    return M_OWN * np.exp(q) / (M_OWN * np.exp(q) + N_OTHER)


def loss_of(mu, q):
    return np.log1p((CLASSES - 1) * np.exp(-attention(q) * mu))


@functools.cache
def solve(name, r, end):
    """The dense solution (mu_OV, mu_QK) of the two scalar equations up to time `end`, in ln(1 + t)."""

    def velocity(s, state):
        mu, q = state
        alpha = attention(q)
        odds = np.exp(min(alpha * mu, 700.0)) + CLASSES - 1
        f = alpha / (B * odds) * (2 * np.sqrt(B) * mu if name.endswith("FO") else 1.0)
        g = r * (CLASSES - 1) * alpha * (1 - alpha) * mu / (CLASSES * B**2 * odds)
        return np.exp(s) * np.array([f, g * (2 * B * q if name.startswith("FA") else 1.0)])

    start = [0.01 if name.endswith("FO") else 0.0, 0.01 if name.startswith("FA") else 0.0]
    return solve_ivp(velocity, (0, np.log1p(end)), start, method="LSODA", rtol=1e-8, atol=1e-10, dense_output=True).sol


def theory_of(name, r, t, levels):
    """(mu, q, alpha, loss) on `t` and the rows (alpha, mu, q, t) at `levels`, NaN where a level was not reached."""
    end = float(t[-1])
    mu, q = solve(name, r, end)(np.log1p(t))
    fine = np.linspace(0, np.log1p(end), 4000)
    fine_mu, fine_q = solve(name, r, end)(fine)
    fall = -np.log(loss_of(fine_mu, fine_q))
    wanted = [-np.log(level) for level in levels]
    matched = [
        np.interp(wanted, fall, values, left=np.nan, right=np.nan)
        for values in (attention(fine_q), fine_mu, fine_q, np.expm1(fine))
    ]
    return (mu, q, attention(q), loss_of(mu, q)), matched


def make_sweep(
    designs=("balanced", "sampled"),
    names=NAMES,
    ratios=RATIOS,
    seeds=3,
    levels=LEVELS,
    records=120,
    noise=0.02,
    error=0.01,
    end=3e6,
):
    """A sweep of noisy theory curves: `error` shifts every simulation, `noise` spreads the seeds (both relative)."""
    rng = np.random.default_rng(7)
    step = np.unique(np.concatenate([[0], np.geomspace(1, end, records - 1).astype(int)]))
    shape = (len(designs), len(names), len(ratios), seeds)
    run = {name: np.full((*shape, step.size), np.nan, np.float32) for name in ("loss", "mu_ov", "mu_qk", "alpha")}
    at = {name: np.full((*shape, len(levels)), np.nan, np.float32) for name in ("alpha", "mu_ov", "mu_qk", "t")}
    theory = {name: np.zeros((*shape[1:3], step.size)) for name in run}
    theory_at = {name: np.zeros((*shape[1:3], len(levels))) for name in at}
    for j, name in enumerate(names):
        for k, r in enumerate(ratios):
            (mu, q, alpha, loss), matched = theory_of(name, r, step.astype(float), levels)
            for key, values in (("mu_ov", mu), ("mu_qk", q), ("alpha", alpha), ("loss", loss)):
                theory[key][j, k] = values
            for key, values in zip(at, matched, strict=True):
                theory_at[key][j, k] = values
            for i, design in enumerate(designs):
                drift = 0.2 * np.log10(r / 0.1) / 3 if design == "sampled" and r > 0.1 else 0.0
                for s in range(seeds):
                    factor = 1 + error + noise * rng.standard_normal()
                    scale = {"mu_ov": factor * (1 - drift), "mu_qk": factor * (1 + 1.5 * drift)}
                    stop = np.searchsorted(-loss, -0.8 * min(levels, default=0.01)) + 1
                    run["mu_ov"][i, j, k, s, :stop] = (mu * scale["mu_ov"])[:stop]
                    run["mu_qk"][i, j, k, s, :stop] = (q * scale["mu_qk"])[:stop]
                    run["alpha"][i, j, k, s, :stop] = attention(q * (1 + (factor - 1) / 5))[:stop]
                    run["loss"][i, j, k, s, :stop] = (loss * (2 - factor) ** 0.3)[:stop]
                    at["mu_ov"][i, j, k, s], at["mu_qk"][i, j, k, s] = (
                        matched[1] * scale["mu_ov"],
                        matched[2] * scale["mu_qk"],
                    )
                    at["alpha"][i, j, k, s] = attention(matched[2] * (1 + (factor - 1) / 5))
                    at["t"][i, j, k, s] = matched[3] * factor
    grid, run_dims = ("design", "parameterization", "r", "seed"), ("design", "parameterization", "r", "seed", "record")
    data = {key: (run_dims, values) for key, values in run.items()}
    data |= {f"matched_{key}": ((*grid, "level"), values) for key, values in at.items()}
    data |= {f"theory_{key}": (("parameterization", "r", "record"), values) for key, values in theory.items()}
    data |= {f"theory_matched_{key}": (("parameterization", "r", "level"), v) for key, v in theory_at.items()}
    data["t"] = (("parameterization", "record"), np.tile(step.astype(float), (len(names), 1)))
    meanings = {"flag_values": np.arange(4, dtype=np.int8), "flag_meanings": "running stopped budget diverged"}
    data["status"] = (grid, np.ones(shape, np.int8), meanings)
    data["last_step"] = (grid, np.isfinite(run["loss"]).sum(-1).astype(np.int32))
    data["diverged_step"] = (grid, np.full(shape, -1, np.int32))
    collapsed = (np.array(names) == "CACO")[None, :, None, None]
    data["bounds_hold"] = (grid, np.broadcast_to(np.where(collapsed, 1, -1), shape).astype(np.int8))
    tightest = 1.001 + 0.01 * np.arange(seeds) + 0.1 * np.arange(len(ratios))[:, None]
    data["bounds_tightest"] = (grid, np.where(collapsed, tightest, np.nan) * np.ones(shape))
    growth = np.log(np.array(ratios))[:, None] + 3 * np.arange(len(levels)) + np.arange(len(names))[:, None, None]
    data["log_amplification"] = (("parameterization", "r", "level"), growth)
    coords = {"design": list(designs), "parameterization": list(names), "r": list(ratios), "seed": np.arange(seeds)}
    coords |= {"record": np.arange(step.size), "level": list(levels), "step": ("record", step)}
    config = json.dumps({"eta_ov": 1.0, "seeds": seeds})
    return xr.Dataset(data, coords=coords, attrs={"title": "synthetic sweep", "config": config, "digest": "0" * 64})


def make_diverged(ds, **where):
    """A copy of `ds` in which the runs selected by position diverged before the first record."""
    ds = ds.copy(deep=True)
    for name in ("loss", "mu_ov", "mu_qk", "alpha", *(f"matched_{key}" for key in ("alpha", "mu_ov", "mu_qk", "t"))):
        ds[name][where] = np.nan
    ds["status"][where] = 3
    ds["diverged_step"][where] = 1
    return ds

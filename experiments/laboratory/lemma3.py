"""Lemma 3: its bounds, how tight they are, how long its regime lasts, and bounds that meet at both ends."""

import math
from typing import TYPE_CHECKING

import numpy as np

from experiments.laboratory.check import Check
from qkdyn.theory import Setting, at_attention, at_loss, at_time, lemma3_bounds
from qkdyn.theory.sharp_bounds import fastest, pace, sharp_bounds, time_bounds

if TYPE_CHECKING:
    import pandas as pd

PART = "lemma 3"
SETTING = Setting(m=5, n=50, b=50, M=5)
SIZES = "m=5 n=50 b=50 M=5"
RATIOS = np.array([0.01, 0.1, 1.0, 10.0, 100.0])
WHERE = f"{SIZES}, r = .01 ... 100"
DELTAS = (0.5, 0.1)


def run(quick: bool) -> tuple[list[Check], dict[str, "pd.DataFrame"]]:
    """All statements about the bounds, and the bounds over time."""
    times = np.geomspace(1e-2, 1e8, 400 if quick else 4_000)
    return [*_hold(times), *_constants(), *_regime(quick), *_sharp(times)], {
        "bounds": bounds_frame(60 if quick else 200)
    }


def _excess(state, bounds, times: np.ndarray) -> dict[str, float]:
    """By how much, relatively, each bound is exceeded at worst; <= 0 where it holds."""
    return {
        f"{name} {side}": float((sign * (getattr(state, name) / getattr(bounds, f"{name}_{side}") - 1)).max())
        for name in ("mu_ov", "mu_qk")
        for side, sign in (("upper", 1), ("lower", -1))
    }


def _hold(times: np.ndarray) -> list[Check]:
    excess = _excess(at_time(SETTING, RATIOS[:, None], times), lemma3_bounds(SETTING, RATIOS, times), times)
    equations = {"mu_ov upper": "(24) right", "mu_ov lower": "(24) left", "mu_qk upper": "(26)", "mu_qk lower": "(28)"}
    where = f"{WHERE}, {times.size} times to 1e8, delta = 1 - alpha(t)"
    return [Check(PART, f"Lemma 3, eq. {equations[name]}", where, value, 1e-12) for name, value in excess.items()]


def _constants() -> list[Check]:
    """The constants by which the bounds of mu_OV stay apart: upper / lower -> 1/alpha0."""
    bounds = lemma3_bounds(SETTING, RATIOS, [1e300])
    found = float((bounds.mu_ov_upper / bounds.mu_ov_lower).max())
    statement = "The bounds of mu_OV stay apart for ever: upper / lower -> 1/alpha0 = 11"
    return [Check(PART, statement, f"{SIZES}, t = 1e300", abs(found * SETTING.alpha0 - 1), 0.01, note=f"{found:.3f}")]


def _regime(quick: bool) -> list[Check]:
    """When alpha passes 1 - delta, where pre-saturation ends, and when (28) with that delta kept fails."""
    checks = []
    for delta in DELTAS[: 1 if quick else None]:
        ends = at_attention(SETTING, RATIOS, 1 - delta)
        # The loss there, from ln loss ~ -alpha mu_ov where it underflows.
        margin = (1 - delta) * ends.mu_ov
        log_loss = np.where(margin > 600, math.log(SETTING.M - 1) - margin, np.log(SETTING.loss(margin))) / math.log(10)
        fails = [_first_failure(r, delta) for r in RATIOS]
        note = "log10 of the time, and of the loss then: " + ", ".join(
            f"{math.log10(t):.1f} ({L:.2g})" for t, L in zip(ends.t, log_loss, strict=True)
        )
        statement = f"Pre-saturation (alpha < {1 - delta:g}) ends at a finite time for every r"
        checks.append(Check(PART, statement, WHERE, float(not np.isfinite(ends.t).all()), 0.0, note=note))
        statement = f"Eq. (28) with delta = {delta:g} kept for ever"
        note = "first fails at log10 t = " + ", ".join(f"{value:.1f}" for value in fails)
        checks.append(Check(PART, statement, WHERE, float(np.isfinite(fails).sum()), 0.0, False, note))
    exponents = [_exponent(t) for t in (1e5, 1e6, 9e7)]
    note = "at t = 1e5, 1e6, 9e7: " + "; ".join(", ".join(f"{value:.2f}" for value in row) for row in exponents)
    away = float(np.abs(np.array(exponents[-1]) - 2).max())
    statement = "mu_QK grows like ln^2 t: local exponent d ln mu_QK / d ln ln(1+t) is 2 within 0.2"
    checks.append(Check(PART, statement, WHERE, away, 0.2, False, note + " (r = .01 ... 100): 2 is crossed, not kept"))
    return checks


def _first_failure(r: float, delta: float) -> float:
    """log10 of the time from which (28) with a fixed delta fails, by bisection."""
    low, high = math.log10(float(at_attention(SETTING, r, 1 - delta).t)), 299.0

    def fails(log_t: float) -> bool:
        t = 10.0**log_t
        return float(at_time(SETTING, r, t).mu_qk) < float(lemma3_bounds(SETTING, r, [t], delta=delta).mu_qk_lower[0])

    if not fails(high):
        return math.inf
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    return high


def _exponent(t: float) -> np.ndarray:
    """The local exponent d ln mu_QK / d ln ln(1 + t) of each ratio, by a central difference."""
    around = t * np.array([0.999, 1.001])
    q = np.log(at_time(SETTING, RATIOS[:, None], around).mu_qk)
    return np.diff(q)[:, 0] / np.diff(np.log(np.log1p(around)))[0]


def _sharp(times: np.ndarray) -> list[Check]:
    """The bounds of `sharp_bounds`, and what they say of all ratios at once."""
    excess = _excess(at_time(SETTING, RATIOS[:, None], times), sharp_bounds(SETTING, RATIOS, times), times)
    far = sharp_bounds(SETTING, RATIOS, np.array([1e300]))
    apart = max(float((getattr(far, f"{n}_upper") / getattr(far, f"{n}_lower") - 1).max()) for n in ("mu_ov", "mu_qk"))
    losses, ratios = np.array([0.5, 0.1, 0.01, 1e-4]), np.geomspace(1e-6, 1e6, 25)
    early, late = time_bounds(SETTING, losses)
    t = at_loss(SETTING, ratios[:, None], losses).t
    peak = float(pace(SETTING, fastest(SETTING)))
    gain = peak / SETTING.alpha0**2
    where = f"{WHERE}, {times.size} times to 1e8"
    return [
        Check(PART, "Sharp bounds of mu_OV and mu_QK", where, max(excess.values()), 1e-12),
        Check(PART, "Sharp bounds meet at infinity: upper/lower - 1 at t = 1e300", WHERE, apart, 0.01),
        Check(
            PART,
            "No ratio reaches a loss sooner or later than h allows (earliest / t, t / latest)",
            f"{SIZES}, r = 1e-6 ... 1e6, loss .5 ... 1e-4",
            float(max((early / t).max(), (t / late).max()) - 1),
            1e-9,
            note=f"h is at most {peak:.4f} and at least alpha0^2: no ratio gains more than a factor {gain:.0f} in time",
        ),
    ]


def bounds_frame(count: int) -> "pd.DataFrame":
    """Values and both kinds of bounds over time: columns r, t, quantity, value, lower, upper, sharp_lower, sharp_upper."""
    import pandas as pd

    times = np.geomspace(1e2, 1e12, count)
    state, lemma = at_time(SETTING, RATIOS[:, None], times), lemma3_bounds(SETTING, RATIOS, times)
    sharp, tables = sharp_bounds(SETTING, RATIOS, times), []
    for row, r in enumerate(RATIOS):
        for name in ("mu_ov", "mu_qk"):
            columns = {"r": r, "t": times, "quantity": name, "value": getattr(state, name)[row]}
            for kind, bounds in (("", lemma), ("sharp_", sharp)):
                columns |= {f"{kind}{side}": getattr(bounds, f"{name}_{side}")[row] for side in ("lower", "upper")}
            tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)

"""A thousand scalar states at loss 1e-4: diffrax, vmapped, against a loop of scipy, and the closed form against diffrax."""

import math

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import Bench, Row, interleaved, rows, seconds_of
from qkdyn.theory import Setting, at_loss
from qkdyn.theory.landscape import landscape
from qkdyn.theory.ode import velocity

PART = "theory"
LOSS, RTOL = 1e-4, 1e-9
RATIOS = np.geomspace(0.01, 100, 40)
SETTINGS = [Setting(m=m, n=50, b=50, M=M) for m in (1, 2, 5, 10, 25) for M in (2, 5, 10, 20, 50)]


def theory(bench: Bench) -> list[Row]:
    """Seconds for 1,000 states at loss 1e-4 (CACO from zero) by each way; the integrators are told the times."""
    settings = SETTINGS[:: 5 if bench.quick else 1]
    exact, times = _exact(settings)
    count = len(times)
    loop = f"scipy solve_ivp, DOP853, {count} in a loop"
    vmapped = f"diffrax, Dopri8, {count} vmapped"
    solve, arguments = _diffrax(settings, times)
    with jax.enable_x64(True):
        found = np.asarray(solve(*arguments))
    _agree(vmapped, found, exact)
    _agree(loop, _scipy(settings, times), exact)
    _agree("closed form", _closed(settings), exact)
    actions = {
        loop: lambda: seconds_of(lambda: _scipy(settings, times)),
        vmapped: lambda: seconds_of(lambda: jax.block_until_ready(solve(*arguments))),
        "closed form, all at once": lambda: seconds_of(lambda: _closed(settings)),
    }
    with jax.enable_x64(True):
        slow = interleaved(
            {name: actions[name] for name in (loop, vmapped)}, 1 if bench.quick else 5, bench.phase(0, 0.8)
        )
        fast = interleaved(
            {name: actions[name] for name in (vmapped, "closed form, all at once")},
            2 if bench.quick else 7,
            bench.phase(0.8, 1.0),
        )
    against = rows(PART, fast, "s", vmapped)[1:]
    return [*rows(PART, slow, "s", loop), *against]


def _agree(name: str, found: np.ndarray, exact: np.ndarray) -> None:
    worst = float(np.abs(found / exact - 1).max())
    if not worst < 1e-6:
        raise RuntimeError(f"{name} is off by {worst:.1e}: what it takes to be wrong is not worth measuring")


def _exact(settings: list[Setting]) -> tuple[np.ndarray, np.ndarray]:
    """(mu_ov, mu_qk) of every setting and ratio, and the time."""
    states = [at_loss(setting, RATIOS, LOSS) for setting in settings]
    both = np.concatenate([np.stack([state.mu_ov, state.mu_qk], 1) for state in states])
    return both, np.concatenate([state.t for state in states])


def _closed(settings: list[Setting]) -> np.ndarray:
    odds, b, M = (np.array([getattr(s, name) for s in settings])[:, None] for name in ("odds", "b", "M"))
    found = landscape(RATIOS, LOSS, odds=odds, M=M, b=b)
    return np.stack([found.mu_ov.ravel(), found.mu_qk.ravel()], 1)


def _grid(settings: list[Setting]):
    """(r, ln(m/n), b, M) of every trajectory."""
    return [(r, math.log(s.odds), float(s.b), float(s.M)) for s in settings for r in RATIOS]


def _scipy(settings: list[Setting], times: np.ndarray) -> np.ndarray:
    from scipy.integrate import solve_ivp

    def slope(t, y, r, odds, b, M):
        mu, q = y
        alpha = 1 / (1 + math.exp(-q - odds))
        f = alpha / (b * (math.exp(alpha * mu) + M - 1))
        return f, f * r * (M - 1) / (M * b) * (1 - alpha) * mu

    ends = []
    for case, t in zip(_grid(settings), times, strict=True):
        solution = solve_ivp(slope, (0, t), (0.0, 0.0), method="DOP853", rtol=RTOL, atol=1e-12, args=case, t_eval=[t])
        ends.append(solution.y[:, -1])
    return np.array(ends)


def _diffrax(settings: list[Setting], times: np.ndarray):
    """A compiled function of all trajectories at once, and its arguments."""

    def one(case, t):
        r, odds, b, M = case
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(velocity),
            diffrax.Dopri8(),
            t0=0.0,
            t1=t,
            dt0=b / 10,
            y0=jnp.zeros(2),
            args=(r, 1.0, odds, b, M, False, False),
            saveat=diffrax.SaveAt(t1=True),
            stepsize_controller=diffrax.PIDController(rtol=RTOL, atol=1e-12),
            throw=False,
        )
        return solution.ys[0]  # pyright: ignore[reportOptionalSubscript]

    with jax.enable_x64(True):
        arguments = tuple(jnp.asarray(column) for column in np.array(_grid(settings)).T), jnp.asarray(times)
    return jax.jit(jax.vmap(one)), arguments

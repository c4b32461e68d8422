"""SGD with momentum on the rows of an embedding, row by row: idle updates are made up for when a row is next read.

A row that a batch does not touch has gradient zero, but its momentum b still moves it, and weight decay, which torch adds to
the gradient, feeds the momentum. An idle update at rate lr is

    b' = mu b + decay row,    row' = row - lr b',

a linear map whose products over many updates have determinant mu^n: nothing to divide by. But two directions are carried
into themselves: a slow one, (row, b) = u (1, slow_t), in which the row decays, and a fast one, v (fast_t, 1), in which the
momentum dies away and the row comes to nothing. Their slopes obey

    slow_(t+1) = (decay + mu slow_t) / (1 - lr (decay + mu slow_t)),    from a start without momentum on,
    fast_t = mu (lr + fast_(t+1)) / (1 - decay (lr + fast_(t+1))),      from the last update backwards,

each in the direction of time in which errors shrink. Along them u shrinks by 1 - lr (decay + mu slow_t) an update and v by
mu + decay fast_t: sums of logarithms, tabled once for each run, give any number of idle updates. The directions are real and
apart as long as the row decays more slowly than the momentum: lr decay < (1 - sqrt(mu))^2; half of that is allowed. Without
momentum the fast direction dies away at once, and b is what the last update was made of.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from qkdyn.errors import check_positive, reject

# Rows are left at no update: one before the first.
NEVER = -1


class Idle(NamedTuple):
    """Tables for A runs; entry t is for what stands before update t.

    Attributes:
        slow: (steps + 1, A), momentum over row in the slow direction.
        fast: (steps + 1, A), row over momentum in the fast direction.
        keep: two of (steps + 1, A), whose sum is the log of what is left in the slow direction of what was there at first.
        fed: two of (steps + 1, A), alike in the fast direction, but for mu^t.
        rate: (steps, A), lr.
        decay: (A,), weight decay.
        momentum: (A,), mu.
    """

    slow: Any
    fast: Any
    keep: tuple[Any, Any]
    fed: tuple[Any, Any]
    rate: Any
    decay: Any
    momentum: Any


def idle_tables(rate: Any, decay: Any, momentum: Any) -> Idle:
    """The tables of runs whose learning rates are `rate` (steps, A), with weight decays and momenta (A,).

    Computed in float64, returned in float32; sums of logarithms as two of these, so that short differences are exact.

    Raises:
        InputError: shapes that do not fit, rates or decays that are negative or not finite, momenta not in [0, 1), or rates
            times decay above half of (1 - sqrt(momentum))^2.
    """
    rate, decay, momentum = (np.asarray(x, np.float64) for x in (rate, decay, momentum))
    if rate.ndim != 2 or not rate.shape[1:] == decay.shape == momentum.shape:
        shapes = (rate.shape, decay.shape, momentum.shape)
        reject("the shapes of rate, decay and momentum", shapes, "(steps, runs), (runs,) and (runs,)")
    for name, values in (("rate", rate), ("decay", decay)):
        for value in (values.min(initial=0.0), values.max(initial=0.0)):
            check_positive(name, float(value), zero=True)
    if not ((momentum >= 0) & (momentum < 1)).all():
        reject("momentum", momentum.tolist(), "at least 0 and below 1")
    most = (1 - np.sqrt(momentum)) ** 2 / 2
    wrong = np.flatnonzero((rate * decay).max(0, initial=0.0) > most)
    if wrong.size:
        run = int(wrong[0])
        found = float((rate * decay)[:, run].max())
        reject("rate * decay", found, f"at most {most[run]:.2g} at momentum {momentum[run]:g}", "lower the decay")
    steps = len(rate)
    slow, fast = np.zeros((2, steps + 1, rate.shape[1]))
    keep = np.zeros_like(slow)
    for t in range(steps):
        fed = decay + momentum * slow[t]
        slow[t + 1] = fed / (1 - rate[t] * fed)
        keep[t + 1] = keep[t] + np.log1p(-rate[t] * fed)
    for t in range(steps - 1, -1, -1):
        ahead = rate[t] + fast[t + 1]
        fast[t] = momentum * ahead / (1 - decay * ahead)
    per_momentum = np.divide(fast, momentum, out=np.zeros_like(fast), where=momentum > 0)
    fed = np.cumsum(np.log1p(decay * per_momentum), axis=0)
    fed = np.concatenate([np.zeros((1, *fed.shape[1:])), fed[:-1]])
    single = lambda x: np.asarray(x, np.float32)  # noqa: E731
    double = lambda x: (single(x), single(x - single(x)))  # noqa: E731
    settings = single(rate), single(decay), single(momentum)
    return Idle(single(slow), single(fast), double(keep), double(fed), *settings)


def catch_up(row: Any, b: Any, last: Any, now: Any, idle: Idle) -> tuple[Any, Any]:
    """Rows and momenta as dense SGD would have them before update `now`.

    Args:
        row: (..., A, d), A runs of each.
        b: momenta, alike.
        last: (...), the update that touched each row last, NEVER for none.
        now: the next update, a number.
        idle: the runs' tables.
    """
    lead = (None,) * last.ndim
    since = lambda table: table[now][lead] - table[last + 1]  # noqa: E731
    count = (now - 1 - last)[..., None].astype(jnp.float32)
    kept = sum(map(since, idle.keep))
    # No idle update takes nothing away, also where there is no momentum, whose logarithm is infinite.
    died = sum(map(since, idle.fed)) + jnp.where(count > 0, count * jnp.log(idle.momentum)[lead], 0)
    slow, fast = idle.slow[last + 1], idle.fast[last + 1]
    slow_now, fast_now = idle.slow[now][lead], idle.fast[now][lead]
    # Changes, so that no idle update is no change.
    row_slow, b_slow = jnp.expm1(kept), slow_now * jnp.exp(kept) - slow * jnp.exp(died)
    row_fast, b_fast = fast_now * jnp.exp(died) - fast, jnp.exp(died)
    apart = 1.0 - slow * fast
    slow, fast, row_slow, b_slow, row_fast, b_fast, apart = (
        x[..., None] for x in (slow, fast, row_slow, b_slow, row_fast, b_fast, apart)
    )
    u, v = (row - fast * b) / apart, (b - slow * row) / apart
    return row + row_slow * u + row_fast * v, b_slow * u + b_fast * b


def update(row: Any, b: Any, gradient: Any, now: Any, idle: Idle) -> tuple[Any, Any]:
    """Update number `now` of rows (..., A, d) that are up to date, by their gradient: decay first, then momentum, then rate."""
    lead = (*(None,) * (row.ndim - 2), slice(None), None)
    b = idle.momentum[lead] * b + gradient + idle.decay[lead] * row
    return row - idle.rate[now][lead] * b, b

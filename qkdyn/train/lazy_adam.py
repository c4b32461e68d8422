"""AdamW on the rows of an embedding, row by row: what idle updates would have done is done when a row is next read.

A row that a batch does not touch has gradient zero, but AdamW still moves it, by its old momentum and by weight decay. Those
idle updates have a closed form. With m, v as they were left by update s0, the rate lr_s, and n = t - 1 - s0 idle updates,

    row(t) = E(s0) row - m sum_s E(s) lr_s b1^(s - s0) / (1 - b1^(s + 1)) / (sqrt(v) h_s + eps),
    h_s = b2^((s - s0)/2) / sqrt(1 - b2^(s + 1)),    E(s) = prod_(s < i < t) (1 - lr_i decay),

which depends on the row's numbers through sqrt(v) and eps alone. With g = 1/h the summand is A g / (sqrt(v) + eps g): a mean of
a slowly varying function of g, taken by its first two moments. Where sqrt(v) is large against eps, as almost always, the sum is
exact; where it is not, g varies by a few per cent over the some ten updates in which the momentum b1^k lives, and the error
is of third order in that. The moments are differences of geometric sums, tabled once for each run.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from qkdyn.errors import check_positive, reject

B1, B2, EPS = 0.9, 0.999, 1e-8
# Rows are left at no update: one before the first.
NEVER = -1


class Idle(NamedTuple):
    """Tables for A runs over all updates; entry s + 1 is for rows that update s left.

    Attributes:
        log_keep: (steps + 1, A), sum of ln(1 - lr decay) up to there.
        sums: (steps + 1, 3, A), the geometric sums of the three moments, over all later updates.
        rate: (steps, A), lr.
        decay: (A,), weight decay.
    """

    log_keep: Any
    sums: Any
    rate: Any
    decay: Any


def idle_tables(rate: Any, decay: Any) -> Idle:
    """The tables of runs whose learning rates are `rate` (steps, A) and whose weight decays are `decay` (A,).

    Computed in float64, returned in float32.

    Raises:
        InputError: shapes that do not fit, rates or decays that are negative or not finite, or decay that removes a row.
    """
    rate, decay = np.asarray(rate, np.float64), np.asarray(decay, np.float64)
    if rate.ndim != 2 or decay.shape != rate.shape[1:]:
        reject("the shapes of rate and decay", (rate.shape, decay.shape), "(steps, runs) and (runs,)")
    for name, values in (("rate", rate), ("decay", decay)):
        for value in (values.min(initial=0.0), values.max(initial=0.0)):
            check_positive(name, float(value), zero=True)
    if (rate * decay).max(initial=0.0) >= 1:
        reject("rate * decay", float((rate * decay).max()), "below 1", "decay that strong removes a row in one update")
    steps = len(rate)
    log_step = np.log1p(-rate * decay)
    s = np.arange(steps)
    gamma = np.sqrt(-np.expm1((s + 1) * np.log(B2)))
    momentum = -np.expm1((s + 1) * np.log(B1))
    sums = np.zeros((steps + 1, 3, rate.shape[1]))
    factors = _factors()
    for i in range(steps - 1, -1, -1):
        # What is idle from update i on: update i itself, then the rest, both seen from one update earlier.
        own = rate[i] / momentum[i] * gamma[i] ** np.arange(1, 4)[:, None]
        sums[i] = factors[:, None] * np.exp(-log_step[i]) * (own + sums[i + 1])
    log_keep = np.concatenate([np.zeros((1, rate.shape[1])), np.cumsum(log_step, 0)])
    return Idle(*(np.asarray(x, np.float32) for x in (log_keep, sums, rate, decay)))


def _factors() -> np.ndarray:
    """By what one idle update shrinks the summand of each moment."""
    return B1 * B2 ** (-0.5 * np.arange(1, 4))


def catch_up(row: Any, m: Any, v: Any, last: Any, now: Any, idle: Idle) -> tuple[Any, Any, Any]:
    """Rows and moments as dense AdamW would have them before update `now`.

    Args:
        row: (..., A, d), A runs of each.
        m: first moments, alike.
        v: second moments, alike.
        last: (...), the update that touched each row last, NEVER for none.
        now: the next update, a number.
        idle: the runs' tables.
    """
    count = (now - 1 - last)[..., None]
    lead = (None,) * last.ndim
    grown = idle.log_keep[now][lead] - idle.log_keep[last + 1]
    shrinks = np.log(_factors())[:, None].astype(np.float32)
    past = count[..., None].astype(jnp.float32) * shrinks[lead]
    left = jnp.exp(past - grown[..., None, :]) * idle.sums[now][lead]
    zeroth, first, second = jnp.moveaxis(idle.sums[last + 1] - left, -2, 0)
    some = (count > 0) & (zeroth > 0)
    total = jnp.where(some, zeroth, 0.0)
    mean = jnp.where(some, first / jnp.where(some, zeroth, 1.0), 1.0)
    spread = jnp.where(some, jnp.maximum(second / jnp.where(some, zeroth, 1.0) - mean**2, 0.0), 0.0)
    total, mean, spread, keep = (x[..., None] for x in (total, mean, spread, jnp.exp(grown)))
    inverse = 1.0 / (jnp.sqrt(v) + EPS * mean)
    moved = m * total * inverse * (1.0 + spread * (EPS * inverse) ** 2)
    aged = count[..., None].astype(jnp.float32)
    return keep * (row - moved), m * jnp.exp(aged * np.log(B1)), v * jnp.exp(aged * np.log(B2))


def update(row: Any, m: Any, v: Any, gradient: Any, now: Any, idle: Idle) -> tuple[Any, Any, Any]:
    """AdamW's update number `now` of rows (..., A, d) that are up to date, by their gradient."""
    m = B1 * m + (1 - B1) * gradient
    v = B2 * v + (1 - B2) * gradient**2
    count = (now + 1).astype(jnp.float32)
    lead = (*(None,) * (row.ndim - 2), slice(None), None)
    rate, decay = idle.rate[now][lead], idle.decay[lead]
    mean = m / -jnp.expm1(count * np.log(B1))
    scale = jnp.sqrt(v / -jnp.expm1(count * np.log(B2))) + EPS
    return row - rate * (mean / scale + decay * row), m, v

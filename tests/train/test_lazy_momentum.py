"""Idle updates of SGD with momentum made up for at once, against every update one by one in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkdyn.errors import InputError
from qkdyn.train.lazy_momentum import NEVER, catch_up, idle_tables, update
from qkdyn.train.text_engine import cosine

# Embedding rates of runs, weight decays, momenta: published slow and fast, no decay, the strongest allowed, no momentum, a
# rate of 0.
RATE = np.array([5e-4, 5e-2, 5e-2, 0.5, 0.5, 0.0])
MOMENTUM = np.array([0.99, 0.99, 0.9, 0.9, 0.0, 0.99])
DECAY = np.array([1e-5, 1e-5, 0.0, (1 - 0.9**0.5) ** 2, 1e-4, 1e-2])
lazy_step = jax.jit(
    lambda row, b, last, now, gradient, idle: update(*catch_up(row, b, last, now, idle), gradient, now, idle)
)
lazily = jax.jit(catch_up)


def tables(rate, decay=DECAY, momentum=MOMENTUM):
    return jax.tree.map(jnp.asarray, idle_tables(rate, decay, momentum))


def schedule(steps, warmup):
    return cosine(np, np.arange(steps, dtype=float), warmup, steps)[:, None] * RATE


def dense(row, b, gradient, rate, decay=DECAY, momentum=MOMENTUM):
    """Torch's update: decay is added to the gradient, what the momentum gathers is scaled by the rate."""
    gradient = gradient + decay[:, None] * row
    b = momentum[:, None] * b + gradient
    return row - rate[..., None] * b, b


def test_dense_updates_are_those_of_torch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    rate, p = schedule(40, 4), rng.normal(size=(len(RATE), 3))
    gradients, b = rng.normal(size=(40, *p.shape)), np.zeros_like(p)
    rows = [torch.tensor(row, requires_grad=True) for row in p]
    groups = zip(rows, MOMENTUM.tolist(), DECAY.tolist(), strict=True)
    optimizer = torch.optim.SGD([{"params": [row], "momentum": m, "weight_decay": w} for row, m, w in groups], lr=1.0)
    for now, gradient in enumerate(gradients):
        p, b = dense(p, b, gradient, rate[now])
        for a, row in enumerate(rows):
            row.grad, optimizer.param_groups[a]["lr"] = torch.tensor(gradient[a]), float(rate[now, a])
        optimizer.step()
    np.testing.assert_allclose(p, np.stack([row.detach().numpy() for row in rows]), rtol=1e-12)


def touched_now_and_then(steps=200, rows=9, d=2):
    """Rows that are touched often, seldom and never: rates, touches, gradients, start."""
    rng = np.random.default_rng(3)
    touched = rng.random((steps, rows)) < np.geomspace(1e-3, 0.9, rows)
    gradients = rng.normal(size=(steps, rows, len(RATE), d)) * touched[..., None, None]
    return schedule(steps, 20), touched, gradients, rng.normal(size=(rows, len(RATE), d))


def test_rows_touched_now_and_then_are_dense_rows():
    rate, touched, gradients, start = touched_now_and_then()
    steps, idle = len(rate), tables(rate)
    row, b = start.astype(np.float32), np.zeros_like(start, np.float32)
    last = np.full(len(start), NEVER, np.int32)
    p, momentum = start.copy(), np.zeros_like(start)
    for now in range(steps):
        at = np.flatnonzero(touched[now])
        p, momentum = dense(p, momentum, gradients[now], rate[now])
        # All rows are computed, so that one program serves all steps; those touched are written.
        new = lazy_step(row, b, last, now, gradients[now].astype(np.float32), idle)
        row[at], b[at], last[at] = np.asarray(new[0])[at], np.asarray(new[1])[at], now
    assert (last == NEVER).any() and (np.diff(last) != 0).sum() > 3
    found, gathered = map(np.asarray, lazily(row, b, last, steps, idle))
    moved = np.abs(p - start).max((0, 2))
    assert (moved[:-1] > 0.05).all() and moved[-1] == 0
    np.testing.assert_allclose((found - p) / (1 + moved[:, None]), 0, atol=3e-6)
    np.testing.assert_allclose((gathered - momentum) / np.abs(momentum).max((0, 2))[:, None], 0, atol=3e-6)


def test_gaps_of_any_length_in_a_long_training():
    steps = 74_000
    rate = schedule(steps, 7_400)
    idle = tables(rate)
    # What dense does without gradient to a row of (1, 0) and of (0, 1), as matrices (steps, run, 2, 2).
    units = [np.broadcast_arrays(*dense(p, b, 0.0, rate)) for p, b in np.eye(2)[..., None, None]]
    idle_step = np.stack([np.stack(unit, -2) for unit in units], -1).reshape(steps, -1, 2, 2)
    begins = np.array([0, 1, 30, 7_399, 30_000, 50_000, 73_000, 73_999])
    start = np.random.default_rng(0).normal(size=(len(RATE), 2, len(begins))) * np.array([1, 30])[:, None]
    x, found = start.copy(), {}
    for now in range(steps):
        x = idle_step[now] @ x
        if now + 1 in begins:
            x[..., begins == now + 1] = start[..., begins == now + 1]
        if now + 1 in (1, 2, 30, 7_401, 30_001, 30_300, 50_001, 73_500, steps):
            found[now + 1] = x.copy()
    assert np.abs(x - start)[:, 0].max() > 10
    row, b = np.moveaxis(start, (1, 2), (0, 1))[..., None].astype(np.float32)
    reach = 1 + np.abs(b) * (RATE / (1 - MOMENTUM))[:, None]
    for now, x in found.items():
        there = begins <= now
        p, momentum = np.moveaxis(x, (1, 2), (0, 1))[..., None]
        last = np.where(there, begins, now) - 1
        lazy, lazy_b = map(np.asarray, lazily(row, b, last.astype(np.int32), now, idle))
        np.testing.assert_allclose(((lazy - p) / reach)[there], 0, atol=1e-6, err_msg=f"rows before update {now}")
        # A momentum is as exact as what it decayed from, and as what decay of the row feeds it.
        scale = np.abs(b) * MOMENTUM[:, None] ** (now - 1 - last)[:, None, None] + np.abs(momentum) + 1e-30
        np.testing.assert_allclose(((lazy_b - momentum) / scale)[there], 0, atol=2e-5, err_msg=f"momenta before {now}")


def test_no_idle_update_changes_no_bit():
    rng = np.random.default_rng(1)
    row, b = rng.normal(size=(2, 6, len(RATE), 3)).astype(np.float32)
    idle = tables(schedule(40, 4))
    for now in (0, 17, 40):
        same = lazily(row, b, np.full(6, now - 1, np.int32), now, idle)
        assert np.array_equal(same[0], row) and np.array_equal(same[1], b)


def test_what_cannot_be_tabled_is_refused():
    rate = np.full((5, 2), 0.1)
    good = {"decay": np.zeros(2), "momentum": np.array([0.9, 0.5])}
    idle_tables(rate, **good)
    for changed, message in (
        ({"decay": np.zeros(3)}, r"\(steps, runs\), \(runs,\) and \(runs,\)"),
        ({"momentum": np.array([0.9, 1.0])}, "at least 0 and below 1"),
        ({"momentum": np.array([-0.1, 0.5])}, "at least 0 and below 1"),
        ({"decay": np.array([-1.0, 0.0])}, "decay must be a finite number >= 0"),
        ({"decay": np.array([0.0, np.inf])}, "decay must be a finite number"),
        ({"decay": np.array([0.014, 0.5])}, "at most 0.0013 at momentum 0.9, got 0.0014"),
    ):
        with pytest.raises(InputError, match=message):
            idle_tables(rate, **{**good, **changed})
    with pytest.raises(InputError, match="rate must be a finite number"):
        idle_tables(np.full((5, 2), np.nan), **good)

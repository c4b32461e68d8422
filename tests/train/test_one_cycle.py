"""PyTorch's one-cycle schedule by its closed values, and by PyTorch where that is installed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkdyn.train.one_cycle import one_cycle


def test_closed_values():
    cycle, warmup = 41, 11
    share, b1 = one_cycle(np, np.arange(cycle), cycle=cycle, warmup=warmup)
    # The start, half-way up, the top, half-way down, the end.
    np.testing.assert_allclose(share[[0, 5, 10, 25, 40]], [0.04, 0.52, 1, (1 + 4e-6) / 2, 4e-6], rtol=1e-12)
    np.testing.assert_allclose(b1[[0, 5, 10, 25, 40]], [0.95, 0.9, 0.85, 0.9, 0.95], rtol=1e-12)
    # A quarter of a half cosine.
    assert share[30] == pytest.approx(4e-6 + (1 - 4e-6) * (1 + np.cos(np.pi * 2 / 3)) / 2)
    assert (np.diff(share[:11]) > 0).all() and (np.diff(share[10:]) < 0).all()


def test_no_warm_up_begins_at_the_top():
    share, b1 = one_cycle(np, np.arange(4), cycle=10, warmup=0)
    assert share[0] == pytest.approx((1 + np.cos(np.pi / 10)) / 2, rel=1e-5) and b1[0] < 0.853
    assert one_cycle(np, 0, cycle=10, warmup=1)[0] == pytest.approx(0.04)


def test_traced_it_is_the_same():
    found = jax.jit(lambda step: one_cycle(jnp, step, cycle=30, warmup=7))(jnp.arange(15))
    for got, right in zip(found, one_cycle(np, np.arange(15), cycle=30, warmup=7), strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-5)


def test_as_pytorch_has_it():
    torch = pytest.importorskip("torch")
    for cycle, warmup in ((40, 10), (64, 3)):
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.AdamW([weight], lr=3.0)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=3.0, total_steps=cycle, pct_start=warmup / cycle, div_factor=25, final_div_factor=1e4
        )
        found = []
        for _ in range(cycle):
            found.append((optimizer.param_groups[0]["lr"] / 3.0, optimizer.param_groups[0]["betas"][0]))
            optimizer.step()
            schedule.step()
        np.testing.assert_allclose(
            found, np.stack(one_cycle(np, np.arange(cycle), cycle=cycle, warmup=warmup), 1), rtol=1e-9
        )

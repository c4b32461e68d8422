"""Grids: equal to single runs, one program for all of them, ends and divergence kept apart, the dataset's axes."""

import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest

from helpers import compilations
from qkdyn.circuits import init_params, on_ansatz
from qkdyn.errors import InputError, RangeError
from qkdyn.tasks.orthogonal import OrthogonalTask
from qkdyn.train import engine
from qkdyn.train.engine import Job
from qkdyn.train.probe import AnsatzProbe
from qkdyn.train.state import Plan, Status
from qkdyn.train.store import open_store
from qkdyn.train.sweep import Grid, run_sweep

TASK = OrthogonalTask(m=2, n=3, b=2, M=3, backgrounds=4, batch=12)
PLAN = Plan(losses=(0.8, 0.4), stop_loss=0.3, max_steps=200, records=12, chunk=40, block=3)
RATES = {"FAFO": 0.2, "CAFO": 0.2, "FACO": 0.5, "CACO": 1.0}
MEASURES = ("loss", "alpha", "mu_ov", "mu_qk", "matched_alpha", "matched_t", "status", "last_step")


def starts(task=TASK):
    ov, qk = (lambda f: 0.3 * f.endswith("FO")), (lambda f: 0.3 * f.startswith("FA"))
    return {f: on_ansatz(task.directions(), f, mu_ov=ov(f), mu_qk=qk(f)) for f in RATES}


def sweep(plan=PLAN, task=TASK, base=optax.sgd, how=None, on_chunk=None, exact=True, **axes):
    grid = Grid(**({"r": (0.5, 2.0), "seeds": (0, 3), "parameterizations": ("CACO",), "designs": ("sampled",)} | axes))
    return run_sweep(
        task, grid, plan, eta_ov=RATES, initial=starts(task), base=base, on_chunk=on_chunk, exact=exact, **(how or {})
    )


def test_axes_names_and_types():
    ds = sweep(parameterizations=("FACO", "CACO"), designs=("balanced", "sampled"))
    assert ds.alpha.dims == ("design", "parameterization", "r", "seed", "record")
    assert ds.matched_mu_ov.dims == ("design", "parameterization", "r", "seed", "level")
    assert ds.alpha.dtype == np.float32 and ds.status.dtype == np.int8 and ds.t.dtype == np.float64
    assert (
        ds.r.values.tolist() == [0.5, 2.0]
        and ds.seed.values.tolist() == [0, 3]
        and ds.level.values.tolist() == [0.8, 0.4]
    )
    np.testing.assert_array_equal(ds.t, np.array([[0.5], [1.0]]) * ds.step.values)
    assert ds.step.values.tolist() == PLAN.record_steps.tolist()


@pytest.mark.parametrize("form", list(RATES))
def test_every_run_of_a_grid_is_the_run_alone(form):
    ds = sweep(parameterizations=(form,), designs=("balanced", "sampled"))
    for design, r, seed in (("sampled", 2.0, 3), ("balanced", 0.5, 0)):
        one = sweep(parameterizations=(form,), designs=(design,), r=(r,), seeds=(seed,))
        for name in MEASURES:
            cell = ds[name].sel(design=design, r=r, seed=seed, parameterization=form).values
            np.testing.assert_allclose(cell, one[name].values.squeeze((0, 1, 2, 3)), rtol=2e-5, atol=1e-6, err_msg=name)
    assert np.isfinite(ds.matched_alpha).all()


def test_each_seed_may_have_a_start_of_its_own(tmp_path):
    def random(seed):
        normal = jax.nn.initializers.normal(0.1)
        return init_params(jax.random.key(seed), "FACO", d=TASK.d, M=TASK.M, qk=normal, ov=normal)

    def run(initial, how=None, **axes):
        grid = Grid(**({"r": (2.0,), "seeds": (0, 3), "parameterizations": ("FACO",), "designs": ("sampled",)} | axes))
        plan = dataclasses.replace(PLAN, losses=(0.8,), stop_loss=0.8)
        return run_sweep(TASK, grid, plan, eta_ov=RATES, initial={"FACO": initial}, **(how or {}))

    both, store = run(random), open_store(tmp_path, {})
    for seed in (0, 3):
        alone = run(random(seed), seeds=(seed,))
        np.testing.assert_allclose(both.alpha.sel(seed=[seed]), alone.alpha, rtol=2e-5, equal_nan=True)
    assert both.alpha.sel(seed=0).values.tobytes() != both.alpha.sel(seed=3).values.tobytes()
    # More seeds take up the record of the others.
    run(random, {"store": store}, seeds=(3,))
    seen = []
    more = run(random, {"store": store, "on_chunk": lambda form, now: seen.append(now.step.copy())})
    assert seen[0][1] > 0
    assert more.alpha.values.tobytes() == both.alpha.values.tobytes()


def test_time_at_a_level_is_its_step_times_the_rate():
    ds = sweep(parameterizations=("FACO",), plan=dataclasses.replace(PLAN, losses=(0.8,), stop_loss=0.8))
    steps = ds.matched_t.isel(level=0) / RATES["FACO"]  # a run ends at the step after the crossing
    assert ((ds.last_step - 1 < steps) & (steps <= ds.last_step)).all()


def test_every_seed_must_start_above_the_levels():
    def initial(seed):
        return on_ansatz(TASK.directions(), "FACO", mu_ov=20.0 * (seed == 3), mu_qk=2.0)

    grid = Grid(r=(1.0,), seeds=(0, 3), parameterizations=("FACO",))
    with pytest.raises(RangeError, match="below the loss at the start of FACO, got 0.8"):
        run_sweep(TASK, grid, PLAN, eta_ov=RATES, initial={"FACO": initial}, on_chunk=lambda *a: pytest.fail("trained"))


def test_the_axes_are_what_they_are_called():
    ds = sweep(designs=("balanced", "sampled"), seeds=(0, 1))
    end = ds.matched_alpha.isel(parameterization=0, level=1)
    assert (end.sel(r=2.0) > end.sel(r=0.5) + 0.01).all()
    sampled, balanced = (ds.mu_ov.sel(design=d).isel(parameterization=0, record=5) for d in ("sampled", "balanced"))
    assert (np.abs(sampled.diff("seed")) > 1e-5).all()
    assert (np.abs(balanced.diff("seed")) < 1e-6).all()


def test_the_same_seed_sees_the_same_batches_at_every_ratio():
    ds = sweep(r=(1e-6, 1e-5), seeds=(0, 1))  # at such ratios QK stays put, so equal batches give equal OV paths
    mu = ds.mu_ov.isel(design=0, parameterization=0)
    np.testing.assert_allclose(mu.isel(r=0), mu.isel(r=1), rtol=1e-4)
    assert (np.abs(mu.isel(r=0).diff("seed")).max() > 1e-3).all()


def test_one_program_for_any_grid_and_none_for_the_second():
    with compilations() as first:
        sweep(r=(0.5, 2.0), seeds=(0,), plan=Plan(losses=(0.7,), stop_loss=0.25, max_steps=90, chunk=30, block=3))
    assert sum("advance_block" in line for line in first) == 1
    with compilations() as second:
        sweep(
            r=(0.1, 0.2, 3.0),
            seeds=(5, 6, 7),
            plan=Plan(losses=(0.7,), stop_loss=0.25, max_steps=90, chunk=30, block=3),
        )
    assert not [line for line in second if "advance_block" in line]


@pytest.mark.parametrize("chunk", [7, 500])
def test_no_result_depends_on_the_chunk(chunk):
    plan = Plan(losses=(0.8,), stop_loss=0.6, max_steps=30, records=12, chunk=chunk, block=3)
    reference = sweep(plan=Plan(losses=(0.8,), stop_loss=0.6, max_steps=30, records=12, chunk=30, block=3))
    assert sweep(plan=plan).identical(reference)


@pytest.mark.parametrize("block", [1, 7])
def test_any_block_holds_any_grid(block):
    ds = sweep(plan=Plan(losses=(0.8,), stop_loss=0.6, max_steps=30, records=12, block=block), seeds=(0, 1, 2))
    reference = sweep(plan=Plan(losses=(0.8,), stop_loss=0.6, max_steps=30, records=12, block=3), seeds=(0, 1, 2))
    np.testing.assert_allclose(ds.alpha, reference.alpha, rtol=1e-5)


def test_runs_that_end_early_leave_the_blocks(monkeypatch):
    active, blocks, real = [], [], engine.advance_block
    monkeypatch.setattr(engine, "advance_block", lambda *a, **k: blocks.append(len(active)) or real(*a, **k))
    sweep(
        r=(0.01, 100.0),
        seeds=(0, 1, 2, 3),
        on_chunk=lambda form, s: active.append(int((s.status == Status.running).sum())),
    )
    assert active == sorted(active, reverse=True) and active[-1] == 0 and any(0 < a <= 6 for a in active)
    # Six runs at once, three on each of two devices: two rounds for eight, one for what is left of them.
    chunks = len(active) - 1  # the last word is of the ended whole
    assert [blocks.count(k) for k in range(chunks)] == [-(-a // 6) for a in [8, *active[: chunks - 1]]]


def test_a_diverged_run_is_marked_and_leaves_the_others_to_the_bit():
    def forms(r):
        return sweep(parameterizations=("FACO",), r=(0.5, r, 2.0), seeds=(0, 3))

    good, bad = forms(1.0), forms(1e25)
    assert (bad.status.sel(r=1e25) == Status.diverged).all() and (bad.diverged_step.sel(r=1e25) >= 1).all()
    assert bad.alpha.sel(r=1e25).isel(record=-1).isnull().all()
    for r in (0.5, 2.0):
        assert bad.sel(r=r).identical(good.sel(r=r))
        assert (bad.diverged_step.sel(r=r) == -1).all()


def test_a_budget_too_small_is_marked_and_levels_not_reached_are_nan():
    ds = sweep(plan=Plan(losses=(1.09, 0.01), stop_loss=0.01, max_steps=5))
    assert (ds.status == Status.budget).all() and (ds.last_step == 5).all()
    assert np.isfinite(ds.matched_alpha.isel(level=0)).all() and ds.matched_alpha.isel(level=1).isnull().all()


@pytest.mark.parametrize(
    "base", [functools.partial(optax.sgd, momentum=0.5), functools.partial(optax.sgd, nesterov=True, momentum=0.9)]
)
def test_any_optimizer_can_be_the_base(base):
    plain, other = sweep(seeds=(0,)), sweep(seeds=(0,), base=base)
    assert np.isfinite(other.loss.isel(record=3)).all()
    assert (np.abs(other.loss - plain.loss).isel(record=3) > 1e-4).all()


@pytest.mark.parametrize(
    "axes,message",
    [
        ({"r": ()}, "r must be a list with at least one value"),
        ({"r": (0.0,)}, r"r must be a finite number > 0, got 0.0; r = eta_QK / eta_OV"),
        ({"r": (-1.0, 1.0)}, "r must be a finite number > 0, got -1.0"),
        ({"r": (float("nan"),)}, "r must be a finite number > 0, got nan"),
        ({"r": ("10",)}, "r must be a finite number > 0, got '10'"),
        ({"r": "10"}, "r must be a list of values, got '10'"),
        ({"r": 1.0}, "r must be a list of values, got 1.0"),
        ({"r": (1.0, 1.00000000001)}, "r must be distinct values"),
        ({"parameterizations": ("FAFO", "fafo")}, "parameterizations must be distinct"),
        ({"r": (1e35,)}, r"r must be in \[1e-30, 1e30\]"),
        ({"r": (1.0, 1.0)}, r"r must be distinct values, got \(1.0, 1.0\)"),
        ({"seeds": (-1,)}, r"seeds must be integers in \[0, 2\^31\), got -1"),
        ({"seeds": (1.5,)}, "seeds must be integers"),
        ({"designs": ("random",)}, "designs must be among balanced, sampled, got 'random'"),
        ({"parameterizations": ("FOFA",)}, "parameterization must be one of FAFO, CAFO, FACO, CACO, got 'FOFA'"),
    ],
)
def test_grids_are_refused(axes, message, unchecked):
    with pytest.raises(InputError, match=message):
        Grid(**axes)


def test_missing_rates_starts_and_unreachable_levels_are_refused_before_any_step(unchecked):
    grid, seen = Grid(parameterizations=("CACO", "FAFO"), r=(1.0,), seeds=(0,)), []
    arguments = {"eta_ov": RATES, "initial": starts(), "on_chunk": lambda *a: seen.append(a)}
    with pytest.raises(InputError, match="eta_ov must have an entry for FAFO, got entries for CACO"):
        run_sweep(TASK, grid, PLAN, **arguments | {"eta_ov": {"CACO": 1.0}})
    with pytest.raises(InputError, match="initial must have an entry for CACO, got entries for nothing"):
        run_sweep(TASK, grid, PLAN, **arguments | {"initial": {}})
    with pytest.raises(InputError, match=r"eta_ov\[FAFO\] must be a finite number > 0, got 0"):
        run_sweep(TASK, grid, PLAN, **arguments | {"eta_ov": RATES | {"FAFO": 0}})
    with pytest.raises(RangeError, match=r"losses must lie in \(0, 1.09861\)"):
        run_sweep(TASK, grid, Plan(losses=(1.2, 0.1), stop_loss=0.1), **arguments)
    other = starts() | {"CACO": starts()["FACO"]}
    with pytest.raises(InputError, match=r"initial\['CACO'\] must be parameters of CACO, got FACO"):
        run_sweep(TASK, grid, PLAN, **arguments | {"initial": other})
    for spoil in (lambda leaf: leaf * np.nan, lambda leaf: leaf[:-1], lambda leaf: leaf.astype(np.float16)):
        spoilt = starts() | {"CACO": jax.tree.map(spoil, starts()["CACO"])}
        with pytest.raises(InputError, match=r"initial\['CACO'\] ov/W_OV must be finite float32\[3, 10\], got float"):
            run_sweep(TASK, grid, PLAN, **arguments | {"initial": spoilt})
    with pytest.raises(InputError, match=r"eta_ov\[CACO\] \* r must be in \[1e-30, 1e30\]"):
        run_sweep(TASK, grid, PLAN, **arguments | {"eta_ov": RATES | {"CACO": 1e35}})
    assert not seen and jax.local_device_count() == 2


def test_training_is_in_single_precision_whatever_the_default(x64):
    double = sweep(r=(2.0,), seeds=(0,))
    with jax.enable_x64(False):
        assert double.identical(sweep(r=(2.0,), seeds=(0,)))


def test_a_run_has_the_same_bits_in_any_place_of_any_grid():
    small = sweep(parameterizations=("FACO",), r=(2.0, 0.5), seeds=(3,))
    large = sweep(parameterizations=("FACO",), r=(0.1, 0.5, 2.0, 7.0), seeds=(1, 2, 3), designs=("balanced", "sampled"))
    assert large.sel(r=[2.0, 0.5], seed=[3], design=["sampled"]).identical(small)


def test_without_the_promise_each_device_takes_all_its_runs_in_few_sizes():
    jobs = {exact: Job(TASK, AnsatzProbe(TASK), PLAN, exact=exact) for exact in (True, False)}
    assert [jobs[True].block(active, 2) for active in (1, 40, 1000)] == [3, 3, 3]
    assert [jobs[False].block(active, 2) for active in (1, 8, 9, 40, 64, 65)] == [3, 4, 8, 32, 32, 64]


def test_the_mode_without_the_promise_agrees_to_rounding():
    exact, fast = sweep(seeds=(0, 1, 2)), sweep(seeds=(0, 1, 2), exact=False)
    np.testing.assert_allclose(fast.matched_alpha, exact.matched_alpha, rtol=1e-5)

"""Theory laid over records: against the library's functions directly; bounds against a loop, and seen to fail."""

import numpy as np
import pytest
import xarray as xr

from qkdyn.errors import InputError, OutputWarning, QkdynError
from qkdyn.metrics import overlay
from qkdyn.metrics.overlay import with_bounds, with_theory
from qkdyn.theory import Setting, at_loss, integrate, lemma3_bounds

SETTING = Setting(m=4, n=8, b=4, M=4)
INITIAL = {"CACO": (0.0, 0.0), "FAFO": (0.1, 0.1)}
R = (0.1, 10.0)


def records(eta=2.0, parameterizations=("FAFO", "CACO"), warp=1.0, designs=("balanced", "sampled"), seeds=3):
    """A sweep whose runs follow the theory exactly, mu_qk times `warp`."""
    steps = np.array([0, 1, 2, 5, 20, 100])
    t = np.broadcast_to(eta * steps, (len(parameterizations), steps.size)).astype(float)
    shape = (len(designs), len(parameterizations), len(R), seeds, steps.size)
    data = {name: np.empty(shape, np.float32) for name in ("loss", "mu_ov", "mu_qk", "alpha")}
    for i, form in enumerate(parameterizations):
        path = integrate(SETTING, R, t[i], parameterization=form, initial=INITIAL[form])
        for name in data:
            data[name][:, i] = getattr(path, name)[:, None] * (warp if name == "mu_qk" else 1.0)
    axes = ("design", "parameterization", "r", "seed", "record")
    coords = {"design": list(designs), "parameterization": list(parameterizations), "r": list(R)}
    coords |= {"seed": range(seeds), "step": ("record", steps), "level": [0.5, 0.1]}
    variables = {name: (axes, values) for name, values in data.items()}
    return xr.Dataset(variables | {"t": (("parameterization", "record"), t)}, coords=coords)


def test_theory_is_the_librarys_in_its_place():
    ds = with_theory(records(), SETTING, INITIAL)
    for form in ("FAFO", "CACO"):
        path = integrate(
            SETTING, R, ds.t.sel(parameterization=form).values, parameterization=form, initial=INITIAL[form]
        )
        state = at_loss(SETTING, 10.0, 0.1, parameterization=form, initial=INITIAL[form])
        cell = ds.sel(parameterization=form)
        np.testing.assert_array_equal(cell.theory_mu_qk, path.mu_qk)
        np.testing.assert_array_equal(cell.theory_loss, path.loss)
        for name in ("alpha", "mu_ov", "mu_qk", "t"):
            assert float(cell[f"theory_matched_{name}"].sel(r=10.0, level=0.1)) == pytest.approx(
                float(getattr(state, name))
            )
    assert (ds.log_amplification.sel(r=10.0) > ds.log_amplification.sel(r=0.1)).all()


def brute(ds, r, seed, design):
    """The smallest ratio over records and bounds, one number at a time."""
    run = ds.sel(parameterization="CACO", r=r, seed=seed, design=design)
    t, eta, worst = run.t.values, float(run.t[1]), np.inf
    for k in range(1, t.size):
        mu_ov, mu_qk, alpha = (float(run[name][k]) for name in ("mu_ov", "mu_qk", "alpha"))
        if not np.isfinite(mu_ov):
            continue
        above = lemma3_bounds(SETTING, r, np.array([t[k]]), delta=1 - alpha)
        below = lemma3_bounds(SETTING, r, np.array([t[k] - eta]), delta=1 - alpha)
        pairs = [(above.mu_ov_upper[0], mu_ov), (mu_ov, below.mu_ov_lower[0])]
        pairs += [(above.mu_qk_upper[0], mu_qk), (mu_qk, below.mu_qk_lower[0])]
        worst = min([worst, *(high / low for high, low in pairs if low > 0)])
    return worst


def test_bounds_are_checked_at_every_record():
    ds = with_bounds(records(), SETTING)
    assert (ds.bounds_hold == 1).all() and (ds.bounds_tightest > 1).all()
    for r in R:
        assert float(ds.bounds_tightest.sel(r=r, seed=1, design="sampled")) == pytest.approx(brute(ds, r, 1, "sampled"))


@pytest.mark.parametrize("warp", [0.03, 500.0])
def test_broken_bounds_are_said_to_be(warp):
    ds = records(warp=warp)
    broken = with_bounds(ds, SETTING)
    assert (broken.bounds_hold == 0).all() and (broken.bounds_tightest < 1).all()


def test_one_broken_record_of_one_run_is_found():
    ds = records()
    ds.mu_ov[1, 1, 0, 2, 4] = 1e4
    hold = with_bounds(ds, SETTING).bounds_hold
    assert int(hold.sel(design="sampled", r=0.1, seed=2)) == 0 and int((hold == 1).sum()) == hold.size - 1


def test_runs_without_records_are_neither():
    ds = records()
    for name in ("loss", "mu_ov", "mu_qk", "alpha"):
        ds[name][0, 1, 0, 0] = np.nan
        ds[name][0, 1, 1, 1, 4:] = np.nan
    checked = with_bounds(ds, SETTING)
    assert int(checked.bounds_hold[0, 0, 0]) == -1 and np.isnan(checked.bounds_tightest[0, 0, 0])
    assert int(checked.bounds_hold[0, 1, 1]) == 1 and float(checked.bounds_tightest[0, 1, 1]) == pytest.approx(
        brute(ds, 10.0, 1, "balanced")
    )


def test_without_caco_there_is_nothing_to_check():
    assert "bounds_hold" not in with_bounds(records(parameterizations=("FAFO",)), SETTING)


def test_the_curve_passes_between_the_ratios():
    ds = with_theory(records(), SETTING, INITIAL)
    assert ds.curve_r.values[[0, -1]] == pytest.approx(R) and ds.theory_curve_alpha.sizes["curve_r"] > 50
    for form in ("FAFO", "CACO"):
        state = at_loss(SETTING, ds.curve_r.values[30], 0.1, parameterization=form, initial=INITIAL[form])
        assert float(ds.theory_curve_mu_qk.sel(parameterization=form, level=0.1)[30]) == pytest.approx(
            float(state.mu_qk)
        )
    assert "curve_r" not in with_theory(records().isel(r=[0]), SETTING, INITIAL)


def test_attention_against_loss_has_its_own_losses_from_start_to_end():
    ds = with_theory(records(), SETTING, INITIAL)
    losses = ds.curve_loss.values
    assert ds.theory_alpha_at_loss.dims == ("parameterization", "r", "curve_loss")
    assert losses.size >= 120 and (np.diff(losses) < 0).all() and np.diff(np.log(losses)).min() > -0.1
    smallest = min(float(ds.loss.min()), 0.1)
    assert losses[-1] == pytest.approx(smallest, rel=1e-6)
    for form in ("FAFO", "CACO"):
        curve = ds.theory_alpha_at_loss.sel(parameterization=form, r=10.0)
        start = float(ds.theory_loss.sel(parameterization=form, r=10.0)[0])
        known = np.isfinite(curve.values)
        np.testing.assert_array_equal(known, losses < start)
        assert 1 - 2e-6 < losses[known][0] / start < 1
        state = at_loss(SETTING, 10.0, losses[known], parameterization=form, initial=INITIAL[form])
        np.testing.assert_array_equal(curve.values[known], state.alpha)
        first = float(ds.theory_alpha.sel(parameterization=form, r=10.0)[0])
        assert curve.values[known][0] == pytest.approx(first, abs=1e-4)


def test_one_ratio_has_the_curve_too():
    assert np.isfinite(with_theory(records().isel(r=[0]), SETTING, INITIAL).theory_alpha_at_loss).any()


@pytest.mark.parametrize(
    "function,lost",
    [
        ("integrate", ["theory_loss", "theory_alpha", "theory_mu_ov", "theory_mu_qk"]),
        ("class_competition", ["log_amplification"]),
        ("at_loss", ["theory_matched_alpha", "theory_matched_t", "theory_curve_alpha", "theory_alpha_at_loss"]),
    ],
)
def test_a_theory_that_gives_up_costs_itself_alone(monkeypatch, function, lost):
    whole, real = with_theory(records(), SETTING, INITIAL), getattr(overlay, function)

    def give_up(*arguments, parameterization, **rest):
        if parameterization == "FAFO":
            raise QkdynError("too stiff")
        return real(*arguments, parameterization=parameterization, **rest)

    monkeypatch.setattr(overlay, function, give_up)
    with pytest.warns(OutputWarning, match="of FAFO left out: too stiff"):
        ds = with_theory(records(), SETTING, INITIAL)
    assert set(ds.variables) == set(whole.variables) and ds.sizes == whole.sizes
    for name in whole:
        fafo = ds[name].sel(parameterization="FAFO")
        if name in lost:
            assert np.isnan(fafo).all()
        elif not str(name).startswith("theory"):
            xr.testing.assert_equal(fafo, whole[name].sel(parameterization="FAFO"))
        xr.testing.assert_equal(ds[name].sel(parameterization="CACO"), whole[name].sel(parameterization="CACO"))


def test_bounds_that_give_up_lose_no_record(monkeypatch):
    def give_up(*arguments, **rest):
        raise QkdynError("t must be finite")

    monkeypatch.setattr(overlay, "lemma3_bounds", give_up)
    with pytest.warns(OutputWarning, match="Lemma 3 left unchecked: t must be finite"):
        ds = with_bounds(records(), SETTING)
    assert (ds.bounds_hold == -1).all() and np.isnan(ds.bounds_tightest).all()
    xr.testing.assert_equal(ds["loss"], records()["loss"])


def test_a_start_alone_has_no_bounds_to_check():
    assert (with_bounds(records().isel(record=[0]), SETTING).bounds_hold == -1).all()


@pytest.mark.parametrize("initial", [{}, {"CACO": (0.0, 0.0)}, {**INITIAL, "FAFO": (0.0, 0.1)}])
def test_starts_that_are_missing_or_wrong_are_refused(initial):
    with pytest.raises(InputError, match=r"initial must have an entry for FAFO, got|initial mu_ov must be > 0"):
        with_theory(records(), SETTING, initial)


def test_what_is_no_sweep_is_refused():
    for call in (lambda ds: with_theory(ds, SETTING, INITIAL), lambda ds: with_bounds(ds, SETTING)):
        with pytest.raises(InputError, match="lacks design, parameterization, r, seed"):
            call(xr.Dataset())
        with pytest.raises(InputError, match="record is empty"):
            call(records().isel(record=[]))

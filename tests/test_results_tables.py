"""Summaries against brute force, tables that say what the numbers say, and comparisons of runs of known difference."""

import csv
import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from qkdyn import results
from qkdyn.errors import InputError, OutputError
from qkdyn.results.compare import _differences, _keys
from qkdyn.results.summary import mean_and_sd, relative_difference
from qkdyn.results.tables import amplification
from sweep_data import make_diverged, make_sweep


@pytest.fixture(scope="module")
def sweep():
    """A sweep in which one run diverged, one seed missed a level, one cell never reached it, and one bound fails."""
    ds = make_sweep(seeds=4, ratios=(0.1, 1.0, 100.0), records=40)
    ds = make_diverged(ds, design=1, parameterization=3, r=2, seed=[0, 2])
    for name in ("alpha", "mu_ov", "mu_qk", "t"):
        ds[f"matched_{name}"][0, 0, 0, 1, 2] = np.nan
        ds[f"matched_{name}"][0, 1, 0, :, 2] = np.nan
    ds["bounds_hold"][0, 3, 1, 2] = 0
    ds["bounds_tightest"][0, 3, 1, 2] = 0.75
    ds["bounds_hold"][1, 3, 2, :] = -1
    return ds


def text_of(tables, width=130):
    console = Console(width=width, file=io.StringIO(), record=True, color_system=None)
    console.print(*tables)
    return console.export_text()


# Summaries.


def test_summary_matches_brute_force_in_every_cell(sweep):
    rows = {
        (row.design, row.parameterization, row.r, row.level): row
        for row in results.summary_frame(sweep).itertuples(index=False)
    }
    assert len(rows) == 2 * 4 * 3 * 3
    for (design, name, r, level), row in rows.items():
        run = {"design": design, "parameterization": name, "r": r}
        cell, theory = sweep.sel(**run, level=level), sweep.sel(parameterization=name, r=r, level=level)
        for quantity in ("alpha", "mu_ov", "mu_qk", "t"):
            values = [float(value) for value in cell[f"matched_{quantity}"] if not math.isnan(value)]
            n = len(values)
            mean = sum(values) / n if n else math.nan
            sd = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1)) if n > 1 else math.nan
            expected = float(theory[f"theory_matched_{quantity}"])
            assert row.reached == n
            found = [getattr(row, f"{quantity}_{what}") for what in ("mean", "sd", "theory", "rel_diff")]
            np.testing.assert_allclose(found, [mean, sd, expected, mean / expected - 1], rtol=1e-9, atol=1e-12)
        assert row.log_amplification == float(theory["log_amplification"])
        assert row.seeds == 4 and row.diverged == int((sweep["status"].sel(**run) == 3).sum())


def test_summary_marks_what_was_missed(sweep):
    frame = results.summary_frame(sweep).set_index(["design", "parameterization", "r", "level"])
    assert frame.loc[("balanced", "FAFO", 0.1, 0.01), "reached"] == 3
    assert frame.loc[("balanced", "CAFO", 0.1, 0.01), "reached"] == 0
    assert math.isnan(frame.loc[("balanced", "CAFO", 0.1, 0.01), "alpha_mean"])
    assert frame.loc[("sampled", "CACO", 100.0, 0.1), "diverged"] == 2
    assert frame["diverged"].sum() == 2 * 3


def test_bounds_are_the_worst_of_the_seeds_and_only_for_collapsed_circuits(sweep):
    frame = results.summary_frame(sweep).set_index(["design", "parameterization", "r", "level"])
    assert tuple(frame.loc[("balanced", "CACO", 1.0, 0.1), ["bounds_hold", "bounds_tightest"]]) == (0.0, 0.75)
    assert tuple(frame.loc[("balanced", "CACO", 0.1, 0.1), ["bounds_hold", "bounds_tightest"]]) == (1.0, 1.001)
    assert frame.sort_index().loc[("sampled", "CACO", 100.0), ["bounds_hold", "bounds_tightest"]].isna().all(axis=None)
    assert frame.drop("CACO", level="parameterization")["bounds_hold"].isna().all()


def test_bounds_without_a_parameterization_axis(sweep):
    collapsed = sweep.assign(
        {name: sweep[name].sel(parameterization="CACO") for name in ("bounds_hold", "bounds_tightest")}
    )
    assert collapsed["bounds_hold"].dims == ("design", "r", "seed")
    assert results.summary_frame(collapsed).equals(results.summary_frame(sweep))


def test_order_of_axes_in_the_dataset_does_not_matter(sweep):
    turned = sweep.transpose("level", "seed", "record", "r", "parameterization", "design")
    assert results.summary_frame(turned).equals(results.summary_frame(sweep))


def test_mean_and_sd_of_float32_far_from_zero_and_of_too_few():
    values = np.array([[1000.0, 1000.125, np.nan, 1000.25], [np.nan] * 4, [5.0, np.nan, np.nan, np.inf]], np.float32)
    mean, sd, count = mean_and_sd(values)
    np.testing.assert_allclose(mean, [1000.125, np.nan, 5.0])
    np.testing.assert_allclose(sd, [0.125, np.nan, np.nan])
    assert count.tolist() == [3, 0, 1]
    differences = relative_difference(np.array([1.1, 1.0, np.nan]), np.array([1.0, 0.0, 2.0]))
    np.testing.assert_allclose(differences, [0.1, np.nan, np.nan])


def test_written_summary_reads_back_and_is_the_same_each_time(tmp_path, sweep):
    path = results.write_summary(sweep, tmp_path / "summary.csv")
    first = path.read_bytes()
    assert b"\r" not in first and b"nan" not in first
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    frame = results.summary_frame(sweep)
    assert list(rows[0]) == list(frame.columns) and len(rows) == len(frame)
    for row, expected in zip(rows, frame["mu_qk_mean"], strict=True):
        assert (float(row["mu_qk_mean"]) if row["mu_qk_mean"] else math.nan) == pytest.approx(
            expected, rel=1e-7, nan_ok=True
        )
    assert results.write_summary(sweep, path).read_bytes() == first


def test_a_sweep_without_theory_status_or_bounds_still_has_a_summary_and_a_table(sweep):
    extra = [name for name in sweep if str(name).startswith(("theory", "bounds", "log_", "status", "diverged"))]
    frame = results.summary_frame(sweep.drop_vars(extra))
    assert (
        frame["alpha_theory"].isna().all()
        and frame["alpha_rel_diff"].isna().all()
        and frame["bounds_hold"].isna().all()
    )
    assert (frame["diverged"] == 0).all() and frame["alpha_mean"].notna().any()
    assert "DIVERGED" not in text_of(results.sweep_table(sweep.drop_vars(extra)))


# Tables.


def test_table_shows_the_numbers_of_the_summary(sweep):
    tables = results.sweep_table(sweep)
    text = text_of(tables)
    for row in results.summary_frame(sweep).itertuples(index=False):
        if row.reached:
            assert f"{row.alpha_mean:.4f}±{row.alpha_sd:.4f}".replace("±0.", "±.") in text
            assert f"{row.alpha_theory:.4f} {row.alpha_rel_diff:+.2%}" in text
    line = next(line for line in text.splitlines() if line.split()[:2] == ["FAFO", "0.1"] and "(3/4)" in line)
    assert "FAFO" in line
    assert any(line.split()[:2] == ["CAFO", "0.1"] and "not reached" in line for line in text.splitlines())
    assert text.count("FAIL 0.7500") == 1 and text.count("hold 1.001") == 2
    assert text.count("2 of 4") == 1
    assert "design: mean" in text.replace("\n", " ")


@pytest.mark.parametrize("width", [100, 120, 140])
@pytest.mark.parametrize("levels", [(0.1,), (0.5, 0.1, 0.01), (0.9, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01)])
def test_table_fits_the_terminal_and_loses_no_level(width, levels):
    ds = make_diverged(make_sweep(seeds=2, ratios=(0.01, 100.0), levels=levels, records=40), design=0, r=0, seed=0)
    text = text_of(results.sweep_table(ds, width=width), width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for level in levels:
        assert text.count(f"loss {level:.4g} ") == 2, "each level once for each design"
    assert text.count("Lemma 3") == 2


def test_sampled_table_takes_the_smallest_loss_reached_and_the_amplification(sweep):
    table = text_of(results.sweep_table(sweep)[-1:])
    frame = results.summary_frame(sweep).set_index(["design", "parameterization", "r", "level"])
    row = frame.loc[("sampled", "CACO", 100.0, 0.01)]
    words = next(line for line in table.splitlines() if line.split()[:2] == ["CACO", "100"]).split()
    percent = [
        f"{row[f'{name}_rel_diff']:+.{2 if abs(row[f'{name}_rel_diff']) < 0.09995 else 0}%}"
        for name in ("alpha", "mu_ov", "mu_qk")
    ]
    assert words == ["CACO", "100", "0.01", *percent, amplification(row["log_amplification"])]
    for name in ("alpha", "mu_ov", "mu_qk", "t"):
        sweep = sweep.assign({f"matched_{name}": sweep[f"matched_{name}"].where(sweep["level"] > 0.05)})
    words = text_of(results.sweep_table(sweep)[-1:])
    assert next(line for line in words.splitlines() if line.split()[:2] == ["CACO", "100"]).split()[2] == "0.1"
    assert len(results.sweep_table(sweep.sel(design=["balanced"]), width=200)) == 1


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(3.2, "3.2"), (150.4, "150"), (999.4, "999"), (3250.0, "3.2e+03"), (9.96e5, "1.0e+06"), (2.4e13, "2.4e+13")],
)
def test_amplification_in_words(factor, expected):
    assert amplification(math.log(factor)) == expected


def test_amplification_beyond_floating_point():
    assert amplification(1e4 * math.log(10) + math.log(2.5)) == "2.5e+10000"
    assert amplification(math.nan) == "·"


def test_what_is_no_sweep_or_has_no_level_is_refused(sweep):
    with pytest.raises(InputError, match="lacks"):
        results.sweep_table(sweep.drop_vars("matched_mu_ov"))
    with pytest.raises(InputError, match="level is empty"):
        results.sweep_table(sweep.isel(level=[]))


# Comparisons.


def save(folder, ds, **config):
    folder.mkdir()
    file = results.save_dataset(ds.assign_attrs(config=json.dumps(config)), folder / "data.nc")
    results.write_manifest(results.manifest(config, wall_seconds=0.0, argv=[], files=[file], device="none"), folder)
    return folder


@pytest.fixture
def pair(tmp_path):
    """Two runs of the same seeds in which everything is 2% and 1% above the theory."""
    common = {"seeds": 3, "records": 30, "noise": 0.0, "designs": ("balanced",)}
    a = save(tmp_path / "a", make_sweep(error=0.02, ratios=(0.1, 1.0, 10.0), **common), eta_ov=1.0, seeds=3)
    b = save(
        tmp_path / "b", make_sweep(error=0.01, ratios=(0.1, 1.0, 5.0), levels=(0.5, 0.1), **common), eta_ov=0.5, seeds=3
    )
    return a, b


def test_half_the_error_is_a_ratio_of_one_half(pair):
    text = results.compare_runs(*pair)
    for name in ("mu_ov", "mu_qk", "t"):
        assert f"median ratio |B-th| / |A-th| of {name}: 0.500 over 16 cells" in text
    section = text[text.index("mu_ov at matched loss") :].splitlines()
    row = next(line.split() for line in section if line.split()[:4] == ["balanced", "CACO", "1", "0.1"])
    a, b = (results.summary_frame(results.load_dataset(path)) for path in pair)
    means = [f.query("parameterization == 'CACO' and r == 1 and level == 0.1")["mu_ov_mean"].item() for f in (a, b)]
    assert row[4:6] == [f"{mean:.6g}" for mean in means]
    assert row[6] == f"{means[1] / means[0] - 1:+.2%}" == "-0.98%"
    assert row[-3:] == ["2.000%", "1.000%", "0.500"]
    assert max(map(len, text.splitlines()[3:])) <= 120


def test_comparison_says_what_was_left_out_and_what_was_set_differently(pair):
    text = results.compare_runs(pair[0] / "data.nc", pair[1])
    assert "setting eta_ov: 1.0 in A, 0.5 in B" in text and "setting seeds" not in text
    assert "left out, r only in A: 10\n" in text and "left out, r only in B: 5\n" in text
    assert "left out, level only in A: 0.01\n" in text and "level only in B" not in text
    assert text.count("\nbalanced ") == 4 * 4 * 2 * 2


def test_spread_is_in_units_of_both_seeds_deviations():
    a, b = (make_sweep(seeds=5, records=30, ratios=(1.0,), error=e, noise=0.01) for e in (0.0, 0.1))
    frames = [_keys(results.summary_frame(ds)) for ds in (a, b)]
    columns = _differences(*frames, "mu_ov")
    difference = frames[1]["mu_ov_mean"] - frames[0]["mu_ov_mean"]
    expected = difference / np.sqrt(frames[0]["mu_ov_sd"] ** 2 + frames[1]["mu_ov_sd"] ** 2)
    np.testing.assert_allclose(columns["spread"], expected)
    assert (columns["spread"] > 3).all()


def test_one_seed_has_no_spread_and_identical_runs_do_not_differ(tmp_path):
    a = save(tmp_path / "a", make_sweep(seeds=1, records=30, ratios=(1.0,)))
    text = results.compare_runs(a, a)
    row = next(line.split() for line in text.splitlines() if line.startswith("balanced"))
    assert row[6:8] == ["+0.00%", "·"] and row[-1] == "1.000"
    assert "left out" not in text and "\nsetting " not in text


def test_ratios_equal_but_for_rounding_are_the_same(tmp_path):
    a = save(tmp_path / "a", make_sweep(seeds=2, records=30, ratios=(0.3,), levels=(0.1,)))
    b = save(tmp_path / "b", make_sweep(seeds=2, records=30, ratios=(0.1 + 0.2,), levels=(0.1,)))
    assert "left out" not in results.compare_runs(a, b)


def test_nothing_in_common_and_missing_runs_are_refused(tmp_path):
    a = save(tmp_path / "a", make_sweep(seeds=2, records=30, ratios=(0.3,), levels=(0.1,)))
    b = save(tmp_path / "b", make_sweep(seeds=2, records=30, ratios=(3.0,), levels=(0.1,)))
    with pytest.raises(InputError, match=r"in common; .*r only in A: 0\.3"):
        results.compare_runs(a, b)
    with pytest.raises(OutputError, match="no such file"):
        results.compare_runs(a, tmp_path / "nowhere")

"""What the manifest vouches for: files that are others, missing manifests, and attributes that no file can keep."""

import os

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from qkdyn import results
from qkdyn.errors import InputError, OutputError, OutputWarning
from qkdyn.results.datasets import check_sweep
from sweep_data import make_sweep


@pytest.fixture(scope="module")
def sweep():
    return make_sweep(seeds=2, ratios=(0.1, 10.0), records=20, names=("CACO",), designs=("balanced",))


@pytest.fixture
def run(tmp_path, sweep):
    """A folder as a run leaves it."""
    files = [results.save_dataset(sweep, tmp_path / "data.nc"), results.write_summary(sweep, tmp_path / "summary.csv")]
    results.write_manifest(results.manifest({}, wall_seconds=1.0, argv=["x"], files=files), tmp_path)
    return tmp_path


def test_verify_names_every_fault(run):
    assert results.verify(run) == [] == results.verify(str(run))
    (run / "summary.csv").write_text("other")
    assert results.verify(run) == ["summary.csv: not the file that run.json vouches for"]
    (run / "data.nc").unlink()
    assert sorted(results.verify(run))[0] == "data.nc: missing"
    (run / "data.nc").mkdir()
    assert "data.nc: cannot be read" in sorted(results.verify(run))[0]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"sha256": 3}', "\x00\xff"])
def test_a_damaged_manifest_is_a_fault_and_no_traceback(run, text):
    (run / "run.json").write_text(text)
    (fault,) = results.verify(run)
    assert fault.startswith("run.json: damaged")
    with pytest.warns(OutputWarning, match=r"run\.json is damaged"):
        results.load_dataset(run)


def test_new_data_beside_an_old_manifest_is_noticed_by_all_who_read_it(run, sweep, tmp_path):
    results.load_dataset(run), results.load_dataset(run / "data.nc"), results.compare_runs(run, run)
    results.save_dataset(sweep.assign_attrs(title="another"), run / "data.nc")
    for read in (lambda: results.load_dataset(run), lambda: results.load_dataset(run / "data.nc")):
        with pytest.warns(OutputWarning, match=r"data\.nc is not the file that run\.json vouches for") as told:
            assert read().title == "another"
        assert (
            len(told) == 1 and "\n" not in str(told[0].message) and "run the experiment again" in str(told[0].message)
        )
    with pytest.warns(OutputWarning, match="vouches for"):
        results.compare_runs(run, run)


def test_a_folder_needs_a_manifest_and_a_lone_file_does_not(run):
    results.retract(run)
    assert results.verify(run) == ["run.json: missing"]
    results.load_dataset(run / "data.nc")
    with pytest.warns(OutputWarning, match=r"nothing vouches for .*data\.nc: .*run\.json is missing"):
        results.load_dataset(run)
    results.retract(run)
    results.write_manifest({"sha256": {"step_size.png": "0"}}, run)
    results.load_dataset(run / "data.nc")
    with pytest.warns(OutputWarning, match="not among the files"):
        results.load_dataset(run)


def test_retract_follows_links_reports_refusals_and_reaches_the_disk(run, monkeypatch, tmp_path):
    real = run / "real.json"
    (run / "run.json").rename(real)
    (run / "run.json").symlink_to(real)
    flushed = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (flushed.append(descriptor), sync(descriptor)))
    results.retract(run)
    assert not real.exists() and (run / "run.json").is_symlink() and flushed
    (run / "run.json").unlink()
    (run / "run.json").mkdir()
    with pytest.raises(OutputError, match=r"cannot remove .*run\.json: .*choose another --out"):
        results.retract(run)


# What a file can keep.


@pytest.mark.parametrize(
    "value", [{"a": 1}, None, True, np.bool_(True), 1 + 2j, [], [1, "a"], [[1, 2]], 10**30, b"x", {1}]
)
@pytest.mark.parametrize("where", ["dataset", "variable", "coordinate"])
def test_attributes_that_no_file_keeps_are_refused_by_name(tmp_path, sweep, value, where):
    ds = sweep.copy()
    {"dataset": ds, "variable": ds["loss"], "coordinate": ds["r"]}[where].attrs["note"] = value
    name = {"dataset": "the dataset", "variable": "loss", "coordinate": "r"}[where]
    with pytest.raises(InputError, match=f"attribute 'note' of {name} must be text, a number or a 1-D array"):
        results.save_dataset(ds, tmp_path / "data.nc")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["η", 3, 0.5, np.float32(2), np.int8(1), [1, 2], [0.5], ("a", "b"), np.arange(3)])
def test_attributes_that_are_allowed_are_kept(tmp_path, value):
    path = results.save_dataset(xr.Dataset({"x": ("r", np.ones(2))}, attrs={"note": value}), tmp_path / "a.nc")
    np.testing.assert_array_equal(results.load_dataset(path).attrs["note"], value)


@pytest.mark.parametrize("values", [np.array([{}, None], object), np.array([1j, 2]), np.array([object(), 1])])
def test_variables_that_no_file_keeps_are_refused(tmp_path, values):
    with pytest.raises(
        InputError, match="variable 'x' must be an array of numbers, truth values or text, under a name, got "
    ):
        results.save_dataset(xr.Dataset({"x": ("r", values)}), tmp_path / "a.nc")
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_no_text_are_refused(tmp_path):
    for ds in (xr.Dataset({3: ("r", np.ones(2))}), xr.Dataset(attrs={3: "x"})):
        with pytest.raises(InputError):
            results.save_dataset(ds, tmp_path / "a.nc")


# What a sweep is.


def test_check_sweep_names_axes_records_and_foreign_things(sweep, unchecked):
    with pytest.raises(InputError, match="holds no record: record is empty"):
        check_sweep(sweep.isel(record=[]), ["loss"])
    with pytest.raises(InputError, match="loss in the dataset lacks the axes record"):
        check_sweep(sweep.assign(loss=sweep["loss"].isel(record=0)), ["loss"])
    with pytest.raises(InputError, match="matched_alpha in the dataset lacks the axes level"):
        results.summary_frame(sweep.assign(matched_alpha=sweep["matched_alpha"].isel(level=0)))
    for other in (None, {}, pd.DataFrame()):
        with pytest.raises(InputError, match="must be an xarray Dataset"):
            check_sweep(other)

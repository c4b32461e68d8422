"""Files that appear whole or not at all, datasets that read back as written, and manifests that say what ran."""

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from qkdyn import files, results
from qkdyn.errors import InputError, OutputError
from qkdyn.results import provenance
from qkdyn.results.datasets import check_sweep
from sweep_data import make_sweep


@pytest.fixture(scope="module")
def sweep():
    return make_sweep(seeds=2, ratios=(0.1, 10.0), records=40)


def leftovers(folder):
    return sorted(path.name for path in Path(folder).iterdir() if path.name.startswith("."))


# Whole or not at all.


def test_write_replaces_whole_content_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a much longer old content")
    assert results.write_text(path, "new é\n") == path
    assert path.read_bytes() == "new é\n".encode()
    assert [item.name for item in tmp_path.iterdir()] == ["a.txt"]


def test_target_is_untouched_until_the_new_content_is_complete_and_flushed(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("old")
    events = []
    real_sync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append("sync"), real_sync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("replace"), real_replace(a, b)))

    def write(temporary):
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent and temporary.name.startswith(".") and temporary.suffix == ".tmp"
        assert str(os.getpid()) in temporary.name

    results.write_atomic(path, write)
    assert path.read_text() == "new"
    assert events == ["sync", "replace", "sync"]


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()])
def test_failing_writer_leaves_the_old_file_and_no_temporary(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def write(temporary):
        temporary.write_text("half")
        raise error

    with pytest.raises(type(error)):
        results.write_atomic(path, write)
    assert path.read_text() == "old"
    assert leftovers(tmp_path) == []


def test_full_disk_while_flushing_names_path_cause_and_advice(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"a\.txt: No space left on device; free some space, or choose another --out"):
        results.write_text(path, "new")
    assert path.read_text() == "old"
    assert leftovers(tmp_path) == []


def test_refused_rename_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def refuse(a, b):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(
        OutputError, match="Read-only file system; choose an --out on a file system that can be written"
    ):
        results.write_text(path, "new")
    assert path.read_text() == "old"
    assert leftovers(tmp_path) == []


def test_no_space_on_a_real_device(tmp_path):
    with pytest.raises(OutputError, match="No space left on device; free some space"):
        results.write_atomic(tmp_path / "a.txt", lambda temporary: Path("/dev/full").write_text("x" * 10))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def tiny_disk(tmp_path):
    """A real file system of 64 KiB, where this machine lets us mount one."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount a small tmpfs here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_dataset_on_a_real_full_disk_leaves_the_old_file(tiny_disk, sweep):
    path = results.write_text(tiny_disk / "data.nc", "old")
    with pytest.raises(OutputError, match=r"data\.nc: No space left on device"):
        results.save_dataset(make_sweep(seeds=3, records=100), path)
    assert path.read_text() == "old"
    assert leftovers(tiny_disk) == []
    # Room for a small file is left: the probe must ask for more than that.
    (tiny_disk / "ballast").write_bytes(bytes(50_000))
    with pytest.raises(OutputError, match="No space left on device"):
        results.prepare_folder(tiny_disk)
    assert leftovers(tiny_disk) == []


def test_killed_in_the_middle_of_a_write_leaves_the_old_file_and_prepare_cleans_up(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    code = (
        "import sys, time; from qkdyn.files import write_atomic\n"
        "def write(temporary):\n"
        "    with temporary.open('w') as file:\n"
        "        file.write('half'); file.flush(); print('ready', flush=True); time.sleep(60)\n"
        "write_atomic(sys.argv[1], write)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        half = leftovers(tmp_path)
        results.prepare_folder(tmp_path)
        assert leftovers(tmp_path) == half and len(half) == 1, "the temporary of a living process must stay"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert path.read_text() == "old"
    assert leftovers(tmp_path) == half
    foreign = tmp_path / f".a.txt.elsewhere.{process.pid}.tmp"
    foreign.write_text("a process of another machine")
    results.prepare_folder(tmp_path)
    assert leftovers(tmp_path) == [foreign.name]
    assert path.read_text() == "old"


def test_link_is_followed_and_special_files_and_folders_are_refused(tmp_path):
    real = tmp_path / "real.txt"
    real.write_text("old")
    link = tmp_path / "link.txt"
    link.symlink_to(real)
    results.write_text(link, "new")
    assert link.is_symlink() and real.read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OutputError, match="exists and is not a regular file"):
            results.write_text(path, "x")
    with pytest.raises(OutputError, match="the folder is missing"):
        results.write_text(tmp_path / "nowhere" / "a.txt", "x")
    assert not (tmp_path / "nowhere").exists()


# Folders.


def test_prepare_creates_parents_and_leaves_no_probe(tmp_path):
    folder = results.prepare_folder(str(tmp_path / "a" / "b"))
    assert folder == tmp_path / "a" / "b" and folder.is_dir()
    assert list(folder.iterdir()) == []
    assert results.prepare_folder(folder) == folder


def test_prepare_refuses_before_any_work(tmp_path):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(OutputError, match="a file is in the way"):
        results.prepare_folder(tmp_path / "file")
    with pytest.raises(OutputError, match="a file is in the way"):
        results.prepare_folder(tmp_path / "file" / "below")
    with pytest.raises(OutputError, match=r"/proc/qkdyn: .*choose another --out"):
        results.prepare_folder("/proc/qkdyn")
    with pytest.raises(OutputError, match=r"cannot write '.*\\x00y': .* has no NUL; choose another --out"):
        results.prepare_folder(f"{tmp_path}/x\0y")
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_prepare_finds_out_by_writing(tmp_path, monkeypatch, code):
    def refuse(self, data):
        self.touch()
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(OutputError, match=os.strerror(code)):
        results.prepare_folder(tmp_path)
    assert leftovers(tmp_path) == []


def test_only_its_own_kind_of_temporary_is_ever_removed(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    kept = [".hidden.tmp", ".config", f".a.{files._host()}.{os.getpid()}.tmp", f"a.{files._host()}.{dead.pid}.tmp"]
    for name in (*kept, f".a.{files._host()}.{dead.pid}.tmp"):
        (tmp_path / name).write_text("x")
    results.prepare_folder(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


# Datasets.


def test_round_trip_keeps_values_types_axes_and_attributes(tmp_path, sweep):
    sweep = sweep.assign_attrs(notes="η in days since 2000", runs=3, rate=0.5, levels=np.array([0.5, 0.1]))
    sweep["t"].attrs["units"] = "days since 2000-01-01"
    path = results.save_dataset(sweep, tmp_path / "data.nc")
    record = results.manifest({}, wall_seconds=0.0, argv=[], files=[path], device="none")
    results.write_manifest(record, tmp_path)
    for found in (results.load_dataset(path), results.load_dataset(tmp_path)):
        xr.testing.assert_identical(found, sweep)
        assert {k: v.dtype for k, v in found.variables.items()} == {k: v.dtype for k, v in sweep.variables.items()}
        assert list(found.variables) == list(sweep.variables)
        assert found["status"].attrs["flag_values"].dtype == np.int8
    path.unlink()
    assert np.isnan(found["loss"]).any(), "values must be in memory, with NaN as NaN"


def test_scalars_empty_axes_and_booleans_round_trip(tmp_path):
    ds = xr.Dataset({"x": ((), 3.5), "none": (("level",), np.zeros(0)), "flag": (("r",), np.array([True, False]))})
    xr.testing.assert_identical(results.load_dataset(results.save_dataset(ds, tmp_path / "a.nc")), ds)


def test_same_dataset_same_bytes_in_other_processes_at_other_times(tmp_path, sweep):
    first = results.save_dataset(sweep, tmp_path / "0.nc").read_bytes()
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from sweep_data import make_sweep\n"
        "from qkdyn.results import load_dataset, save_dataset\n"
        "save_dataset(make_sweep(seeds=2, ratios=(0.1, 10.0), records=40), sys.argv[2] + 'a.nc')\n"
        "save_dataset(load_dataset(sys.argv[2] + 'a.nc'), sys.argv[2] + 'b.nc')\n"
    )
    time.sleep(1.1)
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        stem = str(tmp_path / seed)
        subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent), stem], env=environment, check=True)
        assert Path(stem + "a.nc").read_bytes() == first
        assert Path(stem + "b.nc").read_bytes() == first, "reading and writing again must not change the bytes"


def test_reference_sized_sweep_is_small(tmp_path):
    path = results.save_dataset(make_sweep(seeds=5, records=200), tmp_path / "data.nc")
    # The four trajectories alone take 640 KB of float32 before compression.
    assert path.stat().st_size < 450_000


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.5, 0.999])
def test_truncated_file_is_refused(tmp_path, sweep, fraction):
    path = results.save_dataset(sweep, tmp_path / "data.nc")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * fraction)])
    with pytest.raises(
        OutputError, match=r"data\.nc: it is damaged, cut short or not NetCDF-4 .*run the experiment again"
    ):
        results.load_dataset(path)


def test_damaged_values_are_refused_not_returned(tmp_path):
    # Noise cannot be compressed: nothing but a checksum tells a changed number from a true one.
    ds = xr.Dataset({"x": (("r",), np.frombuffer(np.random.default_rng(0).bytes(32_000), np.int64))})
    path = results.save_dataset(ds, tmp_path / "data.nc")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(OutputError, match="damaged"):
        results.load_dataset(path)


def test_missing_file_and_foreign_file_are_refused(tmp_path):
    with pytest.raises(OutputError, match=r"data\.nc: there is no such file; run the experiment"):
        results.load_dataset(tmp_path)
    (tmp_path / "data.nc").write_text("r,alpha\n1,0.5\n")
    with pytest.raises(OutputError, match="not NetCDF-4"):
        results.load_dataset(tmp_path)


def test_check_sweep_names_what_is_missing(sweep):
    check_sweep(sweep, ["loss"])
    with pytest.raises(InputError, match=r"the dataset lacks seed, matched_t; give the data.nc of a sweep"):
        check_sweep(sweep.isel(seed=0).drop_vars("matched_t"), ["loss", "matched_t"])
    with pytest.raises(InputError, match="holds no run: r is empty"):
        check_sweep(sweep.isel(r=[]))


# Manifests.


def test_manifest_says_what_ran_and_what_was_written(tmp_path):
    (tmp_path / "figures").mkdir()
    written = [tmp_path / "data.nc", tmp_path / "figures" / "a.png"]
    for path in written:
        path.write_bytes(path.name.encode())
    record = results.manifest(
        {"seeds": 3, "r": (0.1, np.float64(2.0)), "out": Path("x"), "levels": np.array([0.5])},
        wall_seconds=1.23456,
        argv=["/somewhere/on/a/machine/figure2.py", "--seeds", "3"],
        files=written[::-1],
        digest="d" * 64,
        device="1 x test",
    )
    path = results.write_manifest(record, tmp_path)
    found = json.loads(path.read_text())
    assert path == tmp_path / "run.json"
    assert found["config"] == {"seeds": 3, "r": [0.1, 2.0], "out": "x", "levels": [0.5]}
    assert found["argv"] == ["figure2.py", "--seeds", "3"]
    assert found["wall_seconds"] == 1.235 and found["digest"] == "d" * 64 and found["device"] == "1 x test"
    assert found["sha256"] == {
        "data.nc": hashlib.sha256(b"data.nc").hexdigest(),
        "figures/a.png": hashlib.sha256(b"a.png").hexdigest(),
    }
    assert found["versions"]["numpy"] == np.__version__ and found["versions"]["xarray"] == xr.__version__
    assert set(found["versions"]) == {"python", *provenance.PACKAGES}
    assert found["utc"].endswith("+00:00") and found["cores"] == os.cpu_count() and found["cpu"]


def test_manifest_imports_no_heavy_package_and_knows_jax_only_if_it_is_there():
    code = (
        "import sys; from qkdyn.results import manifest\n"
        "record = manifest({}, wall_seconds=0, argv=[], files=[])\n"
        "assert record['device'] is None and record['versions']['jax'] and record['sha256'] == {}\n"
        "assert not {'jax', 'xarray', 'matplotlib', 'pandas', 'h5py'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    import jax

    record = results.manifest({}, wall_seconds=0.0, argv=["x"], files=[])
    assert record["device"] == f"{len(jax.devices())} x {jax.devices()[0].device_kind} ({jax.devices()[0].platform})"


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_source_state_follows_the_checkout_and_ignores_foreign_ones(tmp_path, monkeypatch):
    code = tmp_path / "qkdyn"
    code.mkdir()
    (code / "module.py").write_text("x = 1\n")
    monkeypatch.setattr(provenance, "__file__", str(code / "module.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance.source_state() is None
    git(tmp_path, "init", "-q")
    (tmp_path / "thesis.tex").write_text("another project")
    git(tmp_path, "add", "thesis.tex")
    git(tmp_path, "commit", "-qm", "not ours")
    assert provenance.source_state() is None, "a repository that does not track the package is somebody else's"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "ours")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    assert provenance.source_state() == {"commit": commit, "dirty": False}
    (tmp_path / "figure.png").write_text("a result, not source")
    assert provenance.source_state() == {"commit": commit, "dirty": False}
    (code / "module.py").write_text("x = 2\n")
    assert provenance.source_state() == {"commit": commit, "dirty": True}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.source_state() is None

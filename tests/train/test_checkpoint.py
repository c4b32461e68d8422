"""Checkpoints: whole or not at all; every kind of damage is found, and the one before used."""

import json
import shutil
import subprocess

import numpy as np
import pytest

from helpers import trees_equal
from qkdyn.errors import CheckpointError, InputError, OutputError, OutputWarning
from qkdyn.train import checkpoint


def arrays(k=0):
    big = np.random.default_rng(k).normal(size=(40, 30)).astype(np.float32)
    return {
        "a/W": big,
        "b": np.array([True, False, True]),
        "n": np.arange(4, dtype=np.int32) + k,
        "e": np.zeros((2, 0), "f4"),
    }


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "checkpoints"
    for number in (1, 2, 3):
        checkpoint.save(folder, number, arrays(number), {"number": number}, keep=2)
    return folder


def test_what_was_saved_is_loaded_and_the_newest_are_kept(folder):
    found, meta = checkpoint.load_newest(folder)
    assert trees_equal(dict(sorted(found.items())), dict(sorted(arrays(3).items()))) and meta == {"number": 3}
    assert checkpoint.numbers(folder) == [3, 2]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a small tmpfs here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def payload(path):
    """The file that holds most of the arrays."""
    return max((p for p in (path / "state").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def flip(path):
    file = payload(path)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(bytes(data))


DAMAGES = {
    "a flipped bit": flip,
    "a truncated file": lambda path: payload(path).write_bytes(
        payload(path).read_bytes()[: payload(path).stat().st_size // 2]
    ),
    "an empty file": lambda path: payload(path).write_bytes(b""),
    "a missing file": lambda path: payload(path).unlink(),
    "half a manifest": lambda path: (path / "manifest.json").write_text((path / "manifest.json").read_text()[:-30]),
    "a manifest of nothing": lambda path: (path / "manifest.json").write_text("{}"),
}


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_damage_is_found_and_the_one_before_used(folder, damage):
    DAMAGES[damage](folder / "3")
    with pytest.warns(
        OutputWarning, match=r"checkpoint .*3 .*(damaged|cannot be read).*; going back to the one before"
    ):
        found, meta = checkpoint.load_newest(folder)
    assert meta == {"number": 2} and trees_equal(dict(sorted(found.items())), dict(sorted(arrays(2).items())))
    assert checkpoint.numbers(folder) == [2]
    checkpoint.save(folder, 3, arrays(3), {"number": 3})
    assert checkpoint.load_newest(folder)[1] == {"number": 3}


def test_bits_changed_behind_a_valid_file_are_found(folder):
    """Arrays that the library loads without complaint, but which are not those that were saved."""
    manifest = (folder / "3" / "manifest.json").read_text()
    changed = arrays(3)
    changed["a/W"][7, 7] = np.nextafter(changed["a/W"][7, 7], np.float32(9))
    shutil.rmtree(folder / "3")
    checkpoint.save(folder, 3, changed, {})
    (folder / "3" / "manifest.json").write_text(manifest)
    with pytest.warns(OutputWarning, match="SHA-256"):
        assert checkpoint.load_newest(folder)[1] == {"number": 2}


def test_a_save_that_was_killed_does_not_count_and_is_said(folder):
    (folder / "3" / "manifest.json").unlink()
    (folder / "9" / "state.orbax-checkpoint-tmp").mkdir(parents=True)
    with pytest.warns(OutputWarning, match="half written.*going back to the one before") as said:
        assert checkpoint.load_newest(folder)[1] == {"number": 2}
    assert len(said) == 2 and checkpoint.numbers(folder) == [2]


def test_nothing_is_found_where_nothing_is(tmp_path):
    assert checkpoint.load_newest(tmp_path / "none") is None
    checkpoint.clear(tmp_path / "none")


def test_all_damaged_is_like_none(folder):
    for number in (2, 3):
        flip(folder / str(number))
    with pytest.warns(OutputWarning):
        assert checkpoint.load_newest(folder) is None


def test_other_versions_are_said_to_void_the_bits(folder):
    path = folder / "3" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["versions"]["jax"] = "0.1"
    path.write_text(json.dumps(manifest))
    with pytest.warns(OutputWarning, match="was written with jax 0.1: resuming, but not to the bit"):
        assert checkpoint.load_newest(folder)[1] == {"number": 3}


def test_no_clock_decides_which_is_newest(folder):
    import os

    os.utime(folder / "2" / "manifest.json", (2e9, 2e9))
    os.utime(folder / "3" / "manifest.json", (0, 0))
    assert checkpoint.load_newest(folder)[1] == {"number": 3}


def test_a_full_disk_leaves_the_older_ones(folder, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))
    with pytest.raises(OutputError, match=r"cannot write checkpoint .*4.*No space left on device.*free some space"):
        checkpoint.save(folder, 4, arrays(), {})
    assert checkpoint.load_newest(folder)[1] == {"number": 3} and not (folder / "4").exists()


def test_a_disk_that_is_full_in_the_middle_of_a_save_leaves_the_older_ones(small_disk, monkeypatch):
    """More is written than the disk holds, as when another program takes the space that there was."""
    folder = small_disk / "checkpoints"
    checkpoint.save(folder, 1, arrays(1), {"number": 1})
    large = {"W": np.random.default_rng(0).normal(size=(600, 600))}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(2**40, 0, 2**40))
    with pytest.raises(OutputError, match=r"cannot write checkpoint .*2: .*free some space"):
        checkpoint.save(folder, 2, large, {})
    monkeypatch.undo()
    assert checkpoint.numbers(folder) == [1] and checkpoint.load_newest(folder)[1] == {"number": 1}
    checkpoint.save(folder, 2, arrays(2), {"number": 2})
    assert checkpoint.load_newest(folder)[1] == {"number": 2}


def test_a_save_that_fails_at_its_end_leaves_the_older_ones(folder, monkeypatch):
    def fail(*what):
        raise OutputError("no space for the manifest")

    monkeypatch.setattr(checkpoint, "write_text", fail)
    with pytest.raises(OutputError, match=r"cannot write checkpoint .*4: no space for the manifest; free some space"):
        checkpoint.save(folder, 4, arrays(), {})
    assert checkpoint.numbers(folder) == [3, 2]


def test_ten_is_newer_than_nine(folder):
    for number in (9, 10, 11):
        checkpoint.save(folder, number, {"n": np.arange(3)}, {"number": number})
    assert checkpoint.numbers(folder) == [11, 10] and checkpoint.load_newest(folder)[1] == {"number": 11}


def test_a_removal_that_is_killed_leaves_nothing_that_looks_whole(folder, monkeypatch):
    def killed(*what, **how):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("shutil.rmtree", killed)
        checkpoint.clear(folder)
    with pytest.warns(OutputWarning, match="half written"):
        assert checkpoint.numbers(folder) == [3, 2] and checkpoint.load_newest(folder)[1] == {"number": 2}


def test_structures_are_compared_by_name_shape_and_dtype():
    one = {"W": np.zeros((2, 3), np.float32)}
    checkpoint.check_structure(one, one, "here")
    for other, message in (
        ({}, "here: array W is missing"),
        ({"W": np.zeros((2, 3), np.float16)}, r"array W is float16\[2, 3\], expected float32\[2, 3\]"),
        ({"W": np.zeros((3, 2), np.float32)}, r"array W is float32\[3, 2\], expected"),
        (one | {"V": one["W"]}, "array V is unknown"),
    ):
        with pytest.raises(CheckpointError, match=message):
            checkpoint.check_structure(other, one, "here")


def test_digest_sees_names_shapes_types_and_bits():
    base = {"x": np.arange(6, dtype=np.float32)}
    others = [{"y": base["x"]}, {"x": base["x"].reshape(2, 3)}, {"x": base["x"].view(np.int32)}, {"x": -base["x"]}]
    digests = {checkpoint.arrays_digest(a) for a in [base, *others]}
    assert len(digests) == 5 and checkpoint.arrays_digest({"x": base["x"].copy()}) in digests


def test_keep_is_checked(tmp_path):
    with pytest.raises(InputError, match="keep must be an integer >= 1, got 0"):
        checkpoint.save(tmp_path, 1, arrays(), {}, keep=0)

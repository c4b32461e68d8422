"""Checkpoints: whole or not at all, checked bit by bit on the way back in, the one before used where the newest is damaged.

The only module that imports Orbax. A checkpoint is a folder `<number>/` with the arrays as Orbax writes them and, written
last, `manifest.json`: structure, shapes, dtypes and SHA-256 of the arrays, and what the caller wants to know of them. Without
its manifest a checkpoint does not exist. Numbers only count; no clock decides which one is the newest.
"""

import errno
import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from qkdyn.errors import CheckpointError, OutputError, check_count
from qkdyn.files import refusals, write_text
from qkdyn.train.processes import first_alone, in_turn, primary, share, warn

Arrays = Mapping[str, np.ndarray]
# Libraries whose version can change the bits of a run.
LIBRARIES = ("jax", "jaxlib", "optax", "numpy")


def versions() -> dict[str, str]:
    """Versions of the libraries that can change the bits of a run."""
    return {name: version(name) for name in LIBRARIES}


def other_versions(theirs: Mapping[str, str]) -> str:
    """The libraries whose versions there are not those here, as "jax 0.1, numpy 2.0"."""
    return ", ".join(f"{name} {number}" for name, number in theirs.items() if versions().get(name) != number)


def arrays_digest(arrays: Arrays) -> str:
    """SHA-256 (hex) of names, dtypes, shapes and bytes; the order of the names does not matter."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        total.update(f"{name}|{value.dtype.str}|{value.shape}|".encode())
        total.update(value.tobytes())
    return total.hexdigest()


def flat(tree: Any) -> dict[str, np.ndarray]:
    """The leaves of a tree by their paths, on the host."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


def save(folder: Path, number: int, arrays: Arrays, meta: Mapping[str, Any], *, keep: int = 2) -> Path:
    """Write checkpoint `number` of `folder` and forget all but the newest `keep`. All processes of a run call it together.

    Args:
        folder: absolute path of a folder for checkpoints alone; made if need be.
        number: larger than that of every checkpoint in it, the same in every process.
        arrays: arrays by name, whole and the same in every process.
        meta: plain values to find again.
        keep: how many checkpoints stay.

    Returns:
        The checkpoint's folder.

    Raises:
        OutputError: it cannot be written; the older ones are untouched.
    """
    from orbax.checkpoint import v1 as ocp

    check_count("keep", keep)
    path = folder / str(number)

    def refused(error: Exception) -> OutputError:
        reason = " ".join(str(error).split())[:200]
        return OutputError(f"cannot write checkpoint {path}: {reason}; free some space, or choose another --out")

    def prepare() -> None:
        size = sum(np.asarray(value).nbytes for value in arrays.values())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # A library that runs out of space in a thread of its own ends in many lines; look before.
            if (free := shutil.disk_usage(folder).free) < 2 * size + 2**17:
                raise OSError(errno.ENOSPC, f"No space left on device ({free:,} bytes free)")
        except OSError as error:
            raise refused(error) from error

    def write() -> None:
        # Orbax takes no arrays without elements; the manifest remembers them.
        ocp.save(str(path / "state"), {name: value for name, value in arrays.items() if np.size(value)})

    def vouch() -> None:
        structure = {name: [np.asarray(v).dtype.str, list(np.shape(v))] for name, v in arrays.items()}
        digest = arrays_digest(arrays)
        manifest = {"structure": structure, "sha256": digest, "versions": versions(), "meta": dict(meta)}
        try:
            write_text(path / "manifest.json", json.dumps(manifest))
        except OutputError as error:
            raise refused(error) from error

    try:
        first_alone(prepare)
        failure = None
        try:
            write()
        except (OSError, ValueError) as error:
            failure = refused(error)
            failure.__cause__ = error
        share(failure)
        first_alone(vouch)
    except OutputError:
        if primary():
            _remove(path)
        raise
    if primary():
        for older in numbers(folder)[keep:]:
            _remove(folder / str(older))
    return path


def load_newest(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Arrays and meta of the newest checkpoint that is whole, or None. All processes of a run call it together.

    Damaged checkpoints are removed, with a warning each, as are the remains of a save that was killed. A checkpoint that
    other library versions wrote is used, with a warning: what follows need not have the bits of an uninterrupted run.
    """
    for path in (folder / str(number) for number in in_turn(lambda: numbers(folder))):
        found, damage = None, None
        try:
            found = _load(path)  # as the library wants it, by all processes together
        except CheckpointError as error:
            damage = error
        try:
            share(damage)
        except (CheckpointError, OutputError) as error:
            warn(f"{error}; going back to the one before, or to the beginning")
            if primary():
                _remove(path)
            continue
        if found is not None:
            arrays, manifest = found
            if others := other_versions(manifest["versions"]):
                warn(f"checkpoint {path} was written with {others}: resuming, but not to the bit")
            return arrays, manifest["meta"]
    return None


def _load(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read one checkpoint and prove that it is what was written.

    Raises:
        CheckpointError: it is not.
    """
    from orbax.checkpoint import v1 as ocp

    try:
        if not (path / "manifest.json").exists():
            raise FileNotFoundError("half written, it has no manifest")
        manifest = json.loads((path / "manifest.json").read_text())
        wanted = {name: np.zeros(shape, dtype) for name, (dtype, shape) in manifest["structure"].items()}
        empty = {name: value for name, value in wanted.items() if not value.size}
        found = ocp.load(str(path / "state"), {name: value for name, value in wanted.items() if value.size})
        loaded = {name: np.asarray(value) for name, value in found.items()} | empty
        said = str(manifest["sha256"])
        known = manifest["versions"], manifest["meta"]
    except Exception as error:  # whatever a damaged file makes a library say
        reason = " ".join(str(error).split())[:160]
        raise CheckpointError(f"checkpoint {path} cannot be read ({type(error).__name__}: {reason})") from error
    check_structure(loaded, wanted, path)
    if arrays_digest(loaded) != said:
        raise CheckpointError(
            f"checkpoint {path} is damaged: the SHA-256 of its arrays is not the one written with them"
        )
    return loaded, {"versions": known[0], "meta": known[1]}


def check_structure(found: Arrays, wanted: Arrays, where: object) -> None:
    """Raise CheckpointError naming the first array that is missing, unknown, or of another shape or dtype."""
    for name in sorted({*found, *wanted}):
        if name not in found or name not in wanted:
            raise CheckpointError(f"{where}: array {name} is {'missing' if name in wanted else 'unknown'}")
        a, b = found[name], wanted[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            raise CheckpointError(
                f"{where}: array {name} is {a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}"
            )


def clear(folder: Path) -> None:
    """Remove all checkpoints of `folder`."""
    for number in numbers(folder):
        _remove(folder / str(number))


def numbers(folder: Path) -> list[int]:
    """Numbers of all checkpoints of `folder`, whole or not, the newest first."""
    with refusals(folder):
        found = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()] if folder.is_dir() else []
    return sorted(found, reverse=True)


def _remove(path: Path) -> None:
    """Remove a checkpoint as far as the system lets us, its manifest first: a kill on the way leaves none that looks whole."""
    with suppress(OSError):
        (path / "manifest.json").unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)

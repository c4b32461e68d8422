"""What a sweep keeps on disk while it runs: finished parts of the grid as records, and checkpoints of the part under way.

A run's bits depend on what it is (`job`, parameterization, rate, start, design, r, seed) and not on the runs beside it, so
finished runs serve any grid that has them: a larger grid trains only what is new. The versions of the libraries, which may
decide bits too, are written into each part.
"""

import dataclasses
import functools
import hashlib
import io
import json
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qkdyn.errors import ConflictError, Interrupted, OutputError, check_positive, reject
from qkdyn.files import refusals, write_bytes, write_text
from qkdyn.train import checkpoint
from qkdyn.train.checkpoint import Arrays
from qkdyn.train.processes import warn

# The library versions within a part, beside its arrays.
_VERSIONS = "versions"


@dataclass
class Store:
    """A folder that survives: `job.json`, `parts/*.npz`, `checkpoints/<key>/<number>`.

    Attributes:
        folder: where; made by `open_store`.
        every: seconds between checkpoints, by a clock that only goes forward; 0 after every chunk.
        keep: checkpoints of a key that stay.
        primary: whether this process writes; of several that run together, one does.
        fresh: whether the same command would forget what this one saves.
        saved: whether the last checkpoint could be written.
        counts: runs that were taken from the records, gone on with from a checkpoint, trained whole.
    """

    folder: Path
    every: float = 10.0
    keep: int = 2
    primary: bool = True
    fresh: bool = False
    saved: bool = True
    counts: dict[str, int] = field(default_factory=lambda: {"taken_from_records": 0, "resumed": 0, "trained": 0})
    _last: float = field(default_factory=time.monotonic)
    _number: int = 0
    _warned: set[str] = field(default_factory=set)

    def checkpoints(self, key: str) -> Path:
        """Where the checkpoints of `key` are."""
        return self.folder / "checkpoints" / key

    def due(self) -> bool:
        """Whether the last checkpoint is `every` seconds old."""
        return time.monotonic() - self._last >= self.every

    def save(self, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        """Write a checkpoint of `meta["key"]`; if that fails, say so and go on: the one before still stands."""
        self._number += 1
        try:
            checkpoint.save(self.checkpoints(meta["key"]), self._number, arrays, meta, keep=self.keep)
            self.saved = True
        except OutputError as error:
            warn(f"{error}; going on without it")
            self.saved = False
        self._last = time.monotonic()

    def newest(self, key: str) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """The newest whole checkpoint of `key`."""
        folder = self.checkpoints(key)
        self._number = max([self._number, *checkpoint.numbers(folder)])
        return checkpoint.load_newest(folder)

    def clear(self, key: str) -> None:
        """Remove the checkpoints of `key`: what they led to is recorded."""
        if self.primary:
            checkpoint.clear(self.checkpoints(key))

    def forget(self) -> None:
        """Remove the folder: what it led to is on record elsewhere."""
        if self.primary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def write_part(self, key: str, arrays: Arrays) -> None:
        """Record a finished part, with the versions of the libraries that made it.

        Raises:
            OutputError: it cannot be written.
        """
        arrays = {**arrays, _VERSIONS: np.array(json.dumps(checkpoint.versions()))}
        packed = io.BytesIO()
        np.savez(packed, allow_pickle=False, **arrays)
        folder, name = self.folder / "parts", f"{key}-{checkpoint.arrays_digest(arrays)[:24]}.npz"
        with refusals(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / name, packed.getvalue())

    def parts(self, key: str) -> list[dict[str, np.ndarray]]:
        """All whole parts recorded under `key`; a damaged one is set aside with a warning, and its runs train again.

        Parts that other versions of the libraries made are taken, with one warning.
        """
        found = []
        for path in sorted((self.folder / "parts").glob(f"{key}-*.npz")):
            try:
                with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
                    arrays = {name: file[name] for name in file.files}
                if not path.stem.endswith(checkpoint.arrays_digest(arrays)[:24]):
                    raise ValueError("its checksum is not that of its name")
                versions = json.loads(str(arrays.pop(_VERSIONS)))
            except Exception as error:  # whatever a damaged file makes numpy say
                warn(f"{path} is damaged ({error}): its runs train again")
                if self.primary:
                    with refusals(path):
                        path.unlink(missing_ok=True)
                continue
            if (others := checkpoint.other_versions(versions)) and others not in self._warned:
                self._warned.add(others)
                warn(
                    f"{path.parent} has runs of {others}: taken, but the bits need not be those of now; --fresh trains anew"
                )
            found.append(arrays)
        return found


def open_store(
    folder: Path,
    identity: Mapping[str, Any],
    *,
    fresh: bool = False,
    every: float = 10.0,
    keep: int = 2,
    primary: bool = True,
) -> Store:
    """Open or begin a store for runs of one configuration.

    Args:
        folder: absolute path; made if need be.
        identity: the scientific settings that all its runs share, as plain values.
        fresh: forget what the folder holds.
        every: seconds between checkpoints.
        keep: checkpoints that stay.
        primary: False in all but one of several processes that run together.

    Raises:
        ConflictError: the folder holds runs of another configuration; the message shows the difference.
        InputError: `every` is not a number >= 0. OutputError: the system refuses.
    """
    check_positive("checkpoint_seconds", every, zero=True)
    store = Store(folder, every, keep, primary, fresh)
    if not primary:
        return store
    with refusals(folder):
        if fresh and folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
    mine, job = json.loads(json.dumps(identity)), folder / "job.json"
    if job.exists():
        try:
            with refusals(job):
                theirs = json.loads(job.read_text())
        except ValueError as error:
            if isinstance(error, OutputError):
                raise
            theirs = {}
        if lines := differences(theirs, mine):
            raise ConflictError(
                f"{folder.parent} holds runs of another configuration ({'; '.join(lines)}); take the same options, "
                "another --out, or --fresh to forget them"
            )
    write_text(job, json.dumps(mine, indent=1))
    return store


def differences(theirs: Any, mine: Any, at: str = "") -> list[str]:
    """The settings in which two nested configurations differ, as "name: theirs there, mine here"."""
    if isinstance(theirs, dict) and isinstance(mine, dict):
        names = dict.fromkeys([*theirs, *mine])
        return [
            line for name in names for line in differences(theirs.get(name), mine.get(name), f"{at}.{name}".strip("."))
        ]
    return [] if theirs == mine else [f"{at}: {json.dumps(theirs)} there, {json.dumps(mine)} here"]


def key_of(*parts: Any) -> str:
    """A short name for whatever decides the bits of a run, from its plain description."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def described(name: str, value: Any) -> Any:
    """`value` in plain words that are the same in every process, and other words for whatever does something else.

    Known are plain values, dataclasses of them, functions that can be imported by their name, and functools.partial of those.

    Raises:
        InputError: it is something else, such as a closure: two of them may have one name.
    """
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if value is None or isinstance(value, bool | int | float | str):
        return [kind, value]
    if isinstance(value, np.generic):
        return [kind, value.item()]
    if isinstance(value, tuple | list):
        return [described(name, item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): described(name, item) for key, item in value.items()}
    if isinstance(value, functools.partial):
        return [kind, *(described(name, item) for item in (value.func, value.args, value.keywords))]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [kind, {item.name: described(name, getattr(value, item.name)) for item in dataclasses.fields(value)}]
    module, qualified = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    found: Any = sys.modules.get(module) if isinstance(module, str) else None
    for part in (qualified or "?").split("."):
        found = getattr(found, part, None)
    if found is not value:
        reject(
            name,
            value,
            "a function or dataclass that can be told by its name where finished runs are kept",
            "write functools.partial of a function of a module, or give no store",
        )
    return f"{module}.{qualified}"


def interruption(name: str, store: Store | None) -> Interrupted:
    """The end after the signal `name`, in words that say what the same command will find."""
    if store is None:
        return Interrupted(f"{name}: nothing is kept, the same command begins anew")
    same = "the same command without --fresh" if store.fresh else "the same command"
    if store.saved:
        return Interrupted(f"{name}: saved; {same} goes on from here")
    return Interrupted(f"{name}: could not be saved; {same} goes on from what was saved before, if anything was")

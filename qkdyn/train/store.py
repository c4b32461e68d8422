"""What a sweep keeps on disk while it runs: finished parts of the grid as records, and checkpoints of the part under way.

A run's bits depend on what it is (`job`, parameterization, rate, start, design, r, seed) and not on the runs beside it, so
finished runs serve any grid that has them: a larger grid trains only what is new.
"""

import hashlib
import io
import json
import shutil
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qkdyn.errors import ConflictError, OutputWarning, check_positive
from qkdyn.files import write_bytes, write_text
from qkdyn.train import checkpoint
from qkdyn.train.checkpoint import Arrays


@dataclass
class Store:
    """A folder that survives: `job.json`, `parts/*.npz`, `checkpoints/<number>`.

    Attributes:
        folder: where; made by `open_store`.
        every: seconds between checkpoints, by a clock that only goes forward.
        keep: checkpoints that stay.
        primary: whether this process writes; of several that run together, one does.
    """

    folder: Path
    every: float = 10.0
    keep: int = 2
    primary: bool = True
    _saved: float = field(default_factory=time.monotonic)
    _number: int = 0

    @property
    def _checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def due(self) -> bool:
        """Whether the last checkpoint is `every` seconds old."""
        return time.monotonic() - self._saved >= self.every

    def save(self, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        """Write a checkpoint; if that fails, say so and go on: the one before still stands."""
        self._number += 1
        try:
            checkpoint.save(self._checkpoints, self._number, arrays, meta, keep=self.keep)
        except checkpoint.OutputError as error:
            warnings.warn(f"{error}; going on without it", OutputWarning, stacklevel=2)
        self._saved = time.monotonic()

    def newest(self, key: str) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """The newest whole checkpoint if its meta has this `key`; one of another part is of no use and stays unread."""
        self._number = max([self._number, *checkpoint.numbers(self._checkpoints)])
        found = checkpoint.load_newest(self._checkpoints)
        return found if found and found[1].get("key") == key else None

    def forget(self) -> None:
        """Remove the folder: what it led to is on record elsewhere."""
        if self.primary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def write_part(self, key: str, arrays: Arrays) -> None:
        """Record a finished part and drop the checkpoints that led to it.

        Raises:
            OutputError: it cannot be written.
        """
        if not self.primary:
            return
        packed = io.BytesIO()
        np.savez(packed, allow_pickle=False, **arrays)
        name = f"{key}-{checkpoint.arrays_digest(arrays)[:24]}.npz"
        (self.folder / "parts").mkdir(exist_ok=True)
        write_bytes(self.folder / "parts" / name, packed.getvalue())
        checkpoint.clear(self._checkpoints)

    def parts(self, key: str) -> list[dict[str, np.ndarray]]:
        """All whole parts recorded under `key`; a damaged one is set aside with a warning, and its runs train again."""
        found = []
        for path in sorted((self.folder / "parts").glob(f"{key}-*.npz")):
            try:
                with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
                    arrays = {name: file[name] for name in file.files}
                if not path.stem.endswith(checkpoint.arrays_digest(arrays)[:24]):
                    raise ValueError("its checksum is not that of its name")
            except Exception as error:  # whatever a damaged file makes numpy say
                warnings.warn(f"{path} is damaged ({error}): its runs train again", OutputWarning, stacklevel=2)
                if self.primary:
                    path.unlink(missing_ok=True)
                continue
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
        InputError: `every` is not a number > 0.
    """
    check_positive("checkpoint_seconds", every, zero=True)
    store = Store(folder, every, keep, primary)
    if not primary:
        return store
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    mine, job = json.loads(json.dumps(identity)), folder / "job.json"
    if job.exists():
        try:
            theirs = json.loads(job.read_text())
        except ValueError:
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

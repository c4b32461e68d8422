"""Records of finished arms: one small file each under arms/, taken up by later runs; what a command for them is told."""

import json
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkdyn.errors import ConflictError, InputError, OutputError
from qkdyn.files import refusals, write_text
from qkdyn.progress import Update, track
from qkdyn.results import retract
from qkdyn.results.provenance import source_state
from qkdyn.train.store import Store, differences, open_store

Record = dict[str, Any]


@dataclass(frozen=True)
class ArmOptions:
    """How it is run; no result depends on it."""

    protocol: str
    """Which of the protocols."""
    quick: bool = False
    """Short for --protocol quick."""
    out: Path | None = None
    """Folder for the results; default under results/, or under results/quick/ for the quick protocol."""
    draw_only: bool = False
    """Redraw from the records in `out`; train nothing."""
    fresh: bool = False
    """Forget what `out` holds of these arms, and train them anew."""
    checkpoint_seconds: float = 30.0
    """Seconds between checkpoints."""

    def __post_init__(self) -> None:
        if self.out is not None and self.out == Path() and not self.out.name:
            raise InputError("out must name a folder, not the current one; leave it out for the default")

    @property
    def is_quick(self) -> bool:
        """Whether the protocol is the quick one, by either way of saying so."""
        return self.quick or self.protocol == "quick"


@dataclass(frozen=True)
class RecordPlace:
    """Where the record of an arm is, and what it must say.

    Attributes:
        folder: of the results.
        name: of the arm.
        arm: the settings that it is trained by, as plain values.
        digest: of these.
        parts: what was found, each a list of lines: how many (None for any number), and names that a line has.
        measured: further settings, by which the trained arm is measured; a checkpoint serves them all.
    """

    folder: Path
    name: str
    arm: Mapping[str, Any]
    digest: str
    parts: Mapping[str, tuple[int | None, Collection[str]]]
    measured: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The record's file."""
        return self.folder / "arms" / f"{self.name}.json"

    @property
    def home(self) -> Path:
        """The folder of its checkpoints."""
        return self.folder / "checkpoints" / self.name

    def read(self) -> Record | None:
        """The record of a finished arm; None where there is none.

        Raises:
            ConflictError: it is that of other settings; the message shows the difference. OutputError: it cannot be read.
        """
        if not self.path.exists():
            return None
        try:
            record = json.loads(self.path.read_text())
            theirs = record["arm"] | {name: record[name] for name in self.measured}
            found = record["digest"]
            for part, (count, names) in self.parts.items():
                if count not in (None, len(record[part])) or any(set(names) - set(line) for line in record[part]):
                    raise ValueError(f"its {part} are not those of an arm")
        except (OSError, ValueError, LookupError, TypeError) as error:
            text = f"cannot read {self.path} ({type(error).__name__}: {error}); remove it, or --fresh"
            raise OutputError(text) from error
        if lines := differences(theirs, {**self.arm, **self.measured}):
            do = "take another --out, or --fresh to forget it"
            raise ConflictError(f"{self.path} is the record of other settings ({'; '.join(lines)}); {do}")
        if found != self.digest:
            raise ConflictError(f"{self.path} has the digest of other settings; remove it, or --fresh")
        return record

    def forget(self) -> None:
        """Remove record and checkpoints."""
        with refusals(self.path):
            self.path.unlink(missing_ok=True)
            if self.home.exists():
                shutil.rmtree(self.home)

    def take_up(self, options: ArmOptions, train: Callable[[Store, Update], Record]) -> Record:
        """The record that is there, or else the one that `train` returns, written as soon as the arm is finished.

        Args:
            options: how often to save.
            train: trains the arm with a store of checkpoints and a way to show progress.

        Raises:
            ConflictError, OutputError: see `read`. Interrupted: see `train`.
        """
        if (record := self.read()) is not None:
            return record
        with refusals(self.path.parent):
            self.path.parent.mkdir(exist_ok=True)
        store = open_store(self.home, self.arm, fresh=options.fresh, every=options.checkpoint_seconds)
        begun = time.monotonic()
        with track(self.name) as update:
            record = {"arm": self.arm, "digest": self.digest, **self.measured, **train(store, update)}
        record |= {"wall_seconds": round(time.monotonic() - begun, 1), "source": source_state()}
        write_text(self.path, json.dumps(record, separators=(",", ":")) + "\n")
        store.forget()
        return record


def settle(places: Sequence[RecordPlace], chosen: Collection[str], options: ArmOptions) -> list[RecordPlace]:
    """The places of the chosen arms, when no record of the protocol is wrong, and with `fresh` theirs are forgotten.

    All of it before any training: a wrong record would stop the tables afterwards, and one that is to be forgotten would be
    taken up again if the command is stopped in between and goes on without --fresh.

    Raises:
        ConflictError, OutputError: see `RecordPlace.read`.
    """
    own = [known for known in places if known.name in chosen]
    for known in places:
        if not (options.fresh and known in own):
            known.read()
    if options.fresh:
        for known in own:
            retract(known.folder)
            known.forget()
    return own

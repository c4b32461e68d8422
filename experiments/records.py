"""Records of finished arms: one small file each under arms/, taken up by later runs; what a command for them is told."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from qkdyn.config import refuse_undrawn
from qkdyn.errors import ConflictError, InputError, OutputError, check_positive
from qkdyn.files import prepare_folder, refusals, write_text
from qkdyn.progress import Update, track
from qkdyn.results import retract, warn_unless_vouched
from qkdyn.results.provenance import source_state
from qkdyn.train.store import Store, differences, key_of, open_store

Record = dict[str, Any]


@dataclass(frozen=True)
class ArmOptions:
    """How it is run; no result depends on it."""

    # What only training takes, and --draw-only refuses.
    undrawn: ClassVar[tuple[str, ...]] = ("checkpoint_seconds",)

    protocol: str
    """Which of the protocols."""
    quick: bool = False
    """Short for --protocol quick."""
    out: Path | None = None
    """Folder for the results; default under results/, or under results/quick/ for the quick protocol."""
    draw_only: bool = False
    """Redraw from the records in `out`; train nothing."""
    fresh: bool = False
    """Forget what `out` holds of these arms, and all of another protocol, and train them anew."""
    checkpoint_seconds: float = 30.0
    """Seconds between checkpoints."""

    def __post_init__(self) -> None:
        if self.out is not None and self.out == Path() and not self.out.name:
            raise InputError("out must name a folder, not the current one; leave it out for the default")
        check_positive("checkpoint_seconds", self.checkpoint_seconds, zero=True)
        if self.draw_only and self.fresh:
            raise InputError("--draw-only trains nothing and --fresh trains anew; leave out one of the two")
        refuse_undrawn(self, self.undrawn)

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
        shared: further settings that it is trained by, the same for all arms.
        check: raises ValueError where the rest of the record is not as it was written.
        fresh: whether --fresh, which trains anew, is of the command that reads it.
        do: what to do where it cannot be taken, if not what is told of the command's own folder.
    """

    folder: Path
    name: str
    arm: Mapping[str, Any]
    digest: str
    parts: Mapping[str, tuple[int | None, Collection[str]]]
    measured: Mapping[str, Any] = field(default_factory=dict)
    shared: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[Record], object] = lambda record: None
    fresh: bool = True
    do: str = ""

    @property
    def path(self) -> Path:
        """The record's file."""
        return self.folder / "arms" / f"{self.name}.json"

    def read(self) -> Record | None:
        """The record of a finished arm; None where there is none.

        Raises:
            ConflictError: it is that of other settings; the message shows the difference. OutputError: it cannot be read.
        """
        beside = {**self.measured, **self.shared}
        with self.damages():
            try:
                text = self.path.read_text()
            except (FileNotFoundError, NotADirectoryError):
                return None
            record = json.loads(text, parse_int=_whole)
            theirs = record["arm"] | {name: record[name] for name in beside}
            found, lines = record["digest"], differences(theirs, {**self.arm, **beside})
        if lines:
            do = self.do or "take another --out, or " + ("--fresh to forget it" if self.fresh else "remove it")
            raise ConflictError(f"{self.path} is the record of other settings ({'; '.join(lines)}); {do}")
        if found != self.digest:
            raise ConflictError(f"{self.path} has the digest of other settings; {self._remove}")
        with self.damages():
            check_positive("its wall_seconds", record["wall_seconds"], zero=True)
            for part, (count, names) in self.parts.items():
                if count not in (None, len(record[part])) or any(set(names) - set(line) for line in record[part]):
                    raise ValueError(f"its {part} are not those of an arm")
            self.check(record)
        return record

    @property
    def _remove(self) -> str:
        if self.do:
            return self.do
        return "remove it, or --fresh" if self.fresh else "remove it, or train its arm again without --draw-only"

    @contextmanager
    def damages(self) -> Iterator[None]:
        """Where a damaged or edited file makes anything fail: OutputError that names it."""
        try:
            yield
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            text = f"cannot read {self.path} ({type(error).__name__}: {error}); {self._remove}"
            raise OutputError(text) from error

    def write(self, found: Record, seconds: float) -> Record:
        """Write and return the record of what was `found` in so many seconds; it may name its own."""
        own = {"arm": self.arm, "digest": self.digest, **self.measured, **self.shared}
        record = {**own, "wall_seconds": round(seconds, 1), **found, **own, "source": source_state()}
        with refusals(self.path.parent):
            self.path.parent.mkdir(exist_ok=True)
        write_text(self.path, json.dumps(record, separators=(",", ":")) + "\n")
        return record

    def forget(self) -> None:
        """Remove the record, and the checkpoints of every group with this arm."""
        with refusals(self.path):
            self.path.unlink(missing_ok=True)
            for home in (self.folder / "checkpoints").glob("*/"):
                if self.name in _arms_of(home):
                    shutil.rmtree(home)

    def take_up(self, options: ArmOptions, train: Callable[[Store, Update], Record]) -> Record:
        """The record that is there, or else the one that `train` returns: `take_up_together` for one arm."""
        return take_up_together([self], options, lambda _, store, update: {self.name: train(store, update)})[0]


def _whole(digits: str) -> int:
    """An integer of a record; ValueError where it is beyond every float, which nothing that is measured is."""
    number = int(digits)
    if abs(number) > sys.float_info.max:
        raise ValueError(f"it holds an integer of {len(digits)} digits")
    return number


def take_up_together(
    places: Sequence[RecordPlace],
    options: ArmOptions,
    train: Callable[[Sequence[str], Store, Update], Mapping[str, Record]],
) -> list[Record]:
    """The records that are there, and those that `train` returns of the other arms, written when these are finished.

    Args:
        places: of arms that are trained together, in one folder.
        options: how often to save.
        train: trains the named arms with a store of checkpoints and a way to show progress.

    Raises:
        ConflictError, OutputError: see `RecordPlace.read`. Interrupted: see `train`.
    """
    found = {own.name: own.read() for own in places}
    missing = [own for own in places if found[own.name] is None]
    if missing:
        identity = {"arms": {own.name: own.arm for own in missing}, **missing[0].shared}
        with refusals(missing[0].path.parent):
            missing[0].path.parent.mkdir(exist_ok=True)
        store = open_store(_home(missing), identity, fresh=options.fresh, every=options.checkpoint_seconds)
        begun = time.monotonic()
        with track(missing[0].name + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")) as update:
            trained = train([own.name for own in missing], store, update)
        seconds = (time.monotonic() - begun) / len(missing)
        found |= {own.name: own.write(trained[own.name], seconds) for own in missing}
        store.forget()
    return [record for record in found.values() if record is not None]


def _home(places: Sequence[RecordPlace]) -> Path:
    """The folder of the checkpoints of a group: its arm's name, or the first with a number that the names decide."""
    names = [own.name for own in places]
    several = f"-{key_of(names)}" if len(names) > 1 else ""
    return places[0].folder / "checkpoints" / f"{names[0]}{several}"


def _arms_of(home: Path) -> Collection[str]:
    """Names of the arms of a group, by its folder of checkpoints."""
    try:
        return [home.name, *json.loads((home / "job.json").read_text())["arms"]]
    except (OSError, ValueError, LookupError, TypeError):
        return [home.name]


def opened(folder: Path, options: ArmOptions) -> Path:
    """The folder of the results, ready to be written to; not made where it is only to be drawn from.

    Raises:
        OutputError: there is none to draw from, or it cannot be written.
    """
    if options.draw_only and not folder.is_dir():
        raise OutputError(f"{folder} has no finished arm; run this command without --draw-only first")
    return prepare_folder(folder)


def refuse_undrawn_seeds(options: Any) -> None:
    """Seeds beside --draw-only draw the folder of their own; where they have none it would pass over them.

    Args:
        options: with the fields of `ArmOptions`, seeds, folder, and `apart`: whether these seeds go to a folder of their own.

    Raises:
        InputError: they have no folder of their own; the message names that of the protocol.
    """
    folder = options.folder
    if not (options.draw_only and options.seeds):
        return
    home = replace(options, seeds=()).folder
    if options.apart and (folder == home or folder.is_dir()):
        return
    seeds = " ".join(map(str, options.seeds))
    raise InputError(
        f"--draw-only draws all that a folder holds, and --seeds {seeds} have "
        + (
            f"none of their own: there is no {folder}"
            if options.apart
            else "none of their own, but are in the protocol's"
        )
        + f"; leave out --seeds to draw all of {home}, or --draw-only to train them"
    )


def say_what_is_drawn(finished: Sequence[str], asked: Sequence[str], what: str = "arms") -> None:
    """One line where more is drawn than was asked for: all that a folder has is drawn, whatever a command names."""
    if others := [name for name in finished if name not in asked]:
        print(f"Drawn are all finished {what} of the folder, also {', '.join(others)}.")


def kept(places: Sequence[RecordPlace], chosen: Collection[str], options: ArmOptions) -> list[RecordPlace]:
    """The places whose records, if there are any, are to be taken as they are: not those that --fresh forgets."""
    return [known for known in places if not (options.fresh and known.name in chosen)]


def settle(
    places: Sequence[RecordPlace],
    chosen: Collection[str],
    options: ArmOptions,
    ready: Callable[[], object] = lambda: None,
) -> list[RecordPlace]:
    """The places of the chosen arms, when no record of the protocol is wrong, and with `fresh` theirs are forgotten.

    All of it before any training: a wrong record would stop the tables afterwards, and one that is to be forgotten would be
    taken up again if the command is stopped in between and goes on without --fresh. What is forgotten cannot be had back:
    everything else is checked first, and `ready` called, which raises where there is nothing to train on.

    Raises:
        ConflictError, OutputError: see `RecordPlace.read`, `refuse_others`. Whatever `ready` raises; nothing is forgotten then.
    """
    refuse_others(places, options)
    own = [known for known in places if known.name in chosen]
    taken = kept(places, chosen, options)
    for known in taken:
        known.read()
    warn_of_replaced(taken)
    if options.fresh:
        ready()
        _forget_others(places)
        for known in own:
            retract(known.folder)
            known.forget()
    return own


def _others(places: Sequence[RecordPlace]) -> list[Path]:
    """Records in the folder of these places, of arms that are none of theirs."""
    names = {known.path.name for known in places}
    return [path for path in sorted((places[0].folder / "arms").glob("*.json")) if path.name not in names]


def refuse_others(places: Sequence[RecordPlace], options: ArmOptions) -> None:
    """What is there of another protocol must not be lost, nor its tables stay beside those of this one.

    Args:
        places: all of the protocol, in one folder.
        options: with `fresh` what is there of another protocol may go, see `settle`.

    Raises:
        ConflictError: the folder has records of arms that the protocol has not.
    """
    found = _others(places)
    if not found or options.fresh:
        return
    names = ", ".join(path.stem for path in found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
    argv = _manifest(places[0].folder).get("argv")
    made = f", made by `{' '.join(map(str, argv))}`" if isinstance(argv, list) and argv else ""
    mine = f"--protocol {'quick' if options.is_quick else options.protocol}" + " --tune" * getattr(
        options, "tune", False
    )
    do = "the protocol that they are of" if options.draw_only else "--fresh, which removes them"
    raise ConflictError(
        f"{places[0].folder} has results of another protocol (arms {names}{made}), whose tables and figures {mine} would "
        f"overwrite; take another --out, or {do}"
    )


def _forget_others(places: Sequence[RecordPlace]) -> None:
    """Remove the records of arms that are none of these, their checkpoints, and what was drawn from them."""
    folder, others = places[0].folder, _others(places)
    if not others:
        return
    drawn = [name for name in _manifest(folder).get("sha256", {}) if Path(name).name == name]
    retract(folder)
    ours = {known.name for known in places}
    with refusals(folder):
        for path in [*others, *(folder / name for name in drawn)]:
            path.unlink(missing_ok=True)
        for home in (folder / "checkpoints").glob("*/"):
            if not ours.intersection(_arms_of(home)):
                shutil.rmtree(home)


def _manifest(folder: Path) -> dict[str, Any]:
    """What run.json says; nothing where there is none or it is damaged."""
    try:
        found = json.loads((folder / "run.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("sha256"), dict) else {}


def warn_of_replaced(places: Sequence[RecordPlace]) -> None:
    """Warn of each record that is not the one that the run.json of its folder vouches for."""
    for known in places:
        if known.path.exists():
            warn_unless_vouched(known.path, folder=known.folder, stacklevel=3)

"""The command of an experiment on text: places of records, training of groups, tuning, tables and figures, its manifest."""

import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import tyro

from experiments.records import (
    ArmOptions,
    RecordPlace,
    kept,
    opened,
    refuse_others,
    refuse_undrawn_seeds,
    say_what_is_drawn,
    settle,
    take_up_together,
    warn_of_replaced,
)
from experiments.text import arms, join, tables, tune
from experiments.text.arms import Protocol
from experiments.text.readings import QUANTITIES, Quantity, Record
from experiments.text.schema import check_record
from experiments.text.task import Task
from experiments.text.train import train_group
from qkdyn.config import as_dict, digest
from qkdyn.errors import ConflictError, OutputError, reject
from qkdyn.figures.text_records import Called
from qkdyn.figures.text_tuning import draw_tuning
from qkdyn.files import write_text
from qkdyn.results import manifest, retract, write_manifest
from qkdyn.train.devices import Machine
from qkdyn.train.interrupt import on_request
from qkdyn.train.lock import lock

PARTS = ("seed", "diverged_at", "epochs", "end", "best")
Frames = dict[str, pd.DataFrame]


@dataclass(frozen=True)
class Config:
    """What is trained."""

    trained: tyro.conf.Suppress[Protocol]
    """Recipe, arms and comparisons of the protocol."""


@dataclass(frozen=True)
class TextOptions(ArmOptions):
    """How it is run; no result depends on it but by what is asked for."""

    home: ClassVar[str] = ""
    undrawn: ClassVar[tuple[str, ...]] = (*ArmOptions.undrawn, "arms", "data", "join")

    protocol: str = "controlled"
    """Which of the protocols."""
    arms: tuple[str, ...] = ()
    """Only these arms, by their names; default all of the protocol."""
    seeds: tuple[int, ...] = ()
    """These seeds in place of the protocol's, into a folder of their own; beside --draw-only that folder is drawn."""
    join: tuple[Path, ...] = ()
    """Put the runs of these folders together, one or more seeds each, in place of training; the seeds are those of --seeds."""
    tune: bool = False
    """The paper's tuning instead: a base rate by validation, then a multiplier of QK at that rate."""
    early: bool = False
    """With --tune: choose by each run's best validation epoch, as early stopping would, not by its last."""
    data: Path | None = None
    """Folder with the data; default $QKDYN_DATA, or data/."""

    @property
    def folder(self) -> Path:
        """Where the results go: default results/<home>/<protocol>, or results/quick/<home>."""
        own = self.home if self.is_quick else self.protocol
        if self.tune:
            own = ("tune" if own == "controlled" else f"{own}-tune") + ("-early" if self.early else "")
        own += self.suffix + "".join(f"-{seed}" for seed in self.seeds)
        return (self.out or Path("results") / ("quick" if self.is_quick else self.home) / own).absolute()

    @property
    def apart(self) -> bool:
        """Whether the results go to a folder of these seeds."""
        return bool(self.seeds)

    @property
    def suffix(self) -> str:
        """What further options add to the name of the folder."""
        return ""


@dataclass(frozen=True)
class Experiment:
    """Table 1 on one data set.

    Attributes:
        task: the data set.
        prog: the command, as its help shows it.
        read_off: (records, protocol, name of the protocol) -> tables by the name of their file, and the verdict.
        draw: (compared arms by the name of the comparison, tables, folder) -> figures.
        tuned: base rate and multiplier of QK that were published, and by what they are chosen.
        quantities: all that is read off records.
        shown: names of those that are printed.
    """

    task: Task
    prog: str
    read_off: Callable[[Sequence[Record], Protocol, str], tuple[Frames, str]]
    draw: Callable[[Sequence[tuple[str, Sequence[Record]]], Frames, Path], list[Path]]
    tuned: tune.Published
    quantities: Sequence[Quantity] = QUANTITIES
    shown: Sequence[str] = tables.SHOWN


def run(experiment: Experiment, protocol: Protocol, options: TextOptions, arguments: Sequence[str]) -> int:
    """Train what is missing, draw everything, write a manifest, print the verdict."""
    folder = options.folder
    refuse_undrawn_seeds(options)
    if options.seeds:
        protocol = replace(protocol, recipe=replace(protocol.recipe, seeds=options.seeds))
    if options.tune:
        if options.arms:
            reject("--arms", " ".join(options.arms), "left out beside --tune, which chooses its own")
        protocol = arms.tuning(protocol)
    if options.early:
        if not options.tune:
            reject("--early", True, "given beside --tune, whose choice it alters")
        experiment = replace(experiment, tuned=replace(experiment.tuned, reading="best"))
    names, parts = chosen(protocol, options.arms), {}
    if options.join:
        join.refuse_beside(options)
        parts = join.gathered(options, protocol, names, places)
    elif not options.draw_only:
        Machine().join()
    with lock(opened(folder, options)):
        begun = time.monotonic()
        refuse_others(places(folder, protocol), options)
        if options.join:
            put_together(parts, protocol, options)
        elif not options.draw_only:
            names = trained(experiment, protocol, names, options)
        records = finished(protocol, folder)
        if not records:
            raise OutputError(f"{folder} has no finished arm; run this command without --draw-only first")
        if options.draw_only:
            warn_of_replaced(places(folder, protocol))
        name = "quick" if options.is_quick else options.protocol
        drawing = draw_tuned if options.tune else draw
        files = drawing(experiment, records, protocol, name, folder)
        used = [folder / "arms" / f"{record['arm']['name']}.json" for record in records]
        record = manifest(
            as_dict(protocol),
            wall_seconds=time.monotonic() - begun,
            argv=[*experiment.prog.split(), *arguments],
            files=[*files, *used],
            digest=digest(protocol),
        )
        files.append(write_manifest(record, folder))
    tables.show(records, protocol, experiment.quantities, experiment.shown)
    if options.arms:
        say_what_is_drawn([record["arm"]["name"] for record in records], names)
    print((folder / "verdict.md").read_text())
    print("\n".join(map(str, files)))
    return 0


def trained(experiment: Experiment, protocol: Protocol, names: Sequence[str], options: TextOptions) -> Sequence[str]:
    """Train what is missing of these arms, or what tuning chooses; the names of those that there are then."""
    data = reader(experiment, protocol, names, options)
    own = settle(places(options.folder, protocol), names, options, data)
    # Finished records need none, but data that are named must be theirs; what is wrong with data is said before work.
    if options.data is not None or (not options.tune and any(place.read() is None for place in own)):
        data()
    if options.tune:
        train(experiment.task, protocol, [arm.name for arm in protocol.groups[0]], options, data)
        names = tune.chosen_group(finished(protocol, options.folder), protocol, experiment.tuned)
    train(experiment.task, protocol, names, options, data)
    return names


def put_together(parts: dict[str, list[join.Part]], protocol: Protocol, options: TextOptions) -> None:
    """Have a record of each arm of which there are parts: the one that is there, or else all runs of its parts."""
    own = places(options.folder, protocol)
    first = next(iter(parts.values()))[0][1]
    refuse_other_data(kept(own, list(parts), options), first["data"]["sha256"])
    join.write(settle(own, list(parts), options), parts, protocol.recipe.seeds)


def chosen(protocol: Protocol, names: Sequence[str]) -> list[str]:
    """These names, or those of all arms where there are none.

    Raises:
        InputError: there is no arm of that name.
    """
    known = [arm.name for arm in protocol.arms]
    for name in names:
        if name not in known:
            reject("each of arms", name, "one of " + ", ".join(known))
    return [name for name in known if name in names] or known


def places(folder: Path, protocol: Protocol) -> list[RecordPlace]:
    """Where the records of all arms are."""
    parts = {"runs": (len(protocol.recipe.seeds), PARTS)}
    shared = {"recipe": as_dict(protocol.recipe), "limit": protocol.limit}
    alone = {arm.name: replace(protocol, groups=((arm,),), comparisons=()) for arm in protocol.arms}
    checks = {arm.name: functools.partial(check_record, arm=arm, recipe=protocol.recipe) for arm in protocol.arms}
    return [
        RecordPlace(
            folder, arm.name, as_dict(arm), digest(alone[arm.name]), parts, shared=shared, check=checks[arm.name]
        )
        for arm in protocol.arms
    ]


def train(task: Task, protocol: Protocol, names: Sequence[str], options: TextOptions, data: Callable[[], Any]) -> None:
    """Have a record of each of these arms; those of a group that are not there yet are trained together."""
    own = {place.name: place for place in places(options.folder, protocol)}
    with on_request() as request:
        for group in protocol.groups:
            known = {arm.name: arm for arm in group if arm.name in names}

            def begin(missing: Sequence[str], store: Any, update: Any, known: Any = known) -> dict[str, dict[str, Any]]:
                arms = [known[name] for name in missing]
                return train_group(task, protocol.recipe, arms, data(), store, request, update)

            if known:
                take_up_together([own[name] for name in known], options, begin)


def reader(experiment: Experiment, protocol: Protocol, names: Sequence[str], options: TextOptions) -> Callable[[], Any]:
    """Reads the data when first asked: finished records need none.

    Raises (when asked):
        DataError: they are not found, or not as their schema says. ConflictError: records there are of other data, and not
            among the arms of these names, to be forgotten with --fresh.
    """
    theirs = kept(places(options.folder, protocol), names, options)

    @functools.cache
    def read() -> Any:
        data = experiment.task.load(protocol.recipe, options.data, limit=protocol.limit)
        refuse_other_data(theirs, data.sha256)
        for note in (*data.notes, *_reduced(data, experiment.task.called)):
            print(f"note: {note}", file=sys.stderr)
        return data

    return read


def refuse_other_data(theirs: Sequence[RecordPlace], sums: Mapping[str, str]) -> None:
    """Raise ConflictError where one of the records that are there is not of the data with these SHA-256."""
    for place in theirs:
        record = place.read()
        if record is not None and record["data"]["sha256"] != dict(sums):
            do = "take another --out, or --fresh to forget it"
            raise ConflictError(f"{place.path} is the record of other data; {do}")


def _reduced(data: Any, called: Called) -> list[str]:
    """What encoding took away from the data, a line for each split."""
    lines = []
    for split in ("train", "validation", "test"):
        own = getattr(data, split)
        said = [f"{own.cut:,} cut to the length of the model"] if own.cut else []
        said += [f"{own.empty:,} left without a token by the cleaning"] if own.empty else []
        lines += [f"{split}: of its {called.every} " + ", ".join(said)] if said else []
    return lines


def finished(protocol: Protocol, folder: Path) -> list[Record]:
    """The records that are there, in the protocol's order."""
    return [record for place in places(folder, protocol) if (record := place.read()) is not None]


def draw(experiment: Experiment, records: Sequence[Record], protocol: Protocol, name: str, folder: Path) -> list[Path]:
    """Tables, figures and verdict of all finished arms."""
    frames, said = experiment.read_off(records, protocol, name)
    retract(folder)
    files = [
        write_text(folder / f"{name}.csv", frame.to_csv(index=False, float_format="%.5g"))
        for name, frame in frames.items()
        if len(frame)
    ]
    groups = [(comparison.name, there) for comparison, there in tables.compared(records, protocol)]
    files.append(write_text(folder / "verdict.md", said))
    return [*files, *experiment.draw(groups, frames, folder)]


def draw_tuned(
    experiment: Experiment, records: Sequence[Record], protocol: Protocol, name: str, folder: Path
) -> list[Path]:
    """Table, verdict and figure of the tuning."""
    published, called = experiment.tuned, experiment.task.called
    frame = tune.tuned_frame(records, published)
    said = tune.tuning_verdict(records, name, published, called)
    retract(folder)
    base = tune.base_of(records)
    return [
        write_text(folder / "tuned.csv", frame.to_csv(index=False, float_format="%.5g")),
        write_text(folder / "verdict.md", said),
        draw_tuning(
            base, tune.candidates(records, published), folder / "tuned.png", called, published.by, published.reading
        ),
    ]

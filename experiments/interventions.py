"""Interventions beside the learning-rate ratio: which sharpen attention at a matched loss, at what cost, in four settings.

Command:  python -m experiments.interventions [--settings NAME ...] [--arms NAME ...] [--quick] [--draw-only] [--help]
Time:     under an hour on two cores; --quick under 45 s. Finished arms are records and not trained again.
Expect:   verdict.md, the question answered in two sentences above a ranked table; arms.md, every arm; one figure.
"""

import functools
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import tyro

from experiments.intervened import hatexplain, hatexplain_sgd, orthogonal, tokens
from experiments.intervened.arms import LINES, Arm, Work
from experiments.intervened.page import arms_table, page
from experiments.intervened.schema import check_record
from experiments.intervened.tables import arms_frame, by_rank, families, ranking
from experiments.records import (
    ArmOptions,
    Record,
    RecordPlace,
    opened,
    refuse_others,
    settle,
    take_up_together,
    warn_of_replaced,
)
from qkdyn.config import as_dict, digest, main_guard, parse
from qkdyn.errors import DataError, OutputError, reject
from qkdyn.figures import canvas
from qkdyn.figures.interventions import draw_interventions
from qkdyn.files import write_text
from qkdyn.results import manifest, retract, write_manifest
from qkdyn.train.devices import Machine
from qkdyn.train.interrupt import on_request
from qkdyn.train.lock import lock

SETTINGS: dict[str, ModuleType] = {
    module.SETTING: module for module in (orthogonal, tokens, hatexplain_sgd, hatexplain)
}


@dataclass(frozen=True)
class Config:
    """What is trained."""

    trained: tyro.conf.Suppress[tuple[Arm, ...]]
    """The arms of all settings."""


def protocol(quick: bool) -> Config:
    """The arms of all settings."""
    return Config(tuple(arm for module in SETTINGS.values() for arm in module.arms(quick)))


PROTOCOLS = {"reference": protocol(False), "quick": protocol(True)}


@dataclass(frozen=True)
class Options(ArmOptions):
    """How it is run; no result depends on it."""

    undrawn: ClassVar[tuple[str, ...]] = (*ArmOptions.undrawn, "settings", "arms", "data")

    protocol: str = "reference"
    """One of: reference, quick."""
    settings: tuple[str, ...] = ()
    """Only these settings; default all: orthogonal, tokens, hatexplain-sgd, hatexplain."""
    arms: tuple[str, ...] = ()
    """Only these arms, by their names; default all of the settings."""
    data: Path | None = None
    """Folder with the data of HateXplain; default $QKDYN_DATA, or data/."""

    @property
    def folder(self) -> Path:
        """Where the results go: default results/interventions, or results/quick/interventions."""
        return (self.out or Path("results") / ("quick" if self.is_quick else "") / "interventions").absolute()


def chosen(config: Config, options: Options) -> list[Arm]:
    """The arms of the settings and of the names that are asked for.

    Raises:
        InputError: there is no such setting or arm.
    """
    for name in options.settings:
        if name not in SETTINGS:
            reject("each of settings", name, "one of " + ", ".join(SETTINGS))
    own = [arm for arm in config.trained if not options.settings or arm.setting in options.settings]
    known = {arm.name: arm for arm in own}
    for name in options.arms:
        if name not in known:
            reject("each of arms", name, f"one of the {len(known)} arms of {', '.join(options.settings or SETTINGS)}")
    return [arm for arm in own if not options.arms or arm.name in options.arms]


def places(config: Config, folder: Path, *, fresh: bool = True) -> list[RecordPlace]:
    """Where the records of all arms are; `fresh` where --fresh may be advised."""
    return [
        RecordPlace(
            folder,
            arm.name,
            as_dict(arm),
            digest(arm),
            {"runs": (len(arm.seeds), LINES), "predicted": (None, ("level", "attention"))},
            check=functools.partial(check_record, arm=arm),
            fresh=fresh,
        )
        for arm in config.trained
    ]


def train(config: Config, arms: Sequence[Arm], options: Options) -> None:
    """Have a record of each of these arms; those of a group that are not there yet are trained together."""
    settings = list(dict.fromkeys(arm.setting for arm in arms))

    def ready(names: Sequence[str] = settings) -> None:
        for name in names:
            try:
                SETTINGS[name].ready(options.data)
            except DataError as error:
                others = " ".join(other for other in settings if _has_data(other, options))
                do = f"; or without it: --settings {others}" if others else ""
                raise DataError(f"{error}{do}") from error

    own = {
        place.name: place for place in settle(places(config, options.folder), [a.name for a in arms], options, ready)
    }
    # What is wrong with data is said before work; finished records need none.
    ready([name for name in settings if any(own[arm.name].read() is None for arm in arms if arm.setting == name)])
    with on_request() as request:
        for name in settings:
            for group in SETTINGS[name].groups([arm for arm in arms if arm.setting == name]):
                known = {arm.name: arm for arm in group}

                def begin(
                    missing: Sequence[str], store: Any, update: Any, known: Mapping[str, Arm] = known, name: str = name
                ) -> Mapping[str, Record]:
                    return SETTINGS[name].train(
                        [known[arm] for arm in missing], Work(store, request, update, options.data)
                    )

                take_up_together([own[arm.name] for arm in group], options, begin)


def _has_data(name: str, options: Options) -> bool:
    """Whether there is something to train a setting on."""
    try:
        SETTINGS[name].ready(options.data)
    except DataError:
        return False
    return True


def finished(config: Config, folder: Path, *, fresh: bool = True) -> list[Record]:
    """The records that are there, in the protocol's order."""
    found = (own.read() for own in places(config, folder, fresh=fresh))
    return [record for record in found if record is not None]


def draw(records: Sequence[Record], folder: Path) -> list[Path]:
    """The page, the tables and the figure of all finished arms."""
    frame = arms_frame(records, {orthogonal.SETTING: orthogonal.equivalent})
    seconds = sum(record["wall_seconds"] for record in records)
    files = [
        write_text(folder / "verdict.md", page(frame, seconds, {(orthogonal.SETTING, "CACO"): orthogonal.in_signs})),
        write_text(folder / "arms.md", arms_table(frame)),
        write_text(folder / "summary.csv", frame.drop(columns="plain").to_csv(index=False, float_format="%.6g")),
    ]
    found = families(frame)
    if not found.empty and np.isfinite(found["change"]).any():
        figure = draw_interventions(ranking(frame), by_rank(found))
        files.append(canvas.save(figure, folder / "interventions.png"))
    else:
        (folder / "interventions.png").unlink(missing_ok=True)
    return files


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment from the command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    prog, description = "python -m experiments.interventions", (__doc__ or "").splitlines()[0]
    config, options = parse(PROTOCOLS, Options(), arguments, prog=prog, description=description)
    arms, folder = chosen(config, options), options.folder
    if not options.draw_only:
        Machine().join()
    with lock(opened(folder, options)):
        begun = time.monotonic()
        refuse_others(places(config, folder), options)
        if not options.draw_only:
            train(config, arms, options)
        records = finished(config, folder, fresh=not options.draw_only)
        if not records:
            raise OutputError(f"{folder} has no finished arm; run this command without --draw-only first")
        if options.draw_only:
            warn_of_replaced(places(config, folder))
        retract(folder)
        files = draw(records, folder)
        seconds = time.monotonic() - begun
        used = [folder / "arms" / f"{record['arm']['name']}.json" for record in records]
        command = [*prog.split(), *arguments]
        record = manifest(
            as_dict(config), wall_seconds=seconds, argv=command, files=[*files, *used], digest=digest(config)
        )
        files.append(write_manifest(record, folder))
    print((folder / "verdict.md").read_text())
    print("\n".join(map(str, files)))
    return 0


if __name__ == "__main__":
    sys.exit(main_guard(main))

"""Figure 2: attention of the four parameterizations, and with a faster query-key circuit, under three protocols.

Command:  python -m experiments.fig2_parameterizations [--protocol NAME] [--arms NAME ...] [--help]
Time:     about twenty minutes a protocol on two cores; --quick under 45 s. Finished arms are records and not trained again.
Expect:   as_coded: the published heat maps; controlled: from one start, the same four side by side, at matched loss.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import tyro

from experiments.records import ArmOptions, RecordPlace, opened, refuse_others, settle, warn_of_replaced
from experiments.synthetic.arms import Arm, as_coded, as_written, controlled
from experiments.synthetic.tables import arms_frame, matched_frame, runs_frame, show
from experiments.synthetic.train import PARTS, train_arm
from qkdyn.config import as_dict, digest, main_guard, parse
from qkdyn.errors import OutputError, reject
from qkdyn.figures.fig2 import draw_fig2
from qkdyn.files import write_text
from qkdyn.results import manifest, retract, write_manifest
from qkdyn.train.devices import Machine
from qkdyn.train.interrupt import on_request
from qkdyn.train.lock import lock


@dataclass(frozen=True)
class Config:
    """What is trained."""

    trained: tyro.conf.Suppress[tuple[Arm, ...]]
    """The protocol's arms."""
    evaluation: int = 500
    """Batches of fresh sequences on which each run is measured."""

    def __post_init__(self) -> None:
        if not 1 <= self.evaluation <= 100_000:
            reject("evaluation", self.evaluation, "from 1 to 100,000 batches")


def quick() -> tuple[Arm, ...]:
    """Two parameterizations from one start for 1,500 steps: a look, no result."""
    short: dict[str, Any] = {"epochs": 30, "batches": 50, "scale": 0.01, "eta_ov": 0.3, "levels": (1.0, 0.5)}
    short |= {"multipliers": (1.0, 10.0), "seeds": (1234, 1235)}
    return tuple(Arm(f"{form}-0.01", form, "common", "common", **short) for form in ("FAFO", "CACO"))


PROTOCOLS = {
    "as_coded": Config(as_coded()),
    "as_written": Config(as_written()),
    "controlled": Config(controlled()),
    "quick": Config(quick(), evaluation=20),
}


@dataclass(frozen=True)
class Options(ArmOptions):
    """How it is run; no result depends on it."""

    undrawn: ClassVar[tuple[str, ...]] = (*ArmOptions.undrawn, "arms")

    protocol: str = "as_coded"
    """One of: as_coded, as_written, controlled, quick."""
    arms: tuple[str, ...] = ()
    """Only these arms; default all of the protocol."""

    @property
    def folder(self) -> Path:
        """Where the results go: default results/fig2/<protocol>, or results/quick/fig2."""
        return (self.out or Path("results") / ("quick/fig2" if self.is_quick else f"fig2/{self.protocol}")).absolute()


def chosen(config: Config, names: Sequence[str]) -> list[Arm]:
    """The arms of these names, all where there are none.

    Raises:
        InputError: there is no arm of that name.
    """
    known = {arm.name: arm for arm in config.trained}
    for name in names:
        if name not in known:
            reject("each of arms", name, "one of " + ", ".join(known))
    return [known[name] for name in names or known]


def place(folder: Path, arm: Arm, evaluation: int) -> RecordPlace:
    """Where the record of an arm is."""
    lines = {"runs": len(arm.seeds) * len(arm.multipliers)}
    parts = {part: (lines.get(part), names) for part, names in PARTS.items()}
    return RecordPlace(folder, arm.name, as_dict(arm), digest(arm), parts, {"evaluation": evaluation})


def places(config: Config, folder: Path) -> list[RecordPlace]:
    """Where the records of all arms are."""
    return [place(folder, arm, config.evaluation) for arm in config.trained]


def train(config: Config, arms: Sequence[Arm], options: Options) -> None:
    """Have a record of each arm; those that are not there yet are trained."""
    known = {arm.name: arm for arm in config.trained}
    chosen = settle(places(config, options.folder), [arm.name for arm in arms], options)
    with on_request() as request:
        for own in chosen:
            arm = known[own.name]
            own.take_up(options, lambda store, update: train_arm(arm, config.evaluation, store, request, update))  # noqa: B023


def finished(config: Config, folder: Path) -> list[dict[str, Any]]:
    """The records that are there, in the protocol's order."""
    found = (own.read() for own in places(config, folder))
    return [record for record in found if record is not None]


def draw(records: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """The summaries and figures of all finished arms."""
    frames: dict[str, pd.DataFrame] = {
        "summary": arms_frame(records),
        "runs": runs_frame(records),
        "matched": matched_frame(records),
    }
    files = [
        write_text(folder / f"{name}.csv", frame.to_csv(index=False, float_format="%.6g"))
        for name, frame in frames.items()
        if len(frame)
    ]
    return [*files, *draw_fig2(records, folder)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment from the command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    prog, description = "python -m experiments.fig2_parameterizations", (__doc__ or "").splitlines()[0]
    config, options = parse(PROTOCOLS, Options(), arguments, prog=prog, description=description)
    arms, folder = chosen(config, options.arms), options.folder
    if not options.draw_only:
        Machine().join()
    with lock(opened(folder, options)):
        begun = time.monotonic()
        refuse_others(places(config, folder), options)
        if not options.draw_only:
            train(config, arms, options)
        records = finished(config, folder)
        if not records:
            raise OutputError(f"{folder} has no finished arm; run this command without --draw-only first")
        if options.draw_only:
            warn_of_replaced(places(config, folder))
        retract(folder)
        files = draw(records, folder)
        seconds = time.monotonic() - begun
        kept = [folder / "arms" / f"{record['arm']['name']}.json" for record in records]
        command = [*prog.split(), *arguments]
        record = manifest(
            as_dict(config), wall_seconds=seconds, argv=command, files=[*files, *kept], digest=digest(config)
        )
        files.append(write_manifest(record, folder))
    show(records)
    print("\n".join(map(str, files)))
    return 0


if __name__ == "__main__":
    sys.exit(main_guard(main))

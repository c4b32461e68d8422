"""Table 1 on SQuAD: what a faster query-key circuit does to a model that writes answers, under three protocols.

Command:  python -m experiments.table1_squad [--protocol NAME] [--scale laptop|full] [--data FOLDER] [--arms NAME ...]
Time:     see docs/performance.md; each run's cost is printed before it starts; --quick under 45 s. Finished runs are records
          and not trained again.
Expect:   at the laptop scale the pipeline, not the claim: the model learns little of answering in so short a time.
          --scale full is the published model, for an accelerator.

`as_coded` has the two published recipes: the faster arm's OV rate is a tenth of the baseline's, its QK rate twice. `as_written`
has what the paper's text says. `controlled` has what both leave out: each base rate with and without QK x20, the published QK
rate on the baseline's OV rate, equal epochs, contexts that are not centred on the answer. --tune runs the paper's tuning.
"""

import functools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import tyro

from experiments.records import (
    ArmOptions,
    Record,
    RecordPlace,
    kept,
    opened,
    refuse_others,
    refuse_undrawn_seeds,
    say_what_is_drawn,
    settle,
    warn_of_replaced,
)
from experiments.squad import arms, cost, tables
from experiments.squad.arms import Protocol
from experiments.squad.data import load
from experiments.squad.readings import by_arm
from experiments.squad.recipe import Run
from experiments.squad.schema import check_record
from experiments.squad.train import train_run
from experiments.squad.tune import base_of, candidates, chosen_rate, tuned_frame, tuning_verdict
from experiments.squad.verdict import verdict
from qkdyn.config import as_dict, digest, main_guard, parse
from qkdyn.errors import ConflictError, OutputError, reject
from qkdyn.figures.squad import draw_squad, draw_squad_tuning
from qkdyn.files import write_text
from qkdyn.results import manifest, retract, write_manifest
from qkdyn.text.sources import sha256
from qkdyn.train.devices import Machine
from qkdyn.train.interrupt import on_request
from qkdyn.train.lock import lock

PARTS = ("seed", "diverged_at", "epochs", "end", "best")


@dataclass(frozen=True)
class Config:
    """What is trained."""

    trained: tyro.conf.Suppress[Protocol]
    """Recipe, arms and comparisons of the protocol, at the laptop scale."""


PROTOCOLS = {name: Config(arms.protocol(name)) for name in ("controlled", "as_coded", "as_written", "quick")}


@dataclass(frozen=True)
class Options(ArmOptions):
    """How it is run; no result depends on it but by what is asked for."""

    undrawn: ClassVar[tuple[str, ...]] = (*ArmOptions.undrawn, "arms", "data")

    protocol: str = "controlled"
    """One of: controlled, as_coded, as_written, quick."""
    scale: str = "laptop"
    """laptop: a small model on a subset, for two cores; full: as published, for an accelerator."""
    arms: tuple[str, ...] = ()
    """Only these arms, by the names of experiments/squad/arms.py; default all of the protocol."""
    seeds: tuple[int, ...] = ()
    """Only these seeds of the protocol's, default all; if one is none of the protocol's, these in place of them, into a
    folder of their own, which beside --draw-only is drawn."""
    tune: bool = False
    """The paper's tuning instead: a base rate by selection, then a multiplier of QK at that rate."""
    data: Path | None = None
    """Folder with squad/ and gpt2_bpe/, or the files themselves; default $QKDYN_DATA, or data/."""
    vectors: Path | None = None
    """Text file of pretrained token vectors (GloVe's format) of the model's width, as published; default drawn ones."""

    @property
    def folder(self) -> Path:
        """Where the results go: default results/squad/<protocol>, or results/quick/squad."""
        own = "squad" if self.is_quick else self.protocol
        if self.tune:
            own = "tune" if own == "controlled" else f"{own}-tune"
        own += f"-{self.scale}" if self.scale != "laptop" else ""
        own += "".join(f"-{seed}" for seed in self.seeds if self.apart)
        return (self.out or Path("results") / ("quick" if self.is_quick else "squad") / own).absolute()

    @property
    def apart(self) -> bool:
        """Whether the results go to a folder of these seeds: the protocol lacks one of them."""
        return bool(set(self.seeds) - set(scaled(self).seeds))


def scaled(options: Options) -> Protocol:
    """The protocol at the scale that is asked for.

    Raises:
        InputError: another scale.
    """
    if options.scale not in arms.SCALES:
        reject("scale", options.scale, "one of " + ", ".join(arms.SCALES))
    if options.is_quick and options.scale != "laptop":
        reject("scale", options.scale, "left out beside the quick protocol, which has one size")
    if options.scale != "laptop":
        return arms.protocol(options.protocol, options.scale)
    return PROTOCOLS["quick" if options.is_quick else options.protocol].trained


def prepared(options: Options) -> Protocol:
    """The protocol at the scale, with the seeds and the vectors that are named.

    Raises:
        InputError: another scale, or seeds that are none. DataError: the file of vectors cannot be read.
    """
    protocol = scaled(options)
    if options.apart:
        protocol = replace(protocol, seeds=options.seeds)
    if options.vectors is not None:
        protocol = replace(protocol, recipe=replace(protocol.recipe, vectors=sha256(options.vectors)))
    return protocol


def chosen(protocol: Protocol, options: Options) -> list[Run]:
    """The runs of these arms and seeds, or of all where none are named.

    Raises:
        InputError: there is no such arm.
    """
    known = [arm.name for arm in protocol.arms]
    for name in options.arms:
        if name not in known:
            reject("each of arms", name, "one of " + ", ".join(known))
    names, seeds = set(options.arms or known), set(options.seeds or protocol.seeds)
    return [run for run in protocol.runs if run.arm.name in names and run.seed in seeds]


def places(folder: Path, protocol: Protocol, runs: Sequence[Run] | None = None) -> list[RecordPlace]:
    """Where the records of all runs are, or of these."""
    shared = {"recipe": as_dict(protocol.recipe)}
    found = []
    for run in protocol.runs if runs is None else runs:
        own = as_dict(run.arm) | {"seed": run.seed}
        check = functools.partial(check_record, run=run)
        name = digest(replace(protocol, arms=(run.arm,), seeds=(run.seed,), comparisons=()))
        found.append(RecordPlace(folder, run.name, own, name, {"runs": (1, PARTS)}, shared=shared, check=check))
    return found


def train(protocol: Protocol, runs: Sequence[Run], options: Options, data: Callable[[], Any]) -> None:
    """Have a record of each of these runs; what each will cost is said before it starts."""
    own = {place.name: place for place in places(options.folder, protocol, runs)}
    done: list[tuple[cost.Cost, float]] = []
    speed = functools.cache(lambda: cost.product_speed(protocol.recipe))
    with on_request() as request:
        for run in runs:

            def begin(store: Any, update: Any, run: Run = run) -> Record:
                questions = data()
                price = cost.cost_of(protocol.recipe, run, questions)
                print(cost.line(run, price, *cost.expected(price, done, speed)), file=sys.stderr, flush=True)
                begun = time.monotonic()
                record = train_run(protocol.recipe, run, questions, store, request, update)
                done.append((price, time.monotonic() - begun))
                return record | {"cost": price._asdict()}

            own[run.name].take_up(options, begin)


def reader(protocol: Protocol, runs: Sequence[Run], options: Options) -> Callable[[], Any]:
    """Reads the questions when first asked: finished records need none.

    Raises (when asked):
        DataError: they are not found, or not as published. ConflictError: records there are of other questions, and not
            among these runs, to be forgotten with --fresh.
    """
    theirs = kept(places(options.folder, protocol), [run.name for run in runs], options)

    @functools.cache
    def read() -> Any:
        data = load(protocol.recipe, options.data, options.vectors)
        for place in theirs:
            record = place.read()
            if record is not None and record["data"]["sha256"] != dict(data.sha256):
                do = "take another --out, or --fresh to forget it"
                raise ConflictError(f"{place.path} is the record of other data; {do}")
        for note in data.notes:
            print(f"note: {note}", file=sys.stderr)
        return data

    return read


def finished(protocol: Protocol, folder: Path) -> list[Record]:
    """The records that are there, in the protocol's order."""
    return [record for place in places(folder, protocol) if (record := place.read()) is not None]


def draw(records: Sequence[Record], protocol: Protocol, name: str, folder: Path) -> list[Path]:
    """Tables, figures and verdict of all finished runs."""
    found, said = tables.frames(records, protocol), verdict(records, protocol, name)
    retract(folder)
    files = [
        write_text(folder / f"{key}.csv", frame.to_csv(index=False, float_format="%.5g"))
        for key, frame in found.items()
        if len(frame)
    ]
    files.append(write_text(folder / "verdict.md", said))
    title = tables.title(records, protocol, name)
    return [*files, *draw_squad(by_arm(records, protocol), title, protocol.reading, folder)]


def draw_tuned(records: Sequence[Record], protocol: Protocol, name: str, folder: Path) -> list[Path]:
    """Table, verdict and figure of the tuning."""
    found = by_arm(records, protocol)
    frame, said = tuned_frame(found), tuning_verdict(found, name)
    retract(folder)
    return [
        write_text(folder / "tuned.csv", frame.to_csv(index=False, float_format="%.5g")),
        write_text(folder / "verdict.md", said),
        draw_squad_tuning(base_of(found), candidates(found), folder / "tuned.png"),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment from the command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    prog, description = "python -m experiments.table1_squad", (__doc__ or "").splitlines()[0]
    _, options = parse(PROTOCOLS, Options(), arguments, prog=prog, description=description)
    protocol, folder = prepared(options), options.folder
    if options.tune:
        if options.arms or options.seeds:
            reject(
                "--arms and --seeds", (*options.arms, *options.seeds), "left out beside --tune, which chooses its own"
            )
        rates, faster = arms.tuning(protocol)
        protocol = replace(rates, arms=(*rates.arms, *faster.arms))
    refuse_undrawn_seeds(options)
    runs = chosen(protocol, options)
    if not options.draw_only:
        Machine().join()
    with lock(opened(folder, options)):
        begun = time.monotonic()
        refuse_others(places(folder, protocol), options)
        if not options.draw_only:
            data = reader(protocol, runs, options)
            own = settle(places(folder, protocol), [run.name for run in runs], options, data)
            # Finished records need none, but data that are named must be theirs; what is wrong with data is said before work.
            if options.data is not None or (not options.tune and any(place.read() is None for place in own)):
                data()
            if options.tune:
                train(protocol, [run for run in runs if run.arm.qk == 1], options, data)
                rate = chosen_rate(by_arm(finished(protocol, folder), protocol))
                runs = [run for run in runs if run.arm.qk != 1 and run.arm.rate == rate]
            train(protocol, runs, options, data)
        records = finished(protocol, folder)
        if not records:
            raise OutputError(f"{folder} has no finished arm; run this command without --draw-only first")
        if options.draw_only:
            warn_of_replaced(places(folder, protocol))
        name = "quick" if options.is_quick else options.protocol
        drawing = draw_tuned if options.tune else draw
        files = drawing(records, protocol, name, folder)
        used = [folder / "arms" / f"{record['arm']['name']}-{record['arm']['seed']}.json" for record in records]
        record = manifest(
            as_dict(protocol),
            wall_seconds=time.monotonic() - begun,
            argv=[*prog.split(), *arguments],
            files=[*files, *used],
            digest=digest(protocol),
        )
        files.append(write_manifest(record, folder))
    if not options.tune:
        tables.show(records, protocol, name)
        if not options.draw_only:
            own = [f"{record['arm']['name']}-{record['arm']['seed']}" for record in records]
            say_what_is_drawn(own, [run.name for run in runs], "runs")
    print((folder / "verdict.md").read_text())
    print("\n".join(map(str, files)))
    return 0


if __name__ == "__main__":
    sys.exit(main_guard(main))

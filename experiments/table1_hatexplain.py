"""Table 1 on HateXplain: what a faster query-key circuit does to attention on real text, under three protocols.

Command:  python -m experiments.table1_hatexplain [--protocol NAME] [--data FOLDER] [--arms NAME ...] [--help]
Time:     9 minutes (as_coded, as_written) or 22 (controlled) on two cores; --quick under 45 s. Finished arms are records
          and not trained again.
Expect:   as_coded: the published numbers; controlled: what of them is due to QK alone. --layers 2 or 4 is Table 5.

`as_coded` has every confound of the published notebooks, `as_written` only what the paper's text says. `controlled` reads and
measures attention at a learned query token with the padding masked, and takes apart what was changed together. Attention
that is *sharper* (entropy, mass of the top tokens) is kept apart from attention that is sharper *on the relevant tokens*
(MRTA, AUPRC, beside their uniform values). --tune runs the paper's tuning instead.
"""

import functools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from experiments.records import (
    ArmOptions,
    Record,
    RecordPlace,
    kept,
    opened,
    settle,
    take_up_together,
    warn_of_replaced,
)
from experiments.text import arms, tables
from experiments.text.arms import Protocol, deepened
from experiments.text.published import compared_frame
from experiments.text.schema import check_record
from experiments.text.train import load, train_group
from experiments.text.tune import base_of, candidates, chosen_group, tuned_frame, tuning_verdict
from experiments.text.verdict import verdict
from qkdyn.config import as_dict, digest, main_guard, parse
from qkdyn.errors import ConflictError, InputError, OutputError, reject
from qkdyn.figures.text import draw_text
from qkdyn.figures.text_tuning import draw_tuning
from qkdyn.files import write_text
from qkdyn.results import manifest, retract, write_manifest
from qkdyn.train.devices import Machine
from qkdyn.train.interrupt import on_request
from qkdyn.train.lock import lock

PARTS = ("seed", "diverged_at", "epochs", "end", "best")


@dataclass(frozen=True)
class Config:
    """What is trained."""

    trained: tyro.conf.Suppress[Protocol]
    """Recipe, arms and comparisons of the protocol."""


PROTOCOLS = {
    "controlled": Config(arms.controlled()),
    "as_coded": Config(arms.as_coded()),
    "as_written": Config(arms.as_written()),
    "quick": Config(arms.quick()),
}


@dataclass(frozen=True)
class Options(ArmOptions):
    """How it is run; no result depends on it but by what is asked for."""

    protocol: str = "controlled"
    """One of: controlled, as_coded, as_written, quick."""
    arms: tuple[str, ...] = ()
    """Only these arms, by the names of experiments/text/arms.py; default all of the protocol."""
    layers: int = 1
    """Layers of the published models: 1, or 2 or 4 of Table 5."""
    tune: bool = False
    """The paper's tuning instead: a base rate by validation, then a multiplier of QK at that rate."""
    data: Path | None = None
    """Folder with hatexplain/ (and bert_base_uncased/ for the published protocols) or the files themselves; default
    $QKDYN_DATA, or data/."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draw_only and self.data is not None:
            raise InputError("--draw-only draws what is recorded and takes no --data; leave out one of the two")

    @property
    def folder(self) -> Path:
        """Where the results go: default results/hatexplain/<protocol>, or results/quick/hatexplain."""
        own = "hatexplain" if self.is_quick else self.protocol
        if self.tune:
            own = "tune" if own == "controlled" else f"{own}-tune"
        own += f"-{self.layers}layers" if self.layers != 1 else ""
        return (self.out or Path("results") / ("quick" if self.is_quick else "hatexplain") / own).absolute()


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


def train(protocol: Protocol, names: Sequence[str], options: Options, data: Callable[[], Any]) -> None:
    """Have a record of each of these arms; those of a group that are not there yet are trained together."""
    own = {place.name: place for place in places(options.folder, protocol)}
    with on_request() as request:
        for group in protocol.groups:
            known = {arm.name: arm for arm in group if arm.name in names}

            def begin(missing: Sequence[str], store: Any, update: Any, known: Any = known) -> dict[str, Record]:
                arms = [known[name] for name in missing]
                return train_group(protocol.recipe, arms, data(), store, request, update)

            if known:
                take_up_together([own[name] for name in known], options, begin)


def reader(protocol: Protocol, names: Sequence[str], options: Options) -> Callable[[], Any]:
    """Reads the posts when first asked: finished records need none.

    Raises (when asked):
        DataError: they are not found, or not as their schema says. ConflictError: records there are of other posts, and not
            among the arms of these names, to be forgotten with --fresh.
    """
    theirs = kept(places(options.folder, protocol), names, options)

    @functools.cache
    def read() -> Any:
        data = load(protocol.recipe, options.data, limit=protocol.limit)
        for place in theirs:
            record = place.read()
            if record is not None and record["data"]["sha256"] != dict(data.sha256):
                do = "take another --out, or --fresh to forget it"
                raise ConflictError(f"{place.path} is the record of other data; {do}")
        for note in (*data.notes, *_reduced(data)):
            print(f"note: {note}", file=sys.stderr)
        return data

    return read


def _reduced(data: Any) -> list[str]:
    """What encoding took away from the posts, a line for each split."""
    lines = []
    for split in ("train", "validation", "test"):
        own = getattr(data, split)
        said = [f"{own.cut:,} cut to the length of the model"] if own.cut else []
        said += [f"{own.empty:,} left without a token by the cleaning"] if own.empty else []
        lines += [f"{split}: of its posts " + ", ".join(said)] if said else []
    return lines


def finished(protocol: Protocol, folder: Path) -> list[Record]:
    """The records that are there, in the protocol's order."""
    return [record for place in places(folder, protocol) if (record := place.read()) is not None]


def draw(records: Sequence[Record], protocol: Protocol, name: str, folder: Path) -> list[Path]:
    """Tables, figures and verdict of all finished arms."""
    frames = tables.frames(records, protocol)
    if protocol.recipe.measured == "last_slot":
        frames["published"] = compared_frame(records, protocol.recipe.n_layers)
    said = verdict(records, protocol, name)
    retract(folder)
    files = [
        write_text(folder / f"{name}.csv", frame.to_csv(index=False, float_format="%.5g"))
        for name, frame in frames.items()
        if len(frame)
    ]
    groups = [(comparison.name, there) for comparison, there in tables.compared(records, protocol)]
    files.append(write_text(folder / "verdict.md", said))
    return [*files, *draw_text(groups, frames.get("effects"), folder)]


def draw_tuned(records: Sequence[Record], name: str, folder: Path) -> list[Path]:
    """Table, verdict and figure of the tuning."""
    frame, said = tuned_frame(records), tuning_verdict(records, name)
    retract(folder)
    return [
        write_text(folder / "tuned.csv", frame.to_csv(index=False, float_format="%.5g")),
        write_text(folder / "verdict.md", said),
        draw_tuning(base_of(records), candidates(records), folder / "tuned.png"),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment from the command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    prog, description = "python -m experiments.table1_hatexplain", (__doc__ or "").splitlines()[0]
    config, options = parse(PROTOCOLS, Options(), arguments, prog=prog, description=description)
    protocol, folder = deepened(config.trained, options.layers), options.folder
    if options.tune:
        if options.arms:
            reject("--arms", " ".join(options.arms), "left out beside --tune, which chooses its own")
        protocol = arms.tuning(protocol)
    names = chosen(protocol, options.arms)
    if not options.draw_only:
        Machine().join()
    with lock(opened(folder, options)):
        begun = time.monotonic()
        if not options.draw_only:
            data = reader(protocol, names, options)
            settle(places(folder, protocol), names, options, data)
            if options.tune:
                train(protocol, [arm.name for arm in protocol.groups[0]], options, data)
                names = chosen_group(finished(protocol, folder), protocol)
            train(protocol, names, options, data)
        records = finished(protocol, folder)
        if not records:
            raise OutputError(f"{folder} has no finished arm; run this command without --draw-only first")
        if options.draw_only:
            warn_of_replaced(places(folder, protocol))
        name = "quick" if options.is_quick else options.protocol
        files = draw_tuned(records, name, folder) if options.tune else draw(records, protocol, name, folder)
        used = [folder / "arms" / f"{record['arm']['name']}.json" for record in records]
        record = manifest(
            as_dict(protocol),
            wall_seconds=time.monotonic() - begun,
            argv=[*prog.split(), *arguments],
            files=[*files, *used],
            digest=digest(protocol),
        )
        files.append(write_manifest(record, folder))
    tables.show(records, protocol)
    print((folder / "verdict.md").read_text())
    print("\n".join(map(str, files)))
    return 0


if __name__ == "__main__":
    sys.exit(main_guard(main))

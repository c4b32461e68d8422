"""The theory laboratory: Section 6 and Appendices B-D on numbers, one page of statements with residuals and verdicts.

Command:  python -m experiments.theory [--parts NAME ...] [--quick] [--draw-only] [--help]
Time:     a few minutes on two cores; --quick under 45 s.
Expect:   every statement as expected: most hold, those that the paper prints wrongly do not; results/theory/theory.md.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.laboratory import identities, instabilities, lemma3, omega, random_start, scalars, theorem1
from experiments.laboratory.check import Check
from experiments.laboratory.page import page, show
from qkdyn.config import as_dict, digest, main_guard, parse
from qkdyn.errors import InputError, reject
from qkdyn.experiment import TableOptions, refuse_other_protocol
from qkdyn.figures.laboratory import draw_laboratory
from qkdyn.files import prepare_folder, write_text
from qkdyn.progress import track
from qkdyn.results import load_frame, manifest, retract, warn_unless_vouched, write_manifest
from qkdyn.results.frames import check_frame
from qkdyn.train.devices import Machine
from qkdyn.train.lock import lock

if TYPE_CHECKING:
    import pandas as pd

Part = Callable[[bool], tuple[list[Check], "dict[str, pd.DataFrame]"]]
PARTS: dict[str, Part] = {
    "identities": identities.run,
    "omega": omega.run,
    "theorem1": theorem1.run,
    "instabilities": instabilities.run,
    "scalars": scalars.run,
    "lemma3": lemma3.run,
    "random_start": random_start.run,
}


@dataclass(frozen=True)
class Config:
    """What is tried: which parts, at full size or quickly."""

    parts: tuple[str, ...] = tuple(PARTS)
    full: bool = True
    """--no-full takes smaller sizes, fewer ratios and scales."""

    def __post_init__(self) -> None:
        if not self.parts or len(set(self.parts)) < len(self.parts):
            raise InputError(f"parts must be distinct names, at least one, of {', '.join(PARTS)}; got {self.parts}")
        for name in self.parts:
            if name not in PARTS:
                reject("each of parts", name, "one of " + ", ".join(PARTS))


PROTOCOLS = {"reference": Config(), "quick": Config(full=False)}


def run(config: Config) -> "tuple[pd.DataFrame, dict[str, pd.DataFrame]]":
    """All checks as a table (a row each), and the tables that figures are drawn from, by name."""
    import pandas as pd

    checks: list[Check] = []
    seconds: list[float] = []
    tables: dict[str, pd.DataFrame] = {}
    with track("theory") as update:
        for place, name in enumerate(config.parts):
            update(place / len(config.parts), name)
            begun = time.monotonic()
            found, own = PARTS[name](not config.full)
            checks += found
            seconds += [time.monotonic() - begun] * len(found)
            tables |= own
    frame = pd.DataFrame(checks).assign(
        holds=[check.holds for check in checks], verdict=[check.verdict for check in checks]
    )
    frame.attrs["seconds"] = {check.part: spent for check, spent in zip(checks, seconds, strict=True)}
    return frame, tables


def read(folder: Path) -> "tuple[pd.DataFrame, dict[str, pd.DataFrame]]":
    """The tables of an earlier run, with a warning for each that its manifest does not vouch for.

    Raises:
        OutputError: there is no table of checks, or a table is damaged. InputError: the checks are not those of a run.
    """
    do = "run this command without --draw-only first, or name by --out the folder where that was done"
    frame = load_frame(folder / "checks.csv", do=do)
    source, words = str(folder / "checks.csv"), ("part", "statement", "setting")
    check_frame(frame, key=words, numbers=("value", "limit"), source=source, do=do)
    for name in (*words, "expected"):
        kind = bool if name == "expected" else str
        if name not in frame or not all(isinstance(value, kind) for value in frame[name].tolist()):
            raise InputError(f"{name} in {source} must hold {'True or False' if kind is bool else 'words'}; {do}")
    paths = sorted(folder.glob("*.csv"))
    for path in paths:
        warn_unless_vouched(path, required=True)
    return frame, {path.stem: load_frame(path, do=do) for path in paths if path.stem != "checks"}


def checks_of(frame: "pd.DataFrame") -> list[Check]:
    """The checks of a table that `run` made or that was read."""
    columns = frame.reindex(columns=list(Check._fields)).astype({"note": object}).fillna({"note": ""})
    return [Check(*values) for values in columns.itertuples(index=False)]


def draw(frame: "pd.DataFrame", tables: "dict[str, pd.DataFrame]", folder: Path) -> list[Path]:
    """The figures and the page, the same files whenever they are drawn from the tables in `folder`."""
    files = draw_laboratory(tables, folder)
    how = "Made by `python -m experiments.theory`; run.json has its arguments and the hardware."
    text = page(checks_of(frame), [path.name for path in files], how)
    return [*files, write_text(folder / "theory.md", text)]


def write(
    frame: "pd.DataFrame", tables: "dict[str, pd.DataFrame]", config: Config, folder: Path, wall: float, argv: list[str]
) -> list[Path]:
    """Write the tables, the figures, the page and, last, the manifest."""
    retract(folder)
    named = {"checks": frame} | tables
    files = [write_text(folder / f"{n}.csv", t.to_csv(index=False, float_format="%.10g")) for n, t in named.items()]
    # Drawn from what was written, so that redrawn files are the same.
    files += draw(load_frame(files[0]), {path.stem: load_frame(path) for path in files[1:]}, folder)
    record = manifest(as_dict(config), wall_seconds=wall, argv=argv, files=files, digest=digest(config))
    return [*files, write_manifest(record, folder)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the laboratory from the command line; 1 where a statement is not as expected."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    prog, description = "python -m experiments.theory", (__doc__ or "").splitlines()[0]
    config, options = parse(PROTOCOLS, TableOptions(), arguments, prog=prog, description=description)
    folder = options.folder("theory")
    if options.draw_only:
        frame, tables = read(folder)
        files, seconds = draw(frame, tables, prepare_folder(folder)), {}
    else:
        Machine().join()
        with lock(prepare_folder(folder)):
            refuse_other_protocol(PROTOCOLS, options, folder)
            begun = time.monotonic()
            frame, tables = run(config)
            files = write(frame, tables, config, folder, time.monotonic() - begun, [*prog.split(), *arguments])
        seconds = frame.attrs["seconds"]
    show(checks_of(frame), seconds)
    print("\n".join(map(str, files)))
    return int(any(check.holds != check.expected for check in checks_of(frame)))


if __name__ == "__main__":
    sys.exit(main_guard(main))

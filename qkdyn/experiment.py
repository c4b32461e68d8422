"""An experiment whose whole record is one table: run, write, draw, vouch for it, and draw again from the table alone."""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from qkdyn.config import as_dict, digest, parse
from qkdyn.errors import ConflictError, InputError
from qkdyn.files import prepare_folder, write_text
from qkdyn.results import load_frame, manifest, retract, warn_unless_vouched, write_manifest
from qkdyn.train.lock import lock

if TYPE_CHECKING:
    import pandas as pd

Config = TypeVar("Config")
TABLE = "summary.csv"


@dataclass(frozen=True)
class OneSizeOptions:
    """How it is run; no result depends on it. For experiments of which no protocol is quick."""

    protocol: str = "reference"
    """Which of the protocols; --help lists them."""
    out: Path | None = None
    """Folder for the results; default results/<name>, results/quick/<name> for the quick protocol, and a folder of its own in
    results/<name> for any other but the first."""
    draw_only: bool = False
    """Redraw figures and tables from the record in `out`; compute nothing."""

    def __post_init__(self) -> None:
        if self.out is not None and self.out == Path() and not self.out.name:
            raise InputError("out must name a folder, not the current one; leave it out for the default")

    def folder(self, name: str) -> Path:
        """Where the results of the experiment `name` go."""
        chosen = _chosen(self)
        own = "" if chosen in ("quick", "reference") else chosen
        return (self.out or Path("results") / ("quick" if chosen == "quick" else "") / name / own).absolute()


@dataclass(frozen=True)
class TableOptions(OneSizeOptions):
    """How it is run, where one of the protocols is quick; no result depends on it."""

    quick: bool = False
    """Short for --protocol quick."""


def _chosen(options: Any) -> str:
    """The name of the protocol, by either way of saying quick."""
    return "quick" if getattr(options, "quick", False) else options.protocol


def refuse_other_protocol(protocols: Mapping[str, Any], options: Any, folder: Path) -> None:
    """What another protocol left in a folder must not be overwritten without a word.

    Args:
        protocols: frozen configs by name.
        options: has the field `protocol`, and `quick` where there is a quick one.
        folder: of the results.

    Raises:
        ConflictError: run.json there has the settings of another protocol as it is.
    """
    try:
        theirs = json.loads((folder / "run.json").read_bytes())["config"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return
    name = _chosen(options)
    for other, config in protocols.items():
        if other != name and config != protocols[name] and theirs == as_dict(config):
            raise ConflictError(
                f"{folder} has the results of --protocol {other}, which --protocol {name} would overwrite; take another --out, "
                "or remove them"
            )


@dataclass(frozen=True)
class TableExperiment:
    """What makes an experiment.

    Attributes:
        name: of its module and of its folder under results/.
        doc: its first line is the help's description.
        protocols: frozen configs by name, the first the default.
        run: config -> the table.
        draw: (table, folder) -> files drawn, from the table alone.
        show: prints the table, or what matters of it.
        check: raises InputError unless a table read from disk is one of this experiment's.
    """

    name: str
    doc: str
    protocols: Mapping[str, Any]
    run: Callable[[Any], "pd.DataFrame"]
    draw: Callable[["pd.DataFrame", Path], list[Path]]
    show: Callable[["pd.DataFrame"], None]
    check: Callable[["pd.DataFrame", str], None]

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run from the command line; the exit status."""
        arguments = list(sys.argv[1:] if argv is None else argv)
        prog = f"python -m experiments.{self.name}"
        description = f"{self.doc.splitlines()[0]} Protocols: {', '.join(self.protocols)}."
        kind = TableOptions if "quick" in self.protocols else OneSizeOptions
        options = kind(protocol=next(iter(self.protocols)))
        config, options = parse(self.protocols, options, arguments, prog=prog, description=description)
        folder = options.folder(self.name)
        if options.draw_only:
            frame = self.read(folder / TABLE)
            with lock(prepare_folder(folder)):
                files = [folder / TABLE, *self.draw(frame, folder)]
        else:
            with lock(prepare_folder(folder)):
                refuse_other_protocol(self.protocols, options, folder)
                begun = time.monotonic()
                frame = self.run(config)
                files = self.write(frame, config, folder, time.monotonic() - begun, [*prog.split(), *arguments])
        self.show(frame)
        print("\n".join(map(str, files)))
        return 0

    def read(self, path: Path) -> "pd.DataFrame":
        """The table of an earlier run.

        Raises:
            OutputError: the file is missing, empty or not CSV. InputError: it is not a table of this experiment.
        """
        do = "run this command without --draw-only first, or name by --out the folder where that was done"
        frame = load_frame(path, do=do)
        self.check(frame, str(path))
        warn_unless_vouched(path)
        return frame

    def write(
        self, frame: "pd.DataFrame", config: Any, folder: Path, wall_seconds: float, argv: Sequence[str]
    ) -> list[Path]:
        """Write table, figures and, last, the manifest that vouches for them; the old one goes first."""
        retract(folder)
        table = write_text(folder / TABLE, frame.to_csv(index=False, float_format="%.12g"))
        # Drawn from what was written, so that a redrawn figure is the same file.
        files = [table, *self.draw(load_frame(table), folder)]
        record = manifest(as_dict(config), wall_seconds=wall_seconds, argv=argv, files=files, digest=digest(config))
        return [*files, write_manifest(record, folder)]

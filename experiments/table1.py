"""Tables 1 and 4 to 6 whole: every printed number beside the notebooks' and ours, under each protocol, from the records.

Command:  python -m experiments.table1 [--results FOLDER] [--draw-only] [--help]
Time:     a few seconds; nothing is trained. What table1_hatexplain, table1_sva and table1_squad left is read.
Expect:   one table for each data set (table1.md) and one figure: what a faster query-key circuit changes, as printed and
          under each protocol.
"""

import functools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.table1_sources import NOTEBOOKS, PAPER, DataSet, Protocol, data_sets
from experiments.text.printed import Printed
from qkdyn.config import main_guard
from qkdyn.errors import InputError, OutputError
from qkdyn.experiment import TableExperiment
from qkdyn.figures import canvas
from qkdyn.figures.published import check_published, draw_published, published_text
from qkdyn.files import write_text
from qkdyn.metrics.intervals import confidence_interval
from qkdyn.results.frames import load_frame

if TYPE_CHECKING:
    import pandas as pd

NONE = dict.fromkeys(("mean", "low", "high"), math.nan)
CHANGES = ("change_mean", "change_low", "change_high")
# As the paper names them. What is called test there is the validation split of HateXplain, and dev of SQuAD.
COLUMNS = ("train performance", "test performance", "AC", "ACMC", "MRTA", "sufficiency", "comprehensiveness")
SPLITS = ("train", "validation", "dev", "test")


@dataclass(frozen=True)
class Config:
    """What is read."""

    results: str = "results"
    """Folder with hatexplain/, sva/ and squad/ in it."""


class Results:
    """Tables below a folder, each read once."""

    def __init__(self, home: Path) -> None:
        self.home, self.read, self.counts = home, functools.cache(load_frame), functools.cache(self._counts)

    def first(self, folder: str, table: str, numbers: Sequence[str], **wanted: str) -> dict[str, Any]:
        """Numbers of the first row that has these values; empty where there is none, or no such table.

        Raises:
            InputError: the table lacks one of these columns.
        """
        path = self.home / folder / table
        if not path.is_file():
            return {}
        frame: Any = self.read(path)
        missing = [name for name in (*wanted, *numbers) if name not in frame]
        if missing:
            do = "draw it again by its command, with --draw-only"
            raise InputError(f"{path} lacks the columns {', '.join(missing)}; {do}")
        for name, value in wanted.items():
            frame = frame[frame[name] == value]
        return {} if frame.empty else dict(frame.iloc[0])

    def _counts(self, folder: str) -> str:
        """How many instances of each split the records there are of; empty where there is none."""
        for path in sorted((self.home / folder / "arms").glob("*.json")):
            try:
                known = json.loads(path.read_bytes())["data"]
                return ", ".join(f"{split} {known[split]:,}" for split in SPLITS if split in known)
            except (OSError, ValueError, LookupError, TypeError) as error:
                raise OutputError(f"cannot read {path} ({type(error).__name__}); run its command again") from error
        return ""


def run(config: Config) -> "pd.DataFrame":
    """One row for each data set, arm, column and source: the paper, the notebooks, and each protocol; blank where not run.

    Raises:
        OutputError: there are no results of any data set.
    """
    import pandas as pd

    home = Results(Path(config.results))
    frame = pd.DataFrame([row for data in data_sets() for row in _rows(data, home)])
    frame = frame.reindex(columns=frame.columns.union(CHANGES, sort=False))
    if not frame.loc[~frame["source"].isin((PAPER, NOTEBOOKS)), "mean"].notna().any():
        raise OutputError(
            f"{config.results} has no results of HateXplain, SVA or SQuAD; run make hatexplain, sva or squad first, or name by "
            "--results the folder that has them"
        )
    return frame


def _rows(data: DataSet, home: Results) -> Iterator[dict[str, Any]]:
    for arm in ("baseline", "faster"):
        tables = [line for line in data.printed if line.source.startswith("Table") and line.arm == arm]
        for name, line in zip(COLUMNS, tables, strict=True):
            head = {"data": data.name, "arm": arm, "column": name, "split": line.split, "instances": data.instances}
            for source, faster, own in zip((PAPER, NOTEBOOKS), data.faster, (line, _again(data, line)), strict=True):
                row = head | {"source": source, "quantity": line.quantity, "reading": line.reading, "faster": faster}
                row |= {"of": data.of, "note": "" if own is None else own.note}
                yield row | (NONE if own is None else _interval(own))
            for protocol in data.protocols:
                own = head | {"source": protocol.name, "faster": protocol.faster, "of": home.counts(protocol.folder)}
                yield own | _ours(data, protocol, line, home)


def _again(data: DataSet, line: Printed) -> Printed | None:
    """The same number as the notebooks have it."""
    return next((own for own in data.printed if own.source.startswith("notebook") and _same(own, line)), None)


def _same(own: Printed, line: Printed) -> bool:
    return all(getattr(own, name) == getattr(line, name) for name in ("arm", "split", "quantity", "reading"))


def _interval(line: Printed) -> dict[str, float]:
    """As printed, or of the printed runs."""
    mean, half = float(np.mean(line.values)), line.half
    low, high = mean - half, mean + half
    if len(line.values) > 1:
        mean, low, high = (float(part) for part in confidence_interval(np.array(line.values)))
    return {"mean": mean, "low": low, "high": high}


def _ours(data: DataSet, protocol: Protocol, line: Printed, home: Results) -> dict[str, Any]:
    """The same quantity of our runs, and how the faster arm changes it, by seed; blank where it was not run."""
    own = line.quantity
    if protocol.arms is None:
        where = {"source": line.source, "arm": line.arm, "split": line.split, "quantity": own}
        names = ("ours", "ours_low", "ours_high")
        found = home.first(protocol.folder, "published.csv", names, **where)
        arm, reading = found.get("our_arm", ""), line.reading
    else:
        own = dict(data.instead).get(own, own)
        baseline, faster = protocol.arms
        arm, reading, names = faster if line.arm == "faster" else baseline, "end", tuple(NONE)
        where = {"arm": arm, "reading": reading, "split": line.split, "quantity": own}
        found = home.first(protocol.folder, "summary.csv", names, **where)
    row = NONE | {"quantity": own, "reading": reading, "note": _differs(protocol, line, own, reading)}
    row |= {part: found[name] for part, name in zip(NONE, names, strict=True) if found}
    if found and line.arm == "faster":
        where = {"arm": arm, "reading": reading, "split": line.split}
        changed = home.first(protocol.folder, "summary.csv", CHANGES, **where, quantity=own)
        row |= {name: changed[name] for name in CHANGES if changed}
    return row


def _differs(protocol: Protocol, line: Printed, quantity: str, reading: str) -> str:
    """How ours is read otherwise than was printed."""
    said = [protocol.differs]
    said += ["after the last epoch, printed: of each run's best"] if reading != line.reading else []
    said += [f"{quantity} (mean of the heads), printed: {line.quantity}"] if quantity != line.quantity else []
    return "; ".join(filter(None, said))


def draw(frame: "pd.DataFrame", folder: Path) -> list[Path]:
    """The tables as text, and the figure."""
    return [
        write_text(folder / "table1.md", published_text(frame)),
        canvas.save(draw_published(frame), folder / "table1.png"),
    ]


def show(frame: "pd.DataFrame") -> None:
    """Print all tables."""
    print(published_text(frame))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment from the command line."""
    return TableExperiment("table1", __doc__ or "", {"reference": Config()}, run, draw, show, check_published).main(
        argv
    )


if __name__ == "__main__":
    sys.exit(main_guard(main))

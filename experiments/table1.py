"""Tables 1 and 4 to 6 whole: every printed number beside the notebooks' and ours, under each protocol, from the records.

Command:  python -m experiments.table1 [--results FOLDER] [--draw-only] [--help]
Time:     a few seconds; nothing is trained. What table1_hatexplain, table1_sva and table1_squad left is read.
Expect:   one table for each data set (table1.md) and one figure: what a faster query-key circuit changes, as printed and
          under each protocol.
"""

import functools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.squad import published as squad
from experiments.text import published as hatexplain
from experiments.text import sva_published as sva
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

PAPER, NOTEBOOKS = "paper", "notebooks"
NONE = dict.fromkeys(("mean", "low", "high"), math.nan)
CHANGES = ("change_mean", "change_low", "change_high")
# As the paper names them. What is called test there is the validation split of HateXplain, and dev of SQuAD.
COLUMNS = ("train performance", "test performance", "AC", "ACMC", "MRTA", "sufficiency", "comprehensiveness")


@dataclass(frozen=True)
class Protocol:
    """One protocol's records.

    Attributes:
        name: as the tables have it.
        folder: of its results, below that of all.
        arms: that stand beside the baseline and the faster arm, where these are none that were published.
    """

    name: str
    folder: str
    arms: tuple[str, str] | None = None


@dataclass(frozen=True)
class DataSet:
    """One row of Table 1 (or of Table 5).

    Attributes:
        name: of the data set and model.
        printed: all that was printed of it.
        protocols: under which it was run.
        instead: quantities of the controlled protocols in place of published ones that they do not measure.
    """

    name: str
    printed: tuple[Printed, ...]
    protocols: tuple[Protocol, ...]
    instead: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Config:
    """What is read."""

    results: str = "results"
    """Folder with hatexplain/, sva/ and squad/ in it."""


def data_sets() -> tuple[DataSet, ...]:
    """All of them, in the paper's order of tables."""

    def published(folder: str, *more: Protocol, deeper: str = "") -> tuple[Protocol, ...]:
        own = [Protocol(name, f"{folder}/{name.replace(' ', '_')}{deeper}") for name in ("as coded", "as written")]
        return (*own, *more)

    layers = tuple(
        DataSet(
            f"HateXplain, {n} layers",
            hatexplain.printed(n),
            (Protocol("as coded", f"hatexplain/as_coded-{n}layers"),),
        )
        for n in (2, 4)
    )
    controlled = Protocol("controlled", "hatexplain/controlled", ("baseline", "qk30"))
    sentences = (
        Protocol("as written, SGD", "sva/as_written_sgd"),
        Protocol("controlled", "sva/controlled", ("baseline", "qk100")),
        Protocol("controlled, all", "sva/controlled_all", ("baseline", "qk100")),
    )
    questions = (
        Protocol("controlled, 5e-4", "squad/controlled", ("base", "base-qk20")),
        Protocol("controlled, 5e-5", "squad/controlled", ("slow", "slow-qk20")),
    )
    return (
        DataSet("SQuAD (ours: laptop scale)", squad.printed(), published("squad", *questions)),
        DataSet(
            "Subject-verb agreement",
            sva.printed(),
            published("sva", *sentences),
            (("head_0_ac", "ac_all"), ("head_0_acmc", "acmc_all")),
        ),
        DataSet("HateXplain", hatexplain.printed(), published("hatexplain", controlled)),
        *layers,
    )


class Results:
    """Tables below a folder, each read once."""

    def __init__(self, home: Path) -> None:
        self.home, self.read = home, functools.cache(load_frame)

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


def run(config: Config) -> "pd.DataFrame":
    """One row for each data set, arm, column and source: the paper, the notebooks, and each protocol; blank where not run.

    Raises:
        OutputError: there are no results of any data set.
    """
    import pandas as pd

    home = Results(Path(config.results))
    frame = pd.DataFrame([row for data in data_sets() for row in _rows(data, home)])
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
            head = {"data": data.name, "arm": arm, "column": name, "split": line.split, "quantity": line.quantity}
            yield head | {"source": PAPER, "reading": line.reading} | _interval(line)
            again = next((own for own in data.printed if own.source.startswith("notebook") and _same(own, line)), None)
            yield head | {"source": NOTEBOOKS, "reading": line.reading} | (_interval(again) if again else NONE)
            for protocol in data.protocols:
                yield head | {"source": protocol.name} | _ours(data, protocol, line, home)


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
    own = dict(data.instead).get(line.quantity, line.quantity)
    if protocol.arms is None:
        where = {"source": line.source, "arm": line.arm, "split": line.split, "quantity": line.quantity}
        names = ("ours", "ours_low", "ours_high")
        found = home.first(protocol.folder, "published.csv", names, **where)
        arm, reading = found.get("our_arm", ""), line.reading
    else:
        baseline, faster = protocol.arms
        arm, reading, names = faster if line.arm == "faster" else baseline, "end", tuple(NONE)
        where = {"arm": arm, "reading": reading, "split": line.split, "quantity": own}
        found = home.first(protocol.folder, "summary.csv", names, **where)
    row = NONE | {"reading": reading} | {part: found[name] for part, name in zip(NONE, names, strict=True) if found}
    if found and line.arm == "faster":
        where = {"arm": arm, "reading": reading, "split": line.split}
        changed = home.first(protocol.folder, "summary.csv", CHANGES, **where, quantity=own)
        row |= {name: changed[name] for name in CHANGES if changed}
    return row


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

"""Table 1 on subject-verb agreement: does a faster query-key circuit attend to the subject, and does that help?

Command:  python -m experiments.table1_sva [--protocol NAME] [--data FOLDER] [--arms NAME ...] [--help]
Time:     12 to 17 minutes a protocol on two cores; --quick under 45 s. Finished arms are records and not trained again.
Expect:   as_coded: what was published, on other sentences; controlled: accuracy and attention by the number of nouns that
          stand between subject and verb and are of the other number.

`as_coded` has every confound of the published notebooks: the verb is seen, and the attention that is measured is not the one
that predicts. `as_written` and `as_written_sgd` change the rate of QK alone, by the two recipes of the text of the paper.
`controlled` predicts the number of a verb that is not seen, reads and measures at a query token, and learns from sentences as
they come; `controlled_all` learns from all of them, most with nouns of the other number between subject and verb, where
attending to such a noun and inverting it can pay. --tune runs the paper's tuning instead.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from experiments.text import command, sva_arms, sva_tables
from experiments.text.command import Config, Experiment, Frames, TextOptions
from experiments.text.readings import Record
from experiments.text.sva_published import TUNED
from experiments.text.sva_verdict import verdict
from experiments.text.task import SVA
from qkdyn.config import main_guard, parse
from qkdyn.figures.sva import draw_sva

PROTOCOLS = {
    "controlled": Config(sva_arms.controlled()),
    "controlled_all": Config(sva_arms.controlled_all()),
    "as_coded": Config(sva_arms.as_coded()),
    "as_written": Config(sva_arms.as_written()),
    "as_written_sgd": Config(sva_arms.as_written_sgd()),
    "quick": Config(sva_arms.quick()),
}


@dataclass(frozen=True)
class Options(TextOptions):
    """How it is run; no result depends on it but by what is asked for."""

    home: ClassVar[str] = SVA.name

    protocol: str = "controlled"
    """One of: controlled, controlled_all, as_coded, as_written, as_written_sgd, quick."""
    arms: tuple[str, ...] = ()
    """Only these arms, by the names of experiments/text/sva_arms.py; default all of the protocol."""
    data: Path | None = None
    """Folder with sva/ (and bert_base_uncased/ for the published protocols) or the files themselves; default $QKDYN_DATA,
    or data/."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment from the command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    prog, description = "python -m experiments.table1_sva", (__doc__ or "").splitlines()[0]
    config, options = parse(PROTOCOLS, Options(), arguments, prog=prog, description=description)
    experiment = Experiment(SVA, prog, read_off, draw_sva, TUNED, sva_tables.QUANTITIES, sva_tables.SHOWN)
    return command.run(experiment, config.trained, options, arguments)


def read_off(records: Sequence[Record], protocol: command.Protocol, name: str) -> tuple[Frames, str]:
    """All tables, and the verdict."""
    return sva_tables.frames(records, protocol), verdict(records, protocol, name)


if __name__ == "__main__":
    sys.exit(main_guard(main))

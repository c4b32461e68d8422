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

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from experiments.text import arms, command, tables
from experiments.text.arms import Protocol, deepened
from experiments.text.command import Config, Experiment, Frames, TextOptions
from experiments.text.published import TUNED, compared_frame
from experiments.text.readings import Record
from experiments.text.task import HATEXPLAIN
from experiments.text.verdict import verdict
from qkdyn.config import main_guard, parse
from qkdyn.figures.text import draw_text

PROTOCOLS = {
    "controlled": Config(arms.controlled()),
    "as_coded": Config(arms.as_coded()),
    "as_written": Config(arms.as_written()),
    "quick": Config(arms.quick()),
}


@dataclass(frozen=True)
class Options(TextOptions):
    """How it is run; no result depends on it but by what is asked for."""

    home: ClassVar[str] = HATEXPLAIN.name

    protocol: str = "controlled"
    """One of: controlled, as_coded, as_written, quick."""
    arms: tuple[str, ...] = ()
    """Only these arms, by the names of experiments/text/arms.py; default all of the protocol."""
    layers: int = 1
    """Layers of the published models: 1, or 2 or 4 of Table 5."""
    data: Path | None = None
    """Folder with hatexplain/ (and bert_base_uncased/ for the published protocols) or the files themselves; default
    $QKDYN_DATA, or data/."""

    @property
    def suffix(self) -> str:
        """Another number of layers than one."""
        return f"-{self.layers}layers" if self.layers != 1 else ""


def read_off(records: Sequence[Record], protocol: Protocol, name: str) -> tuple[Frames, str]:
    """All tables, and the verdict."""
    frames = tables.frames(records, protocol)
    if protocol.recipe.measured == "last_slot":
        frames["published"] = compared_frame(records, protocol.recipe.n_layers)
    return frames, verdict(records, protocol, name)


def drawn(groups: Sequence[tuple[str, Sequence[Record]]], frames: Frames, folder: Path) -> list[Path]:
    """All figures."""
    return draw_text(groups, frames.get("effects"), folder)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment from the command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    prog, description = "python -m experiments.table1_hatexplain", (__doc__ or "").splitlines()[0]
    config, options = parse(PROTOCOLS, Options(), arguments, prog=prog, description=description)
    experiment = Experiment(HATEXPLAIN, prog, read_off, drawn, TUNED)
    return command.run(experiment, deepened(config.trained, options.layers), options, arguments)


if __name__ == "__main__":
    sys.exit(main_guard(main))

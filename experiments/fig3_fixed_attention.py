"""Figure 3: how the output-value circuit learns under fixed attention, and what more attention would be worth to it.

Command:  python -m experiments.fig3_fixed_attention [--protocol NAME] [--independent] [--help]
Time:     about a quarter of an hour on two cores; --quick under 45 s. Finished arms are records and not trained again.
Expect:   the published curves; final losses within 1% (collapsed) and 5% (factorized) of those printed.

The published pair confounds factorization with biases: its collapsed layer has one, the source of its factorized one has
none, though the saved output needs one. `controlled`, the default, has all four, on the same sequences: those of a seed and
step do not depend on the arm or on alpha. `as_coded` has the published pair and the one its source would give; `as_written`
has no biases, of which the paper says nothing. Its "training loss" is the loss on fresh sequences here and in the notebook:
no sequence is ever used twice.

The incentive is (L(alpha) - L(alpha + 0.005)) / 0.005, both on the same sequences, or with --independent each on its own. At
alpha = 1, which cannot grow, it is (L(0.995) - L(1)) / 0.005; the notebook draws 0. There is no noise-free curve: the loss is
an expectation over the counts of twenty tokens through a softmax, for which we know no cheap exact sum.
"""

import dataclasses
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import tyro

from experiments.records import ArmOptions, Record, RecordPlace, opened, refuse_others, settle, warn_of_replaced
from experiments.synthetic import published
from experiments.synthetic.fixed_tables import compared_frame, curves_frame, show, summary_frame
from qkdyn.config import as_dict, digest, main_guard, parse
from qkdyn.errors import OutputError, check_count, check_positive, reject
from qkdyn.figures.fig3 import draw_fig3
from qkdyn.files import write_text
from qkdyn.progress import Update
from qkdyn.results import manifest, retract, write_manifest
from qkdyn.tasks.tokens import TokensTask
from qkdyn.train.devices import Machine
from qkdyn.train.fixed_attention import beside, fixed_runs, start_fixed
from qkdyn.train.fixed_campaign import finish_fixed
from qkdyn.train.interrupt import Request, on_request
from qkdyn.train.lock import lock
from qkdyn.train.store import Store

TASK = TokensTask(batch=128, equal=True, swapped=True)


@dataclass(frozen=True)
class Arm:
    """Runs that are trained together and leave one record: with factors or without, with biases or without."""

    factorized: bool
    bias: bool
    seeds: tuple[int, ...]
    alpha: tuple[float, ...]
    epochs: int
    batches: int
    eta: float
    offset: float
    evaluation: int
    independent: bool

    @property
    def name(self) -> str:
        """Of the record."""
        return f"{'factorized' if self.factorized else 'collapsed'}-{'bias' if self.bias else 'plain'}"


KINDS = {"collapsed-bias": (False, True), "collapsed-plain": (False, False)}
KINDS |= {"factorized-bias": (True, True), "factorized-plain": (True, False)}


@dataclass(frozen=True)
class Config:
    """What is trained."""

    trained: tyro.conf.Suppress[tuple[str, ...]] = tuple(KINDS)
    """The protocol's arms."""
    seeds: tuple[int, ...] = (1234, 1235, 1236, 1237, 1238)
    """Of start and batches."""
    alpha: tuple[float, ...] = published.ALPHA
    """Attention on the tokens of the class's own."""
    epochs: int = 500
    """How long."""
    batches: int = 250
    """Steps of an epoch, on 128 fresh sequences each."""
    eta: float = 0.01
    """Learning rate."""
    offset: float = 0.005
    """How much more attention the incentive asks about."""
    evaluation: int = 100
    """Batches of fresh sequences that each loss is the mean over."""
    independent: bool = False
    """Both losses of the incentive on sequences of their own, as in the notebook; otherwise on the same."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batches", "evaluation"):
            check_count(name, getattr(self, name))
        for name in ("eta", "offset"):
            check_positive(name, getattr(self, name))
        if self.offset > 0.1:
            reject("offset", self.offset, "at most 0.1", "the incentive is a derivative")
        for name, values in (("seeds", self.seeds), ("alpha", self.alpha)):
            if not values or len(set(values)) < len(values):
                reject(name, values, "distinct numbers, at least one")
        fixed_runs(self.seeds[:1] * len(self.alpha), self.alpha, eta=self.eta)
        fixed_runs(self.seeds, self.alpha[:1] * len(self.seeds))

    def arms(self) -> list[Arm]:
        """The protocol's arms."""
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)[1:]}
        return [Arm(*KINDS[name], **shared) for name in self.trained]


PROTOCOLS = {
    "controlled": Config(),
    "as_coded": Config(("collapsed-bias", "factorized-bias", "factorized-plain")),
    "as_written": Config(("collapsed-plain", "factorized-plain")),
    "quick": Config(seeds=(1234,), epochs=20, batches=50, eta=0.05, evaluation=10),
}


@dataclass(frozen=True)
class Options(ArmOptions):
    """How it is run; no result depends on it."""

    protocol: str = "controlled"
    """One of: controlled, as_coded, as_written, quick."""

    @property
    def folder(self) -> Path:
        """Where the results go, by default results/fig3, or results/quick/fig3: protocols share their arms."""
        return (self.out or Path("results") / ("quick/fig3" if self.is_quick else "fig3")).absolute()


def place(folder: Path, arm: Arm) -> RecordPlace:
    """Where the record of an arm is."""
    parts = {"curves": (len(arm.seeds) * len(arm.alpha), ("seed", "alpha", "loss", "incentive"))}
    return RecordPlace(folder, arm.name, as_dict(arm), digest(arm), parts)


def train_arm(
    arm: Arm, store: Store | None = None, request: Request | None = None, update: Update = lambda share, status: None
) -> Record:
    """The curves of all runs of `arm`: losses before training and after each epoch, and incentives at the same points.

    Raises:
        Interrupted: a signal was noted; the state is saved.
    """
    names = [(seed, alpha) for seed in arm.seeds for alpha in arm.alpha]

    def hear(losses: np.ndarray) -> None:
        done = losses.shape[1] - 1
        update(done / arm.epochs, f"epoch {done}, loss from {losses[:, -1, 0].min():.2g}")

    with jax.enable_x64(False):
        runs = fixed_runs(*zip(*names, strict=True), eta=arm.eta)
        states = start_fixed(runs, factorized=arm.factorized, bias=arm.bias)
        _, losses = finish_fixed(
            states,
            runs,
            TASK,
            digest(arm),
            epochs=arm.epochs,
            batches=arm.batches,
            fresh=arm.evaluation,
            offsets=(0.0, arm.offset),
            paired=not arm.independent,
            store=store,
            request=request,
            on_chunk=hear,
        )
    below = np.array([float(beside(alpha, arm.offset)) < alpha for _, alpha in names])
    incentive = np.where(below, -1.0, 1.0)[:, None] * (losses[..., 0] - losses[..., 1]) / arm.offset
    curves = [
        {"seed": seed, "alpha": alpha, "loss": _short(losses[i, :, 0], 6), "incentive": _short(incentive[i], 4)}
        for i, (seed, alpha) in enumerate(names)
    ]
    return {"curves": curves}


def _short(values: np.ndarray, digits: int) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]


def places(config: Config, folder: Path) -> list[RecordPlace]:
    """Where the records of the arms of all protocols are: what one of them left is drawn by the others too."""
    return [place(folder, arm) for arm in dataclasses.replace(config, trained=tuple(KINDS)).arms()]


def train(config: Config, options: Options) -> None:
    """Have a record of each arm; those that are not there yet are trained."""
    known = {arm.name: arm for arm in config.arms()}
    chosen = settle(places(config, options.folder), list(known), options)
    with on_request() as request:
        for own in chosen:
            arm = known[own.name]
            own.take_up(options, lambda store, update: train_arm(arm, store, request, update))  # noqa: B023


def comparable(records: Sequence[Record]) -> list[tuple[str, str, float, int, float]]:
    """The published values up to the records' last epoch; none where the arms were not trained as those were."""
    arm, theirs = records[0]["arm"], Config()
    same = all(arm[name] == getattr(theirs, name) for name in ("batches", "eta", "offset"))
    return published.points(arm["epochs"]) if same else []


def draw(records: Sequence[Record], folder: Path) -> list[Path]:
    """Tables and figure of finished arms."""
    known = comparable(records)
    frames = {"summary": summary_frame(records, known), "curves": curves_frame(records)}
    if known:
        frames["published"] = compared_frame(records, known)
    files = [
        write_text(folder / f"{name}.csv", frame.to_csv(index=False, float_format="%.6g"))
        for name, frame in frames.items()
    ]
    return [*files, draw_fig3(records, known, folder / "fig3.png")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment from the command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    prog, description = "python -m experiments.fig3_fixed_attention", (__doc__ or "").splitlines()[0]
    config, options = parse(PROTOCOLS, Options(), arguments, prog=prog, description=description)
    folder = options.folder
    if not options.draw_only:
        Machine().join()
    with lock(opened(folder, options)):
        begun = time.monotonic()
        every = places(config, folder)
        refuse_others(every, options)
        if not options.draw_only:
            train(config, options)
        found = {own.name: (own.path, record) for own in every if (record := own.read()) is not None}
        records = [record for _, record in found.values()]
        if not records:
            raise OutputError(f"{folder} has no finished arm; run this command without --draw-only first")
        if options.draw_only:
            warn_of_replaced(every)
        config = dataclasses.replace(config, trained=tuple(k for k in KINDS if k in found or k in config.trained))
        retract(folder)
        files = [*draw(records, folder), *(path for path, _ in found.values())]
        record = manifest(
            as_dict(config),
            wall_seconds=time.monotonic() - begun,
            argv=[*prog.split(), *arguments],
            files=files,
            digest=digest(config),
        )
        files.append(write_manifest(record, folder))
    show(records, comparable(records))
    print("\n".join(map(str, files)))
    return 0


if __name__ == "__main__":
    sys.exit(main_guard(main))

"""What Table 1 is made of: its data sets, all that was printed of them, and the protocols under which they were run."""

from dataclasses import dataclass

from experiments.squad import published as squad
from experiments.text import published as hatexplain
from experiments.text import sva_published as sva
from experiments.text.printed import Printed
from qkdyn.text.sva import PUBLISHED_ROWS, PUBLISHED_TRAIN

PAPER, NOTEBOOKS = "paper", "notebooks"


@dataclass(frozen=True)
class Protocol:
    """One protocol's records.

    Attributes:
        name: as the tables have it.
        folder: of its results, below that of all.
        faster: what its faster arm has beside the baseline.
        arms: that stand beside the baseline and the faster arm, where these are none that were published.
        differs: how it reads otherwise than was printed, in all columns.
    """

    name: str
    folder: str
    faster: str
    arms: tuple[str, str] | None = None
    differs: str = ""


@dataclass(frozen=True)
class DataSet:
    """One row of Table 1 (or of Table 5).

    Attributes:
        name: of the data set and model.
        instances: what is counted.
        printed: all that was printed of it.
        of: how many instances the printed numbers are of.
        faster: what the faster arm has by the paper, and by the notebooks.
        protocols: under which it was run.
        instead: quantities of the controlled protocols in place of published ones that they do not measure.
    """

    name: str
    instances: str
    printed: tuple[Printed, ...]
    of: str
    faster: tuple[str, str]
    protocols: tuple[Protocol, ...]
    instead: tuple[tuple[str, str], ...] = ()


def data_sets() -> tuple[DataSet, ...]:
    """All of them, in the paper's order of tables."""
    return (_squad(), _sva(), _hatexplain(), *(_deeper(n) for n in (2, 4)))


def _squad() -> DataSet:
    coded = "rates x0.1, QK x20 on that, epochs x10/7"
    at = "windows of the context that are not centred on the answer"
    return DataSet(
        "SQuAD (ours: laptop scale)",
        "all questions",
        squad.printed(),
        "train 60,000 of v2.0",
        ("QK x20", coded),
        (
            Protocol("as coded", "squad/as_coded", coded),
            Protocol("as written", "squad/as_written", "QK x20"),
            Protocol("controlled, 5e-4", "squad/controlled", "QK x20", ("base", "base-qk20"), at),
            Protocol("controlled, 5e-5", "squad/controlled", "QK x20", ("slow", "slow-qk20"), at),
        ),
    )


def _sva() -> DataSet:
    coded = "QK and embeddings x100"
    at = "sentences up to their verb, which is not seen, attention of a query token and not of the last slot"
    pair = ("baseline", "qk100")
    return DataSet(
        "Subject-verb agreement",
        "all sentences",
        sva.printed(),
        f"train {PUBLISHED_TRAIN:,}, test {PUBLISHED_ROWS - PUBLISHED_TRAIN:,}",
        ("QK x100", coded),
        (
            Protocol("as coded", "sva/as_coded", coded),
            Protocol("as written", "sva/as_written", "QK x100"),
            Protocol("as written, SGD", "sva/as_written_sgd", "QK x100"),
            Protocol("controlled", "sva/controlled", "QK x100", pair, at),
            Protocol("controlled, all", "sva/controlled_all", "QK x100", pair, at),
        ),
        (("head_0_ac", "ac_all"), ("head_0_acmc", "acmc_all")),
    )


def _hatexplain() -> DataSet:
    coded = "QK and embeddings x30, MLP frozen, decay x10"
    at = "attention of a query token with the padding masked, not of the last slot"
    return DataSet(
        "HateXplain",
        "all posts",
        hatexplain.printed(),
        "train 15,383, validation 1,922, test 1,924",
        ("QK x30", coded),
        (
            Protocol("as coded", "hatexplain/as_coded", coded),
            Protocol("as written", "hatexplain/as_written", "QK x30"),
            Protocol("controlled", "hatexplain/controlled", "QK x30", ("baseline", "qk30"), at),
        ),
    )


def _deeper(layers: int) -> DataSet:
    """The models of Table 5; of two layers no training was published, and its arms are those of one."""
    coded = "QK and embeddings x30, " + ("MLP frozen, " if layers == 2 else "") + "decay x10"
    return DataSet(
        f"HateXplain, {layers} layers",
        "all posts",
        hatexplain.printed(layers),
        "train 15,383, validation 1,922, test 1,924",
        ("QK x30", "not published" if layers == 2 else coded),
        (Protocol("as coded", f"hatexplain/as_coded-{layers}layers", coded),),
    )

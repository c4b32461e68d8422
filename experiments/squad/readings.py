"""What is read off the records of runs: joined by arm, and the quantities, kept apart by what they are evidence of.

The reading of single numbers is that of `experiments.text.readings`: a record of an arm holds a run for each seed.
"""

from collections.abc import Sequence
from typing import Any

from experiments.squad.arms import Protocol
from experiments.text.readings import FAITHFUL, PREDICTION, RELEVANT, SHARPER, Quantity, Record

# After the last epoch; after the epoch of best F1 on the selection split, as published; where the training loss passes a
# level that both arms of a pair reach (on the selection split, which is read after each epoch).
READINGS = ("end", "best", "matched")
SPLITS = {"end": ("train", "selection", "dev"), "best": ("train", "selection", "dev"), "matched": ("selection",)}

QUANTITIES = (
    Quantity("f1", PREDICTION, "F1, best of the references", short="F1"),
    Quantity("em", PREDICTION, "exact match, any reference", short="EM"),
    Quantity("f1_first", PREDICTION, "F1, first reference, as published"),
    Quantity("em_first", PREDICTION, "exact match, first reference, as published"),
    Quantity("loss", PREDICTION, "loss, nats per answer token", short="loss"),
    Quantity("probability", PREDICTION, "mean probability of the answer's tokens"),
    Quantity("probability_unspaced", PREDICTION, "the same, answer without its space, as published"),
    Quantity("entropy", SHARPER, "entropy of the rollout, nats", "uniform_entropy", short="entropy"),
    Quantity("head_entropy", SHARPER, "entropy of a head, mean, nats", "uniform_head_entropy", short="head entropy"),
    Quantity("mass", RELEVANT, "MRTA: rollout mass on the answer", "uniform_mass", short="MRTA"),
    Quantity("mass_layers", RELEVANT, "attention on the answer, mean of the layers", "uniform_mass_layers"),
    Quantity(
        "head_mass", RELEVANT, "attention on the answer, mean of the heads", "uniform_head_mass", short="head mass"
    ),
    Quantity("ac", RELEVANT, "AC, %", "uniform_ac", short="AC"),
    Quantity("acmc", RELEVANT, "ACMC, %", "uniform_acmc"),
    Quantity("acmc_unspaced", RELEVANT, "ACMC, answer without its space, %", "uniform_acmc_unspaced"),
    Quantity("ac_area", RELEVANT, "area under AC, %", "uniform_ac_area"),
    Quantity("comprehensiveness", FAITHFUL, "comprehensiveness", short="compreh."),
    Quantity("sufficiency", FAITHFUL, "sufficiency", short="suff."),
    Quantity("steps", PREDICTION, "tokens written"),
)
NAMED = {quantity.name: quantity for quantity in QUANTITIES}
MAIN = tuple(quantity for quantity in QUANTITIES if quantity.main)
# What stands for a run that is not there.
_NONE: dict[str, Any] = {"diverged_at": None, "epochs": {"training_loss": []}, "end": {}, "best": {}}


def by_arm(records: Sequence[Record], protocol: Protocol) -> list[dict[str, Any]]:
    """The records of runs as one for each arm, in the protocol's order, with a run for each seed that any arm has.

    Runs that are not there hold nothing; arms of which none is there are left out.
    """
    seeds = [seed for seed in protocol.seeds if any(record["arm"]["seed"] == seed for record in records)]
    known = {(record["arm"]["name"], record["arm"]["seed"]): record for record in records}
    found = []
    for arm in protocol.arms:
        own = [known.get((arm.name, seed)) for seed in seeds]
        there = [record for record in own if record is not None]
        if there:
            runs = [_NONE | {"seed": s} if r is None else r["runs"][0] for s, r in zip(seeds, own, strict=True)]
            settings = {name: value for name, value in there[0]["arm"].items() if name != "seed"}
            found.append({**there[0], "arm": settings, "runs": runs, "of_runs": there})
    return found


def seeds_of(arms: Sequence[Record]) -> int:
    """How many seeds the joined records have."""
    return len(arms[0]["runs"]) if arms else 0


def whole(records: Sequence[Record]) -> list[Record]:
    """The arms none of whose runs diverged: parameters of one that did are those of an earlier time."""
    return [record for record in records if all(run["diverged_at"] is None for run in record["runs"])]

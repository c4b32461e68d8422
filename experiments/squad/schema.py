"""What a record of a run on questions must hold: one that was edited or damaged is refused before anything is drawn from it."""

import itertools
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from experiments.squad.data import SPLITS
from experiments.squad.recipe import Run
from experiments.squad.train import EPOCH

# Measured on every split.
MEASURES = (*EPOCH, "probability_unspaced", "acmc_unspaced", "steps")
FAITHFUL = ("comprehensiveness", "sufficiency")
MAPS = ("dtap", "dtap_unspaced")


def check_record(record: Mapping[str, Any], run: Run) -> None:
    """Raise ValueError that names the first place where a record is not as `experiments.squad.train` writes it."""
    epochs = run.arm.epochs
    data = _dict(record.get("data"), "data", (*SPLITS, "vocabulary", "sha256"))
    for name in (*SPLITS, "vocabulary"):
        _want(_count(data[name], 1), f"data.{name}", "an integer >= 1")
    sums = _dict(data["sha256"], "data.sha256", ())
    _want(bool(sums) and all(isinstance(v, str) and len(v) == 64 for v in sums.values()), "data.sha256", "checksums")
    notes = record.get("notes")
    _want(isinstance(notes, list) and all(isinstance(n, str) for n in notes), "notes", "a list of strings")
    rising = [_numbers(record.get(name), name) for name in ("thresholds", "edges")]
    for name, own in zip(("thresholds", "edges"), rising, strict=True):
        _want(len(own) > 1 and all(a < b for a, b in itertools.pairwise(own)), name, "a rising list of numbers")
    for name in ("updates", "tokens", "training", "reading"):
        _want(_real(_dict(record.get("cost"), "cost", (name,))[name]), f"cost.{name}", "a number")
    for name in ("training_seconds", "tokens_per_second"):
        _want(record.get(name) is None or _real(record[name]), name, "a number or null")
    for name, own in _dict(record.get("baselines"), "baselines", ()).items():
        for key, value in _dict(own, f"baselines.{name}", ()).items():
            _want(value is None or _real(value), f"baselines.{name}.{key}", "a number or null")
    (own,) = record["runs"]
    _want(own["seed"] == run.seed, "seed", f"{run.seed}")
    bad = own["diverged_at"]
    _want(bad is None or (_count(bad, 1) and bad <= epochs), "diverged_at", f"null, or an epoch from 1 to {epochs}")
    columns = _dict(own["epochs"], "epochs", ("training_loss", "selection"))
    _numbers(columns["training_loss"], "epochs.training_loss", epochs, known=False)
    for name, column in _dict(columns["selection"], "epochs.selection", EPOCH).items():
        _numbers(column, f"epochs.selection.{name}", epochs, known=False)
    best = _dict(own["best"], "best", ("epoch", *SPLITS))["epoch"]
    _want(_count(best, 0) and best <= epochs, "best.epoch", f"an integer from 0 to {epochs}")
    lengths = len(rising[0]), len(rising[1]) - 1
    for reading in ("end", "best"):
        for split in SPLITS:
            measures = _dict(own[reading], reading, SPLITS)[split]
            # Nothing was measured of a run that had diverged.
            if measures or bad is None:
                _check_measures(measures, f"{reading}.{split}", split == "dev", lengths)


def _check_measures(measures: Any, at: str, faithful: bool, lengths: tuple[int, int]) -> None:
    """Numbers, heat maps, curves, and the numbers of heads."""
    thresholds, bins = lengths
    names = (*MEASURES, *MAPS, "ac_curve", "heads", *(FAITHFUL if faithful else ()))
    for name, value in _dict(measures, at, names).items():
        place = f"{at}.{name}"
        if name in MAPS:
            _want(isinstance(value, list) and len(value) == bins, place, f"a table of {bins} x {bins}")
            for row in value:
                _numbers(row, place, bins, known=False)
        elif "_curve" in name:
            _numbers(value, place, thresholds, known=False)
        elif name == "heads":
            _want(isinstance(value, list) and bool(value), place, "a list of at least one head")
            for head in value:
                _numbers(list(_dict(head, place, ("mass", "entropy")).values()), place, known=False)
        else:
            _want(value is None or _real(value), place, "a number or null")


def _want(holds: bool, at: str, allowed: str) -> None:
    if not holds:
        raise ValueError(f"its {at} must be {allowed}")


def _dict(value: Any, at: str, names: Iterable[str]) -> dict[str, Any]:
    _want(isinstance(value, dict), at, "an object")
    missing = [name for name in names if name not in value]
    _want(not missing, at, f"an object with {', '.join(missing)}")
    return value


def _numbers(values: Any, at: str, count: int | None = None, *, known: bool = True) -> list[Any]:
    """These `count` numbers; where not all need be `known`, null is one."""
    many, nulls = "" if count is None else f"{count} ", "" if known else " or nulls"
    good = isinstance(values, list) and count in (None, len(values))
    good = good and all(_real(value) or (value is None and not known) for value in values)
    _want(good, at, f"a list of {many}numbers{nulls}")
    return values


def _real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least

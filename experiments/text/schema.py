"""What a record of an arm on text must hold: one that was edited or damaged is refused before anything is drawn from it."""

import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from experiments.text.recipe import Recipe, TextArm
from experiments.text.sva_recipe import SvaRecipe
from qkdyn.readings.agreement import MOST, PLACES, WHICH

SPLITS = ("validation", "test")
# Measured on every split, after every epoch and after the last and the best.
MEASURES = ("accuracy", "macro_f1", "loss", "entropy", "top_mass", "mrta_all", "mrta", "auprc", "ac", "acmc")
MAPS = ("dtap_all", "dtap")
FIRST_HEAD = "dtap_first_head"
# Of sentences, in each cell: a number of attractors, and a label or both.
CELLS = tuple((attractors, label) for attractors in range(MOST + 1) for label in WHICH)
IN_CELL = ("n", "n_known", "accuracy", *PLACES, "elsewhere")
RULES = ("majority", "subject", "inverse")
BASELINES = ("n", "n_known", *RULES, *(f"uniform_{name}" for name in (*PLACES, "elsewhere")))
# Over the record's thresholds; those of other quantities over its shares.
CURVES = ("ac_curve", "acmc_curve", "uniform_ac_curve", "uniform_acmc_curve")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def check_record(record: Mapping[str, Any], arm: TextArm, recipe: Recipe) -> None:
    """Raise ValueError that names the first place where the record of an arm is not as `experiments.text.train` writes it."""
    _check_data(record.get("data"))
    rate = record.get("tokens_per_second")
    _want(rate is None or (_real(rate) and rate > 0), "tokens_per_second", "a number above 0, or null")
    sentences = isinstance(recipe, SvaRecipe)
    if sentences:
        _dict(record.get("baselines"), "baselines", SPLITS)
        for split in SPLITS:
            _check_cells(record["baselines"][split], f"baselines.{split}", BASELINES)
    _want(_list(record.get("notes")) and all(isinstance(n, str) for n in record["notes"]), "notes", "a list of strings")
    for name in ("thresholds", "shares"):
        _numbers(record.get(name), name)
        rising = len(record[name]) > 1 and all(a < b for a, b in zip(record[name], record[name][1:], strict=False))
        _want(rising and record[name][0] >= 0 and record[name][-1] <= 1, name, "a rising list of numbers from 0 to 1")
    lengths = {"thresholds": len(record["thresholds"]), "shares": len(record["shares"])}
    runs = record.get("runs")
    _want(_list(runs, len(recipe.seeds)), "runs", f"a list of {len(recipe.seeds)}, one for each seed")
    for number, (run, seed) in enumerate(zip(record["runs"], recipe.seeds, strict=True)):
        at = f"runs[{number}]"
        _dict(run, at, ("seed", "diverged_at", "epochs", "end", "best"))
        _want(_count(run["seed"]) and run["seed"] == seed, f"{at}.seed", f"{seed}")
        bad = run["diverged_at"]
        _want(bad is None or _epoch(bad, arm), f"{at}.diverged_at", f"null, or an epoch from 1 to {arm.epochs}")
        _check_epochs(run["epochs"], f"{at}.epochs", arm.epochs)
        _dict(run["end"], f"{at}.end", ("train", *SPLITS))
        _dict(run["best"], f"{at}.best", ("epoch", *SPLITS))
        _want(_epoch(run["best"]["epoch"], arm), f"{at}.best.epoch", f"an epoch from 1 to {arm.epochs}")
        for reading, splits in (("end", ("train", *SPLITS)), ("best", SPLITS)):
            for split in splits:
                _check_measures(run[reading][split], f"{at}.{reading}.{split}", lengths)
                if sentences and split in SPLITS:
                    _check_sentences(run[reading][split], f"{at}.{reading}.{split}", recipe)


def _check_data(data: Any) -> None:
    _dict(data, "data", ("train", *SPLITS, "vocabulary", "cut", "sha256"))
    for name in ("train", *SPLITS, "vocabulary"):
        _want(_count(data[name]) and data[name] >= 1, f"data.{name}", "an integer >= 1")
    for name in ("cut", "empty"):
        counts = data.get(name, dict.fromkeys(("train", *SPLITS), 0))
        _dict(counts, f"data.{name}", ("train", *SPLITS))
        _want(all(_count(count) and count >= 0 for count in counts.values()), f"data.{name}", "integers >= 0")
    _dict(data["sha256"], "data.sha256", ())
    known = [isinstance(value, str) and bool(_SHA256.fullmatch(value)) for value in data["sha256"].values()]
    _want(bool(known) and all(known), "data.sha256", "the SHA-256 of each file")


def _check_epochs(epochs: Any, at: str, count: int) -> None:
    """Columns of `count` numbers."""
    _dict(epochs, at, ("training_loss", *SPLITS))
    _numbers(epochs["training_loss"], f"{at}.training_loss", count, known=False)
    for split in SPLITS:
        _dict(epochs[split], f"{at}.{split}", MEASURES)
        for name, column in epochs[split].items():
            _numbers(column, f"{at}.{split}.{name}", count, known=False)


def _check_measures(measures: Any, at: str, lengths: Mapping[str, int]) -> None:
    """Numbers, heat maps, curves, and the numbers of heads."""
    _dict(measures, at, (*MEASURES, *MAPS, "ac_curve", "acmc_curve", "heads"))
    for name, value in measures.items():
        place = f"{at}.{name}"
        if name in (*MAPS, FIRST_HEAD):
            _want(_list(value, 3), place, "a table of 3 x 3")
            for row in value:
                _numbers(row, place, 3, known=False)
        elif name.endswith("_curve"):
            _numbers(value, place, lengths["thresholds" if name in CURVES else "shares"], known=False)
        elif name == "agreement":
            _check_cells(value, place, IN_CELL)
        elif name == "heads":
            _want(_list(value) and bool(value), place, "a list of at least one head")
            for head in value:
                _dict(head, place, ("mrta", "entropy", "auprc"))
                for own, number in head.items():
                    if own == "bins":
                        _numbers(number, f"{place}.bins", 3, known=False)
                    else:
                        _want(number is None or _real(number), f"{place}.{own}", "a number or null")
        else:
            _want(value is None or _real(value), place, "a number or null")


def _check_sentences(measures: Mapping[str, Any], at: str, recipe: Recipe) -> None:
    """What is measured of sentences beside what is of posts."""
    own = () if recipe.ac_probability is None else (FIRST_HEAD, "uniform_ac")
    _dict(measures, at, ("agreement", "accuracy_natural", "accuracy_chosen", *own))
    for number, cell in enumerate(measures["agreement"]):
        place = f"{at}.agreement[{number}].heads"
        _want(_list(cell.get("heads"), len(measures["heads"])), place, "a list with an entry for each head")
        for head in cell["heads"]:
            _dict(head, place, PLACES)
            _numbers([head[name] for name in PLACES], place, known=False)


def _check_cells(cells: Any, at: str, names: Iterable[str]) -> None:
    """A line for each number of attractors, with either label and with both."""
    _want(_list(cells, len(CELLS)), at, f"a list of {len(CELLS)} objects")
    for number, (cell, (attractors, label)) in enumerate(zip(cells, CELLS, strict=True)):
        place = f"{at}[{number}]"
        _dict(cell, place, ("attractors", "label", *names))
        known = (cell["attractors"], cell["label"]) == (attractors, label)
        _want(known, place, f"of attractors {attractors} and label {label}")
        _want(
            all(_count(cell[name]) and cell[name] >= 0 for name in names if name.startswith("n")), place, "counts >= 0"
        )
        _numbers([cell[name] for name in names], place, known=False)


def _want(holds: bool, at: str, allowed: str) -> None:
    if not holds:
        raise ValueError(f"its {at} must be {allowed}")


def _dict(value: Any, at: str, names: Iterable[str]) -> None:
    _want(isinstance(value, dict), at, "an object")
    missing = [name for name in names if name not in value]
    _want(not missing, at, f"an object with {', '.join(missing)}")


def _list(value: Any, count: int | None = None) -> bool:
    return isinstance(value, list) and count in (None, len(value))


def _numbers(values: Any, at: str, count: int | None = None, *, known: bool = True) -> None:
    """Raise ValueError unless these are `count` numbers; where not all need be `known`, null is one."""
    many = "" if count is None else f"{count} "
    _want(_list(values, count), at, f"a list of {many}numbers")
    good = all(_real(value) or (value is None and not known) for value in values)
    _want(good, at, f"a list of {many}numbers" + ("" if known else " or nulls"))


def _real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _epoch(value: Any, arm: TextArm) -> bool:
    return _count(value) and 1 <= value <= arm.epochs

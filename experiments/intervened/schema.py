"""What a record of an arm must hold: one that was edited or damaged is refused before anything is drawn from it."""

import math
from collections.abc import Mapping
from typing import Any

from experiments.intervened.arms import Arm

STATUS = ("stopped", "budget", "diverged")


def check_record(record: Mapping[str, Any], arm: Arm) -> None:
    """Raise ValueError that names the first place where the record of an arm is not as its setting writes it."""
    seeds = [run.get("seed") for run in record["runs"]]
    _want(seeds == list(arm.seeds), "the seeds of runs", f"{list(arm.seeds)}")
    for run in record["runs"]:
        at = f"seed {run['seed']}"
        _want(run["status"] in STATUS, f"{at}: status", "one of " + ", ".join(STATUS))
        diverged = run["diverged_at"]
        _want(diverged is None or _count(diverged), f"{at}: diverged_at", "null, or an update")
        _want((diverged is not None) == (run["status"] == "diverged"), f"{at}: diverged_at", "that of a diverged run")
        _want(diverged is None or diverged <= arm.max_steps, f"{at}: diverged_at", f"at most {arm.max_steps} updates")
        _want(isinstance(run["end"], dict), f"{at}: end", "measures by name")
        _check_measures(run["end"], arm, f"{at}: end")
        _check_lines(run["matched"], arm, f"{at}: matched")
        reached = any(line["level"] == arm.levels[-1] for line in run["matched"])
        _want(
            reached or run["status"] != "stopped",
            f"{at}: status",
            "another than stopped where the last level is not reached",
        )
    _check_lines(record["predicted"], arm, "predicted")


def _check_lines(lines: Any, arm: Arm, at: str) -> None:
    """Lines at some of the arm's levels, none twice, each with an update and attention that are numbers."""
    _want(isinstance(lines, list) and all(isinstance(line, dict) for line in lines), at, "a list of lines")
    levels = [line.get("level") for line in lines]
    _want(len(set(levels)) == len(levels) and set(levels) <= set(arm.levels), f"{at}: levels", f"of {list(arm.levels)}")
    for line in lines:
        for name, value in line.items():
            _want(_real(value) or (value is None and name not in ("step", "attention")), f"{at}: {name}", "a number")
        for name in ("step", "attention"):
            _want(_real(line.get(name)), f"{at}: {name}", "a number")
        _check_measures(line, arm, at)
    steps = [line["step"] for line in sorted(lines, key=lambda line: -line["level"])]
    _want(steps == sorted(steps), f"{at}: step", "no earlier at a lower level")


def _check_measures(measures: Mapping[str, Any], arm: Arm, at: str) -> None:
    """Shares are from 0 to 1, updates from 0 to the last; what is not there or no number is not looked at."""
    for name, most in (("attention", 1.0), ("accuracy", 1.0), ("step", float(arm.max_steps))):
        value: Any = measures.get(name)
        # Attention is a sum in single precision.
        _want(not _real(value) or -1e-5 <= value <= most * (1 + 1e-5), f"{at}: {name}", f"from 0 to {most:g}")


def _want(right: bool, what: str, wanted: str) -> None:
    if not right:
        raise ValueError(f"its {what} must be {wanted}")


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

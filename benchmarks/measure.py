"""How it is measured: alternatives interleaved, medians with their spread, ratios to a named baseline, whole processes."""

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from qkdyn.errors import InputError, OutputError, check_count
from qkdyn.progress import Update

NAN = float("nan")
# How far PyTorch may be from the engine.
TOLERANCE = 1e-4


class Row(NamedTuple):
    """One line of bench.csv.

    Attributes: part and name say what was measured, once each; value is the median, in `unit`; ratio is that to the row
    `baseline` (blank where there is none), median, lowest and highest over the repeats, each repeat against its own
    baseline; spread is (largest - smallest) / median of the values.
    """

    part: str
    name: str
    value: float
    unit: str
    baseline: str = ""
    ratio: float = NAN
    ratio_low: float = NAN
    ratio_high: float = NAN
    spread: float = NAN
    repeats: int = 1


@dataclass(frozen=True)
class Bench:
    """What a part is told.

    Attributes:
        quick: a smoke run: everything is done, nothing long enough to mean much.
        scratch: an empty folder of the part's own.
        cache: XDG_CACHE_HOME of the processes that find their programs compiled.
        update: hears the share done and what is being measured.
    """

    quick: bool
    scratch: Path
    cache: Path
    update: Update

    def phase(self, low: float, high: float) -> Update:
        """Progress of a phase that takes the part from share `low` to `high`."""
        return lambda share, status: self.update(low + (high - low) * share, status)


class Finished(NamedTuple):
    """A process that has ended well: wall seconds, and the most memory it had resident (bytes; nan where unknown)."""

    seconds: float
    peak: float


def seconds_of(action: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """How long `action` takes."""
    begun = clock()
    action()
    return clock() - begun


def interleaved(
    actions: Mapping[str, Callable[[], float]], repeats: int, update: Update = lambda share, status: None
) -> dict[str, list[float]]:
    """Take each measurement once per repeat, side by side, so that a drift of the machine meets all of them.

    Args:
        actions: by name, what measures and returns its number. Every other repeat takes them in reverse.
        repeats: how often.
        update: progress.

    Returns:
        The numbers of each, in the order of the repeats.
    """
    check_count("repeats", repeats)
    found: dict[str, list[float]] = {name: [] for name in actions}
    for repeat in range(repeats):
        for place, name in enumerate(list(actions)[:: -1 if repeat % 2 else 1]):
            update((repeat * len(actions) + place) / (repeats * len(actions)), name)
            found[name].append(actions[name]())
    return found


def rows(part: str, found: Mapping[str, Sequence[float]], unit: str, baseline: str | None = None) -> list[Row]:
    """A row for each measurement of `interleaved`, beside the one named `baseline`.

    Raises:
        InputError: there is no such measurement, or the repeats differ in number.
    """
    if baseline is not None and baseline not in found:
        raise InputError(f"baseline must be one of {', '.join(found)}, got {baseline}")
    if len({len(values) for values in found.values()}) > 1:
        raise InputError("every measurement must have as many repeats as the others; take them by interleaved")
    out = []
    for name, values in found.items():
        middle = statistics.median(values)
        spread = (max(values) - min(values)) / abs(middle) if len(values) > 1 and middle else NAN
        pairs = zip(values, found[baseline], strict=True) if baseline else []
        ratios = [value / base if base else NAN for value, base in pairs] or [NAN]
        against = (baseline or "", statistics.median(ratios), min(ratios), max(ratios))
        out.append(Row(part, name, middle, unit, *against, spread, len(values)))
    return out


def beside(part: str, ours: str, found: Mapping[str, Sequence[float]], unit: str, kinds: Sequence[str]) -> list[Row]:
    """Ours, then what there is of each kind, and ours to the best of them."""
    out = rows(part, {ours: found[ours]}, unit, ours)
    for kind in kinds:
        same = {name: rates for name, rates in found.items() if name.startswith(kind)}
        if same:
            best = max(same, key=lambda name: statistics.median(same[name]))
            out += rows(part, same | {f"{ours}, against {kind}": found[ours]}, unit, best)
    return out


def threads() -> dict[str, int]:
    """PyTorch's numbers of threads: one, and one for each core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {f"{count} thread{'s' * (count > 1)}": count for count in sorted({1, cores})}


def check(what: str, difference: float) -> str:
    """That PyTorch finds the engine's numbers, in words.

    Raises:
        OutputError: it does not, and there is nothing to compare.
    """
    if not difference <= TOLERANCE:
        raise OutputError(f"PyTorch's {what} are {difference:.2g} from the engine's, more than {TOLERANCE:g}")
    return f"PyTorch's {what} are within {difference:.1g} of the engine's"


def run_process(arguments: Sequence[str], cache: Path) -> Finished:
    """Run Python with `arguments` to its end, its compiled programs kept under `cache`.

    Raises:
        OutputError: it failed; the message ends with the last line it said.
    """
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    environment["XDG_CACHE_HOME"] = str(cache)
    with tempfile.TemporaryFile("w+") as told:
        begun = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=Path(__file__).parent.parent,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=told,
        )
        watch = _Watch(process.pid)
        try:
            watch.start()
            code = process.wait()
            spent = time.perf_counter() - begun
        finally:
            process.kill()
            watch.end.set()
        watch.join()
        if code:
            told.seek(0)
            last = (told.read().strip().splitlines() or ["it said nothing"])[-1]
            raise OutputError(f"python {' '.join(arguments)[:200]} ended with status {code}: {last}")
    return Finished(spent, watch.peak)


class _Watch(threading.Thread):
    """Reads the high-water mark of a process's memory until it ends.

    The system's own account (ru_maxrss) will not do: it begins with the memory of the parent that forked.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.status = Path(f"/proc/{pid}/status")
        self.end = threading.Event()
        self.peak = NAN

    def run(self) -> None:
        while not self.end.wait(0.02):
            try:
                lines = self.status.read_text().splitlines()
            except OSError:
                return
            marks = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
            # A process that has ended has no memory any more.
            self.peak = float(marks[0]) * 1024 if marks else self.peak

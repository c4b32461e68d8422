"""Measure what the program's speed rests on, each number beside a baseline taken in the same run.

Command:  python -m benchmarks [PART ...] [--quick] [--out FOLDER]      (or make bench ARGS="throughput")
Time:     under ten minutes on two quiet cores; --quick about one. Nothing else should run on the machine.
Expect:   results/bench/bench.csv, throughput.png and run.json; parts not named keep the rows they have.
"""

import argparse
import datetime
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.checkpoints import checkpoints
from benchmarks.devices import devices
from benchmarks.measure import Bench, Row
from benchmarks.memory import memory
from benchmarks.omega import omega
from benchmarks.optimizer import optimizer
from benchmarks.squad import squad
from benchmarks.startup import startup
from benchmarks.text import text
from benchmarks.theory import theory
from benchmarks.throughput import throughput
from benchmarks.tokens import tokens
from benchmarks.watching import watching
from qkdyn.config import main_guard
from qkdyn.errors import reject
from qkdyn.figures import canvas
from qkdyn.progress import track
from qkdyn.results import manifest, prepare_folder, retract, write_manifest, write_text
from qkdyn.results.provenance import source_state
from qkdyn.train.devices import use_host_devices
from qkdyn.train.lock import lock

# A new subject is a file with a function from Bench to rows, and a line here.
PARTS: dict[str, Callable[[Bench], list[Row]]] = {
    "throughput": throughput,
    "startup": startup,
    "checkpoints": checkpoints,
    "devices": devices,
    "memory": memory,
    "theory": theory,
    "omega": omega,
    "optimizer": optimizer,
    "watching": watching,
    "tokens": tokens,
    "text": text,
    "squad": squad,
}


def parse(arguments: Sequence[str]) -> tuple[list[str], bool, Path]:
    """The parts to measure, whether quickly, and where the record goes.

    Raises:
        InputError: there is no part of that name.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default all")
    parser.add_argument("--quick", action="store_true", help="a smoke run, whose numbers mean little")
    parser.add_argument("--out", type=Path, help="folder of the record; default results/bench, or results/quick/bench")
    options = parser.parse_args(arguments)
    for name in options.parts:
        if name not in PARTS:
            reject("each part", name, "one of " + ", ".join(PARTS))
    folder = options.out or Path("results") / ("quick/bench" if options.quick else "bench")
    return [name for name in PARTS if name in options.parts or not options.parts], options.quick, folder.absolute()


def settle() -> None:
    """Give this process the devices that the sweep has, and no compilation cache: what is compiled in it is cold."""
    import jax

    use_host_devices()
    jax.config.update("jax_enable_compilation_cache", False)


def measure(name: str, quick: bool, cache: Path) -> list[Row]:
    """The rows of one part, in a scratch folder that goes again."""
    with tempfile.TemporaryDirectory(prefix="qkdyn-bench-") as scratch, track(name) as update:
        rows = PARTS[name](Bench(quick, Path(scratch), cache, update))
        update(1.0, "done")
    return rows


def history(folder: Path) -> dict[str, Any]:
    """When each part was measured, as the manifest of the earlier runs says; nothing where none is left."""
    try:
        return dict(json.loads((folder / "run.json").read_text())["config"]["parts"])
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def write(rows: Sequence[Row], parts: dict[str, Any], folder: Path, seconds: float, argv: Sequence[str]) -> list[Path]:
    """Write record and figure and, last, the manifest that vouches for them."""
    retract(folder)
    files = [write_text(folder / "bench.csv", record.to_csv(rows))]
    files.append(canvas.save(record.draw(rows), folder / "throughput.png"))
    return [*files, write_manifest(manifest({"parts": parts}, wall_seconds=seconds, argv=argv, files=files), folder)]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure from the command line; the record is written after each part."""
    from rich.console import Console

    arguments = list(sys.argv[1:] if argv is None else argv)
    names, quick, folder = parse(arguments)
    settle()
    console = Console(width=None if sys.stdout.isatty() else 140)
    begun, files = time.monotonic(), []
    with lock(prepare_folder(folder)), tempfile.TemporaryDirectory(prefix="qkdyn-bench-") as cache:
        rows, parts = record.read(folder / "bench.csv"), history(folder)
        for name in names:
            since = time.monotonic()
            rows = record.merge(rows, name, measure(name, quick, Path(cache)), list(PARTS))
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            spent = round(time.monotonic() - since, 1)
            parts[name] = {"utc": now, "wall_seconds": spent, "quick": quick, "source": source_state()}
            command = ["python", "-m", "benchmarks", *arguments]
            files = write(rows, parts, folder, time.monotonic() - begun, command)
            console.print(record.table(rows, name))
    console.print("\n".join(map(str, files)), highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main_guard(main))

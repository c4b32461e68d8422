"""Kill a sweep with SIGKILL at random moments, start it again, and again: python tests/faults/kills.py --kills 100.

The result must be to the bit that of a sweep nobody killed. Prints what was killed and exits with 1 if a byte differs.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Small, but with several parts, chunks and checkpoints: about three seconds of training after the start.
SWEEP = [
    "-m",
    "experiments.sweep",
    "--m",
    "2",
    "--n",
    "3",
    "--b",
    "2",
    "--M",
    "3",
    "--backgrounds",
    "4",
    "--batch",
    "12",
]
SWEEP += [
    "--r",
    "0.1",
    "1",
    "--seeds",
    "0",
    "1",
    "--parameterizations",
    "FACO",
    "CACO",
    "--records",
    "30",
    "--chunk",
    "25",
]
SWEEP += [
    "--losses",
    "0.5",
    "0.1",
    "--stop-loss",
    "0.02",
    "--max-steps",
    "3000",
    "--checkpoint-seconds",
    "0.05",
    "--no-draw",
]
FILES = ("data.nc", "summary.csv")
ROOT = Path(__file__).parent.parent.parent


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    """A sweep into `folder`, in a process of its own."""
    command = [sys.executable, *SWEEP, "--out", str(folder), *more]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(folder: Path, *more: str) -> str:
    """Run a sweep to its end; what it said."""
    process = start(folder, *more)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out + err


def same(a: Path, b: Path) -> bool:
    """Whether two sweeps wrote the same bytes."""
    return all((a / name).read_bytes() == (b / name).read_bytes() for name in FILES)


def kill_at_random(folder: Path, whole: Path, kills: int, seed: int = 0) -> tuple[dict[str, int], list[bool]]:
    """Start, kill, and start again until `kills` were killed. Where it was when it was killed, and what was compared.

    The moments are spread over the time from the first import to the last figure. A sweep that has all its runs on record is
    brought to its end, compared with that in `whole`, and begun anew, so that every kill meets a sweep at work, and the traces
    of every kill are looked for.
    """
    draw = random.Random(seed)
    met, compared = {"before training": 0, "training": 0, "writing": 0}, []
    begun = time.monotonic()
    finish(folder, "--fresh")
    length = time.monotonic() - begun
    fresh = True
    while sum(met.values()) < kills:
        process = start(folder, *(["--fresh"] if fresh else []))
        try:
            _, err = process.communicate(timeout=draw.uniform(0.1, 1.0) * length)
            assert process.returncode == 0, err
            compared.append(same(folder, whole))
            fresh = True
            continue
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
        parts = list((folder / "checkpoints" / "parts").glob("*.npz"))
        fresh = len(parts) >= 2
        at_work = bool(parts) or any((folder / "checkpoints" / "checkpoints").glob("*/*"))
        met["writing" if fresh else "training" if at_work else "before training"] += 1
        if fresh:
            finish(folder)
            compared.append(same(folder, whole))
    finish(folder)
    return met, [*compared, same(folder, whole)]


def main() -> int:
    """Kill as often as asked, compare, and say what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        begun = time.monotonic()
        finish(Path(name) / "whole")
        met, compared = kill_at_random(Path(name) / "killed", Path(name) / "whole", arguments.kills, arguments.seed)
    seconds = time.monotonic() - begun
    print(
        f"{arguments.kills} kills in {seconds:.0f} s: {met}; bitwise equal: {sum(compared)} of {len(compared)} comparisons"
    )
    return 0 if all(compared) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Kill a sweep with SIGKILL at random moments, start it again, and again: python tests/faults/kills.py --kills 100.

The result must be to the bit that of a sweep nobody killed. Prints what was killed and exits with 1 if a byte differs.
"""

import argparse
import random
import signal
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


def kill_at_random(folder: Path, kills: int, seed: int = 0) -> dict[str, int]:
    """Start, kill, and start again until `kills` were killed; then let it finish. Where it was when it was killed.

    The moments are spread over the time from the first import to the last figure. A sweep that ends before its moment is
    begun anew, so that every kill meets a sweep at work.
    """
    draw = random.Random(seed)
    met = {"before training": 0, "training": 0, "writing": 0}
    begun = time.monotonic()
    finish(folder, "--fresh")
    length = time.monotonic() - begun
    fresh = True
    while sum(met.values()) < kills:
        process = start(folder, *(["--fresh"] if fresh else []))
        try:
            process.wait(draw.uniform(0.1, 1.0) * length)
            fresh = True
            continue
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.communicate()
        parts = list((folder / "checkpoints" / "parts").glob("*.npz"))
        trained = len(parts) >= 2
        # With all runs on record there is nothing left to kill in training.
        fresh = trained
        at_work = bool(parts) or any((folder / "checkpoints" / "checkpoints").glob("*"))
        met["writing" if trained else "training" if at_work else "before training"] += 1
    finish(folder)
    return met


def main() -> int:
    """Kill as often as asked, compare, and say what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        begun = time.monotonic()
        finish(Path(name) / "whole")
        met = kill_at_random(Path(name) / "killed", arguments.kills, arguments.seed)
        same = {
            file: (Path(name) / "whole" / file).read_bytes() == (Path(name) / "killed" / file).read_bytes()
            for file in ("data.nc", "summary.csv")
        }
    print(f"{arguments.kills} kills in {time.monotonic() - begun:.0f} s: {met}; bitwise equal: {same}")
    return 0 if all(same.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

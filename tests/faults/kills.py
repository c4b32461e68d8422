"""Kill a sweep with SIGKILL at random moments, start it again, and again: python tests/faults/kills.py --kills 100.

The result must be to the bit that of a sweep nobody killed. Prints what was killed and exits with 1 if a byte differs.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

# Small, but with two parts of eight chunks and more, and a checkpoint after every chunk.
OPTIONS = """
    --m 2 --n 3 --b 2 --M 3 --backgrounds 4 --batch 12 --r 0.1 1 --seeds 0 1 --parameterizations FACO CACO
    --losses 0.5 0.1 --stop-loss 0.02 --max-steps 3000 --records 30 --chunk 50 --checkpoint-seconds 0 --no-draw
""".split()  # noqa: SIM905
FILES = ("data.nc", "summary.csv")
ROOT = Path(__file__).parent.parent.parent
# Programs that one sweep compiled serve all others, however small.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
NOWHERE = ("-", "-")
# A sweep is killed once in each of these stages, somewhere between two moments (see held.py), and then brought to its end.
LIFE = (
    lambda draw: ("-", "manifest.json"),
    lambda draw: (f"{draw.randint(1, 3)}:manifest.json", "manifest.json"),
    lambda draw: ("1:.npz", "manifest.json"),
    lambda draw: (f"{draw.randint(1, 3)}:manifest.json", "manifest.json"),
    lambda draw: ("1:" + draw.choice([".npz", "data.nc", "summary.csv"]), "run.json"),
)


def command(folder: Path, *more: str, moments: tuple[str, str] = NOWHERE) -> list[str]:
    """Arguments of the interpreter for a sweep into `folder` that is held at `moments`."""
    script = ROOT / "tests" / "faults" / "held.py"
    return [str(script), str(held(folder)), *moments, "--", *OPTIONS, "--out", str(folder), *more]


def run(arguments: list[str]) -> subprocess.Popen[str]:
    """A process of the interpreter."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=ENVIRONMENT, **pipes)


def start(folder: Path, *more: str, moments: tuple[str, str] = NOWHERE) -> subprocess.Popen[str]:
    """A sweep into `folder`, in a process of its own."""
    return run(command(folder, *more, moments=moments))


def held(folder: Path) -> Path:
    """The file that is there while a sweep into `folder` is held."""
    return folder.with_name(f"{folder.name}.held")


def wait_until_held(process: subprocess.Popen[str], folder: Path) -> None:
    """Wait until a sweep is held."""
    while not held(folder).exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def finish(folder: Path, *more: str) -> str:
    """Run a sweep to its end, without checkpoints on the way; what it said."""
    process = start(folder, "--checkpoint-seconds", "1000", *more)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out + err


def same(a: Path, b: Path) -> bool:
    """Whether two sweeps wrote the same bytes."""
    return all((a / name).read_bytes() == (b / name).read_bytes() for name in FILES)


def kill_at_random(folder: Path, whole: Path, kills: int, seed: int = 0) -> tuple[dict[str, int], list[bool]]:
    """Kill a sweep in each stage of its life, bring it to its end, compare it with that in `whole`, and begin another.

    What is random: for how many checkpoints it goes on, and how long after the first moment of the stage it is killed. The
    second moment of the stage holds it, so that on no machine it leaves the stage alive.

    Returns:
        How many were killed where, by what was on the disk; and what was compared.
    """
    draw = random.Random(seed)
    met, compared = Counter(), []
    for number in range(kills):
        life, stage = divmod(number, len(LIFE))
        place, moments = folder.with_name(f"{folder.name}{life}"), LIFE[stage](draw)
        process = start(place, moments=moments)
        if moments[0] == "-":
            time.sleep(draw.uniform(0.1, 3.0))  # from the first import to the first checkpoint
        else:
            wait_until_held(process, place)
            held(place).unlink()
            time.sleep(draw.uniform(0.0, 0.1))
        assert process.poll() is None, process.communicate()
        process.kill()
        process.communicate()
        held(place).unlink(missing_ok=True)
        met[where(place)] += 1
        if stage == len(LIFE) - 1 or number == kills - 1:
            finish(place)
            compared.append(same(place, whole))
    return dict(met), compared


def where(folder: Path) -> str:
    """How far a sweep had come, by what is on the disk."""
    parts = list((folder / "checkpoints" / "parts").glob("*.npz"))
    saved = any((folder / "checkpoints" / "checkpoints").glob("*/*/manifest.json"))
    return "writing" if len(parts) >= 2 else "training" if parts or saved else "before training"


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

"""The manifest run.json: what ran, with which versions, on what, from which source, and what it wrote."""

import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from qkdyn.files import write_text

PACKAGES = (
    "qkdyn",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "diffrax",
    "orbax-checkpoint",
    "numpy",
    "scipy",
    "xarray",
    "h5py",
)


def _versions() -> dict[str, str | None]:
    """Installed versions, read from the package metadata so that nothing is imported; None where not installed."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def _git(*arguments: str) -> str | None:
    """Output of git in this package's folder, or None if there is no git or it refuses."""
    # Optional locks off: to ask for the state must not disturb a commit that is under way.
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=20, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def source_state() -> dict[str, Any] | None:
    """`{"commit", "dirty"}` of the checkout that holds this package; None where it is installed without one.

    `dirty` looks at the code only: a run that rewrites its own committed figures does not make the source dirty.
    """
    # An environment may lie inside somebody else's repository: only one that tracks this very file counts.
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    commit = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--", ":(top)qkdyn", ":(top)experiments", ":(top)pyproject.toml")
    return None if commit is None or changed is None else {"commit": commit, "dirty": bool(changed)}


def _cpu() -> str:
    """The processor's name, as well as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _device() -> str | None:
    """The accelerators that JAX uses, such as "1 x NVIDIA H200 (gpu)"; None if JAX was never imported."""
    if "jax" not in sys.modules:
        return None
    devices = sys.modules["jax"].devices()
    return f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform})"


def _checksums(files: Iterable[str | Path]) -> dict[str, str]:
    """SHA-256 of each file, under its path relative to the folder that holds them all, sorted."""
    paths = sorted(Path(file).absolute() for file in files)
    if not paths:
        return {}
    root = os.path.commonpath([path.parent for path in paths])
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def manifest(
    config: dict[str, Any],
    *,
    wall_seconds: float,
    argv: Sequence[str],
    files: Iterable[str | Path],
    digest: str | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Everything needed to say where a result comes from and to make it again.

    Args:
        config: the experiment's settings, as plain values.
        wall_seconds: how long the run took, in seconds.
        argv: the command line (sys.argv); of the program only the name is kept.
        files: the files written, which must exist.
        digest: the digest that names the run.
        device: words for the device; None asks JAX if it has been imported.

    Returns:
        A dictionary for `write_manifest`, with the keys `config, digest, argv, utc, wall_seconds, versions, device,
        platform, cpu, cores, source, sha256`.
    """
    program = [Path(argv[0]).name] if argv else []
    return {
        "config": config,
        "digest": digest,
        "argv": program + [str(argument) for argument in argv[1:]],
        "utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "wall_seconds": round(float(wall_seconds), 3),
        "versions": _versions(),
        "device": device if device is not None else _device(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "source": source_state(),
        "sha256": _checksums(files),
    }


def _plain(value: Any) -> Any:
    """Turn what JSON does not know (numpy numbers and arrays, paths) into what it does."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def write_manifest(record: dict[str, Any], folder: str | Path) -> Path:
    """Write `record` as readable JSON to `folder`/run.json.

    Returns:
        The file.

    Raises:
        OutputError: the file cannot be written.
    """
    return write_text(
        Path(folder) / "run.json", json.dumps(record, indent=2, default=_plain, ensure_ascii=False) + "\n"
    )

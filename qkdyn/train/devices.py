"""What a run is spread over: accelerators or host devices, one process or several; and programs kept for the next time."""

import atexit
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from qkdyn.errors import InputError, PeerError, check_count, reject
from qkdyn.train.meeting import meet

# Seconds that processes which were told of each other wait for all to come.
PATIENCE = 25


@dataclass(frozen=True)
class Machine:
    """Where it is run; no result depends on it (in the exact mode).

    On Slurm and on cloud pods `--distributed` is enough: JAX finds the other processes. Elsewhere each process is told of
    the first one's address, their number and its own.
    """

    devices: int | None = None
    """Host devices to split this process's CPU into; default one per core, at most 8."""
    distributed: bool = False
    """One of several processes that run the same command together."""
    coordinator: str | None = None
    """host:port of the first process; default: found by JAX."""
    processes: int | None = None
    """How many processes there are; default: found by JAX."""
    process: int | None = None
    """Which one this is, from 0; default: found by JAX."""

    def __post_init__(self) -> None:
        if self.devices is not None and check_count("devices", self.devices) > 256:
            reject("devices", self.devices, "at most 256", "more devices than cores are slower")
        by_hand = (self.coordinator, self.processes, self.process)
        if any(value is not None for value in by_hand) and (None in by_hand or not self.distributed):
            raise InputError(
                "coordinator, processes and process go together, with --distributed, "
                f"got {self.coordinator}, {self.processes}, {self.process}"
            )
        if self.processes is not None and self.process is not None:
            check_count("processes", self.processes)
            if not 0 <= self.process < self.processes:
                raise InputError(f"process must be in [0, {self.processes}), got {self.process}")

    def join(self) -> None:
        """Split the CPU and, if distributed, meet the other processes. Before anything is computed.

        Raises:
            PeerError: the others are not there in time.
        """
        use_compilation_cache()
        use_host_devices(self.devices)
        if not self.distributed:
            return
        leave = None
        if self.coordinator is not None and self.processes is not None and self.process is not None:
            leave = meet(self.coordinator, self.processes, self.process, PATIENCE)
        try:
            jax.distributed.initialize(
                self.coordinator,
                self.processes,
                self.process,
                initialization_timeout=60,
                heartbeat_timeout_seconds=20,
            )
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0][:160]
            raise PeerError(f"cannot meet the other processes ({reason}); start all of them within a minute") from error
        if leave is not None:
            # Registered after JAX's own, and so called before it; not after an error that nobody expected.
            atexit.register(lambda: None if hasattr(sys, "last_value") else leave())


def use_host_devices(count: int | None = None) -> None:
    """Split the CPU into `count` JAX devices (default: one per core, at most 8); accelerators are not affected.

    Small matrices leave a device's threads idle: two host devices use two cores better than one device with two threads.
    Must be called before anything is computed; later calls, and a setting made by XLA_FLAGS, change nothing.

    Raises:
        InputError: `count` is not a positive integer.
    """
    if count is not None:
        check_count("devices", count)
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    try:
        jax.config.update("jax_num_cpu_devices", count or min(_cores(), 8))
    except RuntimeError:  # the backend has started: its devices are what they are
        return


def _cores() -> int:
    """Cores this process may use; all there are where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that the system, and the container if there is one, can still give; 1 GiB where neither says.

    Args:
        root: where /proc and /sys are.
    """
    found = [1024 * number for number in _numbers(root / "proc/meminfo", "MemAvailable:")]
    # Limits (version 2 of control groups) hold in each group from this process's up.
    own = _text(root / "proc/self/cgroup").partition("0::")[2].strip().lstrip("/")
    top = root / "sys/fs/cgroup"
    for group in (top / own, *(top / own).parents):
        limit, used = _text(group / "memory.max").strip(), _text(group / "memory.current").strip()
        if limit.isdecimal() and used.isdecimal():
            # What is held of files can be given back.
            found.append(int(limit) - int(used) + sum(_numbers(group / "memory.stat", "inactive_file")))
        if group == top:
            break
    return max(0, min(found, default=2**30))


def _numbers(path: Path, name: str) -> list[int]:
    """The number after `name` in a file of names and numbers; none if it is not there."""
    return [int(line.split()[1]) for line in _text(path).splitlines() if line.split()[:1] == [name]]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def use_compilation_cache() -> None:
    """Keep compiled programs for the next process, in JAX_COMPILATION_CACHE_DIR or the user's cache folder."""
    if jax.config.values.get("jax_compilation_cache_dir") is None:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(home / "qkdyn" / "jax"))


def arms_mesh(count: int | None = None) -> jax.sharding.Mesh:
    """One axis over the devices of this process, or the first `count` of them, for arms to be spread over."""
    devices = jax.local_devices()[:count]
    return jax.make_mesh((len(devices),), ("arms",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices)


def spread(mesh: jax.sharding.Mesh, tree: Any, axis: int) -> Any:
    """Leaves of more axes than `axis` spread over the devices along it, others copied to all of them.

    Args:
        mesh: see `arms_mesh`.
        tree: arrays whose `axis`, if they have it, is a multiple of the number of devices.
        axis: of the arms; -1 for the last.
    """

    def put(leaf: Any) -> Any:
        spec = [None] * leaf.ndim
        if leaf.ndim > max(axis, 0):
            spec[axis] = "arms"
        return jax.device_put(leaf, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)))

    return jax.tree.map(put, tree)


def copied(mesh: jax.sharding.Mesh, tree: Any) -> Any:
    """Leaves copied to all devices."""
    return jax.device_put(tree, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))


def filled_up(tree: Any, devices: int, axis: int = 0) -> Any:
    """As many arms in every leaf that has the axis as the devices share evenly: the last one is repeated."""

    def more(leaf: Any) -> Any:
        missing = -leaf.shape[axis] % devices if leaf.ndim > axis else 0
        if not missing:
            return leaf
        last = np.take(leaf, [-1], axis)
        return np.concatenate([leaf, np.repeat(last, missing, axis)], axis)

    return jax.tree.map(more, tree)

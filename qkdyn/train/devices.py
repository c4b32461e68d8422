"""What a run is spread over: accelerators or host devices, one process or several; and programs kept for the next time."""

import os
from dataclasses import dataclass
from pathlib import Path

import jax

from qkdyn.errors import InputError, PeerError, check_count, reject


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
            PeerError: the others are not there within a minute.
        """
        use_compilation_cache()
        use_host_devices(self.devices)
        if not self.distributed:
            return
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


def use_compilation_cache() -> None:
    """Keep compiled programs for the next process, in JAX_COMPILATION_CACHE_DIR or the user's cache folder."""
    if jax.config.values.get("jax_compilation_cache_dir") is None:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(home / "qkdyn" / "jax"))

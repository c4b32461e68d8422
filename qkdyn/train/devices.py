"""How many devices the runs are spread over: all accelerators there are, or host devices, one for each core."""

import os

import jax

from qkdyn.errors import check_count


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
        jax.config.update("jax_num_cpu_devices", count or min(len(os.sched_getaffinity(0)), 8))
    except RuntimeError:  # the backend has started: its devices are what they are
        return

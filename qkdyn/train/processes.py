"""What several processes of one run do together: gather, agree, take turns at files. With one process, nothing."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

from qkdyn.errors import PeerError

Result = TypeVar("Result")


def primary() -> bool:
    """Whether this process is the one that writes and speaks."""
    return jax.process_index() == 0


def to_host(tree: Any) -> Any:
    """All rows of a tree of device arrays as numpy arrays, in every process.

    Raises:
        PeerError: another process is gone.
    """
    if jax.process_count() == 1:
        return jax.device_get(tree)
    from jax.experimental import multihost_utils

    return _together(lambda: multihost_utils.process_allgather(tree, tiled=True))


def agree(stop: bool, due: bool) -> tuple[bool, bool]:
    """The same answers everywhere: stop if any process was asked to, save when the first one says so.

    Raises:
        PeerError: another process is gone.
    """
    if jax.process_count() == 1:
        return stop, due
    from jax.experimental import multihost_utils

    flags = _together(lambda: multihost_utils.process_allgather(np.array([stop, due])))
    return bool(flags[:, 0].any()), bool(flags[0, 1])


def barrier() -> None:
    """Wait until every process is here.

    Raises:
        PeerError: another process is gone.
    """
    if jax.process_count() == 1:
        return
    from jax.experimental import multihost_utils

    _together(lambda: multihost_utils.sync_global_devices("barrier"))


def in_turn(read: Callable[[], Result]) -> Result:
    """Call `read` in the first process, which may clear away what is damaged, and then in the others.

    Raises:
        PeerError: another process is gone. Whatever `read` raises.
    """
    if not primary():
        barrier()
        return read()
    found = read()
    barrier()
    return found


def _together(collective: Callable[[], Result]) -> Result:
    try:
        return collective()
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0][:120]
        raise PeerError(
            f"another process of this run is gone ({reason}); start all of them again: they go on from the last checkpoint"
        ) from error

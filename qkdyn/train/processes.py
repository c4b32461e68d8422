"""What several processes of one run do together: gather, agree, take turns at files. With one process, nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import numpy as np

from qkdyn.errors import PeerError, QkdynError

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

    with peers():
        return multihost_utils.process_allgather(tree, tiled=True)


def agree(stop: bool, due: bool) -> tuple[bool, bool]:
    """The same answers everywhere: stop if any process was asked to, save when the first one says so.

    Raises:
        PeerError: another process is gone.
    """
    if jax.process_count() == 1:
        return stop, due
    from jax.experimental import multihost_utils

    with peers():
        flags = multihost_utils.process_allgather(np.array([stop, due]))
    return bool(flags[:, 0].any()), bool(flags[0, 1])


def barrier() -> None:
    """Wait until every process is here.

    Raises:
        PeerError: another process is gone.
    """
    if jax.process_count() == 1:
        return
    from jax.experimental import multihost_utils

    with peers():
        multihost_utils.sync_global_devices("barrier")


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


@contextmanager
def peers() -> Iterator[None]:
    """Where other processes may fail: what this one's libraries then raise becomes a PeerError. With one process, nothing.

    A peer that dies is noticed wherever this process happens to wait for it: gathering, saving, or at a barrier.
    """
    if jax.process_count() == 1:
        yield
        return
    try:
        yield
    except QkdynError:
        raise
    except (RuntimeError, ValueError) as error:  # the transport's own words come as either
        reason = (str(error).splitlines() or [""])[0][:120]
        raise PeerError(
            f"another process of this run is gone ({reason}); start all of them again: they go on from the last checkpoint"
        ) from error

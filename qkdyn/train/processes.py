"""What several processes of one run do together: gather, agree, take turns at files. With one process, nothing."""

import socket
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import jax
import numpy as np

from qkdyn.errors import OutputError, OutputWarning, PeerError, QkdynError
from qkdyn.train.meeting import AGAIN

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


def least_share(amount: int) -> int:
    """The least that a process has of `amount`, which each sees of its own machine and divides with the others there.

    Raises:
        PeerError: another process is gone.
    """
    if jax.process_count() == 1:
        return amount
    from jax.experimental import multihost_utils

    # In 32 bits, which is what arrays have here: MiB, and a checksum in the place of the machine's name.
    mine = np.array([min(amount >> 20, 2**31 - 1), zlib.crc32(socket.gethostname().encode()) >> 1], np.int32)
    with peers():
        table = multihost_utils.process_allgather(mine)
    return min(int(free) // int((table[:, 1] == machine).sum()) for free, machine in table) << 20


def share(error: QkdynError | None) -> None:
    """Raise in all processes if any has an error: where it is its own, elsewhere an OutputError that quotes it.

    Raises:
        PeerError: another process is gone.
    """
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        text = str(error).encode()[:500] if error else b""
        with peers():
            told = multihost_utils.process_allgather(np.frombuffer(text.ljust(500, b"\0"), np.uint8))
        said = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in told]
        if error is None and any(said):
            raise OutputError(next(f"process {i}: {words}" for i, words in enumerate(said) if words))
    if error is not None:
        raise error


def first_alone(do: Callable[[], Result]) -> Result | None:
    """Call `do` in the first process; the others wait, and end with it if it is refused. None in the others.

    Raises:
        PeerError: another process is gone. Whatever `do` raises of ours.
    """
    found, error = None, None
    try:
        found = do() if primary() else None
    except QkdynError as refusal:
        error = refusal
    share(error)
    return found


def in_turn(read: Callable[[], Result]) -> Result:
    """Call `read` in the first process, which may clear away what is damaged, and then in the others.

    Raises:
        PeerError: another process is gone. Whatever `read` raises of ours.
    """
    found = first_alone(read)
    return cast(Result, found) if primary() else read()


def warn(text: str) -> None:
    """An OutputWarning, given by the first process alone."""
    if primary():
        warnings.warn(text, OutputWarning, stacklevel=3)


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
        raise PeerError(f"another process of this run is gone ({reason}); {AGAIN}") from error

"""Processes that were told of each other meet before JAX does, and hear at once when one of them is gone.

JAX's runtime ends a process with a stack of C++ where it waits in vain for another. Here the first process listens at the
coordinator's address until all have come, and then leaves the address to JAX. The connections stay open: the system closes
those of a process that dies, whatever it was doing.
"""

import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from qkdyn.config import PEER_GONE
from qkdyn.errors import InputError, PeerError

AGAIN = "start all of them again: they go on from the last checkpoint"
# Seconds in which this process may find out for itself that it waits for a lost one.
GRACE = 2.0
_CALL, _WELCOME, _BYE = b"qkdyn", b"+", b"-"


def meet(address: str, count: int, number: int, patience: float) -> Callable[[], None]:
    """Wait until all processes have come; from then on this one ends when another is gone without a word.

    Args:
        address: host:port at which process 0 is found.
        count: how many there are.
        number: which one this is, from 0.
        patience: seconds to wait.

    Returns:
        What to call at an orderly end: the others go on without this one.

    Raises:
        InputError: `address` is not of that form. PeerError: the others are not there in time.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(f"coordinator must be host:port, got {address!r}")
    limit = time.monotonic() + patience
    try:
        links = [_call(host.strip("[]"), int(port), limit)] if number else _receive(int(port), count - 1, limit)
    except OSError as error:
        reason = error.strerror or error
        do = f"start all {count} of them within {patience:g} s"
        raise PeerError(f"cannot meet the other processes at {address} ({reason}); {do}") from error
    threading.Thread(target=_watch, args=(links,), daemon=True).start()

    def leave() -> None:
        for link in links:
            with suppress(OSError):
                link.sendall(_BYE)

    return leave


def _left(limit: float) -> float:
    """Seconds until `limit`; raises TimeoutError after it."""
    left = limit - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _receive(port: int, count: int, limit: float) -> list[socket.socket]:
    """Connections of `count` others, once all have called."""
    links: list[socket.socket] = []
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    with socket.create_server(("", port), family=family, dualstack_ipv6=both) as server:
        while len(links) < count:
            server.settimeout(_left(limit))
            link, _ = server.accept()
            link.settimeout(min(1.0, _left(limit)))
            with suppress(OSError):
                if link.recv(len(_CALL)) == _CALL:
                    links.append(link)
    for link in links:
        link.settimeout(None)
        link.sendall(_WELCOME)
    return links


def _call(host: str, port: int, limit: float) -> socket.socket:
    """The connection to process 0, once it has said that all are there."""
    while True:
        try:
            link = socket.create_connection((host, port), timeout=_left(limit))
            link.sendall(_CALL)
            link.settimeout(_left(limit))
            if link.recv(1) == _WELCOME:
                link.settimeout(None)
                return link
        except OSError:
            if time.monotonic() + 0.2 > limit:
                raise
        time.sleep(0.2)


def _watch(links: Sequence[socket.socket]) -> None:
    """End this process when a connection is cut by one that has not said goodbye."""
    with selectors.DefaultSelector() as watched:
        for link in links:
            watched.register(link, selectors.EVENT_READ)
        while watched.get_map():
            for key, _ in watched.select():
                said = b""
                with suppress(OSError):
                    said = key.fileobj.recv(1)  # pyright: ignore[reportAttributeAccessIssue]
                watched.unregister(key.fileobj)
                if said != _BYE:
                    time.sleep(GRACE)
                    print(f"error: another process of this run is gone; {AGAIN}", file=sys.stderr, flush=True)
                    os._exit(PEER_GONE)

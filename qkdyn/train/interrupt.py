"""SIGTERM and SIGINT as a question that the training loop answers between two chunks, or two pieces of measuring."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

HEARD = "what is under way ends first, a chunk of training or a piece of measuring, and is saved; a second signal ends at once"


class Asked(Exception):
    """Measuring was left off, since the process was asked to end: it begins again from what is saved."""


class Request:
    """Whether the process was asked to end, and by which signal."""

    def __init__(self) -> None:
        self.name: str | None = None

    def check(self) -> None:
        """Raise `Asked` where a signal was noted: called between two pieces of measuring."""
        if self.name:
            raise Asked


@contextmanager
def on_request() -> Iterator[Request]:
    """Note the first SIGTERM or SIGINT instead of ending, and say so; the second one ends the process as usual.

    Outside the main thread, where Python has no signals, nothing is ever noted.
    """
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        request.name = signal.Signals(number).name
        restore()
        # Not by print: a signal may come in the middle of another one.
        os.write(2, f"\n{request.name}: {HEARD}\n".encode())

    for number in before:
        signal.signal(number, note)
    try:
        yield request
    finally:
        restore()

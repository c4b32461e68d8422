"""SIGTERM and SIGINT as a question that the training loop answers between two chunks."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Request:
    """Whether the process was asked to end, and by which signal."""

    def __init__(self) -> None:
        self.name: str | None = None


@contextmanager
def on_request() -> Iterator[Request]:
    """Note the first SIGTERM or SIGINT instead of ending; the second one ends the process as usual.

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

    for number in before:
        signal.signal(number, note)
    try:
        yield request
    finally:
        restore()

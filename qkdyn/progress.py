"""Progress of long work: a bar on a terminal, a plain line now and then elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Update = Callable[[float, str], None]


@contextmanager
def track(description: str, *, every: float = 10.0, show: bool = True) -> Iterator[Update]:
    """Show progress on standard error while the block runs.

    Args:
        description: what is being done.
        every: seconds between plain lines where standard error is not a terminal.
        show: False for nothing at all, as in all but one of several processes.

    Yields:
        A function of the share done, in [0, 1], and a short status text.
    """
    if not show:
        yield lambda share, status: None
    elif sys.stderr.isatty():
        with _bar(description) as update:
            yield update
    else:
        yield _lines(description, every)


@contextmanager
def _bar(description: str) -> Iterator[Update]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=1.0, status="compiling")
        yield lambda share, status: bar.update(task, completed=share, status=status)


def _lines(description: str, every: float) -> Update:
    begun = time.monotonic()
    shown = -every
    whole = False

    def update(share: float, status: str) -> None:
        nonlocal shown, whole
        spent = time.monotonic() - begun
        if whole or (spent - shown < every and share < 1):
            return
        shown, whole = spent, share >= 1
        left = f"ETA {spent * (1 - share) / share:.0f} s" if share > 0 else "ETA unknown"
        print(f"{description}: {share:4.0%}  {status}  {spent:.0f} s, {left}", file=sys.stderr, flush=True)

    return update

"""One writer at a time: a lock on a folder that ends with its process, however that ends."""

import fcntl
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from qkdyn.errors import ConflictError, OutputError
from qkdyn.files import refusals


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`.

    The system releases it when the process ends, so that what a killed process leaves behind blocks nobody.

    Raises:
        ConflictError: another process holds it; the message says which. OutputError: the system refuses.
    """
    with refusals(folder / ".lock"):
        opened = (folder / ".lock").open("a+")
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConflictError(
                f"another process is writing to {folder}: {_holder(folder)}; wait for it, stop it, or choose another --out"
            ) from error
        except OSError as error:
            reason = error.strerror or error
            raise OutputError(f"cannot lock {folder}: {reason}; choose an --out on a file system with locks") from error
        command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
        since = datetime.now(UTC).isoformat(timespec="seconds")
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": since, "command": command}
        with refusals(folder / ".lock"):
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), json.dumps(holder).encode())
        yield


def _holder(folder: Path) -> str:
    try:
        found = json.loads((folder / ".lock").read_text())
        return f"process {found['pid']} on {found['host']} since {found['since']} ({found['command']})"
    except (OSError, ValueError, KeyError):
        return "it has not said which"

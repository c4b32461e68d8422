"""Files that appear whole or not at all, and folders proven writable before any work is done."""

import errno
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from qkdyn.errors import OutputError

# The host is part of the name: on a shared file system a process id says nothing about the processes of other machines.
_TEMPORARY = re.compile(r"\..+\.(?P<host>[^.]+)\.(?P<pid>\d+)\.tmp")

_ADVICE = {
    errno.ENOSPC: "free some space, or choose another --out",
    errno.EDQUOT: "free some of your quota, or choose another --out",
    errno.EROFS: "choose an --out on a file system that can be written",
    errno.EACCES: "ask for permission to write there, or choose another --out",
    errno.EPERM: "ask for permission to write there, or choose another --out",
    errno.ENOTDIR: "a file is in the way; choose another --out",
    errno.EEXIST: "a file is in the way; move it, or choose another --out",
    errno.EISDIR: "a folder is in the way; move it, or choose another --out",
    errno.ENOENT: "the folder is missing; create it, or choose another --out",
}


def _host() -> str:
    """This machine's name, with no dot in it."""
    return socket.gethostname().replace(".", "-") or "localhost"


def _temporary(path: Path) -> Path:
    """The hidden sibling of `path` that this process writes to."""
    return path.with_name(f".{path.name}.{_host()}.{os.getpid()}.tmp")


def _refuse(path: Path, error: OSError) -> NoReturn:
    """Raise OutputError: the path, the cause as the system words it, and what to do."""
    advice = _ADVICE.get(error.errno or 0, "choose another --out")
    raise OutputError(f"cannot write {path}: {error.strerror or error}; {advice}") from error


@contextmanager
def refusals(path: str | Path) -> Iterator[None]:
    """Where the system may refuse: its OSError becomes an OutputError that names `path`, the cause and what to do."""
    try:
        yield
    except OSError as error:
        _refuse(Path(path), error)


def _flush(path: Path) -> None:
    """Wait until the file or folder is on the disk: a rename must never reach it before the bytes that it names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot flush a folder; that is no reason to lose a run.
        if not path.is_dir() or error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def write_atomic(path: str | Path, write: Callable[[Path], object]) -> Path:
    """Let `write` fill a temporary sibling of `path`, flush it to the disk, and rename it to `path`.

    Whatever happens on the way - an error, a full disk, a kill - `path` holds either what it held before or all of the
    new content. A link is followed, so that the file it points to is the one replaced.

    Args:
        path: the file to write; its folder must exist.
        write: called once with the path of the temporary file, which it must create.

    Returns:
        `path`.

    Raises:
        OutputError: the system refused (no space, no permission, read-only, a folder or device in the way); the message
            names the path, the cause and what to do. Errors of `write` other than OSError pass unchanged.
    """
    path = Path(path)
    target = Path(os.path.realpath(path))
    # A rename would put a plain file in the place of a device or pipe such as /dev/null.
    if target.exists() and not target.is_file():
        raise OutputError(f"cannot write {path}: it exists and is not a regular file; choose another --out")
    temporary = _temporary(target)
    try:
        try:
            write(temporary)
            _flush(temporary)
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _flush(target.parent)
    except OSError as error:
        _refuse(path, error)
    return path


def write_bytes(path: str | Path, data: bytes | memoryview) -> Path:
    """Write `data` to `path` in the manner of `write_atomic`."""
    return write_atomic(path, lambda temporary: temporary.write_bytes(data))


def write_text(path: str | Path, text: str) -> Path:
    """Write `text` as UTF-8 with plain newlines to `path` in the manner of `write_atomic`.

    What UTF-8 has no bytes for, such as a file's name that is no text, is written as its escape: it must not cost the work.
    """
    return write_bytes(path, text.encode(errors="backslashreplace"))


def _alive(pid: int) -> bool:
    """Whether a process of this id runs on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _clean(folder: Path) -> None:
    """Remove the temporary files that processes of this machine left when they were killed."""
    for path in folder.glob(".*.tmp"):
        found = _TEMPORARY.fullmatch(path.name)
        if found and found["host"] == _host() and not _alive(int(found["pid"])):
            path.unlink(missing_ok=True)


def prepare_folder(path: str | Path) -> Path:
    """Create `path` with its parents and prove by writing a file that results can be written there.

    Call this before the work whose results go there: an hour of training must not end in "permission denied".
    Temporary files left there by killed processes are removed.

    Returns:
        The folder.

    Raises:
        OutputError: a file is in the way, or the folder cannot be named so, created or written; nothing was left behind in it.
    """
    folder = Path(path)
    if "\0" in str(folder):
        raise OutputError(f"cannot write {str(folder)!r}: a name of a folder has no NUL; choose another --out")
    probe = _temporary(folder / "probe")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clean(folder)
        try:
            # More than a few bytes: a full disk still accepts an empty file.
            probe.write_bytes(bytes(65536))
            _flush(probe)
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        _refuse(folder, error)
    return folder

"""Download of published files, only when asked: resumed where it broke off, checked, and whole or not there at all."""

import http.client
import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from qkdyn.errors import DataError, OutputError
from qkdyn.text.catalogue import PublishedFile
from qkdyn.text.listing import count_rows
from qkdyn.text.sources import sha256, source

TIMEOUT = 4.0  # Seconds without a byte, and until the first one: name look-up, all addresses and redirections together.
_CHUNK = 1 << 16
_NETWORK = (OSError, http.client.HTTPException)


def _again(folder: Path) -> str:
    return f"run this again, or get the file by other means and put it into {folder}"


def _refuse(file: PublishedFile, folder: Path, why: object) -> NoReturn:
    raise DataError(f"cannot download {file.url}: {why}; {_again(folder)}")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Where the disk may refuse: its OSError becomes an OutputError that names the path and what to do."""
    try:
        yield
    except OSError as error:
        do = "free some space, ask for permission, or name another folder with --data"
        raise OutputError(f"cannot write {path}: {error.strerror or error}; {do}") from error


def _open(request: urllib.request.Request, timeout: float) -> Any:
    """The answer to `request`, within `timeout` seconds whatever hangs: a look-up of names has no time limit of its own."""
    outcome: list[Any] = []

    def ask() -> None:
        try:
            outcome.append(urllib.request.urlopen(request, timeout=timeout))
        except Exception as error:  # Raised again below, in the thread that asked.
            outcome.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout)
    if not outcome:
        raise TimeoutError(f"no answer within {timeout:g} s")
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


def _request(file: PublishedFile, folder: Path, have: int, timeout: float) -> Any:
    """The server's answer for the bytes from `have` on; None where it says that there are no more."""
    request = urllib.request.Request(file.url, headers={"User-Agent": "qkdyn", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        return _open(request, timeout)
    except urllib.error.HTTPError as error:
        with error:
            if have and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                return None
            _refuse(file, folder, f"the server answers {error.code} {error.reason}")
    except urllib.error.URLError as error:
        _refuse(file, folder, error.reason)
    except _NETWORK as error:
        _refuse(file, folder, error or type(error).__name__)


def _receive(file: PublishedFile, part: Path, timeout: float) -> None:
    """Bring `part` to the whole of the file, from where it is."""
    with _writing(part):
        have = part.stat().st_size if part.exists() else 0
    answer = _request(file, part.parent, have, timeout)
    if answer is None:
        return
    with answer:
        continued = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range") or "")
        # A server that knows no ranges sends the whole.
        begin = have if answer.status == http.client.PARTIAL_CONTENT and continued and int(continued[1]) == have else 0
        if answer.status == http.client.PARTIAL_CONTENT and not begin:
            _refuse(file, part.parent, f"the server sends other bytes than asked for; delete {part}")
        length = answer.headers.get("Content-Length")
        with _writing(part):
            output = open(part, "ab" if begin else "wb", buffering=0)  # noqa: SIM115 (closed by the next line)
        with output:
            while True:
                try:
                    chunk = answer.read1(_CHUNK)  # What has come: a full read would lose it where the line goes dead.
                except _NETWORK as error:
                    _refuse(file, part.parent, f"the connection broke ({error or type(error).__name__})")
                if not chunk:
                    break
                with _writing(part):
                    while chunk:
                        chunk = chunk[output.write(chunk) :]
            with _writing(part):
                os.fsync(output.fileno())
    size = part.stat().st_size
    if length is not None and size != begin + int(length):
        _refuse(file, part.parent, f"the connection ended after {size:,} of {begin + int(length):,} bytes")


def _zipped(file: PublishedFile) -> bool:
    return urlsplit(file.url).path.endswith(".gz")


def _is_gzip(path: Path) -> bool:
    with open(path, "rb") as opened:
        return opened.read(2) == b"\x1f\x8b"


def _check(file: PublishedFile, path: Path) -> str:
    """The checksum of a download, which is removed where it is not the file that was asked for."""
    try:
        digest = sha256(path)
        if file.sha256 not in (None, digest):
            raise DataError(f"sha256 {digest}, published is {file.sha256}")
        if file.sha256 is None:  # It should at least be readable, and no page that asks to sign in.
            if _zipped(file) and not _is_gzip(path):
                raise DataError("it is not gzipped")
            count_rows(path, file.rows)
    except DataError as error:
        path.unlink()
        raise DataError(
            f"{file.url} sent other content than was published ({error}); it was removed; {_again(path.parent)}"
        ) from error
    return digest


def fetch_file(file: PublishedFile, folder: str | Path, *, timeout: float = TIMEOUT) -> str:
    """Download one file into `folder`, unless it is there; return a line that says what was done.

    The bytes go to NAME.part, from which a later call goes on where the server knows how to; the file takes its name when
    all of it is there and has the published checksum (where one is known; else it must be readable).

    Args:
        file: what to download.
        folder: where to put it; created if missing.
        timeout: seconds after which a silent server is given up.

    Raises:
        DataError: no network, no answer, an error from the server, a broken connection, or other content than published.
            The message names the address and the folder. What was received remains for the next call.
        OutputError: the folder or file cannot be written.
    """
    folder = Path(folder)
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        there = next((path for name in file.names[:2] if (path := folder / name).exists()), None)
    if there:
        digest = sha256(there)
        if file.sha256 not in (None, digest):
            raise DataError(f"{there} differs from the published file; move it away to download {file.url}")
        return f"{there} is there already, sha256 {digest}"
    target = folder / (f"{file.name}.gz" if _zipped(file) else file.name)
    part = target.with_name(f"{target.name}.part")
    _receive(file, part, timeout)
    digest = _check(file, part)
    with _writing(target):
        os.replace(part, target)
    return f"{target}: {target.stat().st_size:,} bytes, sha256 {digest}{'' if file.sha256 else ' (none published)'}"


def fetch(name: str, option: str | Path | None = None, *, say: Callable[[str], object] = lambda line: None) -> str:
    """Download the files of the source `name` into a folder of that name; return a line for each.

    Args:
        name: a data set or vocabulary of the catalogue.
        option: the folder (--data) in which that of the source is put; default QKDYN_DATA, or else ./data.
        say: called with a line before each download.

    Raises:
        DataError, OutputError: as `fetch_file`.
    """
    wanted = source(name)
    folder = Path(option or os.environ.get("QKDYN_DATA") or "data") / name
    lines = []
    for file in wanted.files:
        say(f"{file.url} -> {folder}")
        lines.append(fetch_file(file, folder))
    return "\n".join(lines)

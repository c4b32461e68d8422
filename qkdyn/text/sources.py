"""Where the published files lie, and how a plain or gzipped one is read: every refusal names the path and what to do."""

import gzip
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from qkdyn.errors import DataError
from qkdyn.text.catalogue import SOURCES, PublishedFile, Source

_CHUNK = 1 << 20
_LIST = "`qkdyn data` lists what is needed and where it is published"
# A mark of byte order, as some editors put before a text.
_MARK = "\ufeff"
# How JSON writes halves of surrogate pairs, which UTF-8 cannot hold: only a file with one of these can have a lone half.
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def _refuse(path: Path, error: OSError) -> NoReturn:
    """Raise DataError: the path, the cause as the system words it, and what to do."""
    if isinstance(error, FileNotFoundError):
        do = _LIST
    elif isinstance(error, PermissionError):
        do = "ask for permission to read it, or name another folder with --data"
    elif isinstance(error, IsADirectoryError | NotADirectoryError):
        do = "move what is in the way, or name another folder with --data"
    else:
        do = "name another folder with --data"
    raise DataError(f"cannot read {path}: {error.strerror or error}; {do}") from error


def read_chunks(path: str | Path) -> Iterator[bytes]:
    """The content of a plain or gzipped file (told apart by its first bytes), uncompressed, in pieces of 1 MiB.

    Raises:
        DataError: it cannot be read, or is a gzip file that ends too early or is damaged.
    """
    path = Path(path)
    try:
        with open(path, "rb") as raw:
            zipped = raw.peek(2)[:2] == b"\x1f\x8b"
            with gzip.open(raw) if zipped else raw as file:
                while chunk := file.read(_CHUNK):
                    yield chunk
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is a truncated or damaged gzip file ({error}); copy or download it again") from error
    except OSError as error:
        _refuse(path, error)


def open_text(path: str | Path) -> str:
    """The whole text of a plain or gzipped file in UTF-8, without a mark of byte order before it.

    Raises:
        DataError: missing, a folder, not permitted, a truncated gzip file, not UTF-8; the message names the path.
    """
    data = b"".join(read_chunks(path))
    try:
        return data.decode().removeprefix(_MARK)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}); copy or download it again") from error


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a plain or gzipped file in UTF-8, one at a time: for files that are too large to be held as text.

    Raises:
        DataError: as `open_text`.
    """
    rest, mark = b"", _MARK
    try:
        for chunk in read_chunks(path):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.decode().removeprefix(mark)
                mark = ""
        if rest:
            yield rest.decode().removeprefix(mark)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}); copy or download it again") from error


def _lone(value: Any) -> Iterator[str]:
    """Where in a JSON value there is text that UTF-8 cannot hold, each as the way to it."""
    if isinstance(value, str):
        if any("\ud800" <= character <= "\udfff" for character in value):
            yield ""
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (f": the key {key!r}" for _ in _lone(key))
            yield from (f".{key}{way}" for way in _lone(item))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from (f"[{index}]{way}" for way in _lone(item))


def read_json(path: str | Path) -> Any:
    """What a plain or gzipped JSON file holds.

    Raises:
        DataError: as `open_text`; not JSON; a key twice in one object; half of a surrogate pair, which no file could be
            written with: the message shows the way to it, such as data[0].paragraphs[0].context.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        held = dict(pairs)
        if len(held) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in held if keys.count(key) > 1)
            raise DataError(f"{path} has the key {twice!r} twice in one object; take the file as published")
        return held

    text = open_text(path)
    try:
        found = json.loads(text, object_pairs_hook=once)
    except DataError:
        raise
    except (ValueError, RecursionError) as error:  # Python also refuses integers of thousands of digits.
        raise DataError(f"{path} is not valid JSON ({error}); copy or download it again") from error
    if _HALF.search(text) and (way := next(_lone(found), None)) is not None:
        where = way.removeprefix(".").removeprefix(": ")
        raise DataError(f"{path}: {where} holds half of a surrogate pair, which is no text; take the file as published")
    return found


def sha256(path: str | Path) -> str:
    """SHA-256 of the content, uncompressed: a file and its gzipped copy agree."""
    digest = hashlib.sha256()
    for chunk in read_chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    """The first of `names` that is in `folder`; DataError where the folder cannot be read."""
    for name in names:
        try:
            (folder / name).stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            _refuse(folder / name, error)
        return folder / name
    return None


def find(folder: str | Path, name: str) -> Path:
    """The path of `name`, or else of `name`.gz, in `folder`.

    Raises:
        DataError: neither is there, or the folder cannot be read.
    """
    path = _first(Path(folder), (name, f"{name}.gz"))
    if path is None:
        raise DataError(f"neither {name} nor {name}.gz is in {folder}; {_LIST}")
    return path


def find_published(folder: str | Path, file: PublishedFile) -> Path:
    """The path of a published file in `folder`, or of one that is taken instead; DataError where there is none."""
    path = _first(Path(folder), file.names)
    if path is None:
        raise DataError(f"none of {', '.join(file.names)} is in {folder}; {_LIST}")
    return path


def source(name: str) -> Source:
    """The data set or vocabulary of this name, or DataError with the names that there are."""
    if name not in SOURCES:
        raise DataError(f"no data set or vocabulary is called {name!r}; choose one of {', '.join(SOURCES)}")
    return SOURCES[name]


def places(option: str | Path | None, name: str) -> tuple[Path, ...]:
    """The folders where the files of `name` are looked for, in this order.

    `option` (--data) and `option`/`name` where it is given; else $QKDYN_DATA/`name`, $QKDYN_DATA and ./data/`name`.
    """
    if option is not None:
        return Path(option), Path(option) / name
    root = os.environ.get("QKDYN_DATA")
    return (*((Path(root) / name, Path(root)) if root else ()), Path("data") / name)


def _lacking(folder: Path, wanted: Source, enough: str | None) -> str:
    """What keeps `folder` from being the folder of `wanted`; empty where nothing does."""
    try:
        here = set(os.listdir(folder))
    except OSError as error:
        return (error.strerror or str(error)).lower()
    if enough and here.intersection((enough, f"{enough}.gz")):
        return ""
    missing = [file.name for file in wanted.files if not here.intersection(file.names)]
    instead = f", and {enough}, which would do" if enough else ""
    return f"lacks {' and '.join(missing)}{instead}" if missing else ""


def data_folder(option: str | Path | None, name: str, *, enough: str | None = None) -> Path:
    """The folder that holds the files of the source `name`: the first of `places` that has them all.

    Args:
        option: the folder given by --data, or None.
        name: of the source.
        enough: a file that serves without the others, plain or gzipped.

    Raises:
        DataError: none of them does; the message names each place and what it lacks.
    """
    wanted, looked = source(name), []
    if option is not None and "\0" in str(option):
        raise DataError(f"cannot read {str(option)!r}: a name of a folder has no NUL; choose another --data")
    for folder in places(option, name):
        lacking = _lacking(folder, wanted, enough)
        if not lacking:
            return folder
        looked.append(f"{folder} ({lacking})")
    raise DataError(
        f"the files of {name} were not found; looked at {', '.join(looked)}; name their folder with --data or "
        f"QKDYN_DATA, or run `qkdyn data fetch {name}`"
    )


def checksums(folder: str | Path, name: str) -> dict[str, str]:
    """File name -> SHA-256 of the uncompressed content, for the files of the source `name` in `folder`."""
    paths = [find_published(folder, file) for file in source(name).files]
    return {path.name.removesuffix(".gz"): sha256(path) for path in paths}

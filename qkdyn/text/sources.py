"""The published files each experiment on text needs: their names, where they lie, and how they are read and counted."""

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from qkdyn.errors import DataError

_CHUNK = 1 << 20


@dataclass(frozen=True)
class PublishedFile:
    """One file as published.

    Attributes:
        name: its name, upstream and in the data folder (there also gzipped, as `name`.gz).
        url: where it is published.
        sha256: of the published content, uncompressed; None where it is not known for certain.
        rows: what one row is: posts, lists of ids, questions, sentences, tokens or merges.
        instead: names of files with the same columns or keys that are taken where this one is missing.
    """

    name: str
    url: str
    sha256: str | None
    rows: str
    instead: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """A data set or vocabulary: the folder name under which it is looked for, who needs it, its licence, its files."""

    name: str
    needed_by: str
    licence: str
    files: tuple[PublishedFile, ...]


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "hatexplain",
            "Table 1 and 5, HateXplain (make hatexplain)",
            "MIT; CC BY 4.0 on its card; offensive language",
            tuple(
                PublishedFile(
                    name, f"https://raw.githubusercontent.com/hate-alert/HateXplain/master/Data/{name}", digest, rows
                )
                for name, digest, rows in (
                    ("dataset.json", None, "posts"),
                    (
                        "post_id_divisions.json",
                        "c2fb0d89862e7897b11ea3e9380753f15a793482b4b70ad0532dfb1212212835",
                        "lists of ids",
                    ),
                )
            ),
        ),
    )
}


def _refuse(path: Path, error: OSError) -> NoReturn:
    """Raise DataError: the path, the cause as the system words it, and what to do."""
    if isinstance(error, FileNotFoundError):
        do = "`qkdyn data` lists what is needed and where it is published"
    elif isinstance(error, PermissionError):
        do = "ask for permission to read it, or name another folder with --data"
    elif isinstance(error, IsADirectoryError | NotADirectoryError):
        do = "move what is in the way, or name another folder with --data"
    else:
        do = "name another folder with --data"
    raise DataError(f"cannot read {path}: {error.strerror or error}; {do}") from error


def read_chunks(path: Path) -> Iterator[bytes]:
    """The content of a plain or gzipped file (told apart by its first bytes), uncompressed, in pieces of 1 MiB.

    Raises:
        DataError: it cannot be read, or is a gzip file that ends too early or is damaged.
    """
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
    """The whole text of a plain or gzipped file in UTF-8.

    Raises:
        DataError: missing, a folder, not permitted, a truncated gzip file, not UTF-8; the message names the path.
    """
    data = b"".join(read_chunks(Path(path)))
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}); copy or download it again") from error


def read_json(path: str | Path) -> Any:
    """What a plain or gzipped JSON file holds.

    Raises:
        DataError: as `open_text`; not JSON; a key twice in one object.
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
        return json.loads(text, object_pairs_hook=once)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({error}); copy or download it again") from error


def find(folder: str | Path, name: str) -> Path:
    """The path of `name`, or else of `name`.gz, in `folder`.

    Raises:
        DataError: neither is there, or the folder cannot be read.
    """
    plain = Path(folder) / name
    for path in (plain, plain.with_name(f"{name}.gz")):
        try:
            path.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            _refuse(path, error)
        return path
    raise DataError(
        f"neither {name} nor {name}.gz is in {folder}; `qkdyn data` lists what is needed and where it is published"
    )


def _lacking(folder: Path, source: Source) -> str:
    """What keeps `folder` from being the folder of `source`; empty where nothing does."""
    try:
        if not folder.exists():
            return "no such folder"
        if not folder.is_dir():
            return "not a folder"
        here = set(os.listdir(folder))
    except OSError as error:
        return error.strerror or str(error)
    missing = [
        file.name
        for file in source.files
        if not any({name, f"{name}.gz"} & here for name in (file.name, *file.instead))
    ]
    return f"lacks {' and '.join(missing)}" if missing else ""


def places(option: str | Path | None, name: str) -> list[Path]:
    """The folders where `name` is looked for, in this order."""
    if option is not None:
        return [Path(option), Path(option) / name]
    root = os.environ.get("QKDYN_DATA")
    return [*([Path(root) / name, Path(root)] if root else []), Path("data") / name]


def data_folder(option: str | Path | None, name: str) -> Path:
    """The folder that holds the files of the source `name`.

    Looked at are: `option` and `option`/`name` where it is given; else $QKDYN_DATA/`name`, $QKDYN_DATA and ./data/`name`.

    Raises:
        DataError: none of these holds all files of the source; the message names each of them and what it lacks.
    """
    if name not in SOURCES:
        raise DataError(f"no data set or vocabulary is called {name!r}; there are {', '.join(SOURCES)}")
    looked = []
    for folder in places(option, name):
        lacking = _lacking(folder, SOURCES[name])
        if not lacking:
            return folder
        looked.append(f"{folder} ({lacking})")
    raise DataError(
        f"the files of {name} were not found; looked at {', '.join(looked)}; name their folder with --data or "
        f"QKDYN_DATA, or run `qkdyn data fetch {name}`"
    )


def sha256(path: str | Path) -> str:
    """SHA-256 of the content, uncompressed: a file and its gzipped copy agree."""
    digest = hashlib.sha256()
    for chunk in read_chunks(Path(path)):
        digest.update(chunk)
    return digest.hexdigest()


def checksums(folder: str | Path, name: str) -> dict[str, str]:
    """File name -> SHA-256 of the uncompressed content, for the files of the source `name` in `folder`."""
    found = {}
    for file in SOURCES[name].files:
        path = locate(folder, file)
        found[path.name.removesuffix(".gz")] = sha256(path)
    return found


def locate(folder: str | Path, file: PublishedFile) -> Path:
    """The path of `file` in `folder`, or of one that is taken instead; DataError where there is none."""
    for name in file.instead:
        for candidate in (Path(folder) / name, Path(folder) / f"{name}.gz"):
            if not _there(folder, file.name) and candidate.exists():
                return candidate
    return find(folder, file.name)


def _there(folder: str | Path, name: str) -> bool:
    return any((Path(folder) / written).exists() for written in (name, f"{name}.gz"))

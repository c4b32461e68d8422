"""What `qkdyn data` shows: each source, who needs it, where it was looked for, what was found, where it is published."""

from pathlib import Path

from qkdyn.errors import DataError
from qkdyn.text.catalogue import SOURCES, PublishedFile, Source
from qkdyn.text.hatexplain import read_hatexplain
from qkdyn.text.sources import data_folder, find, find_published, open_text, places, read_chunks, read_json, sha256


def _questions(path: Path) -> int:
    try:
        return sum(len(paragraph["qas"]) for article in read_json(path)["data"] for paragraph in article["paragraphs"])
    except (KeyError, TypeError) as error:
        raise DataError(f"{path} is not as SQuAD's files are ({error!r}); take the file as published") from error


def count_rows(path: Path, rows: str) -> int:
    """Rows of a file: lines (less a first one that heads them), keys of a JSON object, or SQuAD's questions.

    Raises:
        DataError: the file cannot be read, or is not what it should be.
    """
    if rows == "questions":
        return _questions(path)
    if ".json" in path.suffixes:
        content = read_json(path)
        if not isinstance(content, dict):
            raise DataError(f"{path} holds no JSON object; take the file as published")
        return len(content)
    if rows == "sentences":  # Large, so counted as it is read; its last line has an end, its first names the columns.
        return max(0, sum(chunk.count(b"\n") for chunk in read_chunks(path)) - 1)
    lines = open_text(path).splitlines()
    return sum(bool(line) for line in lines) - (bool(lines) and lines[0].startswith("#version"))


def _shown(path: Path, file: PublishedFile) -> str:
    """One line on a file that is there."""
    try:
        rows, digest = count_rows(path, file.rows), sha256(path)
    except DataError as error:
        return f"{path.name}: {error}"
    if path.name.removesuffix(".gz") != file.name:
        verdict = f"taken instead of {file.name}"
    elif file.sha256 is None:
        verdict = "no published checksum known"
    else:
        verdict = "as published" if digest == file.sha256 else f"differs from the published {file.sha256}"
    return f"{path.name}: {rows:,} {file.rows}, sha256 {digest} ({verdict})"


def _beside(folder: Path, name: str) -> str:
    """One line on a file that need not be there."""
    try:
        path = find(folder, name)
    except DataError:
        return f"{name}: not there, and not needed; it is made from the others"
    try:
        return f"{path.name}: {count_rows(path, 'sentences'):,} sentences, sha256 {sha256(path)} (taken where it is needed)"
    except DataError as error:
        return f"{path.name}: {error}"


def _alone(option: Path | None, wanted: Source, name: str) -> list[str]:
    """A line on a file that some experiments can do with alone, where it is there."""
    try:
        path = find(data_folder(option, wanted.name, enough=name), name)
        return [f"  but {path}: {count_rows(path, 'sentences'):,} sentences, enough for what reads no more than these"]
    except DataError:
        return []


def _hatexplain(folder: Path) -> list[str]:
    """The posts that an experiment would read, and what differs from the published data."""
    try:
        data = read_hatexplain(folder)
    except DataError as error:
        return [f"cannot be used: {error}"]
    splits = (("train", data.train), ("validation", data.validation), ("test", data.test))
    counts = [
        f"{name} {len(posts):,} posts ({sum(bool(post.rationales) for post in posts):,} with rationales)"
        for name, posts in splits
    ]
    return [f"{', '.join(counts)}; {data.undecided:,} undecided", *(f"note: {note}" for note in data.notes)]


def _entry(option: Path | None, wanted: Source) -> str:
    lines = [f"{wanted.name}: {wanted.title}", f"  needed by: {wanted.needed_by}", f"  licence: {wanted.licence}"]
    try:
        folder = data_folder(option, wanted.name)
    except DataError as error:
        lines += [f"  NOT FOUND: {error}", *(line for name in wanted.beside for line in _alone(option, wanted, name))]
    else:
        looked = [str(place) for place in places(option, wanted.name)]
        lines += [f"  looked at: {', '.join(looked[: looked.index(str(folder)) + 1])}", f"  found in {folder}:"]
        lines += [f"    {_shown(find_published(folder, file), file)}" for file in wanted.files]
        lines += [f"    {_beside(folder, name)}" for name in wanted.beside]
        if wanted.name == "hatexplain":
            lines += [f"    {line}" for line in _hatexplain(folder)]
    return "\n".join([*lines, "  published at:", *(f"    {file.url}" for file in wanted.files)])


def list_sources(option: Path | None = None) -> str:
    """Every source, one paragraph each; nothing is downloaded.

    Args:
        option: the folder given by --data, or None for QKDYN_DATA and ./data.
    """
    return "\n\n".join(_entry(option, wanted) for wanted in SOURCES.values())

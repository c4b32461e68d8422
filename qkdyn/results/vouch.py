"""Whether the files of a run are those that its manifest vouches for: kept honest across kills and copies."""

import hashlib
import json
import os
import warnings
from pathlib import Path

from qkdyn.errors import OutputError, OutputWarning

MANIFEST = "run.json"
_DO = "run the experiment again, or take the numbers as those of an unknown run"


def _checksums(folder: Path) -> dict[str, str]:
    """The checksums in the manifest by file.

    Raises:
        OutputError: there is none, or it cannot be read; a few words.
    """
    try:
        found = json.loads((folder / MANIFEST).read_bytes())["sha256"]
    except FileNotFoundError:
        raise OutputError("missing") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise OutputError(f"damaged ({type(error).__name__})") from error
    if not isinstance(found, dict):
        raise OutputError("damaged (its sha256 is no table)")
    return found


def _fault(path: Path, checksum: object) -> str | None:
    """What is wrong with a file whose checksum is known, in a few words; None where nothing is."""
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if found == checksum else f"not the file that {MANIFEST} vouches for"


def verify(folder: str | Path) -> list[str]:
    """Compare the files of a run with the checksums in its run.json.

    Args:
        folder: the folder that holds run.json and the files it lists.

    Returns:
        One line "<file>: <what is wrong>" for each file that is missing or differs, and for a manifest that is missing
        or damaged; empty where everything is as the run left it.
    """
    folder = Path(folder)
    try:
        checksums = _checksums(folder)
    except OutputError as error:
        return [f"{MANIFEST}: {error}"]
    faults = ((name, _fault(folder / name, checksum)) for name, checksum in checksums.items())
    return [f"{name}: {fault}" for name, fault in faults if fault]


def warn_unless_vouched(
    path: str | Path, *, folder: Path | None = None, required: bool = False, stacklevel: int = 2
) -> None:
    """Warn by one OutputWarning if `path` is not the file that the run.json beside it, or in `folder`, vouches for.

    A file without such a manifest, or that the manifest does not list, is nobody's: silent unless `required`.
    """
    path = Path(path)
    folder = path.parent if folder is None else folder
    name = path.relative_to(folder).as_posix()
    try:
        checksums = _checksums(folder)
    except OutputError as error:
        if required or str(error) != "missing":
            text = f"nothing vouches for {path}: {folder / MANIFEST} is {error}; {_DO}"
            warnings.warn(text, OutputWarning, stacklevel=stacklevel + 1)
        return
    if name not in checksums:
        fault = f"not among the files that {MANIFEST} lists" if required else None
    else:
        fault = _fault(path, checksums[name])
    if fault:
        text = f"{path} is {fault}: replaced since, or by a run that ended while it was writing; {_DO}"
        warnings.warn(text, OutputWarning, stacklevel=stacklevel + 1)


def retract(folder: str | Path) -> None:
    """Remove run.json, for good before anything else is written: from here on nothing vouches for the folder.

    Call this before the first file of a new set is written, and write the new manifest last. A kill in between then
    leaves files without a manifest, which `verify` reports, and never new files beside the manifest of an old run.

    Raises:
        OutputError: the manifest is there and cannot be removed.
    """
    # A link is followed, as when the manifest is written.
    path = Path(os.path.realpath(Path(folder) / MANIFEST))
    try:
        path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        text = f"cannot remove {path}: {error.strerror or error}; remove it, or choose another --out"
        raise OutputError(text) from error
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # Some network file systems cannot flush a folder.
    finally:
        os.close(descriptor)

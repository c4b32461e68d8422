"""Tables from CSV files that anybody may have edited: read and checked before anything is made of them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qkdyn.errors import InputError, OutputError

if TYPE_CHECKING:
    import pandas


def load_frame(
    path: str | Path, *, do: str = "run the experiment that writes it, or name another"
) -> "pandas.DataFrame":
    """Read the CSV file `path`.

    Args:
        path: the file.
        do: what the message advises.

    Raises:
        OutputError: the file is missing, unreadable, empty or not CSV; the message names it and says what to do.
    """
    import pandas as pd

    if not Path(path).is_file():
        raise OutputError(f"cannot read {path}: there is no such file; {do}")
    try:
        return pd.read_csv(path, low_memory=False)
    # Text that is no CSV, no text at all and an empty file are three kinds of ValueError.
    except (OSError, ValueError) as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OutputError(f"cannot read {path}: it is empty, damaged or not CSV ({what}); {do}") from error


def check_frame(
    frame: "pandas.DataFrame",
    *,
    key: Sequence[str],
    positive: Sequence[str] = (),
    numbers: Sequence[str] = (),
    source: str = "the table",
    do: str = "",
) -> None:
    """Raise InputError unless `frame` has rows, the columns named, numbers where they are due, and one row per `key`.

    Args:
        frame: the table.
        key: columns that together name a row; none may be blank.
        positive: columns of finite numbers > 0.
        numbers: columns of numbers, blank where not known.
        source: where the table comes from, for the message.
        do: what the message advises.
    """
    advice = f"; {do}" if do else ""
    missing = [name for name in dict.fromkeys([*key, *positive, *numbers]) if name not in frame.columns]
    if missing:
        raise InputError(f"{source} lacks the columns {', '.join(missing)}{advice}")
    if not len(frame):
        raise InputError(f"{source} holds no row{advice}")
    for name in (*positive, *numbers):
        values = frame[name].tolist()
        good = [isinstance(value, int | float) and not isinstance(value, bool) for value in values]
        if name in positive:
            good = [fine and math.isfinite(value) and value > 0 for fine, value in zip(good, values, strict=True)]
        if not all(good):
            allowed = "finite numbers > 0" if name in positive else "numbers"
            raise InputError(f"{name} in {source} must hold {allowed}, got {values[good.index(False)]!r}{advice}")
    blank = [name for name in key if frame[name].isna().to_numpy().any()]
    if blank:
        raise InputError(f"{source} has blanks in {', '.join(blank)}{advice}")
    double = frame.duplicated(list(key)).to_numpy()
    if double.any():
        first = frame.iloc[int(double.argmax())]
        cell = ", ".join(f"{name} {first[name]}" for name in key)
        raise InputError(f"{source} has several rows for {cell}: their mean would mean nothing{advice}")

"""Two runs side by side at the same loss: what changed, against the seeds' spread and against the theory."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkdyn.errors import InputError
from qkdyn.results.datasets import QUANTITIES, load_dataset
from qkdyn.results.summary import CELL, summary_frame

if TYPE_CHECKING:
    import pandas
    import xarray

_LEGEND = """\
B/A-1    relative difference of the means over seeds
spread   (B - A) / sqrt(sd_A^2 + sd_B^2): below about 1 the seeds alone could make the difference
|A-th|   |mean / theory - 1| in A, each run against the theory of its own settings
ratio    |B-th| / |A-th|: 0.5 means that B is twice as close to the theory"""


def _keys(frame: "pandas.DataFrame") -> "pandas.DataFrame":
    """Index `frame` by its cell, with numbers rounded so that 0.1 from two sources is the same cell."""
    rounded = {name: [float(f"{value:.10g}") for value in frame[name]] for name in ("r", "level")}
    return frame.assign(**rounded).set_index(list(CELL))


def _left_out(a: "pandas.DataFrame", b: "pandas.DataFrame") -> Iterator[str]:
    """A line for each axis whose values differ between the runs."""
    for name in CELL:
        values_a, values_b = (dict.fromkeys(frame.index.get_level_values(name)) for frame in (a, b))
        for run, own, other in (("A", values_a, values_b), ("B", values_b, values_a)):
            only = [value if isinstance(value, str) else f"{value:.6g}" for value in own if value not in other]
            if only:
                yield f"left out, {name} only in {run}: {', '.join(only)}"


def _settings(ds: "xarray.Dataset") -> dict[str, Any]:
    """The settings kept in the attribute `config`; empty where there are none."""
    try:
        found = json.loads(ds.attrs.get("config", "{}"))
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _changed_settings(a: "xarray.Dataset", b: "xarray.Dataset") -> Iterator[str]:
    """A line for each setting whose value differs."""
    settings_a, settings_b = _settings(a), _settings(b)
    for name in dict.fromkeys([*settings_a, *settings_b]):
        values = [json.dumps(settings[name]) if name in settings else "absent" for settings in (settings_a, settings_b)]
        if values[0] != values[1]:
            yield f"setting {name}: {values[0]} in A, {values[1]} in B"


def _differences(a: "pandas.DataFrame", b: "pandas.DataFrame", name: str) -> dict[str, np.ndarray]:
    """The columns of the comparison of quantity `name`, cell by cell; not finite where one side is not known."""
    mean_a, mean_b = a[f"{name}_mean"].to_numpy(), b[f"{name}_mean"].to_numpy()
    error_a, error_b = np.abs(a[f"{name}_rel_diff"].to_numpy()), np.abs(b[f"{name}_rel_diff"].to_numpy())
    spread = np.hypot(a[f"{name}_sd"].to_numpy(), b[f"{name}_sd"].to_numpy())
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = {"B/A-1": mean_b / mean_a - 1, "spread": (mean_b - mean_a) / spread, "ratio": error_b / error_a}
    return {"A": mean_a, "B": mean_b} | columns | {"|A-th|": error_a, "|B-th|": error_b}


def _section(a: "pandas.DataFrame", b: "pandas.DataFrame", name: str) -> Iterator[str]:
    """The lines of one quantity: a heading, a row per cell, and the medians."""
    columns = _differences(a, b, name)
    formats = {
        "A": ".6g",
        "B": ".6g",
        "B/A-1": "+.2%",
        "spread": "+.2f",
        "|A-th|": ".3%",
        "|B-th|": ".3%",
        "ratio": ".3f",
    }
    unit = " (units of 1/eta_OV)" if name == "t" else ""
    yield f"{name}{unit} at matched loss"
    yield f"{'design':<9}{'circuits':<9}{'r':>8}{'loss':>9}" + "".join(f"{key:>11}" for key in formats)
    for i, (design, circuits, r, level) in enumerate(a.index):
        numbers = [
            f"{format(columns[key][i], form) if math.isfinite(columns[key][i]) else '·':>11}"
            for key, form in formats.items()
        ]
        yield f"{design:<9}{circuits:<9}{r:>8.4g}{level:>9.4g}" + "".join(numbers)
    ratios = columns["ratio"][np.isfinite(columns["ratio"])]
    if ratios.size:
        yield f"median ratio |B-th| / |A-th| of {name}: {np.median(ratios):.3f} over {ratios.size} cells"
    yield ""


def compare_runs(path_a: str | Path, path_b: str | Path) -> str:
    """Compare two sweeps cell by cell at matched loss.

    Runs are aligned on the designs, parameterizations, ratios and losses that both have; what only one of them has is
    named. Made to show, for example, that halving the learning rate halves the distance to the theory.

    Args:
        path_a: a run folder, or its data.nc.
        path_b: the other.

    Returns:
        Text of at most 120 columns: changed settings, what was left out, and for each of alpha, mu_ov, mu_qk and t the
        means, their relative difference, that difference in units of the seeds' combined spread, the distance of each
        run from its theory, and the ratio of these distances with its median.

    Raises:
        InputError: the runs have no cell in common, or one of the files is not a sweep.
        OutputError: a file is missing or damaged.
    """
    datasets = [load_dataset(path) for path in (path_a, path_b)]
    a, b = (_keys(summary_frame(ds)) for ds in datasets)
    common = [cell for cell in a.index if cell in b.index]
    notes = [*_changed_settings(datasets[0], datasets[1]), *_left_out(a, b)]
    if not common:
        raise InputError(
            f"{path_a} and {path_b} have no (design, parameterization, r, level) in common; compare runs that share "
            f"some ({'; '.join(notes)})"
        )
    lines = [f"A: {path_a}", f"B: {path_b}", *notes, "", _LEGEND, ""]
    for name in QUANTITIES:
        lines += _section(a.loc[common], b.loc[common], name)
    return "\n".join(lines).rstrip() + "\n"

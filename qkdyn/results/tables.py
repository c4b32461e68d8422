"""Tables of a sweep for the terminal: attention at matched loss beside the theory, and what the designs differ in."""

import itertools
import math
from typing import TYPE_CHECKING, Any

from qkdyn.errors import InputError
from qkdyn.results.summary import summary_frame

if TYPE_CHECKING:
    import rich.table
    import xarray

_NONE = "·"
# Columns of the terminal taken by circuits and r, and by what is said about the whole run.
_LABELS, _ENDS = 18, 12


def _number(value: float, form: str = "") -> str:
    """`value` in the format `form`, or a dot where it is not known."""
    return format(value, form) if math.isfinite(value) else _NONE


def _percent(value: float) -> str:
    """A relative difference as a signed percentage of three or fewer digits, such as +0.02%."""
    if not math.isfinite(value):
        return _NONE
    size = abs(value) * 100
    return f"{value * 100:+.{2 if size < 9.995 else 0}f}%" if size < 999.5 else ">+999%"


def amplification(log_value: float) -> str:
    """exp(`log_value`) in words, without overflow: 3.2, 150, 2.4e+13."""
    if not math.isfinite(log_value):
        return _NONE
    if log_value < math.log(1000):
        return f"{math.exp(log_value):.3g}"
    exponent = math.floor(log_value / math.log(10))
    mantissa = f"{math.exp(log_value - exponent * math.log(10)):.1f}"
    # 9.97 rounds to 10.0, which is the next power.
    return f"1.0e+{exponent + 1:02d}" if mantissa == "10.0" else f"{mantissa}e+{exponent:02d}"


def _cell(row: Any) -> str:
    """Attention at one level: mean±sd, theory, relative difference (how many seeds reached it, if not all)."""
    theory = _number(row.alpha_theory, ".4f")
    if not row.reached:
        return f"not reached {theory}"
    spread = f"±{row.alpha_sd:.4f}".replace("±0.", "±.") if math.isfinite(row.alpha_sd) else ""
    some = f" ({row.reached}/{row.seeds})" if row.reached < row.seeds else ""
    return f"{row.alpha_mean:.4f}{spread} {theory} {_percent(row.alpha_rel_diff)}{some}"


def _bounds(row: Any) -> str:
    """Whether the bounds of Lemma 3 hold in every seed, and the smallest ratio of a bound to what it bounds."""
    if not math.isfinite(row.bounds_hold):
        return _NONE
    ratio = _number(row.bounds_tightest, "#.4g")
    return f"hold {ratio}" if row.bounds_hold > 0 else f"[bold red]FAIL {ratio}[/]"


def _table(title: str, columns: tuple[str, ...]) -> "rich.table.Table":
    """An empty table; the columns named r and loss are aligned to the right."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, no_wrap=True, justify="right" if name in ("r", "loss") else "left")
    return table


def _main_table(runs: list[list[Any]], levels: slice, *, first: bool) -> "rich.table.Table":
    """One design: a row per run, a column per level of `levels`; the `first` also has what concerns the whole run."""
    head = runs[0][0]
    losses = tuple(f"loss {row.level:.4g}" for row in runs[0][levels])
    diverged = any(run[0].diverged for run in runs)
    ends = ("Lemma 3", *(("diverged",) if diverged else ())) if first else ()
    title = f"Attention alpha at matched loss, {head.design} design: mean±sd over seeds, theory, relative difference"
    table = _table(title, ("circuits", "r", *losses, *ends))
    for run, following in itertools.zip_longest(runs, runs[1:]):
        head = run[0]
        last = following is None or following[0].parameterization != head.parameterization
        cells = (*map(_cell, run[levels]), _bounds(head), f"[bold red]{head.diverged} of {head.seeds}[/]")
        shown = cells[: len(losses) + len(ends)] if head.diverged else cells[: len(losses) + min(len(ends), 1)]
        table.add_row(head.parameterization, f"{head.r:.4g}", *shown, end_section=last)
    return table


def _competition_table(runs: list[list[Any]]) -> "rich.table.Table":
    """How far sampled class tokens leave the scalars, beside the amplification that the theory predicts."""
    title = "Sampled design at the smallest loss reached: simulation / theory - 1, beside the predicted amplification"
    table = _table(title, ("circuits", "r", "loss", "alpha", "mu_OV", "mu_QK", "amplification within a class"))
    for run, following in itertools.zip_longest(runs, runs[1:]):
        row = min((row for row in run if row.reached), key=lambda row: row.level, default=None)
        cells = ["not reached"]
        if row is not None:
            differences = [_percent(value) for value in (row.alpha_rel_diff, row.mu_ov_rel_diff, row.mu_qk_rel_diff)]
            cells = [f"{row.level:.4g}", *differences, amplification(row.log_amplification)]
        last = following is None or following[0].parameterization != run[0].parameterization
        table.add_row(run[0].parameterization, f"{run[0].r:.4g}", *cells, end_section=last)
    return table


def sweep_table(ds: "xarray.Dataset", *, width: int = 130) -> "list[rich.table.Table]":
    """Tables of a sweep that stay legible on a terminal `width` columns wide.

    For each design one shows, for each parameterization, r and matched loss, attention in simulation and theory,
    whether the bounds of Lemma 3 hold in every seed (and the smallest ratio between a bound and what it bounds: above 1
    they hold), and diverged runs; more losses than fit go to further tables. After the design "sampled" a last table
    shows how far mu_OV and mu_QK leave the theory as the competition inside a class is amplified.

    Args:
        ds: a sweep (see `summarize`) with at least one level.
        width: columns of the terminal.

    Returns:
        Tables to print one below the other.

    Raises:
        InputError: `ds` is not a sweep, or holds no run or no level.
    """
    rows: list[Any] = list(summary_frame(ds).itertuples(index=False))
    if not rows:
        raise InputError("the dataset holds no matched loss: level is empty; run the sweep with at least one level")
    size = ds.sizes["level"]
    runs = [rows[start : start + size] for start in range(0, len(rows), size)]
    # Two columns separate the cells; the marker of diverged runs takes a third end column where there are any.
    ends = _ENDS * (2 if any(run[0].diverged for run in runs) else 1)
    fits = max(1, (width - _LABELS - ends) // (max(len(_cell(row)) for row in rows) + 2))
    tables = []
    for design, group in itertools.groupby(runs, key=lambda run: run[0].design):
        own = list(group)
        for start in range(0, size, fits):
            tables.append(_main_table(own, slice(start, start + fits), first=start == 0))
        if design == "sampled":
            tables.append(_competition_table(own))
    return tables

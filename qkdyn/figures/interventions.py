"""Interventions ranked: attention that each family adds at a matched loss, its cost in updates as colour, theory behind."""

from typing import TYPE_CHECKING, Any

import numpy as np

from qkdyn.errors import InputError
from qkdyn.figures import canvas

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas

# Ratios of updates that the colours span.
COSTS = (0.25, 4.0)
NUMBERS = ("change", "change_low", "change_high", "steps_ratio", "theory_change")
NAMES = ("setting", "form", "family", "level", "reached", "seeds", "own_rate")
# Arms whose updates do not compare.
GREY = "#9a9a9a"


def draw_interventions(frame: "pandas.DataFrame", families: "list[str]") -> "matplotlib.figure.Figure":
    """One panel for each setting and form, one line for each family; every arm a dot with its 95% interval.

    Args:
        frame: rows of arms at the compared level, with the columns `NAMES`, `NUMBERS` and "plain".
        families: in the order from the top; of others nothing is drawn.

    Raises:
        InputError: columns are missing, or there is nothing to draw.
    """
    missing = [name for name in (*NAMES, *NUMBERS, "plain") if name not in frame]
    if missing:
        raise InputError(f"the table of arms lacks the columns {', '.join(missing)}; give that of make interventions")
    if not len(frame) or not families:
        raise InputError("there is no arm to draw; finish some first")
    places = list(dict.fromkeys(zip(frame["setting"], frame["form"], strict=True)))
    figure = canvas.new_figure(2.6 + 3.1 * len(places), 1.6 + 0.3 * len(families))
    grid = figure.subplots(1, len(places), squeeze=False, sharey=True)[0]
    shown = None
    for axes, (setting, form) in zip(grid, places, strict=True):
        own: Any = frame[(frame["setting"] == setting) & (frame["form"] == form) & ~frame["plain"].astype(bool)]
        shown = _panel(axes, own, families) or shown
        level = f"{own['level'].iloc[0]:g}" if len(own) else "?"
        axes.set_title(f"{setting} {form}".strip() + f"\nat loss {level}", fontsize=10)
        axes.set_xlabel("attention beside r = 1, on its own scale", fontsize=9)
    grid[0].set_yticks(range(len(families)), families, fontsize=8)
    grid[0].set_ylim(len(families) - 0.4, -0.6)
    if shown is not None:
        bar = figure.colorbar(shown, ax=list(grid), fraction=0.02, pad=0.01, extend="both")
        ticks = (0.25, 0.5, 1.0, 2.0, 4.0)
        bar.set_ticks(list(ticks), labels=[f"{tick:g}" for tick in ticks])
        bar.minorticks_off()
        bar.set_label("updates, as a multiple of the plain arm's", fontsize=9)
    figure.suptitle(
        "What sharpens attention at a matched loss" if len(places) > 1 else "Attention at a matched loss", fontsize=12
    )
    canvas.legend(figure, _key())
    return figure


def _panel(axes: Any, own: "pandas.DataFrame", families: "list[str]") -> Any:
    """The dots of one setting; what the colour bar is of, None where there is no dot."""
    from matplotlib.colors import LogNorm

    canvas.style(axes)
    axes.axvline(0, color=canvas.INK, linewidth=0.8)
    found = []
    for place, family in enumerate(families):
        rows: Any = own[own["family"] == family]
        known = rows[np.isfinite(rows["change"])]
        at = place + np.linspace(-0.25, 0.25, len(known)) * (len(known) > 1)
        ends = np.abs(known[["change_low", "change_high"]].to_numpy(float) - known[["change"]].to_numpy(float)).T
        axes.errorbar(known["change"], at, xerr=np.nan_to_num(ends), fmt="none", ecolor="#888888", elinewidth=1)
        # Behind the dots, and higher than they are.
        axes.scatter(known["theory_change"], at, marker="|", s=90, color=canvas.INK, linewidth=0.9, zorder=2.5)
        found.append((known["change"], at, known["steps_ratio"], known["own_rate"]))
        if len(known) < len(rows):
            text = f"{len(rows) - len(known)} of {len(rows)} did not reach the loss"
            where = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center", "fontsize": 7}
            axes.text(0.99, place, text, color=canvas.INK, **where)
    columns = zip(*found, strict=True)
    x, y, cost, own_rate = (np.concatenate([np.asarray(part, float) for part in parts]) for parts in columns)
    if not x.size:
        canvas.nothing_recorded(axes, what="no arm that reached the loss")
        return None
    apart = own_rate > 0
    axes.scatter(x[apart], y[apart], color=GREY, s=34, zorder=3)
    colours = {"c": np.clip(cost[~apart], *COSTS), "cmap": "coolwarm", "norm": LogNorm(*COSTS)}
    return axes.scatter(x[~apart], y[~apart], s=34, zorder=3, edgecolors="#666666", linewidths=0.4, **colours)


def _key() -> list[Any]:
    from matplotlib.lines import Line2D

    dot = {"marker": "o", "markersize": 6, "linestyle": ""}
    return [
        Line2D([], [], **dot, color="#8da9e8", label="one arm, 95% interval over seeds"),
        Line2D([], [], **dot, color=GREY, label="at rates or by an optimizer of its own: updates do not compare"),
        Line2D([], [], marker="|", markersize=9, linestyle="", color=canvas.INK, label="theory"),
    ]

"""Figures of the theory laboratory, each from one of its tables; a table that is not there is not drawn."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkdyn.figures import canvas
from qkdyn.results.frames import check_frame

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas

ORDER = ("FACO", "CACO", "FAFO", "CAFO")
CIRCUIT_COLOURS = {"mu_ov": "#0072b2", "mu_qk": "#d55e00"}
DO = "give the tables of experiments.theory"


def draw_bounds(frame: "pandas.DataFrame") -> "matplotlib.figure.Figure":
    """Both circuits over time, a column for each r: the value, Lemma 3's bounds and the sharp bounds."""
    sides = ("lower", "upper", "sharp_lower", "sharp_upper")
    check_frame(frame, key=("r", "t", "quantity"), positive=("r", "t", "value"), numbers=sides, source="bounds", do=DO)
    ratios = sorted(set(frame["r"]))
    figure = canvas.new_figure(2.6 * len(ratios) + 0.6, 5.6)
    grid = figure.subplots(len(CIRCUIT_COLOURS), len(ratios), sharex=True, sharey="row", squeeze=False)
    limits = canvas.log_limits((float(frame["t"].min()), float(frame["t"].max())), 0.01)
    for row, (quantity, colour) in zip(grid, CIRCUIT_COLOURS.items(), strict=True):
        values = frame.loc[frame["quantity"] == quantity, ["value", *sides]].to_numpy(np.float64)
        heights = canvas.log_limits(canvas.span(values, positive=True) or (0.1, 1.0), 0.02)
        for axes, r in zip(row, ratios, strict=True):
            own = frame.loc[(frame["quantity"] == quantity) & (frame["r"] == r), :].sort_values("t")
            canvas.style(axes)
            axes.set(xscale="log", yscale="log", xlim=limits, ylim=heights)
            axes.fill_between(own["t"], own["lower"], own["upper"], color="#bbbbbb", alpha=0.5, linewidth=0)
            axes.fill_between(own["t"], own["sharp_lower"], own["sharp_upper"], color=colour, alpha=0.5, linewidth=0)
            axes.plot(own["t"], own["value"], color=canvas.INK, linewidth=1.3)
            canvas.log_ticks(axes.xaxis, limits)
            canvas.log_ticks(axes.yaxis, heights)
        row[0].set_ylabel(canvas.LABELS[quantity], fontsize=10)
    for axes, r in zip(grid[0], ratios, strict=True):
        axes.set_title(f"r = {r:g}", fontsize=9.5)
    for axes in grid[-1]:
        axes.set_xlabel(r"time $t$ (units of $1/\eta_{OV}$)", fontsize=9)
    figure.suptitle("Lemma 3's bounds (grey), bounds that meet at both ends (coloured), and the solution", fontsize=12)
    return figure


def draw_start_scale(frame: "pandas.DataFrame") -> "matplotlib.figure.Figure":
    """Attention at loss 0.1 against the scale at which factorized circuits start, one panel a ratio, by the theory."""
    key = ("parameterization", "r", "scale")
    check_frame(frame, key=key, positive=("r", "scale", "alpha"), source="start_scale", do=DO)
    ratios = sorted(set(frame["r"]))
    figure = canvas.new_figure(3.4 * len(ratios) + 0.6, 3.9)
    grid = figure.subplots(1, len(ratios), sharex=True, sharey=True, squeeze=False)
    colours = dict(zip(ORDER, ("#009e73", "#0072b2", "#d55e00", "#cc79a7"), strict=True))
    for axes, r in zip(grid[0], ratios, strict=True):
        canvas.style(axes)
        for form, colour in colours.items():
            own = frame.loc[(frame["parameterization"] == form) & (frame["r"] == r), :].sort_values("scale")
            axes.plot(own["scale"], own["alpha"], color=colour, linewidth=2.4, label=form)
        limits = canvas.log_limits((float(frame["scale"].min()), float(frame["scale"].max())), 0.02)
        axes.set(xscale="log", xlim=limits, ylim=(-0.03, 1.03), title=f"r = {r:g}")
        axes.set_xlabel("start of each factorized circuit", fontsize=9)
        canvas.log_ticks(axes.xaxis, limits)
    grid[0, 0].set_ylabel(r"attention $\alpha$ at loss 0.1", fontsize=10)
    canvas.legend(figure, grid[0, 0].get_lines())
    figure.suptitle("The scale of the start decides as much as the ratio", fontsize=12)
    return figure


def draw_random_start(frame: "pandas.DataFrame") -> "matplotlib.figure.Figure":
    """Attention at matched loss against the scale of a random start: seeds as dots, the scalars' prediction dashed."""
    key = ("parameterization", "sigma", "r", "seed", "loss")
    numbers = ("alpha", "alpha_theory", "alpha_mean_start")
    check_frame(frame, key=key, positive=("sigma", "r", "loss"), numbers=numbers, source="random_start", do=DO)
    forms = [form for form in ORDER if form in set(frame["parameterization"])]
    losses, ratios = sorted(set(frame["loss"]), reverse=True), sorted(set(frame["r"]))
    limits = canvas.log_limits((float(frame["sigma"].min()), float(frame["sigma"].max())), 0.06)
    figure = canvas.new_figure(2.9 * len(forms) + 0.6, 2.5 * len(losses) + 1.0)
    grid = figure.subplots(len(losses), len(forms), sharex=True, sharey=True, squeeze=False)
    for row, loss in zip(grid, losses, strict=True):
        for axes, form in zip(row, forms, strict=True):
            own = frame.loc[(frame["parameterization"] == form) & (frame["loss"] == loss), :]
            canvas.style(axes)
            axes.set(xscale="log", xlim=limits, ylim=(-0.03, 1.03))
            canvas.log_ticks(axes.xaxis, limits)
            for r, colour in zip(ratios, canvas.ratio_colours(ratios), strict=True):
                part = own.loc[own["r"] == r, :].sort_values("sigma")
                axes.plot(part["sigma"], part["alpha"], "o", color=colour, markersize=4, alpha=0.7)
                mean = part.groupby("sigma")["alpha_mean_start"].mean()
                canvas.plot_theory(axes, mean.index.to_numpy(np.float64), mean.to_numpy(np.float64))
            if own["alpha"].isna().to_numpy().all():
                canvas.nothing_recorded(axes, what="level not reached")
        row[0].set_ylabel(rf"$\alpha$ at loss {loss:g}", fontsize=10)
    for axes, form in zip(grid[0], forms, strict=True):
        axes.set_title(canvas.panel_title(form), fontsize=9.5)
    for axes in grid[-1]:
        axes.set_xlabel(r"scale $\sigma$ of the random start", fontsize=9)
    figure.suptitle("Training from small random starts, and the scalars from their effective start", fontsize=12)
    canvas.ratio_key(figure, grid, ratios, theory=True)
    return figure


DRAWINGS: dict[str, Callable[[Any], "matplotlib.figure.Figure"]] = {
    "bounds": draw_bounds,
    "start_scale": draw_start_scale,
    "random_start": draw_random_start,
}


def draw_laboratory(tables: "Mapping[str, pandas.DataFrame]", folder: str | Path) -> list[Path]:
    """Draw `<table>.png` for every table that has a picture.

    Raises:
        InputError: a table is not what the laboratory writes. OutputError: a file cannot be written.
    """
    figures = {name: draw(tables[name]) for name, draw in DRAWINGS.items() if name in tables}
    return [canvas.save(figure, Path(folder) / f"{name}.png") for name, figure in figures.items()]

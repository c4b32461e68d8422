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


def _limits(frame: "pandas.DataFrame", column: str, margin: float) -> tuple[float, float]:
    """Limits of a logarithmic axis for a positive column."""
    values = frame[column].to_numpy(np.float64)
    return canvas.log_limits((float(values.min()), float(values.max())), margin)


def draw_bounds(frame: "pandas.DataFrame") -> "matplotlib.figure.Figure":
    """Both circuits over time, a column for each r: the value, Lemma 3's bounds and the sharp bounds."""
    sides = ("lower", "upper", "sharp_lower", "sharp_upper")
    check_frame(frame, key=("r", "t", "quantity"), positive=("r", "t", "value"), numbers=sides, source="bounds", do=DO)
    ratios = sorted(set(frame["r"]))
    figure = canvas.new_figure(2.6 * len(ratios) + 0.6, 5.6)
    grid = figure.subplots(len(CIRCUIT_COLOURS), len(ratios), sharex=True, sharey="row", squeeze=False)
    limits = _limits(frame, "t", 0.01)
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
        limits = _limits(frame, "scale", 0.02)
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
    limits = _limits(frame, "sigma", 0.06)
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


# What falls with what, in which table: title, column of x, columns of y, columns that tell lines apart, expected slope.
FALLS = {
    "drift": ("conserved quantities", "eta", ("drift",), ("M", "circuit"), 1.0),
    "omega_descent": ("descent against the factors' flow", "eta", ("error",), ("circuit",), 1.0),
    "descent": ("descent against Theorem 1", "eta", ("W_OV", "W_QK"), (), 1.0),
    "samples": ("training sets of N sequences", "N", ("W_OV", "W_QK"), (), -0.5),
}
MARKS = ("o", "s", "^", "v", "D", "x")


def draw_convergence(tables: "Mapping[str, pandas.DataFrame]") -> "matplotlib.figure.Figure":
    """What falls like a power of the step or of the number of sequences, a panel a table: medians, and the slope dashed."""
    present = {name: spec for name, spec in FALLS.items() if name in tables}
    figure = canvas.new_figure(3.3 * len(present) + 0.4, 3.6)
    grid = figure.subplots(1, len(present), squeeze=False)
    for axes, (name, (title, x, ys, groups, slope)) in zip(grid[0], present.items(), strict=True):
        frame = tables[name]
        check_frame(frame, key=(x, *groups, *(["seed"] if "seed" in frame else [])), numbers=ys, source=name, do=DO)
        canvas.style(axes)
        parts: Any = frame.groupby(list(groups), sort=False) if groups else [((), frame)]
        lines = [(key, y, part.groupby(x)[y].median()) for key, part in parts for y in ys]
        for mark, colour, (key, y, line) in zip(MARKS, canvas.CATEGORIES, lines, strict=False):
            label = " ".join(f"{g} {k}" if g == "M" else f"{k}" for g, k in zip(groups, key, strict=True)) or y
            axes.plot(line.index, line.to_numpy(), color=colour, marker=mark, markersize=4, linewidth=1.2, label=label)
        first = lines[0][2]
        at = first.index.to_numpy(np.float64)
        axes.plot(
            at,
            first.to_numpy()[0] * 1.6 * (at / at[0]) ** slope,
            color=canvas.INK,
            linestyle=canvas.DASHES,
            linewidth=1,
        )
        axes.set(xscale="log", yscale="log", title=title, xlabel="learning rate" if x == "eta" else x)
        limits = canvas.log_limits((float(at.min()), float(at.max())), 0.08)
        axes.set_xlim(limits)
        canvas.log_ticks(axes.xaxis, limits)
        axes.title.set_fontsize(9.5)
        axes.legend(frameon=False, fontsize=7.5)
    grid[0, 0].set_ylabel("relative difference", fontsize=9)
    figure.suptitle("What must fall falls; dashed: slope 1 in the learning rate, -1/2 in N", fontsize=11.5)
    return figure


def draw_instabilities(tables: "Mapping[str, pandas.DataFrame]") -> "matplotlib.figure.Figure":
    """How far disturbances have grown at a loss: along background directions, and inside a class, against the ratio."""
    background, competition = tables["background"], tables["competition"]
    check_frame(
        background, key=("r", "directions"), positive=("r",), numbers=("log_amplification",), source="background", do=DO
    )
    key = ("parameterization", "loss", "r")
    check_frame(competition, key=key, positive=("r",), numbers=("log_delta",), source="competition", do=DO)
    loss = float(competition["loss"].to_numpy(np.float64).max())
    panels = {
        "along background directions": ("directions", "log_amplification", background),
        f"inside a class, at loss {loss:g}": (
            "parameterization",
            "log_delta",
            competition[competition["loss"] == loss],
        ),
    }
    figure = canvas.new_figure(8.6, 3.9)
    grid = figure.subplots(1, 2, sharey=True, squeeze=False)
    for axes, (title, (group, y, frame)) in zip(grid[0], panels.items(), strict=True):
        canvas.style(axes)
        for mark, colour, (name, part) in zip(MARKS, canvas.CATEGORIES, frame.groupby(group, sort=False), strict=False):
            some = f"{name} direction{'s' * (name != 1)}" if group == "directions" else f"{name}"
            axes.plot(part["r"], part[y], color=colour, marker=mark, markersize=4, linewidth=1.4, label=some)
        for digits, height in (("float64", 36.8), ("float32", 16.1)):
            axes.axhline(height, color=canvas.INK, linewidth=0.9, linestyle=canvas.DASHES)
            axes.annotate(
                f"rounding of {digits} is at 1",
                (1, height),
                (0, 3),
                ("axes fraction", "data"),
                "offset points",
                fontsize=7,
                ha="right",
            )
        axes.set(xscale="log", yscale="symlog", title=title, xlabel=canvas.RATIO_LABEL)
        axes.title.set_fontsize(9.5)
        axes.legend(frameon=False, fontsize=7.5)
    grid[0, 0].set_ylabel("ln of the amplification", fontsize=9)
    figure.suptitle("What leaves the scalars: disturbances that grow", fontsize=11.5)
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
    if any(name in tables for name in FALLS):
        figures["convergence"] = draw_convergence(tables)
    if "background" in tables and "competition" in tables:
        figures["instabilities"] = draw_instabilities(tables)
    return [canvas.save(figure, Path(folder) / f"{name}.png") for name, figure in figures.items()]

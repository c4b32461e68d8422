"""Figure 4: loss over time on two clocks, then both circuits and attention at matched stop losses; one row for each M."""

from typing import TYPE_CHECKING

import numpy as np

from qkdyn.figures import canvas
from qkdyn.results.frames import check_frame

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas

CLOCKS = {"tau": r"$t\,\min(1, r)$ (units of $1/\eta_{OV}$)", "t": r"time $t$ (units of $1/\eta_{OV}$)"}
STATES = ("mu_ov", "mu_qk", "alpha")


def check_growth(frame: "pandas.DataFrame", source: str = "the table") -> None:
    """Raise InputError unless `frame` has a row for each M, r and loss, with times and states."""
    integrated = [f"{name}_diffrax" for name in ("loss", *STATES)]
    positive = ("M", "r", "loss", *CLOCKS, *STATES)
    do = "give the summary.csv of experiments.fig4_growth"
    check_frame(frame, key=("M", "r", "loss"), positive=positive, numbers=integrated, source=source, do=do)


def draw_growth(frame: "pandas.DataFrame") -> "matplotlib.figure.Figure":
    """The four panels of Figure 4 (the first on both clocks) for each M: closed form as lines, diffrax as dashes.

    Args:
        frame: columns M, r, loss, t, tau, mu_ov, mu_qk, alpha and `*_diffrax` of the last three and the loss.

    Raises:
        InputError: `frame` is not such a table.
    """
    check_growth(frame)
    classes, ratios = sorted(set(frame["M"])), sorted(set(frame["r"].astype(float)))
    figure = canvas.new_figure(14.5, 3.1 * len(classes) + 0.8)
    grid = figure.subplots(len(classes), 5, squeeze=False)
    for row, M in zip(grid, classes, strict=True):
        own = frame.loc[frame["M"] == M, :]
        losses = canvas.log_limits((float(own["loss"].min()), float(own["loss"].max())), 0.02)
        for axes, (clock, label) in zip(row[:2], CLOCKS.items(), strict=True):
            times = canvas.log_limits((float(own[clock].min()), float(own[clock].max())), 0.02)
            _lines(axes, own, ratios, clock, "loss")
            axes.set(xscale="log", yscale="log", xlim=times, ylim=losses)
            axes.set_xlabel(label, fontsize=9)
            canvas.log_ticks(axes.xaxis, times)
            canvas.log_ticks(axes.yaxis, losses)
        for axes, name in zip(row[2:], STATES, strict=True):
            _lines(axes, own, ratios, "loss", name)
            axes.set(xscale="log", xlim=losses[::-1])
            axes.set_xlabel("stop loss (falls to the right)", fontsize=9)
            canvas.log_ticks(axes.xaxis, losses)
        row[4].set_ylim(-0.03, 1.03)
        row[0].set_ylabel(f"M = {M:g}\nloss", fontsize=10)
    figure.suptitle("Every ratio brings the loss down; which attention it brings depends on the ratio", fontsize=12)
    canvas.ratio_key(figure, grid, ratios, theory=True, dashes="diffrax")
    return figure


def _lines(axes, frame: "pandas.DataFrame", ratios: list[float], x: str, y: str) -> None:
    """One coloured line a ratio, and over it what diffrax gives at the same times."""
    canvas.style(axes)
    axes.set_ylabel(canvas.LABELS[y], fontsize=10)
    for r, colour in zip(ratios, canvas.ratio_colours(ratios), strict=True):
        part = frame.loc[frame["r"] == r, :].sort_values("loss")
        axes.plot(part[x], part[y], color=colour, linewidth=2.6)
        across = part[x] if x != "loss" else part["loss_diffrax"]
        canvas.plot_theory(axes, across.to_numpy(np.float64), part[f"{y}_diffrax"].to_numpy(np.float64))

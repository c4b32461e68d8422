"""Loss, both circuits and attention over time, every run of one design beside the theory."""

import math
from typing import TYPE_CHECKING

import numpy as np

from qkdyn.errors import reject
from qkdyn.figures import canvas
from qkdyn.results.datasets import check_sweep

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    import xarray

TIME = r"time $t$ (units of $1/\eta_{OV}$)"


def draw_trajectories(ds: "xarray.Dataset", design: str) -> "matplotlib.figure.Figure":
    """Loss, mu_OV, mu_QK and attention over time, one column per parameterization, one colour per ratio.

    Args:
        ds: a sweep with loss, mu_ov, mu_qk, alpha on (design, parameterization, r, seed, record), `t` on
            (parameterization, record) in units of 1/eta_OV and, where known, `theory_*` on (parameterization, r,
            record).
        design: the design to draw.

    Returns:
        The figure, for `qkdyn.figures.canvas.save`.

    Raises:
        InputError: `ds` is not a sweep, holds no run or no record, or has no such design.
    """
    check_sweep(ds, ["t", *canvas.LABELS])
    designs = [str(name) for name in ds["design"].to_numpy()]
    if design not in designs:
        reject("design", design, f"one of the dataset's: {', '.join(designs)}")
    names = ds["parameterization"].to_numpy().tolist()
    ratios = ds["r"].to_numpy().tolist()
    figure = canvas.new_figure(max(2.7 * len(names) + 1.2, 5.5), 9.0)
    grid = figure.subplots(len(canvas.LABELS), len(names), sharex="col", sharey="row", squeeze=False)
    chosen = ds.sel(design=design)
    for column, name in enumerate(names):
        runs = chosen.isel(parameterization=column)
        grid[0, column].set_title(canvas.panel_title(name), fontsize=9.5)
        grid[-1, column].set_xlabel(TIME, fontsize=9)
        for row, variable in enumerate(canvas.LABELS):
            _trajectory_panel(grid[row, column], runs, variable, ratios)
    for row, (variable, label) in enumerate(canvas.LABELS.items()):
        grid[row, 0].set_ylabel(label, fontsize=10)
        if variable == "loss":
            # Limits of our own: a logarithmic axis cannot choose any where every run diverged at once.
            bounds = canvas.span(chosen["loss"].to_numpy(), positive=True) or (0.1, 1.0)
            limits = canvas.log_limits(bounds)
            grid[row, 0].set(yscale="log", ylim=limits)
            canvas.log_ticks(grid[row, 0].yaxis, limits)
        if variable == "alpha":
            grid[row, 0].set_ylim(-0.03, 1.03)
    seeds = ds.sizes["seed"]
    figure.suptitle(f"Training against theory, {design} design ({seeds} seed{'s' * (seeds > 1)})", fontsize=12)
    canvas.ratio_key(figure, grid, ratios, theory=canvas.known(ds, "theory_loss"))
    return figure


def _trajectory_panel(axes: "matplotlib.axes.Axes", runs: "xarray.Dataset", variable: str, ratios: list[float]) -> None:
    """One quantity of one parameterization over time, from shortly before the first run begins to learn."""
    time = runs["t"].to_numpy()
    values = runs[variable].transpose("r", "seed", "record").to_numpy()
    canvas.style(axes)
    axes.set_xscale("log")
    limits = _time_limits(time, runs["loss"].transpose("record", ...).to_numpy())
    axes.set_xlim(*limits)
    canvas.log_ticks(axes.xaxis, limits)
    # A logarithmic axis has no place for the start.
    positive = np.isfinite(time) & (time > 0)
    if not np.isfinite(values[..., positive]).any():
        canvas.nothing_recorded(axes, started=bool(np.isfinite(values).any()))
        return
    for k, colour in enumerate(canvas.ratio_colours(ratios)):
        canvas.band(axes, time[positive], values[k][:, positive], colour, canvas.line_width(len(ratios)))
    if f"theory_{variable}" in runs:
        curves = runs[f"theory_{variable}"].transpose("r", "record").to_numpy()
        for k in range(0, len(ratios), canvas.theory_stride(len(ratios))):
            # The theory goes on for ever; it is drawn as long as some run of its ratio is there to compare.
            known = positive & np.isfinite(values[k]).any(0)
            canvas.plot_theory(axes, time[positive], np.where(known, curves[k], np.nan)[positive])


def _time_limits(time: np.ndarray, loss: np.ndarray) -> tuple[float, float]:
    """From the decade in which some loss (record, ...) has fallen by 1% to the last record of any run."""
    loss = loss.reshape(len(time), -1)
    positive = np.isfinite(time) & (time > 0)
    bounds = canvas.span(time[positive & np.isfinite(loss).any(1)], positive=True)
    if bounds is None:
        return 1.0, 10.0
    with np.errstate(invalid="ignore"):
        moved = positive & (loss < 0.99 * loss[0]).any(1)
    if not moved.any():
        return canvas.log_limits(bounds, 0.03)
    # A whole decade labels the start of the axis; half a decade before the fall shows where it comes from.
    start = 10.0 ** math.floor(math.log10(float(time[moved].min()) / 3))
    return canvas.log_limits((max(bounds[0], start), bounds[1]), 0.03)

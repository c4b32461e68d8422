"""The claim in one picture: attention as the loss falls, for each ratio of the learning rates."""

import math
from typing import TYPE_CHECKING

import numpy as np

from qkdyn.figures import canvas
from qkdyn.results.datasets import check_sweep

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    import xarray


def draw_headline(ds: "xarray.Dataset") -> "matplotlib.figure.Figure":
    """Attention as the loss falls, for CACO and FAFO (else the first two), beside the theory.

    Args:
        ds: a sweep with loss and alpha on (design, parameterization, r, seed, record). The balanced design is
            drawn, which the theory describes exactly, or the first where there is none.

    Raises:
        InputError: `ds` is not a sweep or holds no run.
    """
    check_sweep(ds, ["loss", "alpha"])
    present = ds["parameterization"].to_numpy().tolist()
    names = [name for name in ("CACO", "FAFO") if name in present] or present[:2]
    ratios = ds["r"].to_numpy().tolist()
    figure = canvas.new_figure(max(3.6 * len(names) + 0.6, 5.6), 3.9)
    grid = figure.subplots(1, len(names), sharex=True, sharey=True, squeeze=False)
    designs = ds["design"].to_numpy().tolist()
    chosen = ds.isel(design=designs.index("balanced") if "balanced" in designs else 0)
    losses = chosen["loss"].sel(parameterization=names).to_numpy()
    for axes, name in zip(grid[0], names, strict=True):
        _headline_panel(axes, chosen.isel(parameterization=present.index(name)), ratios)
        axes.set_title(canvas.panel_title(name), fontsize=9.5)
        axes.set_xlabel("loss (falls to the right)", fontsize=9)
    grid[0, 0].set_ylabel(r"attention on the query's class $\alpha$", fontsize=9)
    grid[0, 0].set_ylim(-0.03, 1.03)
    bounds = canvas.span(losses, positive=True) or (0.1, 1.0)
    grid[0, 0].set_xlim(*canvas.log_limits(bounds, 0.03)[::-1])
    figure.suptitle("At equal loss, attention grows with the QK circuit's learning rate", fontsize=11.5)
    canvas.ratio_key(figure, grid, ratios, theory="theory_loss" in ds)
    return figure


def _headline_panel(axes: "matplotlib.axes.Axes", runs: "xarray.Dataset", ratios: list[float]) -> None:
    """Attention against loss for every ratio; runs are read at common losses so that seeds make a band."""
    canvas.style(axes)
    axes.set_xscale("log")
    if not np.isfinite(runs["alpha"]).any():
        canvas.nothing_recorded(axes)
    for k, colour in enumerate(canvas.ratio_colours(ratios)):
        own = runs.isel(r=k)
        bounds = canvas.span(own["loss"].to_numpy(), positive=True)
        if bounds is None:
            continue
        common = np.geomspace(*bounds, 200)
        curves = [_at(common, *_points(own.isel(seed=s), "")) for s in range(own.sizes["seed"])]
        canvas.band(axes, common, np.array(curves), colour, canvas.line_width(len(ratios)))
        if "theory_loss" in runs and k % canvas.theory_stride(len(ratios)) == 0:
            canvas.plot_theory(axes, common, _at(common, *_points(own, "theory_")))


def _points(run: "xarray.Dataset", prefix: str) -> tuple[np.ndarray, np.ndarray]:
    """(loss, alpha) of one run or theory: its records and, between them, its matched losses, from high to low loss."""
    loss, alpha = run[f"{prefix}loss"].to_numpy().astype(np.float64), run[f"{prefix}alpha"].to_numpy()
    known = np.isfinite(loss) & np.isfinite(alpha) & (loss > 0)
    loss, alpha = loss[known], alpha[known]
    # A noisy loss goes up again now and then: the first time it gets below a value counts.
    first = loss < np.concatenate([[math.inf], np.minimum.accumulate(loss)[:-1]])
    loss, alpha = loss[first], alpha[first]
    if f"{prefix}matched_alpha" in run:
        matched = run[f"{prefix}matched_alpha"].to_numpy()
        reached = np.isfinite(matched) & ~np.isin(run["level"].to_numpy(), loss)
        loss = np.concatenate([loss, run["level"].to_numpy()[reached]])
        alpha = np.concatenate([alpha, matched[reached]])
    order = np.argsort(-loss)
    return loss[order], alpha[order]


def _at(losses: np.ndarray, loss: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """`alpha` at `losses`, linear in ln(loss) between the falling `loss`; NaN beyond its ends."""
    if not loss.size:
        return np.full(losses.shape, np.nan)
    return np.interp(-np.log(losses), -np.log(loss), alpha, left=np.nan, right=np.nan)

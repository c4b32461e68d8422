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

# A run known at no more losses than this is drawn with a dot at each: the line between them is no measurement.
FEW = 12


def draw_headline(ds: "xarray.Dataset") -> "matplotlib.figure.Figure":
    """Attention as the loss falls, for CACO and FAFO (else the first two), beside the theory.

    Args:
        ds: a sweep with loss and alpha on (design, parameterization, r, seed, record). The balanced design is
            drawn, which the theory describes exactly, or the first where there is none.

    Raises:
        InputError: `ds` is not a sweep, or holds no run or no record.
    """
    check_sweep(ds, ["loss", "alpha"])
    present = ds["parameterization"].to_numpy().tolist()
    names = [name for name in ("CACO", "FAFO") if name in present] or present[:2]
    ratios = ds["r"].to_numpy().tolist()
    figure = canvas.new_figure(max(3.6 * len(names) + 0.6, 5.6), 3.9)
    grid = figure.subplots(1, len(names), sharex=True, sharey=True, squeeze=False)
    designs = ds["design"].to_numpy().tolist()
    chosen = ds.isel(design=designs.index("balanced") if "balanced" in designs else 0)
    limits = canvas.log_limits(_seen(chosen.sel(parameterization=names)) or (0.1, 1.0), 0.03)
    drawn = False
    for axes, name in zip(grid[0], names, strict=True):
        drawn |= _headline_panel(axes, chosen.isel(parameterization=present.index(name)), ratios)
        axes.set_title(canvas.panel_title(name), fontsize=9.5)
        axes.set_xlabel("loss (falls to the right)", fontsize=9)
    grid[0, 0].set_ylabel(r"attention on the query's class $\alpha$", fontsize=9)
    grid[0, 0].set_ylim(-0.03, 1.03)
    grid[0, 0].set_xlim(*limits[::-1])
    canvas.log_ticks(grid[0, 0].xaxis, limits)
    claim = "At equal loss, attention grows with the QK circuit's learning rate"
    figure.suptitle(claim if drawn else "Attention as the loss falls: no run got beyond its start", fontsize=11.5)
    canvas.ratio_key(figure, grid, ratios, theory=drawn and canvas.known(ds, "theory_alpha_at_loss", "theory_loss"))
    return figure


def _seen(runs: "xarray.Dataset") -> tuple[float, float] | None:
    """The largest and the smallest loss that `runs` recorded or reached, smallest first; None where there is none."""
    losses = [runs["loss"].to_numpy().ravel()]
    if "matched_alpha" in runs:
        losses.append(runs["level"].where(np.isfinite(runs["matched_alpha"])).to_numpy().ravel())
    return canvas.span(np.concatenate(losses), positive=True)


def _headline_panel(axes: "matplotlib.axes.Axes", runs: "xarray.Dataset", ratios: list[float]) -> bool:
    """Attention against loss for every ratio, read at common losses so that seeds make a band; whether there was any."""
    canvas.style(axes)
    axes.set_xscale("log")
    drawn = False
    for k, colour in enumerate(canvas.ratio_colours(ratios)):
        own = runs.isel(r=k)
        bounds = _seen(own)
        points = [_points(own.isel(seed=s), "") for s in range(own.sizes["seed"])]
        if bounds is None or all(loss.size < 2 for loss, _ in points):
            continue
        drawn = True
        common = np.geomspace(*bounds, 200)
        # Rounding in geomspace must not lose the ends.
        common[[0, -1]] = bounds
        curves = np.array([_at(common, *one) for one in points])
        canvas.band(axes, common, curves, colour, canvas.line_width(len(ratios)))
        for loss, alpha in points:
            if loss.size <= FEW:
                axes.scatter(loss, alpha, s=14, color=colour, zorder=3)
        if k % canvas.theory_stride(len(ratios)) == 0:
            _theory(axes, own, common)
    if not drawn:
        canvas.nothing_recorded(axes, started=bool(np.isfinite(runs["alpha"]).any()))
    return drawn


def _theory(axes: "matplotlib.axes.Axes", own: "xarray.Dataset", common: np.ndarray) -> None:
    """The theory of one ratio at the losses `common`: from its own fine grid, or else from the records it was read at."""
    if canvas.known(own, "theory_alpha_at_loss"):
        loss, alpha = own["curve_loss"].to_numpy(), own["theory_alpha_at_loss"].to_numpy()
        known = np.isfinite(alpha)
        canvas.plot_theory(axes, common, _at(common, loss[known], alpha[known]))
    elif canvas.known(own, "theory_loss"):
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

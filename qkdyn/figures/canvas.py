"""What all figures share: colours of the ratios, axes, a key to them, and files that are the same bytes each time."""

import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkdyn.files import write_bytes
from qkdyn.metrics.intervals import confidence_interval
from qkdyn.results.summary import mean_and_sd

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    import xarray

DPI = 140
INK, GRID = "#222222", "#dddddd"
# Okabe and Ito's colours, for things that have no order.
CATEGORIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
# More ratios than this are told apart by a colour bar, not by names.
NAMED = 8
DASHES = (0, (4, 2))
# Bands that lie on each other must not hide what is below.
PALE = 0.13
# Of fewer runs an interval is wider than anything that is measured.
FEWEST = 3
LABELS = {"loss": "loss", "mu_ov": r"$\mu_{OV}$", "mu_qk": r"$\mu_{QK}$", "alpha": r"attention $\alpha$"}
MEANING = {
    "FAFO": "both circuits factorized",
    "CAFO": "QK collapsed, OV factorized",
    "FACO": "QK factorized, OV collapsed",
    "CACO": "both circuits collapsed",
}
RATIO_LABEL = r"$r = \eta_{QK}\,/\,\eta_{OV}$"


def new_figure(width: float, height: float) -> "matplotlib.figure.Figure":
    """An empty figure (inches) that belongs to no window and no global state, and draws on any machine."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def ratio_colours(ratios: Sequence[float]) -> list[Any]:
    """One colour per ratio, blue to yellow-green in the order of the ratios; legible to the colour-blind."""
    import matplotlib

    # The dark end of the map would hide the theory drawn over it, the pale end would vanish on white.
    order = np.argsort(np.argsort(ratios))
    return [matplotlib.colormaps["viridis"](0.22 + 0.7 * place / max(len(ratios) - 1, 1)) for place in order]


def style(axes: "matplotlib.axes.Axes") -> None:
    """A light grid behind the data and no frame at the top and right."""
    axes.grid(True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, which="both")


def nothing_recorded(axes: "matplotlib.axes.Axes", *, started: bool = False, what: str = "no run recorded") -> None:
    """Say in an empty panel why it is empty: no run recorded anything, or (`started`) nothing after its start."""
    text = f"{what}\nafter its start" if started else what
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=9, color=INK, bbox=box)


def log_ticks(axis: Any, bounds: tuple[float, float]) -> None:
    """Label a logarithmic axis whose limits are `bounds`: at most seven decades, or round numbers where no two are there.

    Limits by `log_limits` are a percent apart or more: four digits tell the labels apart.
    """
    from matplotlib.ticker import (
        FixedLocator,
        FuncFormatter,
        LogFormatterMathtext,
        LogLocator,
        MaxNLocator,
        NullFormatter,
    )

    low, high = bounds
    decades = math.floor(math.log10(high) + 1e-9) - math.ceil(math.log10(low) - 1e-9) + 1
    axis.set_minor_formatter(NullFormatter())
    if decades >= 2:
        axis.set_major_locator(LogLocator(numticks=7))
        axis.set_major_formatter(LogFormatterMathtext())
        return
    first = 10.0 ** math.floor(math.log10(low))
    places = [first * 10**k * digit for k in range(3) for digit in (1, 2, 5)]
    places = [place for place in places if low <= place <= high]
    if len(places) < 3:
        fine = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        places = [float(place) for place in fine if low <= place <= high]
    axis.set_major_locator(FixedLocator(places))
    axis.set_minor_locator(FixedLocator([]))
    axis.set_major_formatter(FuncFormatter(lambda place, _: f"{place:.4g}"))


def span(values: np.ndarray, *, positive: bool = False) -> tuple[float, float] | None:
    """Smallest and largest finite (and `positive`) value, or None if there is none."""
    kept = values[np.isfinite(values) & ((values > 0) | (not positive))]
    return (float(kept.min()), float(kept.max())) if kept.size else None


def known(ds: "xarray.Dataset", *names: str) -> bool:
    """Whether one of the variables is there and has a finite value."""
    return any(name in ds and bool(np.isfinite(ds[name]).any()) for name in names)


def legend(figure: "matplotlib.figure.Figure", handles: Sequence[Any]) -> None:
    """Put the key below all axes: in one row if the figure has room for it, else in columns of equal width."""
    # Inches taken by a handle with its gaps, and by a letter.
    widths = [0.6 + 0.07 * len(str(handle.get_label())) for handle in handles]
    room = figure.get_figwidth()
    columns = len(handles) if sum(widths) < room else max(1, int(room / max(widths)))
    figure.legend(handles=list(handles), loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def theory_stride(count: int) -> int:
    """Draw the theory of every so-manieth of `count` ratios: all where they have names, else few enough to see."""
    return 1 if count <= NAMED else math.ceil(count / 7)


def line_width(count: int) -> float:
    """The width of a simulated curve among `count` in a panel."""
    return 2.6 if count <= NAMED else 1.2


def ratio_key(
    figure: "matplotlib.figure.Figure", axes: Any, ratios: Sequence[float], *, theory: bool, dashes: str = "theory"
) -> None:
    """Say outside of `axes` which colour is which ratio: by name, or by a colour bar where there are many.

    Args:
        figure: the figure.
        axes: all of its axes, which make room for the key.
        ratios: the ratios r, in any order.
        theory: whether the figure shows the theory.
        dashes: what the dashed lines are.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.lines import Line2D

    ordered = sorted(ratios)
    colours = ratio_colours(ordered)
    handles = []
    if len(ordered) <= NAMED:
        named = zip(ordered, colours, strict=True)
        handles = [Line2D([], [], color=colour, linewidth=3, label=f"r = {r:.4g}") for r, colour in named]
    else:
        norm = BoundaryNorm(np.arange(len(ordered) + 1) - 0.5, len(ordered))
        bar = figure.colorbar(
            ScalarMappable(norm, ListedColormap(colours)), ax=axes, fraction=0.03, pad=0.01, aspect=40
        )
        places = np.unique(np.linspace(0, len(ordered) - 1, 7).round().astype(int))
        bar.set_ticks(places.tolist(), labels=[f"{ordered[place]:.3g}" for place in places])
        bar.set_label(RATIO_LABEL, fontsize=9)
        bar.ax.tick_params(labelsize=8, which="both", length=0)
    if theory:
        stride = theory_stride(len(ordered))
        label = dashes if stride == 1 else f"{dashes} (for one r in {stride})"
        handles.append(Line2D([], [], color=INK, linewidth=1.0, linestyle=DASHES, label=label))
    if handles:
        legend(figure, handles)


def over_seeds(count: int, what: str) -> str:
    """What a figure shows of `count` runs: "mean and range over seeds", or that there is one."""
    return f"{what} over {count} seeds" if count > 1 else "one seed"


def titled(figure: "matplotlib.figure.Figure", title: str, note: str = "") -> None:
    """A title, and a note below it, in lines of as many letters as the figure is wide."""
    width = int(12.6 * figure.get_figwidth())
    figure.suptitle("\n".join(textwrap.fill(line, width) for line in (title, note) if line), fontsize=11)


def letters(axes: Any) -> None:
    """A letter at the upper left of each panel, in their order."""
    for place, own in enumerate(np.ravel(axes)):
        letter = "abcdefghijklmnopqrstuvwxyz"[place % 26] * (place // 26 + 1)
        own.text(0.01, 1.02, letter, transform=own.transAxes, fontsize=9, fontweight="bold", va="bottom", color=INK)


def interval_or_runs(
    axes: "matplotlib.axes.Axes", places: Sequence[float], runs: Sequence[np.ndarray], *, along: str = "x", **style: Any
) -> None:
    """Mean and 95% interval of the runs at each place; of fewer than three, whose interval says nothing, each run's point.

    Args:
        axes: of the panel.
        places: where the runs are, on the axis `along`.
        runs: values (seeds,) for each place; NaN where not known.
        along: x or y.
        style: of matplotlib's errorbar; `fmt` is the marker.
    """
    known = [own[np.isfinite(own)] for own in runs]
    many = [(place, confidence_interval(own)) for place, own in zip(places, known, strict=True) if len(own) >= FEWEST]
    single = [(place, value) for place, own in zip(places, known, strict=True) if len(own) < FEWEST for value in own]
    for kept, half in (
        ([(place, float(own.mean)) for place, own in many], [float(own.high - own.mean) for _, own in many]),
        (single, None),
    ):
        style |= {"linestyle": "none"} if half is None else {}
        if kept:
            at, value = zip(*kept, strict=True)
            data = (at, value) if along == "x" else (value, at)
            axes.errorbar(*data, **{"yerr" if along == "x" else "xerr": half}, **style)


def band(
    axes: "matplotlib.axes.Axes", x: np.ndarray, values: np.ndarray, colour: Any, width: float, alpha: float = 0.3
) -> None:
    """Draw the mean over seeds of `values` (seed, record) as a line, and the range from least to greatest as a band.

    Where some seeds have stopped the mean would jump: the line ends with the first of them, the band with the last.
    """
    known = np.isfinite(values)
    some, every = known.any(0), known.all(0)
    low = np.where(some, np.where(known, values, np.inf).min(0), np.nan)
    high = np.where(some, np.where(known, values, -np.inf).max(0), np.nan)
    # A run that never recorded anything must not hide the others.
    running = known.any(1)
    every = known[running].all(0) if running.any() else every
    axes.fill_between(x, low, high, color=colour, alpha=alpha, linewidth=0)
    mean = np.where(every, mean_and_sd(values.T)[0], np.nan)
    axes.plot(x, mean, color=colour, linewidth=width, marker="o", markersize=width + 2.5, markevery=_alone(mean))
    if (some & ~every).any():
        # Where only some seeds go on and only for one record, the band has no width to be seen by.
        for edge in (low, high):
            lonely = sorted(set(_alone(edge)) - set(np.flatnonzero(every).tolist()))
            axes.scatter(x[lonely], edge[lonely], s=(width + 2.5) ** 2, color=colour, alpha=alpha, linewidth=0)


def _alone(y: np.ndarray) -> list[int]:
    """Where `y` is known and neither neighbour is: a line through it draws nothing there."""
    known = np.concatenate([[False], np.isfinite(y), [False]])
    return np.flatnonzero(known[1:-1] & ~known[:-2] & ~known[2:]).tolist()


def plot_theory(axes: "matplotlib.axes.Axes", x: np.ndarray, y: np.ndarray) -> None:
    """Draw one curve of the theory: thin, dark and dashed, so that the simulation shows through; a cross for a point."""
    axes.plot(x, y, color=INK, linewidth=0.9, linestyle=DASHES, marker="x", markersize=5, markevery=_alone(y))


def panel_title(name: str) -> str:
    """A parameterization's name and what it means."""
    return f"{name}\n{MEANING[name]}" if name in MEANING else name


def log_limits(bounds: tuple[float, float], margin: float = 0.05) -> tuple[float, float]:
    """`bounds` (positive) widened by a part `margin` of their logarithmic width; to a factor 2 around if they coincide."""
    if bounds[0] == bounds[1]:
        return bounds[0] / 1.9, bounds[1] * 1.9
    width = max(math.log(bounds[1] / bounds[0]), 0.2) * margin
    return bounds[0] * math.exp(-width), bounds[1] * math.exp(width)


def save(figure: "matplotlib.figure.Figure", path: str | Path) -> Path:
    """Write `figure` as PNG: whole or not at all, without date or version, so that equal figures are equal files.

    Colours are reduced to the 256 that serve the picture best: files in a repository should be small.

    Returns:
        `path`.

    Raises:
        OutputError: the file cannot be written.
    """
    from PIL import Image

    drawn, packed = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI)
    # Written anew, the file holds the picture and nothing about the program or the machine.
    with Image.open(drawn) as image:
        palette = image.convert("RGB").quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        palette.save(packed, format="png", optimize=True)
    return write_bytes(path, packed.getvalue())

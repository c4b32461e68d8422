"""Figure 3: loss and incentive of the output-value circuit under fixed attention, for each alpha, with and without biases."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkdyn.errors import InputError
from qkdyn.figures import canvas

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

Record = Mapping[str, Any]
# (quantity, factorized or not, alpha, epoch, value), as published.
Published = tuple[str, str, float, int, float]
FORMS = ("factorized", "collapsed")
NAMES = {"loss": "loss on fresh sequences", "incentive": r"$(L(\alpha) - L(\alpha + 0.005))\,/\,0.005$"}


def draw_fig3(records: Sequence[Record], published: Sequence[Published], path: str | Path) -> Path:
    """Draw loss (above) and incentive (below) against the epoch in `path`, as PNG.

    Args:
        records: of finished arms, as `experiments.fig3_fixed_attention` writes them.
        published: values drawn as marks.
        path: the file.

    Raises:
        InputError: there is no record. OutputError: the file cannot be written.
    """
    if not records:
        raise InputError("records must hold at least one finished arm, got none")
    figure = canvas.new_figure(9.6, 7.2)
    grid = figure.subplots(2, 2, sharex=True, squeeze=False)
    alphas = sorted({curve["alpha"] for record in records for curve in record["curves"]})
    colours = dict(zip(alphas, canvas.ratio_colours(alphas), strict=True))
    epochs = max(len(curve["loss"]) for record in records for curve in record["curves"]) - 1
    last = max(float(epochs), 2.0)
    for row, quantity in zip(grid, NAMES, strict=True):
        for axes, form in zip(row, FORMS, strict=True):
            own = [record for record in records if _form(record) == form]
            _panel(axes, own, quantity, colours)
            for _, _, alpha, epoch, value in (p for p in published if p[:2] == (quantity, form)):
                if alpha in colours and epoch <= epochs and own:
                    axes.plot(
                        epoch,
                        value,
                        "o",
                        markersize=4.5,
                        color=colours[alpha],
                        markeredgecolor=canvas.INK,
                        zorder=4,
                        clip_on=False,
                    )
            axes.set(xscale="log", xlim=(1, last))
            canvas.log_ticks(axes.xaxis, (1.0, last))
            axes.set_title(f"({'abcd'[2 * (quantity == 'incentive') + FORMS.index(form)]}) {form}", fontsize=9.5)
        row[0].set_ylabel(NAMES[quantity], fontsize=9)
    for axes, form in zip(grid[0], FORMS, strict=True):
        found = [c["loss"][1:] for r in records if _form(r) == form for c in r["curves"]]
        limits = canvas.log_limits(canvas.span(np.array(found, float), positive=True) or (0.1, 4.0))
        axes.set(yscale="log", ylim=limits)
        canvas.log_ticks(axes.yaxis, limits)
    for axes in grid[1]:
        axes.set_xlabel("epoch", fontsize=9)
    figure.suptitle("The output-value circuit under fixed attention (mean and range over seeds)", fontsize=11)
    _key(figure, records, colours, bool(published))
    return canvas.save(figure, path)


def _form(record: Record) -> str:
    return FORMS[0] if record["arm"]["factorized"] else FORMS[1]


def _panel(
    axes: "matplotlib.axes.Axes", records: Sequence[Record], quantity: str, colours: Mapping[float, Any]
) -> None:
    canvas.style(axes)
    if not records:
        canvas.nothing_recorded(axes, what="not trained under this protocol")
    for record in records:
        bias = record["arm"]["bias"]
        for alpha, colour in colours.items():
            own = [curve[quantity] for curve in record["curves"] if curve["alpha"] == alpha]
            if not own:
                continue
            # From the first epoch on: the axis is logarithmic.
            values = np.array(own, float)[:, 1:]
            x = np.arange(1, values.shape[1] + 1)
            axes.fill_between(x, values.min(0), values.max(0), color=colour, alpha=0.25, linewidth=0)
            axes.plot(x, values.mean(0), color=colour, linewidth=1.6, linestyle="-" if bias else canvas.DASHES)


def _key(
    figure: "matplotlib.figure.Figure", records: Sequence[Record], colours: Mapping[float, Any], marks: bool
) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=c, linewidth=3, label=rf"$\alpha$ = {alpha:g}") for alpha, c in colours.items()]
    for bias in sorted({record["arm"]["bias"] for record in records}, reverse=True):
        style, label = ("-", "with biases") if bias else (canvas.DASHES, "without")
        handles.append(Line2D([], [], color=canvas.INK, linewidth=1.4, linestyle=style, label=label))
    if marks:
        handles.append(Line2D([], [], color=canvas.INK, marker="o", linestyle="", markersize=4.5, label="published"))
    canvas.legend(figure, handles)

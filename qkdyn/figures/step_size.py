"""Distance from the theory against the learning rate: slope one is what Theorem 1's gradient flow leads to expect."""

from typing import TYPE_CHECKING

import numpy as np

from qkdyn.figures import canvas

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas


def draw_step_size(frame: "pandas.DataFrame") -> "matplotlib.figure.Figure":
    """One panel a quantity, one line for each parameterization, ratio and matched loss, coloured by the ratio.

    Args:
        frame: columns quantity, parameterization, r, level, scale (factor on every rate) and difference (relative).
    """
    from matplotlib.lines import Line2D

    names = list(dict.fromkeys(frame["quantity"]))
    ratios = sorted(set(frame["r"].astype(float)))
    colours = dict(zip(ratios, canvas.ratio_colours(ratios), strict=True))
    figure = canvas.new_figure(3.4 * len(names) + 0.4, 3.8)
    grid = figure.subplots(1, len(names), sharex=True, sharey=True, squeeze=False)
    scales = np.array(sorted(set(frame["scale"])))
    for axes, name in zip(grid[0], names, strict=True):
        canvas.style(axes)
        axes.set(xscale="log", yscale="log", title=canvas.LABELS[name], xlabel="factor on every learning rate")
        own = frame[frame["quantity"] == name].pivot_table(
            index="scale", columns=["parameterization", "r", "level"], values="difference"
        )
        for r, line in zip(own.columns.get_level_values("r"), own.to_numpy().T, strict=True):
            axes.plot(own.index, np.abs(line), color=colours[float(r)], linewidth=1, marker=".", markersize=4)
        axes.plot(scales, 0.02 * scales, color=canvas.INK, linewidth=1.2, linestyle=canvas.DASHES)
        axes.set_xticks(scales, [f"{scale:g}" for scale in scales])
        axes.minorticks_off()
    grid[0, 0].set_ylabel("|simulation / theory - 1| at matched loss", fontsize=9)
    figure.suptitle("Gradient descent approaches the flow in proportion to its step", fontsize=11.5)
    named = [Line2D([], [], color=colour, linewidth=3, label=f"r = {r:.4g}") for r, colour in colours.items()]
    slope = Line2D([], [], color=canvas.INK, linewidth=1.2, linestyle=canvas.DASHES, label="slope 1")
    canvas.legend(figure, [*named, slope])
    return figure

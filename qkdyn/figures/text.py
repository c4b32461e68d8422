"""Attention on text: DTAP panels, training curves, effects of a factorial, the dose of QK, confidence against threshold."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkdyn.errors import InputError
from qkdyn.figures import canvas
from qkdyn.figures.text_records import (
    POSTS,
    SENTENCES,
    Called,
    as_numbers,
    measured,
    of_posts,
    over_attractors,
    over_epochs,
    value_of,
)
from qkdyn.metrics.dtap import mean_and_std

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    import pandas as pd

Record = Mapping[str, Any]
Groups = Sequence[tuple[str, Sequence[Record]]]
# Edges of both axes of the heat maps, where the recipe does not say: HateXplain's.
EDGES = (0.0, 0.33, 0.66, 1.1)
CURVES = ("accuracy", "entropy_marked", "mrta", "auprc")
# Parts of the names of arms, and of factors, in words.
WORDS = {
    "qk": "QK",
    "ov": "OV",
    "embed": "embeddings",
    "all": "every rate",
    "frozen": "MLP frozen",
    "decay": "decay x10",
}
_DOSE = re.compile(r"(baseline|qk[0-9.e+-]+)(-long)?")
DOTS, DASHDOTS = (0, (1, 1.5)), (0, (5, 2, 1, 2))


def panels(called: Called) -> tuple[tuple[str, str, str | None], ...]:
    """Quantity, label, name of its uniform value; what is sharper comes before what is sharper on the relevant tokens."""
    every, marked = f"all {called.every}", called.marked
    last: tuple[tuple[str, str, str | None], ...] = (
        ("comprehensiveness", f"faithful: comprehensiveness,\n{every}", None),
        ("sufficiency", f"faithful: sufficiency,\n{every}", None),
    )
    if called == SENTENCES:
        last = (
            ("accuracy@1+:balanced", "balanced accuracy, sentences with\nnouns of the other number between", None),
            ("attractor@1+", "attention on these nouns\n(where their places are known)", "uniform_attractor@1+"),
        )
    return (
        ("accuracy", f"accuracy, {every}", None),
        ("entropy_marked", f"sharper: entropy, nats,\n{marked}", "uniform_entropy_marked"),
        ("top_mass_marked", f"sharper: mass of the top 20%,\n{marked}", "uniform_top_mass_marked"),
        ("head_entropy", f"sharper: mean entropy of the heads,\nnats, {every}", "uniform_entropy"),
        ("mrta", f"on the relevant tokens: MRTA,\n{marked}", "uniform_mrta"),
        ("auprc", f"on the relevant tokens: AUPRC,\n{marked}", "uniform_auprc"),
        *last,
    )


def draw_text(groups: Groups, effects: "pd.DataFrame | None", folder: str | Path, called: Called = POSTS) -> list[Path]:
    """Draw dtap.png, training.png and curves.png, and where there is something to draw effects.png and dose.png.

    Args:
        groups: compared arms by the name of the comparison, as `experiments.text.command` has them; the last one is the
            headline, whose heat maps are drawn.
        effects: of the factorial, one row for each reading, split, quantity, kind and factor; None for none.
        folder: an existing folder.
        called: what the instances are.

    Raises:
        InputError: there is no record. OutputError: a file cannot be written.
    """
    if not any(records for _, records in groups):
        raise InputError("groups must hold at least one finished arm, got none")
    last = groups[-1][1]
    shown = [(name, records) for name, records in groups if name != "factorial"] or groups
    figures = {
        "dtap.png": draw_dtap(last, called, note=left_out(groups)),
        "training.png": draw_training(shown, called),
        "curves.png": draw_curves(last, called, note=left_out(groups)),
    }
    if effects is not None and len(effects):
        figures["effects.png"] = draw_effects(effects, called)
    doses = [(name, records) for name, records in groups if name in ("dose", "long") and len(records) > 1]
    if any(name == "dose" for name, _ in doses):
        figures["dose.png"] = draw_dose(doses, called)
    return [canvas.save(figure, Path(folder) / name) for name, figure in figures.items()]


def words(name: str) -> str:
    """The name of an arm or a factor in words: "qk30+frozen-long" is "QK x30 + MLP frozen"."""
    parts = []
    for part in name.removesuffix("-long").split("+"):
        known = re.fullmatch(r"(qk|ov|embed|all)([0-9.e+-]+)", part)
        parts.append(f"{WORDS[known[1]]} x{known[2]}" if known else WORDS.get(part, part))
    return " + ".join(parts)


def draw_dtap(records: Sequence[Record], called: Called = POSTS, note: str = "") -> "matplotlib.figure.Figure":
    """The panels of Figs. 6 and 7: percent of instances by attention on relevant tokens and probability of the label.

    Mean and standard deviation over seeds, of all instances and where these are fewer of those that are marked. A `note`
    stands below the title.
    """
    every = f"all {called.every}"
    rows = [("validation", "dtap_all", every), ("test", "dtap_all", every)]
    rows += [("test", "dtap", called.ranked)] if called.ranked != called.every else []
    bins = bins_of(records)
    figure = canvas.new_figure(2.5 * len(records) + 1.0, 2.35 * len(rows) + 0.8)
    grid = figure.subplots(len(rows), len(records), squeeze=False)
    found = [[_maps(record, split, name) for record in records] for split, name, _ in rows]
    most = max((float(maps.mean(0).max()) for line in found for maps in line if len(maps)), default=100.0)
    for line, maps, (split, _, whose) in zip(grid, found, rows, strict=True):
        for axes, own in zip(line, maps, strict=True):
            heatmap(axes, own, most, bins)
        line[0].set_ylabel(f"{split}, {whose}\nprobability of the label", fontsize=8)
    for axes, record in zip(grid[0], records, strict=True):
        axes.set_title(textwrap.fill(words(record["arm"]["name"]), 30), fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("attention on relevant tokens", fontsize=8)
    over = canvas.over_seeds(len(records[0]["runs"]), "mean ± standard deviation")
    canvas.titled(figure, f"Percent of {called.every} after the last epoch, {over}", note)
    return figure


def bins_of(records: Sequence[Record]) -> tuple[str, str, str]:
    """The bins of both axes of the heat maps, in words."""
    _, low, high, _ = (records[0].get("recipe") or {}).get("edges", EDGES)
    return f"< {low:g}", f"to {high:g}", f"> {high:g}"


def _maps(record: Record, split: str, name: str) -> np.ndarray:
    """Heat maps of the runs that ended, (runs, 3, 3)."""
    kept = [as_numbers(known[name]) for run in record["runs"] if (known := measured(run, "end", split))]
    return np.array([own for own in kept if np.isfinite(own).all()])


def heatmap(axes: "matplotlib.axes.Axes", maps: np.ndarray, most: float, bins: Sequence[str]) -> None:
    """Mean and deviation of the heat maps of runs, (runs, k, k) of k bins, on a scale up to `most`."""
    k = len(bins)
    places = [place + 0.5 for place in range(k)]
    axes.set_xticks(places, bins)
    axes.set_yticks(places, bins)
    axes.tick_params(labelsize=7, length=0)
    if not len(maps):
        axes.set(xlim=(0, k), ylim=(0, k))
        canvas.nothing_recorded(axes, what="all runs diverged")
        return
    mean, sd = mean_and_std(maps)
    some: Any = maps.any(0)
    axes.pcolormesh(np.arange(k + 1), np.arange(k + 1), mean, cmap="cividis", vmin=0, vmax=most)
    for row, column in np.ndindex(mean.shape):
        spread = f"\n±{sd[row, column]:.1f}" if np.isfinite(sd[row, column]) else ""
        ink = "white" if mean[row, column] < 0.6 * most else "black"
        # Cells that are empty in every run say so by one digit, and leave the eye to the others.
        text = f"{mean[row, column]:.1f}{spread}" if some[row, column] else "0"
        axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=9 if k > 3 else 8, color=ink)


def draw_training(groups: Groups, called: Called = POSTS, split: str = "validation") -> "matplotlib.figure.Figure":
    """Accuracy, entropy, MRTA and AUPRC after each epoch, a column for each comparison: mean and range over seeds."""
    labels = {name: (label, uniform) for name, label, uniform in panels(called)}
    figure = canvas.new_figure(4.6 * len(groups) + 0.8, 2.15 * len(CURVES) + 1.6)
    grid = figure.subplots(len(CURVES), len(groups), sharex="col", sharey="row", squeeze=False)
    looks = looks_by_name(groups)
    for column, (title, records) in zip(grid.T, groups, strict=True):
        for axes, name in zip(column, CURVES, strict=True):
            canvas.style(axes)
            for record in records:
                colour, dashes = looks[words(record["arm"]["name"])]
                count = record["arm"]["epochs"]
                values = np.stack([over_epochs(run, split, name, count) for run in record["runs"]])
                x = np.arange(1, values.shape[1] + 1)
                canvas.band(axes, x, values, colour, 1.5, canvas.PALE)
                axes.lines[-1].set_linestyle(dashes)
            beside(axes, records, split, name, labels[name][1])
        column[0].set_title(f"{title} ({records[0]['arm']['epochs']} epochs)", fontsize=10)
        column[-1].set_xlabel("epoch", fontsize=9)
        # A curve of two epochs has no ticks between them.
        column[-1].xaxis.get_major_locator().set_params(integer=True)
        column[-1].legend(
            handles=_key(records, looks),
            loc="upper center",
            bbox_to_anchor=(0.5, -0.28),
            ncols=2,
            frameon=False,
            fontsize=8,
        )
    for row, name in zip(grid, CURVES, strict=True):
        row[0].set_ylabel(labels[name][0].replace(": ", ":\n"), fontsize=8.5)
    canvas.letters(grid)
    over = canvas.over_seeds(len(groups[0][1][0]["runs"]), "mean and range")
    figure.suptitle(f"The {split} split as training goes on, {over}", fontsize=11)
    return figure


def draw_curves(
    records: Sequence[Record], called: Called = POSTS, split: str = "test", note: str = ""
) -> "matplotlib.figure.Figure":
    """AC and ACMC against the threshold, marked instances: mean and range over seeds, beside uniform attention.

    That of ACMC has the probabilities of each arm, and so is a line for each. A `note` stands below the title.
    """
    figure = canvas.new_figure(9.2, 4.2)
    grid = figure.subplots(1, 2, sharey=True, squeeze=False)[0]
    for axes, (name, label) in zip(grid, (("ac", "AC"), ("acmc", "ACMC")), strict=True):
        canvas.style(axes)
        for record, (colour, dashes) in zip(records, looks_of(records), strict=True):
            x = np.array(record["thresholds"])
            canvas.band(axes, x, _heights(record, split, f"{name}_curve"), colour, 1.5, canvas.PALE)
            axes.lines[-1].set_linestyle(dashes)
            flat = _heights(record, split, f"uniform_{name}_curve")
            if len(flat) and (name == "acmc" or record is records[0]):
                ink = canvas.INK if name == "ac" else colour
                axes.plot(x, flat.mean(0), color=ink, linewidth=1.0, linestyle=DOTS)
        axes.axvline(records[0]["recipe"]["confidence"], color=canvas.INK, linewidth=0.7, alpha=0.6)
        axes.set(xlim=(0, 1), ylim=(-2, 102))
        axes.set_title(label, fontsize=10)
        what = "attention" if name == "ac" else "attention and of probability"
        axes.set_xlabel(f"threshold of {what}", fontsize=9)
    grid[0].set_ylabel(f"% of {called.marked}, {split}", fontsize=9)
    whose = "the published threshold" if called == POSTS else "the threshold of AC in the tables"
    title = f"{called.every.capitalize()} that reach a threshold, after the last epoch; upright: {whose}"
    canvas.titled(figure, title, note)
    canvas.legend(
        figure, [*_key(records)[:-2], _beside_key("uniform attention (ACMC: with the arm's probabilities)")[0]]
    )
    return figure


def _heights(record: Record, split: str, name: str) -> np.ndarray:
    """A curve of each run that has it, (runs, thresholds); of no run a line of NaN."""
    known = [measured(run, "end", split).get(name) for run in record["runs"]]
    found = [as_numbers(own) for own in known if own is not None]
    return np.stack(found) if found else np.full((1, len(record["thresholds"])), np.nan)


def draw_effects(effects: "pd.DataFrame", called: Called = POSTS, split: str = "test") -> "matplotlib.figure.Figure":
    """Main effects and interactions of the factorial with 95% intervals, at the last epoch and at the best one."""
    figure = canvas.new_figure(13.6, 7.6)
    grid = figure.subplots(2, 4, sharey=True, squeeze=False)
    own = effects.loc[(effects["split"] == split) & effects["kind"].isin(["main", "interaction"])]
    names = list(dict.fromkeys(own["factor"]))
    place = {name: -i - 0.6 * (" x " in name) for i, name in enumerate(names)}
    looks = {"end": ("o", canvas.CATEGORIES[0], 0.16), "best": ("s", "white", -0.16)}
    for axes, (quantity, label, _) in zip(grid.ravel(), panels(called), strict=True):
        canvas.style(axes)
        axes.axvline(0, color=canvas.INK, linewidth=0.9)
        for reading, (marker, face, shift) in looks.items():
            part = own.loc[(own["reading"] == reading) & (own["quantity"] == quantity)]
            mean = part["mean"].to_numpy(float)
            reach = np.stack([mean - part["low"].to_numpy(float), part["high"].to_numpy(float) - mean])
            y = [place[name] + shift for name in part["factor"]]
            style = {"color": canvas.CATEGORIES[0], "markerfacecolor": face, "markersize": 4.5, "elinewidth": 1.3}
            axes.errorbar(mean, y, xerr=np.nan_to_num(reach), fmt=marker, **style)
        axes.set_title(label, fontsize=9.5)
    for row in grid:
        row[0].set_yticks(list(place.values()), [" with ".join(map(words, name.split(" x "))) for name in place])
    for axes in grid[-1]:
        axes.set_xlabel("effect, in the unit of the quantity", fontsize=8.5)
    title = f"The published changes one by one and two by two ({split} split, 95% intervals, paired by seed)"
    figure.suptitle(title, fontsize=11)
    canvas.legend(figure, [_mark("last epoch", *looks["end"][:2]), _mark("best validation epoch", *looks["best"][:2])])
    return figure


def draw_dose(groups: Groups, called: Called = POSTS, split: str = "test") -> "matplotlib.figure.Figure":
    """Each quantity against r, with 95% intervals: QK x r (lines), OV x30, every rate x30."""
    figure = canvas.new_figure(13.6, 6.8)
    grid = figure.subplots(2, 4, sharex=True, squeeze=False)
    looks = dict(zip((name for name, _ in groups), (("o", "-"), ("s", canvas.DASHES)), strict=False))
    for axes, (quantity, label, uniform) in zip(grid.ravel(), panels(called), strict=True):
        canvas.style(axes)
        for (name, records), colour in zip(groups, canvas.CATEGORIES, strict=False):
            dosed = sorted((r for r in records if _is_dose(r)), key=_ratio)
            _points(axes, dosed, split, quantity, colour, *looks[name])
            for record in records:
                if name == "dose" and not _is_dose(record):
                    marker = "D" if record["arm"]["ov"] == 1 else "v"
                    _points(axes, [record], split, quantity, canvas.CATEGORIES[2], marker, "")
        beside(axes, [record for _, records in groups for record in records], split, quantity, uniform)
        axes.set(xscale="log", xlim=(1 / 50, 160))
        axes.set_title(label, fontsize=9.5)
    for axes in grid[-1]:
        axes.set_xlabel(canvas.RATIO_LABEL, fontsize=9)
    figure.suptitle(
        f"The dose of the query-key circuit ({split} split, last epoch, mean and 95% interval)", fontsize=11
    )
    handles = []
    for (name, records), colour in zip(groups, canvas.CATEGORIES, strict=False):
        marker, line = looks[name]
        label = f"QK x r, {records[0]['arm']['epochs']} epochs"
        handles.append(_mark(label, marker, colour, linestyle=line, color=colour))
    for record in (record for name, records in groups if name == "dose" for record in records):
        if not _is_dose(record):
            marker = "D" if record["arm"]["ov"] == 1 else "v"
            handles.append(_mark(words(record["arm"]["name"]), marker, canvas.CATEGORIES[2]))
    canvas.legend(figure, [*handles, *_beside_key()])
    return figure


def _points(
    axes: "matplotlib.axes.Axes", records: Sequence[Record], split: str, name: str, colour: str, marker: str, line: Any
) -> None:
    found = [as_numbers([value_of(measured(run, "end", split), name) for run in r["runs"]]) for r in records]
    style = {"linestyle": line, "color": colour, "markersize": 4.5, "elinewidth": 1.2}
    canvas.interval_or_runs(axes, [_ratio(r) for r in records], found, fmt=marker, **style)


def beside(axes: "matplotlib.axes.Axes", records: Sequence[Record], split: str, name: str, uniform: str | None) -> None:
    """Lines for what uniform attention would give, and for AUPRC what a ranking by position would."""
    if uniform is not None and "@" in uniform:
        flat = over_attractors((records[0].get("baselines") or {}).get(split) or (), uniform)
        if flat is not None:
            axes.axhline(flat, color=canvas.INK, linewidth=1.0, linestyle=DOTS)
        return
    floors = [of_posts(run, split) for record in records for run in record["runs"]]
    for key, dashes in ((uniform, DOTS), *([("position_auprc", DASHDOTS)] if name == "auprc" else [])):
        if key == "position_auprc":
            known = [max(m.get(f"{key}_{end}") or 0.0 for end in ("first", "last")) for m in floors]
        else:
            known = [m[key] for m in floors if key is not None and m.get(key) is not None]
        if known:
            axes.axhline(float(np.mean(known)), color=canvas.INK, linewidth=1.0, linestyle=dashes)


def _beside_key(flat: str = "uniform attention") -> list[Any]:
    from matplotlib.lines import Line2D

    named = ((flat, DOTS), ("ranking by position alone", DASHDOTS))
    return [Line2D([], [], color=canvas.INK, linewidth=1.0, linestyle=dashes, label=label) for label, dashes in named]


def _key(records: Sequence[Record], looks: Mapping[str, tuple[Any, Any]] | None = None) -> list[Any]:
    from matplotlib.lines import Line2D

    names = [words(record["arm"]["name"]) for record in records]
    looks = dict(zip(names, looks_of(records), strict=True)) if looks is None else looks
    arms = [Line2D([], [], color=looks[n][0], linewidth=2.2, linestyle=looks[n][1], label=n) for n in names]
    return [*arms, *_beside_key()]


def _mark(label: str, marker: str, face: str, **style: Any) -> Any:
    from matplotlib.lines import Line2D

    style = {"color": canvas.CATEGORIES[0] if face == "white" else face, "linestyle": ""} | style
    return Line2D([], [], marker=marker, markerfacecolor=face, markersize=5, label=label, **style)


def looks_by_name(groups: Groups) -> dict[str, tuple[Any, Any]]:
    """Colour and dashes of each arm of a figure, by its name in words: one look, whatever comparisons it is in."""
    first = {words(record["arm"]["name"]): record for _, records in reversed(groups) for record in records}
    return dict(zip(first, looks_of(list(first.values())), strict=True))


def left_out(groups: Groups) -> str:
    """What a figure of the last comparison alone does not show: these arms; nothing where it shows all."""
    *others, (last, records) = groups
    shown = {words(record["arm"]["name"]) for record in records}
    names = dict.fromkeys(words(r["arm"]["name"]) for _, own in others for r in own)
    left = [name for name in names if name not in shown]
    said = ", ".join(left) if len(left) < 5 else f"{len(left)} other arms"
    of = ", ".join(name for name, _ in others)
    return f"comparison {last}; not shown: {said} (comparison {of})" if left else ""


def looks_of(records: Sequence[Record]) -> list[tuple[Any, Any]]:
    """Colour and dashes of each arm: by r where the arms are doses of it, else colours that have no order."""
    if sum(map(_is_dose, records)) < 4:
        return [(canvas.CATEGORIES[i % 6], "-" if i < 6 else canvas.DASHES) for i in range(len(records))]
    ratios = sorted({_ratio(record) for record in records if _is_dose(record)})
    colours = dict(zip(ratios, canvas.ratio_colours(ratios), strict=True))
    apart = [canvas.CATEGORIES[i] for i in (1, 3, 4, 5)]
    others = iter([(colour, dashes) for dashes in (canvas.DASHES, DASHDOTS) for colour in apart] * len(records))
    return [(colours[_ratio(r)], "-") if _is_dose(r) else next(others) for r in records]


def _is_dose(record: Record) -> bool:
    """Whether an arm differs from the baseline in the rate of QK alone, by its name."""
    return bool(_DOSE.fullmatch(record["arm"]["name"]))


def _ratio(record: Record) -> float:
    return record["arm"]["qk"] / record["arm"]["ov"]

"""Figures of text as they are read: one look an arm, what is not shown, runs in place of wide intervals, cells, limits."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_rgba

import made_records
import made_squad_records
from experiments.squad import arms as squad_arms
from experiments.squad import readings
from experiments.squad.tables import title
from experiments.text import sva_arms, tables
from qkdyn.figures import canvas, squad, text_tuning
from qkdyn.figures.sva import draw_agreement
from qkdyn.figures.text import draw_training, heatmap, left_out
from qkdyn.figures.text_records import SENTENCES


@pytest.fixture(scope="module")
def groups():
    """The arms of both comparisons of the controlled protocol, of three seeds."""
    protocol = sva_arms.controlled()
    protocol = replace(protocol, recipe=replace(protocol.recipe, seeds=(1, 2, 3)))
    records = made_records.made(protocol)
    return [(comparison.name, there) for comparison, there in tables.compared(records, protocol)]


@pytest.mark.parametrize("draw", [draw_agreement, lambda groups: draw_training(groups, SENTENCES)])
def test_an_arm_has_one_look_throughout_a_figure(draw, groups):
    figure = draw(groups)
    looks: dict[str, set] = {}
    for axes in figure.axes:
        if (key := axes.get_legend()) is not None:
            for line in key.get_lines():
                looks.setdefault(line.get_label(), set()).add((to_rgba(line.get_color()), line.get_linestyle()))
                # The line of that name in the panels of its column is as the key says.
                assert any(to_rgba(own.get_color()) == to_rgba(line.get_color()) for own in axes.lines)
    arms = {name: own for name, own in looks.items() if "attention" not in name and "position" not in name}
    assert {"baseline", "QK x100", "embeddings x100", "OV x30"} <= set(arms)
    assert all(len(own) == 1 for own in arms.values()) and len(set.union(*arms.values())) == len(arms)
    letters = [axes.texts[-1].get_text() for axes in figure.axes]
    assert letters == list("abcdefghijklmnop"[: len(figure.axes)])
    bands = [collection for axes in figure.axes for collection in axes.collections]
    assert bands and all(own.get_alpha() == canvas.PALE < 0.3 for own in bands)


def test_figures_of_one_comparison_say_which_arms_they_leave_out(groups):
    told = left_out(groups)
    assert told == "comparison dose; not shown: embeddings x100, QK x100 + embeddings x100 (comparison factorial)"
    assert left_out(groups[-1:]) == "" and left_out([groups[1], groups[1]]) == ""
    first = groups[0][1][0]
    many = [(f"other{i}", [first | {"arm": first["arm"] | {"name": f"ov{i}"}}]) for i in range(9)]
    assert "not shown: 9 other arms" in left_out([*many, groups[-1]])


def drawn(runs, along="x"):
    """The points and the ends of the intervals that are drawn of these runs at 2."""
    figure = canvas.new_figure(2.0, 2.0)
    axes = figure.subplots()
    canvas.interval_or_runs(axes, [2.0], [np.array(runs)], along=along, fmt="o")
    (points, _, bars) = axes.containers[0]
    return points.get_xydata(), [segment for bar in bars for segment in bar.get_segments()]


def test_of_fewer_than_three_runs_the_points_are_drawn():
    points, bars = drawn([0.1, 0.4, np.nan])
    np.testing.assert_allclose(points, [[2, 0.1], [2, 0.4]])
    assert bars == []
    points, bars = drawn([0.1, 0.4, 0.4])
    # Student's t of two degrees of freedom, at 97.5%, times the deviation of the mean.
    half = 4.30265 * np.std([0.1, 0.4, 0.4], ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(points, [[2, 0.3]])
    np.testing.assert_allclose(bars[0], [[2, 0.3 - half], [2, 0.3 + half]], rtol=1e-5)
    points, _ = drawn([0.1], along="y")
    np.testing.assert_allclose(points, [[0.1, 2]])


def test_tuning_shows_the_last_epoch_beside_the_best(groups, tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(canvas, "save", lambda figure, path: kept.append(figure) or path)
    two = [record | {"runs": record["runs"][:2]} for record in groups[0][1]]
    rates = [r | {"arm": r["arm"] | {"rate": rate}} for r, rate in zip(two, (1e-5, 1e-4, 1e-3, 1e-2), strict=False)]
    text_tuning.draw_tuning(rates, two, tmp_path / "x.png", SENTENCES)
    text_tuning.draw_tuning(rates, two, tmp_path / "x.png", SENTENCES, chosen="best")
    figure = kept[0]
    keys = [[text.get_text() for text in own.legends[0].get_texts()] for own in kept]
    assert keys[0] == ["last epoch, by which is chosen", "best validation epoch"]
    assert keys[1] == ["last epoch", "best validation epoch, by which is chosen"]
    assert "(each of 2 runs)" in figure.get_suptitle()
    last, best = (np.array(own.lines[0].get_xdata(), float) for own in figure.axes[0].containers)
    assert len(last) == 8 and (np.log10(best / last) > 0.05).all() and (np.log10(best / last) < 0.2).all()
    assert text_tuning.shown(groups[0][1]) == "mean, 95% interval"
    assert text_tuning.shown([two[0] | {"runs": two[0]["runs"][:1]}]) == "one run"


def test_cells_that_no_run_has_say_so_by_one_digit():
    axes = canvas.new_figure(3.0, 3.0).subplots()
    maps = np.array([[[0.0, 50.0], [0.04, 49.96]], [[0.0, 50.0], [0.0, 50.0]]])
    heatmap(axes, maps, 50.0, ["low", "high"])
    assert [text.get_text() for text in axes.texts] == ["0", "50.0\n±0.0", "0.0\n±0.0", "50.0\n±0.0"]


@pytest.fixture
def coded():
    protocol = squad_arms.protocol("as_coded")
    records = made_squad_records.made(protocol)
    return readings.by_arm(records, protocol), title(records, protocol, "as_coded")


def test_one_seed_is_called_one_and_epochs_are_those_of_the_arms(coded):
    joined, said = coded
    assert said.endswith("6 or 9 epochs")
    for draw in (squad.draw_attention, squad.draw_learning):
        assert "one seed" in draw(joined, said).get_suptitle() and "interval" not in draw(joined, said).get_suptitle()
    assert canvas.over_seeds(3, "mean and range") == "mean and range over 3 seeds"


def test_curves_end_where_no_question_reaches_a_threshold(coded):
    joined, said = copy.deepcopy(coded)
    whole = squad.draw_curves(joined, said, "best").axes[0]
    assert whole.get_xlim() == (0, 1) and "beyond" not in whole.get_xlabel()
    for record in joined:
        for run in record["runs"]:
            heights = [100, 60, 20, 5, 1, *[0.2] * 16]
            run["best"] = run["best"] | {"dev": run["best"]["dev"] | {"ac_curve": heights}}
    axes = squad.draw_curves(joined, said, "best").axes[0]
    # The last threshold that a visible part reaches is 0.2.
    assert axes.get_xlim() == pytest.approx((0, 0.25)) and "beyond 0.25 all are below 0.5%" in axes.get_xlabel()

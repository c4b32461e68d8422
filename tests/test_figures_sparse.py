"""Figures of which there is little to show: few records, few losses, points alone, no sweep at all."""

import numpy as np
import pytest

from qkdyn import figures
from qkdyn.errors import InputError
from qkdyn.figures import canvas
from sweep_data import make_sweep


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Fewer pixels: nothing but the size of a file depends on how many there are."""
    monkeypatch.setattr(canvas, "DPI", 50)


@pytest.fixture(scope="module")
def sweep():
    return make_sweep(seeds=3, ratios=(100.0, 0.1, 1.0), records=40, names=("FAFO", "CACO"))


def curves(axes, *, dashed):
    """The drawn lines, split into the dashed ones of the theory and the others."""
    lines = [line for line in axes.get_lines() if line.is_dashed() == dashed]
    return [(line, np.asarray(line.get_xdata()), np.asarray(line.get_ydata(), np.float64)) for line in lines]


def labelled(axis):
    """The labels that lie inside the axis; its figure has been drawn."""
    low, high = sorted(axis.get_view_interval())
    places = [place for place in axis.get_majorticklocs() if low <= place <= high]
    return [text for text in axis.get_major_formatter().format_ticks(places) if text]


def first(ds, count):
    """The first records alone, no level reached."""
    ds = ds.isel(record=slice(0, count)).copy(deep=True)
    for name in ("alpha", "mu_ov", "mu_qk", "t"):
        ds[f"matched_{name}"][:] = np.nan
    return ds


@pytest.mark.parametrize(
    "bounds",
    [(0.1, 0.11), (1.386290, 1.386294), (3.0, 3.3), (0.15, 9.0), (1e-7, 1e9), (2.0, 5.0), (1.0, 10.0), (950.0, 2e5)],
)
def test_every_logarithmic_axis_has_a_few_labels_that_differ(bounds):
    figure = canvas.new_figure(3.0, 3.0)
    axes = figure.subplots()
    axes.set(xscale="log", xlim=canvas.log_limits(bounds))
    canvas.log_ticks(axes.xaxis, canvas.log_limits(bounds))
    figure.draw_without_rendering()
    labels = labelled(axes.xaxis)
    assert 2 <= len(labels) <= 9 and len(set(labels)) == len(labels)
    assert not any(text.get_text() for text in axes.xaxis.get_minorticklabels())


def test_a_single_record_is_marked_in_the_simulation_and_in_the_theory(sweep):
    figure = figures.draw_trajectories(first(sweep, 2), "balanced")
    figure.draw_without_rendering()
    for axes in figure.axes[:8]:
        for dashed in (False, True):
            for line, _, y in curves(axes, dashed=dashed):
                assert np.isfinite(y).sum() == 1 and line.get_marker() in ("o", "x")
                assert line.get_markevery() == np.flatnonzero(np.isfinite(y)).tolist()
        assert 2 <= len(labelled(axes.xaxis)) <= 9
    assert len(labelled(figure.axes[0].yaxis)) >= 2


def test_isolated_points_alone_are_marked():
    nan = np.nan
    assert canvas._alone(np.array([1, nan, 2, 3, nan, 4])) == [0, 5]
    assert canvas._alone(np.array([nan, 1, nan])) == [1] and canvas._alone(np.array([])) == []
    axes = canvas.new_figure(3.0, 3.0).subplots()
    values = np.array([[1.0, 2.0, 3.0, nan], [1.0, 2.5, nan, nan]])
    canvas.band(axes, np.arange(1.0, 5.0), values, "red", 1.0)
    assert axes.get_lines()[0].get_markevery() == []
    lonely = np.array([[1.0, nan, 3.0], [1.0, nan, nan]])
    axes = canvas.new_figure(3.0, 3.0).subplots()
    canvas.band(axes, np.arange(1.0, 4.0), lonely, "red", 1.0)
    points = [offsets for found in axes.collections[1:] for offsets in found.get_offsets().tolist()]
    assert points == [[3.0, 3.0], [3.0, 3.0]]


def test_runs_that_ended_at_their_start_are_said_to(tmp_path, sweep):
    ds = first(sweep, 40)
    for name in ("loss", "mu_ov", "mu_qk", "alpha"):
        ds[name][{"record": slice(1, None)}] = np.nan
    assert len(figures.draw_sweep(ds, tmp_path)) == 4
    for figure in (figures.draw_trajectories(ds, "balanced"), figures.draw_headline(ds)):
        panels = [axes for axes in figure.axes if axes.get_title() or axes.get_lines() or axes.texts]
        assert panels and all(axes.texts[0].get_text() == "no run recorded\nafter its start" for axes in panels)
        assert not any(axes.get_lines() for axes in figure.axes)
    headline = figures.draw_headline(ds)
    headline.draw_without_rendering()
    assert "no run got beyond its start" in headline.get_suptitle()
    assert "theory" not in [text.get_text() for text in headline.legends[0].get_texts()]
    labels = labelled(headline.axes[0].xaxis)
    assert 2 <= len(labels) <= 9
    nothing = [axes.texts[0].get_text() for axes in figures.draw_matched(ds).axes]
    assert nothing == ["no level reached"] * 6
    assert not any(axes.texts for axes in figures.draw_matched(sweep).axes)


def dense(ds):
    """`ds` with a fine theory of attention against loss that is no straight line in ln(loss)."""
    loss = np.geomspace(1.6, 1e-4, 120)
    shape = (ds.sizes["parameterization"], ds.sizes["r"], loss.size)
    alpha = np.zeros(shape) + 0.5 + 0.4 * np.sin(np.log(loss) * 3)
    return ds.assign(theory_alpha_at_loss=(("parameterization", "r", "curve_loss"), alpha)).assign_coords(
        curve_loss=loss
    )


def test_the_headlines_theory_comes_from_its_own_losses_where_there_are_some(sweep):
    few = sweep.isel(record=[0, 1, 25])
    _, x, y = curves(figures.draw_headline(dense(few)).axes[0], dashed=True)[1]
    known = np.isfinite(y)
    np.testing.assert_allclose(y[known], (0.5 + 0.4 * np.sin(np.log(x) * 3))[known], atol=0.01)
    assert known.sum() > 195
    blank = dense(few)
    blank["theory_alpha_at_loss"][:] = np.nan
    _, x, y = curves(figures.draw_headline(blank).axes[0], dashed=True)[1]
    assert y[100] == pytest.approx(float(curves(figures.draw_headline(few).axes[0], dashed=True)[1][2][100]))


def test_the_headline_reaches_to_the_levels_and_dots_what_is_known_at_few_losses(sweep):
    few = sweep.isel(record=[0, 1])
    axes = figures.draw_headline(few).axes[0]
    assert axes.get_xlim()[1] < 0.01 < axes.get_xlim()[0]
    x, y = curves(axes, dashed=False)[0][1:]
    assert x[0] == pytest.approx(0.01) and np.isfinite(y[5])
    dots = np.concatenate([found.get_offsets() for found in axes.collections if len(found.get_offsets()) > 1])
    at = sorted(float(alpha) for loss, alpha in dots if loss == pytest.approx(0.1))
    matched = few.sel(design="balanced", parameterization="CACO", level=0.1)["matched_alpha"]
    np.testing.assert_allclose(at, np.sort(matched.to_numpy().ravel()), rtol=1e-6)
    assert not any(len(found.get_offsets()) > 1 for found in figures.draw_headline(sweep).axes[0].collections)


def test_what_is_no_sweep_or_design_is_refused_by_name(tmp_path, sweep):
    with pytest.raises(InputError, match="design must be one of the dataset's: balanced, sampled, got 'foo'"):
        figures.draw_trajectories(sweep, "foo")
    empty = sweep.isel(record=[])
    for ds, message in ((type(sweep)(), "lacks design, parameterization, r, seed"), (empty, "record is empty")):
        with pytest.raises(InputError, match=message):
            figures.draw_sweep(ds, tmp_path)
    for draw in (figures.draw_headline, lambda ds: figures.draw_trajectories(ds, "balanced")):
        with pytest.raises(InputError, match="record is empty"):
            draw(empty)
    assert list(tmp_path.iterdir()) == []


def test_times_that_are_not_finite_have_no_place_on_the_axis(sweep):
    ds = sweep.copy(deep=True)
    ds["t"][:, 20:] = np.inf
    figures.draw_trajectories(ds, "balanced").draw_without_rendering()
    ds["t"][:, 1:] = np.inf
    figure = figures.draw_trajectories(ds, "balanced")
    assert all(axes.texts[0].get_text() == "no run recorded\nafter its start" for axes in figure.axes[:8])

"""Figures that show the dataset's own numbers, whatever its shape, as the same small files each time."""

import os
import subprocess
import sys
import time
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from qkdyn import figures
from qkdyn.errors import InputError, OutputError
from qkdyn.figures import canvas
from qkdyn.figures.headline import _at, _points
from qkdyn.figures.matched import _level_colours
from qkdyn.figures.trajectories import _time_limits
from sweep_data import attention, make_diverged, make_sweep

NAMES = ("FAFO", "CAFO", "FACO", "CACO")


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Fewer pixels: nothing but the size of a file depends on how many there are."""
    monkeypatch.setattr(canvas, "DPI", 50)


@pytest.fixture(scope="module")
def sweep():
    return make_sweep(seeds=3, ratios=(100.0, 0.1, 1.0), records=40)


def curves(axes, *, dashed):
    """The drawn lines, split into the dashed ones of the theory and the others."""
    lines = [line for line in axes.get_lines() if line.is_dashed() == dashed]
    return [(line, np.asarray(line.get_xdata()), np.asarray(line.get_ydata(), np.float64)) for line in lines]


# What is drawn.


def test_trajectories_draw_the_mean_the_range_and_the_theory_of_every_run(sweep):
    figure = figures.draw_trajectories(sweep, "sampled")
    panels = np.array(figure.axes[:16]).reshape(4, 4)
    for row, variable in enumerate(("loss", "mu_ov", "mu_qk", "alpha")):
        for column, name in enumerate(NAMES):
            axes, runs = panels[row, column], sweep.sel(design="sampled", parameterization=name)
            after = runs["t"].to_numpy() > 0
            assert len(curves(axes, dashed=False)) == len(curves(axes, dashed=True)) == 3
            for k in range(3):
                values = runs[variable].isel(r=k).to_numpy().astype(np.float64)[:, after]
                _, x, mean = curves(axes, dashed=False)[k]
                np.testing.assert_array_equal(x, runs["t"].to_numpy()[after])
                np.testing.assert_allclose(mean, values.mean(0), rtol=1e-6, atol=1e-12)
                seen = np.isfinite(values).any(0)
                theory = np.where(seen, runs[f"theory_{variable}"].isel(r=k).to_numpy()[after], np.nan)
                np.testing.assert_array_equal(curves(axes, dashed=True)[k][2], theory)
                vertices = axes.collections[k].get_paths()[0].vertices
                assert vertices[:, 1].max() == pytest.approx(np.nanmax(values))
                assert vertices[:, 1].min() == pytest.approx(np.nanmin(values))


def test_axes_are_labelled_with_units_and_scaled(sweep):
    figure = figures.draw_trajectories(sweep, "balanced")
    panels = np.array(figure.axes[:16]).reshape(4, 4)
    assert [axes.get_ylabel() for axes in panels[:, 0]] == list(canvas.LABELS.values())
    assert all("time" in axes.get_xlabel() and r"1/\eta_{OV}" in axes.get_xlabel() for axes in panels[-1])
    assert {axes.get_xscale() for axes in panels.flat} == {"log"}
    assert [axes.get_yscale() for axes in panels[:, 2]] == ["log", "linear", "linear", "linear"]
    assert [axes.get_title().split("\n")[0] for axes in panels[0]] == list(NAMES)
    assert "balanced design (3 seeds)" in figure.get_suptitle()
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert entries == ["r = 0.1", "r = 1", "r = 100", "theory"]


def test_mean_stops_with_the_first_seed_and_the_band_with_the_last(sweep):
    sweep = sweep.copy(deep=True)
    cell = {"design": 0, "parameterization": 3, "r": 2}
    sweep["alpha"][{**cell, "seed": 0, "record": slice(20, None)}] = np.nan
    sweep["alpha"][{**cell, "seed": 1}] = np.nan
    axes = figures.draw_trajectories(sweep, "balanced").axes[15]
    values = sweep["alpha"].isel(cell).to_numpy()[:, 1:]
    drawn = np.isfinite(curves(axes, dashed=False)[2][2])
    assert drawn.tolist() == np.isfinite(values[0]).tolist(), "a run that never recorded must not hide the others"
    right = axes.collections[2].get_paths()[0].vertices[:, 0].max()
    assert right == sweep["t"].isel(parameterization=3).to_numpy()[1:][np.isfinite(values[2])].max()


def test_colours_follow_the_ratio_not_the_order_and_stay_apart():
    colours = dict(zip((100.0, 0.1, 1.0), canvas.ratio_colours([100.0, 0.1, 1.0]), strict=True))
    assert [colours[r] for r in (0.1, 1.0, 100.0)] == canvas.ratio_colours([0.1, 1.0, 100.0])
    many = canvas.ratio_colours(list(np.geomspace(0.01, 100, 30)))
    assert len({to_hex(colour) for colour in many}) == 30
    # Lightness alone must order them, for those who see no hue.
    light = [0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue, _ in many]
    assert (np.diff(light) > 0).all() and light[-1] < 0.85


def test_time_starts_in_the_decade_before_the_first_fall_and_ends_with_the_last_record():
    time_ = np.concatenate([[0.0], np.geomspace(1, 1e5, 11)])
    loss = np.full((12, 2), 1.6)
    loss[9:, 0] = 0.1
    loss[11, :] = np.nan
    low, high = _time_limits(time_, loss)
    assert 900 < low < 1000 and time_[10] < high < 2 * time_[10]
    assert _time_limits(time_, np.full((12, 2), np.nan)) == (1.0, 10.0)
    low, high = _time_limits(time_, np.full((12, 2), 1.6))
    assert low < 1.0 and high > 1e5


def test_matched_draws_means_bars_and_theory_in_the_order_of_r(sweep):
    figure = figures.draw_matched(sweep)
    panels = np.array(figure.axes).reshape(3, 4)
    ordered = sweep.sortby("r")
    for row, variable in enumerate(("alpha", "mu_ov", "mu_qk")):
        for column in range(4):
            containers = panels[row, column].containers
            assert len(containers) == 2 * 3
            for place, container in enumerate(containers):
                cell = {"design": place // 3, "parameterization": column, "level": place % 3}
                values = ordered[f"matched_{variable}"].isel(cell).to_numpy().astype(np.float64)
                points = container[0]
                np.testing.assert_array_equal(points.get_xdata(), [0.1, 1.0, 100.0])
                np.testing.assert_allclose(points.get_ydata(), values.mean(-1))
                bars = np.array([segment[:, 1] for segment in container[2][0].get_segments()])
                np.testing.assert_allclose(bars[:, 1] - bars[:, 0], 2 * values.std(-1, ddof=1), atol=1e-6)
            lines = [
                line for line in panels[row, column].get_lines() if line.get_marker() == "None" and line.get_ls() == "-"
            ]
            theory = ordered[f"theory_matched_{variable}"].isel(parameterization=column).to_numpy()
            np.testing.assert_array_equal([line.get_ydata() for line in lines], theory.T)
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert entries == [
        "loss 0.5",
        "loss 0.1",
        "loss 0.01",
        "trained, balanced design",
        "trained, sampled design",
        "theory",
    ]


def test_losses_darken_as_they_fall():
    stats = make_sweep(seeds=1, ratios=(1.0,), records=10, levels=(0.1, 0.5, 0.01))
    light = [sum(colour[:3]) for colour in _level_colours(stats)]
    assert light[1] > light[0] > light[2]


def test_headline_shows_attention_falling_with_loss_to_the_right(sweep):
    sweep = sweep.copy(deep=True)
    for name in ("alpha", "matched_alpha"):
        sweep[name][{"design": 1}] *= 0.5  # the design that must not be drawn
    figure = figures.draw_headline(sweep.isel(design=[1, 0]))
    caco, fafo = figure.axes
    assert caco.get_title().startswith("CACO") and fafo.get_title().startswith("FAFO")
    assert "learning rate" in figure.get_suptitle() and "loss" in caco.get_xlabel() and "attention" in caco.get_ylabel()
    left, right = caco.get_xlim()
    assert left > right > 0
    line, x, y = curves(caco, dashed=False)[0]
    assert to_hex(line.get_color()) == to_hex(canvas.ratio_colours([100.0, 0.1, 1.0])[0])
    runs = sweep.sel(design="balanced", parameterization="CACO").isel(r=0)
    middle = np.nanargmin(abs(x - 0.1))
    assert y[middle] == pytest.approx(float(runs["matched_alpha"].sel(level=0.1).mean()), rel=5e-3)
    theory = curves(caco, dashed=True)[0]
    assert theory[2][middle] == pytest.approx(float(runs["theory_matched_alpha"].sel(level=0.1)), rel=5e-3)


def test_reading_a_noisy_run_at_a_loss_takes_the_first_time_and_the_matched_losses(sweep):
    run = sweep.isel(design=0, parameterization=0, r=0, seed=0)[["loss", "alpha", "matched_alpha"]].copy(deep=True)
    run = run.isel(record=slice(0, 5), level=[1])
    run["loss"][:] = [1.0, 0.5, 0.7, np.nan, 0.25]
    run["alpha"][:] = [0.1, 0.2, 0.9, 0.9, 0.4]
    run["matched_alpha"][:] = np.nan
    loss, alpha = _points(run, "")
    np.testing.assert_allclose(loss, [1.0, 0.5, 0.25])
    np.testing.assert_allclose(alpha, [0.1, 0.2, 0.4])
    np.testing.assert_allclose(_at(np.array([2.0, 1.0, 0.5**1.5, 0.1]), loss, alpha), [np.nan, 0.1, 0.3, np.nan])
    run["matched_alpha"][:] = 0.8
    loss, alpha = _points(run, "")
    np.testing.assert_allclose([loss[-1], alpha[-1]], [0.1, 0.8])
    assert np.isnan(_at(np.array([0.5]), np.array([]), np.array([]))).all()


def test_many_ratios_get_a_colour_bar_thin_lines_and_some_of_the_theory():
    ds = make_sweep(
        designs=("balanced",), names=("CACO",), seeds=1, ratios=tuple(np.geomspace(0.01, 100, 30)), records=30
    )
    figure = figures.draw_trajectories(ds, "balanced")
    bar = figure.axes[-1]
    assert len(figure.axes) == 4 + 1 and r"\eta_{QK}" in bar.get_ylabel()
    labels = [text.get_text() for text in bar.get_yticklabels()]
    assert labels[0] == "0.01" and labels[-1] == "100" and len(labels) == 7
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["theory (for one r in 5)"]
    assert len(curves(figure.axes[0], dashed=True)) == 6 and len(curves(figure.axes[0], dashed=False)) == 30


# Files.


def test_files_are_named_small_and_legible(tmp_path, sweep, monkeypatch):
    monkeypatch.undo()
    paths = figures.draw_sweep(sweep, tmp_path)
    names = ["trajectories_balanced.png", "trajectories_sampled.png", "matched.png", "headline.png"]
    assert [path.name for path in paths] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    for path in paths:
        assert path.stat().st_size < 400_000
        with Image.open(path) as image:
            assert image.size[0] >= 700 and image.info.keys() <= {"dpi"}
            assert len(image.convert("RGB").getcolors(1 << 24)) > 50


def test_key_and_titles_lie_inside_the_picture_and_outside_of_the_data(sweep):
    single = sweep.isel(parameterization=[3], design=[0])
    for figure in (
        figures.draw_trajectories(sweep, "balanced"),
        figures.draw_matched(sweep),
        figures.draw_headline(sweep),
        figures.draw_trajectories(single, "balanced"),
        figures.draw_matched(single),
        figures.draw_headline(single),
    ):
        figure.draw_without_rendering()
        key = figure.legends[0].get_window_extent()
        for artist in (key, figure._suptitle.get_window_extent()):
            assert artist.x0 >= 0 and artist.x1 <= figure.bbox.x1 and artist.y0 >= 0 and artist.y1 <= figure.bbox.y1
        for axes in figure.axes:
            assert not axes.get_window_extent().overlaps(key)


def test_same_dataset_same_bytes_in_another_process_later(tmp_path, monkeypatch):
    monkeypatch.undo()
    small = {"seeds": 2, "ratios": (0.1, 10.0), "records": 20, "names": ("CACO",), "designs": ("balanced",)}
    first = [path.read_bytes() for path in figures.draw_sweep(make_sweep(**small), tmp_path)]
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from sweep_data import make_sweep; from qkdyn import figures\n"
        f"figures.draw_sweep(make_sweep(**{small!r}), sys.argv[2])\n"
    )
    again = tmp_path / "again"
    again.mkdir()
    time.sleep(1.1)
    environment = os.environ | {"PYTHONHASHSEED": "5"}
    subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent), str(again)], env=environment, check=True)
    names = ("trajectories_balanced.png", "matched.png", "headline.png")
    assert [(again / name).read_bytes() for name in names] == first


def test_drawing_needs_no_pyplot_and_importing_no_matplotlib(tmp_path):
    code = (
        "import sys; import qkdyn.figures; assert 'matplotlib' not in sys.modules and 'xarray' not in sys.modules\n"
        "sys.path.insert(0, sys.argv[1]); from sweep_data import make_sweep\n"
        "ds = make_sweep(seeds=1, ratios=(1.0,), records=10, names=('CACO',), designs=('balanced',))\n"
        "qkdyn.figures.draw_sweep(ds, sys.argv[2]); assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "DISPLAY"} | {"MPLBACKEND": "tkagg"}
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path)]
    subprocess.run(command, env=environment, check=True)
    assert len(list(tmp_path.iterdir())) == 3


def test_the_users_own_style_is_left_alone(sweep):
    before = dict(matplotlib.rcParams)
    figures.draw_headline(sweep)
    assert dict(matplotlib.rcParams) == before


# Odd shapes.

ODD = {
    "one of everything": {"designs": ("sampled",), "names": ("CACO",), "ratios": (1.0,), "seeds": 1, "levels": (0.1,)},
    "no level": {"levels": (), "seeds": 1},
    "no level ever reached": {"end": 100.0, "seeds": 2},
    "three parameterizations": {"names": ("FACO", "CAFO", "FAFO")},
    "another design and circuit": {"designs": ("mine",), "names": ("FACO",)},
    "many levels and ratios": {
        "ratios": tuple(np.geomspace(0.01, 100, 12)),
        "levels": tuple(np.geomspace(0.9, 0.01, 10)),
    },
}


@pytest.mark.parametrize("case", ODD)
def test_odd_shapes_are_drawn(tmp_path, case):
    usual = {"seeds": 2, "ratios": (0.1, 10.0), "records": 20, "designs": ("balanced",), "names": ("FAFO", "CACO")}
    ds = make_sweep(**usual | ODD[case])
    paths = figures.draw_sweep(ds, tmp_path)
    assert len(paths) == ds.sizes["design"] + 2 and all(path.stat().st_size > 2000 for path in paths)


@pytest.mark.parametrize("where", [{"design": 0}, {"parameterization": 1}, {"r": 0}, {"seed": 0}, {}])
def test_diverged_runs_are_left_out_and_empty_panels_say_so(tmp_path, where):
    ds = make_sweep(seeds=2, ratios=(0.1, 10.0), records=20, designs=("balanced",), names=("CACO", "FACO"))
    ds = make_diverged(ds, **where)
    assert len(figures.draw_sweep(ds, tmp_path)) == 3
    panels = figures.draw_trajectories(ds, "balanced").axes
    empty = [any(text.get_text() == "no run recorded" for text in axes.texts) for axes in panels]
    expected = {"design": [True] * 8, "parameterization": [False, True] * 4, "r": [False] * 8, "seed": [False] * 8}
    assert empty == expected.get(next(iter(where), "design"), [])


def test_a_sweep_without_theory_is_drawn_without_it(tmp_path, sweep):
    bare = sweep.drop_vars([name for name in sweep if str(name).startswith("theory")])
    bare = bare.isel(parameterization=[0, 3], design=[0])
    assert len(figures.draw_sweep(bare, tmp_path)) == 3
    figure = figures.draw_trajectories(bare, "balanced")
    assert not curves(figure.axes[0], dashed=True)
    assert "theory" not in [text.get_text() for text in figure.legends[0].get_texts()]


def test_what_cannot_be_drawn_or_written_is_refused(tmp_path, sweep):
    with pytest.raises(InputError, match="lacks matched_alpha"):
        figures.draw_sweep(sweep.drop_vars("matched_alpha"), tmp_path)
    with pytest.raises(InputError, match="lacks alpha"):
        figures.draw_headline(sweep.drop_vars("alpha"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OutputError, match="the folder is missing"):
        figures.draw_sweep(sweep.isel(design=[0], parameterization=[3]), tmp_path / "nowhere")


def test_synthetic_sweep_is_what_the_theory_says():
    assert attention(0.0) == pytest.approx(5 / 55)
    at = make_sweep(seeds=1, ratios=(1.0, 10.0), designs=("balanced",))["theory_matched_alpha"].sel(level=0.1)
    expected = {"FACO": (0.952226, 0.998698), "CACO": (0.263115, 0.544305), "FAFO": (0.114452, 0.602017)}
    for name, values in expected.items():
        np.testing.assert_allclose(at.sel(parameterization=name), values, rtol=1e-3)


def test_matched_draws_the_theory_at_its_own_ratios_where_there_are_some():
    ds = make_sweep(seeds=1, ratios=(1.0, 10.0), designs=("balanced",))
    curve = np.linspace(0.1, 0.9, 4 * 5 * 3).reshape(4, 5, 3)
    names = {
        f"theory_curve_{k}": (("parameterization", "curve_r", "level"), curve) for k in ("alpha", "mu_ov", "mu_qk")
    }
    panel = figures.draw_matched(ds.assign(names).assign_coords(curve_r=np.geomspace(1, 10, 5))).axes[4 + 2]
    lines = [line for line in panel.get_lines() if line.get_marker() == "None" and line.get_ls() == "-"]
    np.testing.assert_array_equal([line.get_ydata() for line in lines], curve[2].T)
    np.testing.assert_allclose(lines[0].get_xdata(), np.geomspace(1, 10, 5))

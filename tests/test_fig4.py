"""Figure 4: the published output to its digits, two solvers beside each other, redrawing, wrong input before any work."""

import numpy as np
import pandas as pd
import pytest

from experiments import fig4_growth
from qkdyn import results
from qkdyn.errors import InputError, OutputError, RangeError
from qkdyn.figures.growth import draw_growth


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fig4")
    assert fig4_growth.main(["--quick", "--out", str(folder)]) == 0
    return folder


def test_the_published_output_to_all_its_digits():
    frame = fig4_growth.run(fig4_growth.Config(M=(20,), r=(0.01, 0.1), losses=2))
    for r, (tau, *state) in fig4_growth.PUBLISHED.items():
        last = frame[(frame["r"] == r) & np.isclose(frame["loss"], 1e-4)].iloc[0]
        assert [round(last[name], 3) for name in ("mu_ov", "mu_qk", "alpha")] == state
        assert float(f"{last['tau']:.3g}") == tau


def test_closed_form_and_diffrax_give_the_same_table(folder):
    frame = pd.read_csv(folder / "summary.csv")
    assert len(frame) == 2 * 5 * 9
    for name in ("mu_ov", "mu_qk", "alpha", "loss"):
        np.testing.assert_allclose(frame[f"{name}_diffrax"], frame[name], rtol=1e-11)


def test_redrawing_gives_the_same_picture_and_all_is_vouched_for(folder, capsys):
    assert results.verify(folder) == []
    before = (folder / "fig4.png").read_bytes()
    assert fig4_growth.main(["--draw-only", "--out", str(folder)]) == 0
    assert (folder / "fig4.png").read_bytes() == before
    out = capsys.readouterr().out
    assert "81.669 (81.669)" in out and str(folder / "fig4.png") in out


def test_the_figure_has_a_row_for_each_m_and_a_line_for_each_ratio(folder):
    figure = draw_growth(pd.read_csv(folder / "summary.csv"))
    assert len(figure.axes) == 10
    assert all(len(axes.get_lines()) == 10 for axes in figure.axes)


@pytest.mark.parametrize(
    "arguments, error, told",
    [
        (["--protocol", "as_printed"], InputError, "one of reference, as_coded, as_written, quick"),
        (["--draw-only"], OutputError, "there is no such file"),
        (["--draw-only", "--M", "5"], InputError, "takes no --M"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_written(arguments, error, told, tmp_path):
    with pytest.raises(error, match=told):
        fig4_growth.main([*arguments, "--out", str(tmp_path / "x")])
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "fields, error, told",
    [
        ({"first_loss": 2.0}, RangeError, "below ln M = 1.60944"),
        ({"last_loss": 1.0}, InputError, "last_loss must be from 1e-200.*0.99 first_loss"),
        ({"last_loss": 1e-250}, InputError, "last_loss must be from 1e-200"),
        ({"losses": 10**12}, InputError, "losses must be at most 10000"),
        ({"r": (1e-80,)}, InputError, "each of r must be between 1e-75"),
        ({"r": (1.0, -1.0)}, InputError, "each of r must be"),
        ({"M": (5, 5)}, InputError, "M must be distinct"),
        ({"losses": 1}, InputError, "losses must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields, error, told):
    with pytest.raises(error, match=told):
        fig4_growth.Config(**fields)


def test_a_table_of_something_else_is_refused(tmp_path):
    pd.DataFrame({"r": [1.0]}).to_csv(tmp_path / "summary.csv")
    with pytest.raises(InputError, match=r"lacks the columns M, loss"):
        fig4_growth.main(["--draw-only", "--out", str(tmp_path)])

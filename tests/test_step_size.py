"""The step-size experiment: designs apart, its CSV distrusted, nothing reached said to be so, old manifests retracted."""

import json

import numpy as np
import pandas as pd
import pytest

from experiments import step_size
from helpers import without_integration
from qkdyn import figures, results
from qkdyn.config import main_guard
from qkdyn.errors import InputError, OutputError, OutputWarning
from qkdyn.figures.step_size import draw_step_size

ONE = ["--quick", "--parameterizations", "CACO", "--seeds", "0", "--r", "1"]


@pytest.fixture(autouse=True)
def no_integration(monkeypatch):
    """Of theory, what is looked at here is at matched losses."""
    without_integration(monkeypatch)


def table(designs=("balanced",), scales=(1.0, 0.5), power=1.0, size=0.01, quantities=("alpha", "mu_ov")):
    """Differences that fall like scale^power; each further design ten times larger and of the other sign."""
    rows = [
        {
            "design": design,
            "parameterization": "CACO",
            "r": r,
            "level": 0.1,
            "scale": scale,
            "quantity": quantity,
            "difference": size * (-10) ** place * scale**power,
        }
        for place, design in enumerate(designs)
        for r in (1.0, 10.0)
        for scale in scales
        for quantity in quantities
    ]
    return pd.DataFrame(rows)


# Designs.


def test_run_keeps_the_designs_apart(tmp_path, capsys):
    arguments = [*ONE, "--losses", "0.5", "--stop-loss", "0.5", "--designs", "balanced", "sampled"]
    assert step_size.main([*arguments, "--out", str(tmp_path)]) == 0
    frame = pd.read_csv(tmp_path / "summary.csv")
    assert list(frame.columns[:4]) == ["design", "parameterization", "r", "level"]
    assert len(frame) == 2 * 2 * 3 and set(frame["design"]) == {"balanced", "sampled"}
    told = capsys.readouterr().out
    assert "balanced" in told and "sampled" in told
    assert results.verify(tmp_path) == []


def test_slopes_and_lines_are_per_design_and_never_averaged():
    frame = table(("balanced", "sampled"))
    slopes = step_size.slopes(frame)
    assert len(slopes) == 2 * 2 * 2
    np.testing.assert_allclose(slopes["slope"], 1.0)
    assert sorted(set(slopes["difference"].abs().round(6))) == [0.01, 0.1]
    figure = draw_step_size(frame)
    lines = [line for line in figure.axes[0].get_lines() if not line.is_dashed()]
    assert len(lines) == 4 and len({line.get_marker() for line in lines}) == 2
    assert sorted(float(line.get_ydata()[-1]) for line in lines) == pytest.approx([0.01, 0.01, 0.1, 0.1])
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert entries == ["r = 1", "r = 10", "balanced design", "sampled design", "slope 1"]


def test_a_table_that_would_have_to_be_averaged_is_refused():
    frame = table(("balanced", "sampled")).drop(columns="design")
    for use in (step_size.slopes, draw_step_size):
        with pytest.raises(InputError, match=r"several rows for parameterization CACO, r 1.0, level 0.1, scale 1.0"):
            use(frame)
    old = table().drop(columns="design")
    assert len(step_size.slopes(old)) == 4 and len(draw_step_size(old).axes) == 2


# A CSV that anybody may have touched.

BAD = {
    "missing": (None, OutputError, r"there is no such file; run this command without --draw-only first"),
    "empty": (b"", OutputError, "empty, damaged or not CSV"),
    "binary": (bytes(range(256)) * 20, OutputError, "empty, damaged or not CSV"),
    "ragged": (b"a,b\n1,2\n1,2,3,4\n", OutputError, "empty, damaged or not CSV"),
    "header alone": (table().head(0).to_csv(index=False).encode(), InputError, "holds no row"),
    "of a sweep": (b"design,parameterization,r,level,seeds\nb,CACO,1,0.1,2\n", InputError, "columns scale, quantity"),
    "words": (table().astype({"difference": str}).replace("0.01", "x").to_csv(index=False).encode(), InputError, "'x'"),
    "zero scale": (table(scales=(1.0, 0.0)).to_csv(index=False).encode(), InputError, "finite numbers > 0, got 0.0"),
    "blank r": (table().assign(r=np.nan).to_csv(index=False).encode(), InputError, "r in .* finite numbers > 0"),
    "doubled": (pd.concat([table(), table()]).to_csv(index=False).encode(), InputError, "several rows"),
}


@pytest.mark.parametrize("case", BAD)
def test_draw_only_names_what_is_wrong_and_touches_nothing(tmp_path, case, capsys):
    content, error, message = BAD[case]
    folder = tmp_path / "run"
    if content is not None:
        folder.mkdir()
        (folder / "summary.csv").write_bytes(content)
    with pytest.raises(error, match=message) as told:
        step_size.main(["--draw-only", "--out", str(folder)])
    advice = "summary.csv of experiments.step_size" if error is InputError else "without --draw-only first"
    assert str(folder / "summary.csv") in str(told.value) and advice in str(told.value)
    assert main_guard(lambda: step_size.main(["--draw-only", "--out", str(folder)])) == 2
    assert "Traceback" not in capsys.readouterr().err
    left = [path.name for path in folder.iterdir()] if folder.exists() else None
    assert left == (None if content is None else ["summary.csv"])


@pytest.mark.parametrize("frame", [pd.DataFrame(), table().head(0), table().drop(columns="scale")])
def test_drawing_what_is_no_table_is_refused(tmp_path, frame):
    with pytest.raises(InputError, match="lacks the columns|holds no row"):
        figures.draw_step_size(frame, tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_draw_only_warns_of_a_table_its_manifest_does_not_know(tmp_path, capsys):
    config = step_size.PROTOCOLS["quick"]
    step_size.write(table(), config, tmp_path, 1.0, ["x"])
    assert step_size.main(["--draw-only", "--out", str(tmp_path)]) == 0
    table(size=0.02).to_csv(tmp_path / "summary.csv", index=False)
    with pytest.warns(OutputWarning, match=r"summary\.csv is not the file that run\.json vouches for"):
        assert step_size.main(["--draw-only", "--out", str(tmp_path)]) == 0


# Nothing to compare.


def test_nothing_reached_is_said_by_table_figure_and_command(tmp_path, capsys):
    assert step_size.main([*ONE, "--max-steps", "20", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "No slope: no run reached a level" in told and "--max-steps" in told
    assert "loss 0.1 not reached at rates x 0.5: 1 of 1 cells (CACO)" in told
    assert {path.name for path in tmp_path.iterdir()} - {".lock"} == {"summary.csv", "step_size.png", "run.json"}
    figure = draw_step_size(step_size.read(tmp_path / "summary.csv"))
    assert "No level reached" in figure.get_suptitle()
    assert all([text.get_text() for text in axes.texts] == ["no level reached"] for axes in figure.axes)
    assert step_size.main(["--draw-only", "--out", str(tmp_path)]) == 0


def test_a_level_reached_at_one_scale_alone_gives_no_slope_and_is_named(capsys):
    frame = table(scales=(1.0, 0.5, 0.25))
    frame.loc[(frame["scale"] == 0.5) & (frame["r"] == 10.0), "difference"] = np.nan
    slopes = step_size.slopes(frame)
    assert set(slopes["r"]) == {1.0} and len(slopes) == 4 and np.isfinite(slopes["slope"]).all()
    assert step_size.unknown(frame) == ["loss 0.1 not reached at rates x 0.5: 1 of 2 cells (CACO)"]
    step_size.show(frame)
    assert "1 of 2 cells" in capsys.readouterr().out


def test_differences_of_rounding_and_single_scales_have_no_slope(capsys):
    for frame in (table(size=1e-6), table(scales=(1.0,)), table(power=0.0, size=0.0)):
        assert list(step_size.slopes(frame).columns[-5:]) == ["difference", "halved", "scale", "half", "slope"]
        assert step_size.slopes(frame).empty
        step_size.show(frame)
        assert "larger of them above 0.0001" in " ".join(capsys.readouterr().out.split())
        draw_step_size(frame).canvas.draw()


# The manifest goes first and comes last.


def test_a_run_that_ends_while_it_writes_leaves_no_manifest(tmp_path, monkeypatch):
    config = step_size.PROTOCOLS["quick"]
    step_size.write(table(), config, tmp_path, 1.0, ["x"])
    assert results.verify(tmp_path) == [] and json.loads((tmp_path / "run.json").read_text())["argv"] == ["x"]

    def killed(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(step_size, "draw_step_size", killed)
    with pytest.raises(KeyboardInterrupt):
        step_size.write(table(size=0.02), config, tmp_path, 1.0, ["y"])
    assert "0.02" in (tmp_path / "summary.csv").read_text()
    assert results.verify(tmp_path) == ["run.json: missing"]

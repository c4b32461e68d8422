"""The experiments as commands: what they print and write, redrawing, wrong input before any work, shares of progress."""

import json
import subprocess
import sys

import numpy as np
import pytest

from experiments import step_size, sweep
from qkdyn.config import main_guard
from qkdyn.errors import ConflictError, OutputError
from qkdyn.results import compare_runs, load_dataset
from qkdyn.train.lock import lock
from qkdyn.train.state import Plan
from qkdyn.train.sweep import Grid

TINY = ["--m", "2", "--n", "3", "--b", "2", "--M", "3", "--backgrounds", "4", "--batch", "24", "--r", "1", "30"]
TINY += ["--seeds", "0", "1", "--losses", "0.7", "0.4", "--stop-loss", "0.4", "--max-steps", "400", "--records", "20"]
TINY += ["--parameterizations", "FAFO", "CACO"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    assert sweep.main([*TINY, "--out", str(folder)]) == 0
    return folder


def files_of(folder):
    """What a user sees in the folder: neither the lock nor what the sweep keeps to go on from."""
    return [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]


def test_the_sweep_writes_what_it_says(folder, capsys):
    names = {"data.nc", "summary.csv", "run.json", "headline.png", "matched.png"}
    names |= {"trajectories_balanced.png", "trajectories_sampled.png"}
    assert {path.name for path in files_of(folder)} == names
    run = json.loads((folder / "run.json").read_text())
    assert run["config"]["grid"]["r"] == [1.0, 30.0] and run["argv"][:3] == ["python", "-m", "experiments.sweep"]
    assert set(run["sha256"]) == names - {"run.json"} and run["wall_seconds"] > 0
    ds = load_dataset(folder / "data.nc")
    assert ds.digest == run["digest"] and json.loads(ds.config) == run["config"]
    assert np.isfinite(ds.matched_alpha).all() and (ds.bounds_hold == 1).all()


def test_redrawing_needs_the_records_alone(folder, capsys):
    before = {path.name: path.read_bytes() for path in files_of(folder)}
    for path in files_of(folder):
        if path.name != "data.nc":
            path.unlink()
    assert sweep.main(["--draw-only", "--out", str(folder)]) == 0
    after = {path.name: path.read_bytes() for path in files_of(folder)}
    assert {name: after[name] for name in after} == {name: before[name] for name in before if name != "run.json"}
    out = capsys.readouterr().out
    assert "CACO" in out and "summary.csv" in out
    (folder / "run.json").write_bytes(before["run.json"])
    with lock(folder), pytest.raises(ConflictError, match="another process is writing to"):
        sweep.main(["--draw-only", "--out", str(folder)])


def test_the_same_command_gives_the_same_bytes(folder, tmp_path, capsys):
    assert sweep.main([*TINY, "--out", str(tmp_path)]) == 0
    for name in ("data.nc", "summary.csv", "matched.png", "headline.png"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    assert "Attention alpha at matched loss" in capsys.readouterr().out


def test_two_runs_are_compared_at_matched_loss(folder, tmp_path, capsys):
    assert sweep.main([*TINY, "--rate-scale", "0.5", "--max-steps", "800", "--no-draw", "--out", str(tmp_path)]) == 0
    text = compare_runs(folder, tmp_path)
    assert "rate_scale" in text and "alpha" in text


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--r", "0"], "r must be a finite number > 0, got 0.0"),
        (["--r", "nan"], "r must be a finite number > 0, got nan"),
        (["--r", "ten"], "ten"),
        (["--r"], "r must be a list with at least one value"),
        (["--M", "1"], "M must be an integer >= 2, got 1"),
        (["--n", "-8"], "n must be an integer >= 1, got -8"),
        (["--losses", "0.1", "0.5"], "losses must be decreasing"),
        (["--parameterizations", "FOFA"], "one of FAFO, CAFO, FACO, CACO, got 'FOFA'"),
        (["--initial-scale", "0"], "saddle"),
        (["--rate-scale", "-1"], "rate_scale must be a finite number > 0"),
        (["--eta-ov-CACO", "0"], "eta_ov_CACO must be a finite number > 0"),
    ],
)
def test_wrong_input_is_refused_before_any_work(arguments, message, tmp_path, capsys, monkeypatch, unchecked):
    monkeypatch.setattr(sweep, "run", lambda *a: pytest.fail("work began"))
    with pytest.raises(SystemExit) as stop:
        sweep.main([*arguments, "--out", str(tmp_path / "new")])
    told = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert stop.value.code == 2 and message in told and not (tmp_path / "new").exists()


def test_unknown_protocols_and_unwritable_folders_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sweep, "run", lambda *a: pytest.fail("work began"))
    assert main_guard(lambda: sweep.main(["--protocol", "fast"])) == 2
    assert "protocol must be one of reference, quick, got 'fast'" in capsys.readouterr().err
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="file"):
        sweep.main(["--out", str(tmp_path / "file" / "deeper")])


def test_levels_above_the_start_are_refused_before_training(tmp_path):
    with pytest.raises(ValueError, match=r"loss.*\(0, 1\.38629\)|losses must lie in"):
        sweep.main(["--losses", "2", "0.1", "--stop-loss", "0.1", "--out", str(tmp_path)])
    assert not list(tmp_path.glob("*.nc"))


def test_shares_of_progress_rise_to_one():
    shares = []
    grid = Grid(r=(1.0, 30.0), seeds=(0,), designs=("balanced",), parameterizations=("FACO", "CACO"))
    plan = Plan(losses=(0.7,), stop_loss=0.4, max_steps=4000, chunk=50)
    sweep.run(sweep.Config(grid=grid, plan=plan), lambda share, status: shares.append((share, status)))
    values = [share for share, _ in shares]
    assert values == sorted(values) and values[-1] == pytest.approx(1.0) and 0 < values[0] < 0.5
    assert "4/4 runs" in shares[-1][1] and "run-steps, loss" in shares[-1][1]


def test_step_size_from_its_command(tmp_path, capsys):
    arguments = ["--quick", "--r", "1", "--parameterizations", "CACO", "--out", str(tmp_path)]
    assert step_size.main(arguments) == 0
    assert {path.name for path in files_of(tmp_path)} == {"summary.csv", "step_size.png", "run.json"}
    picture = (tmp_path / "step_size.png").read_bytes()
    assert step_size.main(["--draw-only", "--quick", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "step_size.png").read_bytes() == picture
    with lock(tmp_path), pytest.raises(ConflictError, match="another process is writing to"):
        step_size.main(["--draw-only", "--quick", "--out", str(tmp_path)])
    assert "slope" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--fresh"], ["--no-exact"], ["--max-runs", "5"], ["--distributed"], ["--no-draw"]])
def test_step_size_refuses_what_only_the_sweep_can_do(option, capsys, unchecked):
    with pytest.raises(SystemExit) as stop:
        step_size.main(["--quick", *option])
    assert stop.value.code == 2 and "an option of experiments.sweep" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--quick", "--protocol", "reference"], "--protocol must be left out, or quick, beside --quick"),
        (["--draw-only", "--r", "5", "--losses", "0.3"], "takes no --r, --losses; leave that out, or --draw-only"),
    ],
)
def test_options_that_contradict_each_other_are_refused(arguments, message, capsys):
    assert main_guard(lambda: sweep.main(arguments)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("scales", [["1"], ["0.5", "1"], ["1", "0"]])
def test_step_size_refuses_scales(scales, capsys, unchecked):
    with pytest.raises(SystemExit):
        step_size.main(["--scales", *scales])
    assert "scales" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["experiments.sweep", "experiments.step_size"])
def test_help_names_every_protocol_and_starts_nothing(module):
    done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "--protocol" in done.stdout and "reference, quick" in done.stdout

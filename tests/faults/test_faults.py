"""The sweep as a process among others: killed, asked to end, run twice, out of space, in two processes, with a peer gone."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kills import ROOT, SWEEP, finish, kill_at_random, same, start

from qkdyn.train.lock import lock


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    finish(folder)
    return folder


def wait_for(condition, seconds=120.0):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.01)


def checkpointed(folder):
    """Whether a sweep into `folder` has written a checkpoint."""
    return lambda: any((folder / "checkpoints" / "checkpoints").glob("*/*/manifest.json"))


def resumed(said):
    """Whether a sweep went on from a checkpoint: the first thing that a new one says is of 25 steps of 8 runs."""
    first = re.search(r"([\d,]+) run-steps", said)
    return first is not None and int(first[1].replace(",", "")) > 25 * 8 and "warning" not in said


def test_twenty_kills_leave_no_trace(tmp_path, whole):
    met, compared = kill_at_random(tmp_path / "killed", whole, 20, seed=int(os.environ.get("KILL_SEED", "1")))
    assert sum(met.values()) == 20 and met["training"] > 0, met
    assert all(compared), compared


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_end_it_saves_says_so_and_goes_on(number, tmp_path, whole):
    process = start(tmp_path)
    wait_for(checkpointed(tmp_path))
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75
    assert err.splitlines()[-1] == f"interrupted by {number.name}: saved; the same command goes on from here"
    assert "Traceback" not in err
    assert resumed(finish(tmp_path)) and same(whole, tmp_path)


def test_after_fresh_the_line_is_true_too(tmp_path, whole):
    process = start(tmp_path, "--fresh")
    wait_for(checkpointed(tmp_path))
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert err.splitlines()[-1] == "interrupted by SIGTERM: saved; the same command without --fresh goes on from here"
    assert resumed(finish(tmp_path)) and same(whole, tmp_path)


def test_a_second_sweep_in_the_same_folder_is_refused_and_the_first_goes_on(tmp_path, whole):
    first = start(tmp_path)
    wait_for(lambda: (tmp_path / ".lock").exists() and (tmp_path / ".lock").read_text())
    second = start(tmp_path)
    _, err = second.communicate(timeout=120)
    assert second.returncode == 2 and f"process {first.pid} on" in err and "another --out" in err
    assert first.communicate(timeout=120) and first.returncode == 0
    assert same(whole, tmp_path)


def test_another_configuration_is_refused_and_fresh_begins_anew(whole, tmp_path):
    finish(tmp_path)
    before = (tmp_path / "data.nc").read_bytes()
    process = start(tmp_path, "--n", "4")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2 and "task.n: 3 there, 4 here" in err and "--fresh" in err
    assert (tmp_path / "data.nc").read_bytes() == before
    finish(tmp_path, "--n", "4", "--fresh")
    assert (tmp_path / "data.nc").read_bytes() != before


def test_out_of_space_while_results_are_written_leaves_nothing_half(tmp_path, whole):
    """Files larger than a limit cannot be written, as on a full disk."""
    size = (whole / "data.nc").stat().st_size // 2

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    arguments = [sys.executable, *SWEEP, "--checkpoint-seconds", "1000", "--out", str(tmp_path)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=200, preexec_fn=limit)
    assert done.returncode == 2 and "error: cannot write" in done.stderr and "Traceback" not in done.stderr
    assert (
        not list(tmp_path.glob("*.nc")) and not list(tmp_path.glob(".*.tmp")) and not (tmp_path / "run.json").exists()
    )
    finish(tmp_path)
    assert same(whole, tmp_path)


@pytest.mark.parametrize("devices", ["1", "2", "4", "8"])
def test_the_same_bits_on_any_number_of_devices(devices, tmp_path, whole):
    finish(tmp_path, "--devices", devices)
    assert same(whole, tmp_path)


def test_larger_than_memory_is_cut_into_groups_with_the_same_bits(tmp_path, whole):
    finish(tmp_path, "--max-runs", "3")
    assert same(whole, tmp_path)
    assert len(list((tmp_path / "checkpoints" / "parts").glob("*.npz"))) == 2 * 3


def two(folder, *more):
    """Two processes that train together."""
    command = [sys.executable, "-m", "qkdyn.train.launch", "2", "--", *SWEEP, "--out", str(folder), *more]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def children(process):
    """Ids of the processes that `process` started."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def test_two_processes_give_the_bits_of_one_and_resume_each_other(tmp_path, whole):
    both = two(tmp_path / "two")
    _, err = both.communicate(timeout=240)
    assert both.returncode == 0, err
    assert same(whole, tmp_path / "two")

    asked = two(tmp_path / "mixed")
    wait_for(checkpointed(tmp_path / "mixed"))
    asked.send_signal(signal.SIGTERM)
    _, err = asked.communicate(timeout=120)
    assert asked.returncode == 75 and err.count("saved; the same command goes on") == 1, err
    assert resumed(finish(tmp_path / "mixed")) and same(whole, tmp_path / "mixed")

    alone = start(tmp_path / "other")
    wait_for(checkpointed(tmp_path / "other"))
    alone.send_signal(signal.SIGTERM)
    alone.communicate(timeout=60)
    assert alone.returncode == 75
    both = two(tmp_path / "other")
    _, err = both.communicate(timeout=240)
    assert both.returncode == 0 and resumed(err) and same(whole, tmp_path / "other")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_peer_that_is_gone_ends_the_other_and_a_restart_resumes(victim, tmp_path, whole):
    both = two(tmp_path)
    wait_for(checkpointed(tmp_path))
    os.kill(children(both)[victim], signal.SIGKILL)
    begun = time.monotonic()
    _, err = both.communicate(timeout=60)
    assert time.monotonic() - begun < 30
    said = err.splitlines()
    survivor = said.index(f"process {1 - victim} ended with status 76")
    assert f"process {victim} ended with status -9" in said
    (line,) = [line for line in said if "start all of them again" in line]
    assert line.startswith("error: another process of this run is gone") and said.index(line) < survivor
    assert "Traceback" not in err and "***" not in err, err
    finish(tmp_path)
    assert same(whole, tmp_path)


def test_a_peer_that_is_gone_before_the_first_step_ends_the_other(tmp_path):
    both = two(tmp_path)
    wait_for(lambda: (tmp_path / ".lock").exists())  # they have met
    begun = time.monotonic()
    os.kill(children(both)[1], signal.SIGKILL)
    _, err = both.communicate(timeout=60)
    assert time.monotonic() - begun < 30
    said = err.splitlines()
    assert {"process 1 ended with status -9", "process 0 ended with status 76"} <= set(said)
    assert len([line for line in said if line.startswith("error: ")]) == 1 and len(said) < 6, err


def test_two_that_are_refused_end_with_a_line_each(tmp_path, whole):
    with lock(tmp_path):
        both = two(tmp_path)
        begun = time.monotonic()
        _, err = both.communicate(timeout=120)
    assert both.returncode == 2 and time.monotonic() - begun < 100
    said = [line for line in err.splitlines() if line]
    ended = [f"process {i} ended with status 2" for i in range(2)]
    assert sorted(line for line in said if line in ended) == ended
    mine = [line for line in said if line not in ended]
    assert len(mine) == 2 and all("another process is writing to" in line for line in mine), err


UNEQUAL = """
import sys
from experiments import sweep
from qkdyn.config import main_guard
from qkdyn.train import campaign
number = int(sys.argv[sys.argv.index("--process") + 1])
campaign.bytes_of_run = lambda *what: 2**20
campaign.free_memory = lambda: 2**20 * 4 * 2 * (6 if number == 0 else 60)
sys.exit(main_guard(sweep.main))
"""


def test_processes_with_different_memory_agree_on_the_groups(tmp_path, whole):
    """In the free memory that the first sees there is room for six runs, in that of the second for sixty."""
    command = [sys.executable, "-m", "qkdyn.train.launch", "2", "--", "-c", UNEQUAL, *SWEEP[2:], "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert same(whole, tmp_path)
    assert len(list((tmp_path / "checkpoints" / "parts").glob("*.npz"))) == 2 * 2


def test_when_the_launcher_is_killed_its_processes_end(tmp_path):
    both = two(tmp_path)
    wait_for(lambda: (tmp_path / ".lock").exists())
    started = children(both)
    assert len(started) >= 2  # or there would be nothing to end
    both.kill()
    both.communicate(timeout=20)  # their ends of the pipes are closed with them
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), 20)


def test_the_launcher_says_how_it_is_used():
    done = subprocess.run([sys.executable, "-m", "qkdyn.train.launch"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "usage: python -m qkdyn.train.launch N" in done.stderr


def test_a_finished_sweep_is_not_trained_again(tmp_path, whole):
    finish(tmp_path)
    parts = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "checkpoints" / "parts").iterdir()}
    said = finish(tmp_path)
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "checkpoints" / "parts").iterdir()} == parts
    assert "from the records" in said and same(whole, tmp_path)
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["argv"][:3] == ["python", "-m", "experiments.sweep"]
    assert record["runs"] == {"taken_from_records": 16, "resumed": 0, "trained": 0}

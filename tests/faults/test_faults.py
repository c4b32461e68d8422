"""The sweep as a process among others: killed, asked to end, run twice, out of space, in two processes, with a peer gone.

What is done to a process is done at a moment of its work at which it is held (held.py), and so the same on every machine.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kills import ENVIRONMENT, NOWHERE, OPTIONS, ROOT, command, finish, held, kill_at_random, run, same, start
from kills import wait_until_held as wait_until

from qkdyn.train.lock import lock

# The first checkpoint is about to be vouched for; the folder is locked, and processes that train together have met.
CHECKPOINT, LOCKED = ("1:manifest.json", "-"), ("1:.lock", "-")
LIMIT = 600  # seconds after which a process hangs


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    finish(folder)
    return folder


def ended(process):
    """What a process said on standard error until its end."""
    return process.communicate(timeout=LIMIT)[1]


def counts(folder):
    """How many runs the last command in `folder` found and trained."""
    return json.loads((folder / "run.json").read_text())["runs"]


def resumes(folder, whole):
    """Whether a sweep goes on from a checkpoint, without a warning, to the same bits."""
    said = finish(folder)
    return counts(folder)["resumed"] == 8 and "warning" not in said and same(whole, folder)


def test_twenty_kills_leave_no_trace(tmp_path, whole):
    met, compared = kill_at_random(tmp_path / "killed", whole, 20, seed=int(os.environ.get("KILL_SEED", "1")))
    assert met == {"before training": 4, "training": 12, "writing": 4} and compared == [True] * 4


@pytest.mark.parametrize("number,fresh", [(signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGTERM, True)])
def test_asked_to_end_it_saves_says_so_and_goes_on(number, fresh, tmp_path, whole):
    process = start(tmp_path, *(["--fresh"] if fresh else []), moments=CHECKPOINT)
    wait_until(process, tmp_path)
    process.send_signal(number)
    err = ended(process)
    assert process.returncode == 75 and "Traceback" not in err
    same_command = "the same command" + " without --fresh" * fresh
    assert err.splitlines()[-1] == f"interrupted by {number.name}: saved; {same_command} goes on from here"
    assert list((tmp_path / "checkpoints" / "checkpoints").glob("*/2/manifest.json"))  # saved after it was asked
    assert resumes(tmp_path, whole)


def test_a_second_sweep_in_the_same_folder_is_refused_and_the_first_goes_on(tmp_path, whole):
    first = start(tmp_path, moments=CHECKPOINT)
    wait_until(first, tmp_path)
    second = run(["-m", "experiments.sweep", *OPTIONS, "--out", str(tmp_path)])
    err = ended(second)
    assert second.returncode == 2 and f"process {first.pid} on" in err and "another --out" in err
    held(tmp_path).unlink()
    assert ended(first) and first.returncode == 0
    assert same(whole, tmp_path)


@pytest.fixture
def done(tmp_path, whole):
    """A folder with a finished sweep."""
    return shutil.copytree(whole, tmp_path / "done")


def test_another_configuration_is_refused_and_fresh_begins_anew(done):
    before = (done / "data.nc").read_bytes()
    process = run(["-m", "experiments.sweep", *OPTIONS, "--initial-scale", "0.2", "--out", str(done)])
    err = ended(process)
    assert process.returncode == 2 and "initial_scale: 0.1 there, 0.2 here" in err and "--fresh" in err
    assert (done / "data.nc").read_bytes() == before
    finish(done, "--initial-scale", "0.2", "--fresh")
    assert (done / "data.nc").read_bytes() != before


def test_out_of_space_while_results_are_written_leaves_nothing_half(tmp_path, whole):
    """Files larger than a limit cannot be written, as on a full disk."""
    size = (whole / "data.nc").stat().st_size // 2

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    arguments = [sys.executable, *command(tmp_path, "--checkpoint-seconds", "1000")]
    done = subprocess.run(
        arguments, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT, preexec_fn=limit
    )
    assert done.returncode == 2 and "error: cannot write" in done.stderr and "Traceback" not in done.stderr
    assert (
        not list(tmp_path.glob("*.nc")) and not list(tmp_path.glob(".*.tmp")) and not (tmp_path / "run.json").exists()
    )
    finish(tmp_path)
    assert same(whole, tmp_path)


@pytest.mark.parametrize("devices,at_once,parts", [("1", "8", 2), ("8", "8", 2), ("2", "6", 4)])
def test_the_same_bits_on_any_number_of_devices_and_in_groups(devices, at_once, parts, tmp_path, whole):
    finish(tmp_path, "--devices", devices, "--max-runs", at_once)
    assert same(whole, tmp_path)
    assert len(list((tmp_path / "checkpoints" / "parts").glob("*.npz"))) == parts


def two(folder, moments=NOWHERE):
    """Two processes that train together, with checkpoints on the way if they are held at some moment."""
    every = "0" if moments != NOWHERE else "1000"
    arguments = command(folder, "--checkpoint-seconds", every, moments=moments)
    return run(["-m", "qkdyn.train.launch", "2", "--", *arguments])


def children(process):
    """Ids of the processes that `process` started."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def test_one_process_resumes_two_and_two_one(tmp_path, whole):
    asked = two(tmp_path / "mixed", CHECKPOINT)
    wait_until(asked, tmp_path / "mixed")
    asked.send_signal(signal.SIGTERM)
    err = ended(asked)
    assert asked.returncode == 75 and err.count("saved; the same command goes on") == 1, err
    assert resumes(tmp_path / "mixed", whole)

    alone = start(tmp_path / "other", moments=CHECKPOINT)
    wait_until(alone, tmp_path / "other")
    alone.send_signal(signal.SIGTERM)
    ended(alone)
    assert alone.returncode == 75
    both = two(tmp_path / "other")
    err = ended(both)
    assert both.returncode == 0 and "warning" not in err and counts(tmp_path / "other")["resumed"] == 8, err
    assert same(whole, tmp_path / "other")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_peer_that_is_gone_ends_the_other_and_a_restart_resumes(victim, tmp_path, whole):
    both = two(tmp_path, ("2:manifest.json", "-"))
    wait_until(both, tmp_path)
    os.kill(children(both)[victim], signal.SIGKILL)
    held(tmp_path).unlink()
    err = ended(both)
    said = err.splitlines()
    survivor = said.index(f"process {1 - victim} ended with status 76")  # by itself, not by the launcher's patience
    assert f"process {victim} ended with status -9" in said
    (line,) = [line for line in said if "start all of them again" in line]
    assert line.startswith("error: another process of this run is gone") and said.index(line) < survivor
    assert "Traceback" not in err and "***" not in err, err
    assert resumes(tmp_path, whole)


def test_a_peer_that_is_gone_before_the_first_step_ends_the_other(tmp_path):
    both = two(tmp_path, LOCKED)
    wait_until(both, tmp_path)
    os.kill(children(both)[1], signal.SIGKILL)
    held(tmp_path).unlink()
    err = ended(both)
    said = err.splitlines()
    assert {"process 1 ended with status -9", "process 0 ended with status 76"} <= set(said)
    assert len([line for line in said if line.startswith("error: ")]) == 1 and len(said) < 6, err


def test_two_that_are_refused_end_with_a_line_each(tmp_path):
    with lock(tmp_path):
        both = two(tmp_path)
        err = ended(both)
    assert both.returncode == 2
    said = [line for line in err.splitlines() if line]
    both_ended = [f"process {i} ended with status 2" for i in range(2)]
    assert sorted(line for line in said if line in both_ended) == both_ended
    mine = [line for line in said if line not in both_ended]
    assert len(mine) == 2 and all("another process is writing to" in line for line in mine), err


UNEQUAL = """
import runpy, sys
from qkdyn.train import campaign
number = int(sys.argv[sys.argv.index("--process") + 1])
campaign.bytes_of_run = lambda *what: 2**20
campaign.free_memory = lambda: 2**20 * 4 * 2 * (6 if number == 0 else 60)
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_processes_with_different_memory_agree_on_the_groups(tmp_path, whole):
    """In the free memory that the first sees there is room for six runs, in that of the second for sixty.

    And two processes give the bits of one.
    """
    both = run(
        ["-m", "qkdyn.train.launch", "2", "--", "-c", UNEQUAL, *command(tmp_path, "--checkpoint-seconds", "1000")]
    )
    err = ended(both)
    assert both.returncode == 0, err
    assert same(whole, tmp_path)
    assert len(list((tmp_path / "checkpoints" / "parts").glob("*.npz"))) == 2 * 2


def test_when_the_launcher_is_killed_its_processes_end(tmp_path):
    both = two(tmp_path, LOCKED)
    wait_until(both, tmp_path)
    started = children(both)
    assert len(started) >= 2  # or there would be nothing to end
    both.kill()
    both.communicate(timeout=LIMIT)  # their ends of the pipes are closed with them
    limit = time.monotonic() + LIMIT
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert time.monotonic() < limit, "they live on"
        time.sleep(0.01)


def test_the_launcher_says_how_it_is_used():
    done = subprocess.run([sys.executable, "-m", "qkdyn.train.launch"], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 2 and "usage: python -m qkdyn.train.launch N" in done.stderr


def test_a_finished_sweep_is_not_trained_again(done, whole):
    folder = done / "checkpoints" / "parts"
    parts = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    said = finish(done)
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == parts
    assert "from the records" in said and same(whole, done)
    record = json.loads((done / "run.json").read_text())
    assert record["argv"][:3] == ["python", "-m", "experiments.sweep"]
    assert record["runs"] == {"taken_from_records": 16, "resumed": 0, "trained": 0}

"""`python -m experiments.interventions` killed amid a group and amid its records, asked to end: records know nothing of it.

As in test_faults.py the process is held at a moment of its work (held.py), and what is done to it is done then.
"""

import re
import shutil
import signal

import pytest
from kills import held, run
from kills import wait_until_held as wait_until

from qkdyn import results
from qkdyn.train import checkpoint
from qkdyn.train.state import Status

LIMIT = 600  # seconds after which a process hangs
# The averages of Adam, then random batches, arms that end at different times: no theory, which takes long.
ADAM = "orthogonal-CACO-adam-10"
TOKENS = ["tokens-FAFO-plain", "tokens-FAFO-ratio-10"]
OPTIONS = ["--quick", "--arms", ADAM, *TOKENS, "--checkpoint-seconds", "0"]
# Updates between checkpoints: the setting's own, and so few that there are some on the way.
ADAM_CHUNK, CHUNK = 200, 250
HELD = f"""
import runpy, sys
from pathlib import Path
from experiments.intervened import tokens
from tests.faults.held import hold
held, after, *sys.argv[1:] = sys.argv[1:]
tokens.CHUNK = {CHUNK}
hold(Path(held), after, "-")
runpy.run_module("experiments.interventions", run_name="__main__", alter_sys=True)
"""
# What tells when and from which sources a record was written, and not what was found.
PASSING = re.compile(rb'"wall_seconds":[0-9.]+|"source":(null|{[^}]*})')


@pytest.fixture
def start():
    """Begins the command in a process that is held after a moment; what is still held when a test has failed ends with it."""
    begun = []

    def begin(folder, after="-"):
        begun.append(command(folder, after))
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate(timeout=LIMIT)


def command(folder, after="-"):
    """The command in a process that is held after this moment."""
    return run(["-c", HELD, str(held(folder)), after, *OPTIONS, "--out", str(folder)])


def finish(folder):
    """Run the command to its end."""
    process = command(folder)
    err = process.communicate(timeout=LIMIT)[1]
    assert process.returncode == 0, err


def kill(process, folder):
    """End a process, which is held, with SIGKILL."""
    process.kill()
    process.communicate(timeout=LIMIT)
    assert process.returncode == -signal.SIGKILL  # and not of itself, before
    held(folder).unlink()


def records(folder):
    """{arm: the bytes of its record, but for when and from which sources it was written}."""
    return {path.stem: PASSING.sub(b"", path.read_bytes()) for path in (folder / "arms").glob("*.json")}


def steps(folder):
    """Updates of the runs by the newest checkpoint, and whether each has ended; the one group that is under way has it."""
    (under_way,) = folder.glob("checkpoints/*/checkpoints/*")
    arrays, _ = checkpoint.load_newest(under_way) or pytest.fail(f"{under_way} has no whole checkpoint")
    return arrays["state/step"], arrays["state/status"] != Status.running


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    finish(folder)
    assert set(records(folder)) == {ADAM, *TOKENS}
    return folder


def check_same(folder, whole):
    """What was found, and what was drawn from it, is to the byte that of a command that nobody disturbed."""
    assert records(folder) == records(whole)
    for name in ("summary.csv", "verdict.md", "arms.md"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()
    assert results.verify(folder) == []


def test_killed_amid_one_group_and_asked_to_end_amid_another_it_goes_on(tmp_path, whole, start):
    process = start(tmp_path, "1:manifest.json")
    wait_until(process, tmp_path)
    at, ended = steps(tmp_path)
    assert (at == ADAM_CHUNK).all() and not ended.any() and records(tmp_path) == {}
    kill(process, tmp_path)

    # The rest of Adam leaves one checkpoint: begun anew it would leave two.
    process = start(tmp_path, "2:manifest.json")
    wait_until(process, tmp_path)
    at, ended = steps(tmp_path)
    assert (at == CHUNK).all() and not ended.any() and set(records(tmp_path)) == {ADAM}
    process.send_signal(signal.SIGTERM)
    err = process.communicate(timeout=LIMIT)[1]
    assert process.returncode == 75 and "Traceback" not in err
    assert err.splitlines()[-1] == "interrupted by SIGTERM: saved; the same command goes on from here"
    held(tmp_path).unlink()

    process = start(tmp_path, "1:manifest.json")
    wait_until(process, tmp_path)
    at, ended = steps(tmp_path)
    assert at.max() == 3 * CHUNK and 0 < ended.sum() < ended.size and set(records(tmp_path)) == {ADAM}
    held(tmp_path).unlink()
    err = process.communicate(timeout=LIMIT)[1]
    assert process.returncode == 0 and "warning" not in err and list((tmp_path / "checkpoints").iterdir()) == []
    check_same(tmp_path, whole)


def test_killed_between_two_records_of_a_group(tmp_path, whole, start):
    """The arms without a record are trained again, without the others beside them."""
    folder = shutil.copytree(whole, tmp_path / "killed")
    for name in TOKENS:
        (folder / "arms" / f"{name}.json").unlink()
    process = start(folder, f"1:{TOKENS[0]}.json")
    wait_until(process, folder)
    assert set(records(folder)) == {ADAM, TOKENS[0]} and steps(folder)[1].all()
    kill(process, folder)
    finish(folder)
    check_same(folder, whole)

"""Configs: the digest, and the command line of an experiment."""

import dataclasses
import signal
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import sweep
from qkdyn.config import as_dict, choose, digest, main_guard, parse
from qkdyn.errors import InputError, Interrupted, OutputError
from qkdyn.train.state import Plan


@dataclass(frozen=True)
class Inner:
    chunk: int = 5
    r: tuple[float, ...] = (1.0, 2.0)


@dataclass(frozen=True)
class Config:
    inner: Inner = field(default_factory=Inner)
    steps: int = 3

    def __post_init__(self):
        if self.steps < 1:
            raise InputError(f"steps must be at least 1, got {self.steps}")


@dataclass(frozen=True)
class Options:
    protocol: str = "main"
    quick: bool = False
    out: str = "there"
    arms: tuple[str, ...] = ()


PROTOCOLS = {"main": Config(), "quick": Config(steps=1), "other": Config(steps=9)}


def read(*arguments):
    return parse(PROTOCOLS, Options(), arguments, prog="prog", description="what it does")


@given(st.integers(1, 99), st.lists(st.floats(0.1, 10), min_size=1, max_size=3).map(tuple), st.integers(1, 99))
def test_digest_is_of_the_science_alone(steps, r, chunk):
    config = Config(Inner(5, r), steps)
    assert digest(config) == digest(Config(Inner(chunk, r), steps))
    assert (
        digest(config) != digest(Config(Inner(5, (*r, 11.0)), steps)) != digest(Config(Inner(5, (*r, 11.0)), steps + 1))
    )


def test_every_field_of_the_sweep_but_chunk_changes_its_digest():
    config = sweep.Config()
    changes = [
        dataclasses.replace(config, rate_scale=0.5),
        dataclasses.replace(config, initial_scale=0.2),
        dataclasses.replace(config, eta_ov=sweep.Rates(eta_ov_CACO=1.0)),
        dataclasses.replace(config, plan=Plan(max_steps=9)),
        dataclasses.replace(config, plan=Plan(block=2)),
        dataclasses.replace(config, task=dataclasses.replace(config.task, n=9)),
        dataclasses.replace(config, grid=dataclasses.replace(config.grid, seeds=(1,))),
    ]
    assert len({digest(c) for c in [config, *changes]}) == 8
    assert digest(dataclasses.replace(config, plan=Plan(chunk=7))) == digest(config)


def test_as_dict_is_plain():
    assert as_dict(Config()) == {"inner": {"chunk": 5, "r": [1.0, 2.0]}, "steps": 3}


def test_protocol_picks_and_options_override():
    assert read() == (Config(), Options())
    assert read("--protocol", "other")[0] == Config(steps=9)
    assert read("--protocol=other", "--r", "4", "5")[0] == Config(Inner(r=(4.0, 5.0)), 9)
    config, options = read("--quick", "--out", "here")
    assert config == Config(steps=1) and options == Options(quick=True, out="here")


def test_unknown_protocols_list_the_known():
    with pytest.raises(InputError, match="protocol must be one of main, quick, other, got 'nope'"):
        read("--protocol", "nope")
    with pytest.raises(InputError, match="one of main"):
        choose({"main": 1}, "x")


@pytest.mark.parametrize("arguments", [["--protocol"], ["--protocol", "--steps", "2"], ["--steps", "2", "--protocol"]])
def test_a_protocol_without_a_name_is_refused(arguments, capsys):
    assert main_guard(lambda: read(*arguments)) == 2
    assert (
        capsys.readouterr().err == "error: --protocol must be followed by one of main, quick, other, or be left out\n"
    )


@pytest.mark.parametrize("arguments", [["--protocol", ""], ["--protocol="]])
def test_an_empty_protocol_is_not_the_default(arguments):
    with pytest.raises(InputError, match="protocol must be one of main, quick, other, got ''"):
        read(*arguments)


@pytest.mark.parametrize("arguments", [["--arms"], ["--arms", "--steps", "2"], ["--steps", "2", "--arms"]])
def test_an_option_that_names_nothing_is_not_one_that_is_left_out(arguments):
    with pytest.raises(InputError, match="--arms must be followed by at least one value, got none"):
        read(*arguments)
    assert read("--arms", "a", "b")[1].arms == ("a", "b")
    with pytest.raises(SystemExit, match="0"):
        read(*arguments, "--help")


@pytest.mark.parametrize("arguments", [("--steps", "0"), ("--steps", "many"), ("--stepz", "3")])
def test_wrong_options_end_with_status_2_and_name_the_option(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        read(*arguments)
    assert stop.value.code == 2
    assert "steps" in capsys.readouterr().err


def test_errors_of_ours_are_one_line_and_status_2(capsys):
    def fail():
        raise OutputError("the disk is full")

    assert main_guard(fail) == 2
    assert capsys.readouterr().err == "error: the disk is full\n"
    assert main_guard(lambda: None) == 0 and main_guard(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        main_guard(lambda: 1 // 0)


SLEEPER = """
import sys, time
from qkdyn.config import main_guard
def main():
    print("at work", flush=True)
    time.sleep(600)
sys.exit(main_guard(main))
"""


@pytest.mark.parametrize("number,status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_at_any_time_is_one_line_and_a_status_of_its_own(number, status):
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "at work\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (status, f"\nended by {number.name}: what was written before is whole\n")


def test_an_interruption_says_what_it_is_told(capsys):
    def stop():
        raise Interrupted("SIGTERM: saved")

    before = signal.getsignal(signal.SIGTERM)
    assert main_guard(stop) == 75 and capsys.readouterr().err == "\ninterrupted by SIGTERM: saved\n"
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_interrupt_during_imports_has_no_traceback():
    """Sent as soon as the package of experiments is entered, before any library is."""
    hook = "import signal, sys; sys.argv[0] = '-m'; import experiments; signal.raise_signal(signal.SIGINT)"
    done = subprocess.run([sys.executable, "-c", hook], capture_output=True, text=True, timeout=600)
    assert done.returncode == -signal.SIGINT and done.stderr == ""

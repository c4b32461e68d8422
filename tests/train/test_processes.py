"""What processes do together, seen from one; and how the loss of another is told."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from qkdyn.errors import InputError, PeerError
from qkdyn.train import processes
from qkdyn.train.devices import Machine


def test_one_process_is_the_primary_and_waits_for_nobody():
    assert processes.primary() and processes.agree(True, False) == (True, False)
    assert processes.in_turn(lambda: 7) == 7
    processes.barrier()
    with pytest.raises(RuntimeError, match="ours"), processes.peers():
        raise RuntimeError("ours")


def test_with_several_an_error_of_the_transport_is_a_lost_peer(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for kind in (RuntimeError, ValueError):
        with pytest.raises(PeerError, match=r"process of this run is gone \(reset\); start all"), processes.peers():
            raise kind("reset\nand a stack")
    with pytest.raises(InputError, match="ours"), processes.peers():
        raise InputError("ours")


def test_all_stop_when_any_is_asked_and_save_when_the_first_is_due(monkeypatch):
    from jax.experimental import multihost_utils

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for flags, agreed in (
        ([[False, True], [True, False]], (True, True)),
        ([[True, False], [False, True]], (True, False)),
        ([[False, False], [False, True]], (False, False)),
    ):
        monkeypatch.setattr(multihost_utils, "process_allgather", lambda mine, flags=flags: np.array(flags))
        assert processes.agree(False, False) == agreed


@pytest.mark.parametrize("cores,devices", [(1, 1), (2, 2), (64, 8)])
def test_by_default_a_device_for_each_core_and_programs_are_kept(cores, devices, monkeypatch, tmp_path):
    told, values = {}, {"jax_compilation_cache_dir": None}
    monkeypatch.setattr(jax, "config", SimpleNamespace(update=told.__setitem__, values=values))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
    Machine().join()
    assert told == {"jax_compilation_cache_dir": str(tmp_path / "qkdyn" / "jax"), "jax_num_cpu_devices": devices}
    # What the user chose stays.
    values["jax_compilation_cache_dir"] = "elsewhere"
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    told.clear()
    Machine().join()
    assert told == {}


@pytest.mark.parametrize(
    "given,message",
    [
        ({"devices": 0}, "devices must be an integer >= 1, got 0"),
        ({"devices": 257}, "devices must be at most 256, got 257"),
        ({"coordinator": "a:1"}, "coordinator, processes and process go together, with --distributed"),
        ({"coordinator": "a:1", "processes": 2, "process": 0}, "with --distributed"),
        (
            {"distributed": True, "coordinator": "a:1", "processes": 2, "process": 2},
            r"process must be in \[0, 2\), got 2",
        ),
    ],
)
def test_machines_are_refused(given, message, unchecked):
    with pytest.raises(InputError, match=message):
        Machine(**given)

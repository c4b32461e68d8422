"""What processes do together, seen from one; and how the loss of another is told."""

import re
import socket
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from qkdyn.errors import InputError, OutputError, OutputWarning, PeerError
from qkdyn.train import devices, meeting, processes
from qkdyn.train.devices import Machine


def test_one_process_is_the_primary_and_waits_for_nobody():
    assert processes.primary() and processes.agree(True, False) == (True, False)
    assert processes.in_turn(lambda: 7) == 7
    assert processes.first_alone(lambda: 8) == 8 and processes.least_share(9) == 9
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


def test_memory_is_shared_by_the_processes_of_a_machine_and_the_least_share_counts(monkeypatch):
    from jax.experimental import multihost_utils

    monkeypatch.setattr(jax, "process_count", lambda: 3)
    # Two on machine 7 and one with little on machine 8, then with much.
    for least, alone in ((30, 30), (50, 70)):
        table = np.array([[100, 7], [110, 7], [alone, 8]], np.int32)
        monkeypatch.setattr(multihost_utils, "process_allgather", lambda mine, table=table: table)
        assert processes.least_share(100 << 20) == least << 20


def test_what_one_process_is_refused_ends_all(monkeypatch):
    from jax.experimental import multihost_utils

    told = []

    def gather(mine):
        told.append(bytes(mine).rstrip(b"\0"))
        return np.stack([np.frombuffer(b"the disk is full".ljust(500, b"\0"), np.uint8), mine])

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost_utils, "process_allgather", gather)
    with pytest.raises(InputError, match="ours"):
        processes.first_alone(lambda: processes.share(InputError("ours")))
    for index, number in ((0, 0), (1, 0)):
        monkeypatch.setattr(jax, "process_index", lambda index=index: index)
        with pytest.raises(OutputError, match=f"process {number}: the disk is full"):
            processes.in_turn(lambda: pytest.fail("read all the same") if processes.primary() is None else 1)
    assert told[0] == b"ours"


def test_only_the_first_process_warns(monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    processes.warn("unheard")
    monkeypatch.setattr(jax, "process_index", lambda: 0)
    with pytest.warns(OutputWarning, match="heard"):
        processes.warn("heard")


MEETING = """
import sys, time
from qkdyn.config import main_guard
from qkdyn.train.meeting import meet
def main():
    leave = meet(sys.argv[1], 3, int(sys.argv[2]), float(sys.argv[3]))
    print("met", flush=True)
    time.sleep(float(sys.argv[4]))
    leave()
    time.sleep(float(sys.argv[5]))
sys.exit(main_guard(main))
"""


def attend(address, number, patience, before, after=0.0):
    arguments = [sys.executable, "-c", MEETING, address, str(number), str(patience), str(before), str(after)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_who_does_not_come_is_not_waited_for_in_vain(address):
    for process in [attend(address, number, 1.5, 0) for number in (0, 2)]:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 76 and out == ""
        assert re.fullmatch(r"error: cannot meet .*; start all 3 of them within 1.5 s\n", err), err


@pytest.mark.parametrize("victim", [0, 1])
def test_who_is_gone_without_a_word_ends_the_others(victim, address):
    processes_ = [attend(address, number, 300, 600) for number in range(3)]
    for process in processes_:
        assert process.stdout.readline() == "met\n"
    processes_.pop(victim).kill()
    for process in processes_:
        _, err = process.communicate(timeout=600)
        assert process.returncode == 76
        assert (
            err
            == "error: another process of this run is gone; start all of them again: they go on from the last checkpoint\n"
        )


def test_who_has_said_goodbye_is_not_missed(address):
    # The last one stays for longer than the others' absence would be tolerated.
    ends = [attend(address, number, 300, 0.1 + 3.5 * (number == 2)) for number in range(3)]
    assert [(process.communicate(timeout=600)[1], process.returncode) for process in ends] == [("", 0)] * 3


def test_an_address_without_a_port_is_refused():
    with pytest.raises(InputError, match="coordinator must be host:port, got 'somewhere'"):
        meeting.meet("somewhere", 2, 0, 1.0)


def test_free_memory_is_that_of_the_machine_or_of_the_container(tmp_path):
    assert devices.free_memory(tmp_path) == 2**30

    def write(name, text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    write("proc/meminfo", "MemTotal: 9000000 kB\nMemFree: 1 kB\nMemAvailable: 8000000 kB\n")
    assert devices.free_memory(tmp_path) == 8_000_000 * 1024
    write("proc/self/cgroup", "0::/a/b\n")
    for group, limit in (("", "max"), ("a", "5000000"), ("a/b", "7000000")):
        write(f"sys/fs/cgroup/{group}/memory.max", limit + "\n")
        write(f"sys/fs/cgroup/{group}/memory.current", "3000000\n")
    assert devices.free_memory(tmp_path) == 2_000_000
    write("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 700000\n")
    assert devices.free_memory(tmp_path) == 2_700_000
    write("sys/fs/cgroup/a/memory.current", "9000000\n")
    assert devices.free_memory(tmp_path) == 0


@pytest.mark.parametrize("cores,count", [(1, 1), (2, 2), (64, 8)])
def test_by_default_a_device_for_each_core_and_programs_are_kept(cores, count, monkeypatch, tmp_path):
    told, values = {}, {"jax_compilation_cache_dir": None}
    monkeypatch.setattr(jax, "config", SimpleNamespace(update=told.__setitem__, values=values))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
    Machine().join()
    assert told == {"jax_compilation_cache_dir": str(tmp_path / "qkdyn" / "jax"), "jax_num_cpu_devices": count}
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

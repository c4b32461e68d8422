"""What processes do together, seen from one; and how the loss of another is told."""

import jax
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

"""Several processes of one command on this machine: `python -m qkdyn.train.launch 2 -- -m experiments.sweep --quick`.

For trying out what a cluster does: there, start the same command on every host with `--distributed`, and JAX finds the rest.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

# How long the others may take to notice that one is gone, or to save when asked to end, before they are ended too.
PATIENCE = 30.0


def launch(count: int, command: Sequence[str]) -> int:
    """Run `count` processes of `python COMMAND` that meet each other, and wait for them.

    Args:
        count: how many.
        command: arguments of the interpreter, such as ["-m", "experiments.sweep"].

    Returns:
        0 if all ended well; else the first other exit status, after at most half a minute's wait for the rest.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    together = ["--distributed", "--coordinator", address, "--processes", str(count)]
    me = os.getpid()
    processes = [
        subprocess.Popen(
            [sys.executable, *command, *together, "--process", str(i), "--devices", "1"],
            preexec_fn=lambda: _end_with(me),
        )
        for i in range(count)
    ]

    def pass_on(number: int, frame: FrameType | None) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    return _wait(processes)


def _end_with(parent: int) -> None:
    """On Linux, let the system end this process when `parent` dies, however it dies."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    limit, first = float("inf"), 0
    told: set[int] = set()
    while True:
        running = [process for process in processes if process.poll() is None]
        for i, process in enumerate(processes):
            if process.returncode and i not in told:
                told.add(i)
                first = first or process.returncode
                limit = min(limit, time.monotonic() + PATIENCE)
                print(f"process {i} ended with status {process.returncode}", file=sys.stderr, flush=True)
        if not running:
            return first
        if time.monotonic() > limit:
            for process in running:
                process.kill()
        time.sleep(0.05)


def main() -> int:
    """Read `N -- COMMAND`."""
    arguments = sys.argv[1:]
    if len(arguments) < 3 or not arguments[0].isdecimal() or int(arguments[0]) < 1 or arguments[1] != "--":
        print("usage: python -m qkdyn.train.launch N -- -m experiments.sweep [options]", file=sys.stderr)
        return 2
    return launch(int(arguments[0]), arguments[2:])


if __name__ == "__main__":
    sys.exit(main())

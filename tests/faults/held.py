"""A sweep that is held at moments of its work: python held.py HELD AFTER BEFORE -- options of experiments.sweep.

AFTER is COUNT:NAME: once the COUNT-th file whose name ends in NAME is in its place, the process makes the file HELD and waits
until that is removed, or a signal noted. BEFORE is NAME: from then on, when such a file is about to be put into its place, the
process makes HELD and waits for its end. "-" is no moment. What is done to a sweep at a moment so chosen does not depend on how
fast the machine is. Of several processes the first is held. Theory beside the records, half the time of a small sweep, is left
out.
"""

import signal
import sys
import threading
import time
from pathlib import Path

from experiments import sweep
from qkdyn.config import main_guard

# Audit events: a file is put into its place; a folder is locked.
PLACED = {"os.rename": lambda arguments: str(arguments[1]), "fcntl.flock": lambda arguments: ".lock"}


def hold(held: Path, after: str, before: str) -> None:
    """Be held at these moments from now on."""
    count, _, name = after.rpartition(":")
    left, passed = int(count or 0), after == "-"
    main = threading.get_ident()

    def hook(event: str, arguments: tuple) -> None:
        nonlocal left, passed
        if threading.get_ident() != main:
            return
        if not passed and not left:
            passed = True
            handler = signal.getsignal(signal.SIGTERM)
            held.touch()
            while held.exists() and signal.getsignal(signal.SIGTERM) is handler:
                time.sleep(0.005)
        if event not in PLACED:
            return
        file = PLACED[event](arguments)
        if passed and before != "-" and file.endswith(before):
            held.touch()
            while True:
                time.sleep(1)
        left -= not passed and file.endswith(name)

    sys.addaudithook(hook)


if __name__ == "__main__":
    held, after, before, _, *options = sys.argv[1:]
    sweep.with_theory = lambda ds, *of: ds
    if "--process" not in options or options[options.index("--process") + 1] == "0":
        hold(Path(held), after, before)
    sys.argv[1:] = options
    sys.exit(main_guard(sweep.main))

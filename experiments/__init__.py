"""One module for each figure or table: a frozen config, a run, a drawing."""

import signal
import sys

# While `python -m experiments.X` still imports its libraries an interrupt ends it as it ends any command: without a traceback.
# `main_guard` answers from then on.
if sys.argv[:1] == ["-m"]:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

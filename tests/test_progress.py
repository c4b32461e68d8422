"""Progress: plain lines off a terminal, at their pace, and a bar on one."""

import sys

from qkdyn.progress import track


def test_plain_lines_come_at_their_pace_and_always_at_the_end(capsys):
    with track("work", every=1e9) as update:
        update(0.0, "begun")
        update(0.5, "half")
        update(1.0, "done")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("work:   0%  begun") and lines[0].endswith("ETA unknown")
    assert lines[1].startswith("work: 100%  done") and lines[1].endswith("ETA 0 s")
    assert len(lines) == 2


def test_the_remaining_time_is_in_proportion(capsys, monkeypatch):
    now = iter([100.0, 103.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    with track("work", every=0.0) as update:
        update(0.25, "going")
    assert capsys.readouterr().err == "work:  25%  going  3 s, ETA 9 s\n"


def test_a_terminal_gets_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with track("work") as update:
        update(0.5, "7 runs")
    assert "7 runs" in capsys.readouterr().err

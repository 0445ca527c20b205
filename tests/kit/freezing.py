"""Stopping a process in the middle of what it does, for certain."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

SECONDS_MAX = 10.0


def freeze(pid: int) -> None:
    """SIGSTOP, and wait until it holds: each thread stops when it next comes by, and until then it
    may still answer."""
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + SECONDS_MAX
    while not all(state == "T" for state in _states(pid)):
        assert time.monotonic() < until, f"process {pid} does not stop"
        time.sleep(0.001)


def _states(pid: int) -> list[str]:
    """The states of its threads: the letter after the name in /proc/PID/task/TID/stat."""
    tasks = Path(f"/proc/{pid}/task").glob("*/stat")
    return [each.read_text().rpartition(")")[2].split()[0] for each in tasks]

"""Ends every supervisor of a machine folder, and everything that still runs under it.

Called when the whole platform of a machine is stopped, after its launcher has let go. An idle
supervisor leaves by itself; one with running ranks is killed, and a successor ends those ranks by
their records and notes them lost, so that the next start queues their tasks from their last
checkpoints without touching their retry budgets.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from services.launcher.runtimes.node import proc
from services.launcher.runtimes.node_client import PROGRAM

LEAVE_SECONDS = 2.0
CLEAR_SECONDS = 15.0
_POLL_SECONDS = 0.01


def end_supervisors(folder: Path) -> None:
    """Leave no supervisor and no rank of ``folder`` behind.

    TimeoutError names a node that stays.
    """
    nodes = [lock.parent for lock in sorted((folder / "nodes").glob("*/lock"))]
    for node in nodes:
        _signal(node, signal.SIGTERM)
    # They leave in parallel: the time is for all of them together.
    ends_at = time.monotonic() + LEAVE_SECONDS
    for node in nodes:
        if not _free(node, max(0.0, ends_at - time.monotonic())):
            _signal(node, signal.SIGKILL)
            _clear(node, folder / "work")
        if not _free(node, CLEAR_SECONDS):
            raise TimeoutError(f"the supervisor of {node} does not end")


def _signal(node: Path, number: signal.Signals) -> None:
    """Signal the holder of the node's lock, known by its start time and not by its number alone."""
    holder = proc.by_signature((node / "lock").read_text())
    if holder is not None and not _free(node, 0.0):
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.pid, number)


def _free(node: Path, seconds_max: float) -> bool:
    """Wait until no process holds the node's lock. False after ``seconds_max``."""
    ends_at = time.monotonic() + seconds_max
    with (node / "lock").open("rb") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= ends_at:
                    return False
                time.sleep(_POLL_SECONDS)
            else:
                return True


def _clear(node: Path, work: Path) -> None:
    """A successor that ends what the killed supervisor left, and leaves at once."""
    if not _free(node, LEAVE_SECONDS):
        return
    # It starts nothing, and takes what is still in the pipes, whatever the launcher's limit was.
    options = {"idle_seconds": 0, "keep_seconds": None, "output_bytes_max": 1 << 50, "pids_max": 0}
    with (node / "supervisor.log").open("ab") as log:
        subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-I", "-S", str(PROGRAM), str(node), str(work), json.dumps(options)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={},
            timeout=CLEAR_SECONDS,
            check=True,
        )

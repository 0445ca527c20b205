"""Runs a benchmark so that nothing of it outlives it, however it ends.

``run`` forks: the child is the benchmark, the parent waits for it and then ends every process that
is left. As a subreaper the parent adopts the processes that a daemon leaves behind, so "every
process" includes those that were started in sessions of their own. Temporary files go with them.

SIGINT and SIGTERM reach the benchmark as SIGINT, which closes its contexts in order. A second
signal, or too long a wait, kills it.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from types import FrameType

import psutil
import uvloop

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# A platform ends within 30 s; a cluster of containers needs a call or two more.
INTERRUPT_SECONDS_MAX = 45
# Processes that were asked to end have so long before they count as left over.
LEAVE_SECONDS_MAX = 2.0
INTERRUPTED = 128 + signal.SIGINT

Main = Callable[[], Awaitable[None] | None]


def run(main: Main) -> None:
    """Run ``main`` (plain or async) and exit with its status, once nothing of it is left."""
    sys.stdout.flush()
    sys.stderr.flush()
    folder = tempfile.mkdtemp(prefix="shiftwork-bench-")
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        _benchmark(main, guard, folder)
        return
    try:
        status = _wait(child)
        left = _end_children()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if left and status == 0:
        sys.stderr.write(f"ended what the benchmark left behind: {', '.join(sorted(left))}\n")
    sys.exit(status)


def _benchmark(main: Main, guard: int, folder: str) -> None:
    # A group of its own: a Ctrl-C of the terminal comes through the guard, and only once.
    os.setpgid(0, 0)
    _prctl(PR_SET_PDEATHSIG, int(signal.SIGINT))
    if os.getppid() != guard:
        os._exit(INTERRUPTED)
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None
    try:
        result = main()
        if inspect.iscoroutine(result):
            uvloop.run(result)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)


def _wait(child: int) -> int:
    """Wait for the benchmark and return its exit status; pass signals on meanwhile."""
    asked: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        first = not asked
        if number != signal.SIGALRM:
            asked.append(number)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGINT if first else signal.SIGKILL)
        signal.alarm(INTERRUPT_SECONDS_MAX)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, end)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            break
    signal.alarm(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if asked:
        return 128 + asked[0]
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _end_children() -> set[str]:
    """Kill every descendant that does not leave by itself; returns the names of those."""
    left: set[str] = set()
    give_up_at = time.monotonic() + LEAVE_SECONDS_MAX
    me = psutil.Process()
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        found = me.children(recursive=True)
        if not found:
            return left
        if time.monotonic() > give_up_at:
            for process in found:
                with contextlib.suppress(psutil.Error):
                    left.add(process.name())
                    process.kill()
        time.sleep(0.02)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")

"""Reads /proc: the identity, children and group of processes.

Used by ``ranks.py`` to identify processes (a pid alone is never enough, because numbers are reused)
and to find everything that a rank has started.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

STATE, PPID, PGRP, SESSION, THREADS, START = 0, 1, 2, 3, 17, 19


@dataclass(frozen=True)
class Stat:
    """One process. ``ticks``: when it began, in clock ticks since boot."""

    pid: int
    state: str
    ppid: int
    pgrp: int
    session: int
    ticks: int
    threads: int = 1

    @property
    def alive(self) -> bool:
        """False for a zombie: it holds nothing any more. One whose first thread has ended before
        the others is none yet."""
        return self.state not in "ZX" or self.threads > 1


def boot_id() -> str:
    """The name of this boot; start times mean nothing in another."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123 - small imports
        return file.read().strip()


def stat(pid: int) -> Stat | None:
    """The process in /proc, or None."""
    raw = _read(f"/proc/{pid}/stat")
    if not raw:
        return None
    # The name in parentheses may hold anything, also spaces and parentheses.
    fields = raw[raw.rindex(b")") + 2 :].split()
    return Stat(
        pid=pid,
        state=fields[STATE].decode(),
        ppid=int(fields[PPID]),
        pgrp=int(fields[PGRP]),
        session=int(fields[SESSION]),
        ticks=int(fields[START]),
        threads=int(fields[THREADS]),
    )


def signature(pid: int) -> str:
    """A unique name of a living process: number, start time, boot."""
    found = stat(pid)
    assert found is not None, "the process lives"
    return f"{pid} {found.ticks} {boot_id()}"


def by_signature(text: str) -> Stat | None:
    """The process with this signature, if it still lives."""
    try:
        pid, ticks, boot = text.split()
        found = stat(int(pid))
    except ValueError:
        return None
    if found is None or found.ticks != int(ticks) or boot != boot_id():
        return None
    return found if found.alive else None


def kill(member: Stat) -> bool:
    """SIGKILL to exactly this process: the descriptor holds it, the start time proves it. False if
    that is not permitted, because it runs as another user now, as setuid programs do."""
    try:
        fd = os.pidfd_open(member.pid)
    except ProcessLookupError:
        return True
    try:
        now = stat(member.pid)
        if now is not None and now.ticks == member.ticks:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    finally:
        os.close(fd)
    return True


def sent(call: Callable[[int, int], None], target: int, number: int) -> bool:
    """Send a signal to a process or group, which may be gone already; False if we may not."""
    try:
        call(target, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def ending(pid: int) -> dict[str, Any] | None:
    """How a child ended, without reaping it; None while it runs."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return {"code" if found.si_code == os.CLD_EXITED else "signal": found.si_status}


def everyone() -> list[Stat]:
    """Every process there is."""
    found = (stat(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - as above
    return [one for one in found if one is not None]


def children(pid: int) -> list[int]:
    """Direct children of a process, those of all its threads; may miss some that come or go."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - as above
    except OSError:
        return []
    return [
        int(child)
        for thread in threads
        for child in _read(f"/proc/{pid}/task/{thread}/children").split()
    ]


def descendants(pid: int) -> list[Stat]:
    """Everything below a process."""
    found: list[Stat] = []
    todo = children(pid)
    while todo:
        child = stat(todo.pop())
        if child is not None:
            found.append(child)
            todo += children(child.pid)
    return found


def environment(pid: int) -> bytes:
    """What a process was started with: ``NAME=value`` pairs, each with a NUL behind it. It may wait
    for that process for ever; ``rank_processes.py`` does not."""
    return _read(f"/proc/{pid}/environ")


def user(pid: int) -> int | None:
    """The user of a process; None if there is no such process."""
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116 - small imports
    except OSError:
        return None


def can_list_children() -> bool:
    """Whether this kernel lists the children of a process."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # noqa: PTH110 - as above


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - as above
            return file.read()
    except OSError:
        return b""

"""The environments that processes were started with, read from /proc. Used by ``groups.py``.

The kernel reads an environment from the process's own memory, and so waits for whatever that
memory waits for: a process can make its reader wait for ever. So a thread of its own reads, and a
user with a process that does not answer in time is left alone until it does: its processes then
count as having no environment, which harms nobody else.
"""

from __future__ import annotations

import _thread
from collections.abc import Sequence

from services.launcher.runtimes.node import proc
from services.launcher.runtimes.node.report import report

ANSWER_SECONDS = 0.5


class _Reading:
    """What one thread reads. ``found`` grows while it does."""

    def __init__(self, processes: Sequence[proc.Stat]) -> None:
        self.processes = processes
        self.found: list[bytes] = []
        self.abandoned = False
        self.done = _thread.allocate_lock()
        self.done.acquire()
        _thread.start_new_thread(self._read, ())

    def _read(self) -> None:
        for one in self.processes:
            if self.abandoned:
                break
            self.found.append(proc.environment(one.pid))
        self.done.release()

    def wait(self) -> bool:
        """Wait for the end as long as it goes on; False if it does not."""
        count = -1
        while not self.done.acquire(timeout=ANSWER_SECONDS):
            if len(self.found) == count:
                self.abandoned = True
                return False
            count = len(self.found)
        self.done.release()
        return True


# By user, the thread that waits for one of its processes.
_stuck: dict[int, _Reading] = {}


def environments(processes: Sequence[proc.Stat]) -> list[tuple[proc.Stat, list[bytes]]]:
    """Each process with its ``NAME=value`` pairs; without those that cannot be read now."""
    for user in [user for user, reading in _stuck.items() if reading.done.acquire(blocking=False)]:
        del _stuck[user]
    users = {one.pid: proc.user(one.pid) for one in processes}
    todo = [one for one in processes if users[one.pid] not in _stuck]
    found: list[tuple[proc.Stat, list[bytes]]] = []
    while todo:
        reading = _Reading(todo)
        went_well = reading.wait()
        read = list(reading.found)
        found += [(one, raw.split(b"\0")) for one, raw in zip(todo, read, strict=False)]
        if went_well or len(read) == len(todo):
            break
        silent = todo[len(read)]
        user = users[silent.pid]
        report(f"the environment of process {silent.pid} of user {user} cannot be read for now")
        if user is not None:
            _stuck[user] = reading
        todo = [one for one in todo[len(read) + 1 :] if users[one.pid] != user]
    return found

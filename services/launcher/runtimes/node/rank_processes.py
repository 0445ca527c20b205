"""Finds the living processes of a rank. ``ranks.py`` uses it where there are no control groups, to
end a rank as a whole and to know that nothing of it is left.
"""

from __future__ import annotations

import _thread
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from services.launcher.runtimes.node import proc
from services.launcher.runtimes.node.supervisor_log import report

ANSWER_SECONDS = 0.5


def own_children() -> list[int]:
    """Our children: ranks' main processes, and orphans that we adopted as the subreaper."""
    own = os.getpid()
    if _kernel_lists_children():
        return proc.children(own)
    return [one.pid for one in proc.everyone() if one.ppid == own]


@dataclass(frozen=True)
class Marker:
    """Identifies processes of a rank that have left its group, by a variable of their environment.
    Any process can set it, so it counts only for processes of the rank's user."""

    variable: bytes
    uid: int

    def of(self, processes: Sequence[proc.Stat]) -> set[int]:
        """The numbers of those processes that have it. A rank of root may have become any user."""
        own = [one for one in processes if self.uid in (0, proc.user(one.pid))]
        return {one.pid for one, pairs in environments(own) if self.variable in pairs}


def members(main: int, others: set[int], marker: Marker, helper: int) -> list[proc.Stat]:
    """Living processes of a rank that is our child: the descendants of its main process, and
    adopted orphans that share its session, group or environment variable. ``others`` are the main
    processes of other ranks; where there are none, every orphan is this rank's. ``helper`` is a
    child that belongs to no rank."""
    children = [
        child
        for pid in own_children()
        if pid not in others and pid != helper and (child := proc.stat(pid)) is not None
    ]
    plain = {
        child.pid
        for child in children
        if main in (child.pid, child.session, child.pgrp) or not others
    }
    marked = marker.of([child for child in children if child.pid not in plain])
    found: list[proc.Stat] = []
    for child in children:
        if child.pid in plain | marked:
            found += [child, *_below(child.pid)]
    return [one for one in found if one.alive]


def left_over(main: tuple[int, int] | None, marker: Marker) -> list[proc.Stat]:
    """Living processes of a rank that an earlier supervisor started. ``main`` is the number and
    start time of its main process (None: it was in another boot, so nothing is left). The number
    counts only with that start time; others count by its group while it lives, or by their
    environment."""
    if main is None:
        return []
    pid, ticks = main
    leader = proc.stat(pid)
    genuine = leader is not None and leader.ticks == ticks
    living = _living()
    grouped = {one.pid for one in living if genuine and pid in (one.pid, one.session, one.pgrp)}
    marked = marker.of([one for one in living if one.pid not in grouped])
    return [one for one in living if one.pid in grouped | marked]


def started_with(begins: bytes) -> list[tuple[proc.Stat, str]]:
    """Living processes whose environment has a variable that begins so, each with what follows."""
    return [
        (one, os.fsdecode(pair[len(begins) :]))
        for one, pairs in environments(_living())
        for pair in pairs
        if pair.startswith(begins)
    ]


def _living() -> list[proc.Stat]:
    own = os.getpid()
    return [one for one in proc.everyone() if one.alive and one.pid != own]


@cache
def _kernel_lists_children() -> bool:
    return proc.can_list_children()


def _below(pid: int) -> list[proc.Stat]:
    if _kernel_lists_children():
        return proc.descendants(pid)
    found, todo, everyone = list[proc.Stat](), [pid], proc.everyone()
    while todo:
        parent = todo.pop()
        below = [one for one in everyone if one.ppid == parent]
        found += below
        todo += [one.pid for one in below]
    return found


class _Reading:
    """The work of one reading thread, which appends to ``found``."""

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
        """Wait for the end as long as the thread makes progress. False if it is stuck."""
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

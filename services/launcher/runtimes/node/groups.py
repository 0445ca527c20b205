"""Which living processes belong to a rank. Used by ``ranks.py`` where no control group tells, to
end a rank as a whole and to know that nothing of it is left.
"""

from __future__ import annotations

import os
from functools import cache

from services.launcher.runtimes.node import proc


def own_children() -> list[int]:
    """Our children: ranks' main processes, and orphans that we adopted as the subreaper."""
    own = os.getpid()
    if _kernel_lists_children():
        return proc.children(own)
    return [one.pid for one in proc.everyone() if one.ppid == own]


def members(main: int, others: set[int], marker: bytes, helper: int) -> list[proc.Stat]:
    """Living processes of a rank that is our child: what is below its main process, and adopted
    orphans that their session, group or environment gives away. ``others`` are the main processes
    of other ranks; where there are none, every orphan is this rank's. ``helper`` is a child that
    belongs to no rank."""
    found: list[proc.Stat] = []
    for pid in own_children():
        child = proc.stat(pid)
        if child is None or pid in others or pid == helper:
            continue
        belongs = (
            main in (pid, child.session, child.pgrp) or not others or proc.has_variable(pid, marker)
        )
        if belongs:
            found += [child, *_below(pid)]
    return [one for one in found if one.alive]


def left_over(main: tuple[int, int] | None, marker: bytes) -> list[proc.Stat]:
    """Living processes of a rank that an earlier supervisor started. ``main`` is the number and
    start time of its main process (None: it was in another boot, so nothing is left). The number
    counts only with that start time; others count by its group while it lives, or by their
    environment."""
    if main is None:
        return []
    pid, ticks = main
    leader = proc.stat(pid)
    genuine = leader is not None and leader.ticks == ticks
    own = os.getpid()
    return [
        one
        for one in proc.everyone()
        if one.alive
        and one.pid != own
        and (
            (genuine and pid in (one.pid, one.session, one.pgrp))
            or proc.has_variable(one.pid, marker)
        )
    ]


def started_with(begins: bytes) -> list[tuple[proc.Stat, str]]:
    """Living processes whose environment has a variable that begins so, each with what follows."""
    found = [(one, proc.variable(one.pid, begins)) for one in proc.everyone() if one.alive]
    return [(one, os.fsdecode(pair[len(begins) :])) for one, pair in found if pair]


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

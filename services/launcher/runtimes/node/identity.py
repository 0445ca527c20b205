"""Become another user, in a child between fork and exec. Used by ``spawn.py``.

The C library's ``setuid`` and its like tell every thread of the process to follow, by a list of
threads. A child that ``clone.py`` has made without the C library's knowledge still has its parent's
list: it could wait for ever for a thread that it does not have. So the kernel is asked directly,
which changes the calling thread; a child has no other.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass

PR_SET_NO_NEW_PRIVS = 38
# Numbers of setgroups, setresgid and setresuid by machine.
CALLS = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147)}
# Whether a child of ``clone.py`` can become another user; elsewhere it is made by ``os.fork``.
AFTER_CLONE = os.uname().machine in CALLS
# Loaded here, because a child must not load a library.
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Identity:
    """As whom a rank runs."""

    uid: int
    gid: int
    groups: Sequence[int]


def become(who: Identity, processes_max: int) -> None:
    """Become another user for good: its files are its own, and no setuid program gives it more.
    OSError if any of that cannot be had; then nothing may run. ``processes_max``: so many processes
    and threads may that user have (0: no limit of ours)."""
    os.umask(0o077)
    if processes_max:
        _, most = resource.getrlimit(resource.RLIMIT_NPROC)
        most = processes_max if most == resource.RLIM_INFINITY else min(most, processes_max)
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    if not AFTER_CLONE:
        os.setgroups(list(who.groups))
        os.setresgid(who.gid, who.gid, who.gid)
        os.setresuid(who.uid, who.uid, who.uid)
    else:
        setgroups, setresgid, setresuid = CALLS[os.uname().machine]
        groups = (ctypes.c_uint32 * len(who.groups))(*who.groups)
        _call(setgroups, ctypes.c_size_t(len(groups)), groups)
        _call(setresgid, *[ctypes.c_uint32(who.gid)] * 3)
        _call(setresuid, *[ctypes.c_uint32(who.uid)] * 3)
    if _LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot give up new privileges")


def _call(number: int, *arguments: object) -> None:
    if _LIBC.syscall(ctypes.c_long(number), *arguments) != 0:
        problem = ctypes.get_errno()
        raise OSError(problem, f"cannot become another user: {os.strerror(problem)}")

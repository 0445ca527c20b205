"""Fork a child straight into a control group (Linux 5.7): moving it there afterwards would make the
kernel wait for every processor, ten milliseconds or so.

Used by ``spawn.py``. Only one thread more runs in the process, the journal's, which while we hold
the interpreter's lock is in a system call or waits for that lock. Python's own preparations for a
fork, which ``os.fork`` makes, are made here, too, so that the child's locks are free.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct

CLONE3 = 435
CLONE_INTO_CGROUP = 0x2_0000_0000
# struct clone_args up to its last field, cgroup.
ARGUMENTS = "=11Q"


def fork_into(cgroup: str) -> int:
    """As ``os.fork``, but the child begins in this version 2 group. OSError where the kernel (or a
    filter on its calls) refuses; then nothing has happened."""
    fd = os.open(cgroup, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        packed = struct.pack(
            ARGUMENTS, CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, fd
        )
        arguments = ctypes.create_string_buffer(packed, len(packed))
        # PyDLL keeps the interpreter's lock, so that the child has it too.
        library = ctypes.PyDLL(None, use_errno=True)
        system_call, number, size = library.syscall, ctypes.c_long(CLONE3), len(packed)
        before, in_parent, in_child = (
            getattr(ctypes.pythonapi, f"PyOS_{name}")
            for name in ("BeforeFork", "AfterFork_Parent", "AfterFork_Child")
        )
        before()
        pid = system_call(number, arguments, ctypes.c_size_t(size))
        if pid == 0:
            in_child()
            return 0
        problem = ctypes.get_errno()
        in_parent()
        if pid < 0:
            raise OSError(problem, "cannot clone into a control group")
        return int(pid)
    finally:
        os.close(fd)

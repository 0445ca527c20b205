"""Keeps a log file that several processes append to below a size: its text goes to FILE.1.

The text is copied and the file cut, because a rename would leave every other writer (a node's
output writer, the terminal's copy of a detached `up`) with the old file. Standard library only and
few imports: a node's programs import it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from fcntl import F_GETFL, fcntl

COPY_BYTES = 1 << 24


def keep_below(number: int, bytes_max: int) -> None:
    """Empty the log that this descriptor appends to if it has more bytes. Text that another process
    writes at the same time may be missing. If the process dies in between, the text is in both
    files and the next call copies it again. Raises OSError only if the descriptor is no open file.
    """
    # A writer that does not append would leave a hole as long as the old text.
    if os.fstat(number).st_size <= bytes_max or not fcntl(number, F_GETFL) & os.O_APPEND:
        return
    with suppress(OSError):
        _copy(os.readlink(f"/proc/self/fd/{number}"))  # noqa: PTH115 - small imports
    # Also if there is no space for the copy: then this makes some.
    os.ftruncate(number, 0)


def _copy(path: str) -> None:
    source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        target = os.open(f"{path}.1", flags, 0o600)
        try:
            done = 0
            while count := os.sendfile(target, source, done, COPY_BYTES):
                done += count
        finally:
            os.close(target)
    finally:
        os.close(source)

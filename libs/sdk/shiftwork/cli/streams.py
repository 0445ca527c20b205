"""Prepares standard input, output and error, which may be closed, full, or have a narrow encoding.

Called by ``main``, before the first command and after the last.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import TextIO

from shiftwork.cli.failures import Failure

# How a file refuses what is written to it.
_NOT_TAKEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def open_all() -> None:
    """Make every standard stream usable, whatever it is connected to."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Closed by the caller: without this, the next file that is opened takes its number.
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - until the process ends
    with contextlib.suppress(AttributeError):
        # A data folder's name need not have letters that this terminal's encoding has.
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def close_all() -> None:
    """Write what is left; what is not taken is dropped, as by readers that are gone."""
    for stream in (sys.stdout, sys.stderr):
        _unwritten(stream)


def _unwritten(stream: TextIO) -> OSError | None:
    """Why a stream did not take everything, if so; the rest is dropped."""
    try:
        stream.flush()
    except OSError as problem:
        # The interpreter flushes once more at its end, and must not fail then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return problem
    return None


def failure_of(error: OSError) -> Failure | None:
    """An error of the operating system that is about where the command runs, not about what it
    does; None for every other."""
    problem = _unwritten(sys.stdout)
    # An interpreter that does not buffer has nothing left to write again.
    if problem is None and error.errno in _NOT_TAKEN and not error.filename:
        problem = error
    if problem is not None:
        return Failure(
            f"the output cannot be written: {problem.strerror}",
            fix="what the command did stays done; free some space, or send its output elsewhere",
        )
    try:
        os.getcwd()  # noqa: PTH109 - as below
    except OSError:
        return Failure(
            "the current directory does not exist any more",
            where=os.environ.get("PWD", ""),
            fix="cd to a directory that exists",
        )
    return None

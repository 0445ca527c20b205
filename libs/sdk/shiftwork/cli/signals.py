"""Signals as numbers in a pipe, for loops that wait for other things with ``select``."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any, Callable, Generator, Mapping

# Those that end a process, as far as this system has them.
ENDINGS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
RESIZED = getattr(signal, "SIGWINCH", None)
STOPPED = getattr(signal, "SIGTSTP", None)

Handler = Callable[[int, Any], None]


def ignore(*_: object) -> None:
    """A handler for signals of which the number in the pipe is enough."""


@contextlib.contextmanager
def pipe(handlers: Mapping[int | None, Handler]) -> Generator[int, None, None]:
    """The end of a pipe from which the numbers of these signals are read, one byte each.

    SIGINT is in the pipe, too. A signal that this system does not have is None and is left out. On
    leaving, the handlers of before are back. Only the main thread may enter.
    """
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    before = {n: signal.signal(n, handler) for n, handler in handlers.items() if n is not None}
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(previous)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)

"""The log of a node's programs, ``supervisor.log``. Writing never raises: a full disk or a closed
log must not end a process that ranks depend on."""

from __future__ import annotations

import os
from contextlib import suppress

from libs.service.log_size import keep_below

BYTES_MAX = 4 << 20


def report(text: str) -> None:
    """Write one line on standard error, or nowhere."""
    with suppress(OSError):
        os.write(2, f"{text}\n".encode(errors="replace"))
        keep_below(2, BYTES_MAX)

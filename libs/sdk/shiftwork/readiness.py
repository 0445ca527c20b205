"""Reports once that this process's rank is ready, in the background, until the platform has stored
it. Called by ``training.ready``.

It is no part of ``live``: a program that only says that it is ready does not listen for requests to
leave.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from contextlib import closing
from importlib import import_module
from typing import Callable

from shiftwork.context import Context
from shiftwork.live import THREADS_IMPORT, Limits


def report_ready(context: Context, limits: Limits, warn: Callable[[str], None]) -> None:
    """Send the report from a thread of its own. The end of the program waits for it for a while: a
    program that ends before the report is stored would count as one that never became ready."""
    # A thread that imports holds locks which a forked child would wait for without end.
    for name in THREADS_IMPORT:
        import_module(name)
    sender = threading.Thread(
        target=_send, args=(context, limits, warn), name="shiftwork-ready", daemon=True
    )
    try:
        sender.start()
    except RuntimeError as error:  # no more threads, or the interpreter is going down
        warn(f"no background thread ({error}): the platform does not learn that this rank is ready")
    else:
        atexit.register(_wait_for, sender, os.getpid(), limits.exit_ready_seconds)


def _wait_for(sender: threading.Thread, pid: int, seconds: float) -> None:
    # A forked child has no such thread.
    if os.getpid() == pid:
        sender.join(seconds)


def _send(context: Context, limits: Limits, warn: Callable[[str], None]) -> None:
    from shiftwork.transport import Connection, Unreachable  # noqa: PLC0415 - loaded above

    body = {"rank": context.rank or 0, "restarts": context.restarts}
    pause_s, refused_at = limits.backoff_seconds_min, None
    with closing(Connection(context.url, context.run_token)) as client:
        while True:
            try:
                answer = client.call(
                    "POST", "/v1/run/ready", body, timeout_seconds=limits.answer_seconds
                )
            except Unreachable:
                answer = None
            if answer is not None and answer.status < 400:  # noqa: PLR2004 - success
                return
            if answer is not None and answer.status in (400, 404, 409, 410, 422):
                fields = answer.fields()
                warn(f"the platform refuses the report of readiness: {fields.get('detail')}")
                return
            if answer is not None and answer.status in (401, 403):
                refused_at = refused_at or time.monotonic()
                if time.monotonic() - refused_at > limits.refused_seconds_max:
                    warn("the platform no longer accepts this attempt's token")
                    return
            # Ranks of a large gang that come at the same time do not come back together.
            time.sleep(pause_s * (0.5 + int.from_bytes(os.urandom(2), "big") / 65536))
            pause_s = min(2 * pause_s, limits.backoff_seconds_max)

"""Keeps a row that cannot be read, and a defect, to the task or action that it concerns."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from libs.bus.port import BusError
from libs.service import observability
from libs.service.metrics import Metrics
from libs.store.port import (
    ConflictError,
    DatabaseFaultError,
    StoreUnavailableError,
    TermOverError,
)

declare = Metrics("monitor")
FAILED = declare.counter(
    "shiftwork_abnormal_failed_total",
    "Times that a task was not evaluated, or an action not decided, because of a row or a defect",
    ["loop"],
)
EVALUATION, ACTIONS = "abnormal", "abnormal-actions"
for _loop in (EVALUATION, ACTIONS):
    # Alerts see the first failure as an increase.
    FAILED.labels(_loop)
# These concern the whole step: the loop waits, or the term ends.
WHOLE_STEP = (StoreUnavailableError, DatabaseFaultError, ConflictError, TermOverError, BusError)


@contextlib.contextmanager
def isolated(loop: str, what: str) -> Generator[None]:
    """Log and count what goes wrong with one task or action; the others go on, and this one is
    tried again with the next step."""
    try:
        yield
    except WHOLE_STEP:
        raise
    except Exception as error:  # noqa: BLE001 - each one's fault is that one's
        FAILED.labels(loop).inc()
        observability.log("monitor").warning(
            "left out", loop=loop, what=what, problem=f"{type(error).__name__}: {error}"
        )

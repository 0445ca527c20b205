"""The place of each task in a trace, for events that loops emit long after the first request.

A table of services whose loops act on tasks. ``Tx`` reads it when it commits events that no handler
emitted, and asks ``TaskTraces`` (made by ``libs.service.traces``) for their places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from libs.contracts.base import Message
from libs.store.retention import deleted_by_age
from libs.store.rows import Shape
from libs.store.tables import index, table


@dataclass(frozen=True, slots=True)
class TaskTrace:
    """The sampled trace of one task (row; key: task_id)."""

    task_id: str
    # What happens to the task now hangs below this span.
    traceparent: str
    # The span that submitted the task; later traces of the task have a link to it.
    submitted: str
    kept_at: datetime


TRACE_RULE = "traces of tasks"


def trace_table() -> Shape:
    """The table, for a service's ``tables.py``; ``libs.service.traces.trace_rule`` prunes it."""
    return table(
        TaskTrace,
        "tasktrace",
        index("kept_at"),
        key="task_id",
        retention=deleted_by_age("trace_keep_seconds", "its last trace began", rule=TRACE_RULE),
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where an event that a loop emits belongs."""

    traceparent: str
    # The row to keep from now on; None: as it is.
    row: TaskTrace | None = None
    # Called once the event is committed.
    committed: Callable[[], None] = lambda: None


class TaskTraces(Protocol):
    """Finds the places of events."""

    def place(self, row: TaskTrace, message: Message) -> Place | None:
        """Where an event about a task belongs; None: nowhere."""
        ...

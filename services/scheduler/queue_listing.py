"""The ListQueue query: a page of the queue, read by the leader from its working set.

Wired in ``main.py``. It decides nothing and waits for nothing, so it is answered between two steps
of the event loop; ``page_max`` bounds how long that holds decisions up. Without a leader nobody
answers, and the gateway reports that.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from datetime import UTC, datetime

from libs.contracts.base import Message
from libs.contracts.messages import (
    FieldError,
    ListQueue,
    ListQueueReply,
    Reason,
    Refusal,
    RefusalCode,
    WaitingTask,
)
from libs.service.clock import Clock
from libs.service.metrics import Metrics
from services.scheduler.domain.explain.queue_page import Place, queue_page
from services.scheduler.loop import Brain

declare = Metrics("scheduler")
SECONDS = declare.histogram(
    "shiftwork_scheduler_queue_page_seconds", "Duration of one page of the queue"
)
VALUE_CHARACTERS_MAX = 80


def cursor_of(place: Place) -> str:
    """A place as text; its numbers are exact."""
    group, at, rank, key, task_id = place
    text = json.dumps([group, at.hex(), rank, key.hex(), task_id], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def place_of(cursor: str) -> Place | None:
    """The place that ``cursor_of`` made a text of; None for any other text."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        group, at, rank, key, task_id = json.loads(base64.b64decode(padded, b"-_", validate=True))
        place = Place(group, float.fromhex(at), rank, float.fromhex(key), task_id)
        # What a moment or a comparison may not be.
        datetime.fromtimestamp(place.at, UTC)
    except (ValueError, TypeError, OverflowError, OSError, RecursionError, binascii.Error):
        return None
    texts = isinstance(group, str) and isinstance(task_id, str)
    return place if texts and type(rank) is int and not math.isnan(place.key) else None


class QueueListing:
    """The query with its settings."""

    def __init__(self, brain: Brain, clock: Clock, *, page_max: int) -> None:
        self._brain = brain
        self._clock = clock
        self._page_max = page_max

    async def page(self, query: ListQueue) -> Message:
        """The tasks behind a place. Refused: a place that no page named."""
        after = place_of(query.after) if query.after else None
        if query.after and after is None:
            return ListQueueReply(refusal=_unknown_place(query.after))
        now = self._clock.now()
        limit = query.limit if 0 < query.limit < self._page_max else self._page_max
        with SECONDS.time():
            # Brings what nodes and limits changed up to date.
            index = self._brain.snapshot().index
            found = queue_page(index, query.group, after, limit, now.timestamp())
        return ListQueueReply(
            tasks=self._held_up(found.tasks),
            next=cursor_of(found.next) if found.next else "",
            listed_at=now,
        )

    def _held_up(self, tasks: list[WaitingTask]) -> tuple[WaitingTask, ...]:
        """Where the decisions about a group are held up, its tasks wait for that."""
        why: dict[str, Reason | None] = {
            group: self._brain.held_up(group) for group in {each.group for each in tasks}
        }
        return tuple(
            each.model_copy(update={"reason": found}) if (found := why[each.group]) else each
            for each in tasks
        )


def _unknown_place(after: str) -> Refusal:
    message, fix = "is not a cursor of this list", "give next_cursor of the page before"
    value = after[:VALUE_CHARACTERS_MAX]
    error = FieldError(field="cursor", value=value, message=message, fix=fix)
    detail = f"cursor: {value!r} {message}; {fix}, or leave it out"
    return Refusal(code=RefusalCode.INVALID, detail=detail, errors=(error,))

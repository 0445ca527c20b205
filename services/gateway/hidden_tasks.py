"""Other tasks that answers name, for callers who do not see each of them: ``hidden-1`` and so on in
the place of their ids, which tell when a task was submitted. Called by the routes and by
``event_stream.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from libs.contracts.ids import ids_in, without_hidden_ids
from libs.contracts.messages import Reason
from libs.store.port import Tx
from services.gateway import store as rows_of
from services.gateway.rows import EventRow
from services.gateway.sight import Sight
from services.gateway.views import Json

Hide = Callable[[Reason | None], Reason | None]


def without_hidden(document: Json, shown: Collection[str]) -> Json:
    """The same with ``hidden-1`` and so on instead of the ids of tasks that are not among
    ``shown``."""
    text = orjson.dumps(document).decode()
    changed: Json = orjson.loads(without_hidden_ids(text, shown))
    return changed


async def hiding(tx: Tx, sight: Sight, reasons: Iterable[Reason | None]) -> Hide:
    """A function that hides the tasks in each of these reasons that the caller does not see."""
    if sight.is_full:
        return lambda reason: reason
    named = {each for reason in reasons if reason for each in reason.names.values()}
    ids = sorted({each for name in named for each in ids_in(name)})
    return partial(_hidden, {row.task_id for row in await rows_of.seen_tasks(tx, ids, sight)})


def _hidden(shown: Collection[str], reason: Reason | None) -> Reason | None:
    if reason is None or not any(map(ids_in, reason.names.values())):
        return reason
    return reason.model_copy(update={"names": without_hidden(dict(reason.names), shown)})


def named_in(row: EventRow) -> list[str]:
    """The other tasks that the reason in an event names."""
    reason: Mapping[str, Any] | None = row.data.get("reason")
    if not isinstance(reason, dict):
        return []
    return [each for each in ids_in(orjson.dumps(reason).decode()) if each != row.task_id]


async def events_for(tx: Tx, rows: Sequence[EventRow], sight: Sight) -> list[EventRow]:
    """The same events, as somebody may read them who sees these tasks."""
    named = {} if sight.is_full else {row.position: ids for row in rows if (ids := named_in(row))}
    if not named:
        return [*rows]
    ids = sorted({each for some in named.values() for each in some})
    shown = {row.task_id for row in await rows_of.seen_tasks(tx, ids, sight)}

    def hidden(row: EventRow) -> EventRow:
        if row.position not in named:
            return row
        reason = without_hidden(row.data["reason"], {row.task_id, *shown})
        return replace(row, data={**row.data, "reason": reason})

    return [*map(hidden, rows)]

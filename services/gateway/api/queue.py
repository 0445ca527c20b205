"""The queue, in the scheduler's own order."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from libs.contracts import messages as m
from services.gateway import queue_views
from services.gateway.api import queue_shapes as shapes
from services.gateway.api.deps import (
    Caller,
    Context,
    PageQuery,
    Parts,
    allows,
    answer_page,
    router_of,
)
from services.gateway.json_values import rfc3339
from services.gateway.known_names import require_findable
from services.gateway.permissions import Action
from services.gateway.problems import TOO_MANY, UNAVAILABLE, ProblemError
from services.gateway.rows import TaskRow
from services.gateway.store import Paging

router = router_of("scheduling")


@router.get("/queue", response_model=shapes.QueuePage)
@allows(Action.READ_TASKS)
async def queue(
    caller: Caller,
    parts: Parts,
    paging: PageQuery,
    group: Annotated[
        str | None, Query(max_length=63, description="one group; without it each, by name")
    ] = None,
) -> Response:
    """Waiting tasks in the order in which the scheduler gives them nodes now, group by group, with
    why each waits.

    A page begins behind the place of the last task of the page before, wherever other tasks have
    gone meanwhile: a task whose place stays is listed once, one that was moved across the cursor
    is missing or comes again. Positions are of the moment ``listed_at``. 503: no scheduler leads at
    the moment; try again after ``Retry-After``."""
    if parts.queue_questions.count(caller.user) >= parts.settings.queue_waiting_max:
        detail = f"{caller.user} asks for the queue too often at once; wait for the answers"
        raise ProblemError(TOO_MANY, detail, headers={"retry-after": "1"})
    paging = replace(paging, cursor=parts.queue_cursors.open(paging.cursor or "") or None)
    async with parts.queue_questions.of(caller.user):
        reply = await _tasks(parts, group or "", paging)
    if group and not reply.tasks and paging.cursor is None:
        async with parts.store.transaction() as tx:
            await require_findable(
                tx, caller, groups={"group": group}, kept=[(TaskRow, "group", "group")]
            )
    listed_at = reply.listed_at or parts.clock.now()
    return answer_page(
        reply.tasks,
        lambda task: queue_views.row(caller, task, listed_at),
        lambda task: task.task_id,
        parts.queue_cursors.seal(reply.next) or None,
        listed_at=rfc3339(listed_at),
    )


async def _tasks(parts: Context, group: str, paging: Paging) -> m.ListQueueReply:
    """As many tasks as the page takes, from as many answers as the scheduler makes of them."""
    found: list[m.WaitingTask] = []
    after = paging.cursor or ""
    while True:
        query = m.ListQueue(group=group, after=after, limit=paging.limit - len(found))
        try:
            reply = await parts.commands.ask(query, m.ListQueueReply)
        except ProblemError as problem:
            if problem.kind is not UNAVAILABLE:
                raise
            detail = (
                "the scheduler does not answer: it starts, or none leads now; try again."
                " /v1/tasks?state=queued&sort=-priority lists waiting tasks without it, by level"
            )
            raise ProblemError(UNAVAILABLE, detail, headers=problem.headers) from problem
        found += reply.tasks
        after = reply.next
        if not after or len(found) >= paging.limit:
            return reply.model_copy(update={"tasks": tuple(found)})

"""Dead letters: events that a service has set apart. Administrators list and replay them.

Each service keeps its own and answers for them; their bodies, which may hold secrets, stay there.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from libs.contracts import messages as m
from services.gateway.api import shapes
from services.gateway.api.deps import Caller, Parts, Wanted, answer, router_of
from services.gateway.auth import require_admin
from services.gateway.bodies import ReplayBody, ServiceWord
from services.gateway.store import After, Sort
from services.gateway.words import moment

router = router_of("dead letters")
BY_ID = Sort("id", False, "id", False)


@router.get("/dead-letters", response_model=shapes.DeadLetterPage)
async def list_dead_letters(
    caller: Caller,
    parts: Parts,
    paging: Wanted,
    *,
    service: Annotated[ServiceWord, Query(description="the service that set them apart")],
) -> Response:
    """Events that a service could not handle (received) or that the bus does not take (sent)."""
    require_admin(caller, "list dead letters")
    after = str(After.read(paging.cursor, BY_ID).key) if paging.cursor else ""
    command = m.ListDeadLetters(service=service, after=after, limit=paging.limit)
    reply = await parts.commands.ask(command, m.ListDeadLettersReply)
    cursor = None
    if reply.more and reply.letters:
        last = reply.letters[-1].id
        cursor = After(last, last).write(BY_ID)
    items = [_shown(service, letter) for letter in reply.letters]
    return answer({"items": items, "next_cursor": cursor})


@router.post("/dead-letters:replay", status_code=202, response_model=shapes.Replayed)
async def replay_dead_letters(body: ReplayBody, caller: Caller, parts: Parts) -> Response:
    """Let a service try again; the list shows the outcome: what succeeded is gone from it."""
    target = f"{body.service}: {len(body.ids) if body.ids is not None else 'all'}"
    async with parts.changing(caller, "dead-letters.replay", target) as change:
        require_admin(caller, "replay dead letters")
        command = m.ReplayDeadLetters(service=body.service, ids=tuple(body.ids or ()))
        reply = await parts.commands.ask(command, m.ReplayDeadLettersReply)
        ids = list(reply.ids)
        while reply.more_after:
            command = m.ReplayDeadLetters(service=body.service, after=reply.more_after)
            reply = await parts.commands.ask(command, m.ReplayDeadLettersReply)
            ids += reply.ids
        change.detail = ", ".join(ids)[:200] or "nothing"
    return answer({"service": body.service, "ids": ids}, 202)


def _shown(service: str, letter: m.DeadLetter) -> dict[str, object]:
    return {
        "id": letter.id,
        "service": service,
        "direction": letter.direction.name.lower(),
        "type": letter.type,
        "subject": letter.subject,
        "event_id": letter.event_id,
        "reason": letter.reason,
        "bytes": letter.size,
        "set_apart_at": moment(letter.set_apart_at),
        "replays": letter.replays,
        "replaying": letter.replaying,
    }

"""Dead letters: events that a service has set apart. Operators list, replay and discard them.

Each service keeps its own and answers for them; their bodies, which may hold secrets, stay there.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from fastapi import Query
from starlette.responses import Response

from libs.contracts import messages as m
from services.gateway.api import shapes
from services.gateway.api.deps import Caller, PageQuery, Parts, allows, answer, router_of
from services.gateway.bodies import LettersBody, ServiceWord
from services.gateway.json_values import rfc3339
from services.gateway.permissions import Action
from services.gateway.store import After, Sort

router = router_of("dead letters")
BY_ID = Sort("id", False, "id", False)


class _Verb(NamedTuple):
    """What can be done to dead letters."""

    name: str
    command: type[m.ReplayDeadLetters | m.DiscardDeadLetters]
    reply: type[m.ReplayDeadLettersReply | m.DiscardDeadLettersReply]


REPLAY = _Verb("replay", m.ReplayDeadLetters, m.ReplayDeadLettersReply)
DISCARD = _Verb("discard", m.DiscardDeadLetters, m.DiscardDeadLettersReply)


@router.get("/dead-letters", response_model=shapes.DeadLetterPage)
@allows(Action.READ_DEAD_LETTERS)
async def list_dead_letters(
    caller: Caller,
    parts: Parts,
    paging: PageQuery,
    *,
    service: Annotated[ServiceWord, Query(description="the service that set them apart")],
) -> Response:
    """Events that a service could not handle (received) or that the bus does not take (sent)."""
    del caller
    after = str(After.read(paging.cursor, BY_ID).key) if paging.cursor else ""
    command = m.ListDeadLetters(service=service, after=after, limit=paging.limit)
    reply = await parts.commands.ask(command, m.ListDeadLettersReply)
    cursor = None
    if reply.more and reply.letters:
        last = reply.letters[-1].id
        cursor = After(last, last).write(BY_ID)
    items = [_shown(service, letter) for letter in reply.letters]
    return answer({"items": items, "next_cursor": cursor})


@router.post("/dead-letters:replay", status_code=202, response_model=shapes.Letters)
@allows(Action.CHANGE_DEAD_LETTERS, inside=True)
async def replay_dead_letters(body: LettersBody, caller: Caller, parts: Parts) -> Response:
    """Let a service try again; the list shows the outcome: what succeeded is gone from it."""
    ids = await _command(REPLAY, body, caller, parts)
    return answer({"service": body.service, "ids": ids}, 202)


@router.post("/dead-letters:discard", response_model=shapes.Letters)
@allows(Action.CHANGE_DEAD_LETTERS, inside=True)
async def discard_dead_letters(body: LettersBody, caller: Caller, parts: Parts) -> Response:
    """Drop dead letters for good; the answer names those that are gone."""
    ids = await _command(DISCARD, body, caller, parts)
    return answer({"service": body.service, "ids": ids})


async def _command(verb: _Verb, body: LettersBody, caller: Caller, parts: Parts) -> list[str]:
    """Ask the service, page by page if no letter is named; audited. The ids that it names."""
    target = f"{body.service}: {len(body.ids) if body.ids is not None else 'all'}"
    async with parts.changing(
        caller, f"dead-letters.{verb.name}", target, verb=f"{verb.name} dead letters"
    ) as change:
        command = verb.command(service=body.service, ids=tuple(body.ids or ()))
        reply = await change.ask(command, verb.reply)
        ids = list(reply.ids)
        while reply.more_after:
            command = verb.command(service=body.service, after=reply.more_after)
            reply = await change.ask(command, verb.reply)
            ids += reply.ids
        change.detail = ", ".join(ids)[:200] or "nothing"
    return ids


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
        "set_apart_at": rfc3339(letter.set_apart_at),
        "replays": letter.replays,
        "replaying": letter.replaying,
    }

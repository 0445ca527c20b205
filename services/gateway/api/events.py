"""The event log: pages, server-sent events, WebSockets. Resumable by position."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import structlog
from fastapi import Header, Query, Request, WebSocket
from starlette.responses import Response
from starlette.websockets import WebSocketDisconnect, WebSocketState

from libs.contracts.wording import meant
from services.gateway import store as rows_of
from services.gateway import views
from services.gateway.api import shapes
from services.gateway.api.deps import (
    CALLER,
    Caller,
    Context,
    PageQuery,
    Parts,
    action_of,
    allows,
    answer_page,
    context,
    require_query,
    router_of,
)
from services.gateway.api.failures import STORE_ERRORS, problem_of
from services.gateway.api.guard import enter, note_refusal
from services.gateway.api.query_parameters import NameQuery
from services.gateway.auth import Identity
from services.gateway.browser_sessions import CSRF_PROTOCOL
from services.gateway.event_stream import Emit, Encoded, EventFilter, Reader, gone
from services.gateway.eventlog import TYPES
from services.gateway.hidden_tasks import events_for
from services.gateway.known_names import require_findable
from services.gateway.permissions import Action
from services.gateway.problems import ProblemError, invalid
from services.gateway.rows import TaskRow
from services.gateway.sight import Sight
from services.gateway.sse import (
    COMMENT,
    EventStream,
    Produce,
    Write,
    frame,
    position_frame,
    write_all,
)

router = router_of("events")

From = Annotated[
    str | None,
    Query(
        alias="from",
        max_length=20,
        description="events behind this position; 0 or left out: all that are kept; -N: the last N;"
        " latest: only new ones",
    ),
]
Types = Annotated[
    str | None,
    Query(
        alias="type",
        max_length=1000,
        description="types (run.exited), aggregates (run) or facts (exited), separated by commas",
    ),
]
STREAM = "text/event-stream"
# How a browser, which can set no header on a WebSocket, shows its token.
PROTOCOL = "shiftwork.bearer."
POLICY_VIOLATION, TRY_LATER = 1008, 1013
_log = structlog.stdlib.get_logger(__name__)


# What events are filtered by, besides their types.
ANSWERED = ("task", "owner", "team", "group")
QUERIES = frozenset({*ANSWERED, "type", "from", "positions"})


async def topic_of(
    parts: Context, caller: Identity, types: str | None, **given: str | None
) -> EventFilter:
    """The filter of the query, with what the caller may see: all of a task that it sees."""
    wanted: set[str] = set()
    for word in (types or "").split(","):
        if not word:
            continue
        found = {name for name in TYPES if word in (name, *name.split("."))}
        if not found:
            fix = f"{meant(word, TYPES)} give some of {', '.join(TYPES)}".strip()
            raise invalid("type", word, "is no type of event", fix)
        wanted |= found
    task, owner, team, group = (given.get(name) or "" for name in ANSWERED)
    sight = caller.sight
    if owner or team or group:
        async with parts.store.transaction() as tx:
            await require_findable(
                tx,
                caller,
                users={"owner": owner} if owner else {},
                teams={"team": team} if team else {},
                groups={"group": group} if group else {},
                kept=[(TaskRow, field, field) for field in ("owner", "team", "group")],
            )
    if task and not sight.is_full:
        async with parts.store.transaction() as tx:
            if await rows_of.seen_task(tx, task, sight) is not None:
                # Events that came before the task's submission have no owner.
                sight = Sight()
    return EventFilter(task, frozenset(wanted), owner, team, group, sight, caller.sight)


async def start_of(parts: Context, begin: str | None, last_event_id: str | None) -> int:
    """The position behind which to begin. 410 if the log no longer goes back so far."""
    async with parts.store.transaction() as tx:
        ends = await rows_of.head(tx)
    if last_event_id is not None and last_event_id.isdecimal():
        after = int(last_event_id)
    elif begin in (None, "", "0"):
        return ends.oldest - 1
    elif begin == "latest":
        return ends.position
    else:
        try:
            number = int(begin)
        except ValueError:
            fix = "give a position, -N, or latest"
            raise invalid("from", begin, "is not a position", fix) from None
        if number < 0:
            return max(ends.oldest - 1, ends.position + number)
        after = number
    if after < ends.oldest - 1:
        raise gone(after, f"events before {ends.oldest} are not kept", ends.oldest)
    if after > ends.position:
        why = f"the log ends at {ends.position}, and was perhaps rebuilt"
        raise gone(after, why, ends.oldest)
    return after


@router.get(
    "/events",
    response_model=shapes.EventPage,
    responses={200: {"content": {STREAM: {}}, "description": "a page, or a stream with follow"}},
)
@allows(Action.READ_TASKS)
async def events(
    request: Request,
    caller: Caller,
    parts: Parts,
    paging: PageQuery,
    *,
    task: Annotated[str | None, Query(max_length=26)] = None,
    types: Types = None,
    owner: NameQuery = None,
    team: Annotated[
        str | None, Query(max_length=63, description="that tasks were submitted under")
    ] = None,
    group: NameQuery = None,
    begin: From = None,
    follow: Annotated[bool | None, Query(description="stream; so does Accept: " + STREAM)] = None,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID", max_length=20)] = None,
) -> Response:
    """Facts in the order in which they were recorded, each with its position: those that meet every
    filter, about tasks that the caller sees, nodes, quotas and policies."""
    wanted = await topic_of(parts, caller, types, task=task, owner=owner, team=team, group=group)
    if follow is None:
        follow = STREAM in request.headers.get("accept", "")
    if not follow:
        after = await start_of(parts, paging.cursor or begin, None)
        return await _page(parts, wanted, after, paging.limit)

    following: list[Reader] = []

    def beat() -> bytes:
        """The position that a quiet stream has reached, so that its reader resumes there: the
        position of its last event may be pruned meanwhile."""
        position = next(map(parts.live.position_of, following), None)
        return COMMENT if position is None else position_frame(position)

    async def start() -> Produce:
        after = await start_of(parts, begin, last_event_id)

        async def produce(write: Write) -> None:
            # Where the stream begins: readers that are cut off before the first event go on there.
            await write(position_frame(after))

            async def emit(events: Sequence[Encoded]) -> None:
                frames = (frame(document, position=position) for position, document in events)
                await write_all(write, frames)

            with parts.live.reader(caller.user, wanted) as reader:
                following.append(reader)
                await parts.live.follow(reader, after, emit)

        return produce

    settings = parts.settings
    return EventStream(
        start,
        admission=parts.streams.admit(caller.user, is_admin=caller.is_admin),
        lasting=parts.authenticator.lasting(caller),
        heartbeat_seconds=settings.heartbeat_seconds,
        send_seconds_max=settings.stream_send_seconds_max,
        beat=beat,
    )


async def _page(parts: Context, wanted: EventFilter, after: int, limit: int) -> Response:
    async with parts.store.transaction() as tx:
        ends = await rows_of.head(tx)
        rows = await rows_of.events(
            tx,
            *wanted.where(),
            after=after,
            limit=limit,
            until=ends.position,
            seen=wanted.seen(),
        )
        shown = await events_for(tx, rows, wanted.names)
    full = len(rows) == limit
    return answer_page(
        shown,
        views.event,
        lambda row: str(row.position),
        str(rows[-1].position) if full else None,
        # Where to go on later, with from.
        position=rows[-1].position if full else ends.position,
        left_out=tx.unreadable,
    )


@router.websocket("/events")
@allows(Action.READ_TASKS)
async def events_socket(socket: WebSocket) -> None:
    """The same stream for browsers: one JSON text for each event. With ``positions=true`` a quiet
    stream sends ``{"position": N}`` every so often: resume behind N."""
    parts = await context(socket)
    query: Mapping[str, str] = socket.query_params
    try:
        token, protocol = token_of(socket)
        caller: Any = await enter(parts, socket.scope, token, is_run=False)
        socket.scope[CALLER] = caller = caller.doing(action_of(events_socket)[0])
        caller.check()
        require_query(socket.query_params, QUERIES)
        given = {name: query.get(name) for name in ANSWERED}
        wanted = await topic_of(parts, caller, query.get("type"), **given)
        with parts.streams.admit(caller.user, is_admin=caller.is_admin):
            after = await start_of(parts, query.get("from"), None)
            await socket.accept(subprotocol=protocol)
            await _converse(parts, socket, caller, wanted, after)
    except (ProblemError, *STORE_ERRORS) as error:
        is_problem = isinstance(error, ProblemError)
        problem = error if is_problem else problem_of(error, socket.url.path)
        note_refusal(parts, socket.scope, problem)
        code = TRY_LATER if problem.headers.get("retry-after") else POLICY_VIOLATION
        await socket.close(code, problem.detail[:120])


def token_of(socket: WebSocket) -> tuple[str, str | None]:
    """The token of a WebSocket's header or subprotocol, and the subprotocol to answer with."""
    scheme, _, token = socket.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token, None
    for protocol in socket.scope.get("subprotocols", ()):
        if protocol.startswith(PROTOCOL):
            return protocol.removeprefix(PROTOCOL), "shiftwork"
        if protocol.startswith(CSRF_PROTOCOL):
            return "", "shiftwork"
    return "", None


async def _converse(
    parts: Context, socket: WebSocket, caller: Identity, wanted: EventFilter, after: int
) -> None:
    """Send events until the reader goes or the process stops; what the reader sends is ignored."""
    emit = partial(_send_texts, socket, parts.settings.stream_send_seconds_max)
    ended_early = ""
    with (
        parts.authenticator.lasting(caller) as lasting,
        parts.live.reader(caller.user, wanted) as reader,
    ):
        try:
            async with asyncio.TaskGroup() as group:
                whichever = [
                    parts.live.follow(reader, after, emit),
                    _until_left(socket),
                    _set(lasting.over),
                ]
                if socket.query_params.get("positions") == "true":
                    whichever.append(_send_positions(parts, reader, emit))
                running = [group.create_task(part) for part in whichever]
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for part in running:
                    part.cancel()
        except* (WebSocketDisconnect, TimeoutError, RuntimeError) as group:
            # The reader is gone, or does not read: no response can reach it.
            _log.info("a socket ended", problem=str(group.exceptions[0]))
        except* ProblemError as group:
            ended_early = str(group.exceptions[0])
            _log.warning("a socket ended early", problem=ended_early)
    if socket.application_state is not WebSocketState.CONNECTED:
        return
    if ended_early:
        await socket.close(POLICY_VIOLATION, ended_early[:120])
    elif lasting.why:
        await socket.close(POLICY_VIOLATION, lasting.why)
    elif parts.live.closed:
        await socket.close(TRY_LATER, "the gateway stops")


async def _send_texts(socket: WebSocket, seconds_max: float, events: Sequence[Encoded]) -> None:
    for _, document in events:
        async with asyncio.timeout(seconds_max):
            await socket.send_text(document.decode())


async def _send_positions(parts: Context, reader: Reader, emit: Emit) -> None:
    """Send how far a quiet stream has come, every so often."""
    never = asyncio.Event()
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(parts.settings.heartbeat_seconds):
                await never.wait()
        position = parts.live.position_of(reader)
        if position is not None:
            await emit([(position, b'{"position":%d}' % position)])


async def _until_left(socket: WebSocket) -> None:
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass


async def _set(event: asyncio.Event) -> None:
    await event.wait()

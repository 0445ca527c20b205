"""Output of tasks: what is kept, ranges of it, and all of it as it comes."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from libs.contracts import messages as m
from libs.contracts.task_states import TERMINAL_WORDS
from services.gateway import store as rows_of
from services.gateway import views
from services.gateway.api import shapes
from services.gateway.api.deps import Caller, Context, Parts, allows, answer, router_of, task_or_404
from services.gateway.api.query_parameters import require_before, time_parameter
from services.gateway.auth import Identity
from services.gateway.output_stream import OutputFilter, OutputFollower, read_range
from services.gateway.permissions import Action
from services.gateway.problems import NOT_FOUND, ProblemError, invalid
from services.gateway.sse import EventStream, Produce, Write, frame

router = router_of("logs")
STREAM = "text/event-stream"
RUNS_MAX = 1000


@router.get(
    "/tasks/{task_id}/logs",
    response_model=shapes.KeptOutputs | shapes.OutputRange,
    responses={200: {"content": {"text/plain": {}, "application/json": {}, STREAM: {}}}},
)
@allows(Action.READ_TASKS)
async def logs(
    task_id: str,
    caller: Caller,
    parts: Parts,
    *,
    list_: Annotated[bool, Query(alias="list", description="list what is kept")] = False,
    follow: Annotated[bool, Query(description="stream until the task has ended")] = False,
    attempt: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
    rank: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    role: Annotated[str, Query(max_length=63)] = "",
    offset: Annotated[
        int | None, Query(ge=-(2**62), le=2**62, description="negative: from the end")
    ] = None,
    limit_bytes: Annotated[int | None, Query(ge=1)] = None,
    tail: Annotated[int, Query(ge=0, description="the last so many lines")] = 0,
    before: Annotated[
        int, Query(ge=0, le=2**62, description="with rank: end before this byte; 0: anywhere")
    ] = 0,
    since: Annotated[str | None, Query(max_length=40, description="RFC 3339")] = None,
    until: Annotated[
        str | None, Query(max_length=40, description="with rank: end before what was written then")
    ] = None,
    timestamps: Annotated[
        bool, Query(description="with the times at which the bytes were written, in JSON")
    ] = False,
) -> Response:
    """The output of ranks. ``list=1``: the outputs that are kept. ``rank=N``: a range of one, byte
    for byte; with ``before`` and ``tail`` the last lines before one. ``follow=1``: the output of
    each selected rank from its beginning, as server-sent events. An event with ``line`` has the
    current text of a line that is being rewritten; it adds nothing to the output.

    ``timestamps=1``: a range comes in JSON, as the pieces of a stream do, and has ``timestamps``:
    ``[offset, time]`` of its first byte and of each later byte at which the time changes.
    ``approximate`` is true if they come from the index of an older version.
    """
    async with parts.store.transaction() as tx:
        await task_or_404(tx, task_id, caller.sight)
    _check(parts, limit_bytes, tail)
    begin, end = time_parameter("since", since), time_parameter("until", until)
    require_before("since", begin, end)
    wanted = OutputFilter(
        task_id,
        attempt,
        rank,
        role,
        offset or 0,
        tail,
        begin,
        timestamps=timestamps,
        before=before,
        until=end,
    )
    if follow:
        for name, value in (("before", before), ("until", until)):
            if value:
                raise invalid(name, value, "has no meaning with follow", "leave out one of both")
        return _stream(parts, caller, wanted)
    if list_ or rank is None:
        return answer({"logs": [views.log_info(info) for info in await _kept(parts, wanted)]})
    if attempt is None:
        newest = max((info.attempt for info in await _kept(parts, wanted)), default=1)
        wanted = replace(wanted, attempt=newest)
    read = await read_range(
        parts.commands,
        wanted,
        limit_bytes=limit_bytes or parts.settings.log_range_bytes_default,
        piece_bytes=parts.settings.log_piece_bytes,
    )
    if timestamps:
        place = {"attempt": wanted.attempt, "rank": rank, "offset": read.begin}
        how_much = {"size": read.size, "complete": read.complete}
        return answer({**place, **read.piece.fields(read.begin, dated=True), **how_much})
    return Response(
        read.piece.data,
        media_type="text/plain",
        headers={
            "x-shiftwork-attempt": str(wanted.attempt),
            "x-shiftwork-offset": str(read.begin),
            "x-shiftwork-size": str(read.size),
            "x-shiftwork-complete": "true" if read.complete else "false",
            "x-content-type-options": "nosniff",
        },
    )


def _check(parts: Context, limit_bytes: int | None, tail: int) -> None:
    most = parts.settings.log_range_bytes_max
    if limit_bytes is not None and limit_bytes > most:
        fix = f"give {most} or less, and go on at offset + length"
        raise invalid("limit_bytes", limit_bytes, f"is more than {most}", fix)
    if tail > parts.settings.log_tail_lines_max:
        most = parts.settings.log_tail_lines_max
        raise invalid("tail", tail, f"is more than {most}", f"give {most} or less")


async def _kept(parts: Context, wanted: OutputFilter) -> list[m.LogInfo]:
    """What is kept of the wanted output; nothing, if nothing was ever written."""
    try:
        reply = await parts.commands.ask(m.ListLogs(task_id=wanted.task_id), m.ListLogsReply)
    except ProblemError as problem:
        if problem.kind is NOT_FOUND:
            return []
        raise
    return [info for info in reply.logs if wanted.takes(info.attempt, info.rank, info.role)]


def _stream(parts: Context, reader: Identity, wanted: OutputFilter) -> Response:
    settings = parts.settings

    async def ended() -> set[tuple[int, int]] | None:
        """The ranks that ever ran, once the task has ended."""
        async with parts.store.transaction() as tx:
            row = await task_or_404(tx, wanted.task_id, reader.sight)
            if row.state not in TERMINAL_WORDS:
                return None
            runs = await rows_of.runs(tx, wanted.task_id, 0, RUNS_MAX)
        return {
            (run.attempt, placed.rank)
            for run in runs
            if run.started_at is not None
            for placed in run.placements
            if wanted.takes(run.attempt, placed.rank, placed.role)
        }

    async def produce(write: Write) -> None:
        async def send(document: bytes) -> None:
            await write(frame(document))

        await OutputFollower(
            wanted=wanted,
            commands=parts.commands,
            bus=parts.bus,
            ended=ended,
            closed=lambda: parts.live.closed,
            piece_bytes=settings.log_piece_bytes,
            list_seconds=settings.log_list_seconds,
            missing_rounds_max=settings.log_missing_rounds_max,
            send=send,
        ).run()
        if not parts.live.closed:
            await write(frame(b"{}", event="end"))

    async def start() -> Produce:
        return produce

    return EventStream(
        start,
        admission=parts.streams.admit(reader.user, is_admin=reader.is_admin),
        lasting=parts.authenticator.lasting(reader),
        heartbeat_seconds=settings.heartbeat_seconds,
        send_seconds_max=settings.stream_send_seconds_max,
    )

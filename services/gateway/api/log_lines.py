"""Pages of lines over the ranks and attempts of a task: all, or those that match a pattern."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Query
from starlette.responses import Response

from libs.contracts import messages as m
from services.gateway.api.deps import Caller, Parts, allows, answer, router_of, task_or_404
from services.gateway.api.log_shapes import OutputLines
from services.gateway.api.query_parameters import require_before, time_parameter
from services.gateway.json_values import rfc3339
from services.gateway.permissions import Action
from services.gateway.problems import TOO_MANY, ProblemError, invalid

router = router_of("logs")
# One pattern; log-collector bounds what it may take of memory.
PATTERN_CHARACTERS_MAX = 2000
CURSOR_CHARACTERS_MAX = 200
Cursor = Annotated[
    str, Query(max_length=CURSOR_CHARACTERS_MAX, description="begin or end of another page")
]


@router.get("/tasks/{task_id}/logs/lines", response_model=OutputLines)
@allows(Action.READ_TASKS)
async def log_lines(
    task_id: str,
    caller: Caller,
    parts: Parts,
    *,
    pattern: Annotated[
        str,
        Query(
            max_length=PATTERN_CHARACTERS_MAX,
            description="a regular expression (RE2); left out: every line",
        ),
    ] = "",
    literal: Annotated[bool, Query(description="the pattern is plain text")] = False,
    ignore_case: Annotated[bool, Query(description="in upper or lower case")] = False,
    attempt: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
    rank: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    role: Annotated[str, Query(max_length=63)] = "",
    since: Annotated[str | None, Query(max_length=40, description="RFC 3339")] = None,
    until: Annotated[str | None, Query(max_length=40, description="RFC 3339; not included")] = None,
    lines_before: Annotated[int, Query(ge=0, le=1000, description="of the same rank")] = 0,
    lines_after: Annotated[int, Query(ge=0, le=1000, description="of the same rank")] = 0,
    order: Annotated[
        Literal["rank", "time"], Query(description="rank: attempt by attempt and rank by rank")
    ] = "rank",
    after: Cursor = "",
    before: Cursor = "",
    last: Annotated[bool, Query(description="the last lines instead of the first")] = False,
    limit: Annotated[int, Query(ge=1, le=1000, description="lines of a page")] = 100,
) -> Response:
    """Lines that ranks wrote, or those of them that match a pattern, page by page.

    A page ends when it is full, or after about a second of searching: it may then have few lines or
    none, and ``more`` is true. Continue with ``after`` (or ``before``) until it is false. Cursors
    stay valid while output grows. A line that has not ended yet is in no page. A line of more than
    64 KiB counts as several.
    """
    async with parts.store.transaction() as tx:
        await task_or_404(tx, task_id, caller.sight)
    given = [
        name for name, value in (("after", after), ("before", before), ("last", last)) if value
    ]
    if given[1:]:
        fix = "give one of after, before and last"
        raise invalid(given[0], after or before, f"stands beside {given[1]}", fix)
    begin, end = time_parameter("since", since), time_parameter("until", until)
    require_before("since", begin, end)
    query = m.ReadLogLines(
        task_id=task_id,
        attempt=attempt or 0,
        rank=rank,
        role=role,
        pattern=pattern,
        literal=literal,
        ignore_case=ignore_case,
        lines_before=lines_before,
        lines_after=lines_after,
        since=begin,
        until=end,
        by_time=order == "time",
        after=after,
        before=before,
        last=last,
        limit=limit,
    )
    if parts.log_questions.count(caller.user) >= parts.settings.log_waiting_max:
        detail = f"{caller.user} searches too much output at once; wait for the answers"
        raise ProblemError(TOO_MANY, detail, headers={"retry-after": "1"})
    async with parts.log_questions.of(caller.user):
        reply = await parts.commands.ask(query, m.ReadLogLinesReply)
    return answer(
        {
            "lines": [_found(each) for each in reply.lines],
            "begin": reply.begin,
            "end": reply.end,
            "more": reply.more,
            "searched_bytes": reply.searched_bytes,
            "left_bytes": reply.left_bytes,
            "unreadable": [
                {"attempt": each.attempt, "rank": each.rank, "problem": each.problem}
                for each in reply.unreadable
            ],
        }
    )


def _found(found: m.FoundLine) -> Mapping[str, Any]:
    assert found.line is not None, "log-collector sends no page with a line that is missing"
    fields = _line(found.line)
    if found.before:
        fields["lines_before"] = [_line(each) for each in found.before]
    if found.after:
        fields["lines_after"] = [_line(each) for each in found.after]
    return fields


def _line(line: m.LogLine) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "attempt": line.attempt,
        "rank": line.rank,
        "role": line.role,
        "offset": line.offset,
        "at": rfc3339(line.at) if line.at else None,
    }
    if line.approximate:
        fields["approximate"] = True
    try:
        fields["text"] = line.text.decode()
    except UnicodeDecodeError:
        fields["data_base64"] = base64.b64encode(line.text).decode()
    return fields

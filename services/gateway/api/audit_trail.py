"""The audit trail: each change with the user that requested it, and what was before and after."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from libs.store.port import Op, Tx, Where
from services.gateway import store as rows_of
from services.gateway import views
from services.gateway.api import audit_shapes as shapes
from services.gateway.api.deps import Caller, PageQuery, Parts, allows, answer_page, router_of
from services.gateway.api.query_parameters import require_before, time_parameter
from services.gateway.audit import require_known
from services.gateway.known_names import require_findable
from services.gateway.permissions import Action
from services.gateway.problems import invalid
from services.gateway.rows import AuditRow, TaskRow
from services.gateway.store import NEWEST

router = router_of("people")
Filter = Annotated[str | None, Query(max_length=200)]


@router.get("/audit", response_model=shapes.AuditPage)
@allows(Action.READ_AUDIT)
async def audit_trail(
    caller: Caller,
    parts: Parts,
    paging: PageQuery,
    *,
    who: Filter = None,
    action: Annotated[
        str | None, Query(max_length=200, description="its beginning, such as quota or task.goal")
    ] = None,
    target: Filter = None,
    outcome: Annotated[
        str | None,
        Query(
            max_length=200,
            description="done, the kind of a refusal, or, if it may have been carried out, started"
            " (the gateway ended before the reply) or unknown (no reply came)",
        ),
    ] = None,
    address: Annotated[str | None, Query(max_length=200, description="where it came from")] = None,
    token: Annotated[str | None, Query(max_length=200, description="the id of a token")] = None,
    begin: Annotated[
        str | None, Query(alias="from", max_length=40, description="RFC 3339, included")
    ] = None,
    end: Annotated[
        str | None, Query(alias="to", max_length=40, description="RFC 3339, excluded")
    ] = None,
) -> Response:
    """Entries that meet every filter, newest first."""
    require_known(action, outcome)
    first, last = time_parameter("from", begin), time_parameter("to", end)
    require_before("from", first, last)
    where = [
        Where(column, op, value)
        for column, op, value in (
            ("who", Op.EQ, who),
            ("action", Op.PREFIX, action),
            ("target", Op.EQ, target),
            ("outcome", Op.EQ, outcome),
            ("address", Op.EQ, address),
            ("token", Op.EQ, token),
            ("at", Op.GE, first),
            ("at", Op.LT, last),
        )
        if value is not None
    ]
    async with parts.store.transaction() as tx:
        page = await rows_of.page(tx, AuditRow, where, NEWEST, paging)
        if not page.rows and paging.cursor is None and who:
            await require_findable(tx, caller, users={"who": who}, kept=[(AuditRow, "who", "who")])
        if not page.rows and paging.cursor is None and target:
            await _require_target(tx, target)
    return answer_page(
        page.rows, views.audit, lambda row: row.id, page.next_cursor, left_out=tx.unreadable
    )


async def _require_target(tx: Tx, target: str) -> None:
    """422 for a target that no entry has, whatever the other filters: it is misspelt or shortened,
    unless it is a task whose entries are older than what is kept."""
    if await tx.select(AuditRow, Where("target", Op.EQ, target), limit=1):
        return
    if await tx.get(TaskRow, target) is None:
        fix = "give it as the entries have it, a task by its whole id"
        raise invalid("target", target, "no entry has this target", fix)

"""Quotas: the most a user or team may hold at once."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from libs.contracts import messages as m
from libs.store.port import Op, Tx, Where
from services.gateway import store as rows_of
from services.gateway import views
from services.gateway.api import shapes
from services.gateway.api.deps import (
    Caller,
    Force,
    PageQuery,
    Parts,
    answer,
    answer_page,
    router_of,
)
from services.gateway.auth import require_admin
from services.gateway.bodies import QuotaBody
from services.gateway.command_client import set_quota
from services.gateway.known_names import require_known
from services.gateway.problems import invalid
from services.gateway.rows import QuotaRow
from services.gateway.store import Sort

router = router_of("quotas")
# Each change of any quota has a version of its own.
BY_VERSION = Sort("version", False, "version", False)


@router.get("/quotas", response_model=shapes.Page)
async def list_quotas(
    caller: Caller,
    parts: Parts,
    paging: PageQuery,
    *,
    group: Annotated[str | None, Query(max_length=63)] = None,
    user: Annotated[str | None, Query(max_length=63)] = None,
    team: Annotated[str | None, Query(max_length=63)] = None,
) -> Response:
    """Every limit that is set, oldest change first. A filter finds limits with just that name."""
    del caller
    where = [Where("removed", Op.EQ, False)]
    for column, value in (("group", group), ("user", user), ("team", team)):
        if value is not None:
            where.append(Where(column, Op.EQ, value))
    async with parts.store.transaction() as tx:
        page = await rows_of.page(tx, QuotaRow, where, BY_VERSION, paging)
    return answer_page(
        page.rows,
        views.quota,
        lambda row: str(row.version),
        page.next_cursor,
        left_out=tx.unreadable,
    )


@router.put("/quotas", response_model=dict[str, Any])
async def put_quota(
    body: QuotaBody, caller: Caller, parts: Parts, *, force: Force = False
) -> Response:
    """Set a limit, or take it away. Lowering one stops nothing that runs."""
    if body.unlimited == (body.limit is not None):
        raise invalid(
            "limit", body.limit, "contradicts unlimited", "give limit, or unlimited: true"
        )
    subject = f"user={body.user or '*'} team={body.team or '*'} priority={body.priority or '*'}"
    async with parts.changing(
        caller, "quota.set", f"group={body.group or '*'} {subject}"
    ) as change:
        require_admin(caller, "set quotas")
        if not force:
            async with parts.store.transaction() as tx:
                # A limit of a user who no longer exists can be removed.
                if not (body.unlimited and await _is_limited(tx, body)):
                    users = {"user": body.user} if body.user else {}
                    teams = {"team": body.team} if body.team else {}
                    groups = {"group": body.group} if body.group else {}
                    await require_known(tx, users=users, teams=teams, groups=groups)
        change.detail = "unlimited" if body.unlimited else f"{body.limit} {body.unit or 'gpus'}"
        reply = await parts.commands.ask(set_quota(body, caller), m.SetQuotaReply)
    return answer({"version": reply.version})


async def _is_limited(tx: Tx, body: QuotaBody) -> bool:
    """True if a limit is set for exactly the names of the body."""
    names = {"group": body.group, "user": body.user, "team": body.team}
    where = [Where(column, Op.EQ, name or "") for column, name in names.items()]
    return bool(await tx.select(QuotaRow, Where("removed", Op.EQ, False), *where, limit=1))

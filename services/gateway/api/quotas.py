"""Quotas: caps on what users and teams may hold at once, and grants, which permit it."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from libs.contracts import messages as m
from libs.contracts.messages import FieldError
from libs.store.port import Op, Tx, Where
from services.gateway import store as rows_of
from services.gateway import views
from services.gateway.api import quota_shapes as shapes
from services.gateway.api.deps import (
    Caller,
    Force,
    PageQuery,
    Parts,
    allows,
    answer,
    answer_page,
    router_of,
)
from services.gateway.api.query_parameters import NameQuery
from services.gateway.bodies import QuotaBody
from services.gateway.command_client import set_quota
from services.gateway.conversion import quota_row
from services.gateway.known_names import names_near, require_findable, require_known
from services.gateway.permissions import Action
from services.gateway.problems import CONFLICT, ProblemError, absent, invalid
from services.gateway.rows import QuotaRow, TaskRow, UserRow
from services.gateway.store import Sort

router = router_of("quotas")
OF_TASKS = ("team", "group")
# Each change of any quota has a version of its own.
BY_VERSION = Sort("version", False, "version", False)


@router.get("/quotas", response_model=shapes.QuotaPage)
@allows(Action.READ_CLUSTER)
async def list_quotas(
    caller: Caller,
    parts: Parts,
    paging: PageQuery,
    *,
    group: NameQuery = None,
    user: NameQuery = None,
    team: NameQuery = None,
) -> Response:
    """Every cap and grant, oldest change first. A filter finds rows with just that name."""
    where = [Where("removed", Op.EQ, False)]
    for column, value in (("group", group), ("user", user), ("team", team)):
        if value is not None:
            where.append(Where(column, Op.EQ, value))
    async with parts.store.transaction() as tx:
        page = await rows_of.page(tx, QuotaRow, where, BY_VERSION, paging)
        if not page.rows and paging.cursor is None:
            await require_findable(
                tx,
                caller,
                users={"user": user} if user else {},
                teams={"team": team} if team else {},
                groups={"group": group} if group else {},
                kept=[(TaskRow, "user", "owner"), *((TaskRow, each, each) for each in OF_TASKS)],
            )
    return answer_page(
        page.rows,
        views.quota,
        lambda row: str(row.version),
        page.next_cursor,
        left_out=tx.unreadable,
    )


@router.get("/quotas/explain", response_model=shapes.QuotaExplanation)
@allows(Action.EXPLAIN_QUOTA)
async def explain_quota(
    caller: Caller,
    parts: Parts,
    *,
    user: NameQuery = None,
    group: NameQuery = None,
) -> Response:
    """What a user may hold in each group at each level, and which rows decide that; left out: the
    caller. The scheduler computes it as it decides. Of others, who may not see everybody's usage
    sees no amount that is held, and who may not see accounts no team but the own."""
    name = user or caller.user
    is_own = name == caller.user
    sees_usage = is_own or caller.reaches_all(Action.READ_USAGE)
    sees_users = is_own or caller.reaches_all(Action.READ_USERS)
    async with parts.store.transaction() as tx:
        row = await tx.get(UserRow, name)
        if row is None and user:
            near = await names_near(tx, UserRow, name) if sees_users else ()
            raise absent("user", "user", name, near)
        await require_known(tx, groups={"group": group} if group else {})
    team = row.team if row is not None else ""
    sees_team = sees_users or (team == caller.team and caller.sees_team)
    query = m.ExplainQuota(user=name, team=team, group=group or "")
    reply = await parts.commands.ask(query, m.ExplainQuotaReply)
    return answer(
        {
            "user": name,
            "team": (team or None) if sees_team else None,
            "explained_at": views.rfc3339(reply.explained_at),
            "permissions": [
                views.permission(each, amounts=sees_usage, team=sees_team)
                for each in reply.permissions
            ],
        }
    )


@router.put("/quotas", response_model=shapes.QuotaSet)
@allows(Action.CHANGE_QUOTAS, inside=True)
async def put_quota(
    body: QuotaBody, caller: Caller, parts: Parts, *, force: Force = False
) -> Response:
    """Set a cap or a grant, or remove it. Lowering one stops nothing that runs.

    A grant without any name is the site's default.
    """
    _require_one_amount(body)
    subject = f"user={body.user or '*'} team={body.team or '*'} priority={body.priority or '*'}"
    kind = "grant " if body.grant else ""
    async with parts.changing(
        caller, "quota.set", f"{kind}group={body.group or '*'} {subject}"
    ) as change:
        async with parts.store.transaction() as tx:
            row = await _row_of(tx, body)
            # A row of a user who no longer exists can be removed.
            if not force and not (body.removes and row is not None):
                users = {"user": body.user} if body.user else {}
                teams = {"team": body.team} if body.team else {}
                groups = {"group": body.group} if body.group else {}
                await require_known(tx, users=users, teams=teams, groups=groups, forcible=True)
            if not force and row is None:
                await _require_enabled(tx, body.user)
        change.detail = _amount(body)
        command = set_quota(body, caller)
        new = quota_row(command.quota, caller.user, parts.clock.now())
        change.note(None if row is None else _state(row), None if body.removes else _state(new))
        reply = await change.ask(command, m.SetQuotaReply)
    return answer({"version": reply.version})


def _require_one_amount(body: QuotaBody) -> None:
    """Raise a problem unless the body has exactly one of limit, unlimited and remove."""
    if (body.limit is not None) + body.unlimited + body.remove == 1:
        return
    fix = "give one of limit, unlimited: true and remove: true"
    raise invalid("limit", body.limit, "is missing, or contradicts unlimited or remove", fix)


def _amount(body: QuotaBody) -> str:
    """The change for the audit trail: ``4 gpus until 2026-12-01 00:00:00+00:00``."""
    if body.removes:
        return "removed"
    up_to = f" up to {body.level_max}" if body.level_max else ""
    amount = f"unlimited{up_to}" if body.unlimited else f"{body.limit} {body.unit or 'gpus'}"
    return amount + (f" until {body.expires_at}" if body.expires_at else "")


async def _require_enabled(tx: Tx, name: str | None) -> None:
    """409 for the first row of a user who is disabled. Only such users are removed, and the row
    could come after the removal has found none: the next user of that name would meet it."""
    user = await tx.get(UserRow, name) if name else None
    if user is None or not user.disabled:
        return
    message = f"{user.name} is disabled, and may be removed at any time"
    fix = f"enable the user first: PATCH /v1/users/{user.name} with disabled: false; or give force"
    error = FieldError(field="user", value=user.name, message=message, fix=fix)
    raise ProblemError(CONFLICT, f"user: {message}; {fix}", [error])


async def _row_of(tx: Tx, body: QuotaBody) -> QuotaRow | None:
    """The row of this kind that is set for exactly the names and the priority of the body."""
    names = {"group": body.group, "user": body.user, "team": body.team, "priority": body.priority}
    where = [Where(column, Op.EQ, name or "") for column, name in names.items()]
    where += [Where("removed", Op.EQ, value=False), Where("grant", Op.EQ, body.grant)]
    rows = await tx.select(QuotaRow, *where, limit=1)
    return rows[0] if rows else None


def _state(row: QuotaRow) -> dict[str, Any]:
    """What a row says, without what quota adds to it."""
    added = ("version", "changed_by", "changed_at")
    return {name: value for name, value in views.quota(row).items() if name not in added}

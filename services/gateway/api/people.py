"""Users, teams, tokens, the audit trail. Administrators manage them; everybody sees themselves."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from starlette.responses import Response

from libs.contracts.messages import FieldError
from libs.contracts.wording import no_such
from libs.store.port import Op, Order, Tx, Where
from services.gateway import store as rows_of
from services.gateway import views
from services.gateway.api import shapes
from services.gateway.api.deps import Caller, PageQuery, Parts, answer, answer_page, router_of
from services.gateway.auth import FIRST_ADMIN, audit, require_admin, team_exists, token_hash
from services.gateway.bodies import TeamBody, TokenBody, UserBody, UserChangeBody
from services.gateway.json_values import rfc3339
from services.gateway.known_names import names_of
from services.gateway.problems import CONFLICT, ProblemError, absent, invalid, taken
from services.gateway.rows import AuditRow, TeamRow, TokenRow, UserRow
from services.gateway.store import Sort

router = router_of("people")
BY_NAME = Sort("name", False, "name", False)
NEWEST = Sort("id", True, "id", True)


@router.get("/whoami", response_model=shapes.WhoAmI)
async def whoami(caller: Caller, parts: Parts) -> Response:
    """Whose token this is, and as which user of the gateway's machine tasks run (null: they run in
    pods, with users of their own)."""
    return answer(
        {
            "user": caller.user,
            "role": caller.role,
            "team": caller.team or None,
            "token": {
                "id": caller.token_id,
                "name": caller.token_name,
                "expires_at": rfc3339(caller.expires_at),
            },
            "tasks_run_as": parts.settings.tasks_run_as or None,
        }
    )


@router.get("/users", response_model=shapes.Page)
async def list_users(caller: Caller, parts: Parts, paging: PageQuery) -> Response:
    """Users; members see themselves."""
    where = [] if caller.is_admin else [Where("name", Op.EQ, caller.user)]
    async with parts.store.transaction() as tx:
        page = await rows_of.page(tx, UserRow, where, BY_NAME, paging)
    return answer_page(page.rows, views.user, lambda row: row.name, page.next_cursor)


@router.post("/users", status_code=201, response_model=dict[str, Any])
async def add_user(body: UserBody, caller: Caller, parts: Parts) -> Response:
    """Add a user, who can do nothing before a token exists."""
    require_admin(caller, "add users")
    async with parts.store.transaction() as tx:
        if await tx.get(UserRow, body.name) is not None:
            fix = f"change it with PATCH /v1/users/{body.name}, or choose another name"
            raise taken("name", "user", body.name, fix)
        most = parts.settings.users_max
        if await tx.select(UserRow, order_by=(Order("name"),), offset=most - 1, limit=1):
            raise ProblemError(
                CONFLICT, f"there are {most} users, as many as SHIFTWORK_GATEWAY_USERS_MAX allows"
            )
        await _check_team(tx, body.team or "")
        row = UserRow(body.name, body.role, body.team or "", False, tx.now)
        tx.put(row)
        audit(tx, parts.mint, caller, action="user.add", target=body.name, detail=body.role)
    return answer(views.user(row), 201, {"location": f"/v1/users/{body.name}"})


@router.get("/users/{name}", response_model=dict[str, Any])
async def show_user(name: str, caller: Caller, parts: Parts) -> Response:
    """One user."""
    if name != caller.user:
        require_admin(caller, "see other users")
    async with parts.store.transaction() as tx:
        return answer(views.user(await _user(tx, name)))


@router.patch("/users/{name}", response_model=dict[str, Any])
async def change_user(name: str, body: UserChangeBody, caller: Caller, parts: Parts) -> Response:
    """Another role or team, or shut out. Tasks that run go on."""
    require_admin(caller, "change users")
    async with parts.store.transaction() as tx:
        row = await _user(tx, name)
        if name == FIRST_ADMIN and (body.disabled or body.role == "member"):
            field = "disabled" if body.disabled else "role"
            message = f"{FIRST_ADMIN} stays an administrator: the admin token's file speaks for it"
            error = FieldError(field=field, value="", message=message, fix="choose another user")
            raise ProblemError(CONFLICT, message, [error])
        await _check_team(tx, body.team or "")
        row = replace(
            row,
            role=body.role or row.role,
            team=row.team if body.team is None else body.team,
            disabled=row.disabled if body.disabled is None else body.disabled,
        )
        tx.put(row)
        audit(
            tx, parts.mint, caller, action="user.change", target=name, detail=str(views.user(row))
        )
    return answer(views.user(row))


async def _user(tx: Tx, name: str, field: str = "name") -> UserRow:
    row = await tx.get(UserRow, name)
    if row is None:
        raise absent(field, "user", name, await names_of(tx, UserRow))
    return row


async def _check_team(tx: Tx, team: str) -> None:
    if not await team_exists(tx, team):
        error = no_such("team", "team", team, await names_of(tx, TeamRow))
        fix = f"{error.fix}; add it with POST /v1/teams, or leave it out"
        raise invalid("team", team, error.message, fix)


@router.get("/teams", response_model=shapes.Page)
async def list_teams(caller: Caller, parts: Parts, paging: PageQuery) -> Response:
    """Teams."""
    del caller
    async with parts.store.transaction() as tx:
        page = await rows_of.page(tx, TeamRow, (), BY_NAME, paging)
    return answer_page(page.rows, _team, lambda row: row.name, page.next_cursor)


def _team(row: TeamRow) -> dict[str, Any]:
    return {"name": row.name, "created_at": rfc3339(row.created_at)}


@router.post("/teams", status_code=201, response_model=dict[str, Any])
async def add_team(body: TeamBody, caller: Caller, parts: Parts) -> Response:
    """A new team."""
    require_admin(caller, "add teams")
    async with parts.store.transaction() as tx:
        if await tx.get(TeamRow, body.name) is not None:
            raise taken("name", "team", body.name, "choose another name")
        tx.put(TeamRow(body.name, tx.now))
        audit(tx, parts.mint, caller, action="team.add", target=body.name, detail="")
        created = rfc3339(tx.now)
    return answer({"name": body.name, "created_at": created}, 201)


@router.delete("/teams/{name}", status_code=204)
async def remove_team(name: str, caller: Caller, parts: Parts) -> Response:
    """Remove a team that has no users."""
    require_admin(caller, "remove teams")
    async with parts.store.transaction() as tx:
        if await tx.get(TeamRow, name) is None:
            raise absent("name", "team", name, await names_of(tx, TeamRow))
        members = await tx.select(UserRow, Where("team", Op.EQ, name), limit=1)
        if members:
            user = members[0].name
            message = f"{user} and perhaps others are in {name}"
            fix = f"move them first: PATCH /v1/users/{user} with another team"
            error = FieldError(field="name", value=name, message=message, fix=fix)
            raise ProblemError(CONFLICT, f"{message}; {fix}", [error])
        tx.delete(TeamRow, name)
        audit(tx, parts.mint, caller, action="team.remove", target=name, detail="")
    return Response(status_code=204)


@router.get("/tokens", response_model=shapes.Page)
async def list_tokens(caller: Caller, parts: Parts, paging: PageQuery) -> Response:
    """Tokens without their secrets; members see their own."""
    where = [] if caller.is_admin else [Where("user", Op.EQ, caller.user)]
    async with parts.store.transaction() as tx:
        page = await rows_of.page(tx, TokenRow, where, NEWEST, paging)
    return answer_page(page.rows, views.token, lambda row: row.id, page.next_cursor)


@router.post("/tokens", status_code=201, response_model=dict[str, Any])
async def add_token(body: TokenBody, caller: Caller, parts: Parts) -> Response:
    """A new token. Its secret is in this answer and nowhere else, ever."""
    require_admin(caller, "make tokens")
    secret = parts.mint.secret()
    async with parts.store.transaction() as tx:
        user = await _user(tx, body.user, "user")
        most = parts.settings.tokens_per_user_max
        of_user = Where("user", Op.EQ, user.name), Where("revoked_at", Op.IS_NULL)
        if len(await tx.select(TokenRow, *of_user, limit=most)) >= most:
            detail = f"{user.name} has {most} tokens; revoke some with DELETE /v1/tokens/ID"
            raise ProblemError(CONFLICT, detail)
        seconds = body.expires_in_seconds
        row = TokenRow(
            token_hash=token_hash(secret),
            id=parts.mint.id(),
            user=user.name,
            name=body.name,
            created_by=caller.user,
            created_at=tx.now,
            expires_at=None if seconds is None else tx.now + timedelta(seconds=seconds),
            revoked_at=None,
        )
        tx.put(row)
        audit(tx, parts.mint, caller, action="token.add", target=row.id, detail=f"for {user.name}")
    headers = {"cache-control": "no-store", "location": f"/v1/tokens/{row.id}"}
    return answer({**views.token(row), "token": secret}, 201, headers)


@router.delete("/tokens/{token_id}", status_code=204)
async def revoke_token(token_id: str, caller: Caller, parts: Parts) -> Response:
    """Revoke a token: refused from now on, at the latest in a few seconds everywhere."""
    async with parts.store.transaction() as tx:
        row = await rows_of.token_by_id(tx, token_id)
        if row is None or (row.user != caller.user and not caller.is_admin):
            raise absent("token_id", "token", token_id)
        if row.revoked_at is None:
            tx.put(replace(row, revoked_at=tx.now))
            audit(
                tx,
                parts.mint,
                caller,
                action="token.revoke",
                target=token_id,
                detail=f"of {row.user}",
            )
    return Response(status_code=204)


@router.get("/audit", response_model=shapes.Page)
async def audit_trail(caller: Caller, parts: Parts, paging: PageQuery) -> Response:
    """The audit trail: each change with the user that requested it, newest first."""
    require_admin(caller, "read the audit trail")
    async with parts.store.transaction() as tx:
        page = await rows_of.page(tx, AuditRow, (), NEWEST, paging)
    return answer_page(page.rows, views.audit, lambda row: row.id, page.next_cursor)

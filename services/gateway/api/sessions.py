"""A browser's own session, and the list of all sessions of its user."""

from __future__ import annotations

from dataclasses import replace

from fastapi import Request
from starlette.responses import Response

from libs.store.port import Op, Where
from services.gateway import store as rows_of
from services.gateway.api import login_shapes as shapes
from services.gateway.api.deps import (
    Caller,
    PageQuery,
    Parts,
    allows,
    answer,
    answer_page,
    retried,
    router_of,
)
from services.gateway.api.login import begin, current, give
from services.gateway.audit import audit
from services.gateway.auth import Identity, unauthenticated
from services.gateway.browser_sessions import (
    cookie_of,
    end,
    ends_at,
    require_own_site,
    session_hash,
    set_cookie,
)
from services.gateway.json_values import rfc3339
from services.gateway.permissions import Action, Reach
from services.gateway.problems import CONFLICT, ProblemError, absent
from services.gateway.rows import SessionRow, TokenUseRow, UserRow
from services.gateway.store import NEWEST

LOGOUT_HEADER = "x-shiftwork-logout"
router = router_of("login")


@router.get("/session", response_model=shapes.CurrentSession)
@allows(Action.KNOW_ONESELF)
async def read_session(request: Request, caller: Caller, parts: Parts) -> Response:
    """Who is logged in here, and the CSRF token of the session."""
    secret = cookie_of(parts.settings, request.scope) if caller.is_session else ""
    reply = answer(current(caller, secret))
    reply.headers["cache-control"] = "no-store"
    return reply


@router.post("/session", response_model=shapes.CurrentSession)
@allows(Action.KNOW_ONESELF)
async def log_in_with_token(request: Request, caller: Caller, parts: Parts) -> Response:
    """Begin a browser's session with the bearer token of this request. The session may do what the
    token may, and ends with it at the latest; only a login makes tokens and passwords that last
    longer."""
    if caller.is_session:
        raise ProblemError(CONFLICT, "this browser has a session; log out first")
    require_own_site(parts.settings, request.scope)

    async def write() -> tuple[SessionRow, str]:
        async with parts.store.transaction() as tx:
            user = await tx.get(UserRow, caller.user)
            if user is None or user.disabled:
                raise unauthenticated(f"user {caller.user} is disabled")
            secret = await begin(parts, tx, user, caller.address, "token", token=caller)
            row = await tx.get(SessionRow, session_hash(secret))
            assert row is not None
            return row, secret

    row, secret = await retried(write)
    reply = answer(current(replace(caller, expires_at=row.expires_at), secret))
    give(parts, request, reply, secret)
    return reply


@router.delete("/session", status_code=204)
@allows(Action.KNOW_ONESELF)
async def log_out(request: Request, caller: Caller, parts: Parts) -> Response:
    """Log out: this browser's session ends, and with it the streams that it has opened. The header
    ``x-shiftwork-logout`` has the provider's page on which the browser can log out there, too."""
    if not caller.is_session:
        fix = f"revoke the token: DELETE /v1/tokens/{caller.token_id}"
        raise ProblemError(CONFLICT, f"a bearer token has no session; {fix}")
    async with parts.store.transaction() as tx:
        row = await tx.get(SessionRow, caller.digest)
        if row is not None:
            end(tx, row)
            audit(tx, parts.mint, caller, action="session.end", target=row.id)
    headers = {"set-cookie": set_cookie(parts.settings, request.scope, "", 0)}
    if row is not None and row.made_by == "oidc" and parts.oidc is not None:
        at_provider = await parts.oidc.logout_address()
        headers |= {LOGOUT_HEADER: at_provider} if at_provider else {}
    return Response(status_code=204, headers=headers)


@router.get("/sessions", response_model=shapes.SessionPage)
@allows(Action.READ_TOKENS)
async def list_sessions(caller: Caller, parts: Parts, paging: PageQuery) -> Response:
    """Browser sessions that have not ended, newest first; administrators see everybody's. A page
    may have fewer than ``limit``."""
    where = [] if caller.reach is Reach.ALL else [Where("user", Op.EQ, caller.user)]
    async with parts.store.transaction() as tx:
        page = await rows_of.page(tx, SessionRow, where, NEWEST, paging)
        ids = [row.id for row in page.rows]
        used = await tx.select(TokenUseRow, Where("token_id", Op.IN, ids)) if ids else []
    uses = {use.token_id: use for use in used}
    idle = parts.settings.session_idle_seconds
    live = [row for row in page.rows if ends_at(row, uses.get(row.id), idle) > tx.now]
    return answer_page(
        live,
        lambda row: _view(row, uses.get(row.id), caller),
        lambda row: row.id,
        page.next_cursor,
        left_out=tx.unreadable,
    )


def _view(row: SessionRow, use: TokenUseRow | None, caller: Identity) -> dict[str, object]:
    return {
        "id": row.id,
        "user": row.user,
        "made_by": row.made_by,
        "created_at": rfc3339(row.created_at),
        "expires_at": rfc3339(row.expires_at),
        "last_used_at": rfc3339(use.used_at) if use else None,
        "address": (use.address if use else row.address) or None,
        "current": caller.is_session and row.id == caller.token_id,
    }


@router.delete("/sessions/{session_id}", status_code=204)
@allows(Action.CHANGE_TOKENS)
async def end_session(session_id: str, caller: Caller, parts: Parts) -> Response:
    """End a session: refused from now on, at the latest in a few seconds everywhere."""
    async with parts.store.transaction() as tx:
        found = await tx.select(SessionRow, Where("id", Op.EQ, session_id), limit=1)
        row = found[0] if found else None
        if row is None or (row.user != caller.user and caller.reach is not Reach.ALL):
            raise absent("session_id", "session", session_id)
        end(tx, row)
        audit(
            tx,
            parts.mint,
            caller,
            action="session.end",
            target=row.id,
            detail=f"of {row.user}",
        )
    return Response(status_code=204)

"""Bearer tokens. Everybody makes and revokes their own, administrators also those of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from libs.contracts.messages import FieldError
from libs.store.port import Op, Tx, Where
from services.gateway import store as rows_of
from services.gateway import views
from services.gateway.api import people_shapes as shapes
from services.gateway.api.deps import (
    Caller,
    PageQuery,
    Parts,
    allows,
    answer,
    answer_page,
    router_of,
)
from services.gateway.api.people import user_or_404
from services.gateway.api.query_parameters import NameQuery
from services.gateway.audit import audit
from services.gateway.auth import Identity, not_permitted, token_hash
from services.gateway.bodies import TokenBody
from services.gateway.browser_sessions import end_of_token
from services.gateway.permissions import (
    Action,
    Reach,
    Role,
    Scope,
    refusal_to_reach_others,
    roles_of,
    scopes_of,
)
from services.gateway.problems import CONFLICT, FORBIDDEN, ProblemError, absent, invalid
from services.gateway.rows import TokenRow, TokenUseRow, UserRow
from services.gateway.settings import GatewaySettings
from services.gateway.store import NEWEST

router = router_of("people")


@router.get("/tokens", response_model=shapes.TokenPage)
@allows(Action.READ_TOKENS)
async def list_tokens(
    caller: Caller,
    parts: Parts,
    paging: PageQuery,
    *,
    user: NameQuery = None,
    revoked: Annotated[bool | None, Query(description="left out: revoked ones, too")] = None,
) -> Response:
    """Tokens without their secrets, newest first; administrators see everybody's."""
    if user is not None and user != caller.user and caller.reach is not Reach.ALL:
        raise not_permitted(refusal_to_reach_others(Action.READ_TOKENS, caller.user))
    where = [] if caller.reach is Reach.ALL else [Where("user", Op.EQ, caller.user)]
    if user is not None:
        where.append(Where("user", Op.EQ, user))
    if revoked is not None:
        where.append(Where("revoked_at", Op.NOT_NULL if revoked else Op.IS_NULL))
    async with parts.store.transaction() as tx:
        page = await rows_of.page(tx, TokenRow, where, NEWEST, paging)
        if user is not None and not page.rows:
            await user_or_404(tx, user, "user")
        ids = [row.id for row in page.rows]
        used = await tx.select(TokenUseRow, Where("token_id", Op.IN, ids)) if ids else []
    uses = {use.token_id: use for use in used}
    return answer_page(
        page.rows,
        lambda row: views.token(row, uses.get(row.id)),
        lambda row: row.id,
        page.next_cursor,
        left_out=tx.unreadable,
    )


@router.post("/tokens", status_code=201, response_model=shapes.NewToken)
@allows(Action.CHANGE_TOKENS)
async def add_token(body: TokenBody, caller: Caller, parts: Parts) -> Response:
    """A new token. Its secret is in this answer and nowhere else, ever. It can do no more than the
    token that makes it, and does not outlive it."""
    owner = body.user or caller.user
    if owner != caller.user and caller.reach is not Reach.ALL:
        raise not_permitted(refusal_to_reach_others(Action.CHANGE_TOKENS, caller.user))
    scopes = _scopes(body, caller)
    secret = parts.mint.secret()
    async with parts.store.transaction() as tx:
        user = await user_or_404(tx, owner, "user")
        if user.archived:
            fix = f"bring the user back first: PATCH /v1/users/{owner} with archived: false"
            raise ProblemError(CONFLICT, f"user {owner} is archived; {fix}")
        _require_useful(scopes if body.scopes else (), user)
        await require_below_token_limit(tx, parts.settings, owner)
        row = TokenRow(
            token_hash=token_hash(secret),
            id=parts.mint.id(),
            user=owner,
            name=body.name,
            created_by=caller.user,
            created_at=tx.now,
            expires_at=_expiry(body, caller, tx.now, parts.settings.login_token_seconds),
            revoked_at=None,
            scopes=scopes,
        )
        tx.put(row)
        shown = views.token(row)
        audit(
            tx,
            parts.mint,
            caller,
            action="token.add",
            target=row.id,
            detail=f"for {owner}",
            after=shown,
        )
    headers = {"cache-control": "no-store", "location": f"/v1/tokens/{row.id}"}
    return answer({**shown, "token": secret}, 201, headers)


async def require_below_token_limit(tx: Tx, settings: GatewaySettings, user: str) -> None:
    """409 for a user with as many valid tokens as the site allows. Expired ones do not count."""
    most = settings.tokens_per_user_max
    of_user = Where("user", Op.EQ, user), Where("revoked_at", Op.IS_NULL)
    held = 0
    for until in (Where("expires_at", Op.IS_NULL), Where("expires_at", Op.GT, tx.now)):
        held += len(await tx.select(TokenRow, *of_user, until, limit=most))
    if held >= most:
        fix = "revoke some with `shiftwork token revoke ID` (DELETE /v1/tokens/ID)"
        raise ProblemError(CONFLICT, f"{user} has {most} tokens; {fix}")


def _scopes(body: TokenBody, caller: Identity) -> tuple[str, ...]:
    """The scopes of a new token, which are among those of the caller's."""
    known = [scope.value for scope in Scope]
    wanted = tuple(sorted(set(body.scopes), key=known.index))
    held = {scope.value for scope in caller.scopes}
    if not held:
        return wanted
    excess = [scope for scope in wanted if scope not in {*held, Scope.READ.value}]
    if excess:
        message = f"is not among the scopes of the token that asks: {', '.join(sorted(held))}"
        error = FieldError(field="scopes", value=excess[0], message=message, fix="leave it out")
        raise ProblemError(FORBIDDEN, f"scopes: {excess[0]} {message}; leave it out", [error])
    return wanted or tuple(scope.value for scope in caller.scopes)


def _require_useful(scopes: Sequence[str], user: UserRow) -> None:
    """422 for a scope that does nothing for this user: a token with it would only seem to."""
    role = Role(user.role)
    useless = [Scope(scope) for scope in scopes if scope not in scopes_of(role)]
    if not useless:
        return
    others = roles_of(useless[0])
    noun = "role" if len(others) == 1 else "roles"
    raise invalid(
        "scopes",
        useless[0].value,
        f"is of use to the {noun} {' and '.join(others)}, and {user.name} has the role {role}",
        f"choose of {', '.join(scopes_of(role))}, or ask an administrator for the role {others[0]}",
    )


def _expiry(
    body: TokenBody, caller: Identity, now: datetime, login_seconds: float
) -> datetime | None:
    """When a new token expires: at the latest with the caller's. A browser's session is no bound,
    because its user has logged in; ``login_seconds`` is."""
    seconds = body.expires_in_seconds
    if caller.is_session and not caller.is_of_token:
        if seconds is not None and seconds > login_seconds:
            message = "is longer than a token that a browser's session makes may last"
            fix = f"give at most {int(login_seconds)} s, or use a token"
            raise invalid("expires_in_seconds", seconds, message, fix)
        return now + timedelta(seconds=login_seconds if seconds is None else seconds)
    if seconds is None:
        return caller.expires_at
    found = now + timedelta(seconds=seconds)
    if caller.expires_at is not None and found > caller.expires_at:
        left = max(0, int((caller.expires_at - now).total_seconds()))
        message = "is longer than the token that asks is valid"
        fix = f"give at most {left} s, or leave it out"
        raise invalid("expires_in_seconds", seconds, message, fix)
    return found


@router.delete("/tokens/{token_id}", status_code=204)
@allows(Action.CHANGE_TOKENS)
async def revoke_token(token_id: str, caller: Caller, parts: Parts) -> Response:
    """Revoke a token: refused from now on, at the latest in a few seconds everywhere."""
    async with parts.store.transaction() as tx:
        row = await rows_of.token_by_id(tx, token_id)
        if row is None or (row.user != caller.user and caller.reach is not Reach.ALL):
            raise absent("token_id", "token", token_id)
        if row.revoked_at is None:
            after = replace(row, revoked_at=tx.now)
            await end_of_token(tx, row.user, row.id)
            tx.put(after)
            audit(
                tx,
                parts.mint,
                caller,
                action="token.revoke",
                target=token_id,
                detail=f"of {row.user}",
                before=views.token(row),
                after=views.token(after),
            )
    return Response(status_code=204)

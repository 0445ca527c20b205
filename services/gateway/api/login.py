"""Login of people: at an OpenID Connect provider, or with a password where the site has them.

Both end in a browser's session. Nothing here needs a token; each address may begin so many.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import RedirectResponse, Response

from libs.store.port import Tx
from services.gateway import browser_sessions, views
from services.gateway.api import login_shapes as shapes
from services.gateway.api.deps import (
    Context,
    Parts,
    allows,
    answer,
    any_query,
    retried,
    router_of,
)
from services.gateway.api.guard import address_of
from services.gateway.audit import audit
from services.gateway.auth import Identity, session_token_id, unauthenticated
from services.gateway.bodies import PasswordLoginBody
from services.gateway.external_users import Account, Admitted, account_of, user_of
from services.gateway.json_values import rfc3339
from services.gateway.login_delays import network_of
from services.gateway.oidc import (
    BEGIN,
    NEXT_CHARACTERS_MAX,
    NEXT_DEFAULT,
    LoginState,
    Provider,
    failed_login,
    local_path,
    read_state,
)
from services.gateway.passwords import Line
from services.gateway.permissions import Action, Role
from services.gateway.problems import (
    NOT_FOUND,
    TOO_MANY,
    UNAUTHENTICATED,
    ProblemError,
)
from services.gateway.rejected_requests import NOBODY, RejectedRequest
from services.gateway.rows import (
    LoginUseRow,
    PasswordRow,
    SessionRow,
    UserRow,
)

router = router_of("login")
STATE_COOKIE = "shiftwork-login"
SECRET_BYTES = 32
# In the audit trail.
LOGIN_ACTION = "login.password"
UNKNOWN_USER = "unknown user"
REDIRECT: dict[int | str, dict[str, Any]] = {
    303: {"description": "to the provider, or back to this site"},
}


def limit_logins(parts: Context, address: str) -> None:
    """429 for an address that begins too many logins."""
    if not parts.logins.take(network_of(address)):
        detail = f"{address} begins too many logins; try again"
        raise ProblemError(TOO_MANY, detail, headers={"retry-after": "2"})


@router.get("/login", response_model=shapes.LoginWays)
@allows(Action.LOG_IN)
async def ways(parts: Parts) -> Response:
    """How people can log in here. Needs no token."""
    found = parts.settings
    oidc = {"label": found.oidc_label, "url": BEGIN} if parts.oidc else None
    return answer({"oidc": oidc, "password": found.passwords})


Next = Annotated[
    str,
    Query(max_length=NEXT_CHARACTERS_MAX, description="a path of this site to go on with"),
]


@router.get("/login/oidc", status_code=303, response_class=RedirectResponse, responses=REDIRECT)
@allows(Action.LOG_IN)
async def begin_oidc(
    request: Request, parts: Parts, next_path: Annotated[Next, Query(alias="next")] = NEXT_DEFAULT
) -> Response:
    """Send a browser to the login provider. Needs no token."""
    provider = _provider(parts)
    path = local_path(next_path)
    limit_logins(parts, address_of(request.scope))
    settings = parts.settings
    now = parts.clock.now()
    secret = secrets.token_urlsafe(SECRET_BYTES)
    login = LoginState(secret, path, now + timedelta(seconds=settings.login_seconds))
    reply = _redirect(await provider.address(login))
    signed = login.signed(settings.login_state_key())
    reply.headers.append(
        "set-cookie",
        browser_sessions.set_cookie(
            settings, request.scope, signed, settings.login_seconds, STATE_COOKIE
        ),
    )
    return reply


@router.get(
    "/login/oidc/callback",
    status_code=303,
    response_class=RedirectResponse,
    responses=REDIRECT,
)
@allows(Action.LOG_IN)
@any_query
async def end_oidc(request: Request, parts: Parts) -> Response:
    """Where the provider sends browsers back to. Begins a session. Needs no token."""
    provider = _provider(parts)
    address = address_of(request.scope)
    limit_logins(parts, address)
    settings = parts.settings
    cookie = browser_sessions.cookie_of(settings, request.scope, STATE_COOKIE)
    login = read_state(cookie, settings.login_state_key(), parts.clock.now())
    claims = await provider.claims(login, dict(request.query_params))
    account = account_of(settings, claims)

    async def write() -> str:
        async with parts.store.transaction() as tx:
            used = hashlib.sha256(login.state.encode()).hexdigest()
            if await tx.get(LoginUseRow, used) is not None:
                raise failed_login("it was completed already")
            tx.put(LoginUseRow(used, tx.now))
            admitted = await user_of(tx, settings, account)
            _audit_login(parts, tx, admitted, account, address)
            return await begin(parts, tx, admitted.user, address, "oidc")

    secret = await retried(write)
    reply = _redirect(login.next)
    give(parts, request, reply, secret)
    reply.headers.append(
        "set-cookie", browser_sessions.set_cookie(settings, request.scope, "", 0, STATE_COOKIE)
    )
    return reply


def _audit_login(
    parts: Context, tx: Tx, admitted: Admitted, account: Account, address: str
) -> None:
    """What a login at the provider has changed, as the change of whoever logs in."""
    user, before, team = admitted.user, admitted.before, admitted.new_team
    entries: list[tuple[str, str, Mapping[str, Any] | None, Mapping[str, Any] | None]] = []
    if team is not None:
        entries.append(("team.add", team.name, None, views.team(team)))
    if before is None:
        entries.append(("user.add", user.name, None, views.user(user)))
    elif before != user:
        entries.append(("user.change", user.name, views.user(before), views.user(user)))
    if admitted.is_linked:
        entries.append(("user.link", user.name, None, None))
    identity = identity_of(user, address, "")
    detail = f"{account.issuer} subject {account.subject}"
    for action, target, was, now in entries:
        audit(
            tx,
            parts.mint,
            identity,
            action=action,
            target=target,
            detail=detail,
            before=was,
            after=now,
        )


def _provider(parts: Context) -> Provider:
    if parts.oidc is None:
        fix = "an administrator sets SHIFTWORK_GATEWAY_OIDC_ISSUER; tokens work without"
        raise ProblemError(NOT_FOUND, f"this site has no login provider; {fix}")
    return parts.oidc


def _redirect(address: str) -> Response:
    headers = {"location": address, "cache-control": "no-store"}
    return Response(status_code=303, headers=headers)


@router.post("/login/password", response_model=shapes.CurrentSession)
@allows(Action.LOG_IN)
async def log_in(request: Request, body: PasswordLoginBody, parts: Parts) -> Response:
    """Begin a session with a password, where the site has them. Needs no token; takes as long for
    users that do not exist. Too many wrong passwords are slowed (429)."""
    passwords = parts.passwords
    passwords.require_enabled()
    browser_sessions.require_own_site(parts.settings, request.scope)
    address = address_of(request.scope)
    try:
        return await _log_in(request, body, parts, address)
    except ProblemError as problem:
        if problem.kind in (UNAUTHENTICATED, TOO_MANY):
            # At the account, if it exists: other names may be passwords in the wrong field.
            name = body.user if passwords.is_user(body.user) else UNKNOWN_USER
            refused = RejectedRequest(
                NOBODY, address, name, problem.kind.type, account=name, action=LOGIN_ACTION
            )
            parts.rejections.note(refused)
            problem.audited = True
        raise


async def _log_in(
    request: Request, body: PasswordLoginBody, parts: Context, address: str
) -> Response:
    """The session's answer. Raises a problem for a wrong password, or one that comes too soon."""
    passwords = parts.passwords
    password = body.password.get_secret_value()
    with passwords.delays.attempt(body.user, address) as tried:
        async with parts.store.transaction() as tx:
            row = await tx.get(PasswordRow, body.user)
            user = await tx.get(UserRow, body.user)
        passwords.tried(body.user, exists=user is not None)
        line = Line(tried.line, tried.is_known)
        is_right = await passwords.matches(row and row.hash, password, line)
        if not is_right or row is None:
            raise unauthenticated("user or password are wrong")
        fresh = await passwords.hash(password, line) if passwords.is_outdated(row.hash) else None

        async def write() -> tuple[UserRow, SessionRow, str]:
            async with parts.store.transaction() as tx:
                user = await tx.get(UserRow, row.user)
                now = await tx.get(PasswordRow, row.user)
                if user is None or user.disabled or now != row:
                    raise unauthenticated("user or password are wrong")
                if fresh is not None:
                    tx.put(replace(row, hash=fresh))
                secret = await begin(parts, tx, user, address, "password")
                found = await tx.get(SessionRow, browser_sessions.session_hash(secret))
                assert found is not None
                return user, found, secret

        user, session, secret = await retried(write)
    identity = replace(identity_of(user, address, session.id), expires_at=session.expires_at)
    reply = answer(current(identity, secret))
    give(parts, request, reply, secret)
    return reply


def current(identity: Identity, secret: str) -> dict[str, object]:
    """A session or token as its user sees it; ``secret`` is the session's."""
    return {
        "user": identity.user,
        "role": identity.role,
        "team": identity.team or None,
        "csrf": browser_sessions.csrf_of(secret) if secret else None,
        "expires_at": rfc3339(identity.expires_at),
    }


def give(parts: Context, request: Request, reply: Response, secret: str) -> None:
    """The session's cookie."""
    seconds = parts.settings.session_seconds
    cookie = browser_sessions.set_cookie(parts.settings, request.scope, secret, seconds)
    reply.headers.append("set-cookie", cookie)
    reply.headers["cache-control"] = "no-store"


async def begin(
    parts: Context,
    tx: Tx,
    user: UserRow,
    address: str,
    by: str,
    *,
    token: Identity | None = None,
) -> str:
    """A session of this user, with its entry in the audit trail, and those of the sessions that it
    ends. Returns its secret. ``token``: with which it is made."""
    secret = secrets.token_urlsafe(SECRET_BYTES)
    session_id = parts.mint.id()
    ended = await browser_sessions.begin(
        tx,
        parts.settings,
        secret,
        session_id,
        user=user.name,
        address=address,
        by=by,
        token_id=session_token_id(token) if token else "",
        scopes=token.scopes if token else (),
        token_expires_at=token.expires_at if token else None,
    )
    identity = identity_of(user, address, session_id)
    most = parts.settings.sessions_per_user_max
    for row in ended:
        audit(
            tx,
            parts.mint,
            identity,
            action="session.end",
            target=row.id,
            detail=f"of {user.name}, who may have {most}: a new login ended the oldest",
        )
    audit(tx, parts.mint, identity, action=f"login.{by}", target=user.name)
    return secret


def identity_of(user: UserRow, address: str, session_id: str) -> Identity:
    """Who logs in, for the audit trail and the answer."""
    return Identity(
        user.name, Role(user.role), user.team, session_id, address=address, is_session=True
    )

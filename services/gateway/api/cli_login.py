"""`shiftwork login`: a token for a command line whose user is logged in in some browser.

The command keeps a secret (``verifier``) and prints an address with its hash (``challenge``). The
browser's page shows a one-time code, which the user types into the terminal. Only code and secret
together give the token, so neither is of use to others, and nothing is stored before a person is
logged in. The browser may be on another machine than the command.
"""

from __future__ import annotations

import base64
import hashlib
import html
import secrets
from datetime import timedelta
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import Query, Request
from starlette.responses import HTMLResponse, Response

from libs.store.port import Op, Tx, Where
from services.gateway import browser_sessions
from services.gateway.api import login_shapes as shapes
from services.gateway.api.deps import Context, Parts, allows, answer, retried, router_of
from services.gateway.api.guard import address_of
from services.gateway.api.login import limit_logins
from services.gateway.api.login_page import CODE, page
from services.gateway.api.tokens import require_below_token_limit
from services.gateway.audit import audit
from services.gateway.auth import Identity, token_hash, unauthenticated
from services.gateway.bodies import LoginCodeBody
from services.gateway.body_types import Label
from services.gateway.json_values import rfc3339
from services.gateway.oidc import BEGIN
from services.gateway.permissions import Action, Role
from services.gateway.problems import NOT_FOUND, ProblemError
from services.gateway.rows import LoginCodeRow, TokenRow, UserRow

router = router_of("login")
CODE_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
CODE_GROUPS, GROUP_LETTERS = 3, 4
# Codes of one user that are good at a time.
CODES_MAX = 5
BODY = """<h1>Log in the command line</h1>
<p>You are <b>{user}</b>. Type this code into the terminal in which you have started
<b>shiftwork login</b>{where}:</p>
<p><code>{code}</code></p>
<p>It is good for {minutes} minutes and one token, which can do all that you can. If you have not
started that command yourself, close this page and give the code to nobody.</p>"""


@router.get(
    "/login/cli",
    response_class=HTMLResponse,
    responses={303: {"description": "to the login, and then back"}},
)
@allows(Action.LOG_IN)
async def show_code(
    request: Request,
    parts: Parts,
    challenge: Annotated[str, Query(pattern="^[A-Za-z0-9_-]{43}$")],
    name: Annotated[Label, Query(max_length=60, description="what the token is for")] = "",
) -> Response:
    """A page with a code for `shiftwork login`. Without a session: first the login."""
    address = address_of(request.scope)
    limit_logins(parts, address)
    caller = await _logged_in(parts, request, address)
    if caller is None:
        return _to_login(parts, challenge, name)
    letters = [secrets.choice(CODE_LETTERS) for _ in range(CODE_GROUPS * GROUP_LETTERS)]
    code = "".join(letters)
    seconds = parts.settings.login_seconds

    async def write() -> None:
        async with parts.store.transaction() as tx:
            codes = await tx.select(LoginCodeRow, Where("user", Op.EQ, caller.user))
            codes = sorted(codes, key=lambda row: row.expires_at)
            for row in codes[: max(0, len(codes) - CODES_MAX + 1)]:
                tx.delete(LoginCodeRow, row.code_hash)
            until = tx.now + timedelta(seconds=seconds)
            tx.put(LoginCodeRow(token_hash(code), caller.user, challenge, name, until))

    await retried(write)
    shown = "-".join(
        code[begin : begin + GROUP_LETTERS] for begin in range(0, len(code), GROUP_LETTERS)
    )
    body = BODY.format(
        user=html.escape(caller.user),
        where=f" on <b>{html.escape(name)}</b>" if name else "",
        code=shown,
        minutes=int(seconds // 60) or 1,
    )
    return page("log in", body)


async def _logged_in(parts: Context, request: Request, address: str) -> Identity | None:
    """Whose browser this is; None if nobody is logged in with it."""
    secret = browser_sessions.cookie_of(parts.settings, request.scope)
    if not secret:
        return None
    try:
        found = await parts.authenticator.session(secret, address)
    except ProblemError:
        return None
    # A code is good for all that its user may do; who has shown a token has shown less.
    return None if found.is_of_token else found


def _to_login(parts: Context, challenge: str, name: str) -> Response:
    if parts.oidc is None:
        fix = "make a token with POST /v1/tokens, or use a password: shiftwork login --user NAME"
        raise ProblemError(NOT_FOUND, f"this site has no login provider; {fix}")
    query = urlencode({"challenge": challenge, "name": name})
    location = f"{BEGIN}?next={quote(f'{CODE}?{query}', safe='')}"
    headers = {"location": location, "cache-control": "no-store"}
    return Response(status_code=303, headers=headers)


@router.post("/login/token", status_code=201, response_model=shapes.LoginToken)
@allows(Action.LOG_IN)
async def redeem(request: Request, body: LoginCodeBody, parts: Parts) -> Response:
    """The token for a code that a browser showed and the secret of the command that requested it.
    Needs no token. A code is good once, also if the secret is wrong."""
    address = address_of(request.scope)
    limit_logins(parts, address)
    code = "".join(each for each in body.code.upper() if each in CODE_LETTERS)
    proof = hashlib.sha256(body.verifier.encode()).digest()
    challenge = base64.urlsafe_b64encode(proof).rstrip(b"=").decode()
    secret = parts.mint.secret()

    async def write() -> TokenRow | None:
        async with parts.store.transaction() as tx:
            row = await tx.get(LoginCodeRow, token_hash(code))
            if row is None:
                return None
            tx.delete(LoginCodeRow, row.code_hash)
            user = await tx.get(UserRow, row.user)
            wrong = row.challenge != challenge or row.expires_at <= tx.now
            if wrong or user is None or user.disabled:
                return None
            return await _token(parts, tx, row, user, secret=secret, address=address)

    made = await retried(write)
    if made is None:
        raise unauthenticated("this code is not good (any more); run `shiftwork login` again")
    document = {
        "token": secret,
        "id": made.id,
        "user": made.user,
        "expires_at": rfc3339(made.expires_at),
    }
    return answer(document, 201, {"cache-control": "no-store"})


async def _token(
    parts: Context, tx: Tx, code: LoginCodeRow, user: UserRow, *, secret: str, address: str
) -> TokenRow:
    await require_below_token_limit(tx, parts.settings, user.name)
    row = TokenRow(
        token_hash=token_hash(secret),
        id=parts.mint.id(),
        user=user.name,
        name=f"login {code.name}".strip(),
        created_by=user.name,
        created_at=tx.now,
        expires_at=tx.now + timedelta(seconds=parts.settings.login_token_seconds),
        revoked_at=None,
    )
    tx.put(row)
    identity = Identity(user.name, Role(user.role), user.team, row.id, address=address)
    audit(tx, parts.mint, identity, action="login.cli", target=row.id, detail=row.name)
    return row

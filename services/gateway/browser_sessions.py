"""Browser sessions: rows, cookies, and the protection against requests that other sites make.

A session's secret is in an http-only cookie alone. What a page needs to change something is the
CSRF token, which is derived from the secret: a page of another site can neither read nor derive it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from libs.store.port import Op, Order, Tx, Where
from services.gateway.problems import FORBIDDEN, ProblemError
from services.gateway.rows import SessionRow, TokenUseRow
from services.gateway.settings import GatewaySettings

CSRF_HEADER = "x-shiftwork-csrf"
# Browsers cannot give a WebSocket a header: there the CSRF token is a subprotocol.
CSRF_PROTOCOL = "shiftwork.csrf."
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
COOKIE = "shiftwork"
COOKIES_BYTES_MAX = 16_384
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


def session_hash(secret: str) -> str:
    """What is stored of a session's secret. It differs from a token's hash of the same text, so
    that a stolen cookie is no bearer token."""
    return hashlib.sha256(b"session\0" + secret.encode()).hexdigest()


def csrf_of(secret: str) -> str:
    """The CSRF token of a session."""
    return hashlib.sha256(b"csrf\0" + secret.encode()).hexdigest()


def is_secure(settings: GatewaySettings, scope: Scope) -> bool:
    """True if browsers reach this site by https."""
    scheme = urlsplit(settings.public_url).scheme or scope["scheme"]
    return scheme in {"https", "wss"}


def cookie_name(settings: GatewaySettings, scope: Scope, name: str = COOKIE) -> str:
    """A cookie's name. By https no other host and no page without TLS can set it (``__Host-``)."""
    return f"__Host-{name}" if is_secure(settings, scope) else name


def set_cookie(
    settings: GatewaySettings, scope: Scope, value: str, seconds: float, name: str = COOKIE
) -> str:
    """A Set-Cookie header that scripts cannot read and other sites' forms do not send. With no
    seconds it removes the cookie."""
    secure = "; Secure" if is_secure(settings, scope) else ""
    full = cookie_name(settings, scope, name)
    return f"{full}={value}; Path=/; Max-Age={int(seconds)}; HttpOnly; SameSite=Lax{secure}"


def cookie_of(settings: GatewaySettings, scope: Scope, name: str = COOKIE) -> str:
    """The value of our cookie; empty if the request has none, or several that contradict."""
    wanted = cookie_name(settings, scope, name)
    found: set[str] = set()
    for header, value in scope["headers"]:
        if header != b"cookie" or len(value) > COOKIES_BYTES_MAX:
            continue
        for pair in value.decode("latin-1").split(";"):
            one, _, content = pair.partition("=")
            if one.strip() == wanted:
                found.add(content.strip())
    return found.pop() if len(found) == 1 else ""


def require_own_site(settings: GatewaySettings, scope: Scope) -> None:
    """403 for a request that a browser made for a page of another site."""
    headers = Headers(scope=scope)
    site = headers.get("sec-fetch-site")
    if site is not None and site not in {"same-origin", "none"}:
        raise _cross_site(f"this request comes from another site (Sec-Fetch-Site: {site[:20]})")
    origin = headers.get("origin")
    if origin is not None and origin_key(origin) != _own_origin(settings, scope):
        raise _cross_site(f"this request comes from another site ({origin[:100]})")


def require_csrf(
    settings: GatewaySettings, scope: Scope, secret: str, subprotocols: Iterable[str] = ()
) -> None:
    """403 for a request with a cookie that may be another site's doing: it changes something, or
    opens a WebSocket, and does not show the session's CSRF token."""
    is_socket = scope["type"] == "websocket"
    if not is_socket and scope["method"] in SAFE_METHODS:
        return
    headers = Headers(scope=scope)
    if is_socket and "origin" not in headers:
        raise _cross_site("a WebSocket that is opened with a cookie needs the header Origin")
    require_own_site(settings, scope)
    shown = headers.get(CSRF_HEADER) or next(
        (each[len(CSRF_PROTOCOL) :] for each in subprotocols if each.startswith(CSRF_PROTOCOL)), ""
    )
    if not hmac.compare_digest(shown.encode(), csrf_of(secret).encode()):
        where = (
            f"the subprotocol {CSRF_PROTOCOL}TOKEN" if is_socket else f"the header {CSRF_HEADER}"
        )
        raise _cross_site(f"a request with a session's cookie needs {where}")


def _cross_site(why: str) -> ProblemError:
    fix = "pages of this site send their session's CSRF token; programs use a bearer token"
    return ProblemError(FORBIDDEN, f"{why}; {fix}")


def origin_key(url: str) -> tuple[str, str, int | None] | None:
    """Scheme, host and port of an address, to compare; None if it is none."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    secure = {"wss": "https", "ws": "http"}.get(parts.scheme, parts.scheme)
    return (secure, parts.hostname, port) if parts.hostname else None


def _own_origin(settings: GatewaySettings, scope: Scope) -> tuple[str, str, int | None] | None:
    host = Headers(scope=scope).get("host", "")
    return origin_key(settings.public_url or f"{scope['scheme']}://{host}")


def ends_at(row: SessionRow, use: TokenUseRow | None, idle_seconds: float) -> datetime:
    """When a session ends, if it is not used again before."""
    used = max(use.used_at, row.created_at) if use is not None else row.created_at
    return min(row.expires_at, used + timedelta(seconds=idle_seconds))


async def begin(
    tx: Tx,
    settings: GatewaySettings,
    secret: str,
    session_id: str,
    *,
    user: str,
    address: str,
    by: str,
    token_id: str = "",
    scopes: tuple[str, ...] = (),
    token_expires_at: datetime | None = None,
) -> list[SessionRow]:
    """Begin a session. The oldest ones of the user end if there are too many; returns them. Made
    with a token, it may do no more than that token, and ends with it."""
    rows = await tx.select(
        SessionRow, Where("user", Op.EQ, user), order_by=(Order("created_at"), Order("id"))
    )
    ended = rows[: max(0, len(rows) - settings.sessions_per_user_max + 1)]
    for row in ended:
        end(tx, row)
    longest = tx.now + timedelta(seconds=settings.session_seconds)
    row = SessionRow(
        secret_hash=session_hash(secret),
        id=session_id,
        user=user,
        created_at=tx.now,
        expires_at=min(filter(None, (longest, token_expires_at))),
        address=address,
        made_by=by,
        token_id=token_id,
        scopes=scopes,
    )
    tx.put(row)
    return ended


def end(tx: Tx, row: SessionRow) -> None:
    """End a session."""
    tx.delete(SessionRow, row.secret_hash)
    tx.delete(TokenUseRow, row.id)


async def end_of_token(tx: Tx, user: str, token_id: str) -> None:
    """End the sessions that a user has made with a token."""
    for row in await tx.select(SessionRow, Where("user", Op.EQ, user)):
        if row.token_id == token_id:
            end(tx, row)


async def end_all(tx: Tx, user: str, but: str = "") -> None:
    """End all sessions of a user, but the one of this id."""
    for row in await tx.select(SessionRow, Where("user", Op.EQ, user)):
        if row.id != but:
            end(tx, row)

"""Guards every route (ASGI): strict targets, authentication, bounded bodies, counts.

The guard authenticates the caller before it reads a byte of the body. It stores the result in the
request's scope for ``deps.person`` and ``deps.run_id``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from libs.contracts.ids import RunId
from libs.service.metrics import Metrics
from services.gateway.api.deps import CALLER, PARTS, Context
from services.gateway.api.failures import STORE_ERRORS, problem_of
from services.gateway.auth import Identity, bearer_of, unauthenticated
from services.gateway.browser_sessions import cookie_of, require_csrf
from services.gateway.login_delays import network_of
from services.gateway.problems import (
    FORBIDDEN,
    MALFORMED,
    TIMEOUT,
    TOO_LARGE,
    TOO_MANY,
    UNAUTHENTICATED,
    URI_TOO_LONG,
    ProblemError,
)
from services.gateway.rejected_requests import RejectedRequest
from services.gateway.settings import GatewaySettings
from services.gateway.strict_input import InvalidInputError, text_of

declare = Metrics("gateway")
REQUESTS = declare.counter(
    "shiftwork_http_requests_total", "HTTP requests answered", ["method", "route", "status"]
)
SECONDS = declare.histogram(
    "shiftwork_http_request_seconds", "Time to the first byte", ["method", "route"]
)
BATCH = "/v1/tasks:batch"
API, RUN = "/v1/", "/v1/run"
UNKNOWN = "unknown"
# Where a request's scope has the routes of the API.
TEMPLATES = "shiftwork.templates"
# What everybody may read, beside the routes whose action is ``LOG_IN``.
PUBLIC = frozenset({"/v1/openapi.json"})
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# The API has no business in frames, and its answers are no scripts.
FIXED_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
]
CLOSE = {"connection": "close"}


class Guard:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, parts: Context, templates: Templates) -> None:
        self._app = app
        self._parts = parts
        self._templates = templates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer (ASGI)."""
        scope[PARTS] = self._parts
        scope[TEMPLATES] = self._templates
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_at = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                _observe(scope, message["status"], time.perf_counter() - started_at)
                message = {**message, "headers": [*message.get("headers", ()), *FIXED_HEADERS]}
            await send(message)

        settings = self._parts.settings
        most = settings.batch_bytes_max if scope["path"] == BATCH else settings.body_bytes_max
        if scope["path"] in self._templates.public:
            most = settings.login_bytes_max
        try:
            _check_target(scope, settings)
            await self._authenticate(scope)
            _check_length(scope, most)
        except ProblemError as problem:
            note_refusal(self._parts, scope, problem)
            await _refuse(counted, problem)
        else:
            bounded = _bounded(receive, most, settings.body_seconds_max)
            await self._app(scope, bounded, counted)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket: its route authenticates the caller, who may have no header for a token."""
        try:
            _check_target(scope, self._parts.settings)
        except ProblemError as problem:
            await refuse_upgrade(WebSocket(scope, receive, send), problem)
        else:
            await self._app(scope, receive, send)

    async def _authenticate(self, scope: Scope) -> None:
        """Authenticate the caller and store it in the scope. Raises a ProblemError otherwise."""
        path = scope["path"]
        if not path.startswith(API) or path in PUBLIC or path in self._templates.public:
            return
        is_run = path == RUN or path.startswith(f"{RUN}/")
        try:
            scope[CALLER] = await enter(
                self._parts, scope, bearer_of(scope["headers"]), is_run=is_run
            )
        except STORE_ERRORS as error:
            raise problem_of(error, path) from error


async def enter(parts: Context, scope: Scope, token: str, *, is_run: bool) -> object:
    """The identity or run behind a token or, without one, behind a browser's cookie. After too many
    wrong or missing tokens, a further request of that address with such a token is 429. A right
    token is never refused for that.
    """
    address = address_of(scope)
    try:
        if not token and not is_run and (secret := cookie_of(parts.settings, scope)):
            identity = await parts.authenticator.session(secret, address)
            _count_request(parts, identity)
            identity = scope[CALLER] = replace(identity, address=address)
            require_csrf(parts.settings, scope, secret, scope.get("subprotocols", ()))
            return identity
        if not token:
            which = "$SHIFTWORK_RUN_TOKEN" if is_run else "TOKEN"
            browser = "" if is_run else "; in a browser, log in first (GET /v1/login says how)"
            raise unauthenticated(f"send the header Authorization: Bearer {which}{browser}")
        if is_run:
            run = await parts.authenticator.run(token, address)
            _count_of_run(parts, run)
            return run
        identity = await parts.authenticator.person(token, address)
        _count_request(parts, identity)
        return replace(identity, address=address)
    except ProblemError as problem:
        if problem.kind is not UNAUTHENTICATED or parts.wrong_tokens.take(network_of(address)):
            raise
        detail = f"too many requests of {address} had no token or a wrong one; {problem.detail}"
        raise ProblemError(TOO_MANY, detail, headers={"retry-after": "5"}) from None


def _count_request(parts: Context, identity: Identity) -> None:
    """429 for a token that is used too often; other tokens, also of the same user, are not."""
    if parts.requests.take(identity.token_id):
        return
    rate = parts.settings.requests_per_second
    detail = (
        f"token {identity.token_id} of {identity.user} is used for more than {rate:g} requests a"
        " second; pause between them, follow events, or submit several tasks as one batch"
    )
    raise ProblemError(TOO_MANY, detail, headers={"retry-after": "1"})


def _count_of_run(parts: Context, run: RunId) -> None:
    """429 for a task whose processes send too many requests; other tasks are not concerned."""
    if parts.run_requests.take(run.task_id):
        return
    rate = parts.settings.run_requests_per_second
    detail = f"the processes of {run.task_id} send more than {rate:g} requests a second; try again"
    raise ProblemError(TOO_MANY, detail, headers={"retry-after": "1"})


def address_of(scope: Scope) -> str:
    """Where a request comes from: a proxy's word counts if the proxy is trusted and names an
    address."""
    client = scope.get("client")
    try:
        return str(ip_address(client[0])) if client else UNKNOWN
    except ValueError:
        return UNKNOWN


class Templates:
    """The routes of the API: which one a path belongs to, for requests that reach none."""

    def __init__(self, paths: Iterable[str], public: Iterable[str]) -> None:
        # Paths without parameters that need no token, whatever the method.
        self.public = frozenset(public)
        self._all = [(path, compile_path(path)[0]) for path in sorted(set(paths))]

    def of(self, path: str) -> str:
        """The template, or ``none``: the path itself is whatever the client wrote."""
        return next((name for name, form in self._all if form.match(path)), "none")


def note_refusal(parts: Context, scope: Scope, problem: ProblemError) -> None:
    """Have a refusal entered in the audit trail, unless it is there already."""
    if problem.kind not in (UNAUTHENTICATED, FORBIDDEN) or problem.audited:
        return
    caller = scope.get(CALLER)
    name = getattr(caller, "user", "") or getattr(caller, "task_id", "")
    method = scope.get("method", "WEBSOCKET")
    method = method if method in {*METHODS, "WEBSOCKET"} else "OTHER"
    # Without ids, which would make each refusal a kind of its own.
    target = f"{method} {scope[TEMPLATES].of(scope['path'])}"
    shown = RejectedRequest(
        str(name) or problem.user,
        address_of(scope),
        target,
        problem.kind.type,
        account="" if name else problem.user,
    )
    parts.rejections.note(shown)


def _check_target(scope: Scope, settings: GatewaySettings) -> None:
    """400 for a path or query that is no text; 414 for one that is too long, before anything of it
    is read: strangers send it."""
    for what, encoded in (("path", scope.get("raw_path")), ("query", scope["query_string"])):
        if len(encoded or b"") > settings.url_bytes_max:
            detail = f"the {what} has more than {settings.url_bytes_max} bytes; shorten it"
            raise ProblemError(URI_TOO_LONG, detail, headers=CLOSE)
        try:
            text_of(encoded or b"")
        except InvalidInputError as problem:
            detail = f"the {what} {problem}; send UTF-8 without NUL, percent-encoded"
            raise ProblemError(MALFORMED, detail) from None
    if scope["query_string"].count(b"&") >= settings.query_parameters_max:
        detail = f"the query has more than {settings.query_parameters_max} parameters; give fewer"
        raise ProblemError(URI_TOO_LONG, detail, headers=CLOSE)


def _check_length(scope: Scope, most: int) -> None:
    """413 for a body whose declared length is too long."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value[:20]) > most:
            raise ProblemError(TOO_LARGE, _detail(most), headers=CLOSE)


def _bounded(receive: Receive, most: int, seconds_max: float) -> Receive:
    """``receive`` for a body of so many bytes within so long; then for as long as it takes."""
    seen, complete = 0, False
    until = asyncio.get_running_loop().time() + seconds_max

    async def bounded() -> Message:
        nonlocal seen, complete
        if complete:
            return await receive()
        try:
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            detail = f"the body was not complete within {seconds_max:g} s; send it faster"
            raise HTTPException(TIMEOUT.status, detail, headers=CLOSE) from None
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > most:
                raise HTTPException(TOO_LARGE.status, _detail(most), headers=CLOSE)
            complete = not message.get("more_body", False)
        return message

    return bounded


def _detail(most: int) -> str:
    return f"the body has more than {most} bytes; send less at once"


async def refuse_upgrade(socket: WebSocket, problem: ProblemError) -> None:
    """Answer a request for a WebSocket with a problem instead."""
    headers = {**problem.headers, "content-type": "application/problem+json"}
    body = orjson.dumps(problem.document())
    await socket.send_denial_response(Response(body, problem.kind.status, headers))


async def _refuse(send: Send, problem: ProblemError) -> None:
    body = orjson.dumps(problem.document())
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        *((name.encode(), value.encode()) for name, value in problem.headers.items()),
    ]
    await send({"type": "http.response.start", "status": problem.kind.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _observe(scope: Scope, status: int, seconds: float) -> None:
    """Count by route template: a path with ids in it would make a metric of every task."""
    route: Any = scope.get("route")
    path = getattr(route, "path", "") or "none"
    method = scope["method"] if scope["method"] in METHODS else "OTHER"
    REQUESTS.labels(method, path, str(status)).inc()
    SECONDS.labels(method, path).observe(seconds)

"""In front of every route: bounds a request's body and counts what is answered (ASGI)."""

from __future__ import annotations

import time
from typing import Any

import orjson
from prometheus_client import Counter, Histogram
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.problems import TOO_LARGE, ProblemError

REQUESTS = Counter(
    "shiftwork_http_requests_total", "HTTP requests answered", ["method", "route", "status"]
)
SECONDS = Histogram("shiftwork_http_request_seconds", "Time to the first byte", ["method", "route"])
BATCH = "/v1/tasks:batch"
# The API has no business in frames, and its answers are no scripts.
FIXED_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
]


class Guard:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, *, body_bytes_max: int, batch_bytes_max: int) -> None:
        self._app = app
        self._body_bytes_max = body_bytes_max
        self._batch_bytes_max = batch_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer (ASGI)."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._batch_bytes_max if scope["path"] == BATCH else self._body_bytes_max
        started_at = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                _observe(scope, message["status"], time.perf_counter() - started_at)
                message = {**message, "headers": [*message.get("headers", ()), *FIXED_HEADERS]}
            await send(message)

        declared = _content_length(scope)
        if declared is not None and declared > most:
            await _refuse(counted, ProblemError(TOO_LARGE, _detail(most)))
        else:
            await self._app(scope, _bounded(receive, most), counted)


def _content_length(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return None


def _bounded(receive: Receive, most: int) -> Receive:
    seen = 0

    async def bounded() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > most:
                raise HTTPException(TOO_LARGE.status, _detail(most))
        return message

    return bounded


def _detail(most: int) -> str:
    return f"the body has more than {most} bytes; send less at once"


async def _refuse(send: Send, problem: ProblemError) -> None:
    body = orjson.dumps(problem.document())
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": problem.kind.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _observe(scope: Scope, status: int, seconds: float) -> None:
    """Count by route template: a path with ids in it would make a metric of every task."""
    route: Any = scope.get("route")
    path = getattr(route, "path", "") or "none"
    REQUESTS.labels(scope["method"], path, str(status)).inc()
    SECONDS.labels(scope["method"], path).observe(seconds)

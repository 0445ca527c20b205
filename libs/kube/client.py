"""Calls to the API server: bounded in number, time and tries. Also its watches and streams.

A repeated call finds the result of its first try by the object's name. ``ApiError`` is a final
refusal of the server; for a temporary problem the caller of ``KubeClient`` chooses the error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson

from libs.kube.transport import (
    BROKEN,
    ConfigurationError,
    ConnectionFailedError,
    Query,
    Transport,
    failed,
    hang_up,
)
from libs.service.loop import pause

Json = dict[str, Any]
MERGE_PATCH = "application/merge-patch+json"
HTTP_OK, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, GONE = 200, 401, 403, 404, 409, 410
TOO_MANY, SERVER_ERROR = 429, 500
RETRY_AFTER_SECONDS_MAX = 30.0
MESSAGE_CHARACTERS_MAX = 400
LINE_BYTES_MAX = 8 << 20


class UnavailableError(Exception):
    """The API server does not answer, or not now."""


class LineTooLongError(Exception):
    """No object of Kubernetes is so large."""


class ApiError(Exception):
    """The API server refused."""

    def __init__(self, status: int, reason: str, message: str, *, repeated: bool = False) -> None:
        super().__init__(message or f"answer {status}")
        self.status, self.reason = status, reason
        self.message = message
        # An earlier try got no answer and may have taken effect.
        self.repeated = repeated

    @property
    def exists(self) -> bool:
        """There is an object of that name already."""
        return self.status == CONFLICT and self.reason == "AlreadyExists"


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The numbers of this module."""

    parallel_max: int = 32
    seconds: float = 10.0
    tries_max: int = 4
    pause_first_seconds: float = 0.1
    pause_most_seconds: float = 2.0
    page_objects: int = 500


class KubeClient:
    """One API server.

    ``unavailable`` makes the error for a temporary problem out of its text. ``count`` is called
    with the verb and the status (or "none") of each answer.
    """

    def __init__(
        self,
        transport: Transport,
        limits: CallLimits,
        *,
        unavailable: Callable[[str], Exception] = UnavailableError,
        count: Callable[[str, str], None] = lambda _verb, _answer: None,
    ) -> None:
        self.transport, self.limits = transport, limits
        self._error, self._count = unavailable, count
        # Spreads out retries; no decision depends on it.
        self._rng = Random()  # noqa: S311
        self._gate = asyncio.Semaphore(limits.parallel_max)

    async def get(self, path: str, **query: str) -> Json:
        """Read one object, or a list."""
        return await self.call("GET", path, query=query)

    async def create(self, path: str, body: Json) -> Json:
        """Create; ``ApiError.exists`` if the name is taken."""
        return await self.call("POST", path, body=body)

    async def patch(self, path: str, body: Json) -> Json:
        """Merge into an object; with a resourceVersion in it only into that version."""
        return await self.call("PATCH", path, body=body, content_type=MERGE_PATCH)

    async def delete(self, path: str, options: Json | None = None) -> Json | None:
        """Delete; the object as it now stands, None if there is none."""
        try:
            return await self.call("DELETE", path, body=options or {})
        except ApiError as problem:
            if problem.status == NOT_FOUND:
                return None
            raise

    async def pages(self, path: str, **query: str) -> AsyncGenerator[tuple[list[Json], str]]:
        """A list, page by page, with its resource version. ``ApiError`` 410: it took too long."""
        ask = {**query, "limit": str(self.limits.page_objects)}
        while True:
            page = await self.call("GET", path, query=ask)
            meta: Json = page.get("metadata") or {}
            yield page.get("items") or [], meta.get("resourceVersion", "")
            if not meta.get("continue"):
                return
            ask["continue"] = meta["continue"]

    async def open(
        self, path: str, *, read_seconds: float | None, **query: str
    ) -> aiohttp.ClientResponse:
        """An answer of any status, to be read and closed by the caller; see ``Transport.open``."""
        try:
            response = await self.transport.open(path, query=query, read_seconds=read_seconds)
            self._count("watch", str(response.status))
            if response.status == UNAUTHORIZED:
                await self.transport.renew()
        except (ConnectionFailedError, ConfigurationError) as problem:
            raise self._error(str(problem)) from problem
        return response

    @asynccontextmanager
    async def watch(
        self, path: str, idle_seconds: float, **query: str
    ) -> AsyncGenerator[AsyncIterator[Json]]:
        """The events of a watch. Fails as calls do; a line is of bounded length."""
        try:
            async with await self.open(path, read_seconds=idle_seconds, **query) as response:
                if response.status != HTTP_OK:
                    body = await response.read()
                    raise _api_error(response.status, body) or self._unavailable(
                        response.status, response.headers, body
                    )
                try:
                    yield _events(response.content.iter_any())
                finally:
                    hang_up(response)
        except BROKEN as problem:
            raise self._error(str(failed(problem))) from problem

    async def run_in(self, path: str, container: str, argv: list[str], seconds: float) -> str:
        """Run a command in a container. Returns an empty text if it ended with 0, else the
        error."""
        query = [("container", container), ("stdout", "true"), ("stderr", "true")]
        query += [("command", word) for word in argv]
        output = ""
        try:
            async with self.transport.socket(
                f"{path}/exec", query=query, protocol="v4.channel.k8s.io", seconds=seconds
            ) as messages:
                async for message in messages:
                    channel, data = message[0], message[1:]
                    if channel == 3 and data:  # noqa: PLR2004 - the channel of the outcome
                        return _outcome(orjson.loads(data), output)
                    output += data.decode(errors="replace")[:MESSAGE_CHARACTERS_MAX]
        except (ConnectionFailedError, ConfigurationError) as problem:
            raise self._error(str(problem)) from problem
        raise self._error("the API server did not report how the command ended")

    async def close(self) -> None:
        """Hang up."""
        await self.transport.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Json:
        """One request, tried again where that may help. Returns the decoded answer."""
        headers = {"Content-Type": content_type} if body is not None else {}
        data = orjson.dumps(body) if body is not None else None
        wait, repeated, renewed = self.limits.pause_first_seconds, False, False
        for left in range(self.limits.tries_max - 1, -1, -1):
            try:
                async with self._gate:
                    answer = await self.transport.send(
                        method,
                        path,
                        query=query or {},
                        headers=headers,
                        body=data,
                        seconds=self.limits.seconds,
                    )
            except (ConnectionFailedError, ConfigurationError) as problem:
                self._count(method.lower(), "none")
                if not left or isinstance(problem, ConfigurationError):
                    raise self._error(str(problem)) from problem
                repeated, retry_after_s = True, 0.0
            else:
                self._count(method.lower(), str(answer.status))
                if answer.status < 300:  # noqa: PLR2004 - HTTP's success
                    return self._decoded(method, answer.body)
                if answer.status == UNAUTHORIZED and not renewed:
                    await self.transport.renew()
                    renewed = True
                    continue
                refused = _api_error(answer.status, answer.body, repeated=repeated)
                if refused is not None:
                    raise refused
                if not left or answer.status == UNAUTHORIZED:
                    raise self._unavailable(answer.status, answer.headers, answer.body)
                repeated = repeated or answer.status >= SERVER_ERROR
                retry_after_s = _retry_after(answer.headers)
            await pause(max(retry_after_s, wait * self._rng.uniform(0.5, 1.5)))
            wait = min(self.limits.pause_most_seconds, wait * 2)
        raise self._unavailable(UNAUTHORIZED, {}, b"")

    def _decoded(self, method: str, body: bytes) -> Json:
        try:
            found: Any = orjson.loads(body if body or method == "GET" else b"{}")
        except orjson.JSONDecodeError as problem:
            raise self._error(f"the answer is no JSON: {problem}") from problem
        return found

    def _unavailable(self, status: int, headers: Mapping[str, str], body: bytes) -> Exception:
        if status == UNAUTHORIZED:
            return self._error(
                "the API server does not accept our credentials (401): the token is expired or"
                " unknown"
            )
        seconds = _retry_after(headers)
        later = f", to be asked again in {seconds:.0f} s" if seconds else ""
        message = reason_and_message(body)[1]
        return self._error(f"the API server answered {status}{later}: {message}")


def reason_and_message(body: bytes) -> tuple[str, str]:
    """The reason and message of a Status object; any other body is the message."""
    try:
        found: Any = orjson.loads(body)
        reason, message = found.get("reason") or "", found.get("message") or ""
    except (orjson.JSONDecodeError, AttributeError):
        reason, message = "", ""
    message = message or body.decode(errors="replace")
    return str(reason), str(message)[:MESSAGE_CHARACTERS_MAX]


def _api_error(status: int, body: bytes, *, repeated: bool = False) -> ApiError | None:
    """The error for an answer that will not change; None if it is temporary."""
    if status in (UNAUTHORIZED, TOO_MANY) or status >= SERVER_ERROR:
        return None
    reason, message = reason_and_message(body)
    # Of two concurrent writers of a quota, one has to try again.
    if status == CONFLICT and reason == "Conflict" and "resourcequotas" in message:
        return None
    return ApiError(status, reason, message, repeated=repeated)


def _retry_after(headers: Mapping[str, str]) -> float:
    value = headers.get("Retry-After", "")
    return min(float(value), RETRY_AFTER_SECONDS_MAX) if value.isdecimal() else 0.0


def _outcome(status: Json, output: str) -> str:
    if status.get("status") == "Success":
        return ""
    return " ".join(filter(None, ((status.get("message") or "failed"), output.strip())))


def namespaced(namespace: str, kind: str, name: str = "") -> str:
    """The path of a kind in a namespace, or of one object."""
    path = f"/api/v1/namespaces/{quote(namespace)}/{kind}"
    return f"{path}/{quote(name)}" if name else path


async def _events(pieces: AsyncIterator[bytes]) -> AsyncGenerator[Json]:
    """One event for each whole line of pieces of any size."""
    held = bytearray()
    async for piece in pieces:
        held += piece
        if b"\n" not in piece:
            if len(held) > LINE_BYTES_MAX:
                raise LineTooLongError(f"more than {LINE_BYTES_MAX} bytes without an end")
            continue
        *lines, held = held.split(b"\n")
        for line in lines:
            if line:
                yield orjson.loads(line)

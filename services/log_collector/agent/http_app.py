"""The agent's HTTP: ``POST /read`` and ``/done`` for log-collector, ``/sample`` for the launcher.

A request has to show the token that all have in a file; others are refused before their body is
read. Plain ASGI, served by ``libs.service.http`` beside the probes. Wired in ``main.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path

from libs.service.http import Receive, Scope, Send
from libs.service.observability import log
from libs.signals import agent_protocol
from libs.signals.agent_protocol import AgentProtocolError
from services.log_collector.agent import protocol
from services.log_collector.agent.sampling import BusyError, Sampling
from services.log_collector.agent.spool import SERVICE, Spool

Answer = tuple[int, bytes, Iterable[bytes]]
JSON, BYTES = b"application/json", b"application/octet-stream"


class RefusedError(Exception):
    """A request that is not carried out."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class Token:
    """The bearer token in a file, which may be replaced while the agent runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed_ns = -1
        self._token = b""
        self._read()

    def _read(self) -> None:
        """OSError if it cannot be read, ValueError if it is empty."""
        changed_ns = self._path.stat().st_mtime_ns
        if changed_ns != self._changed_ns:
            token = self._path.read_bytes().strip()
            if not token:
                raise ValueError(f"{self._path} is empty: write the token that log-collector has")
            self._token, self._changed_ns = token, changed_ns

    def is_shown(self, authorization: bytes) -> bool:
        """Whether a request's header shows it. Takes the same time for any header."""
        with contextlib.suppress(OSError, ValueError):  # being replaced: the last one holds
            self._read()
        return hmac.compare_digest(authorization, b"Bearer " + self._token)


class AgentApp:
    """Answers log-collector. ``turn``: the spool is used by one thread at a time."""

    def __init__(
        self,
        spool: Spool,
        turn: asyncio.Lock,
        token: Token,
        agent: str,
        sampling: Sampling | None = None,
    ) -> None:
        self._spool, self._turn, self._token, self._agent = spool, turn, token, agent
        self._routes: dict[str, Callable[[bytes], Awaitable[Answer]]] = {
            "/read": self._read,
            "/done": self._done,
        }
        if sampling is not None:
            self._routes[agent_protocol.PATH] = partial(self._sample, sampling)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        if scope["type"] != "http":
            return
        try:
            status, kind, parts = await self._answer(scope, receive)
        except RefusedError as refused:
            body_text = json.dumps({"detail": refused.detail}).encode() + b"\n"
            status, kind, parts = refused.status, JSON, (body_text,)
        body = [part for part in parts if part]
        headers = [
            (b"content-type", kind),
            (b"content-length", str(sum(map(len, body))).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for part in body:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        route = self._routes.get(scope["path"])
        if route is None:
            there = ", ".join([*self._routes, "/healthz", "/readyz"])
            raise RefusedError(404, f"there are {there} and /metrics")
        shown = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(shown) != 1 or not self._token.is_shown(shown[0]):
            raise RefusedError(401, "show the log agents' token: Authorization: Bearer TOKEN")
        if scope["method"] != "POST":
            raise RefusedError(405, f"{scope['path']} takes POST")
        try:
            return await route(await _body(receive))
        except (protocol.WireError, AgentProtocolError) as error:
            raise RefusedError(400, str(error)) from error
        except OSError as error:
            raise RefusedError(503, f"the node's disk refuses: {error}") from error

    async def _read(self, body: bytes) -> Answer:
        requests, bytes_max = protocol.decode_reads(body)
        async with self._turn:
            answers = await asyncio.to_thread(self._spool.read, requests, bytes_max)
        data = [answer.data for answer in answers if answer is not None]
        return 200, BYTES, (protocol.encode_answers_head(self._agent, answers), *data)

    async def _done(self, body: bytes) -> Answer:
        kept = protocol.decode_stored(body)
        async with self._turn:
            await asyncio.to_thread(self._spool.done, kept)
        return 200, JSON, (b"{}\n",)

    async def _sample(self, sampling: Sampling, body: bytes) -> Answer:
        query = agent_protocol.decode_query(body)
        try:
            measured = await sampling.sample(query.pods)
        except BusyError as busy:
            raise RefusedError(503, str(busy)) from busy
        except Exception as defect:
            log(SERVICE).exception("a sample failed")
            raise RefusedError(500, "a sample failed by a defect; see this agent's log") from defect
        return 200, JSON, (agent_protocol.encode(measured),)


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RefusedError(400, "the body ends too early; send all of it")
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > protocol.BODY_BYTES_MAX:
            raise RefusedError(413, f"the body is longer than {protocol.BODY_BYTES_MAX} bytes")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)

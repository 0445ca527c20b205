"""Server-sent events as an ASGI answer that ends with its reader, its source or the process.

Called by the routes that stream. Slow readers are waited for, for a bounded time; nothing is
buffered for them here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractContextManager
from typing import Any

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from libs.store.port import StoreUnavailableError
from services.gateway.auth import StreamAuthorization
from services.gateway.problems import ProblemError

HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
Write = Callable[[bytes], Awaitable[None]]
Produce = Callable[[Write], Coroutine[Any, Any, None]]
Begin = Callable[[], Awaitable[Produce]]
# What breaks a silence: a comment.
COMMENT = b":\n\n"
# Written at once, unless a single event is larger.
CHUNK_BYTES = 64 * 1024

_log = structlog.stdlib.get_logger(__name__)


def frame(data: bytes, *, position: int | None = None, event: str = "") -> bytes:
    """One event; ``data`` is JSON and so has no line breaks."""
    head = b"" if position is None else b"id: %d\n" % position
    head += b"event: " + event.encode() + b"\n" if event else b""
    return head + b"data: " + data + b"\n\n"


def position_frame(position: int) -> bytes:
    """A position without an event: what a browser gives as ``Last-Event-ID`` when it reconnects."""
    return b"id: %d\n\n" % position


async def write_all(write: Write, frames: Iterable[bytes]) -> None:
    """Write many frames in few pieces."""
    pending: list[bytes] = []
    size = 0
    for each in frames:
        if size + len(each) > CHUNK_BYTES and pending:
            await write(b"".join(pending))
            pending, size = [], 0
        pending.append(each)
        size += len(each)
    if pending:
        await write(b"".join(pending))


class EventStream(Response):
    """Runs what ``begin`` returns while a client reads. Silence is broken by a comment every so
    often, or by what ``beat`` returns. ``begin`` is called once the stream is admitted; a problem
    that it raises is the answer.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        begin: Begin,
        *,
        admission: AbstractContextManager[None],
        lasting: AbstractContextManager[StreamAuthorization],
        heartbeat_seconds: float,
        send_seconds_max: float,
        beat: Callable[[], bytes] = lambda: COMMENT,
    ) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._begin = begin
        self._admission = admission
        self._lasting = lasting
        self._heartbeat_seconds = heartbeat_seconds
        self._send_seconds_max = send_seconds_max
        self._beat_frame = beat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer (ASGI)."""
        del scope
        with self._admission, self._lasting as lasting:
            produce = await self._begin()
            sending = asyncio.Lock()

            async def write(data: bytes) -> None:
                async with sending, asyncio.timeout(self._send_seconds_max):
                    await send({"type": "http.response.body", "body": data, "more_body": True})

            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            await self._until_one_ends(produce(write), write, receive, lasting)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _until_one_ends(
        self,
        source: Coroutine[Any, Any, None],
        write: Write,
        receive: Receive,
        lasting: StreamAuthorization,
    ) -> None:
        """The source, the reader, the heart or the right to read: whichever ends first ends the
        others."""
        try:
            async with asyncio.TaskGroup() as group:
                parts = [
                    group.create_task(source),
                    group.create_task(_until_gone(receive)),
                    group.create_task(self._beat(write)),
                    group.create_task(lasting.until_over()),
                ]
                await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
                for part in parts:
                    part.cancel()
        except* TimeoutError:
            _log.info("a stream's reader does not read; closed")
        except* StoreUnavailableError as group:
            # The reader reconnects and continues where it was.
            _log.warning("a stream ended: database not reached", problem=str(group.exceptions[0]))
        except* ProblemError as group:
            # The response has begun, so the reason is its last event.
            problem = group.exceptions[0]
            _log.warning("a stream ended early", problem=str(problem))

    async def _beat(self, write: Write) -> None:
        """Proxies and readers see that the stream is alive."""
        await write(b": shiftwork\n\n")
        never = asyncio.Event()
        while True:
            try:
                async with asyncio.timeout(self._heartbeat_seconds):
                    await never.wait()
            except TimeoutError:
                await write(self._beat_frame())


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

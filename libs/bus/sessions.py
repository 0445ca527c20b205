"""One side of a session between two services, such as a terminal in a running rank.

A session is two streams of frames over core NATS, one in each direction. Nothing stores them, so
the session itself notices a loss: each frame has a number, and a gap ends the session. A sender may
have only ``WINDOW`` of data on the way; the receiver grants more as it uses up what came, so a slow
reader slows the writer down instead of filling a queue. Both sides send a frame at least every
``heartbeat_seconds``, and end the session when they hear nothing for ``silence_seconds``.

The gateway and the launcher each open their end of a session.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from libs.bus.port import Bus
from libs.contracts.envelope import Envelope
from libs.contracts.messages import ExecEnd, ExecFrame, ExecInput, ExecOutput, ExecStream
from libs.contracts.registry import ROUTES

# What may be on the way in one direction. A frame costs at least ``FRAME_COST_MIN``, so that no
# window of tiny frames is longer than the queue of ``Bus.listen``.
WINDOW = 256 * 1024
FRAME_COST_MIN = 512
FRAME_BYTES_MAX = 32 * 1024
# The receiver grants what it has used up in pieces of this size.
GRANT = WINDOW // 4


class SessionLostError(Exception):
    """The other side is gone, or a frame was lost; the text has the reason."""


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """When silence is broken, and when it means that the other side is gone."""

    heartbeat_seconds: float = 5.0
    silence_seconds: float = 20.0


def cost(frame: ExecFrame) -> int:
    """How much of the window a frame takes: one without data takes nothing."""
    return max(len(frame.data), FRAME_COST_MIN) if frame.data else 0


class Session:
    """Sends and receives frames; made by ``open_session``."""

    def __init__(
        self,
        send: Callable[[ExecFrame], Awaitable[None]],
        envelopes: AsyncIterator[Envelope],
        times: SessionTimes,
    ) -> None:
        self._send, self._envelopes, self._times = send, envelopes, times
        self._number = 0
        self._window = WINDOW
        self._room = asyncio.Event()
        self._received: deque[ExecFrame] = deque()
        self._ended_streams: set[ExecStream] = set()
        self._arrived = asyncio.Event()
        self._used = 0
        self._sending = asyncio.Lock()
        self._sent_at_s = asyncio.get_running_loop().time()
        # Set once the other side wants the session to end.
        self.over = asyncio.Event()
        # When data last came or went, in the event loop's seconds.
        self.active_at_s = self._sent_at_s

    async def send(self, stream: ExecStream, data: bytes) -> None:
        """Send data, in pieces, as fast as the other side grants room for it."""
        for start in range(0, len(data), FRAME_BYTES_MAX):
            piece = ExecFrame(stream=stream, data=data[start : start + FRAME_BYTES_MAX])
            while self._window < cost(piece):
                self._room.clear()
                await self._room.wait()
            self._window -= cost(piece)
            self.active_at_s = asyncio.get_running_loop().time()
            await self._put(piece)

    async def send_eof(self, stream: ExecStream) -> None:
        """Report that a stream has no more data."""
        await self._put(ExecFrame(stream=stream, eof=True))

    async def resize(self, rows: int, columns: int) -> None:
        """Report the terminal's new size."""
        await self._put(ExecFrame(rows=rows, columns=columns))

    async def end(self, end: ExecEnd) -> None:
        """Report how the command ended."""
        await self._put(ExecFrame(end=end))

    async def leave(self) -> None:
        """Ask the other side to end the session."""
        await self._put(ExecFrame(over=True))

    async def receive(self) -> ExecFrame:
        """The next frame. Its data counts as used up when the caller asks for the one after it."""
        await self._grant()
        while not self._received:
            self._arrived.clear()
            await self._arrived.wait()
        frame = self._received.popleft()
        self._used += cost(frame)
        return frame

    async def _grant(self) -> None:
        # An empty queue means that the sender may be waiting for every byte of the window.
        if self._used >= GRANT or (self._used and not self._received):
            granted, self._used = self._used, 0
            await self._put(ExecFrame(granted=granted))

    async def _put(self, frame: ExecFrame) -> None:
        async with self._sending:
            numbered = frame.model_copy(update={"number": self._number})
            self._number += 1
            self._sent_at_s = asyncio.get_running_loop().time()
            await self._send(numbered)

    async def run(self) -> None:
        """Take the frames that come and break our own silence, until cancelled. Raises
        ``SessionLostError`` when the session is lost. The caller ends the session's other parts
        then."""
        beat = asyncio.ensure_future(self._beat())
        try:
            await self._listen()
        finally:
            beat.cancel()
            await asyncio.gather(beat, return_exceptions=True)

    async def _listen(self) -> None:
        expected, silence_seconds = 0, self._times.silence_seconds
        while True:
            try:
                async with asyncio.timeout(silence_seconds):
                    message = (await anext(self._envelopes)).message
            except TimeoutError:
                why = f"nothing came from the other side for {silence_seconds:g} s"
                raise SessionLostError(why) from None
            assert isinstance(message, ExecInput | ExecOutput), "the subject has no other messages"
            if message.frame.number != expected:
                raise SessionLostError("a part of the session was lost on the way")
            expected += 1
            self._take(message.frame)

    def _take(self, frame: ExecFrame) -> None:
        if frame.granted > 0:
            self._window += frame.granted
            self._room.set()
        if frame.over:
            self.over.set()
        if frame.data or frame.eof or frame.rows or frame.end:
            self.active_at_s = asyncio.get_running_loop().time()
            # Frames without data cost nothing in the window: of changes of size the last one
            # counts, of ends of a stream the first.
            if _resizes(frame) and self._received and _resizes(self._received[-1]):
                self._received.pop()
            if frame.eof and not frame.data and frame.stream in self._ended_streams:
                return
            if frame.eof:
                self._ended_streams.add(frame.stream)
            self._received.append(frame)
            self._arrived.set()

    async def _beat(self) -> None:
        """Break silence with empty frames."""
        loop, seconds = asyncio.get_running_loop(), self._times.heartbeat_seconds
        never = asyncio.Event()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._sent_at_s + seconds):
                    await never.wait()
            if loop.time() - self._sent_at_s >= seconds:
                await self._put(ExecFrame())


def _resizes(frame: ExecFrame) -> bool:
    return bool(frame.rows) and not (frame.data or frame.eof or frame.end)


@contextlib.asynccontextmanager
async def open_session(
    bus: Bus,
    name: str,
    sends: type[ExecInput | ExecOutput],
    now: Callable[[], datetime],
    times: SessionTimes,
) -> AsyncGenerator[Session]:
    """Take part in a session as the sender of ``sends``. Frames of the other side that arrive from
    now on are received once ``Session.run`` runs. Raises ``BusError`` if the bus cannot be used.
    """
    ours, theirs = ("input", "output") if sends is ExecInput else ("output", "input")
    source = ROUTES[sends].owner

    async def send(frame: ExecFrame) -> None:
        message = sends(session=name, frame=frame)
        identity = f"{name}-{ours}-{frame.number}"
        await bus.send_telemetry(Envelope(identity, source, now(), message))

    async with bus.listen(f"exec.{name}.{theirs}") as envelopes:
        yield Session(send, envelopes, times)

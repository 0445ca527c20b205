"""Live output of a task: chunks from the bus, completed by ranges from the log-collector.

Called by the routes for logs. A chunk from the bus is sent only if it continues exactly what this
reader has; the rest is read from the log-collector. So no byte is lost and none comes twice,
however many chunks are lost.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import orjson

from libs.bus.port import Bus, BusError
from libs.contracts import messages as m
from services.gateway.command_client import Commands
from services.gateway.json_values import rfc3339
from services.gateway.problems import NOT_FOUND, UNAVAILABLE, ProblemError

Send = Callable[[bytes], Awaitable[None]]
UTF8_BYTES_MAX = 4
# Mask, bits of a character's first byte, length of the character.
UTF8_LEADS = ((0x80, 0x00, 1), (0xE0, 0xC0, 2), (0xF0, 0xE0, 3), (0xF8, 0xF0, 4))
CHUNKS_PENDING_MAX = 1024


@dataclass(frozen=True, slots=True)
class OutputFilter:
    """The output that a reader asked for, and its start."""

    task_id: str
    attempt: int | None = None
    rank: int | None = None
    role: str = ""
    offset: int = 0
    tail: int = 0
    since: datetime | None = None
    # With the times at which it was written.
    timestamps: bool = False
    # Of a range: it ends before this byte (0: anywhere), and before what was written at this time.
    before: int = 0
    until: datetime | None = None

    def takes(self, attempt: int, rank: int, role: str) -> bool:
        """True if this rank's output is wanted."""
        return (
            self.attempt in (None, attempt)
            and self.rank in (None, rank)
            and (not self.role or self.role == role)
        )


@dataclass
class Tail:
    """How far one rank's output has been passed on."""

    attempt: int
    rank: int
    role: str
    offset: int = 0
    begun: bool = False
    done: bool = False
    # Bytes that are known to be kept.
    size: int = 0


@dataclass
class OutputFollower:
    """One reader of one task's output."""

    wanted: OutputFilter
    commands: Commands
    bus: Bus
    # None while the task is live; then the (attempt, rank) pairs that ever ran.
    ended: Callable[[], Awaitable[set[tuple[int, int]] | None]]
    closed: Callable[[], bool]
    piece_bytes: int
    list_seconds: float
    # Seconds between checks for ranks that ran and are not listed (too old, or not yet).
    missing_rounds_max: int
    send: Send
    tails: dict[tuple[int, int], Tail] = field(default_factory=dict)

    async def run(self) -> None:
        """Pass on everything until the task has ended and all of it was passed on."""
        chunks: asyncio.Queue[m.LogChunk] = asyncio.Queue(CHUNKS_PENDING_MAX)
        async with asyncio.TaskGroup() as group:
            listener = group.create_task(self._listen(chunks))
            await self._forward(chunks)
            listener.cancel()

    async def _listen(self, chunks: asyncio.Queue[m.LogChunk]) -> None:
        """Forward chunks as they arrive. One for which the queue has no space is read as a range
        later."""
        with contextlib.suppress(BusError):
            async with self.bus.listen(f"log.{self.wanted.task_id}.>") as passing:
                async for envelope in passing:
                    chunk = envelope.message
                    if isinstance(chunk, m.LogChunk):
                        with contextlib.suppress(asyncio.QueueFull):
                            chunks.put_nowait(chunk)

    async def _forward(self, chunks: asyncio.Queue[m.LogChunk]) -> None:
        rounds = 0
        while not self.closed():
            # Asked before the list: what a task wrote before it ended is in a list made later.
            ran = await self.ended()
            if await self._catch_up() and ran is not None:
                rounds += 1
                missing = [each for each in ran if each not in self.tails]
                if not missing or rounds > self.missing_rounds_max:
                    return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.list_seconds):
                    while True:
                        await self._take(await chunks.get())

    async def _take(self, chunk: m.LogChunk) -> None:
        """Pass on what a chunk adds, filling the gap before it."""
        if not self.wanted.takes(chunk.attempt, chunk.rank, chunk.role):
            return
        tail = self._tail(chunk.attempt, chunk.rank, chunk.role)
        if not tail.begun or chunk.offset > tail.offset:
            with contextlib.suppress(ProblemError):
                await self._read(tail)
        end = chunk.offset + len(chunk.data)
        if tail.begun and chunk.offset <= tail.offset < end:
            fresh = chunk.data[tail.offset - chunk.offset :]
            await self._emit(tail, Piece(fresh, chunk.timestamps), last=False)
        elif chunk.line and tail.begun and chunk.offset == tail.offset:
            # It is no part of the output: what of it does not fit into a text can be left out.
            line = chunk.line[: whole_characters(chunk.line)].decode(errors="replace")
            document = {**_place(tail), "line": line}
            if self.wanted.timestamps:
                document["timestamps"] = [[tail.offset, rfc3339(chunk.collected_at)]]
            await self.send(orjson.dumps(document))

    async def _catch_up(self) -> bool:
        """Read the stored output that is missing. True if every rank's output is complete."""
        try:
            command = m.ListLogs(task_id=self.wanted.task_id)
            reply = await self.commands.ask(command, m.ListLogsReply)
        except ProblemError as problem:
            if problem.kind is NOT_FOUND:
                return True
            if problem.kind is UNAVAILABLE:
                return False
            raise
        complete = True
        for info in reply.logs:
            if not self.wanted.takes(info.attempt, info.rank, info.role):
                continue
            tail = self._tail(info.attempt, info.rank, info.role)
            try:
                if not tail.done and (info.complete or not tail.begun or info.size > tail.offset):
                    await self._read(tail)
            except ProblemError as problem:
                if problem.kind is not UNAVAILABLE:
                    raise
            complete = complete and tail.done
        return complete

    def _tail(self, attempt: int, rank: int, role: str) -> Tail:
        tail = self.tails.get((attempt, rank))
        if tail is None:
            tail = Tail(attempt, rank, role, offset=self.wanted.offset)
            self.tails[(attempt, rank)] = tail
        return tail

    async def _read(self, tail: Tail) -> None:
        """Read this rank's stored output from its current offset to the end."""
        while True:
            first = not tail.begun
            reply = await self.commands.ask(
                m.ReadLog(
                    task_id=self.wanted.task_id,
                    attempt=tail.attempt,
                    rank=tail.rank,
                    offset=tail.offset,
                    max_bytes=self.piece_bytes,
                    since=self.wanted.since if first else None,
                    tail_lines=self.wanted.tail if first else 0,
                    timestamps=self.wanted.timestamps,
                ),
                m.ReadLogReply,
            )
            if first:
                tail.begun, tail.offset = True, reply.offset
            before = tail.offset
            at_end = reply.offset + len(reply.data) >= reply.size
            piece = Piece(reply.data, reply.timestamps, approximate=reply.approximate)
            await self._emit(tail, piece, last=reply.complete and at_end)
            if at_end:
                tail.done = reply.complete
                return
            if tail.offset == before:
                # Nothing but the beginning of a character, and more behind it.
                await self._emit(tail, piece, last=True)
            if not reply.data:
                return

    async def _emit(self, tail: Tail, piece: Piece, *, last: bool) -> None:
        """Pass on whole characters as text; anything else as base64."""
        if not last:
            piece = replace(piece, data=piece.data[: whole_characters(piece.data)])
        if not piece.data:
            return
        document = {**_place(tail), **piece.fields(tail.offset, dated=self.wanted.timestamps)}
        tail.offset += len(piece.data)
        await self.send(orjson.dumps(document))


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one rank's output, with the time stamps that came with them."""

    data: bytes
    timestamps: Sequence[m.LogTimestamp] = ()
    approximate: bool = False

    def fields(self, offset: int, *, dated: bool) -> dict[str, object]:
        """The piece in JSON, as text where it is text; it begins at ``offset``. ``dated``: with
        ``[offset, time]`` of its first byte and of every later byte at which the time changes."""
        fields: dict[str, object]
        try:
            fields = {"text": self.data.decode()}
        except UnicodeDecodeError:
            fields = {"data_base64": base64.b64encode(self.data).decode()}
        if dated:
            fields["timestamps"] = [
                [each.offset, rfc3339(each.at)] for each in self._changes(offset)
            ]
            if self.approximate:
                fields["approximate"] = True
        return fields

    def _changes(self, offset: int) -> list[m.LogTimestamp]:
        """The time stamp of its first byte, and those that differ from the one before."""
        found: list[m.LogTimestamp] = []
        end = offset + len(self.data)
        for each in self.timestamps:
            if each.offset <= offset:
                found = [each.model_copy(update={"offset": offset})]
            elif each.offset < end and (not found or found[-1].at != each.at):
                found.append(each)
        return found


def _place(tail: Tail) -> dict[str, object]:
    """The rank and the offset of the output that follows."""
    return {
        "attempt": tail.attempt,
        "rank": tail.rank,
        "role": tail.role,
        "offset": tail.offset,
    }


def whole_characters(data: bytes) -> int:
    """The length of ``data`` without the beginning of a UTF-8 character at its end."""
    for back in range(1, min(UTF8_BYTES_MAX, len(data) + 1)):
        needed = next(
            (length for mask, lead, length in UTF8_LEADS if data[-back] & mask == lead), 0
        )
        if needed:
            return len(data) - back if needed > back else len(data)
    return len(data)


@dataclass(frozen=True, slots=True)
class Range:
    """A range of one rank's output: its first byte's offset, the bytes, and the size kept."""

    begin: int
    piece: Piece
    size: int
    complete: bool


async def read_range(
    commands: Commands, wanted: OutputFilter, *, limit_bytes: int, piece_bytes: int
) -> Range:
    """One rank's output from an offset on. With time stamps it ends where these begin, or cease,
    to be approximate."""
    assert wanted.attempt is not None
    assert wanted.rank is not None
    data = b""
    stamps: list[m.LogTimestamp] = []
    first: m.ReadLogReply | None = None
    while True:
        reply = await commands.ask(
            m.ReadLog(
                task_id=wanted.task_id,
                attempt=wanted.attempt,
                rank=wanted.rank,
                offset=first.offset + len(data) if first else wanted.offset,
                max_bytes=min(piece_bytes, limit_bytes - len(data)),
                since=None if first else wanted.since,
                tail_lines=0 if first else wanted.tail,
                timestamps=wanted.timestamps,
                before=wanted.before,
                until=wanted.until,
            ),
            m.ReadLogReply,
        )
        first = first or reply
        if reply.approximate == first.approximate:
            data += reply.data
            stamps += reply.timestamps
            at_end = first.offset + len(data) >= reply.size
            if reply.data and len(data) < limit_bytes and not at_end:
                continue
        piece = Piece(data, stamps, approximate=first.approximate)
        return Range(first.offset, piece, reply.size, reply.complete)

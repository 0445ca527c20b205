"""A terminal or command in a running rank: what goes between a WebSocket and the launcher.

Called by ``api/exec_sessions.py``. A message of bytes is data: the first byte names the stream (0
standard input, 1 output, 2 error), the rest is the data. A message of text is JSON: from the client
``{"resize": {"rows": R, "columns": C}}`` and ``{"eof": true}``; to the client, as the last one,
``{"exit": {"code": N}}`` or ``{"problem": {...}}``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from libs.bus.sessions import Session, SessionLostError
from libs.contracts import messages as m
from libs.service.http import WEBSOCKET_BYTES_MAX
from services.gateway.auth import StreamAuthorization
from services.gateway.body_types import Body
from services.gateway.problems import (
    FORBIDDEN,
    MALFORMED,
    TIMEOUT,
    UNAVAILABLE,
    ProblemError,
    of_validation,
)
from services.gateway.strict_input import InvalidInputError, json_of

STDIN, STDOUT, STDERR = b"\x00", b"\x01", b"\x02"
CHANNELS = {m.ExecStream.STDOUT: STDOUT, m.ExecStream.STDERR: STDERR}
# A message is bounded by its bytes already, and a command with too many words is refused by their
# number.
JSON_VALUES_MAX = WEBSOCKET_BYTES_MAX
SIDE_MAX = 10_000


class TerminalSize(Body):
    """How large a terminal is."""

    rows: int = Field(ge=1, le=SIDE_MAX)
    columns: int = Field(ge=1, le=SIDE_MAX)


class ExecQuery(Body):
    """What the URL of a session says."""

    rank: int = Field(default=0, ge=0, le=2**31 - 1)
    role: str = Field(default="", max_length=63)
    tty: bool = False


class ExecCommand(Body):
    """The first message of a client. No command: a shell."""

    command: list[str] = Field(default_factory=list[str])
    size: TerminalSize | None = None
    term: str = Field(default="", max_length=64, pattern=r"^[A-Za-z0-9._+-]*$")


class ExecControl(Body):
    """A later message of a client."""

    resize: TerminalSize | None = None
    eof: bool = False


@dataclass(frozen=True, slots=True)
class RelayTimes:
    """How long a session may last, and how long nothing may happen in it."""

    idle_seconds: float
    seconds_max: float
    send_seconds_max: float


async def first_message(socket: WebSocket, seconds: float) -> ExecCommand:
    """The command. Raises the problem of a message that is none, or that does not come."""
    try:
        async with asyncio.timeout(seconds):
            message = await socket.receive()
    except TimeoutError:
        detail = f"no command came within {seconds:g} s; send it as the first message"
        raise ProblemError(TIMEOUT, detail) from None
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code") or 1006)
    return _read(ExecCommand, message.get("text"))


def _read(kind: type[Any], text: str | None) -> Any:  # noqa: ANN401 - a value of that kind
    if text is None:
        raise ProblemError(MALFORMED, "this message is bytes; send JSON as text")
    try:
        return kind.model_validate(json_of(text.encode(), JSON_VALUES_MAX))
    except ValidationError as error:
        details = error.errors()
        for detail in details:
            detail["loc"] = ("body", *detail["loc"])
        raise of_validation(details, kind) from None
    except (InvalidInputError, ValueError) as problem:
        raise ProblemError(MALFORMED, f"the message cannot be read: {problem}") from None


async def relay(
    socket: WebSocket, session: Session, lasting: StreamAuthorization, times: RelayTimes
) -> m.ExecEnd:
    """Carry data in both directions until the command ends; returns how it ended. Raises the
    problem that ended the session, and ``WebSocketDisconnect`` if the client is gone."""
    command = asyncio.ensure_future(_to_client(socket, session, times.send_seconds_max))
    parts: list[asyncio.Future[Any]] = [
        command,
        *_started(
            _from_client(socket, session),
            session.run(),
            _until_idle(session, times.idle_seconds),
            _until_late(times.seconds_max),
            _until_forbidden(lasting),
        ),
    ]
    try:
        done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        if command not in done or command.exception():
            for part in done:
                # Raises what ended the session.
                part.result()
        return command.result()
    except SessionLostError as problem:
        detail = f"the session was lost: {problem}; what ran in it is ended"
        raise ProblemError(UNAVAILABLE, detail) from problem
    except TimeoutError as problem:
        detail = f"the client has read nothing for {times.send_seconds_max:g} s"
        raise ProblemError(TIMEOUT, detail) from problem
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)


async def _to_client(socket: WebSocket, session: Session, send_seconds_max: float) -> m.ExecEnd:
    while True:
        frame = await session.receive()
        if frame.end is not None:
            return frame.end
        if frame.data:
            async with asyncio.timeout(send_seconds_max):
                await socket.send_bytes(CHANNELS[frame.stream] + frame.data)


async def _from_client(socket: WebSocket, session: Session) -> None:
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code") or 1006)
        data = message.get("bytes")
        if data is None:
            await _control(session, _read(ExecControl, message.get("text")))
        elif data[:1] != STDIN:
            detail = f"there is no input stream {data[:1].hex()}; begin a message with byte 0"
            raise ProblemError(MALFORMED, detail)
        else:
            await session.send(m.ExecStream.STDIN, data[1:])


def _started(*parts: Coroutine[Any, Any, Any]) -> list[asyncio.Future[Any]]:
    return [asyncio.ensure_future(part) for part in parts]


async def _control(session: Session, control: ExecControl) -> None:
    if control.resize is not None:
        await session.resize(control.resize.rows, control.resize.columns)
    if control.eof:
        await session.send_eof(m.ExecStream.STDIN)


async def _until_idle(session: Session, seconds: float) -> None:
    """Raises once nothing was typed or written for so long."""
    loop, never = asyncio.get_running_loop(), asyncio.Event()
    while (left := session.active_at_s + seconds - loop.time()) > 0:
        try:
            async with asyncio.timeout(left):
                await never.wait()
        except TimeoutError:
            continue
    detail = f"nothing was typed or written for {seconds:g} s; the session is ended"
    raise ProblemError(TIMEOUT, detail)


async def _until_late(seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()
    except TimeoutError:
        detail = f"a session lasts at most {seconds:g} s; open another"
        raise ProblemError(TIMEOUT, detail) from None


async def _until_forbidden(lasting: StreamAuthorization) -> None:
    await lasting.over.wait()
    raise ProblemError(FORBIDDEN, lasting.why)


def as_text(document: object) -> str:
    """A text message to a client."""
    return json.dumps(document)

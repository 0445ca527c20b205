"""A command in a container, with its streams, over the API server's WebSocket.

``KubeClient.run_in`` is for short commands of the platform's own; this is for those of people.
Channels: 0 standard input, 1 output, 2 error, 3 how the command ended, 4 the terminal's size, and,
in version 5 of the protocol, 255 for the end of a channel.

Reference: https://kubernetes.io/docs/reference/using-api/api-concepts/ and KEP-4006.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from libs.kube.transport import Transport

STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
VERSION_5, VERSION_4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
OPEN_SECONDS = 15.0
HEARTBEAT_SECONDS = 15.0
EXIT_CODE = "ExitCode"
MESSAGE_CHARACTERS_MAX = 400


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code, or why there is none."""

    code: int | None
    problem: str = ""


class ContainerExec:
    """A command that runs."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.ended: Ended | None = None

    @property
    def can_close_input(self) -> bool:
        """False on API servers before Kubernetes 1.30."""
        return self._socket.protocol == VERSION_5

    async def read(self) -> tuple[int, bytes] | None:
        """The next output and its channel; None once ``ended`` is known."""
        while self.ended is None:
            message = await self._socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                self.ended = Ended(None, "the connection to the container was cut off")
            elif message.data[:1] == bytes([STATUS]) and len(message.data) > 1:
                self.ended = _read_status(message.data[1:])
            elif message.data[0] in (STDOUT, STDERR) and len(message.data) > 1:
                return message.data[0], message.data[1:]
        return None

    async def write(self, channel: int, data: bytes) -> None:
        """Send data; returns once the connection takes more. Nothing if it is gone."""
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):
            await self._socket.send_bytes(bytes([channel]) + data)

    async def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        await self.write(RESIZE, orjson.dumps({"Width": columns, "Height": rows}))

    async def close_input(self) -> None:
        """Its standard input has no more data."""
        await self.write(CLOSE, bytes([STDIN]))


@contextlib.asynccontextmanager
async def open_exec(
    transport: Transport, pod_path: str, container: str, argv: Sequence[str], *, terminal: bool
) -> AsyncGenerator[ContainerExec]:
    """Start a command in a container. Raises what ``Transport.dialog`` raises. Closing the context
    only hangs up: the command may go on."""
    query = [("container", container), ("stdin", "true"), ("stdout", "true")]
    query += [("tty", "true")] if terminal else [("stderr", "true")]
    query += [("command", word) for word in argv]
    async with transport.dialog(
        f"{pod_path}/exec",
        query=query,
        protocols=(VERSION_5, VERSION_4),
        open_seconds=OPEN_SECONDS,
        heartbeat_seconds=HEARTBEAT_SECONDS,
    ) as socket:
        yield ContainerExec(socket)


def _read_status(raw: bytes) -> Ended:
    try:
        status: dict[str, Any] = orjson.loads(raw)
        if status.get("status") == "Success":
            return Ended(0)
        details: dict[str, Any] = status.get("details") or {}
        causes: list[dict[str, Any]] = details.get("causes") or []
        for cause in causes:
            if cause.get("reason") == EXIT_CODE:
                return Ended(int(cause["message"]))
        return Ended(None, str(status.get("message") or "it failed")[:MESSAGE_CHARACTERS_MAX])
    except (ValueError, AttributeError, KeyError, TypeError):
        return Ended(None, "the API server's report of the end cannot be read")

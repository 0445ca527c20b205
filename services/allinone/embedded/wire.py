"""Checks whether a server answers, in its own protocol and without a client library.

A port that is open proves little: PostgreSQL listens while it still replays its log, and NATS
before a user may speak. Called by the servers' ``healthy``.
"""

from __future__ import annotations

import asyncio
import errno
import json
import struct
from pathlib import Path

# This process has no descriptors, memory or buffers left: no word on whoever is at the other end.
_OUR_OWN = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_PROTOCOL_3 = 0x00030000
_LINE_BYTES_MAX = 64 * 1024
# NATS sends this to a connection above ``max_connections``, and closes it.
_TOO_MANY = "maximum connections exceeded"


# A service of the server's system account: what is wrong with the server and with each stream.
NATS_HEALTH = "$SYS.REQ.SERVER.PING.HEALTHZ"
# NATS reports this for a stream that refuses every message because a write failed once.
_REFUSES = "write error"
_INBOX = "_INBOX.health"


class RestartWouldNotHelpError(Exception):
    """A server is not well, or nobody knows, and a restart now would not make it better."""


class CannotCheckError(RestartWouldNotHelpError):
    """A check could not be made, so the server's state is unknown."""


def _own_exhaustion(problem: Exception) -> None:
    """Raise CannotCheckError if the problem is ours and not the server's."""
    if isinstance(problem, OSError) and problem.errno in _OUR_OWN:
        raise CannotCheckError(f"this process is out of resources: {problem}") from problem


async def postgres_answers(socket: Path, seconds_max: float) -> str:
    """Return an empty text if PostgreSQL requests a password, otherwise the problem.

    A start-up message is enough: the server first checks whether it accepts connections, then
    requests the user's password.
    """
    try:
        async with asyncio.timeout(seconds_max):
            reader, writer = await asyncio.open_unix_connection(str(socket))
            try:
                body = b"user\0health\0database\0postgres\0\0"
                writer.write(struct.pack("!II", len(body) + 8, _PROTOCOL_3) + body)
                kind = await reader.readexactly(1)
                length = struct.unpack("!I", await reader.readexactly(4))[0]
                text = await reader.readexactly(min(length - 4, _LINE_BYTES_MAX))
            finally:
                writer.close()
    except TimeoutError:
        return f"no answer on {socket} within {seconds_max:g} s"
    except (OSError, asyncio.IncompleteReadError) as problem:
        _own_exhaustion(problem)
        return f"{socket}: {problem}"
    if kind == b"R":
        return ""
    fields = [part.decode(errors="replace") for part in text.split(b"\0")]
    return next((part[1:] for part in fields if part.startswith("M")), "refused the connection")


class NatsConnection:
    """A user's connection to NATS, kept open from check to check.

    Whoever reaches the port can open as many connections as the server takes, and more: then it
    lets nobody in, but still answers on the connections that it has. So a check of a new
    connection proves nothing about a server, and silence on this one means that it hangs.
    """

    def __init__(self, port: int, user: str, password: str) -> None:
        self._port, self._user, self._password = port, user, password
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()
        self._is_closed = False

    async def answers(self, seconds_max: float) -> str:
        """Empty if NATS lets this user in and has JetStream; otherwise why not.

        CannotCheckError if the server has no connection left for this user.
        """
        return await self._check(seconds_max)

    async def stores(self, seconds_max: float) -> str:
        """As ``answers``, and besides which stream refuses to store since a write of it failed.
        The user must be allowed ``NATS_HEALTH``."""
        return await self._check(seconds_max, streams=True)

    async def _check(self, seconds_max: float, *, streams: bool = False) -> str:
        try:
            # One check at a time: two would each open a connection, and read each other's answers.
            async with asyncio.timeout(seconds_max), self._turn:
                problem = "" if await self._pong() else await self._enter()
                return problem or (await self._refusing_stream() if streams else "")
        except TimeoutError:
            return f"no answer on port {self._port} within {seconds_max:g} s"
        except (OSError, ValueError, asyncio.IncompleteReadError) as problem:
            _own_exhaustion(problem)
            return f"port {self._port}: {problem}"

    def close(self) -> None:
        """Disconnect for good. A check that is connecting meanwhile keeps no connection."""
        self._is_closed = True
        self._disconnect()

    def _disconnect(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _enter(self) -> str:
        """Connect again; keep the connection if the server accepts the user."""
        self._disconnect()
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._port, limit=_LINE_BYTES_MAX
        )
        problem = "not connected"
        try:
            information = (await reader.readline()).decode(errors="replace")
            options = {
                "user": self._user,
                "pass": self._password,
                "verbose": False,
                "pedantic": False,
                "lang": "python",
            }
            writer.write(f"CONNECT {json.dumps(options)}\r\nPING\r\n".encode())
            answer = (await reader.readline()).decode(errors="replace").strip()
            if _TOO_MANY in information + answer:
                raise CannotCheckError(f"NATS on port {self._port}: {_TOO_MANY}")
            problem = _entered(self._port, information, answer)
            return problem
        finally:
            if problem or self._is_closed:
                writer.close()
            else:
                self._streams = reader, writer

    async def _pong(self) -> bool:
        """True once the server answers; False if there is no connection, or it is over."""
        try:
            await self._until(b"PONG", b"PING\r\n")
        except (ConnectionError, ValueError):
            return False
        return True

    async def _refusing_stream(self) -> str:
        """Which stream refuses every message since a write failed, and why; empty if none does.

        Other faults of a stream (it could not be recovered) are not healed by a restart, and must
        not cost the other streams their server.
        """
        ask = f"SUB {_INBOX} 1\r\nUNSUB 1 1\r\nPUB {NATS_HEALTH} {_INBOX} 0\r\n\r\n"
        reader, line = await self._until(b"MSG ", ask.encode())
        health = json.loads(await reader.readexactly(int(line.split()[-1])))
        problem = str(health["data"].get("error", ""))
        return problem if _REFUSES in problem else ""

    async def _until(self, start: bytes, ask: bytes) -> tuple[asyncio.StreamReader, bytes]:
        """Ask, and read up to the line that begins so. ConnectionError if the connection ends,
        ValueError for an error of the server."""
        if self._streams is None:
            raise ConnectionError("not connected")
        reader, writer = self._streams
        writer.write(ask)
        while line := await reader.readline():
            if line.startswith(start):
                return reader, line
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise ValueError(line.decode(errors="replace").strip())
        raise ConnectionError("it closed the connection")


async def nats_answers(port: int, user: str, password: str, seconds_max: float) -> str:
    """Empty if NATS lets this user in, on a connection of its own, and has JetStream; otherwise why
    not. CannotCheckError as for ``NatsConnection``."""
    connection = NatsConnection(port, user, password)
    try:
        return await connection.answers(seconds_max)
    finally:
        connection.close()


def _entered(port: int, information: str, answer: str) -> str:
    """Return the problem of a server that sent this INFO, and then this answer to a PING."""
    if answer != "PONG":
        return answer or "it closed the connection"
    try:
        server: dict[str, object] = json.loads(information.removeprefix("INFO "))
    except ValueError:
        return f"port {port} is not NATS"
    return "" if server.get("jetstream") else "JetStream is off"

"""Asks a server whether it answers, in its own protocol and without a client library.

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


class CannotCheckError(Exception):
    """A check could not be made, for a reason of this process's own."""


def _own_exhaustion(problem: Exception) -> None:
    """Raise CannotCheckError if the problem is ours and not the server's."""
    if isinstance(problem, OSError) and problem.errno in _OUR_OWN:
        raise CannotCheckError(f"this process is out of resources: {problem}") from problem


async def postgres_answers(socket: Path, seconds_max: float) -> str:
    """Empty if PostgreSQL asks us for a password; otherwise why it does not.

    A start-up message is enough: the server first looks whether it accepts connections, then asks
    who is there.
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


async def nats_answers(port: int, user: str, password: str, seconds_max: float) -> str:
    """Empty if NATS lets this user in and has JetStream; otherwise why not."""
    options = {
        "user": user,
        "pass": password,
        "verbose": False,
        "pedantic": False,
        "lang": "python",
    }
    try:
        async with asyncio.timeout(seconds_max):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_LINE_BYTES_MAX)
            try:
                information = (await reader.readline()).decode(errors="replace")
                writer.write(f"CONNECT {json.dumps(options)}\r\nPING\r\n".encode())
                answer = (await reader.readline()).decode(errors="replace").strip()
            finally:
                writer.close()
    except TimeoutError:
        return f"no answer on port {port} within {seconds_max:g} s"
    except (OSError, ValueError) as problem:
        _own_exhaustion(problem)
        return f"port {port}: {problem}"
    if answer != "PONG":
        return answer or "it closed the connection"
    try:
        server: dict[str, object] = json.loads(information.removeprefix("INFO "))
    except ValueError:
        return f"port {port} is not NATS"
    return "" if server.get("jetstream") else "JetStream is off"

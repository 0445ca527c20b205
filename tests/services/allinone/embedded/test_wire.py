"""Health probes against servers that misbehave; good answers are seen in the servers' own tests."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.allinone.embedded import wire

INFO = b'INFO {"jetstream": true}\r\n'


@asynccontextmanager
async def nats_that_sends(*parts: bytes) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(parts[0])
        for part in parts[1:]:
            await reader.readline()
            await reader.readline()
            writer.write(part)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((INFO, b"PONG\r\n"), ""),
        ((b'INFO {"max_payload": 1}\r\n', b"PONG\r\n"), "JetStream is off"),
        ((INFO, b"-ERR 'Authorization Violation'\r\n"), "-ERR 'Authorization Violation'"),
        ((INFO, b""), "it closed the connection"),
        ((b"HTTP/1.1 400 Bad Request\r\n", b"PONG\r\n"), "is not NATS"),
        ((b"x" * 200_000,), "port"),
    ],
)
async def test_nats(parts: tuple[bytes, ...], words: str) -> None:
    async with nats_that_sends(*parts) as port:
        answer = await wire.nats_answers(port, "u", "p", 5)
    assert words in answer
    assert bool(words) == bool(answer)


async def test_a_server_that_does_not_listen_is_named(tmp_path: Path) -> None:
    assert "nowhere" in await wire.postgres_answers(tmp_path / "nowhere", 1)
    async with nats_that_sends(INFO, b"") as port:
        pass
    assert f"port {port}" in await wire.nats_answers(port, "u", "p", 1)


async def postgres_answer(folder: Path, answer: bytes | None) -> str:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = struct.unpack("!I", await reader.readexactly(4))[0]
        await reader.readexactly(length - 4)
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
        writer.close()

    async with await asyncio.start_unix_server(serve, folder / "s"):
        return await wire.postgres_answers(folder / "s", 0.3)


async def test_postgres(tmp_path: Path) -> None:
    fields = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0"
    refusal = b"E" + struct.pack("!I", len(fields) + 4) + fields
    assert await postgres_answer(tmp_path, refusal) == "the database system is starting up"
    authentication_request = b"R" + struct.pack("!II", 8, 10)
    assert await postgres_answer(tmp_path, authentication_request) == ""
    assert "no answer" in await postgres_answer(tmp_path, None)
    assert await postgres_answer(tmp_path, b"") != ""

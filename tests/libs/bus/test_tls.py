"""TLS between a client and a real server: which certificates are trusted, nothing sent in clear."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from libs.bus.connection import BusConfig, Credentials, open_client
from libs.bus.port import BusUnavailableError
from services.allinone.embedded.nats import program
from tools.cluster.access import ensure_certificates

USER = Credentials("scheduler", "secret")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    ensure_certificates(folder, ["127.0.0.1"])
    return folder


@contextmanager
def a_server(folder: Path, tls: str) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = int(found.getsockname()[1])
    config = folder / "nats.conf"
    users = f'authorization {{users: [{{user: {USER.user}, password: "{USER.password}"}}]}}'
    config.write_text(f"listen: 127.0.0.1:{port}\n{users}\n{tls}\n")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program(), "-c", config], stdout=log, stderr=log)
    try:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="module")
def secure(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    tls = f'tls {{cert_file: "{keys}/server.crt", key_file: "{keys}/server.key"}}'
    with a_server(tmp_path_factory.mktemp("secure"), tls) as port:
        yield port


async def enter(url: str, ca_file: Path | None = None) -> None:
    config = BusConfig(
        urls=(url,), service="scheduler", credentials=USER, ca_file=ca_file, connect_timeout_s=2
    )
    client = await open_client(config)
    await client.flush()
    await client.close()


async def test_a_private_certificate_authority_is_accepted(secure: int, keys: Path) -> None:
    await enter(f"tls://127.0.0.1:{secure}", keys / "ca.crt")


async def test_nothing_is_sent_to_a_server_whose_certificate_nobody_vouches_for(
    secure: int,
) -> None:
    with pytest.raises(BusUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        await enter(f"tls://127.0.0.1:{secure}")


async def test_a_server_that_is_not_the_one_of_the_address(secure: int, keys: Path) -> None:
    with pytest.raises(BusUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        await enter(f"tls://localhost:{secure}", keys / "ca.crt")


async def test_a_password_is_never_sent_without_tls(keys: Path) -> None:
    """A man in the middle removes the requirement of TLS from the server's greeting."""
    received = bytearray()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.12.0","auth_required":true}\r\n')
        received.extend(await reader.read(4096))
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(BusUnavailableError, match="does not speak TLS"):
            await enter(f"tls://127.0.0.1:{port}", keys / "ca.crt")
    assert USER.password.encode() not in received


async def test_without_tls_in_the_address_a_plain_server_is_fine(tmp_path: Path) -> None:
    with a_server(tmp_path, "") as port:
        await enter(f"nats://127.0.0.1:{port}")

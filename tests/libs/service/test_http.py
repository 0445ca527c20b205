"""The HTTP part of a service lets go of everything when its service ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import ValidationError
from websockets.asyncio.client import connect

from libs.service import connections
from libs.service.connections import HttpLimits, raise_descriptor_limit
from libs.service.http import Asgi, Receive, Scope, Send, serve_http
from libs.service.settings import BaseServiceSettings


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_on_its_way_in_is_closed_too(turns: int) -> None:
    """The server closes it at whichever iteration of the loop the accept has reached."""
    bound = asyncio.get_running_loop().create_future()
    serving = asyncio.ensure_future(
        serve_http(
            None, host="127.0.0.1", port=0, ready=lambda: (True, ""), on_bound=bound.set_result
        )
    )
    port = await bound
    await asyncio.sleep(0.05)
    with socket.create_connection(("127.0.0.1", port)) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        client.settimeout(0.5)
        with contextlib.suppress(ConnectionResetError):  # it was never accepted
            assert await asyncio.to_thread(client.recv, 1) == b""
    gc.collect()


HEAD = b"GET /healthz HTTP/1.1\r\nhost: x\r\n"


@contextlib.asynccontextmanager
async def serving(
    limits: HttpLimits,
    app: Asgi | None = None,
    metrics_token: str | None = None,
    trusted_proxies: str = "",
) -> AsyncIterator[int]:
    bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    running = asyncio.ensure_future(
        serve_http(
            app,
            host="127.0.0.1",
            port=0,
            ready=lambda: (True, ""),
            on_bound=bound.set_result,
            limits=limits,
            metrics_token=metrics_token,
            trusted_proxies=trusted_proxies,
        )
    )
    try:
        yield await bound
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def status(port: int, head: bytes = HEAD) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head + b"connection: close\r\n\r\n")
        return (await reader.readline()).split(b" ")[1]
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("shown", "code"),
    [
        (b"", b"401"),
        (b"authorization: Bearer wrong\r\n", b"401"),
        (b"authorization: Basic secret\r\n", b"401"),
        (b"authorization: Bearer \xff\r\n", b"401"),
        (b"authorization: Bearer secret\r\nauthorization: Bearer wrong\r\n", b"401"),
        (b"authorization: bearer secret\r\n", b"200"),
        (b"Authorization: Bearer secret\r\n", b"200"),
    ],
)
async def test_metrics_may_ask_for_a_token_and_the_probes_never_do(
    shown: bytes, code: bytes
) -> None:
    async with serving(HttpLimits(), metrics_token="secret") as port:
        assert await status(port) == b"200"
        assert await status(port, b"GET /metrics HTTP/1.1\r\nhost: x\r\n" + shown) == code


def test_a_token_file_for_metrics_that_is_empty_or_not_there_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    servers = {"database_url": "postgresql://", "nats_url": "nats://127.0.0.1"}
    with pytest.raises(ValidationError, match="cannot be read: No such file"):
        BaseServiceSettings(**servers, http_metrics_token_file=file)
    file.write_text("\n")
    with pytest.raises(ValidationError, match="is empty"):
        BaseServiceSettings(**servers, http_metrics_token_file=file)
    file.write_text("secret\n")
    settings = BaseServiceSettings(**servers, http_metrics_token_file=file)
    assert settings.metrics_token() == "secret"
    assert BaseServiceSettings(**servers).metrics_token() is None


async def closed(reader: asyncio.StreamReader, seconds_max: float) -> bool:
    """True if the other side ends the connection in time."""
    try:
        async with asyncio.timeout(seconds_max):
            await reader.read()
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


async def test_silent_connections_are_closed_in_favour_of_active_ones() -> None:
    """At the limit, per address or in total, the server closes the oldest silent connection."""
    for limits in (HttpLimits(total_max=100, address_max=20), HttpLimits(total_max=20)):
        async with serving(limits) as port, contextlib.AsyncExitStack() as stack:
            for _ in range(200):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                stack.callback(writer.close)
                writer.write(HEAD)
            assert await status(port) == b"200"


async def test_connections_that_wait_for_answers_are_not_pushed_out() -> None:
    release = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await release.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with serving(HttpLimits(total_max=10, address_max=5), slow) as port:
        waiting = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        for _, writer in waiting:
            writer.write(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.sleep(0.2)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await closed(
            reader, 2
        )  # the sixth: no connection is silent, so none is closed for it
        writer.close()
        release.set()
        for reader, writer in waiting:
            assert b"204" in await reader.readline()
            writer.close()


async def test_websockets_are_counted_until_they_end() -> None:
    async def talk(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "websocket"
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass

    # Longer than a request may keep us waiting: a WebSocket is allowed to be silent.
    limits = HttpLimits(total_max=10, address_max=3, head_seconds=0.1)
    async with serving(limits, talk) as port:
        sockets = [await connect(f"ws://127.0.0.1:{port}/") for _ in range(3)]
        await asyncio.sleep(2 * connections.CHECK_SECONDS + 0.2)
        with pytest.raises((IndexError, ConnectionError)):  # the fourth is closed without an answer
            await status(port)
        await sockets.pop().close()
        assert await status(port) == b"200"
        for each in sockets:
            pong = await each.ping()
            await asyncio.wait_for(pong, 5)
            await each.close()


@pytest.mark.parametrize(
    "sent",
    [b"", HEAD, b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc"],
    ids=["nothing", "half a head", "half a body"],
)
async def test_a_connection_that_stops_sending_is_closed(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CHECK_SECONDS", 0.05)

    async def reads(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, send
        while (await receive()).get("more_body"):
            pass

    limits = HttpLimits(head_seconds=0.3, body_seconds=0.3)
    async with serving(limits, reads) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await closed(reader, 5)
        writer.close()


async def test_an_answer_that_nobody_takes_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CHECK_SECONDS", 0.05)
    ended = asyncio.Event()

    async def much(scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 50_000_000})
        while (await receive())["type"] != "http.disconnect":
            pass
        ended.set()

    async with serving(HttpLimits(send_seconds=0.3), much) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /much HTTP/1.1\r\nhost: x\r\n\r\n")
            async with asyncio.timeout(5):
                await ended.wait()


def test_the_limit_of_open_files_is_raised_to_what_the_system_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        assert raise_descriptor_limit() == before[1]
        assert HttpLimits().total_max > 256 or before[1] <= 512
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("proxies", "seen"),
    [
        ("", b"http 127.0.0.1"),
        ("10.0.0.7, 10.1.0.0/16", b"http 127.0.0.1"),
        ("10.0.0.7,127.0.0.1", b"https 192.0.2.9"),
        ("127.0.0.0/8", b"https 192.0.2.9"),
    ],
)
async def test_the_word_of_proxies_that_are_named_counts_and_of_nobody_else(
    proxies: str, seen: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of this machine is no proxy, whatever uvicorn's own variable says."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = f"{scope['scheme']} {scope['client'][0]}".encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async with serving(HttpLimits(), app, trusted_proxies=proxies) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"GET / HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 192.0.2.9\r\n"
            b"x-forwarded-proto: https\r\nconnection: close\r\n\r\n"
        )
        assert seen in await reader.read()
        writer.close()


@pytest.mark.parametrize(
    "proxies",
    [
        *("*", "proxy.example.org", "10.0.0.1/8", "0.0.0.0/0", "::/0", "10.0.0.7, 128.0.0.0/1"),
        *("fc00::/7", "::ffff:0:0/96", "::ffff:10.0.0.0/103"),
    ],
)
def test_a_proxy_is_named_by_its_address(proxies: str) -> None:
    with pytest.raises(ValidationError, match=r"10\.1\.0\.0/16"):
        BaseServiceSettings(database_url="-", nats_url="-", http_trusted_proxies=proxies)

"""The client against a server on this machine that answers as API servers do on bad days."""

from __future__ import annotations

import asyncio
import gc
import json
import select
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from kubernetes_asyncio.client.configuration import Configuration

from libs.kube.client import (
    ApiError,
    CallLimits,
    KubeClient,
    LineTooLongError,
    UnavailableError,
    namespaced,
)
from libs.kube.transport import ConfigurationError, Transport

Answer = Callable[[web.Request], web.StreamResponse]
PODS = namespaced("ns", "pods")


def status(code: int, reason: str = "", message: str = "", **headers: str) -> Answer:
    body = {"kind": "Status", "reason": reason, "message": message, "code": code}
    return lambda _: web.json_response(body, status=code, headers=headers)


def fine(**body: Any) -> Answer:
    return lambda _: web.json_response(body)


def hangs_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


class Server:
    """Gives the next of its answers to each request, the last one again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers: list[Answer] = [fine()]
        self.requests: list[tuple[str, str, str]] = []
        self.most = self.now = 0
        self.slow = 0.0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(
            (request.method, request.path, request.headers.get("Authorization", ""))
        )
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.slow)
            return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])(request)
        finally:
            self.now -= 1

    def token(self, token: str) -> None:
        cluster = {"server": self.url}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        (self.folder / "kubeconfig").write_text(json.dumps(config))

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        host, port = self.runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        self.token("one")


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server(tmp_path)
    await made.start()
    yield made
    await made.runner.cleanup()


@pytest_asyncio.fixture
async def client(server: Server) -> AsyncIterator[KubeClient]:
    limits = CallLimits(
        parallel_max=4, seconds=1, tries_max=3, pause_first_seconds=0.01, pause_most_seconds=0.02
    )
    transport = Transport(server.folder / "kubeconfig", 8)
    made = KubeClient(transport, limits)
    yield made
    await made.close()


async def test_a_call(server: Server, client: KubeClient) -> None:
    server.answers = [fine(kind="Pod")]
    assert await client.create(PODS, {"kind": "Pod"}) == {"kind": "Pod"}
    assert server.requests == [("POST", "/api/v1/namespaces/ns/pods", "Bearer one")]


@pytest.mark.parametrize("trouble", [status(503), status(500), status(429), hangs_up])
async def test_a_temporary_problem_is_tried_again(
    server: Server, client: KubeClient, trouble: Answer
) -> None:
    server.answers = [trouble, trouble, fine(kind="Pod")]
    assert await client.get(PODS) == {"kind": "Pod"}
    assert len(server.requests) == 3


@pytest.mark.parametrize("trouble", [status(503, message="etcd is away"), hangs_up])
async def test_tries_are_bounded(server: Server, client: KubeClient, trouble: Answer) -> None:
    server.answers = [trouble]
    with pytest.raises(UnavailableError):
        await client.create(PODS, {})
    assert len(server.requests) == 3


async def test_a_retry_waits_as_long_as_the_server_requests(
    server: Server, client: KubeClient
) -> None:
    server.answers = [status(429, **{"Retry-After": "1"}), fine()]
    loop = asyncio.get_running_loop()
    began = loop.time()
    await client.get(PODS)
    assert loop.time() - began >= 0.99


async def test_a_final_refusal_is_not_tried_again(server: Server, client: KubeClient) -> None:
    server.answers = [status(403, "Forbidden", "exceeded quota")]
    with pytest.raises(ApiError, match="exceeded quota") as raised:
        await client.create(PODS, {})
    assert (raised.value.status, raised.value.repeated) == (403, False)
    assert len(server.requests) == 1


async def test_an_existing_name_after_an_unanswered_try_may_be_our_own_object(
    server: Server, client: KubeClient
) -> None:
    """The first try got no answer and may have taken effect."""
    server.answers = [hangs_up, status(409, "AlreadyExists", "it is there")]
    with pytest.raises(ApiError) as raised:
        await client.create(PODS, {})
    assert raised.value.exists
    assert raised.value.repeated


async def test_writers_of_one_quota_try_again(server: Server, client: KubeClient) -> None:
    busy = 'Operation cannot be fulfilled on resourcequotas "q": the object has been modified'
    server.answers = [status(409, "Conflict", busy), fine(kind="Pod")]
    assert await client.create(PODS, {}) == {"kind": "Pod"}


async def test_a_refused_token_is_renewed_once(server: Server, client: KubeClient) -> None:
    await client.get(PODS)
    server.token("two")
    server.answers = [status(401), fine()]
    await client.get(PODS)
    assert [token for *_, token in server.requests] == ["Bearer one", "Bearer one", "Bearer two"]
    server.answers = [status(401)]
    with pytest.raises(UnavailableError, match="expired or unknown"):
        await client.get(PODS)


async def test_a_call_has_a_timeout(server: Server, client: KubeClient) -> None:
    server.slow = 2.5
    with pytest.raises(UnavailableError, match="does not answer"):
        await asyncio.wait_for(client.get(PODS), 5)


async def test_the_number_of_parallel_calls_is_bounded(server: Server, client: KubeClient) -> None:
    server.slow = 0.02
    await asyncio.gather(*(client.get(PODS) for _ in range(20)))
    assert server.most == 4


async def test_deleting_a_missing_object_returns_none(server: Server, client: KubeClient) -> None:
    server.answers = [status(404, "NotFound")]
    assert await client.delete(f"{PODS}/x") is None


async def test_pages(server: Server, client: KubeClient) -> None:
    def page(request: web.Request) -> web.StreamResponse:
        number = int(request.query.get("continue", "0"))
        more = {"continue": str(number + 1)} if number < 2 else {}
        meta = {"resourceVersion": "7", **more}
        return web.json_response({"items": [{"number": number}], "metadata": meta})

    server.answers = [page]
    found = [(items, version) async for items, version in client.pages(PODS, labelSelector="a=b")]
    assert found == [([{"number": number}], "7") for number in range(3)]


async def test_an_answer_that_is_no_json(server: Server, client: KubeClient) -> None:
    server.answers = [lambda _: web.Response(status=404, text="404 page not found")]
    with pytest.raises(ApiError, match="404 page not found"):
        await client.get(PODS)
    server.answers = [lambda _: web.Response(text="<html>")]
    with pytest.raises(UnavailableError, match="is no JSON"):
        await client.get(PODS)


async def test_a_closed_client_sends_nothing(server: Server, client: KubeClient) -> None:
    await client.close()
    with pytest.raises(UnavailableError):
        await client.get(PODS)
    assert server.requests == []


@pytest.mark.parametrize("text", ["nonsense: [", "{}", '{"current-context": "x"}'])
async def test_a_wrong_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    made = Transport(path, 1)
    with pytest.raises(ConfigurationError, match=f"kubeconfig {path} cannot be used"):
        await made.send("GET", "/", query={}, headers={}, body=None, seconds=1)
    await made.close()


async def watched(client: KubeClient) -> list[Any]:
    async with client.watch(PODS, 1.0, watch="true") as events:
        return [event async for event in events]


def lines(text: bytes) -> Answer:
    return lambda _: web.Response(body=text)


async def test_a_watch_gives_whole_events(server: Server, client: KubeClient) -> None:
    server.answers = [lines(b'{"n":1}\n\n{"n":2}\n{"n":')]
    assert await watched(client) == [{"n": 1}, {"n": 2}]


async def test_a_watch_ends_at_a_line_without_an_end(
    server: Server, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("libs.kube.client.LINE_BYTES_MAX", 100)
    server.answers = [lines(b"x" * 101)]
    with pytest.raises(LineTooLongError):
        await watched(client)


async def test_a_watch_that_is_refused(server: Server, client: KubeClient) -> None:
    server.answers = [status(410, "Expired", "too old"), status(401), hangs_up]
    with pytest.raises(ApiError, match="too old"):
        await watched(client)
    server.token("two")
    with pytest.raises(UnavailableError, match="expired or unknown"):
        await watched(client)
    with pytest.raises(UnavailableError, match="does not answer"):
        await watched(client)
    assert [token for *_, token in server.requests][:3] == [
        "Bearer one",
        "Bearer one",
        "Bearer two",
    ]


async def test_an_answer_is_read_on_while_credentials_are_renewed(
    server: Server, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("libs.kube.transport.RENEW_SECONDS_MIN", 0.0)
    pieces: asyncio.Queue[bytes] = asyncio.Queue()
    pieces.put_nowait(b"begin")

    async def body() -> AsyncIterator[bytes]:
        while piece := await pieces.get():
            yield piece

    server.answers = [lambda _: web.Response(body=body()), fine()]
    response = await client.open(PODS, read_seconds=5.0)
    assert await response.content.readany() == b"begin"
    for number in range(3):
        await client.transport.renew()
        await client.get(PODS)
        pieces.put_nowait(b"%d" % number)
        assert await response.content.readany() == b"%d" % number
    pieces.put_nowait(b"")
    assert await response.content.read() == b""
    for _ in range(2):
        await client.transport.renew()
        await client.get(PODS)
    assert len(client.transport._retired) == 1, "sessions that nobody reads are closed"


async def test_a_token_that_cannot_be_read_is_a_temporary_problem(
    client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*_: object) -> str:
        raise FileNotFoundError("the token's file")

    monkeypatch.setattr(Configuration, "get_api_key_with_prefix", gone)
    with pytest.raises(UnavailableError, match="the token cannot be read: the token's file"):
        await client.get(PODS)
    with pytest.raises(UnavailableError, match="the token cannot be read"):
        await client.open(PODS, read_seconds=1.0)


async def test_an_empty_answer_is_no_empty_list(server: Server, client: KubeClient) -> None:
    server.answers = [lambda _: web.Response()]
    with pytest.raises(UnavailableError, match="is no JSON"):
        await client.get(PODS)
    server.answers = [fine(metadata=None, items=None)]
    assert [page async for page in client.pages(PODS)] == [([], "")]


async def test_a_refusal_without_a_message_shows_its_body(
    server: Server, client: KubeClient
) -> None:
    server.answers = [lambda _: web.json_response({"error": "no quota left"}, status=403)]
    with pytest.raises(ApiError, match="no quota left"):
        await client.get(PODS)


async def test_a_pod_without_an_account_of_its_own_uses_kubeconfig(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT", raising=False)
    made = Transport(None, 1)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(ConfigurationError):
        await made.connect()
    monkeypatch.setenv("KUBECONFIG", str(server.folder / "kubeconfig"))
    assert await made.connect() == server.url
    await made.close()


def silent_server(folder: Path) -> tuple[socket.socket, int]:
    """Answers a watch over TLS with one event, and then neither reads nor ends anything: so it also
    leaves a polite end of TLS without an answer."""
    made = (
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
        *("-nodes", "-keyout", "key", "-out", "certificate", "-days", "2", "-subj", "/CN=test"),
        *("-addext", "subjectAltName=IP:127.0.0.1"),
    )
    subprocess.run(made, check=True, capture_output=True, cwd=folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate", folder / "key")
    listening = socket.create_server(("127.0.0.1", 0))
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    line = b'{"type":"ADDED","object":{}}\n'

    def serve() -> None:
        plain, _ = listening.accept()
        with context.wrap_socket(plain, server_side=True) as connection:
            connection.recv(65_536)
            connection.sendall(head + b"%x\r\n%s\r\n" % (len(line), line))
            # Until the client's end of the connection is closed without a word.
            select.select([connection], [], [], 10)

    threading.Thread(target=serve, daemon=True).start()
    return listening, listening.getsockname()[1]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes the server's certificate")
def test_a_watch_that_is_left_closes_its_socket_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening, port = silent_server(tmp_path)
    found: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    kubeconfig = tmp_path / "config"
    cluster = {"server": f"https://127.0.0.1:{port}"}
    cluster["certificate-authority"] = str(tmp_path / "certificate")
    document = {
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }
    kubeconfig.write_text(json.dumps(document))

    async def watch() -> None:
        client = KubeClient(Transport(kubeconfig, 1), CallLimits())
        try:
            async with client.watch(PODS, 60, watch="true") as events:
                async for event in events:
                    assert event["type"] == "ADDED"
                    break
        finally:
            await client.close()

    asyncio.run(watch())
    gc.collect()
    listening.close()
    assert [str(each.exc_value) for each in found] == []

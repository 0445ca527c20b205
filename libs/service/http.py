"""HTTP as a child of the service's TaskGroup: probes, metrics, and the gateway's API.

uvicorn runs inside the group, not the group inside a lifespan: a part that dies takes HTTP down
with it, instead of leaving a process that still answers ``ok``. Connections are bounded in number,
in all and for each address, and in how long they may be silent (``connections.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
from collections.abc import Awaitable, Callable, Generator, MutableMapping, Sequence
from typing import Any

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from libs.service.connections import Connections, HttpLimits, WebSockets, bounded_protocol
from libs.service.loop import pause

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
SHUTDOWN_SECONDS_MAX = 5
WEBSOCKET_BYTES_MAX = 64 * 1024
WEBSOCKET_MESSAGES_MAX = 4
_YIELDS_TO_CONNECT = 2


METRICS = "/metrics"


class Probes:
    """/healthz, /readyz and /metrics; everything else goes to the service's own app.

    ``metrics_token``: requests for /metrics must carry it, as Prometheus does with a bearer token.
    """

    def __init__(
        self,
        app: Asgi | None,
        ready: Callable[[], tuple[bool, str]],
        metrics_token: str | None = None,
    ) -> None:
        self._app = app
        self._ready = ready
        self._shown = None if metrics_token is None else f"bearer {metrics_token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        if scope["type"] == "http" and scope["path"] == METRICS and not self._may_read(scope):
            challenge = [(b"www-authenticate", b"Bearer")]
            await _answer(send, 401, b"metrics need their token\n", "text/plain", challenge)
        elif scope["type"] == "http" and scope["path"] in _PROBES:
            await _answer(send, *_PROBES[scope["path"]](self._ready))
        elif self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _answer(send, 404, b"not found\n", "text/plain")

    def _may_read(self, scope: Scope) -> bool:
        if self._shown is None:
            return True
        found: list[bytes] = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = found[0].partition(b" ") if len(found) == 1 else (b"", b"", b"")
        return hmac.compare_digest(scheme.lower() + b" " + token.strip(), self._shown)


def _readiness(ready: Callable[[], tuple[bool, str]]) -> tuple[int, bytes, str]:
    yes, why = ready()
    return 200 if yes else 503, why.encode() + b"\n", "text/plain"


_PROBES: dict[str, Callable[[Callable[[], tuple[bool, str]]], tuple[int, bytes, str]]] = {
    "/healthz": lambda _: (200, b"ok\n", "text/plain"),
    "/readyz": _readiness,
    METRICS: lambda _: (200, generate_latest(), CONTENT_TYPE_LATEST),
}


async def _answer(
    send: Send,
    status: int,
    body: bytes,
    content_type: str,
    more: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: the process has one owner of signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def close(self, sock: socket.socket) -> None:
        """Let go of the port and of quiet connections: the loop may go on without this server."""
        try:
            await stop_accepting(sock)
        finally:
            for listening in getattr(self, "servers", ()):
                listening.close()
            for connection in list(self.server_state.connections):
                connection.shutdown()
            sock.close()


async def stop_accepting(sock: socket.socket) -> None:
    """Accept no more connections; the server knows all accepted ones when this returns.

    asyncio needs two iterations of its loop from accepting a connection to creating its protocol: a
    server that is closed in between leaves it half-made.
    """
    if sock.fileno() >= 0:
        asyncio.get_running_loop().remove_reader(sock)
    for _ in range(_YIELDS_TO_CONNECT):
        await pause(0)


async def serve_http(
    app: Asgi | None,
    *,
    host: str,
    port: int,
    ready: Callable[[], tuple[bool, str]],
    on_bound: Callable[[int], None] | None = None,
    limits: HttpLimits | None = None,
    metrics_token: str | None = None,
    trusted_proxies: str = "",
) -> None:
    """Serve until cancelled. ``on_bound`` gets the actual port (for port 0). ``trusted_proxies``:
    whose word for the client's address and scheme counts; nobody's unless they are named.

    OSError if the port is taken.
    """
    connections = Connections(limits or HttpLimits())
    config = uvicorn.Config(
        Probes(app, ready, metrics_token),
        host=host,
        port=port,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS_MAX,
        http=bounded_protocol(connections),
        ws=WebSockets,
        # uvicorn's own default trusts every process of this machine.
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=trusted_proxies,
        # Clients send next to nothing by WebSocket.
        ws_max_size=WEBSOCKET_BYTES_MAX,
        ws_max_queue=WEBSOCKET_MESSAGES_MAX,
    )
    try:
        sock = config.bind_socket()
    except SystemExit as ended:
        # uvicorn logs the reason and ends the process.
        raise OSError(f"cannot listen on {host}:{port}: {ended.__context__}") from ended
    if on_bound is not None:
        on_bound(sock.getsockname()[1])
    server = _Server(config)
    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(connections.watch())
            try:
                await server.serve(sockets=[sock])
            finally:
                watch.cancel()
        raise RuntimeError("the HTTP server ended by itself")
    finally:
        await server.close(sock)

"""A real HTTP server with the routes that a run talks to, for the SDK's tests."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "srt_ta.1.0a1b2c"


class RunServer:
    """Holds what the platform would: the request to leave, the checkpoints, the metrics."""

    def __init__(self, port: int = 0) -> None:
        self.changed = threading.Condition()
        self.revision = 0
        self.preempt = False
        self.superseded = False
        self.checkpoints: list[dict[str, Any]] = []
        self.samples: list[dict[str, Any]] = []
        self.ranks: list[int] = []
        self.metrics_answers: list[tuple[int, dict[str, Any]]] = []
        self.ready: list[dict[str, Any]] = []
        self.ready_answers: list[tuple[int, dict[str, Any]]] = []
        self.polls: list[dict[str, str]] = []
        self.checkpoint_answers: list[tuple[int, dict[str, Any]]] = []
        # What else a run asked for, and answers to give instead of 200.
        self.others: list[tuple[str, dict[str, Any]]] = []
        self.other_answers: list[tuple[int, dict[str, Any]]] = []
        self.life_state: dict[str, Any] = {}
        self.tokens: set[str] = set()
        self.traceparents: list[tuple[str, str | None]] = []
        self.hang = False
        self.ask_again_seconds = 0.0
        self._server: ThreadingHTTPServer | None = None
        self._sockets: set[Any] = set()
        self.port = port
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer._sockets.add(self.connection)

            def finish(self) -> None:
                outer._sockets.discard(self.connection)
                with contextlib.suppress(OSError):
                    super().finish()

            def log_message(self, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                outer._get(self)

            def do_POST(self) -> None:
                outer._post(self)

            def do_PUT(self) -> None:
                outer._post(self)

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # cut connections are what these tests do

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections and cut the ones there are."""
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        for connection in list(self._sockets):
            with contextlib.suppress(OSError):
                connection.shutdown(2)
        with self.changed:
            self.changed.notify_all()

    def ask_to_leave(self) -> None:
        with self.changed:
            self.preempt = True
            self.revision += 1
            self.changed.notify_all()

    def supersede(self) -> None:
        with self.changed:
            self.superseded = True
            self.revision += 1
            self.changed.notify_all()

    def wait_for(self, condition: Any, seconds: float = 5.0) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, "did not happen in time"
            time.sleep(0.005)

    def _get(self, request: BaseHTTPRequestHandler) -> None:
        self.tokens.add(request.headers.get("authorization", ""))
        if request.path == "/v1/run/state":
            _answer(request, 200, self.life_state or {"version": 0, "data": None})
            return
        query = {k: v[0] for k, v in parse_qs(urlsplit(request.path).query).items()}
        self.polls.append(query)
        if self.hang:
            time.sleep(30)
            return
        until = time.monotonic()
        if not self.ask_again_seconds:
            until += float(query.get("wait_seconds", "0"))
        with self.changed:
            while self.revision <= int(query.get("seen", "-1")) and self._server is not None:
                left = until - time.monotonic()
                if left <= 0 or not self.changed.wait(left):
                    break
            body = {
                "attempt": 1,
                "revision": self.revision,
                "preempt": self.preempt,
                "deadline_at": "2030-01-01T00:00:00Z" if self.preempt else None,
                "superseded": self.superseded,
                **({"ask_again_seconds": self.ask_again_seconds} if self.ask_again_seconds else {}),
            }
        _answer(request, 200, body)

    def _post(self, request: BaseHTTPRequestHandler) -> None:
        self.traceparents.append((request.path, request.headers.get("traceparent")))
        body = json.loads(request.rfile.read(int(request.headers["content-length"])))
        if request.path == "/v1/run/metrics":
            status, answer = self.metrics_answers.pop(0) if self.metrics_answers else (202, {})
            if status < 300:
                self.samples += body["samples"]
                self.ranks.append(body["rank"])
            _answer(request, status, answer)
            return
        if request.path == "/v1/run/ready":
            status, answer = self.ready_answers.pop(0) if self.ready_answers else (200, {})
            if status < 300:
                self.ready.append(body)
            _answer(request, status, answer)
            return
        if request.path != "/v1/run/checkpoints":
            status, answer = self.other_answers.pop(0) if self.other_answers else (200, {})
            if status < 300:
                self.others.append((f"{request.command} {request.path}", body))
                if request.path == "/v1/run/state":
                    self.life_state = body
            _answer(request, status, answer)
            return
        status, answer = self.checkpoint_answers.pop(0) if self.checkpoint_answers else (201, {})
        if status < 300:
            self.checkpoints.append(body)
        _answer(request, status, answer)


def _answer(request: BaseHTTPRequestHandler, status: int, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    try:
        request.send_response(status)
        request.send_header("content-type", "application/json")
        request.send_header("content-length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)
    except OSError:
        request.close_connection = True

"""A real HTTP server that answers as the platform's API does, for the command line's tests.

It keeps tasks, goals, events and output in memory and plays out a task's life on request.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "swt_a-very-secret-token"
NOW = "2026-11-21T10:00:00.123456Z"


def at(seconds: float) -> str:
    """The time ``seconds`` after ten o'clock."""
    time = datetime(2026, 11, 21, 10, tzinfo=UTC) + timedelta(seconds=seconds)
    return time.isoformat().replace("+00:00", "Z")


def a_task(task_id: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": task_id,
        "name": f"name-{task_id}",
        "owner": "ada",
        "team": None,
        "group": "default",
        "priority": "normal",
        "labels": {},
        "roles": [{"name": "worker", "replicas": 1, "command": ["python", "train.py"]}],
        "nodes": 1,
        "gpus_per_node": 1,
        "working_directory": "/home/ada",
        "goal": "run",
        "state": "queued",
        "reason": {"code": "waits_for_capacity", "text": "waits for 1 GPU", "free": 0},
        "attempt": 0,
        "submitted_at": NOW,
        "started_at": None,
        "finished_at": None,
        "checkpoint": None,
        "exit": None,
        "attempts_without_progress": 0,
        "revision": 1,
        "observed_revision": 1,
        **fields,
    }


def an_exit(kind: str, code: int | None) -> dict[str, Any]:
    return {"kind": kind, "code": code, "text": "rank 0 exited", "attempt": 1, "ranks": []}


def problem(status: int, kind: str, detail: str, *errors: dict[str, str]) -> tuple[int, Any]:
    body = {"type": kind, "title": "No", "status": status, "detail": detail, "errors": list(errors)}
    return status, body


@dataclass
class Seen:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class CliServer:
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    quotas: list[dict[str, Any]] = field(default_factory=list)
    permissions: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    # What a task's ranks or a node used; of nodes and tasks now, by route.
    metrics: dict[str, Any] = field(default_factory=dict)
    # None: the server is older.
    utilization: dict[str, Any] | None = None
    tokens: list[dict[str, Any]] = field(default_factory=list)
    dead_letters: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    # Rows that a list cannot show.
    unreadable: list[dict[str, Any]] = field(default_factory=list)
    explanation: dict[str, Any] = field(default_factory=dict)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    output: dict[tuple[int, int], bytes] = field(default_factory=dict)
    # When it was written: seconds after ten o'clock, by offset; and up to where approximately.
    written: dict[tuple[int, int], dict[int, float]] = field(default_factory=dict)
    exact_from: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    # Answers to give before the right ones, for each method and path.
    first: dict[tuple[str, str], list[tuple[int, Any]]] = field(default_factory=dict)
    # Cut each stream after so many events, this many times.
    cuts: int = 0
    keys: dict[str, str] = field(default_factory=dict)
    tasks_run_as: str | None = None
    on_submit: Any = None

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                pass

            def answer(self) -> None:
                outer._answer(self)

            do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815 - the base class's names

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def asked(self, method: str, path: str) -> Seen:
        """The last such request."""
        return [one for one in self.seen if (one.method, one.path) == (method, path)][-1]

    # --- a task's life ---

    def happen(self, task_id: str, kind: str, **data: Any) -> None:
        with self.changed:
            attempt = data.get("attempt", 1)
            self.events.append(
                {
                    "position": len(self.events) + 1,
                    "type": kind,
                    "task": task_id,
                    "attempt": attempt,
                    "at": NOW,
                    "data": {"task_id": task_id, **data},
                }
            )
            self.changed.notify_all()

    def move(self, task_id: str, state: str, **fields: Any) -> None:
        self.tasks[task_id].update({"state": state, **fields})
        attempt = fields.get("attempt", 1)
        self.happen(task_id, "task.state_changed", state=state, attempt=attempt)

    def write(self, attempt: int, rank: int, data: bytes) -> None:
        with self.changed:
            self.output[attempt, rank] = self.output.get((attempt, rank), b"") + data
            self.changed.notify_all()

    # --- HTTP ---

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        length = int(request.headers.get("content-length") or 0)
        body: Any = request.rfile.read(length) if length else None
        if body and request.headers.get("content-type") == "application/json":
            body = json.loads(body)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        headers = {name.lower(): value for name, value in request.headers.items()}
        path = unquote(parts.path)
        self.seen.append(Seen(request.command, path, query, headers, body))
        waiting = self.first.get((request.command, path))
        if waiting:
            _send(request, *waiting.pop(0))
        elif headers.get("authorization") != f"Bearer {TOKEN}":
            _send(request, *problem(401, "unauthenticated", "this token is not known"))
        elif path == "/v1/events" and "event-stream" in headers["accept"]:
            self._stream_events(request, query)
        elif path.endswith("/logs"):
            self._logs(request, path.split("/")[3], query)
        elif path.endswith("/logs/lines"):
            self._lines(request, query)
        else:
            _send(request, *self._route(request.command, path, query, headers, body))

    def _route(  # noqa: PLR0911 - a table of routes
        self, method: str, path: str, query: dict[str, str], headers: dict[str, str], body: Any
    ) -> tuple[int, Any]:
        words = path.strip("/").split("/")[1:]
        if method == "POST" and words == ["tasks"]:
            return self._submit(headers, body)
        if words == ["tasks"]:
            return 200, self._list(query)
        if words[0] == "tasks" and words[1] not in self.tasks:
            return problem(404, "not-found", f"there is no task {words[1]!r}")
        if words[0] == "tasks" and len(words) == 2:
            return 200, self.tasks[words[1]]
        if words[-1] == "metrics" and method == "GET":
            return 200, self.metrics
        if words[0] == "tasks":
            return self._of_task(words[1], words[2], body)
        if method == "GET" and words[0] == "nodes" and len(words) > 1:
            return 200, next((node for node in self.nodes if node["id"] == words[1]), {})
        documents = {
            ("quotas", "explain"): self.permissions,
            ("usage",): self.usage,
            ("utilization",): self.utilization,
        }
        if (document := documents.get(tuple(words))) is not None:
            return 200, document
        lists = {
            "nodes": self.nodes,
            "quotas": self.quotas,
            "tokens": self.tokens,
            "queue": self._queue(query.get("group")),
            "dead-letters": [
                each for each in self.dead_letters if each["service"] == query.get("service")
            ],
            "events": [
                e
                for e in self.events
                if query.get("task") in (None, e["task"])
                and e["position"] > max(0, int(query.get("from", "0")))
            ],
            "users": [{"name": "ada", "role": "admin", "team": "lab", "created_at": NOW}],
            "teams": [{"name": "lab", "created_at": NOW}],
            "groups": [
                {
                    "name": "default",
                    "nodes": 2,
                    "ready_nodes": 1,
                    "used_nodes": 1,
                    "free_nodes": 1,
                    "gpus": 4,
                    "used_gpus": 1,
                    "free_gpus": 3,
                    "waiting": 7,
                }
            ],
        }
        if method == "GET" and len(words) == 1 and words[0] in lists:
            return 200, {"items": lists[words[0]], "next_cursor": None}
        return self._change(method, words, body)

    def _queue(self, group: str | None) -> list[dict[str, Any]]:
        """The queued tasks in the order in which the test has put them."""
        waiting = [each for each in self.tasks.values() if each["state"] == "queued"]
        return [
            {
                **{name: each.get(name) for name in ("id", "name", "owner", "team", "group")},
                "position": place,
                "priority": each["priority"],
                "level": each["priority"],
                "gpus": 1,
                "nodes": each["nodes"],
                "waiting_since": each["submitted_at"],
                "reason": each.get("reason"),
                "waits_for": {"kind": "nodes", "tasks_ahead": place - 1, "until": None},
                "hidden": each.get("hidden", False),
            }
            for place, each in enumerate(waiting, start=1)
            if group in {None, each.get("group")}
        ]

    def _change(  # noqa: PLR0911 - a table of routes
        self, method: str, words: list[str], body: Any
    ) -> tuple[int, Any]:
        if words == ["whoami"]:
            me = {"user": "ada", "role": "admin", "team": None}
            return 200, {**me, "tasks_run_as": self.tasks_run_as}
        if (method, words[0]) == ("PUT", "nodes"):
            labels = {"labels": {}, "taints": [], words[-1]: body.get("set", {})}
            return 200, {"id": words[1], **(body if words[-1] == "schedulable" else labels)}
        if method == "POST" and words in (["dead-letters:replay"], ["dead-letters:discard"]):
            service = body["service"]
            ids = [each["id"] for each in self.dead_letters if each["service"] == service]
            return 202, {"service": service, "ids": body.get("ids", ids)}
        if (method, words) == ("PUT", ["quotas"]):
            return 200, {"version": 7}
        if (method, words) == ("POST", ["users"]):
            return 201, {"role": "user", **body, "created_at": NOW}
        if (method, words) == ("POST", ["teams"]):
            return 201, {**body, "created_at": NOW}
        if words[0] == "users" and method in ("GET", "PATCH"):
            return 200, {"name": words[1], "role": "admin", "team": None, **(body or {})}
        if (method, words) == ("POST", ["tokens"]):
            return 201, {"id": "k1", "user": body["user"], "token": "swt_fresh"}
        if method == "DELETE" and words[0] in ("tokens", "teams", "users"):
            return 204, None
        return problem(404, "not-found", f"no route {'/'.join(words)}")

    def _submit(self, headers: dict[str, str], body: Any) -> tuple[int, Any]:
        key = headers["idempotency-key"]
        if key in self.keys:
            return 200, self.tasks[self.keys[key]]
        task_id = f"t{'abcdefg'[len(self.tasks)]}aaaa"
        self.keys[key] = task_id
        self.tasks[task_id] = a_task(task_id, name=body.get("name") or f"train-{task_id}")
        self.tasks[task_id]["nodes"] = body.get("nodes", 1)
        self.tasks[task_id]["run_mode"] = body.get("run_mode", "normal")
        self.happen(task_id, "task.submitted", owner="ada", attempt=None)
        if self.on_submit is not None:
            threading.Thread(target=self.on_submit, args=(task_id,), daemon=True).start()
        return 201, self.tasks[task_id]

    def _list(self, query: dict[str, str]) -> Any:
        found = sorted(self.tasks.values(), key=lambda task: task["id"], reverse=True)
        for name in ("name", "owner"):
            if name in query:
                found = [task for task in found if task[name] == query[name]]
        if "state" in query:
            found = [task for task in found if task["state"] in query["state"].split(",")]
        if "id_prefix" in query:
            found = [task for task in found if task["id"].startswith(query["id_prefix"])]
        if "name_prefix" in query:
            found = [task for task in found if task["name"].startswith(query["name_prefix"])]
        if "id_suffix" in query:
            found = [task for task in found if task["id"].endswith(query["id_suffix"])]
        begin = int(query.get("cursor", "0"))
        end = begin + int(query["limit"])
        more = str(end) if end < len(found) else None
        # Only the task itself has its activity.
        items = [
            {name: value for name, value in task.items() if name != "activity"}
            for task in found[begin:end]
        ]
        page: dict[str, Any] = {"items": items, "next_cursor": more}
        return page | ({"unreadable": self.unreadable} if self.unreadable else {})

    def _of_task(self, task_id: str, what: str, body: Any) -> tuple[int, Any]:
        task = self.tasks[task_id]
        if what == "runs":
            return 200, {"items": self.runs, "next_cursor": None}
        if what == "decisions":
            return 200, {"items": self.decisions, "next_cursor": None}
        if what == "explain":
            return 200, {"task": task_id, "state": task["state"], **self.explanation}
        if task["state"] in ("succeeded", "failed", "stopped", "rejected"):
            return problem(409, "conflict", f"{task_id} has ended")
        task.update(body)
        task["revision"] += 1
        return 202, {"task": task_id, "revision": task["revision"]}

    def _logs(self, request: BaseHTTPRequestHandler, task_id: str, query: dict[str, str]) -> None:
        ended = self.tasks[task_id]["state"] in ("succeeded", "failed", "stopped")
        if query.get("follow"):
            self._stream_output(request, task_id, query)
            return
        if query.get("list"):
            logs = [
                {"attempt": a, "rank": r, "role": "worker", "size": len(d), "complete": ended}
                for (a, r), d in sorted(self.output.items())
            ]
            _send(request, 200, {"logs": logs})
            return
        data = self.output[int(query["attempt"]), int(query["rank"])]
        begin = int(query.get("offset", "0"))
        begin = max(0, len(data) + begin) if begin < 0 else begin
        if query.get("tail"):
            last = data.splitlines(keepends=True)[-int(query["tail"]) :]
            begin = len(data) - len(b"".join(last))
        # Smaller pieces than asked for, so that readers must go on.
        piece = data[begin : begin + min(int(query["limit_bytes"]), 50_000)]
        if query.get("timestamps"):
            old = begin < self.exact_from
            piece = piece[: self.exact_from - begin] if old else piece
            key = int(query["attempt"]), int(query["rank"])
            answer = {**self.piece(*key, begin, piece), "size": len(data), "complete": ended}
            _send(request, 200, {**answer, **({"approximate": True} if old else {})})
            return
        request.send_response(200)
        for name, value in (
            ("content-type", "text/plain"),
            ("content-length", str(len(piece))),
            ("x-shiftwork-offset", str(begin)),
            ("x-shiftwork-size", str(len(data))),
            ("x-shiftwork-complete", "true" if ended else "false"),
        ):
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(piece)

    def _lines(self, request: BaseHTTPRequestHandler, query: dict[str, str]) -> None:
        """Lines that match, three to a page; cursors are their numbers."""
        try:
            pattern = re.compile(query["pattern"].encode())
        except re.error as error:
            wrong = {"field": "pattern", "value": query["pattern"], "message": str(error)}
            _send(request, *problem(400, "invalid", "no", {**wrong, "fix": "correct it"}))
            return
        found: list[dict[str, Any]] = []
        for (attempt, rank), data in sorted(self.output.items()):
            offset = 0
            for line in data.splitlines():
                if pattern.search(line):
                    piece = self.piece(attempt, rank, offset, line)
                    stamps = piece.pop("timestamps")
                    found.append({**piece, "at": stamps[0][1] if stamps else None})
                offset += len(line) + 1
        begin = int(query.get("after") or 0)
        page, end = found[begin : begin + 3], begin + 3
        more = {"more": end < len(found), "begin": str(begin), "end": str(end)}
        sizes = {"searched_bytes": 10, "left_bytes": 10, "unreadable": []}
        _send(request, 200, {"lines": page, **more, **sizes})

    def piece(self, attempt: int, rank: int, begin: int, data: bytes) -> dict[str, Any]:
        """A piece of output with its time stamps."""
        stamps: dict[int, str] = {}
        for offset, seconds in sorted(self.written.get((attempt, rank), {}).items()):
            if offset <= begin:
                stamps = {begin: at(seconds)}
            elif offset < begin + len(data):
                stamps[offset] = at(seconds)
        try:
            text = {"text": data.decode()}
        except UnicodeDecodeError:
            text = {"data_base64": base64.b64encode(data).decode()}
        place = {"attempt": attempt, "rank": rank, "role": "worker", "offset": begin}
        return {**place, **text, "timestamps": list(stamps.items())}

    def _stream_events(self, request: BaseHTTPRequestHandler, query: dict[str, str]) -> None:
        after, sent = max(0, int(query.get("from") or 0)), 0
        _begin_stream(request)
        while True:
            with self.changed:
                fresh = [
                    event
                    for event in self.events[after:]
                    if query.get("task") in (None, event["task"])
                ]
                after = len(self.events)
                if not fresh and not self.changed.wait(10):
                    return
            for event in fresh:
                _frame(request, json.dumps(event), position=event["position"])
                sent += 1
                if self.cuts and sent >= 2:
                    self.cuts -= 1
                    request.close_connection = True
                    return

    def _stream_output(
        self, request: BaseHTTPRequestHandler, task_id: str, query: dict[str, str]
    ) -> None:
        _begin_stream(request)
        sent: dict[tuple[int, int], int] = {}
        pieces = 0
        until = time.monotonic() + 20
        while time.monotonic() < until:
            ended = self.tasks[task_id]["state"] in ("succeeded", "failed", "stopped", "rejected")
            with self.changed:
                kept = sorted(self.output.items())
            for (attempt, rank), data in kept:
                if query.get("rank") not in (None, str(rank)):
                    continue
                begin = sent.get((attempt, rank), 0)
                piece = data[begin : begin + 7]
                if not piece:
                    continue
                sent[attempt, rank] = begin + len(piece)
                answer = self.piece(attempt, rank, begin, piece)
                if not query.get("timestamps"):
                    del answer["timestamps"]
                _frame(request, json.dumps(answer))
                pieces += 1
                whole = sent[attempt, rank] == len(data)
                if self.cuts and pieces >= 3:
                    self.cuts -= 1
                    request.close_connection = True
                    return
                if not whole:
                    break
            if ended and all(sent.get(key, 0) == len(data) for key, data in kept):
                _frame(request, "{}", event="end")
                request.close_connection = True
                return
            time.sleep(0.005)


def _begin_stream(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("content-type", "text/event-stream")
    request.send_header("connection", "close")
    request.end_headers()
    request.wfile.write(b": shiftwork\n\n")


def _frame(
    request: BaseHTTPRequestHandler, data: str, *, position: int | None = None, event: str = ""
) -> None:
    head = "" if position is None else f"id: {position}\n"
    head += f"event: {event}\n" if event else ""
    request.wfile.write(f"{head}data: {data}\n\n".encode())
    request.wfile.flush()


def _send(request: BaseHTTPRequestHandler, status: int, body: Any) -> None:
    data = b"" if body is None else json.dumps(body).encode()
    request.send_response(status)
    kind = "application/json" if status < 400 else "application/problem+json"
    request.send_header("content-type", kind)
    request.send_header("content-length", str(len(data)))
    if status == 429:
        request.send_header("retry-after", "1")
    request.end_headers()
    request.wfile.write(data)

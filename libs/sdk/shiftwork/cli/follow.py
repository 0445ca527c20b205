"""Following tasks: until a state is reached (``wait``), or with all output (``submit -f``).

A task's events tell when to look again; its own document says where it stands. Streams that are
cut off are opened again where they ended, so that nothing is lost or shown twice.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import Any, Callable, Iterator, Mapping, NamedTuple

from shiftwork.cli import listening, parse, render, timeline
from shiftwork.cli.client import Api, Stopped, chunk_bytes, part
from shiftwork.cli.failures import INTERRUPTED, UNREACHABLE, Failure

ENDED = ("succeeded", "failed", "stopped", "rejected")
AGAIN_SECONDS = 0.5
LOOK_SECONDS = 1.0
LOST_SECONDS_MAX = 300.0
RETRY_SECONDS_MAX = 60.0
LAST_OUTPUT_SECONDS = 15.0
QUEUED_MAX = 1024
LINE_BYTES_MAX = 65_536
# HTTP: too many requests, or the service is not ready.
BUSY, UNAVAILABLE = 429, 503

Task = Mapping[str, Any]


def exit_code(task: Task) -> int:
    """The code a script gets: the task's own, 0 only if it succeeded, 1 if it never ran."""
    if task["state"] == "succeeded":
        return 0
    code = parse.fields(task.get("exit")).get("code")
    return code if isinstance(code, int) and 0 < code < 256 else 1  # noqa: PLR2004 - a byte


class Patience:
    """How long a server may stay out of reach before following ends. One that answers that there
    is too much at once may take as long as it does: it is there."""

    def __init__(self) -> None:
        self._lost_since: float | None = None

    def found(self) -> None:
        """The server answered."""
        if self._lost_since is not None:
            render.note("the server is back")
        self._lost_since = None

    def lost(self, failure: Failure) -> float:
        """It did not: how long to wait before the next try. Raises the failure when that has
        lasted too long."""
        now = time.monotonic()
        if self._lost_since is None:
            self._lost_since = now
            render.note(f"{failure.what}; trying again")
        status = failure.problem.get("status")
        if failure.code != UNREACHABLE and status not in {BUSY, UNAVAILABLE}:
            raise failure
        if now - self._lost_since > LOST_SECONDS_MAX and status != BUSY:
            raise failure
        return max(AGAIN_SECONDS, min(failure.retry_seconds, RETRY_SECONDS_MAX))


def changes(api: Api, task_id: str, until: float | None = None) -> Iterator[dict[str, Any]]:
    """The task now, and again whenever its state changes; ends with its end, or at ``until``.

    Asks once a second at most: the platform's parts may restart meanwhile.
    """
    patience = Patience()
    last: object = None
    while True:
        pause = AGAIN_SECONDS
        try:
            task = api.get("/v1/tasks/" + part(task_id))
            patience.found()
        except Failure as failure:
            pause = patience.lost(failure)
        else:
            mark = (task["state"], task["attempt"], task.get("observed_revision"))
            if mark != last:
                last = mark
                yield task
            if task["state"] in ENDED:
                return
        left = LOOK_SECONDS if until is None else until - time.monotonic()
        if left <= 0:
            return
        if api.unwanted.wait(min(pause, left)):
            return


class Line(NamedTuple):
    """One line of one rank's output, without its end."""

    attempt: int
    rank: int
    role: str
    text: bytes


class Lines:
    """Pieces of output put together to lines, one rank at a time; what came before is dropped."""

    def __init__(self) -> None:
        self._pending: dict[tuple[int, int], bytes] = {}
        self._read: dict[tuple[int, int], int] = {}
        self._roles: dict[tuple[int, int], str] = {}

    def fresh(self, piece: Mapping[str, Any], data: bytes) -> bytes:
        """What of the piece was not here before. ``piece`` says whose output it is, and where."""
        key = (int(piece["attempt"]), int(piece["rank"]))
        offset = int(piece.get("offset", 0))
        begin = max(self._read.get(key, offset), offset)
        self._read[key] = max(begin, offset + len(data))
        return data[begin - offset :]

    def add(self, piece: Mapping[str, Any], data: bytes) -> list[Line]:
        """Whole lines. An attempt's last line has ended when a later attempt writes."""
        attempt, rank, role = int(piece["attempt"]), int(piece["rank"]), str(piece.get("role", ""))
        fresh = self.fresh(piece, data)
        self._roles[attempt, rank] = role
        ended = [key for key in self._pending if key[1] == rank and key[0] < attempt]
        before = [Line(*key, self._roles[key], self._pending.pop(key)) for key in sorted(ended)]
        *whole, rest = (self._pending.pop((attempt, rank), b"") + fresh).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            whole, rest = [*whole, rest], b""
        if rest:
            self._pending[attempt, rank] = rest
        return before + [Line(attempt, rank, role, line) for line in whole]

    def rest(self) -> list[Line]:
        """What is left when there is no more: last lines without an end."""
        left, self._pending = self._pending, {}
        return [Line(*key, self._roles.get(key, ""), line) for key, line in sorted(left.items())]


def logs_path(task_id: str) -> str:
    """Where a task's output is."""
    return f"/v1/tasks/{part(task_id)}/logs"


def output(api: Api, task_id: str, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Pieces of output as they come, until the task has ended; reopened when cut off.

    A reopened stream begins anew: ``Lines`` drops what was there already.
    """
    patience = Patience()
    asked = {**query, "follow": 1}
    while True:
        pause = AGAIN_SECONDS
        try:
            for event in api.stream(logs_path(task_id), asked):
                patience.found()
                # Opened again, the stream must not begin behind what is missing.
                asked = {**asked, "tail": None, "since": None}
                if event.kind == "end":
                    return
                yield event.data
        except Failure as failure:
            pause = patience.lost(failure)
        except Stopped:
            pass
        if api.unwanted.wait(pause):
            return


def events(api: Api, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Events as they come, for ever; resumed after the last one when cut off."""
    patience = Patience()
    asked = dict(query)
    while True:
        pause = AGAIN_SECONDS
        try:
            for event in api.stream("/v1/events", asked):
                patience.found()
                position = event.data.get("position")
                if isinstance(position, int):
                    asked["from"] = position
                    yield event.data
        except Failure as failure:
            pause = patience.lost(failure)
        except Stopped:
            pass
        if api.unwanted.wait(pause):
            return


def to_the_end(api: Api, task: dict[str, Any]) -> int:
    """Show everything of a task until it has ended; the exit code to leave with.

    Ctrl-C leaves the task running.
    """
    try:
        with render.Progress() as progress:
            final = _Follower(api, task, progress).run()
    except KeyboardInterrupt:
        render.note(
            f"\n{task['name']} goes on. Follow it: shiftwork logs {task['id']} -f; "
            f"stop it: shiftwork stop {task['id']}"
        )
        return INTERRUPTED
    if render.wants_json():
        render.record({"task": final})
    return exit_code(final)


class _Follower:
    """One task's events and output, each read by a thread, shown by the caller's."""

    def __init__(self, api: Api, task: dict[str, Any], progress: render.Progress) -> None:
        self._api = api
        self._task = task
        self._progress = progress
        self._lines = Lines()
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue(QUEUED_MAX)
        self._ranks = max(1, int(task.get("nodes") or 1))
        self._output_done = False
        # The attempt that runs, and since when this looks at it; None once there was a look at
        # whether its program can be asked to save.
        self._looks_at: tuple[int, float] | None = (0, 0.0)
        self._readers: list[Api] = []

    def run(self) -> dict[str, Any]:
        """Until the task has ended and its output is shown."""
        try:
            return self._run()
        finally:
            for reader in self._readers:
                reader.unwanted.set()

    def _run(self) -> dict[str, Any]:
        task_id = self._task["id"]
        self._read("event", lambda api: events(api, {"task": task_id, "from": 0}))
        self._read("output", lambda api: output(api, task_id, {}))
        self._read("task", lambda api: changes(api, task_id))
        ended_at: float | None = None
        while not (ended_at is not None and self._output_done):
            self._show_progress()
            try:
                kind, value = self._queue.get(timeout=AGAIN_SECONDS)
            except queue.Empty:
                kind, value = "", None
            self._take(kind, value)
            self._advise()
            if self._task["state"] in ENDED and ended_at is None:
                ended_at = time.monotonic()
            if ended_at is not None and time.monotonic() - ended_at > LAST_OUTPUT_SECONDS:
                render.warning("the end of the output is late; `shiftwork logs` may show more")
                break
        self._drain()
        return self._task

    def _take(self, kind: str, value: Any) -> None:  # noqa: ANN401 - by kind
        if kind == "failed":
            raise value
        if kind == "output":
            self._show_output(self._lines.add(value, chunk_bytes(value)))
        elif kind == "output done":
            self._output_done = True
        elif kind == "task":
            self._task = value
        elif kind == "event":
            self._show_event(value)

    def _drain(self) -> None:
        until = time.monotonic() + AGAIN_SECONDS
        while time.monotonic() < until:
            try:
                kind, value = self._queue.get(timeout=0.1)
            except queue.Empty:
                break
            self._take(kind, value)
            if kind == "event" and parse.fields(value.get("data")).get("state") in ENDED:
                break
        self._show_output(self._lines.rest())

    def _read(self, kind: str, source: Callable[[Api], Iterator[Any]]) -> None:
        api = self._api.another()
        self._readers.append(api)

        def read() -> None:
            try:
                for value in source(api):
                    if api.unwanted.is_set():
                        return
                    self._queue.put((kind, value))
            except Failure as failure:
                self._queue.put(("failed", failure))
            finally:
                api.close()
                self._queue.put((f"{kind} done", None))

        threading.Thread(target=read, name=f"follow-{kind}", daemon=True).start()

    def _advise(self) -> None:
        """Once, when an attempt has lasted a while: say if its program cannot be asked to save."""
        task, now = self._task, time.monotonic()
        if self._looks_at is None or task["state"] != "running":
            return
        attempt, since = self._looks_at
        if attempt != task["attempt"]:
            self._looks_at = (task["attempt"], now)
        elif now - since > listening.QUIET_SECONDS + LOOK_SECONDS:
            self._looks_at = None
            with contextlib.suppress(Failure):
                runs = self._api.items(f"/v1/tasks/{part(task['id'])}/runs")["items"]
                if text := listening.advice(task, runs):
                    render.note(text)

    def _show_event(self, event: dict[str, Any]) -> None:
        if render.wants_json():
            render.record({"event": event})
        else:
            render.note(timeline.line(event, of_task=True))

    def _show_output(self, lines: list[Line]) -> None:
        show_lines(lines, prefix=self._ranks > 1)

    def _show_progress(self) -> None:
        task = self._task
        parts = [task["name"], task["state"]]
        if task.get("attempt"):
            parts.append(f"attempt {task['attempt']}")
        if task.get("checkpoint"):
            parts.append(f"saved at step {task['checkpoint']['step']}")
        reason = parse.fields(task.get("reason")).get("text")
        if reason and task["state"] != "running":
            parts.append(reason)
        parts.append(render.ago(task.get("submitted_at")).replace(" ago", ""))
        self._progress.show(" · ".join(text for text in parts if text))


def show_lines(lines: list[Line], *, prefix: bool) -> None:
    """Lines of output, with their rank in front where there are several."""
    if not lines:
        return
    if render.wants_json():
        for line in lines:
            text = line.text.decode("utf-8", "replace")
            render.record(
                {"attempt": line.attempt, "rank": line.rank, "role": line.role, "text": text}
            )
        return
    with render.Progress.cleared():
        head = [b"[%d] " % line.rank if prefix else b"" for line in lines]
        render.raw(b"".join(mark + line.text + b"\n" for mark, line in zip(head, lines)))

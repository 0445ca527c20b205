"""Following tasks: until a state is reached (``wait``), or with all output (``submit -f``).

A task's events show when to read the task again; the task's document has its state. Streams that
are cut off are opened again where they ended, so that nothing is lost or shown twice.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import sys
import threading
import time
from collections import deque
from datetime import timezone
from math import inf
from typing import Any, Callable, Iterator, Mapping, NamedTuple

from shiftwork.cli import environments, ids, listening, parse, render, timeline
from shiftwork.cli.client import Api
from shiftwork.cli.failures import INTERRUPTED, UNREACHABLE, Failure
from shiftwork.cli.task_options import ENDED
from shiftwork.client.paths import part
from shiftwork.client.streams import Stopped, bytes_of

AGAIN_SECONDS = 0.5
POLL_SECONDS = 1.0
LOST_SECONDS_MAX = 300.0
RETRY_SECONDS_MAX = 60.0
LAST_OUTPUT_SECONDS = 15.0
# An attempt's end is shown after its last output if that arrives within this time.
END_HELD_SECONDS = 3.0
QUEUED_MAX = 1024
LINE_BYTES_MAX = 65_536
# How often a progress bar is noted without a terminal.
BAR_SECONDS = 10.0
LAST_LINES = 20
# HTTP: too many requests, or the service is not ready.
BUSY, UNAVAILABLE = 429, 503

Task = Mapping[str, Any]


def exit_code(task: Task) -> int:
    """The code a script gets: the task's own, 0 only if it succeeded, 1 if it never ran."""
    if task["state"] == "succeeded":
        return 0
    code = parse.fields(task.get("exit")).get("code")
    return code if isinstance(code, int) and 0 < code < 256 else 1  # noqa: PLR2004 - a byte


class Reachability:
    """How long a server may be unreachable before following ends. A server that answers "too many
    requests" may take any time, because it is reachable."""

    def __init__(self) -> None:
        self._lost_since: float | None = None

    def found(self) -> None:
        """The server answered."""
        if self._lost_since is not None:
            render.note("the server is back")
        self._lost_since = None

    def lost(self, failure: Failure) -> float:
        """It did not answer: returns how long to wait before the next try. Raises the failure when
        that has lasted too long."""
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
    """Yields the task now, and whenever its state changes; ends with its end, or at ``until``.

    Polls once a second at most: the platform's parts may restart meanwhile.
    """
    reachability = Reachability()
    last: object = None
    while True:
        pause = AGAIN_SECONDS
        try:
            task = api.get("/v1/tasks/" + part(task_id))
            reachability.found()
        except Failure as failure:
            pause = reachability.lost(failure)
        else:
            version = (task["state"], task["attempt"], task.get("observed_revision"))
            if version != last:
                last = version
                yield task
            if task["state"] in ENDED:
                return
        left = POLL_SECONDS if until is None else until - time.monotonic()
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
    # True for a line that is being rewritten: a progress bar.
    bar: bool = False
    # When the first byte of the text was written; empty where that is not known.
    at: str = ""
    # True if the time is approximate: an older version stored the line.
    approximate: bool = False


class Times:
    """The time stamps of one rank's output, from the current line on."""

    def __init__(self) -> None:
        # From which offset on, and whether that is approximate; in their order.
        self._found: deque[tuple[int, str, bool]] = deque()

    def add(self, piece: Mapping[str, Any]) -> None:
        """Add the times of a piece's bytes, if the piece has times."""
        approximate = bool(piece.get("approximate"))
        for offset, at in piece.get("timestamps") or ():
            # Each state of a line that is being rewritten has a time of its own.
            while self._found and self._found[-1][0] >= offset:
                self._found.pop()
            self._found.append((offset, at, approximate))

    def of(self, offset: int) -> tuple[str, bool]:
        """The time of a byte, and whether it is approximate. Offsets never decrease between
        calls."""
        while len(self._found) > 1 and self._found[1][0] <= offset:
            self._found.popleft()
        if not self._found or self._found[0][0] > offset:
            return "", False
        return self._found[0][1:]


def last_state(text: bytes) -> bytes:
    """The final state of a line: the text after a carriage return overwrites the rest."""
    return text.rstrip(b"\r").rpartition(b"\r")[2]


class Lines:
    """Joins pieces of output to lines, rank by rank, and drops bytes that came before.

    For a line that was rewritten the last state counts.
    """

    def __init__(self) -> None:
        # The state of each line that is being rewritten and not part of the output yet.
        self._rewritten: dict[tuple[int, int], bytes] = {}
        self._pending: dict[tuple[int, int], bytes] = {}
        self._read: dict[tuple[int, int], int] = {}
        self._roles: dict[tuple[int, int], str] = {}
        self._times: dict[tuple[int, int], Times] = {}

    def fresh(self, piece: Mapping[str, Any], data: bytes) -> bytes:
        """The new bytes of the piece. ``piece`` has the attempt, the rank and the offset."""
        key = (int(piece["attempt"]), int(piece["rank"]))
        offset = int(piece.get("offset", 0))
        begin = max(self._read.get(key, offset), offset)
        self._read[key] = max(begin, offset + len(data))
        return data[begin - offset :]

    def add(self, piece: Mapping[str, Any], data: bytes) -> list[Line]:
        """Returns whole lines. An attempt's last line has ended when a later attempt writes."""
        return self.put(piece, self.fresh(piece, data))

    def put(self, piece: Mapping[str, Any], fresh: bytes) -> list[Line]:
        """The same for bytes that are known to be new."""
        attempt, rank, role = int(piece["attempt"]), int(piece["rank"]), str(piece.get("role", ""))
        key = (attempt, rank)
        self._roles[key] = role
        before: list[Line] = []
        for each in sorted({*self._pending, *self._rewritten}):
            if each[1] == rank and each[0] < attempt:
                if each in self._pending:
                    before.append(self._line(each, self._pending.pop(each)))
                self._rewritten.pop(each, None)
        if piece.get("timestamps"):
            self._times.setdefault(key, Times()).add(piece)
        if "line" in piece and int(piece.get("offset", 0)) >= self._read.get(key, 0):
            self._rewritten[key] = str(piece["line"]).encode()
        if fresh:
            self._rewritten.pop(key, None)
        *whole, rest = (self._pending.pop(key, b"") + fresh).split(b"\n")
        begin = self._read.get(key, 0) - len(rest) - sum(len(line) + 1 for line in whole)
        if len(rest) > LINE_BYTES_MAX:
            whole, rest = [*whole, rest], b""
        if rest:
            self._pending[key] = rest
        lines: list[Line] = []
        for line in whole:
            lines.append(self._line(key, line, begin))
            begin += len(line) + 1
        return before + lines

    def _line(
        self, key: tuple[int, int], text: bytes, begin: int | None = None, *, bar: bool = False
    ) -> Line:
        """A line that begins at an offset; without one it is the last that was read."""
        shown, times = last_state(text), self._times.get(key)
        line = Line(*key, self._roles.get(key, ""), shown, bar)
        if times is None:
            return line
        if begin is None:
            begin = self._read.get(key, 0) - len(text)
        at, approximate = times.of(begin + len(text.rstrip(b"\r")) - len(shown))
        return line._replace(at=at, approximate=approximate)

    def unfinished(self) -> list[Line]:
        """The present state of the lines that have not ended, by attempt and rank."""
        found: list[Line] = []
        for key in sorted({*self._pending, *self._rewritten}):
            pending = self._pending.get(key, b"")
            text = pending + self._rewritten.get(key, b"")
            begin = self._read.get(key, 0) - len(pending)
            found.append(self._line(key, text, begin, bar=b"\r" in text))
        return found

    def rest(self, attempt: int | None = None) -> list[Line]:
        """The last lines without an end, once there is no more output, or no more of this attempt
        and those before it."""
        ended = [key for key in sorted(self._pending) if attempt is None or key[0] <= attempt]
        self._rewritten = {
            key: content
            for key, content in self._rewritten.items()
            if attempt is not None and key[0] > attempt
        }
        return [self._line(key, self._pending.pop(key)) for key in ended]


def logs_path(task_id: str) -> str:
    """Where a task's output is."""
    return f"/v1/tasks/{part(task_id)}/logs"


def output(api: Api, task_id: str, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Pieces of output as they come, until the task has ended; reopened when cut off.

    A reopened stream begins again: ``Lines`` drops what was there already.
    """
    reachability = Reachability()
    params = {**query, "follow": 1}
    while True:
        pause = AGAIN_SECONDS
        try:
            for event in api.stream(logs_path(task_id), params):
                reachability.found()
                # A reopened stream must begin before the missing output.
                params = {**params, "tail": None, "since": None}
                if event.kind == "end":
                    return
                yield event.data
        except Failure as failure:
            pause = reachability.lost(failure)
        except Stopped:
            pass
        if api.unwanted.wait(pause):
            return


def events(api: Api, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Events as they come, for ever; resumed after the last one when cut off."""
    reachability = Reachability()
    params = dict(query)
    while True:
        pause = AGAIN_SECONDS
        try:
            for event in api.stream("/v1/events", params):
                reachability.found()
                position = event.data.get("position")
                if isinstance(position, int):
                    params["from"] = position
                    yield event.data
                elif not event.data and event.id:
                    # Where the stream begins: nothing is missed if it is cut off before an event.
                    params["from"] = event.id
        except Failure as failure:
            pause = reachability.lost(failure)
        except Stopped:
            pass
        if api.unwanted.wait(pause):
            return


def events_in_order(api: Api, query: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """One task's events as they come, for ever, in their final order."""
    arrived: queue.Queue[Mapping[str, Any] | Failure] = queue.Queue(QUEUED_MAX)

    def read() -> None:
        try:
            for event in events(api, query):
                arrived.put(event)
        except Failure as failure:
            arrived.put(failure)

    threading.Thread(target=read, name="follow-events", daemon=True).start()
    in_order = timeline.InOrder()
    try:
        while True:
            try:
                found = arrived.get(timeout=AGAIN_SECONDS)
            except queue.Empty:
                yield from in_order.due(time.monotonic())
                continue
            if isinstance(found, Failure):
                yield from in_order.due(inf)
                raise found
            yield from in_order.add(found, time.monotonic())
    finally:
        api.unwanted.set()


def to_the_end(api: Api, task: dict[str, Any]) -> int:
    """Show everything about a task until it has ended; returns the exit code.

    Ctrl-C leaves the task running.
    """
    if task.get("run_mode") == "pause":
        render.note(f"paused: shiftwork resume {task['name']} starts it")
    try:
        with render.Progress() as progress:
            follower = _Follower(api, task, progress)
            final = follower.run()
    except KeyboardInterrupt:
        render.note(
            f"\n{task['name']} goes on. Follow it: shiftwork logs {task['id']} -f; "
            f"stop it: shiftwork stop {task['id']}"
        )
        return INTERRUPTED
    if render.wants_json():
        render.record({"task": final})
    hint = environments.hint_for(follower.last, environments.interpreter_of(final))
    if hint and final["state"] == "failed" and not render.wants_json():
        render.warning(hint)
    return exit_code(final)


class _Follower:
    """One task's events and output, each read by a thread, shown by the caller's."""

    def __init__(self, api: Api, task: dict[str, Any], progress: render.Progress) -> None:
        self._api = api
        self._task = task
        self._progress = progress
        several = int(task.get("nodes") or 1) > 1
        self._screen = Screen(progress, Printer(ranks=several))
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue(QUEUED_MAX)
        self._output_done = False
        # Events from an attempt's end on, which wait for its last output, until when, and which
        # attempt it is.
        self._held: list[dict[str, Any]] = []
        self._held_until = 0.0
        self._held_attempt = 0
        # The running attempt, and since when it is observed; None once the advice about programs
        # that do not poll was considered.
        self._advice_due: tuple[int, float] | None = (0, 0.0)
        self._readers: list[Api] = []
        self._repeats = timeline.Repeats()
        self._in_order = timeline.InOrder()
        self._names = ids.Names(api, {task["id"]: task}, lookups_max=inf)

    @property
    def last(self) -> list[str]:
        """The last lines of output that were shown."""
        return [line.text.decode("utf-8", "replace") for line in self._screen.last]

    def run(self) -> dict[str, Any]:
        """Wait until the task has ended and its output is shown."""
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
            if time.monotonic() >= self._held_until:
                self._release()
            self._show_due()
            self._advise()
            if self._task["state"] in ENDED and ended_at is None:
                ended_at = time.monotonic()
            if ended_at is not None and time.monotonic() - ended_at > LAST_OUTPUT_SECONDS:
                render.warning(
                    f"the end of the output is late; `shiftwork logs {task_id}` may show more"
                )
                break
        self._drain()
        return self._task

    def _take(self, kind: str, value: Any) -> None:  # noqa: ANN401 - by kind
        if kind == "failed":
            raise value
        if kind == "output":
            if int(value["attempt"]) > self._held_attempt:
                self._release()
            self._screen.take(value)
        elif kind == "output done":
            self._output_done = True
            self._screen.end()
            self._release()
        elif kind == "task":
            self._task = value
        elif kind == "event":
            self._hold(value)

    def _hold(self, event: dict[str, Any]) -> None:
        """Show an event, or hold it until the output before it has arrived."""
        waits = event.get("type") == "run.exited" and not self._output_done
        if waits and not self._held:
            self._held_until = time.monotonic() + END_HELD_SECONDS
            self._held_attempt = int(event.get("attempt") or 0)
        if self._held or waits:
            self._held.append(event)
        else:
            self._show_event(event)

    def _release(self) -> None:
        held, self._held = self._held, []
        if held:
            self._screen.end(self._held_attempt)
        for event in held:
            self._show_event(event)

    def _drain(self) -> None:
        self._release()
        until = time.monotonic() + AGAIN_SECONDS
        ended = False
        while time.monotonic() < until:
            try:
                kind, value = self._queue.get(timeout=0.1)
            except queue.Empty:
                if not self._in_order.is_waiting:
                    break
                continue
            self._take(kind, value)
            ended |= kind == "event" and parse.fields(value.get("data")).get("state") in ENDED
            if ended and not self._in_order.is_waiting:
                break
        for event in self._in_order.due(inf):
            self._print_event(event)
        self._screen.end()

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
        """Once, after an attempt has run for a while: print advice if its program does not poll."""
        task, now = self._task, time.monotonic()
        if self._advice_due is None or task["state"] != "running":
            return
        attempt, since = self._advice_due
        if attempt != task["attempt"]:
            self._advice_due = (task["attempt"], now)
        elif now - since > listening.QUIET_SECONDS + POLL_SECONDS:
            self._advice_due = None
            with contextlib.suppress(Failure):
                runs = self._api.items(f"/v1/tasks/{part(task['id'])}/runs")["items"]
                if text := listening.advice(task, runs):
                    render.note(text)

    def _show_event(self, event: Mapping[str, Any]) -> None:
        if render.wants_json():
            self._print_event(event)
            return
        for each in self._in_order.add(event, time.monotonic()):
            self._print_event(each)

    def _show_due(self) -> None:
        for each in self._in_order.due(time.monotonic()):
            self._print_event(each)

    def _print_event(self, event: Mapping[str, Any]) -> None:
        if render.wants_json():
            render.record({"event": event})
        elif not self._repeats.is_repeat(event):
            naming = self._names.put_into if render.is_terminal(sys.stderr) else None
            render.note(timeline.line(event, of_task=True, naming=naming))

    def _show_progress(self) -> None:
        task = self._task
        parts = [task["name"], task["state"]]
        if task.get("attempt"):
            parts.append(f"attempt {task['attempt']}")
        if task.get("checkpoint"):
            parts.append(f"saved at step {task['checkpoint']['step']}")
        reason = parse.fields(task.get("reason")).get("text")
        if reason and task["state"] != "running" and self._progress.wanted:
            parts.append(self._names.put_into(reason))
        parts.append(render.ago(task.get("submitted_at")).replace(" ago", ""))
        self._progress.show(" · ".join(text for text in parts if text))


class Screen:
    """Output while it is followed: whole lines on standard output, and the present state of lines
    that have not ended.

    On a terminal these are drawn below the rest until they end. Elsewhere the beginning of a line
    is written as it comes if there is one rank. Standard output gets only the final state of
    progress bars; standard error gets their present state now and then.
    """

    def __init__(
        self,
        progress: render.Progress,
        printer: Printer,
        *,
        wanted: Callable[[bytes], object] | None = None,
        exact: bool = False,
    ) -> None:
        self._progress, self._printer = progress, printer
        # Lines to show; None: all. ``exact``: standard output gets every byte, and nothing else.
        self._wanted = wanted
        self._exact = exact
        self._lines = Lines()
        # The line whose beginning is written, and the beginning.
        self._begun: Line | None = None
        self._noted: dict[tuple[int, int], float] = {}
        self.last: deque[Line] = deque(maxlen=LAST_LINES)

    def take(self, piece: Mapping[str, Any]) -> None:
        """Show the next piece."""
        fresh = self._lines.fresh(piece, bytes_of(piece))
        ended = self._lines.put(piece, fresh)
        if self._exact:
            with render.Progress.cleared():
                render.raw(fresh)
        else:
            self._show(ended)
        self._show_unfinished()

    def end(self, attempt: int | None = None) -> None:
        """The output has ended, or that of this attempt."""
        rest = self._lines.rest(attempt)
        self._progress.draw(())
        if not self._exact:
            self._show(rest)

    def _show(self, lines: list[Line]) -> None:
        self.last.extend(lines)
        begun = self._begun
        if begun is not None and lines:
            first, self._begun = lines[0], None
            same = first[:2] == begun[:2] and first.text.startswith(begun.text)
            render.raw((first.text[len(begun.text) :] if same else b"") + b"\n")
            lines = lines[1:] if same else lines
        wanted = self._wanted
        shown = [line for line in lines if wanted is None or wanted(line.text)]
        self._printer.show(shown)

    def _show_unfinished(self) -> None:
        lines = self._lines.unfinished()
        if self._progress.wanted:
            self._progress.draw([self._printer.labelled(line) for line in lines])
            return
        several = self._printer.ranks or len(lines) > 1
        if lines and not (several or self._exact or self._wanted or lines[0].bar):
            self._begin(lines[0])
        now = time.monotonic()
        bars = {line[:2]: line for line in lines if line.bar}
        self._noted = {key: self._noted.get(key, now) for key in bars}
        for key, line in bars.items():
            if now - self._noted[key] >= BAR_SECONDS:
                self._noted[key] = now
                render.note(self._printer.labelled(line))

    def _begin(self, line: Line) -> None:
        """Write the beginning of a line that has not ended."""
        if render.wants_json():
            return
        before = self._begun.text if self._begun and self._begun[:2] == line[:2] else b""
        if self._begun is None or (before and line.text.startswith(before)):
            head = self._printer.head(line) if self._begun is None else b""
            render.raw(head + line.text[len(before) :])
            self._begun = line


# The size of the cache of formatted times: many lines have the same.
TIMES_MAX = 4096


@functools.lru_cache(TIMES_MAX)
def milliseconds(at: str) -> str:
    """``2026-11-21T10:00:00.123Z``."""
    time_of_day = parse.at(at)
    if time_of_day is None:
        return ""
    utc = time_of_day.astimezone(timezone.utc)
    return f"{utc:%Y-%m-%dT%H:%M:%S}.{utc.microsecond // 1000:03d}Z"


APPROXIMATE = (
    "times with ~ are approximate: an older version kept these lines and noted one time for several"
    " seconds of output"
)


class Printer:
    """Prints lines of output, each with its prefix: when it was written, and its rank."""

    def __init__(self, *, ranks: bool = False, times: bool = False) -> None:
        self.ranks, self.times = ranks, times
        # Lines of several attempts: the prefix has the attempt, too.
        self.attempts = False
        self._approximate = False

    def head(self, line: Line) -> bytes:
        """The prefix of a line."""
        head = ""
        if self.times:
            at = milliseconds(line.at)
            head = f"{'~' if at and line.approximate else ''}{at or '-'} "
        if self.attempts:
            head += f"[{line.attempt}.{line.rank}] "
        elif self.ranks:
            head += f"[{line.rank}] "
        return head.encode()

    def labelled(self, line: Line) -> str:
        """A line with its head, as text."""
        return (self.head(line) + line.text).decode("utf-8", "replace")

    def show(self, lines: list[Line]) -> None:
        """Print lines on standard output."""
        if not lines:
            return
        if not self._approximate and any(line.approximate for line in lines):
            self._approximate = True
            render.note(APPROXIMATE)
        if render.wants_json():
            for line in lines:
                render.record(self._record(line))
            return
        if render.is_terminal(sys.stdout):
            # Nested progress bars move the cursor up: that would overwrite other lines here.
            lines = [line._replace(text=render.without_moves(line.text)) for line in lines]
        with render.Progress.cleared():
            render.raw(b"".join(self.head(line) + line.text + b"\n" for line in lines))

    def _record(self, line: Line) -> dict[str, Any]:
        record: dict[str, Any] = {
            "attempt": line.attempt,
            "rank": line.rank,
            "role": line.role,
        }
        if self.times:
            record["at"] = line.at or None
        if line.approximate:
            record["approximate"] = True
        return {**record, "text": line.text.decode("utf-8", "replace")}

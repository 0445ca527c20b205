"""Logs and metrics: structlog set-up, and the metrics that every service has."""

from __future__ import annotations

import io
import logging
import os
import platform
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TextIO, cast

import structlog
import structlog.stdlib
import structlog.tracebacks
from prometheus_client import disable_created_metrics

from libs.contracts.base import Message
from libs.contracts.envelope import Envelope
from libs.service.log_size import keep_below
from libs.service.metrics import Metrics
from libs.service.version import VERSION
from libs.tracing.context import current_span, trace_ids

# Each counter and histogram would have a second series with the time of its making.
disable_created_metrics()

declare = Metrics("every service")
BUILD = declare.gauge(
    "shiftwork_build_info", "1; what runs here is in the labels", ["version", "python"]
)
BUILD.labels(VERSION, platform.python_version()).set(1)
HANDLED = declare.counter("shiftwork_events_handled_total", "Events handled", ["service", "type"])
DUPLICATES = declare.counter("shiftwork_events_duplicate_total", "Events seen before", ["service"])
DEAD_LETTERS = declare.counter(
    "shiftwork_dead_letters_total", "Events that could not be handled", ["service"]
)
PUBLISHED = declare.counter("shiftwork_events_published_total", "Events published", ["service"])
REPUBLISHED = declare.counter(
    "shiftwork_events_republished_total",
    "Events published again to a bus server that came back",
    ["service"],
)
OUTBOX_WAITING = declare.gauge(
    "shiftwork_outbox_waiting",
    "Unpublished events in the outbox, up to 100,000; refused ones are counted apart",
    ["service"],
)
OUTBOX_AGE = declare.gauge(
    "shiftwork_outbox_oldest_age_seconds",
    "Age of the oldest unpublished event in the outbox; 0: there is none",
    ["service"],
)
COMMANDS = declare.counter(
    "shiftwork_commands_total", "Commands answered", ["service", "type", "outcome"]
)
EVENTS_REFUSED = declare.gauge(
    "shiftwork_events_refused",
    "Emitted events that the bus refuses or that cannot be read; they wait in the outbox",
    ["service"],
)
EVENTS_SET_APART = declare.counter(
    "shiftwork_events_set_apart_total", "Emitted events that cannot be published", ["service"]
)
CONSUMPTION_PAUSED = declare.gauge(
    "shiftwork_consumption_paused",
    "1 while events fail in a row and are kept for later instead of being set apart",
    ["service"],
)
STREAM_BYTES = declare.gauge(
    "shiftwork_event_stream_bytes", "Events that some service still has to receive, in bytes"
)
STREAM_BYTES_MAX = declare.gauge(
    "shiftwork_event_stream_limit_bytes", "Where the stream of events refuses; -1: nowhere"
)
STREAM_MESSAGES = declare.gauge(
    "shiftwork_event_stream_messages", "Events that some service still has to receive"
)
CONSUMER_WAITING = declare.gauge(
    "shiftwork_consumer_waiting",
    "Events in the stream that a service has not acknowledged",
    ["consumer"],
)
UNREADABLE_ROWS = declare.counter(
    "shiftwork_unreadable_rows_total",
    "Times that a stored row could not be decoded, and was left out or refused",
    ["service", "kind"],
)
TRACE_SPANS = declare.counter(
    "shiftwork_trace_spans_total", "Spans by what became of them", ["service", "outcome"]
)
LEADS = declare.gauge("shiftwork_leads", "1 while this process leads the service", ["service"])
TERMS_FAILED = declare.counter(
    "shiftwork_terms_failed_total",
    "Leader's terms ended because memory could not follow a commit",
    ["service"],
)
STEP_SECONDS = declare.histogram(
    "shiftwork_loop_step_seconds", "Duration of loop steps", ["service", "loop"]
)
LOST_LINES = declare.counter(
    "shiftwork_log_lines_lost_total", "Log lines that could not be written (a full disk)"
)
PRUNED = declare.counter(
    "shiftwork_pruned_rows_total", "Rows deleted because of their age", ["service", "what"]
)
PRUNE_FAILED = declare.counter(
    "shiftwork_prunes_failed_total", "Prunes that the database refused", ["service", "what"]
)
PRUNE_HELD = declare.gauge(
    "shiftwork_prune_held_seconds",
    "How far the deleting of old rows is behind what the settings ask for",
    ["service", "what"],
)
RETRIES = declare.counter(
    "shiftwork_retries_total", "Waits for a database or bus", ["service", "part"]
)


_about: ContextVar[object] = ContextVar("about", default=None)


@contextmanager
def log_about(about: object) -> Generator[None]:
    """Each line that is logged meanwhile names this event, this command or query, or this run."""
    token = _about.set(about)
    try:
        yield
    finally:
        _about.reset(token)


class LossyStream(io.TextIOBase):
    """A stream for logs that never raises: it drops and counts lines that cannot be written (on a
    full disk, to a closed pipe), and the next line that can be written reports the loss.

    A log must never end the process that writes it.
    """

    def __init__(self, stream: TextIO, bytes_max: int = 0) -> None:
        self._stream = stream
        # Of the file that the stream appends to; 0: it is not ours to cut.
        self._bytes_max = bytes_max
        self._lost = 0

    def write(self, text: str) -> int:
        """Write whole lines, or nothing."""
        lost = ""
        if self._lost:
            # The last line may have been cut in its middle.
            lost = f'\n{{"event": "log lines are missing here", "lines": {self._lost}}}\n'
        try:
            self._put(lost + text)
        except (OSError, ValueError):
            count = max(1, text.count("\n"))
            self._lost += count
            LOST_LINES.inc(count)
        else:
            self._lost = 0
        return len(text)

    def flush(self) -> None:
        """Each write is complete."""

    def isatty(self) -> bool:
        """Return the stream's own value."""
        return self._stream.isatty()

    def _put(self, text: str) -> None:
        """Past the stream's own buffer, where it is a file: what a full disk refuses would stay in
        the buffer and be refused again with every later line."""
        try:
            number = self._stream.fileno()
        except (OSError, ValueError, AttributeError):
            self._stream.write(text)
            self._stream.flush()
            return
        data = memoryview(text.encode(errors="replace"))
        while data:
            data = data[os.write(number, data) :]
        if self._bytes_max:
            keep_below(number, self._bytes_max)


def set_up_logs(
    form: Literal["json", "console"],
    level: str,
    stream: TextIO | None = None,
    *,
    bytes_max: int = 0,
) -> None:
    """Configure structlog for this process: JSON lines, or readable ones; on standard error.

    ``bytes_max``: of a file of ours, whose text then goes to FILE.1.
    """
    out = cast("TextIO", LossyStream(stream or sys.stderr, bytes_max))
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(
            colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    added: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        _add_ids,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendered: list[structlog.types.Processor] = [
        # Without local variables: they may hold a token or a task's environment.
        structlog.processors.ExceptionRenderer(
            structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        )
        if form == "json"
        else structlog.processors.format_exc_info,
        *([] if form == "json" else [_escape]),
        renderer,
    ]
    structlog.configure(
        processors=[*added, *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        # Module-level loggers outlive a set-up (a test, a second `up` in one process): look it up.
        cache_logger_on_first_use=False,
    )
    _forward_standard_logs(out, added, rendered)


def ids_of(about: object) -> dict[str, str | int]:
    """What a line of the log says of an event, of a command or query, or of a run."""
    found: dict[str, str | int] = {}
    if isinstance(about, Envelope):
        found["event_id"] = about.id
        about = about.message
    elif isinstance(about, Message):
        found["command"] = type(about).__name__
    for name, field in (("task", "task_id"), ("attempt", "attempt")):
        if value := getattr(about, field, None):
            found[name] = value
    return found


def _add_ids(
    _logger: object, _method: str, event_dict: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Name what a line belongs to: the message that is handled, and the trace if there is one."""
    for name, value in (ids_of(_about.get()) | trace_ids(current_span())).items():
        event_dict.setdefault(name, value)
    return event_dict


def _escape(
    _logger: object, _method: str, event_dict: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Escape what a terminal obeys: readable lines go to one, and have text of other people.
    Tracebacks keep their line breaks, and are indented, so that none of them looks like a line of
    the log."""
    found: dict[str, Any] = {}
    for name, value in event_dict.items():
        if name in _SEVERAL_LINES:
            lines = str(value).split("\n")
            found[_escaped(name)] = "\n".join(f"  {_escaped(line)}" for line in lines)
        elif isinstance(value, str):
            found[_escaped(name)] = _escaped(value)
        else:
            shown = repr(value)
            found[_escaped(name)] = value if shown.isprintable() else _escaped(shown)
    return found


_SEVERAL_LINES = ("exception", "stack")


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "backslashreplace").decode()
        for each in text
    )


_HANDLER_NAME = "shiftwork"


def _forward_standard_logs(
    out: TextIO,
    added: list[structlog.types.Processor],
    rendered: list[structlog.types.Processor],
) -> None:
    """Format what libraries log through ``logging``, and warnings, like the platform's lines."""
    handler = logging.StreamHandler(out)
    handler.set_name(_HANDLER_NAME)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*added, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendered],
        )
    )
    root = logging.getLogger()
    for old in [each for each in root.handlers if each.get_name() == _HANDLER_NAME]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)


def log_stray_errors() -> None:
    """What Python would print on standard error becomes lines of the log: errors that end a
    thread, and those that could not be raised. Called by processes whose standard error is a
    log."""

    def in_thread(args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread else ""
        problem = args.exc_value or args.exc_type()
        structlog.get_logger().error("a thread ended", thread=name, exc_info=problem)

    def ignored(args: sys.UnraisableHookArgs) -> None:
        where = f"{args.err_msg or 'exception ignored in'} {args.object!r}"
        problem = args.exc_value or args.exc_type()
        structlog.get_logger().error("an error was ignored", where=where, exc_info=problem)

    threading.excepthook, sys.unraisablehook = in_thread, ignored


def log(service: str) -> structlog.typing.FilteringBoundLogger:
    """Return a logger that names the service in every line."""
    return structlog.get_logger(service=service)

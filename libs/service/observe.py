"""Logs and metrics: structlog set-up, and the metrics that every service has."""

from __future__ import annotations

import logging
import sys
from typing import Literal, TextIO

import structlog
import structlog.tracebacks
from prometheus_client import Counter, Gauge, Histogram

HANDLED = Counter("shiftwork_events_handled_total", "Events handled", ["service", "type"])
DUPLICATES = Counter("shiftwork_events_duplicate_total", "Events seen before", ["service"])
DEAD_LETTERS = Counter(
    "shiftwork_dead_letters_total", "Events that could not be handled", ["service"]
)
PUBLISHED = Counter("shiftwork_events_published_total", "Events published", ["service"])
REPUBLISHED = Counter(
    "shiftwork_events_republished_total",
    "Events said again to a bus server that came back",
    ["service"],
)
OUTBOX_WAITING = Gauge(
    "shiftwork_outbox_waiting", "Unpublished events (up to one page)", ["service"]
)
COMMANDS = Counter("shiftwork_commands_total", "Commands answered", ["service", "type", "outcome"])
LEADS = Gauge("shiftwork_leads", "1 while this process leads the service", ["service"])
TERMS_FAILED = Counter(
    "shiftwork_terms_failed_total",
    "Leader's terms ended because memory could not follow a commit",
    ["service"],
)
STEP_SECONDS = Histogram(
    "shiftwork_loop_step_seconds", "Duration of loop steps", ["service", "loop"]
)
RETRIES = Counter("shiftwork_retries_total", "Waits for a database or bus", ["service", "part"])


def set_up_logs(form: Literal["json", "console"], level: str, stream: TextIO | None = None) -> None:
    """Configure structlog for this process: JSON lines, or readable ones; on standard error."""
    out = stream or sys.stderr
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(
            colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Without local variables: they may hold a token or a task's environment.
            structlog.processors.ExceptionRenderer(
                structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
            )
            if form == "json"
            else structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(file=out),
        # Module-level loggers outlive a set-up (a test, a second `up` in one process): look it up.
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=logging.WARNING, stream=out, format="%(name)s: %(message)s")


def log(service: str) -> structlog.typing.FilteringBoundLogger:
    """A logger that says which service speaks."""
    return structlog.get_logger(service=service)

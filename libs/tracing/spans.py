"""Spans of one service. ``OFF`` makes none, and passes on what others have begun.

A span has a name and bounded attributes that are listed here: never a command line, an
environment, a body, or an error's text, which may quote them. Only spans of sampled traces exist;
whether a trace is sampled is decided once, where it begins (``export.Sampling``) or enters
(``Tracing.request``).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import TypeAlias

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
)

from libs.contracts.envelope import Envelope
from libs.tracing.context import below, current_span, read, text_of

Attributes: TypeAlias = Mapping[str, str | int]

# Of an attribute's text, so many characters are kept.
CHARACTERS_MAX = 128
TASK, ATTEMPT, EVENT, TYPE = (
    "shiftwork.task",
    "shiftwork.attempt",
    "shiftwork.event",
    "shiftwork.type",
)
GROUP, PRIORITY = "shiftwork.group", "shiftwork.priority"
NODES, EXIT = "shiftwork.nodes", "shiftwork.exit"


def attributes_of(about: object) -> dict[str, str | int]:
    """What a span says of a message or a row: ids, group and priority, as far as it has them."""
    found: dict[str, str | int] = {TYPE: type(about).__name__}
    spec = getattr(about, "spec", None)
    for name, value in (
        (TASK, getattr(about, "task_id", None)),
        (ATTEMPT, getattr(about, "attempt", None)),
        (GROUP, getattr(spec, "group", None)),
        (PRIORITY, getattr(spec, "priority", None)),
    ):
        if isinstance(value, Enum):
            if value.name != "UNSPECIFIED":
                found[name] = value.name.lower()
        elif value:
            found[name] = value if isinstance(value, int) else str(value)[:CHARACTERS_MAX]
    return found


class Tracing:
    """Makes the spans of one service. Without a tracer it makes none."""

    def __init__(
        self,
        tracer: Tracer | None = None,
        *,
        make_with_id: Callable[[int], contextlib.AbstractContextManager[None]] | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._tracer = tracer
        self._make_with_id = make_with_id
        # Exports what is left, for a bounded time. It blocks.
        self.close = close

    @property
    def on(self) -> bool:
        """Whether spans are exported."""
        return self._tracer is not None

    @contextlib.contextmanager
    def span(
        self,
        name: str,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes | None = None,
        *,
        parent: SpanContext | None = None,
    ) -> Generator[Span | None]:
        """Work in a new span below ``parent``, or below the current one; where there is neither, or
        the trace is not sampled, the work takes its place without a span of its own."""
        above = parent or current_span()
        if above is None:
            yield None
        elif self._tracer is None or not above.trace_flags.sampled:
            token = attach(below(above))
            try:
                yield None
            finally:
                detach(token)
        else:
            with self._open(self._tracer, name, kind, attributes, below(above)) as span:
                yield span

    def remote(
        self, name: str, traceparent: str, kind: SpanKind, attributes: Attributes
    ) -> contextlib.AbstractContextManager[Span | None]:
        """Work in a span below one of another process."""
        above = read(traceparent)
        if above is None:
            return contextlib.nullcontext()
        return self.span(name, kind, attributes, parent=above)

    @contextlib.contextmanager
    def request(
        self, name: str, traceparent: str, *, may_sample: Callable[[], bool]
    ) -> Generator[Span | None]:
        """Work in the span of a request from outside: in its caller's trace, or as the beginning of
        one. ``may_sample`` decides whether a caller who wants its trace sampled gets that. It must
        not go by the trace id, which the caller has chosen."""
        if self._tracer is None:
            yield None
            return
        context, caller = Context(), read(traceparent)
        if caller is not None:
            sampled = caller.trace_flags.sampled and may_sample()
            flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
            context = below(SpanContext(caller.trace_id, caller.span_id, True, flags))
        with self._open(self._tracer, name, SpanKind.SERVER, None, context) as span:
            yield span

    @contextlib.contextmanager
    def publishing(self, envelopes: Sequence[Envelope]) -> Generator[Sequence[Envelope]]:
        """A span for each event of a sampled trace while they are published; yields the events as
        they are to travel, so that their handlers hang below these spans."""
        if self._tracer is None or not any(each.traceparent for each in envelopes):
            yield envelopes
            return
        spans: list[Span] = []
        sent = [self._publishes(self._tracer, each, spans) for each in envelopes]
        try:
            yield sent
        except BaseException as error:
            for span in spans:
                _mark_failed(span, error)
            raise
        finally:
            for span in spans:
                span.end()

    def _publishes(self, tracer: Tracer, envelope: Envelope, spans: list[Span]) -> Envelope:
        above = read(envelope.traceparent)
        if above is None or not above.trace_flags.sampled:
            return envelope
        attributes = {**attributes_of(envelope.message), EVENT: envelope.id[:CHARACTERS_MAX]}
        name = f"publish {type(envelope.message).__name__}"
        span = tracer.start_span(name, below(above), SpanKind.PRODUCER, attributes)
        spans.append(span)
        return envelope.with_traceparent(text_of(span.get_span_context()))

    def begin(
        self, name: str, attributes: Attributes, *, parent: str = "", link: str = ""
    ) -> Span | None:
        """A span that the caller ends: below ``parent``, or as a trace of its own that is linked to
        ``link`` and sampled as that is. None if it is not sampled."""
        above = read(parent or link)
        if self._tracer is None or above is None or not above.trace_flags.sampled:
            return None
        if parent:
            return self._tracer.start_span(name, below(above), attributes=attributes)
        return self._tracer.start_span(name, Context(), attributes=attributes, links=[Link(above)])

    def record(
        self,
        name: str,
        attributes: Attributes,
        *,
        parent: str,
        started_at: datetime,
        ended_at: datetime,
    ) -> None:
        """Record a span that is over, under the id that ``reserved`` has given it: after a crash it
        may be recorded again, as the same span."""
        above, span_id = read(parent), read(reserved(parent, name))
        if self._tracer is None or self._make_with_id is None or above is None or span_id is None:
            return
        if not above.trace_flags.sampled:
            return
        with self._make_with_id(span_id.span_id):
            span = self._tracer.start_span(
                name, below(above), attributes=attributes, start_time=_nanoseconds(started_at)
            )
        span.end(_nanoseconds(max(started_at, ended_at)))

    @contextlib.contextmanager
    def _open(
        self,
        tracer: Tracer,
        name: str,
        kind: SpanKind,
        attributes: Attributes | None,
        context: Context,
    ) -> Generator[Span]:
        with tracer.start_as_current_span(
            name,
            context,
            kind,
            attributes,
            # An error's text may quote what no span may hold.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                _mark_failed(span, error)
                raise


OFF = Tracing()


def reserved(parent: str, name: str) -> str:
    """The traceparent of the span ``name`` below ``parent`` that ``Tracing.record`` is to make: the
    same however often it is computed. Empty if ``parent`` names no span."""
    above = read(parent)
    if above is None:
        return ""
    digest = hashlib.sha256(f"{text_of(above)} {name}".encode()).digest()[:8]
    span_id = int.from_bytes(digest, "big") or 1
    return text_of(SpanContext(above.trace_id, span_id, True, above.trace_flags))


def _mark_failed(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__name__)
    span.set_status(Status(StatusCode.ERROR))


def _nanoseconds(at: datetime) -> int:
    return round(at.timestamp() * 1e9)

"""The place of the present work in a trace, and its text form ``traceparent`` (W3C Trace Context).

OpenTelemetry keeps the current span in a context variable, so each asyncio task has its own. A text
that is malformed counts as none, however long it is: it may come from anybody. ``tracestate``,
other vendors' data, is neither read nor forwarded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import NonRecordingSpan, SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

HEADER = "traceparent"

_propagator = TraceContextTextMapPropagator()


def read(traceparent: str) -> SpanContext | None:
    """The span that a traceparent names; None if it names none."""
    if not traceparent:
        return None
    found = _propagator.extract({HEADER: traceparent}, Context())
    span = trace.get_current_span(found).get_span_context()
    return span if span.is_valid else None


def text_of(span: SpanContext) -> str:
    """The traceparent that names a span."""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def current_span() -> SpanContext | None:
    """The span in which the caller works, perhaps another process's; None outside of any trace."""
    span = trace.get_current_span().get_span_context()
    return span if span.is_valid else None


def current() -> str:
    """The traceparent of the current span; empty outside of any trace."""
    span = current_span()
    return "" if span is None else text_of(span)


def trace_ids(span: SpanContext | None) -> dict[str, str]:
    """How a line of the log names a span: the same text as in a collector."""
    if span is None:
        return {}
    return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}


def below(span: SpanContext) -> Context:
    """A context in which new spans are children of this one."""
    return trace.set_span_in_context(NonRecordingSpan(span), Context())


def enter(traceparent: str) -> None:
    """Work below this span until the end of the caller's asyncio task. A traceparent that names no
    span changes nothing."""
    span = read(traceparent)
    if span is not None:
        attach(below(span))


@contextlib.contextmanager
def entered(context: Context) -> Generator[None]:
    """Work in a context that was taken elsewhere, such as another asyncio task's."""
    token = attach(context)
    try:
        yield
    finally:
        detach(token)


__all__ = [
    "HEADER",
    "Context",
    "SpanContext",
    "below",
    "current",
    "current_span",
    "enter",
    "entered",
    "get_current",
    "read",
    "text_of",
    "trace_ids",
]

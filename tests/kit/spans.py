"""Spans that stay in memory, made as those of a service are."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from libs.tracing.export import Collector, tracing_to


class Spans:
    """A tracing whose spans stay here."""

    def __init__(self, ratio: float = 1.0) -> None:
        self.exporter = InMemorySpanExporter()
        collector = Collector("", {}, ratio, 1000)
        self.tracing = tracing_to(
            "test", "1", collector, lambda _outcome, _count: None, lambda **_: self.exporter
        )

    def named(self) -> dict[str, ReadableSpan]:
        self.tracing.close()
        return {each.name: each for each in self.exporter.get_finished_spans()}


def parent_of(span: ReadableSpan) -> tuple[str, str]:
    assert span.parent is not None
    return f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}"


def ids(span: ReadableSpan) -> tuple[str, str]:
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"

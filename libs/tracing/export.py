"""Sends spans to a collector by OTLP over HTTP, in a thread, from a bounded queue.

Built by ``libs.service.traces`` where a collector is named. The collector may be slow, away or a
black hole: a full queue drops spans and counts them, and a stop waits for it a short time only.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import (
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes

from libs.tracing.spans import CHARACTERS_MAX, Tracing

EXPORTED, FAILED, DROPPED = "exported", "failed", "dropped"
# Called with what became of spans, and with their number.
Count = Callable[[str, int], None]
BATCH_MAX = 256
EXPORT_SECONDS_MAX = 5.0
STOP_SECONDS_MAX = 2.0


@dataclass(frozen=True, slots=True)
class Collector:
    """Where spans go, and how many. No endpoint: where OpenTelemetry's own variables say."""

    endpoint: str
    headers: Mapping[str, str]
    ratio: float
    queue_max: int


class Sampling(Sampler):
    """Decides where a trace begins: as the trace that it is linked to, else by the ratio."""

    def __init__(self, ratio: float) -> None:
        self._ratio = TraceIdRatioBased(ratio)
        self._always = TraceIdRatioBased(1.0)

    def should_sample(  # noqa: PLR0917 - the SDK's signature
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """See ``Sampler``."""
        sampler = self._ratio
        if links and all(link.context.trace_flags.sampled for link in links):
            sampler = self._always
        return sampler.should_sample(
            parent_context, trace_id, name, kind, attributes, links, trace_state
        )

    def get_description(self) -> str:
        """See ``Sampler``."""
        return f"LinkedOr({self._ratio.get_description()})"


_wanted_id: ContextVar[int] = ContextVar("span_id", default=0)


class _Ids(RandomIdGenerator):
    """Random ids, but for spans whose id was given out before (``spans.reserved``)."""

    def generate_span_id(self) -> int:
        return _wanted_id.get() or super().generate_span_id()


@contextlib.contextmanager
def _with_id(span_id: int) -> Generator[None]:
    token = _wanted_id.set(span_id)
    try:
        yield
    finally:
        _wanted_id.reset(token)


class _Counted(SpanExporter):
    """Counts what the exporter below it does with the spans."""

    def __init__(self, exporter: SpanExporter, count: Count) -> None:
        self._exporter, self._count = exporter, count
        self.taken = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        result = self._exporter.export(spans)
        self._count(EXPORTED if result is SpanExportResult.SUCCESS else FAILED, len(spans))
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class _Queue(BatchSpanProcessor):
    """The SDK's queue, which drops silently; this one counts what it drops."""

    def __init__(self, exporter: _Counted, count: Count, queue_max: int) -> None:
        super().__init__(
            exporter,
            max_queue_size=queue_max,
            max_export_batch_size=min(BATCH_MAX, queue_max),
        )
        self._below, self._count, self._queue_max = exporter, count, queue_max
        self._entered = 0
        self._counting = threading.Lock()

    def on_end(self, span: ReadableSpan) -> None:
        with self._counting:
            if self._entered - self._below.taken >= self._queue_max:
                self._count(DROPPED, 1)
                return
            self._entered += 1
        super().on_end(span)


def tracing_to(
    service: str,
    version: str,
    collector: Collector,
    count: Count,
    make_exporter: Callable[..., SpanExporter] = OTLPSpanExporter,
) -> Tracing:
    """The tracing of a service whose spans go to this collector. ``close`` ends it."""
    options: dict[str, Any] = {"timeout": EXPORT_SECONDS_MAX}
    if collector.endpoint:
        options["endpoint"] = f"{collector.endpoint.rstrip('/')}/v1/traces"
    if collector.headers:
        options["headers"] = dict(collector.headers)
    exporter = _Counted(make_exporter(**options), count)
    queue = _Queue(exporter, count, collector.queue_max)
    provider = TracerProvider(
        sampler=ParentBased(Sampling(collector.ratio)),
        resource=Resource.create(
            {
                "service.namespace": "shiftwork",
                "service.name": service,
                "service.version": version,
            }
        ),
        # The SDK's own hook at the end of the process waits for the collector without a bound.
        shutdown_on_exit=False,
        id_generator=_Ids(),
        span_limits=SpanLimits(
            max_span_attributes=16, max_links=4, max_events=16, max_attribute_length=CHARACTERS_MAX
        ),
    )
    provider.add_span_processor(queue)

    def close() -> None:
        # In a thread: the exporter may be in the middle of a request, which nothing interrupts.
        ending = threading.Thread(target=provider.shutdown, name="traces-end", daemon=True)
        ending.start()
        ending.join(STOP_SECONDS_MAX)

    return Tracing(provider.get_tracer("shiftwork", version), make_with_id=_with_id, close=close)

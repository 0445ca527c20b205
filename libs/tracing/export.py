"""Sends spans to a collector by OTLP over HTTP, in a thread, from a bounded queue.

Built by ``libs.service.traces`` where a collector is named. The collector may be slow, away or a
black hole: a full queue drops spans and counts them, and a stop waits for it a short time only.
"""

from __future__ import annotations

import contextlib
import logging
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
# Called with the problem when exports begin to fail, and once they work again: with how many spans
# were lost, and None before that.
Outage = Callable[[str, "int | None"], None]
BATCH_MAX = 256
_LOGGER = logging.getLogger(OTLPSpanExporter.__module__)
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


class _Lines(logging.Filter):
    """Keeps what the SDK's exporter logs in this thread out of the log: a line for each batch and
    try, without the service. The last one says why a batch failed."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.thread = "", 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self.thread:
            return True
        self.last = record.getMessage()
        return False


class Counted(SpanExporter):
    """Counts what the exporter below it does with the spans, and reports the begin and the end of
    an outage."""

    def __init__(self, exporter: SpanExporter, count: Count, outage: Outage) -> None:
        self._exporter, self._count, self._outage = exporter, count, outage
        self.taken = 0
        # Spans of the outage that goes on, and its last problem.
        self._lost, self._problem = 0, ""
        self._lines = _Lines()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See ``SpanExporter``."""
        self.taken += len(spans)
        self._lines.last, self._lines.thread = "", threading.get_ident()
        _LOGGER.addFilter(self._lines)
        try:
            result = self._exporter.export(spans)
            problem = self._lines.last
        except Exception as error:  # noqa: BLE001 - an address that is none, among others
            result, problem = SpanExportResult.FAILURE, f"{type(error).__name__}: {error}"
        finally:
            _LOGGER.removeFilter(self._lines)
        failed = result is not SpanExportResult.SUCCESS
        self._count(FAILED if failed else EXPORTED, len(spans))
        if failed:
            first, self._problem = not self._lost, problem or "the collector refuses them"
            self._lost += len(spans)
            if first:
                self._outage(self._problem, None)
        elif self._lost:
            lost, self._lost = self._lost, 0
            self._outage(self._problem, lost)
        return result

    def shutdown(self) -> None:
        """See ``SpanExporter``."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See ``SpanExporter``."""
        return self._exporter.force_flush(timeout_millis)


class _Queue(BatchSpanProcessor):
    """The SDK's queue, which drops silently; this one counts what it drops."""

    def __init__(self, exporter: Counted, count: Count, queue_max: int) -> None:
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
    *,
    outage: Outage = lambda _problem, _lost: None,
) -> Tracing:
    """The tracing of a service whose spans go to this collector. ``close`` ends it."""
    options: dict[str, Any] = {"timeout": EXPORT_SECONDS_MAX}
    if collector.endpoint:
        options["endpoint"] = f"{collector.endpoint.rstrip('/')}/v1/traces"
    if collector.headers:
        options["headers"] = dict(collector.headers)
    exporter = Counted(make_exporter(**options), count, outage)
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

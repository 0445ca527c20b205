"""Spans on their way to a collector: bounded, counted, and never in anybody's way."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY
from pydantic import ValidationError
from structlog.testing import capture_logs

from libs.contracts import messages as m
from libs.service.settings import BaseServiceSettings
from libs.service.traces import answering, tracing_of
from libs.tracing.export import Counted
from libs.tracing.spans import OFF, Tracing
from tests.kit.collector import collector
from tests.kit.launcher_builders import a_spec

# Long enough for what a thread does at once, far shorter than a time-out of the exporter.
AT_ONCE_SECONDS = 1.0
STOP_SECONDS = 4.0
SUCCESS, FAILURE = SpanExportResult.SUCCESS, SpanExportResult.FAILURE


def settings(**fields: object) -> BaseServiceSettings:
    return BaseServiceSettings.model_validate({"database_url": "-", "nats_url": "-", **fields})


def count(service: str, outcome: str) -> float:
    labels = {"service": service, "outcome": outcome}
    return REGISTRY.get_sample_value("shiftwork_trace_spans_total", labels) or 0.0


def work(tracing: Tracing, times: int = 1) -> None:
    for _ in range(times):
        with tracing.request("GET", "", may_sample=lambda: True), tracing.span("inner"):
            pass


def test_without_a_collector_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert tracing_of("submit", settings()) is OFF
    with OFF.request("GET", "", may_sample=lambda: True) as span, OFF.span("inner") as inner:
        assert span is inner is None


def test_spans_reach_the_collector_with_the_headers_of_the_file(tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.write_text("Authorization: Bearer of:mine\n\nx-scope: team\n")
    with collector() as found:
        tracing = tracing_of("t1", settings(otlp_endpoint=found.url, otlp_headers_file=headers))
        work(tracing)
        tracing.close()
    inner, outer = found.spans
    assert (outer.service, outer.name, outer.parent_id) == ("t1", "GET", "")
    assert (inner.name, inner.trace_id, inner.parent_id) == ("inner", outer.trace_id, outer.span_id)
    assert found.headers[0]["authorization"] == "Bearer of:mine"
    assert found.headers[0]["x-scope"] == "team"
    assert count("t1", "exported") == 2
    assert headers.read_text() not in repr(tracing)


def test_the_standard_variable_names_the_collector_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        tracing = tracing_of("t2", settings())
        work(tracing)
        tracing.close()
        assert len(found.spans) == 2
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        assert tracing_of("t2", settings()) is OFF


def test_the_share_of_traces_is_that_of_the_settings() -> None:
    with collector() as found:
        tracing = tracing_of("t3", settings(otlp_endpoint=found.url, trace_ratio=0.25))
        work(tracing, 400)
        tracing.close()
    assert 50 <= len({each.trace_id for each in found.spans}) <= 150
    # Whole traces or nothing of them.
    assert len(found.spans) == 2 * len({each.trace_id for each in found.spans})


def test_a_collector_that_never_answers_slows_nothing_and_stops_nobody() -> None:
    with collector(black_hole=True) as hole:
        tracing = tracing_of("t4", settings(otlp_endpoint=hole.url, trace_queue_max=100))
        began = time.monotonic()
        work(tracing, 500)
        assert time.monotonic() - began < AT_ONCE_SECONDS
        # 1000 spans, of which the queue and a request that is under way hold some.
        assert 700 <= count("t4", "dropped") <= 900
        began = time.monotonic()
        tracing.close()
        assert time.monotonic() - began < STOP_SECONDS
        # What still works on the way out finds an ended exporter.
        work(tracing)


def test_a_collector_that_is_not_there_stops_nobody() -> None:
    with collector() as gone:
        pass
    tracing = tracing_of("t5", settings(otlp_endpoint=gone.url))
    work(tracing)
    began = time.monotonic()
    tracing.close()
    assert time.monotonic() - began < STOP_SECONDS


def test_no_span_holds_an_errors_text_a_command_or_an_environment() -> None:
    spec = a_spec(command=("python", "secret-in-command"), env={"PASSWORD": "secret-in-env"})
    spec = spec.model_copy(update={"group": "g" * 300})
    command = m.CreateTask(client_key="secret-key", owner="ann", spec=spec)

    def fails() -> None:
        raise ValueError("secret-in-error")

    with collector() as found:
        tracing = tracing_of("t6", settings(otlp_endpoint=found.url))
        with (
            pytest.raises(ValueError, match="secret"),
            tracing.request("POST", "", may_sample=lambda: True),
            answering(tracing, command),
        ):
            fails()
        tracing.close()
    assert not [body for body in found.bodies if b"secret" in body]
    inner = next(each for each in found.spans if each.name == "CreateTask")
    assert inner.failed
    assert inner.attributes["error.type"] == "ValueError"
    assert len(inner.attributes["shiftwork.group"]) == 128
    assert all(len(value) <= 128 for each in found.spans for value in each.attributes.values())


def test_an_endpoint_that_is_no_address_is_refused() -> None:
    with pytest.raises(ValidationError, match="collector:4318"):
        settings(otlp_endpoint="collector:4318")


def test_an_outage_of_the_collector_is_logged_at_its_begin_and_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    results = [FAILURE, FAILURE, SUCCESS, SUCCESS]
    heard: list[tuple[str, int | None]] = []

    class Exporter(InMemorySpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            logging.getLogger(OTLPSpanExporter.__module__).error("Failed: %s", "away")
            assert spans
            return results.pop(0)

    counted = Counted(
        Exporter(),
        lambda _outcome, _count: None,
        lambda problem, lost: heard.append((problem, lost)),
    )
    for size in (2, 3, 4, 5):
        counted.export([ReadableSpan("one")] * size)
    assert heard == [("Failed: away", None), ("Failed: away", 5)]
    assert caplog.messages == []


def test_an_exporter_that_raises_is_an_outage_too() -> None:
    heard: list[tuple[str, int | None]] = []

    class Exporter(InMemorySpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            raise ConnectionError(f"{len(spans)} spans")

    counted = Counted(
        Exporter(),
        lambda _outcome, _count: None,
        lambda problem, lost: heard.append((problem, lost)),
    )
    assert counted.export([ReadableSpan("one")]) is FAILURE
    assert heard == [("ConnectionError: 1 spans", None)]


def test_the_log_names_the_service_whose_traces_do_not_reach_the_collector() -> None:
    with collector(refuses=True) as away, capture_logs() as lines:
        tracing = tracing_of("t9", settings(otlp_endpoint=away.url))
        work(tracing)
        tracing.close()
    # Threads of other tests may still end.
    (found,) = [line for line in lines if line["service"] == "t9"]
    assert found["event"] == "traces do not reach the collector"
    assert found["problem"]

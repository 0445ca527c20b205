"""A collector of traces: a real receiver of OTLP over HTTP, with OpenTelemetry's own messages."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class ReceivedSpan:
    """One span as it arrived."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    failed: bool
    attributes: dict[str, str]
    # Of each link the trace and the span.
    links: tuple[tuple[str, str], ...] = ()


@dataclass
class Collector:
    """What has arrived, in the order of arrival."""

    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list[ReceivedSpan])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    bodies: list[bytes] = field(default_factory=list[bytes])
    requests: int = 0

    def of(self, trace_id: str) -> list[ReceivedSpan]:
        """The spans of one trace, each once."""
        return list(
            {each.span_id: each for each in self.spans if each.trace_id == trace_id}.values()
        )

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            about = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [
                    _received(about.get("service.name", ""), each) for each in scope.spans
                ]


def _received(service: str, span: Any) -> ReceivedSpan:
    return ReceivedSpan(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=span.kind,
        failed=span.status.code == span.status.STATUS_CODE_ERROR,
        attributes={
            each.key: each.value.string_value or str(each.value.int_value)
            for each in span.attributes
        },
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
    )


@contextlib.contextmanager
def collector(*, black_hole: bool = False, refuses: bool = False) -> Iterator[Collector]:
    """A running collector. A black hole takes requests and never answers; one that
    refuses answers 404."""
    found, ended = Collector(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.requests += 1
            body = self.rfile.read(int(self.headers["content-length"]))
            if black_hole:
                ended.wait(60)
                return
            if refuses:
                self.send_error(404)
                return
            assert self.path == "/v1/traces"
            found.headers.append({name.lower(): value for name, value in self.headers.items()})
            found.bodies.append(body)
            found.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()

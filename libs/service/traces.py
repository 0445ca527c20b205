"""Traces in the frame of a service: what each service's tracing is made of, how requests from
outside enter it, and how it goes on where no handler is at work.

A handler's events are in its trace by themselves (``Tx.emit``). A loop acts on a task long after
the request that began it; so services with the table ``tasktrace`` keep each sampled task's place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

import structlog
from opentelemetry.trace import SpanKind

from libs.contracts.base import Message
from libs.contracts.envelope import Envelope
from libs.service.observability import TRACE_SPANS, log
from libs.service.prune import PruneRule, aged
from libs.service.settings import BaseServiceSettings
from libs.service.token_bucket import TokenBucket
from libs.service.version import VERSION
from libs.store.port import Tx
from libs.store.task_traces import TRACE_RULE, Place, TaskTrace
from libs.tracing.context import HEADER, current, current_span, text_of
from libs.tracing.spans import (
    CHARACTERS_MAX,
    EVENT,
    OFF,
    TASK,
    Attributes,
    Tracing,
    attributes_of,
)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


def tracing_of(service: str, settings: BaseServiceSettings) -> Tracing:
    """The tracing of a service under its settings; its owner calls ``close`` in a thread."""
    if not settings.traces:
        return OFF
    # The SDK is loaded where traces go anywhere, and nowhere else.
    from libs.tracing.export import Collector, tracing_to  # noqa: PLC0415

    return tracing_to(
        service,
        VERSION,
        Collector(
            endpoint=settings.otlp_endpoint,
            headers=settings.otlp_headers(),
            ratio=settings.trace_ratio,
            queue_max=settings.trace_queue_max,
        ),
        lambda outcome, count: TRACE_SPANS.labels(service, outcome).inc(count),
        outage=partial(_log_outage, service),
    )


def _log_outage(service: str, problem: str, lost: int | None) -> None:
    if lost is None:
        log(service).warning("traces do not reach the collector", problem=problem)
    else:
        text = "traces reach the collector again"
        log(service).warning(text, lost_spans=lost, last_problem=problem)


@dataclass(frozen=True, slots=True)
class KeptTraces:
    """Which events say where a task's trace goes on. A service with the table declares one."""

    # Events that it handles: what it does about the task from then on hangs below that.
    continued_from: frozenset[type[Message]]
    # Events that its loops emit, with which a trace of its own begins, linked to the submission:
    # a task may wait and run for weeks, and a trace is searched by its time.
    begun_with: frozenset[type[Message]] = frozenset()


@dataclass(frozen=True, slots=True)
class LoopTraces:
    """Finds the places of events that loops emit: ``libs.store.task_traces.TaskTraces``."""

    tracing: Tracing
    kept: KeptTraces
    now: Callable[[], Any]

    def place(self, row: TaskTrace, message: Message) -> Place | None:
        """Below a span for the decision to emit it, which is exported once that is committed."""
        name = f"emit {type(message).__name__}"
        begins = type(message) in self.kept.begun_with
        found = attributes_of(message)
        if begins:
            span = self.tracing.begin(name, found, link=row.submitted)
        else:
            span = self.tracing.begin(name, found, parent=row.traceparent)
        if span is None:
            return None
        traceparent = text_of(span.get_span_context())
        after = replace(row, traceparent=traceparent, kept_at=self.now()) if begins else None
        return Place(traceparent, after, span.end)


def trace_rule(settings: BaseServiceSettings) -> PruneRule:
    """What deletes the places of old tasks."""
    keep = timedelta(seconds=settings.trace_keep_seconds)
    return aged(TRACE_RULE, keep, TaskTrace, ["task_id"], "kept_at")


async def keep_place(tx: Tx, message: Message, kept: KeptTraces | None) -> None:
    """Note where a task's trace goes on, after the event that says so was handled in its span."""
    span = current_span()
    if kept is None or type(message) not in kept.continued_from:
        return
    if span is None or not span.trace_flags.sampled:
        return
    task_id: str = getattr(message, "task_id", "")
    before = await tx.get(TaskTrace, task_id)
    submitted = before.submitted if before is not None else current()
    tx.put(TaskTrace(task_id, current(), submitted, tx.now))


def handling(tracing: Tracing, envelope: Envelope) -> AbstractContextManager[object]:
    """The span of an event's handler, below that of its publication."""
    attributes: Attributes = {
        **attributes_of(envelope.message),
        EVENT: envelope.id[:CHARACTERS_MAX],
    }
    name = f"handle {type(envelope.message).__name__}"
    return tracing.remote(name, envelope.traceparent, SpanKind.CONSUMER, attributes)


def answering(tracing: Tracing, command: Message) -> AbstractContextManager[object]:
    """The span of a command or query that is answered, below its requester's."""
    return tracing.span(type(command).__name__, SpanKind.SERVER, attributes_of(command))


class TracedRequests:
    """Puts each request of a service's own HTTP into a trace, and names the trace in its answer
    (ASGI)."""

    def __init__(
        self,
        app: Asgi,
        tracing: Tracing,
        settings: BaseServiceSettings,
        chance: Random | None = None,
    ) -> None:
        self._app, self._tracing = app, tracing
        self._chance = chance or Random()  # noqa: S311 - no secret
        self._ratio = settings.trace_ratio
        rate = settings.trace_requests_per_second
        self._wished = TokenBucket(max(1, round(rate)) if rate else 0, rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer (ASGI)."""
        with structlog.contextvars.bound_contextvars():
            if scope["type"] != "http" or not self._tracing.on:
                await self._app(scope, receive, send)
            else:
                await self._traced(scope, receive, send)

    async def _traced(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = [value for name, value in scope["headers"] if name == HEADER.encode()]
        # Several are none, as the standard says.
        traceparent = found[0].decode("latin-1") if len(found) == 1 else ""
        method = scope["method"][:16]
        with self._tracing.request(method, traceparent, may_sample=self._may_sample) as span:
            here = current().encode()

            async def named(message: MutableMapping[str, Any]) -> None:
                if message["type"] == "http.response.start":
                    headers = [*message.get("headers", ()), (HEADER.encode(), here)]
                    message = {**message, "headers": headers}
                    if span is not None:
                        span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            try:
                await self._app(scope, receive, named)
            finally:
                if span is not None:
                    # The template: a path may hold names.
                    route = getattr(scope.get("route"), "path", "")
                    span.update_name(f"{method} {route}" if route else method)
                    for name, value in _attributes(scope, method, route).items():
                        span.set_attribute(name, value)

    def _may_sample(self) -> bool:
        """A caller's wish is granted as often as the rate allows, and beyond it by chance."""
        now = asyncio.get_running_loop().time()
        return self._chance.random() < self._ratio or self._wished.take(now)


def _attributes(scope: Scope, method: str, route: str) -> Mapping[str, str]:
    found = {"http.request.method": method}
    if route:
        found["http.route"] = route
    task_id = scope.get("path_params", {}).get("task_id")
    if isinstance(task_id, str):
        found[TASK] = task_id[:CHARACTERS_MAX]
    return found

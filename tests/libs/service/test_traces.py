"""Traces through the frame of a service, on the memory adapters."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from opentelemetry.trace import SpanKind

from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.contracts.envelope import Envelope
from libs.service import observability
from libs.service.definition import Ports, Service
from libs.service.loop import Loop
from libs.service.runner import Runner
from libs.service.settings import BaseServiceSettings
from libs.service.traces import KeptTraces, LoopTraces, TracedRequests
from libs.store.memory import MemoryStore
from libs.store.memory_database import Point
from libs.store.port import StoreUnavailableError, Tx
from libs.store.tables import Tables
from libs.store.task_traces import TaskTrace, trace_table
from libs.tracing.context import current, read
from libs.tracing.spans import OFF, Tracing
from tests.kit.clock import START
from tests.kit.launcher_builders import a_preemption, a_spec, an_assignment
from tests.kit.log_lines import log_lines
from tests.kit.memory import MemoryPlatform, running
from tests.kit.spans import Spans, ids, parent_of
from tests.kit.virtual_time import LoopClock
from tests.libs.service.service_harness import until

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"
TABLES = Tables("scheduler", trace_table())
KEPT = KeptTraces(
    continued_from=frozenset((m.TaskSubmitted,)), begun_with=frozenset((m.RunResumed,))
)
SPEC = a_spec().model_copy(update={"group": "a100", "priority": m.Priority.HIGH})


class Platform(MemoryPlatform):
    """A scheduler of a few lines: it keeps traces, and a loop of it assigns what was submitted."""

    def __init__(self, tracing: Tracing) -> None:
        super().__init__(LoopClock())
        self.tracing = tracing
        self.submitted: list[str] = []
        self.assign: list[Message] = []
        self.stores: list[Any] = []

    def runner(self, *_: Any) -> Runner:
        loop_traces = LoopTraces(self.tracing, KEPT, self.clock.now)
        store = MemoryStore(
            self.database,
            TABLES,
            clock=self.clock,
            source="scheduler",
            new_id=self.new_id,
            traceparent=current,
            traces=loop_traces if self.tracing.on else None,
        )
        self.stores.append(store)
        handlers = {m.TaskSubmitted: self.on_submitted}
        ports = Ports(store, self.bus("scheduler", handlers), self.clock, self.tracing, KEPT)

        async def decide(epoch: int) -> float:
            if self.assign:
                async with store.transaction(epoch=epoch) as tx:
                    for each in self.assign:
                        tx.emit(each)
                self.assign.clear()
            return 0.1

        service = Service(
            name="scheduler",
            ports=ports,
            handlers=handlers,
            commands={m.Decisions: self.on_decisions},
            loops=(Loop("decide", decide),),
        )
        return Runner(service, BaseServiceSettings(database_url="-", nats_url="-"))

    async def on_submitted(self, _tx: Tx, event: m.TaskSubmitted) -> None:
        self.submitted.append(event.task_id)
        observability.log("scheduler").info("noted")

    async def on_decisions(self, _tx: Tx, _command: m.Decisions) -> m.DecisionsReply:
        # Meanwhile the others arrive: they are handled together, by the task of one of them.
        await asyncio.sleep(0.01)
        observability.log("scheduler").info("asked")
        return m.DecisionsReply()

    async def submit(self, traceparent: str, task_id: str = "t1") -> None:
        event = m.TaskSubmitted(task_id=task_id, owner="ann", spec=SPEC, submitted_at=START)
        envelope = Envelope(f"e-{task_id}", "submit", START, event, traceparent)
        await self.connection("submit").publish([envelope])
        await until(lambda: task_id in self.submitted)

    def published(self, kind: type[Any]) -> Envelope:
        return next(each for each in self.broker.history if type(each.message) is kind)

    def traces(self) -> list[TaskTrace]:
        return list(self.database.rows(TABLES, TaskTrace).values())


async def test_a_handler_works_below_the_publication_and_a_loop_below_the_handler() -> None:
    spans = Spans()
    platform = Platform(spans.tracing)
    with log_lines() as lines:
        async with running(platform.runner()):
            await platform.submit(SAMPLED)
            platform.assign = [an_assignment(task="t1")]
            await until(lambda: not platform.assign)
            await until(
                lambda: any(type(e.message) is m.RunAssigned for e in platform.broker.history)
            )
    found = spans.named()
    handled, emitted = found["handle TaskSubmitted"], found["emit RunAssigned"]
    published = found["publish RunAssigned"]
    assert parent_of(handled) == (TRACE, SPAN)
    assert parent_of(emitted) == ids(handled)
    assert parent_of(published) == ids(emitted)
    sent = read(platform.published(m.RunAssigned).traceparent)
    assert sent is not None
    assert sent.span_id == published.get_span_context().span_id
    attributes = dict(handled.attributes or {})
    assert attributes == {
        "shiftwork.type": "TaskSubmitted",
        "shiftwork.task": "t1",
        "shiftwork.group": "a100",
        "shiftwork.priority": "high",
        "shiftwork.event": "e-t1",
    }
    (line,) = (each for each in lines() if each["event"] == "noted")
    assert line["event_id"] == "e-t1"
    assert line["task"] == "t1"
    assert (line["trace_id"], line["span_id"]) == ids(handled)
    # What is logged afterwards belongs to no event.
    assert not [each for each in lines() if each["event"] == "leads" and "task" in each]


async def test_a_later_attempt_begins_a_trace_that_is_linked_to_the_submission() -> None:
    spans = Spans()
    platform = Platform(spans.tracing)
    async with running(platform.runner()):
        await platform.submit(SAMPLED)
        for event in (
            m.RunResumed(**dict(an_assignment(2, task="t1"))),
            a_preemption(2, "t1"),
        ):
            platform.assign = [event]
            await until(lambda: not platform.assign)
    found = spans.named()
    resumed, preempted = found["emit RunResumed"], found["emit PreemptionRequested"]
    assert resumed.parent is None
    assert ids(resumed)[0] != TRACE
    (link,) = resumed.links
    assert (link.context.trace_id, link.context.span_id) == (
        int(TRACE, 16),
        found["handle TaskSubmitted"].get_span_context().span_id,
    )
    assert parent_of(preempted) == ids(resumed)


async def test_an_event_committed_before_a_kill_is_published_in_its_trace_by_the_next_process() -> (
    None
):
    spans = Spans()
    platform = Platform(spans.tracing)
    first = platform.runner()
    store = platform.stores[0]
    leadership = await store.lead()
    async with store.transaction(epoch=leadership.epoch) as tx:
        with spans.tracing.remote("decided", SAMPLED, SpanKind.INTERNAL, {}):
            tx.emit(an_assignment(task="t1"))
    store.crash()
    del first
    async with running(platform.runner()):
        await until(lambda: any(type(e.message) is m.RunAssigned for e in platform.broker.history))
    found = spans.named()
    assert parent_of(found["publish RunAssigned"]) == ids(found["decided"])
    assert platform.published(m.RunAssigned).traceparent.split("-")[1] == TRACE


async def refuse_commits(point: Point, _schema: str) -> None:
    if point is Point.BEFORE_COMMIT:
        raise StoreUnavailableError("struck")


async def test_a_transaction_that_fails_leaves_no_span_of_its_decision() -> None:
    spans = Spans()
    platform = Platform(spans.tracing)
    async with running(platform.runner()):
        await platform.submit(SAMPLED)
        store = platform.stores[0]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(platform.database, "fault", refuse_commits)
            with pytest.raises(StoreUnavailableError):
                async with store.transaction() as tx:
                    tx.emit(an_assignment(task="t1"))
    assert "emit RunAssigned" not in spans.named()


async def test_what_is_not_sampled_is_passed_on_and_named_in_the_log_but_not_exported() -> None:
    spans = Spans()
    platform = Platform(spans.tracing)
    with log_lines() as lines:
        async with running(platform.runner()):
            await platform.submit(UNSAMPLED)
            platform.assign = [an_assignment(task="t1")]
            await until(lambda: not platform.assign)
    assert spans.named() == {}
    assert platform.traces() == []
    (line,) = (each for each in lines() if each["event"] == "noted")
    assert line["trace_id"] == TRACE


async def test_a_service_without_a_collector_keeps_no_place_and_lines_have_ids_all_the_same() -> (
    None
):
    platform = Platform(OFF)
    with log_lines() as lines:
        async with running(platform.runner()):
            await platform.submit("")
            platform.assign = [an_assignment(task="t1")]
            await until(lambda: not platform.assign)
    assert platform.traces() == []
    (line,) = (each for each in lines() if each["event"] == "noted")
    assert line["task"] == "t1"
    assert "trace_id" not in line


async def test_malformed_traceparents_of_events_harm_nothing() -> None:
    spans = Spans()
    platform = Platform(spans.tracing)
    async with running(platform.runner()):
        for number, text in enumerate(
            ("nonsense", "00-" + "a" * 100_000, f"00-{'0' * 32}-{SPAN}-01")
        ):
            await platform.submit(text, f"t{number}")
    assert platform.submitted == ["t0", "t1", "t2"]
    assert spans.named() == {}


async def test_commands_that_wait_for_each_other_keep_their_own_traces() -> None:
    spans = Spans()
    platform = Platform(spans.tracing)
    gateway = platform.bus("gateway")

    async def ask(task_id: str) -> tuple[str, str]:
        with spans.tracing.request(f"GET {task_id}", "", may_sample=lambda: True):
            await gateway.request(m.Decisions(task_id=task_id, limit=1), timeout_s=5)
            return task_id, current()

    with log_lines() as lines:
        async with running(platform.runner()) as _:
            asked = dict(await asyncio.gather(*(ask(f"t{number}") for number in range(8))))
    spans.tracing.close()
    answered = {
        (each.attributes or {})["shiftwork.task"]: parent_of(each)
        for each in spans.exporter.get_finished_spans()
        if each.name == "Decisions"
    }
    assert {task: tuple(text.split("-")[1:3]) for task, text in asked.items()} == answered
    logged = {each["task"]: each["trace_id"] for each in lines() if each["event"] == "asked"}
    assert logged == {task: text.split("-")[1] for task, text in asked.items()}


class Requests:
    """A traced application, and what its answers say."""

    def __init__(self, spans: Spans, ratio: float, per_second: float) -> None:
        settings = BaseServiceSettings(
            database_url="-",
            nats_url="-",
            trace_ratio=ratio,
            trace_requests_per_second=per_second,
        )
        self.inside: list[str] = []
        self.app = TracedRequests(self.answer, spans.tracing, settings, Random(1))

    async def answer(self, scope: Any, _receive: Any, send: Any) -> None:
        self.inside.append(current())
        scope["route"] = type("Route", (), {"path": "/v1/tasks/{task_id}"})
        scope["path_params"] = {"task_id": "t1"}
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def get(self, *traceparents: bytes) -> str:
        headers = [(b"traceparent", each) for each in traceparents]
        scope = {"type": "http", "method": "GET", "path": "/v1/tasks/t1", "headers": headers}
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            raise AssertionError("there is no body")

        await self.app(scope, receive, send)
        return dict(sent[0]["headers"]).get(b"traceparent", b"").decode()


async def test_an_answer_names_its_trace_and_the_span_its_route() -> None:
    spans = Spans()
    requests = Requests(spans, 1.0, 10)
    answered = await requests.get()
    assert answered == requests.inside[0]
    span = spans.named()["GET /v1/tasks/{task_id}"]
    assert tuple(answered.split("-")[1:3]) == ids(span)
    assert dict(span.attributes or {}) == {
        "http.request.method": "GET",
        "http.route": "/v1/tasks/{task_id}",
        "http.response.status_code": 404,
        "shiftwork.task": "t1",
    }


async def test_a_callers_trace_is_continued() -> None:
    spans = Spans()
    answered = await Requests(spans, 1.0, 10).get(SAMPLED.encode())
    assert answered.split("-")[1] == TRACE
    assert parent_of(spans.named()["GET /v1/tasks/{task_id}"]) == (TRACE, SPAN)


async def test_strangers_cannot_flood_the_collector_by_the_sampled_flag_nor_by_chosen_ids() -> None:
    spans = Spans(ratio=0.0)
    requests = Requests(spans, 0.0, 10)
    # Ids that a sampler by ids would always take.
    low = [f"00-{number:016x}{1:016x}-{SPAN}-01".encode() for number in range(1, 501)]
    answered = [await requests.get(each) for each in low]
    spans.tracing.close()
    exported = len(spans.exporter.get_finished_spans())
    assert 10 <= exported <= 12
    # Their ids are kept all the same, so that support can search the log for them.
    assert [each[:35] for each in answered] == [each.decode()[:35] for each in low]


async def test_a_caller_that_does_not_want_its_trace_sampled_is_not_overruled() -> None:
    spans = Spans()
    assert (await Requests(spans, 1.0, 10).get(UNSAMPLED.encode())).endswith("-00")
    assert spans.named() == {}


async def test_headers_that_name_no_trace_begin_one() -> None:
    spans = Spans()
    requests = Requests(spans, 1.0, 10)
    for headers in ((b"nonsense",), (b"\xff" * 60,), (b"0" * 60_000,), (SAMPLED.encode(),) * 2):
        answered = read(await requests.get(*headers))
        assert answered is not None
        assert f"{answered.trace_id:032x}" != TRACE


async def test_without_a_collector_an_answer_names_no_trace() -> None:
    spans = Spans()
    spans.tracing = OFF
    assert not await Requests(spans, 1.0, 10).get(SAMPLED.encode())

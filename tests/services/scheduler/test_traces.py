"""A decision's trace in PostgreSQL, from one process of the scheduler to the next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from libs.contracts.messages import RunAssigned, RunResumed
from libs.service.relay import Relay
from libs.service.traces import LoopTraces
from libs.service.wiring import Wiring
from libs.store.connections import Address
from libs.store.sql import SqlStore
from libs.store.task_traces import TaskTrace
from libs.tracing.context import current
from services.scheduler.main import WIRING
from tests.kit.launcher_builders import an_assignment
from tests.kit.memory import MemoryPlatform
from tests.kit.spans import Spans, ids, parent_of

pytestmark = pytest.mark.server
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def wiring() -> Wiring:
    return WIRING


def store_of(platform: MemoryPlatform, address: Address, spans: Spans) -> SqlStore:
    assert WIRING.kept_traces is not None
    return SqlStore(
        address,
        WIRING.tables,
        clock=platform.clock,
        source="scheduler",
        new_id=platform.new_id,
        traceparent=current,
        traces=LoopTraces(spans.tracing, WIRING.kept_traces, platform.clock.now),
    )


async def test_a_decision_that_its_process_did_not_publish_is_published_in_the_tasks_trace(
    address: Address, platform: MemoryPlatform
) -> None:
    spans = Spans()
    first = store_of(platform, address, spans)
    async with first.transaction() as tx:
        tx.put(TaskTrace("task", GOOD, GOOD, tx.now))
    async with first.transaction() as tx:
        tx.emit(an_assignment())
        tx.emit(an_assignment(task="untraced"))
    async with first.transaction() as tx:
        tx.emit(RunResumed(**dict(an_assignment(2))))
    # It dies before it publishes anything.
    await first.close()

    second = store_of(platform, address, spans)
    service = platform.build(WIRING, store=second)
    service = replace(service, ports=replace(service.ports, tracing=spans.tracing))
    settings = WIRING.settings.model_validate({"database_url": "-", "nats_url": "-"})
    assert await Relay(service, settings).once() == 3
    async with second.transaction() as tx:
        kept = await tx.get(TaskTrace, "task")
    await second.close()

    found = spans.named()
    assert parent_of(found["emit RunAssigned"]) == (TRACE, SPAN)
    assert parent_of(found["publish RunAssigned"]) == ids(found["emit RunAssigned"])
    assigned, untraced, resumed = platform.broker.history
    assert isinstance(assigned.message, RunAssigned)
    assert tuple(assigned.traceparent.split("-")[1:3]) == ids(found["publish RunAssigned"])
    assert untraced.traceparent == ""
    # A later attempt's trace is another one, and the row goes on with it.
    assert resumed.traceparent.split("-")[1] == ids(found["emit RunResumed"])[0] != TRACE
    assert kept is not None
    assert tuple(kept.traceparent.split("-")[1:3]) == ids(found["emit RunResumed"])
    assert kept.submitted == GOOD

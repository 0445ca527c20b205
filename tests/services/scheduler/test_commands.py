from __future__ import annotations

import pytest_asyncio

from libs.contracts.messages import (
    CheckpointSaved,
    Decisions,
    DecisionsReply,
    ExitKind,
    KillRequested,
    PreemptionRequested,
    Priority,
    ReasonCode,
    Reemit,
    ReemitReply,
    RefusalCode,
    RunAssigned,
    RunResumed,
    TaskState,
    TaskStateChanged,
)
from tests.kit.builders import (
    a_checkpoint,
    a_node,
    a_task,
    exited_event,
    started_event,
    submitted_event,
)
from tests.services.scheduler.scheduler_harness import SchedulerHarness


@pytest_asyncio.fixture
async def scheduler() -> SchedulerHarness:
    """A task that ran and waits again for its second attempt behind one that runs."""
    made = await SchedulerHarness(decisions_page_max=2).start(a_node("n0"))
    await made.handle(submitted_event(a_task("low", priority=Priority.LOW)))
    await made.settle()
    await made.handle(started_event(await made.task("low")))
    await made.handle(submitted_event(a_task("high", priority=Priority.HIGH)))
    await made.settle()
    return made


async def test_explain(scheduler: SchedulerHarness) -> None:
    high = await scheduler.explained("high")
    assert high.reason is not None
    assert high.reason.code is ReasonCode.WAITS_FOR_VICTIMS
    assert (high.victims, high.position, high.queue_length) == (("low",), 1, 1)
    low = await scheduler.explained("low")
    assert low.state is TaskState.PREEMPTING
    unknown = await scheduler.explained("nobody")
    assert unknown.refusal is not None
    assert unknown.refusal.code is RefusalCode.NOT_FOUND


async def test_an_ended_task_is_explained_by_its_last_event(scheduler: SchedulerHarness) -> None:
    await scheduler.handle(exited_event(await scheduler.task("low")))
    low = await scheduler.explained("low")
    assert low.state is TaskState.SUCCEEDED
    assert low.reason is not None
    assert low.reason.code is ReasonCode.SUCCEEDED


async def test_decisions_come_in_pages_oldest_first(scheduler: SchedulerHarness) -> None:
    await scheduler.handle(exited_event(await scheduler.task("low"), ExitKind.PREEMPTED))
    await scheduler.settle()
    kinds: list[str] = []
    after, more = 0, True
    while more:
        reply = await scheduler.ask(Decisions(task_id="low", after=after, limit=99))
        assert isinstance(reply, DecisionsReply)
        assert 1 <= len(reply.decisions) <= 2
        kinds += [each.kind for each in reply.decisions]
        after, more = reply.decisions[-1].no, reply.more
    assert kinds == ["assign", "preempt", "hold"]
    last = await scheduler.ask(Decisions(task_id="low", after=after))
    assert last == DecisionsReply()
    unknown = await scheduler.ask(Decisions(task_id="nobody"))
    assert isinstance(unknown, DecisionsReply)
    assert unknown.refusal is not None


async def reemitted(scheduler: SchedulerHarness) -> list[object]:
    await scheduler.published()
    reply = await scheduler.ask(Reemit(service="scheduler"))
    assert isinstance(reply, ReemitReply)
    messages = [*await scheduler.published()]
    assert reply.events == len(messages)
    return messages


async def test_reemit_publishes_states_live_runs_and_requests_again(
    scheduler: SchedulerHarness,
) -> None:
    messages = await reemitted(scheduler)
    assert [type(each) for each in messages] == [
        TaskStateChanged,  # high, as its id comes first
        TaskStateChanged,
        RunAssigned,
        PreemptionRequested,
    ]
    scheduler.clock.move_to(500)
    await scheduler.settle()
    messages = await reemitted(scheduler)
    assert isinstance(messages[-1], KillRequested)
    await scheduler.handle(exited_event(await scheduler.task("low"), ExitKind.KILLED, now=501))
    await scheduler.handle(CheckpointSaved(task_id="low", attempt=1, checkpoint=a_checkpoint(1)))
    await scheduler.settle()
    await scheduler.handle(exited_event(await scheduler.task("high"), now=600))
    await scheduler.settle()
    messages = await reemitted(scheduler)
    assert isinstance(messages[0], TaskStateChanged)
    assert messages[0].state is TaskState.SUCCEEDED
    assert isinstance(messages[-1], RunResumed)
    assert messages[-1].resume_from == a_checkpoint(1)

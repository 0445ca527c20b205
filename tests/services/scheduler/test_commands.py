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
from tests.services.scheduler.scheduler_harness import World, inventory_of, node_changed


@pytest_asyncio.fixture
async def world() -> World:
    """A task that ran and waits again for its second attempt behind one that runs."""
    made = await World(decisions_page_max=2).start()
    await made.hear(node_changed(a_node("n0")), inventory_of(a_node("n0")))
    await made.hear(submitted_event(a_task("low", priority=Priority.LOW)))
    await made.settle()
    await made.hear(started_event(await made.task("low")))
    await made.hear(submitted_event(a_task("high", priority=Priority.HIGH)))
    await made.settle()
    return made


async def test_explain(world: World) -> None:
    high = await world.explained("high")
    assert high.reason is not None
    assert high.reason.code is ReasonCode.WAITS_FOR_VICTIMS
    assert (high.victims, high.position, high.queue_length) == (("low",), 1, 1)
    low = await world.explained("low")
    assert low.state is TaskState.PREEMPTING
    unknown = await world.explained("nobody")
    assert unknown.refusal is not None
    assert unknown.refusal.code is RefusalCode.NOT_FOUND


async def test_an_ended_task_is_explained_by_its_last_word(world: World) -> None:
    await world.hear(exited_event(await world.task("low")))
    low = await world.explained("low")
    assert low.state is TaskState.SUCCEEDED
    assert low.reason is not None
    assert low.reason.code is ReasonCode.SUCCEEDED


async def test_decisions_come_in_pages_oldest_first(world: World) -> None:
    await world.hear(exited_event(await world.task("low"), ExitKind.PREEMPTED))
    await world.settle()
    kinds: list[str] = []
    after, more = 0, True
    while more:
        reply = await world.ask(Decisions(task_id="low", after=after, limit=99))
        assert isinstance(reply, DecisionsReply)
        assert 1 <= len(reply.decisions) <= 2
        kinds += [each.kind for each in reply.decisions]
        after, more = reply.decisions[-1].no, reply.more
    assert kinds == ["assign", "preempt", "hold"]
    last = await world.ask(Decisions(task_id="low", after=after))
    assert last == DecisionsReply()
    unknown = await world.ask(Decisions(task_id="nobody"))
    assert isinstance(unknown, DecisionsReply)
    assert unknown.refusal is not None


async def reemitted(world: World) -> list[object]:
    await world.said()
    reply = await world.ask(Reemit(service="scheduler"))
    assert isinstance(reply, ReemitReply)
    said = [*await world.said()]
    assert reply.events == len(said)
    return said


async def test_reemit_says_states_live_runs_and_requests_again(world: World) -> None:
    said = await reemitted(world)
    assert [type(each) for each in said] == [
        TaskStateChanged,  # high, as its id comes first
        TaskStateChanged,
        RunAssigned,
        PreemptionRequested,
    ]
    world.clock.to(500)
    await world.settle()
    said = await reemitted(world)
    assert isinstance(said[-1], KillRequested)
    await world.hear(exited_event(await world.task("low"), ExitKind.KILLED, now=501))
    await world.hear(CheckpointSaved(task_id="low", attempt=1, checkpoint=a_checkpoint(1)))
    await world.settle()
    await world.hear(exited_event(await world.task("high"), now=600))
    await world.settle()
    said = await reemitted(world)
    assert isinstance(said[0], TaskStateChanged)
    assert said[0].state is TaskState.SUCCEEDED
    assert isinstance(said[-1], RunResumed)
    assert said[-1].resume_from == a_checkpoint(1)

"""The queue as the leader lists it."""

from __future__ import annotations

import base64
import json

import pytest

from libs.contracts.messages import ListQueue, ListQueueReply, Priority, ReasonCode, RefusalCode
from services.scheduler.domain.check.isolate import raised
from services.scheduler.domain.explain.queue_page import Place
from services.scheduler.queue_listing import cursor_of, place_of
from tests.kit.builders import a_node, a_task, started_event, submitted_event
from tests.services.scheduler.scheduler_harness import SchedulerHarness


async def a_queue(waiting: int = 3, **settings: object) -> SchedulerHarness:
    """One node, a run on it, and tasks that wait."""
    made = await SchedulerHarness(**settings).start(a_node("n0"))
    await made.handle(submitted_event(a_task("runs", priority=Priority.HIGH)))
    await made.settle()
    await made.handle(started_event(await made.task("runs")))
    for number in range(waiting):
        await made.handle(submitted_event(a_task(f"t{number}", submitted=number)))
    await made.settle()
    return made


async def page(scheduler: SchedulerHarness, **query: object) -> ListQueueReply:
    reply = await scheduler.ask(ListQueue(**query))  # type: ignore[arg-type]
    assert isinstance(reply, ListQueueReply)
    return reply


async def test_the_queue_is_listed_in_order_with_why_each_task_waits() -> None:
    reply = await page(await a_queue())
    assert [(each.task_id, each.position) for each in reply.tasks] == [
        ("t0", 1),
        ("t1", 2),
        ("t2", 3),
    ]
    assert reply.next == ""
    first = reply.tasks[0]
    assert first.reason.code is ReasonCode.WAITS_FOR_CAPACITY
    assert (first.name, first.owner, first.team, first.group) == (
        "a-task",
        "ann",
        "vision",
        "default",
    )
    assert first.waiting_since == first.submitted_at
    assert first.nodes == 1


async def test_pages_are_bounded_by_the_query_and_by_the_scheduler() -> None:
    scheduler = await a_queue(5, queue_page_max=2)
    first = await page(scheduler, limit=1000)
    assert [each.task_id for each in first.tasks] == ["t0", "t1"]
    second = await page(scheduler, after=first.next, limit=1)
    assert [each.task_id for each in second.tasks] == ["t2"]
    third = await page(scheduler, after=second.next)
    assert ([each.task_id for each in third.tasks], third.next) == (["t3", "t4"], "")


async def test_a_group_whose_decisions_are_held_up_gives_that_as_the_reason() -> None:
    scheduler = await a_queue(1, refusals_max=1)
    brain = scheduler.service.queries[ListQueue].__self__._brain  # type: ignore[attr-defined]
    brain.refused_plans.note({"default": [raised(ValueError("made wrong"))]}, scheduler.clock.now())
    assert (await page(scheduler)).tasks[0].reason.code is ReasonCode.PLAN_REFUSED


@pytest.mark.parametrize(
    "place",
    [
        Place("default", 1.5e9 + 0.1, -30, 1.7e9 + 1e-6, "t1"),
        Place("default", 1.5e9, -30, float("-inf"), "t1"),
        Place("", 0.0),
    ],
)
def test_a_place_survives_its_text_exactly(place: Place) -> None:
    assert place_of(cursor_of(place)) == place


def _text(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "%%%",
        "é",
        _text(5),
        _text([1, 2]),
        _text(["g", "nan", 1, "0x1p0", "t"]),
        _text(["g", "inf", 1, "0x1p0", "t"]),
        _text(["g", "0x1p0", True, "0x1p0", "t"]),
        _text(["g", "0x1p0", 1, "nan", "t"]),
        _text(["g", "0x1p0", 1, "0x1p0", 5]),
        _text([["g"], "0x1p0", 1, "0x1p0", "t"]),
        _text([None] * 5),
        "W" * 1999,
    ],
)
async def test_a_place_that_no_page_named_is_refused(cursor: str) -> None:
    reply = await page(await a_queue(1), after=cursor)
    assert reply.refusal is not None
    assert reply.refusal.code is RefusalCode.INVALID
    assert reply.refusal.errors[0].field == "cursor"

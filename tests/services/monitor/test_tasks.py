"""What the monitor remembers of each task."""

from __future__ import annotations

from libs.contracts.messages import TaskState
from services.monitor.store import TaskRow
from tests.kit.service import ServiceHarness
from tests.services.monitor.events import a_change, a_submission


async def test_the_last_event_about_a_task_wins_in_any_order(service: ServiceHarness) -> None:
    await service.handle(
        a_change(service, 2, TaskState.RUNNING), a_change(service, 1, TaskState.QUEUED)
    )
    (row,) = await service.rows(TaskRow)
    assert (row.version, row.state, row.owner, row.ended_at) == (2, TaskState.RUNNING, "ann", None)


async def test_a_task_that_ended_has_the_time_of_its_end(service: ServiceHarness) -> None:
    await service.handle(a_change(service, 3, TaskState.FAILED))
    (row,) = await service.rows(TaskRow)
    assert row.ended_at == service.clock.now()


async def test_the_name_comes_with_the_submission_in_either_order(service: ServiceHarness) -> None:
    await service.handle(a_change(service, 1, TaskState.RUNNING), a_submission(service))
    await service.handle(a_submission(service, "t2"), a_change(service, 1, TaskState.QUEUED, "t2"))
    rows = await service.rows(TaskRow)
    assert [(row.task_id, row.name, row.version) for row in rows] == [
        ("t1", "train", 1),
        ("t2", "train", 1),
    ]

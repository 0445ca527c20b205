"""What the monitor remembers of each task."""

from __future__ import annotations

from libs.contracts.messages import Reason, TaskState, TaskStateChanged
from services.monitor.store import TaskRow
from tests.kit.service import ServiceHarness


def a_change(service: ServiceHarness, version: int, state: TaskState) -> TaskStateChanged:
    return TaskStateChanged(
        task_id="t1",
        version=version,
        state=state,
        reason=Reason(),
        owner="ann",
        team="vision",
        group="train",
        changed_at=service.clock.now(),
    )


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

"""Events of a task, as the monitor receives them."""

from __future__ import annotations

from typing import Any

from libs.contracts.messages import Reason, ReasonCode, TaskState, TaskStateChanged, TaskSubmitted
from tests.kit.builders import a_spec
from tests.kit.service import ServiceHarness


def a_change(
    service: ServiceHarness,
    version: int,
    state: TaskState,
    task_id: str = "t1",
    *,
    reason: ReasonCode = ReasonCode.QUEUED,
    **changes: Any,
) -> TaskStateChanged:
    fields: dict[str, Any] = {"owner": "ann", "team": "vision", "group": "train"} | changes
    return TaskStateChanged(
        task_id=task_id,
        version=version,
        state=state,
        reason=Reason(code=reason),
        changed_at=service.clock.now(),
        **fields,
    )


def a_submission(service: ServiceHarness, task_id: str = "t1") -> TaskSubmitted:
    return TaskSubmitted(
        task_id=task_id,
        owner="ann",
        team="vision",
        spec=a_spec().model_copy(update={"name": "train"}),
        submitted_at=service.clock.now(),
    )

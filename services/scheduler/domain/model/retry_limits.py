"""Which counter and limit of retries the end of a run counts in.

Used by ``observations.py`` when a run ends, and by ``blockers.py`` for the reason of a task that
waits for its retry. A class of failures with a limit of its own has a counter of its own; all other
failures count together. What the launcher says about the class is taken as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from libs.contracts.messages import ClassRetries, ExitKind, FaultClass, RunExit
from services.scheduler.domain.model.rows import Task

# The field of a class in ``RetryPolicy`` and in ``ClassRetries``.
FIELDS: Mapping[FaultClass, str] = {
    FaultClass.USER: "user",
    FaultClass.TRANSIENT: "transient",
    FaultClass.PLATFORM: "platform",
    FaultClass.UNKNOWN: "unknown",
}
_NOT_COUNTED = frozenset({ExitKind.OK, ExitKind.PREEMPTED, ExitKind.KILLED})
_NONE = ClassRetries()


@dataclass(frozen=True, slots=True)
class RetryCount:
    """How many retries of a counter are used."""

    used: int
    limit: int
    # The class of failures that it counts; empty: all without a limit of their own.
    field: str = ""

    @property
    def left(self) -> bool:
        """Whether another retry is allowed."""
        return self.used < self.limit

    @property
    def names(self) -> dict[str, str]:
        """What a reason says of it besides numbers."""
        return {"class": self.field} if self.field else {}


def retry_count(task: Task, ended: RunExit | None) -> RetryCount | None:
    """The counter for the end of a run; None: it counts in none.

    A lost run counts only if the task limits that. The end of a run from before classes were known
    counts with those that have no limit of their own.
    """
    if ended is None or ended.kind in _NOT_COUNTED:
        return None
    lost = ended.kind is ExitKind.LOST
    field = FIELDS.get(FaultClass.PLATFORM if lost else ended.fault_class, "")
    limit: int | None = getattr(task.spec.retry, field) if field else None
    if limit is not None:
        return RetryCount(getattr(task.class_retries or _NONE, field), limit, field)
    return None if lost else RetryCount(task.retries_used, task.spec.retry.max_retries)


def with_retry(task: Task, count: RetryCount) -> Task:
    """The task with one more retry in this counter."""
    if not count.field:
        return replace(task, retries_used=count.used + 1)
    used = task.class_retries or _NONE
    return replace(task, class_retries=used.model_copy(update={count.field: count.used + 1}))

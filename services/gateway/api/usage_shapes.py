"""What the routes of the usage ledger answer."""

from __future__ import annotations

from pydantic import BaseModel, Field

from services.gateway import usage


class UsageAmounts(BaseModel):
    """What attempts held in the range. GPU-seconds are GPUs times seconds; a task without GPUs has
    node-seconds alone."""

    # Attempts that began in the range.
    attempts: int
    # From the assignment of the nodes until the end was observed, or until now.
    held_gpu_seconds: float
    held_node_seconds: float
    # Of that, until the processes ran: seconds of attempts, and of their GPUs.
    starting_seconds: float
    starting_gpu_seconds: float
    # Of the GPUs that attempts held: for how long they were measured, and how long they were idle
    # (utilization below a limit) of that. Averages of an attempt, for a part of it.
    measured_gpu_seconds: float
    idle_gpu_seconds: float
    # Held after the last checkpoint, by attempts that others or a failure ended.
    lost_to_preemption_gpu_seconds: float
    lost_to_preemption_node_seconds: float
    lost_to_failure_gpu_seconds: float
    lost_to_failure_node_seconds: float


class UsageItem(UsageAmounts):
    """One group. It has the fields of ``group_by`` alone."""

    user: str | None = None
    team: str | None = None
    group: str | None = None
    priority: str | None = Field(None, description="the task's level as the attempt began")
    outcome: usage.Outcome | None = None
    task: str | None = None
    day: str | None = Field(None, description="2026-11-23, in UTC")


class Usage(BaseModel):
    """Sums of a part of the ledger. Each item's amounts add up to the total."""

    since: str = Field(serialization_alias="from")
    to: str
    group_by: list[str]
    items: list[UsageItem]
    total: UsageAmounts

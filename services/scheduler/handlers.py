"""The scheduler's event handlers: each records a fact and nothing else. The loop decides.

Wired in ``main.py``. Correct under duplicates, loss with redelivery, and any order: versions,
revisions and attempts show which events are old; an event that comes before its task is kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from libs.contracts.base import Message
from libs.contracts.ids import NodeId, TaskId
from libs.contracts.inventories import is_old
from libs.contracts.messages import (
    CheckpointSaved,
    GoalChanged,
    InventoryListed,
    ModeChanged,
    NodeChanged,
    PriorityChanged,
    QuotaChanged,
    RunExited,
    RunListened,
    RunStarted,
    TaskSubmitted,
)
from libs.service.definition import Handler, Reads
from libs.service.metrics import Metrics
from libs.store.port import Tx
from services.scheduler import store
from services.scheduler.domain.model import observations
from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.observations import ChangeOrDrop, Drop
from services.scheduler.domain.model.rows import EarlyFacts, Inventory, Limit, Node, Task

declare = Metrics("scheduler")
DROPPED = declare.counter(
    "shiftwork_scheduler_facts_dropped_total", "Facts that changed nothing", ["why"]
)


def _dropped(why: Drop) -> None:
    DROPPED.labels(why.value).inc()


def _record(tx: Tx, task: Task, outcome: ChangeOrDrop) -> None:
    if isinstance(outcome, Drop):
        _dropped(outcome)
    else:
        store.put_change(tx, task, outcome)


async def _missing(tx: Tx, task_id: str) -> Drop:
    """Why there is no such task in the working set."""
    over = await store.ended(tx, task_id) is not None
    return Drop.ENDED_TASK if over else Drop.UNKNOWN_TASK


async def on_task_submitted(tx: Tx, event: TaskSubmitted) -> None:
    """Queue the task, with the facts that came before it."""
    if await tx.get(Task, event.task_id) is not None:
        _dropped(Drop.DUPLICATE)
    elif await store.ended(tx, event.task_id) is not None:
        _dropped(Drop.ENDED_TASK)
    else:
        early = await tx.get(EarlyFacts, event.task_id)
        store.put_change(tx, None, observations.on_submitted(event, early, tx.now))
        if early is not None:
            tx.delete(EarlyFacts, event.task_id)


async def _early(tx: Tx, task_id: str) -> EarlyFacts | None:
    """The place for a fact that came before its task; None if the task has ended."""
    if await store.ended(tx, task_id) is not None:
        _dropped(Drop.ENDED_TASK)
        return None
    return await tx.get(EarlyFacts, task_id) or EarlyFacts(TaskId(task_id), first_at=tx.now)


def goal_changed_handler(policy: PolicySettings) -> Callable[[Tx, GoalChanged], Awaitable[None]]:
    """The handler of ``GoalChanged``; the policy sets how long a stop waits for a checkpoint."""

    async def on_goal_changed(tx: Tx, event: GoalChanged) -> None:
        """Note what the owner wants."""
        task = await tx.get(Task, event.task_id)
        if task is not None:
            _record(tx, task, observations.on_goal_changed(task, event, tx.now, policy))
        elif (early := await _early(tx, event.task_id)) is not None:
            tx.put(observations.early_goal(early, event))

    return on_goal_changed


async def on_mode_changed(tx: Tx, event: ModeChanged) -> None:
    """Note whether it is in debug mode."""
    task = await tx.get(Task, event.task_id)
    if task is not None:
        _record(tx, task, observations.on_mode_changed(task, event, tx.now))
    elif (early := await _early(tx, event.task_id)) is not None:
        tx.put(observations.early_mode(early, event))


async def on_priority_changed(tx: Tx, event: PriorityChanged) -> None:
    """Note the level."""
    task = await tx.get(Task, event.task_id)
    if task is not None:
        _record(tx, task, observations.on_priority_changed(task, event, tx.now))
    elif (early := await _early(tx, event.task_id)) is not None:
        tx.put(observations.early_priority(early, event))


async def on_run_started(tx: Tx, event: RunStarted) -> None:
    """Every rank's process exists."""
    task = await tx.get(Task, event.task_id)
    if task is None:
        _dropped(await _missing(tx, event.task_id))
    else:
        _record(tx, task, observations.on_run_started(task, event, tx.now))


async def on_run_listened(tx: Tx, event: RunListened) -> None:
    """The run's program polls for preemption requests."""
    task = await tx.get(Task, event.task_id)
    if task is None:
        _dropped(await _missing(tx, event.task_id))
    else:
        _record(tx, task, observations.on_run_listened(task, event))


async def on_checkpoint_saved(tx: Tx, event: CheckpointSaved) -> None:
    """Note the checkpoint to resume from."""
    task = await tx.get(Task, event.task_id)
    if task is None:
        _dropped(await _missing(tx, event.task_id))
    else:
        _record(tx, task, observations.on_checkpoint_saved(task, event))


def run_exited_handler(policy: PolicySettings) -> Callable[[Tx, RunExited], Awaitable[None]]:
    """The handler of ``RunExited``; the policy sets how long a retry waits."""

    async def on_run_exited(tx: Tx, event: RunExited) -> None:
        """No process of the run is left: the exit rule, and free capacity."""
        task = await tx.get(Task, event.task_id)
        if task is None:
            _dropped(await _missing(tx, event.task_id))
        else:
            _record(tx, task, observations.on_run_exited(task, event, tx.now, policy))

    return on_run_exited


async def on_node_changed(tx: Tx, event: NodeChanged) -> None:
    """Keep the node's newest version; a removed one is kept for its version."""
    known = await tx.get(Node, event.node_id)
    if known is not None and known.version >= event.version:
        _dropped(Drop.OLD_VERSION)
        return
    node = event.node
    tx.put(
        Node(
            id=NodeId(event.node_id),
            version=event.version,
            group=node.group,
            gpus=node.gpus,
            cpus=node.cpus,
            memory_bytes=node.memory_bytes,
            schedulable=node.schedulable,
            ready=node.ready,
            unusable_gpus=node.unusable_gpus,
            draining=node.draining,
            removed=event.removed,
            labels=tuple(sorted(node.labels.items())),
            taints=tuple(sorted(node.taints)),
            changed_at=tx.now,
        )
    )


async def on_inventory_listed(tx: Tx, event: InventoryListed) -> None:
    """Note a full list of nodes: from then on a task that fits none of them can be rejected."""
    known = await tx.get(Inventory, event.runtime)
    if known is not None and is_old(event, kept_version=known.version, kept_at=known.listed_at):
        _dropped(Drop.OLD_VERSION)
    else:
        tx.put(Inventory(event.runtime, event.node_ids, event.listed_at, event.version))


async def on_quota_changed(tx: Tx, event: QuotaChanged) -> None:
    """Keep the limit's newest version."""
    quota = event.quota
    key = (quota.group, quota.user, quota.team, quota.priority, quota.grant)
    known = await tx.get(Limit, *key)
    if known is not None and known.version >= event.version:
        _dropped(Drop.OLD_VERSION)
        return
    tx.put(
        Limit(
            group=quota.group,
            user=quota.user,
            team=quota.team,
            priority=quota.priority,
            unit=quota.unit,
            limit=quota.limit,
            version=event.version,
            removed=event.removed,
            grant=quota.grant,
            unlimited=quota.unlimited,
            level_max=quota.level_max,
            expires_at=quota.expires_at,
            changed_at=tx.now,
        )
    )


READS: Mapping[type[Message], Reads] = {
    # Every task that is not in the working set is looked up among the ended ones.
    TaskSubmitted: lambda event: [(store.EndedTask, event.task_id)],
}


def handlers(policy: PolicySettings) -> Mapping[type[Message], Handler]:
    """Which event is recorded by which function, under these settings."""
    return {
        **HANDLERS,
        GoalChanged: goal_changed_handler(policy),
        RunExited: run_exited_handler(policy),
    }


HANDLERS: Mapping[type[Message], Handler] = {
    TaskSubmitted: on_task_submitted,
    GoalChanged: goal_changed_handler(PolicySettings()),
    ModeChanged: on_mode_changed,
    PriorityChanged: on_priority_changed,
    RunStarted: on_run_started,
    RunListened: on_run_listened,
    CheckpointSaved: on_checkpoint_saved,
    RunExited: run_exited_handler(PolicySettings()),
    NodeChanged: on_node_changed,
    InventoryListed: on_inventory_listed,
    QuotaChanged: on_quota_changed,
}

"""The scheduler's rows beside those of the domain, and every write and question about them.

Called by ``handlers.py``, ``commands.py`` and ``loop.py`` inside a transaction. A task that has
ended leaves the working set: only its last event is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from libs.contracts.messages import Reason, TaskStateChanged
from libs.contracts.rank_sizes import sizes_of
from libs.contracts.task_states import TERMINAL
from libs.service.prune import PruneRule, aged
from libs.store.port import Op, Order, Store, Tx, Where
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.model.changes import Change, applied, state_changed
from services.scheduler.domain.model.decisions import Decision, Plan
from services.scheduler.domain.model.group_policy import GroupPolicy, PolicySettings
from services.scheduler.domain.model.rows import (
    EarlyFacts,
    EndedTask,
    Inventory,
    Limit,
    Node,
    PoolLedger,
    Task,
)
from services.scheduler.set_apart import Apart, Problem, Rows, build, sift
from services.scheduler.settings import SchedulerSettings

WHOLE_NODE = -1
# Decisions of one plan are numbered within the transaction's number.
DECISIONS_OF_A_PLAN_MAX = 1_000_000
_RESIDENT = (GroupPolicy, Node, Limit, Inventory, PoolLedger, Task, EarlyFacts)


class StalePlanError(Exception):
    """The tables changed after the plan was made; it is made again."""


class DecisionFailedError(Exception):
    """One decision of a plan cannot be carried out, for the reason in ``__cause__``. Nothing was
    stored."""

    def __init__(self, number: int, decision: Decision) -> None:
        super().__init__(f"the {decision.kind} of task {decision.task_id} cannot be carried out")
        self.number = number
        self.decision = decision


@dataclass(frozen=True, slots=True)
class SlotRow:
    """One GPU of one node, owned by an attempt until its exit is observed."""

    task_id: str
    attempt: int
    node_id: str
    gpu: int


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """What a pool's discipline has learned about running times by ``saved_at``."""

    group: str
    saved_at: datetime
    learned: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One decision about one task."""

    no: int
    task_id: str
    attempt: int
    kind: str
    reason: Reason
    decided_at: datetime


async def load(store: Store, settings: PolicySettings) -> tuple[Index, Apart]:
    """Read the working set into memory; the new leader's first step. Rows that cannot be decoded,
    or that the index cannot be built from, are set apart.

    What the disciplines learned since the last save is lost, which only makes predictions a little
    poorer for a while.
    """
    await store.make_resident(*_RESIDENT)
    async with store.transaction() as tx:
        memories = await tx.select(PoolMemory)
        slots = [
            slot
            for lost in store.unreadable(Task)
            for slot in await tx.select(SlotRow, Where("task_id", Op.EQ, lost.id))
        ]
    # No await from here on, so that no commit comes between reading the rows and building the
    # index.
    # Nodes and policies first: tasks are put into pools that know them.
    rows: Rows = {kind: list(store.resident(kind).values()) for kind in _RESIDENT}
    unreadable = [Problem.unreadable(row) for kind in _RESIDENT for row in store.unreadable(kind)]
    lost_tasks = {row.id for row in store.unreadable(Task)}
    held = {slot.node_id for slot in slots if slot.task_id in lost_tasks}
    apart = Apart.of(unreadable, held)
    try:
        index = build(settings, rows, apart.withheld)
    except Exception:  # noqa: BLE001 - which rows it is, is found out here
        rows, problems = sift(settings, rows)
        apart = Apart.of([*unreadable, *problems], held)
        index = build(settings, rows, apart.withheld)
    for memory in memories:
        index.remember(memory.group, memory.learned)
    return index, apart


async def save_learned(tx: Tx, learned: dict[str, dict[str, Any]]) -> None:
    """Keep what the pools' disciplines learned."""
    tx.put(*(PoolMemory(group, tx.now, value) for group, value in learned.items()))


async def ended(tx: Tx, task_id: str) -> EndedTask | None:
    """The row of a task that has ended, with its last event; None if it has not ended."""
    return await tx.get(EndedTask, task_id)


def _slots(task: Task) -> Iterator[SlotRow]:
    assert task.live_attempt is not None, "only a live run owns slots"
    sizes = sizes_of(task.spec)
    for placement in task.placements:
        cpu_only = sizes[placement.role].gpus == 0
        gpus = placement.gpus or (() if cpu_only else (WHOLE_NODE,))
        for gpu in gpus:
            yield SlotRow(task.id, task.live_attempt, placement.node_id, gpu)


def put_change(tx: Tx, before: Task | None, change: Change) -> None:
    """Write a task's change with its slots, and emit its events."""
    after = change.task
    if before is not None and before.placements and not after.placements:
        for slot in _slots(before):
            tx.delete(SlotRow, slot.task_id, slot.attempt, slot.node_id, slot.gpu)
    if after.placements and (before is None or not before.placements):
        tx.put(*_slots(after))
    if after.state in TERMINAL:
        tx.delete(Task, after.id)
        tx.put(EndedTask(after.id, tx.now, _last_word(change, tx.now), after.run_seconds))
    else:
        tx.put(after)
    for message in change.messages:
        tx.emit(message)


def _last_word(change: Change, now: datetime) -> TaskStateChanged:
    published = [message for message in change.messages if isinstance(message, TaskStateChanged)]
    return published[-1] if published else state_changed(change.task, change.task.state, now)


async def commit(tx: Tx, plan: Plan, *, version: int) -> None:
    """Carry out a checked plan: rows, history and messages.

    StalePlanError if ``version``, which counts the changes so far, is not the plan's; the database
    refuses a slot with two owners, and the transaction another leader's commit.
    DecisionFailedError if one of the decisions cannot be carried out: the others may be.
    """
    if plan.version != version:
        raise StalePlanError(f"the plan was made for version {plan.version}, not {version}")
    tasks: dict[str, Task] = {}
    for number, decision in enumerate(plan.decisions):
        task = tasks.get(decision.task_id) or await tx.get(Task, decision.task_id)
        if task is None:
            raise StalePlanError(f"task {decision.task_id} is not there")
        try:
            change = applied(task, decision, plan.decided_at)
            put_change(tx, task, change)
        except Exception as error:
            raise DecisionFailedError(number, decision) from error
        tasks[task.id] = change.task
        row = DecisionRow(
            no=tx.version * DECISIONS_OF_A_PLAN_MAX + number,
            task_id=task.id,
            attempt=change.task.attempt,
            kind=decision.kind,
            reason=decision.reason,
            decided_at=plan.decided_at,
        )
        tx.put(row)
    if plan.ledgers:
        tx.put(*plan.ledgers)


async def decisions_of(tx: Tx, task_id: str, *, after: int, limit: int) -> list[DecisionRow]:
    """A task's decisions with a higher number than ``after``, oldest first."""
    return await tx.select(
        DecisionRow,
        Where("task_id", Op.EQ, task_id),
        Where("no", Op.GT, after),
        order_by=[Order("no")],
        limit=limit,
    )


async def tasks_of(tx: Tx) -> list[Task]:
    """Every task that has not ended, oldest first."""
    return await tx.select(Task, order_by=[Order("submitted_at")])


async def policies_of(tx: Tx) -> list[GroupPolicy]:
    """Every group's policy, those taken away included, by the groups' names."""
    return await tx.select(GroupPolicy, order_by=[Order("group")])


async def nodes_of_groups(tx: Tx) -> dict[str, float]:
    """How many nodes are known of each group: lost and cordoned ones count, removed ones do not."""
    nodes = await tx.select(Node, Where("removed", Op.EQ, value=False))
    return {name: float(count) for name, count in Counter(node.group for node in nodes).items()}


async def ended_newest(tx: Tx, limit: int) -> list[EndedTask]:
    """The tasks that ended last, in the order of their ends."""
    rows = await tx.select(EndedTask, order_by=[Order("ended_at", descending=True)], limit=limit)
    return rows[::-1]


def prune_rules(settings: SchedulerSettings) -> tuple[PruneRule, ...]:
    """What the scheduler forgets: decisions, tasks that ended, facts of tasks that never came,
    removed nodes, and removed quotas.

    When an ended task goes, submit has forgotten it as well (see the settings), so nobody submits
    it again.
    """

    def keep(seconds: float) -> timedelta:
        return timedelta(seconds=seconds)

    removed = Where("removed", Op.EQ, value=True)
    return (
        aged("decisions", keep(settings.decisions_keep_seconds), DecisionRow, ["no"], "decided_at"),
        aged("ended tasks", keep(settings.ended_keep_seconds), EndedTask, ["task_id"], "ended_at"),
        aged("early facts", keep(settings.early_keep_seconds), EarlyFacts, ["task_id"], "first_at"),
        aged(
            "removed nodes",
            keep(settings.removed_node_keep_seconds),
            Node,
            ["id"],
            "changed_at",
            removed,
        ),
        aged(
            "removed quotas",
            keep(settings.removed_quota_keep_seconds),
            Limit,
            ["group", "user", "team", "priority", "grant"],
            "changed_at",
            removed,
        ),
    )

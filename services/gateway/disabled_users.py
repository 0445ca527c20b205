"""Stops the tasks of disabled users, after they have saved.

The leader compares what is with what should be, again and again, so nothing is lost when a process
dies, and a task that was submitted a moment before the user was disabled is found, too.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta

import structlog

from libs.contracts import messages as m
from libs.contracts.ids import TaskId
from libs.contracts.task_states import LIVE_WORDS
from libs.store.port import Op, Order, Store, Tx, Where
from services.gateway.command_client import Commands
from services.gateway.ids import sortable_id
from services.gateway.problems import ProblemError
from services.gateway.rows import PLATFORM, AuditRow, TaskRow, UserRow

# In one step; of those who were disabled long ago fewer.
USERS_MAX = 1000
USERS_SLOW_MAX = 200
# Whoever was disabled within this time is in each round.
LATE = timedelta(hours=1)
# Of a task's id, in the id of its entry in the audit trail.
ENTRY_BYTES = 9
TASKS_MAX = 100
_log = structlog.stdlib.get_logger(__name__)


@dataclass
class _Pass:
    """Where a pass over the disabled users stands: behind this user, and behind this task of the
    users of the page. Empty: at the beginning."""

    user: str = ""
    task: str = ""


class DisabledUsers:
    """Requests that every task of a disabled user stops.

    Each round covers the users that were disabled lately. Those of long ago, who are as many as
    ever left, are covered by a slow pass beside it: a page in each step.
    """

    def __init__(self, store: Store, commands: Commands) -> None:
        self._store = store
        self._commands = commands
        self._late, self._all = _Pass(), _Pass()

    async def step(self, epoch: int) -> float | None:
        """Request it for a bounded number of users and tasks; again at once while there are more of
        the late ones, or of the tasks on a page. A request is sent again in each round until the
        read model shows the goal."""
        if await self._page(epoch, self._late, USERS_MAX, within=LATE):
            return 0.0
        await self._page(epoch, self._all, USERS_SLOW_MAX)
        return 0.0 if self._all.task else None

    async def _page(
        self, epoch: int, at: _Pass, users_max: int, within: timedelta | None = None
    ) -> bool:
        """One page of a pass. Returns True if there is more; then the next call continues."""
        async with self._store.transaction() as tx:
            where = [Where("disabled_at", Op.GT, tx.now - within)] if within else []
            users = await tx.select(
                UserRow,
                Where("disabled", Op.EQ, value=True),
                Where("name", Op.GT, at.user),
                *where,
                order_by=[Order("name")],
                limit=users_max,
            )
            # An older version left the tasks of the users that it disabled alone, and kept no name.
            owners = [user.name for user in users if user.disabled_by]
            tasks = await self._tasks(tx, owners, at.task) if owners else []
        for task in tasks:
            await self._stop(task, epoch)
        if len(tasks) == TASKS_MAX:
            at.task = tasks[-1].task_id
            return True
        at.task = ""
        at.user = users[-1].name if len(users) == users_max else ""
        return bool(at.user)

    async def _tasks(self, tx: Tx, owners: list[str], after: str) -> list[TaskRow]:
        """Those that run or wait, and are not to stop yet."""
        return await tx.select(
            TaskRow,
            Where("owner", Op.IN, owners),
            Where("state", Op.IN, list(LIVE_WORDS)),
            Where("goal", Op.IN, ["run", "pause"]),
            Where("task_id", Op.GT, after),
            order_by=[Order("task_id")],
            limit=TASKS_MAX,
        )

    async def _stop(self, task: TaskRow, epoch: int) -> None:
        """Request it for one task. One that submit refuses holds up no other."""
        # The page is as old as the requests before this one, and a stop cannot be taken back.
        async with self._store.transaction(epoch=epoch) as tx:
            owner = await tx.get(UserRow, task.owner)
            stays = owner is not None and owner.disabled and owner.disabled_by
            if owner is not None and stays:
                await _note(tx, task, owner, "started")
        if owner is None or not stays:
            _log.info("a task goes on: its owner was enabled", task=task.task_id, owner=task.owner)
            return
        command = m.SetGoal(
            task_id=TaskId(task.task_id), goal=m.Goal.STOP, asked_by=owner.disabled_by
        )
        try:
            await self._commands.ask(command, m.SetGoalReply)
        except ProblemError as problem:
            _log.warning(
                "a task of a disabled user goes on", task=task.task_id, problem=problem.detail
            )
            return
        _log.info("a task of a disabled user is to stop", task=task.task_id, owner=task.owner)
        async with self._store.transaction(epoch=epoch) as tx:
            await _note(tx, task, owner, "done")


async def _note(tx: Tx, task: TaskRow, owner: UserRow, outcome: str) -> None:
    """Enter the stop in the audit trail: one entry, however often it is requested."""
    more = hashlib.blake2b(task.task_id.encode(), digest_size=ENTRY_BYTES).digest()
    entry_id = sortable_id(owner.disabled_at or owner.created_at, more)
    there = await tx.get(AuditRow, entry_id)
    if there is not None and there.outcome in (outcome, "done"):
        return
    tx.put(
        AuditRow(
            id=entry_id,
            at=tx.now,
            who=owner.disabled_by,
            action="task.goal.stop",
            target=task.task_id,
            outcome=outcome,
            detail=f"its owner {owner.name} is disabled",
            address=PLATFORM,
        )
    )

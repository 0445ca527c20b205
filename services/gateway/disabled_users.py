"""Stops the tasks of disabled users, after they have saved.

The leader compares what is with what should be, again and again, so nothing is lost when a process
dies, and a task that was submitted a moment before the user was disabled is found, too.
"""

from __future__ import annotations

import structlog

from libs.contracts import messages as m
from libs.contracts.ids import TaskId
from libs.contracts.task_states import LIVE_WORDS
from libs.store.port import Op, Order, Store, Tx, Where
from services.gateway.command_client import Commands
from services.gateway.problems import ProblemError
from services.gateway.rows import TaskRow, UserRow

# In one step.
USERS_MAX = 1000
TASKS_MAX = 100
_log = structlog.stdlib.get_logger(__name__)


class DisabledUsers:
    """Requests that every task of a disabled user stops."""

    def __init__(self, store: Store, commands: Commands) -> None:
        self._store = store
        self._commands = commands
        # The last user and the last task of the page before; empty: the page is the first.
        self._user, self._task = "", ""

    async def step(self, epoch: int) -> float | None:
        """Request it for a bounded number of users and tasks; again at once while there are more.
        A request is sent again in each round until the read model shows the goal."""
        del epoch  # requests are harmless from a former leader, too
        async with self._store.transaction() as tx:
            users = await tx.select(
                UserRow,
                Where("disabled", Op.EQ, value=True),
                Where("name", Op.GT, self._user),
                order_by=[Order("name")],
                limit=USERS_MAX,
            )
            # An older version left the tasks of the users that it disabled alone, and kept no name.
            owners = [user.name for user in users if user.disabled_by]
            tasks = await self._tasks(tx, owners) if owners else []
        for task in tasks:
            await self._stop(task)
        if len(tasks) == TASKS_MAX:
            self._task = tasks[-1].task_id
            return 0.0
        self._task = ""
        self._user = users[-1].name if len(users) == USERS_MAX else ""
        return 0.0 if self._user else None

    async def _tasks(self, tx: Tx, owners: list[str]) -> list[TaskRow]:
        """Those that run or wait, and are not to stop yet."""
        return await tx.select(
            TaskRow,
            Where("owner", Op.IN, owners),
            Where("state", Op.IN, list(LIVE_WORDS)),
            Where("goal", Op.IN, ["run", "pause"]),
            Where("task_id", Op.GT, self._task),
            order_by=[Order("task_id")],
            limit=TASKS_MAX,
        )

    async def _stop(self, task: TaskRow) -> None:
        """Request it for one task. One that submit refuses holds up no other."""
        # The page is as old as the requests before this one, and a stop cannot be taken back.
        async with self._store.transaction() as tx:
            owner = await tx.get(UserRow, task.owner)
        if owner is None or not owner.disabled or not owner.disabled_by:
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

"""The people of a simulation: they submit, change their minds, set limits and cordon nodes.

They speak as the gateway does for them, and repeat what was not answered, with the same key.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from libs.bus.port import BusError
from libs.contracts.base import Message
from libs.contracts.messages import (
    CreateTask,
    CreateTaskReply,
    Goal,
    PreemptionPolicy,
    PreemptMode,
    Priority,
    Quota,
    RefusalCode,
    RetryPolicy,
    Role,
    RunMode,
    SetGoal,
    SetMode,
    SetPriority,
    SetQuota,
    SetSchedulable,
    TaskSpec,
    Unit,
)
from libs.service.loop import pause
from tests.sim.plan import GRANTS, Job

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

ASK_SECONDS = 2.0
ASK_AGAIN_SECONDS = 0.7
# A grant for a while lasts so long, or up to seven times as long.
WHILE_SECONDS = 20.0
# The goal, and whether it is to be reached at once.
GOALS = {
    "pause": (Goal.PAUSE, False),
    "pause now": (Goal.PAUSE, True),
    "run": (Goal.RUN, False),
    "stop": (Goal.STOP, False),
    "stop now": (Goal.STOP, True),
}
# The mode, and whether what is paused stays so.
MODES = {
    "debug": (RunMode.DEBUG, False),
    "debug off": (RunMode.NORMAL, True),
    "normal": (RunMode.NORMAL, False),
}
LEVELS = ("AUTO", "LOW", "NORMAL", "HIGH", "EXTREME_HIGH", "IDLE", "VERY_HIGH")


def spec_of(job: Job) -> TaskSpec:
    """What the person writes."""
    signal = "USR1" if job.mode is PreemptMode.SIGNAL else ""
    first, *others = job.roles or (
        Role(name="worker", replicas=job.nodes, command=("python", "train.py")),
    )
    first = first.model_copy(update={"restart": job.restart})
    return TaskSpec(
        name=job.name,
        group="default",
        priority=job.priority,
        roles=(first, *others),
        gpus_per_node=job.gpus,
        env={"JOB": job.name},
        retry=RetryPolicy.model_validate({"max_retries": job.retries, **job.class_limits}),
        preemption=PreemptionPolicy(
            mode=job.mode, signal=signal, ack_deadline_seconds=job.ack_deadline_seconds
        ),
        max_run_seconds=job.max_run_seconds,
        cpus=job.cpus,
        memory_bytes=job.memory_bytes,
        completion=job.completion,
        run_mode=job.run_mode,
    )


class People:
    """The users of the platform in one simulation."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        # By the job's name: the id that the platform gave it, the last goal that was asked for.
        self.ids: dict[str, str] = {}
        self.goals: dict[str, Goal] = {}
        self.refused: dict[str, str] = {}
        self.limited: dict[tuple[str, str, Priority], None] = {}
        # The grants that do not expire, without what they say.
        self.granted: dict[tuple[str, str, Priority], None] = {}

    async def live(self) -> None:
        """Everything that is planned; returns when all of it was answered."""
        async with asyncio.TaskGroup() as group:
            for job in self.sim.plan.jobs:
                group.create_task(self._job(job))
            for order in self.sim.plan.orders:
                group.create_task(self._order(*order))

    async def settle(self) -> None:
        """Take back whatever could keep a task from ending."""
        for user, team, level in self.limited:
            await self._limit(user, team, level, None)
        await self._permit_everything()
        for node in sorted(self.sim.cluster.nodes):
            command = SetSchedulable(node_id=node, schedulable=True, asked_by="root")
            # The machine has just been put back; the launcher finds it with its next look.
            await self.insist(command, until_found=True)
        for name, task_id in self.ids.items():
            if self.sim.jobs[name].program.endless:
                await self.insist(SetGoal(task_id=task_id, goal=Goal.STOP, asked_by="root"))
            elif self.goals.get(name) is Goal.PAUSE:
                await self.insist(SetGoal(task_id=task_id, goal=Goal.RUN, asked_by="root"))
            job = self.sim.jobs[name]
            if job.run_mode is not RunMode.NORMAL or any(wish in MODES for _, wish in job.wishes):
                command = SetMode(task_id=task_id, mode=RunMode.NORMAL, asked_by="root")
                await self.insist(command)

    async def insist(self, command: Message, *, until_found: bool = False) -> Message:
        """Ask until there is an answer, and until what it names is there."""
        try_again = {RefusalCode.UNAVAILABLE} | ({RefusalCode.NOT_FOUND} if until_found else set())
        while True:
            try:
                reply = await self.sim.ask(command, ASK_SECONDS)
            except BusError:
                await pause(ASK_AGAIN_SECONDS)
                continue
            refusal = getattr(reply, "refusal", None)
            if refusal is None or refusal.code not in try_again:
                return reply
            await pause(ASK_AGAIN_SECONDS)

    async def _job(self, job: Job) -> None:
        await pause(job.at)
        command = CreateTask(
            client_key=f"key-{job.name}", owner=job.owner, team=job.team, spec=spec_of(job)
        )
        replies = await asyncio.gather(*(self.insist(command) for _ in range(job.copies)))
        for reply in replies:
            assert isinstance(reply, CreateTaskReply), "the declared reply"
            if reply.refusal is not None:
                self.refused[job.name] = reply.refusal.detail
                continue
            known = self.ids.setdefault(job.name, reply.task_id)
            if known != reply.task_id:
                self.sim.complain(f"{job.name} became two tasks: {known}, {reply.task_id}")
            self.sim.accepted[reply.task_id] = job
        if job.name in self.ids:
            await self._wishes(job, self.ids[job.name])

    async def _wishes(self, job: Job, task_id: str) -> None:
        passed = 0.0
        for after, wish in sorted(job.wishes):
            await pause(after - passed)
            passed = after
            if wish in GOALS:
                goal, now = GOALS[wish]
                self.goals[job.name] = goal
                command = SetGoal(task_id=task_id, goal=goal, asked_by=job.owner, now=now)
                await self.insist(command)
            elif wish in MODES:
                mode, stay = MODES[wish]
                await self.insist(
                    SetMode(task_id=task_id, mode=mode, asked_by=job.owner, stay_paused=stay)
                )
            else:
                level = Priority(wish)
                await self.insist(SetPriority(task_id=task_id, priority=level, asked_by="root"))

    async def _order(self, at: float, kind: str, target: str, number: int) -> None:
        await pause(at)
        if kind in {"cordon", "drain", "uncordon"}:
            drain = {"drain": True} if kind == "drain" else {}
            command = SetSchedulable(
                node_id=target, schedulable=kind == "uncordon", asked_by="root", **drain
            )
            await self.insist(command)
            return
        if kind in GRANTS:
            await self._grant(kind, target, number)
            return
        user = "" if kind == "limit team" else target
        team = "red" if kind == "limit team" else ""
        level = Priority.UNSPECIFIED
        if kind == "limit level":
            level = Priority(f"PRIORITY_{LEVELS[number % len(LEVELS)]}")
        await self._limit(user, team, level, None if kind == "unlimit" else number)

    async def _limit(self, user: str, team: str, level: Priority, limit: int | None) -> None:
        self.limited[user, team, level] = None
        quota = Quota(user=user, team=team, priority=level, unit=Unit.GPUS, limit=limit or 0)
        await self.insist(SetQuota(quota=quota, remove=limit is None, asked_by="root"))

    async def _grant(self, kind: str, target: str, number: int) -> None:
        user = target if kind in {"grant user", "grant for a while"} else ""
        team = "red" if kind == "grant team" else ""
        level = Priority.UNSPECIFIED
        if kind in {"grant each", "grant for a while"}:
            level = Priority(f"PRIORITY_{LEVELS[1 + number % (len(LEVELS) - 1)]}")
        quota = Quota(
            grant=True, user=user, team=team, priority=level, unit=Unit.GPUS, limit=number
        )
        if kind == "grant for a while":
            # So specific that no other grant replaces it.
            at = self.sim.true_clock.now() + timedelta(seconds=WHILE_SECONDS * (1 + number))
            quota = quota.model_copy(update={"group": "default", "expires_at": at})
        else:
            self.granted[user, team, level] = None
        if kind == "site" and number % 2:
            quota = Quota(grant=True, unlimited=True, level_max=Priority.NORMAL)
        await self.insist(SetQuota(quota=quota, asked_by="root"))

    async def _permit_everything(self) -> None:
        """Nobody but the users by name is permitted anything: their grants replace the default.

        Grants for a while are left to expire.
        """
        if not any(kind in GRANTS for _, kind, _, _ in self.sim.plan.orders):
            return
        for user, team, level in self.granted:
            quota = Quota(grant=True, user=user, team=team, priority=level)
            await self.insist(SetQuota(quota=quota, remove=True, asked_by="root"))
        for user in sorted({job.owner for job in self.sim.plan.jobs}):
            quota = Quota(grant=True, user=user, unlimited=True)
            await self.insist(SetQuota(quota=quota, asked_by="root"))
        quota = Quota(grant=True, unit=Unit.GPUS_OR_NODES, limit=0)
        await self.insist(SetQuota(quota=quota, asked_by="root"))

"""The training programs of a simulation, on a cluster in memory, and what they compute.

A program's state is a chain of digests, one link for each step: a step lost or done twice shows in
the last link. Checkpoints lie in storage that survives everything; the platform only knows where.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from random import Random
from typing import TYPE_CHECKING

from libs.bus.port import BusError
from libs.contracts.messages import (
    AckCheckpoint,
    AckCheckpointReply,
    PreemptMode,
    RefusalCode,
    StartCondition,
    YieldRun,
    YieldRunReply,
)
from libs.service.loop import pause
from services.launcher.runtimes.fake_cluster import (
    PREEMPTED_CODE,
    SUPERSEDED_CODE,
    FakeCluster,
    FakeRank,
    FakeRun,
    Script,
    is_new,
)
from services.launcher.runtimes.port import RankOrder, RunOrder
from services.log_collector.domain import OutputKey
from tests.kit.checkers import Ack, Span
from tests.sim.plan import Job

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

# What a program does when it is asked to leave.
WAYS = {
    "exit 75": "saves, then leaves with the reserved code",
    "exit 0": "saves, then simply returns",
    "exit 1": "saves, then falls over its own feet",
    "late": "saves when its deadline is long over",
    "no ack": "leaves with the reserved code and saves nothing",
    "stay": "saves, then goes on",
    "ignore": "goes on",
    "never polls": "never calls should_preempt",
    "hang": "does nothing any more, and never leaves",
}
ASK_SECONDS = 2.0
ASK_AGAIN_SECONDS = 0.4
FIRST_LINK = "begin"


def link(state: str, step: int) -> str:
    """The state after one more step."""
    return hashlib.sha256(f"{state}/{step}".encode()).hexdigest()[:16]


def computed(steps: int) -> str:
    """The state of a program that was never interrupted."""
    state = FIRST_LINK
    for step in range(steps):
        state = link(state, step)
    return state


class SimCluster(FakeCluster):
    """Machines that remember every process that ever was, and play the jobs' programs."""

    def __init__(self, sim: Simulation, nodes: list) -> None:
        super().__init__(
            nodes,
            platform=self,
            script_of=lambda _: Script(),
            now=sim.true_clock.now,
            rng=Random(f"cluster {sim.plan.seed}"),
        )
        self.sim = sim
        self.processes: list[tuple[FakeRun, FakeRank]] = []
        # (task, attempt) -> the state in which every rank left with 0
        self.results: dict[tuple[str, int], str] = {}
        self._plays: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                run, order = await self._to_play.get()
                run.played = group.create_task(_Play(self, run, order).run())

    def launch(self, order: RunOrder) -> None:
        """Start what can be reached; the program begins when the whole gang is there."""
        run = self.runs.setdefault(order.run_id, FakeRun(order.run_id))
        run.world_size = order.size
        new = [rank for rank in order.ranks if is_new(run, rank)]
        for rank in new:
            self._check_order(run, order, rank)
        for rank in new:
            self.make(run, rank)
        self.play(run)
        self.changed()

    def _check_order(self, run: FakeRun, order: RunOrder, rank: RankOrder) -> None:
        """The conditions of a role hold when its first ranks are ordered."""
        roles = {role.name: role for role in order.spec.roles} if order.spec is not None else {}
        if rank.role not in roles or any(
            known.order.role == rank.role for known in run.ranks.values()
        ):
            return
        for after in roles[rank.role].starts_after:
            for other in order.gang():
                known = run.ranks.get(other.rank) if other.role == after.role else None
                there = known is not None and known.started_at is not None
                if after.condition is StartCondition.READY:
                    there = there and known is not None and known.ready
                if other.role == after.role and not there:
                    self.sim.complain(
                        f"{run.run_id}: role {rank.role} starts too early: rank {other.rank} of"
                        f" role {after.role} is not there"
                    )

    def begin(self, run: FakeRun, rank: FakeRank) -> None:
        """Every process is remembered."""
        super().begin(run, rank)
        self.processes.append((run, rank))

    def spans(self) -> list[Span]:
        """Every process as it truly was."""
        return [
            Span(
                task_id=run.run_id.task_id,
                attempt=run.run_id.attempt,
                rank=rank.order.rank,
                node_id=rank.order.node_id,
                gpus=rank.order.gpus,
                start=rank.started_at.timestamp() if rank.started_at else 0.0,
                end=rank.exited_at.timestamp() if rank.exited_at else None,
            )
            for run, rank in self.processes
        ]


class _Play:
    """One gang's program from its start to its end; rank 0 saves."""

    def __init__(self, cluster: SimCluster, run: FakeRun, order: RunOrder) -> None:
        self.cluster, self.run_, self.sim = cluster, run, cluster.sim
        self.task_id, self.attempt = run.run_id.task_id, run.run_id.attempt
        self.job: Job = self.sim.jobs[order.ranks[0].env["JOB"]]
        self.program = self.job.program
        self.rng = Random(f"{self.sim.plan.seed} {self.job.name} {self.attempt}")
        self.answered = False
        self.step, self.state = self._begin(order)
        self.first_step = self.step

    def _begin(self, order: RunOrder) -> tuple[int, str]:
        saved = json.loads(order.ranks[0].context).get("resume_from")
        if saved is None:
            promised = self.sim.acked_step(self.task_id)
            if promised is not None:
                self.sim.complain(
                    f"{self.run_.run_id} starts from scratch although {promised} was saved"
                )
            return 0, FIRST_LINK
        step, state = self.sim.storage[saved["uri"]]
        if (step, state) != (saved["step"], saved["digest"]):
            self.sim.complain(f"{self.run_.run_id} was given a wrong checkpoint: {saved}")
        return step, state

    def together(self) -> bool:
        """Whether every rank lives: a gang computes together or not at all."""
        return all(rank.running for rank in self.run_.ranks.values())

    async def run(self) -> None:
        program = self.program
        while self.step < program.steps:
            await pause(program.step_seconds)
            if not self.together():
                return
            if program.fails.get(self.attempt) == self.step - self.first_step:
                self._fail()
                return
            self.state = link(self.state, self.step)
            self.step += 1
            self._print()
            if await self._hand_over() or await self._yield():
                return
            due = program.save_every and self.step % program.save_every == 0
            if due and not await self._save():
                return
        self.cluster.results[self.task_id, self.attempt] = self.state
        await self._leave(0)

    async def _hand_over(self) -> bool:
        """True if the program has left, or can do no more."""
        way = self.program.way
        if self.answered or not await self._asked() or way in {"ignore", "never polls"}:
            return False
        self.answered = True
        if way == "hang":
            return True
        if way == "no ack":
            await self._leave(PREEMPTED_CODE)
            return True
        if way == "late":
            await pause(self.job.ack_deadline_seconds * 2)
        if not await self._save():
            return True
        if way == "stay":
            return False
        await self._leave({"exit 0": 0, "exit 1": 1}.get(way, PREEMPTED_CODE))
        return True

    async def _yield(self) -> bool:
        """Hand the nodes over without being asked. True if the program has left, or does nothing
        any more."""
        if self.program.yields.get(self.attempt) != self.step - self.first_step:
            return False
        if not await self._save():
            return True
        command = YieldRun(task_id=self.task_id, attempt=self.attempt, reason="no data")
        while self.together():
            try:
                reply = await self.sim.ask(command, ASK_SECONDS)
            except BusError:
                await pause(ASK_AGAIN_SECONDS)
                continue
            assert isinstance(reply, YieldRunReply), "the declared reply"
            if reply.refusal is None:
                break
            if reply.refusal.code is RefusalCode.SUPERSEDED:
                await self._leave(SUPERSEDED_CODE)
                return True
            await pause(ASK_AGAIN_SECONDS)
        if self.program.way not in {"hang", "stay"}:
            await self._leave({"exit 0": 0, "exit 1": 1}.get(self.program.way, PREEMPTED_CODE))
        return True

    async def _asked(self) -> bool:
        if self.job.mode is PreemptMode.SIGNAL:
            return any(rank.signals for rank in self.run_.ranks.values())
        if self.program.way == "never polls":
            return False
        await self.sim.poll(self.run_.run_id)
        return self.sim.should_preempt(self.task_id, self.attempt)

    def _fail(self) -> None:
        ranks = sorted(self.run_.ranks)
        rank = self.run_.ranks[ranks[self.program.failing_rank % len(ranks)]]
        codes = self.program.codes
        rank.exited_at, rank.code = self.cluster.now(), codes[self.attempt % len(codes)]
        self.cluster.changed()

    def _print(self) -> None:
        for number, rank in sorted(self.run_.ranks.items()):
            if rank.running:
                key = OutputKey(self.task_id, self.attempt, number)
                self.sim.source.append(key, b"step %d\n" % self.step)

    async def _save(self) -> bool:
        """Write a checkpoint and have it acknowledged; False if the program is over."""
        await pause(self.program.save_seconds)
        uri = f"/checkpoints/{self.task_id}/{self.attempt}/{self.step}"
        self.sim.storage[uri] = (self.step, self.state)
        command = AckCheckpoint(
            task_id=self.task_id,
            attempt=self.attempt,
            step=self.step,
            uri=uri,
            digest=self.state,
        )
        while self.together():
            try:
                # The gateway adds what it has reported to the run, at each try.
                requested = self.sim.should_preempt(self.task_id, self.attempt)
                sent = command.model_copy(update={"preempt_requested": requested})
                reply = await self.sim.ask(sent, ASK_SECONDS)
            except BusError:
                await pause(ASK_AGAIN_SECONDS)
                continue
            assert isinstance(reply, AckCheckpointReply), "the declared reply"
            if self.run_.ranks[0].running and reply.checkpoint is not None:
                saved = reply.checkpoint
                self.sim.acks.append(Ack(self.task_id, self.attempt, saved.no, saved.step))
                return self.together()
            code = reply.refusal.code if reply.refusal is not None else None
            if code is RefusalCode.SUPERSEDED:
                await self._leave(SUPERSEDED_CODE)
                return False
            if reply.refusal is not None and code is not RefusalCode.UNAVAILABLE:
                self.sim.complain(f"{self.run_.run_id} could not save: {reply.refusal.detail}")
            await pause(ASK_AGAIN_SECONDS)
        return False

    async def _leave(self, code: int) -> None:
        await self.cluster._leave(self.run_, lambda _: (code, None))

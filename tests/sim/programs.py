"""The training programs of a simulation, on a cluster in memory, and what they compute.

A program's state is a chain of digests, one link for each step: a step lost or done twice shows in
the last link. Checkpoints lie in storage that survives everything; the platform only knows where.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING

from libs.bus.port import BusError
from libs.contracts.ids import RunId
from libs.contracts.messages import (
    AckCheckpoint,
    AckCheckpointReply,
    PreemptMode,
    RefusalCode,
    RestartScope,
    StartCondition,
    TaskSpec,
    YieldRun,
    YieldRunReply,
)
from libs.contracts.restart_rules import rule_of
from libs.contracts.start_order import is_ordered
from libs.service.loop import pause
from services.launcher.domain.model import Run as LauncherRun
from services.launcher.role_overrides import COMMAND_VARIABLE
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
from services.launcher.tables import TABLES as LAUNCHER
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
# In debug mode a rank ends by itself with this probability, within this time.
DEBUG_ENDS, DEBUG_SECONDS_MAX = 0.6, 20.0


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
        # What has ever been: (run, rank) that began, and that was ready.
        self.begun: set[tuple[RunId, int]] = set()
        self.were_ready: set[tuple[RunId, int]] = set()
        # Ordered runs whose launcher knows a request to leave, and since when.
        self.leaving: dict[RunId, datetime] = {}
        self.specs: dict[RunId, TaskSpec] = {}
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
        assert order.spec is not None, "the launcher gives it"
        self.specs[run.run_id] = order.spec
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
        if roles[rank.role].starts_after and self._has_left(run.run_id):
            self.sim.complain(f"{run.run_id}: role {rank.role} starts after the request to leave")
        for after in roles[rank.role].starts_after:
            wants_ready = after.condition is StartCondition.READY
            been = self.were_ready if wants_ready else self.begun
            for other in order.gang():
                if other.role == after.role and (run.run_id, other.rank) not in been:
                    self.sim.complain(
                        f"{run.run_id}: role {rank.role} starts too early: rank {other.rank} of"
                        f" role {after.role} is not there"
                    )

    def _has_left(self, run_id: RunId) -> bool:
        """Whether the launcher has known for long that the run is to leave: an order may be on its
        way, and a launcher that leads no longer may not know that yet."""
        since = self.leaving.get(run_id)
        slack = timedelta(seconds=2.0 if self.sim.plan.is_calm else 40.0)
        return since is not None and self.now() > since + slack

    def note_leaving(self) -> None:
        """Remember which runs the launcher has to let go; called again and again."""
        shape = LAUNCHER.shape(LauncherRun)
        for row in self.sim.database.schema("launcher").table(shape).rows.values():
            if row.is_leaving:  # type: ignore[attr-defined]
                self.leaving.setdefault(row.id, self.now())  # type: ignore[attr-defined]

    def begin(self, run: FakeRun, rank: FakeRank) -> None:
        """Every process is remembered."""
        super().begin(run, rank)
        self.processes.append((run, rank))
        self.begun.add((run.run_id, rank.order.rank))
        if rank.ready:
            self.were_ready.add((run.run_id, rank.order.rank))

    def _become_ready(self, rank: FakeRank) -> None:
        super()._become_ready(rank)
        if rank.ready:
            found = (run.run_id for run, each in self.processes if each is rank)
            self.were_ready.add((next(found), rank.order.rank))

    def play(self, run: FakeRun) -> None:
        """The program begins when the whole gang is there; where roles wait for others, rank 0
        answers from its own start on."""
        first = run.ranks.get(0)
        if not is_ordered(self.specs[run.run_id].roles):
            super().play(run)
        elif run.played is None and not run.to_play and first is not None and first.running:
            run.to_play = True
            order = RunOrder(run.run_id, tuple(rank.order for rank in run.ranks.values()))
            self._to_play.put_nowait((run, order))

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
                restarts=rank.order.start,
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
        self.debugs = COMMAND_VARIABLE in order.ranks[0].env
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
        """Whether every rank lives that has begun: a gang computes together or not at all."""
        return all(rank.running for rank in self.run_.ranks.values())

    async def _debug(self) -> None:
        """Each rank waits until somebody ends it, or ends by itself after a while."""
        ends = sorted(
            (self.rng.uniform(0, DEBUG_SECONDS_MAX), number)
            for number in sorted(self.run_.ranks)
            if self.rng.random() < DEBUG_ENDS
        )
        passed = 0.0
        for after, number in ends:
            await pause(after - passed)
            passed = after
            rank = self.run_.ranks.get(number)
            if rank is not None and rank.running:
                rank.exited_at, rank.code = self.cluster.now(), self.rng.choice([0, 1, 75, 137])
                self.cluster.changed()

    def waits(self) -> bool:
        """Whether the gang is not complete yet, or not again, and rank 0 is there."""
        ranks = self.run_.ranks
        if 0 not in ranks or not ranks[0].running:
            return False
        absent = len(ranks) < self.run_.world_size
        return absent or any(self._is_away(rank) for rank in ranks.values())

    def _is_away(self, rank: FakeRank) -> bool:
        """Whether the rank has not begun, or was not restarted yet after it had failed."""
        if rank.started_at is None or rank.exited_at is None:
            return rank.started_at is None and rank.exited_at is None
        roles = {role.name: role for role in self.cluster.specs[self.run_.run_id].roles}
        rule = rule_of(roles[rank.order.role])
        return (
            rule.scope is RestartScope.RANK
            and rank.code not in (None, 0)
            and rank.order.start < (rule.max_restarts or 0)
        )

    async def run(self) -> None:
        await (self._debug() if self.debugs else self._train())

    async def _train(self) -> None:
        program = self.program
        while self.step < program.steps or self.waits():
            await pause(program.step_seconds)
            if self.waits():
                if await self._hand_over():
                    return
                continue
            if not self.together():
                return
            if self.step >= program.steps:
                # Its last checkpoint was the end of its work; the others have come only now.
                break
            if program.fails.get(self.attempt) == self.step - self.first_step and self._fail():
                continue
            if not self.together():
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

    def _fail(self) -> bool:
        """One rank fails, perhaps again after its restart; False if it does so no more."""
        ranks = sorted(self.run_.ranks)
        rank = self.run_.ranks[ranks[self.program.failing_rank % len(ranks)]]
        if rank.order.start >= self.program.failing_starts:
            return False
        codes = self.program.codes
        rank.exited_at, rank.code = self.cluster.now(), codes[self.attempt % len(codes)]
        self.cluster.changed()
        return True

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

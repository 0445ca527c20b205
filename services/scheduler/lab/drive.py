"""Replays a workload through ``decide`` on a virtual clock, with the code that runs in production.

The driver simulates the rest: people who submit, a launcher whose runs start and end as the
workload has it, programs that save at once when they are preempted. The rows, the index, the state
machine and the check of plans are the scheduler's own. Each start after the first costs
``restart_cost_s`` before the run continues its work.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from libs.contracts.ids import NodeId, TaskId
from libs.contracts.messages import (
    Checkpoint,
    ExitKind,
    PreemptionPolicy,
    PreemptMode,
    RetryPolicy,
    Role,
    RunExit,
    TaskSpec,
    TaskState,
    TaskStateChanged,
)
from libs.contracts.task_states import TERMINAL
from services.scheduler.domain.check.plan import check
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model import observations
from services.scheduler.domain.model.changes import state_changed, task_after
from services.scheduler.domain.model.decisions import Assign, Hold, Kill, Plan, Preempt, Reorder
from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.rows import EndedTask, Inventory, Node, Task
from services.scheduler.domain.virtual_clock import VirtualClock
from services.scheduler.lab.errors import LabError
from services.scheduler.lab.record import Ending, RunRecord, begin
from services.scheduler.lab.run_options import Options
from services.scheduler.lab.workload import Job, LabGroup, LabNode, Workload

START = datetime(2001, 1, 1, tzinfo=UTC)
# The lab's names for disciplines that have another one in policy files.
DISCIPLINE = {"ours": "timeshare"}
# These read the true running times: the best result that estimates could give.
ORACLES = frozenset({"easy", "srpt"})
CHECK_EVERY = 64
# New objects between two runs of the garbage collector; by default it is 700.
COLLECT_EVERY = 50_000


def drive(
    workload: Workload, policy: str, options: Options, progress: Callable[[int], None]
) -> RunRecord:
    """The whole run, to the end of its last job.

    Raises LabError if the scheduler comes to rest with jobs that never ended.
    """
    with _rare_collections():
        return _Simulation(workload, policy, options, progress).run()


@contextmanager
def _rare_collections() -> Generator[None]:
    """Collect garbage rarely: a run makes few cycles, and collecting took a tenth of its time."""
    thresholds = gc.get_threshold()
    gc.set_threshold(COLLECT_EVERY, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


@dataclass(slots=True)
class _Run:
    """A run in progress."""

    attempt: int
    began_s: float
    restart_s: float
    # Work done before it, and when it ends if it is not interrupted.
    done_s: float
    ends_s: float


@dataclass(frozen=True, slots=True)
class _Exit:
    """The end of a run as the launcher would report it."""

    attempt: int
    exit: RunExit
    checkpoint: Checkpoint | None = None


class _Simulation:
    """The scheduler's rows and everything around the scheduler."""

    def __init__(
        self,
        workload: Workload,
        policy: str,
        options: Options,
        progress: Callable[[int], None],
    ) -> None:
        self.workload = workload
        self.policy = policy
        self.options = options
        self.record = begin(workload, policy, progress)
        self.settings = PolicySettings(start_deadline_seconds=1e9)
        self.index = Index(self.settings)
        self.index.apply(put=self._cluster())
        self._clock: VirtualClock[Callable[[], None]] = VirtualClock(self.index, START)
        self._runs: dict[str, _Run] = {}
        self._done: dict[str, float] = {}
        self._specs: dict[tuple[object, ...], TaskSpec] = {}
        self._random = random.Random(options.seed)  # noqa: S311 - a simulation, repeatable
        self._plans = 0

    # The cluster.

    def _cluster(self) -> Iterator[object]:
        cluster = self.workload.cluster
        name = DISCIPLINE.get(self.policy, self.policy)
        for group in cluster.groups:
            shared = replace(
                group.policy,
                group=group.name,
                policy=name,
                timeshare=replace(
                    group.policy.timeshare, restart_seconds=self.options.restart_cost_s
                ),
            )
            yield shared
            yield from (_node(group, node) for node in group.nodes)
        yield from cluster.quotas
        yield Inventory("lab", (), START)

    # The run.

    def run(self) -> RunRecord:
        """Run to the end of the last job."""
        jobs = iter(self.workload.jobs)
        next_job = next(jobs, None)
        if self.options.node_mtbf_s is not None:
            for group in self.workload.cluster.groups:
                for node in group.nodes:
                    self._fail_later(_node(group, node))
        began = time.perf_counter()
        while next_job is not None or self._runs or self.index.tasks:
            next_s = self._next(next_job)
            self._clock.seconds = next_s
            for action in self._clock.happening():
                action()
                self.record.events += 1
            arrived: list[Task] = []
            while next_job is not None and next_job.submit_s <= next_s:
                arrived.append(self._task(next_job))
                next_job = next(jobs, None)
            self.index.apply(put=arrived)
            self.record.events += len(arrived)
            if not self._clock.settle(self._commit):
                raise LabError(
                    f"policy {self.policy}: no rest at {self.now_s:.3f} s", fix="report it"
                )
        self.record.decide_seconds = time.perf_counter() - began
        return self.record

    def _next(self, next_job: Job | None) -> float:
        """The time of the next event."""
        if not self.index.tasks:
            self._clock.due_s = None
        times = self._clock.next_times()
        if next_job is not None:
            times.append(next_job.submit_s)
        if not times:
            waiting = sorted(self.index.tasks)[:5]
            raise LabError(
                f"policy {self.policy}: nothing more happens at {self.now_s:.0f} s, but"
                f" {len(self.index.tasks)} jobs have not ended (for example {', '.join(waiting)})",
                fix="check their quotas and virtual clusters in the cluster file",
            )
        return min(times)

    @property
    def now_s(self) -> float:
        return self._clock.seconds

    @property
    def now(self) -> datetime:
        return self._clock.now

    def _commit(self, snapshot: Snapshot, plan: Plan) -> bool:
        """Commit a plan, if it decides anything; True if there may be more to decide."""
        self._plans += 1
        if self._plans % CHECK_EVERY == 0 and check(snapshot, plan):
            self.record.refused_plans += 1
        if not plan.decisions and not plan.ledgers:
            return False
        return self._carry_out(plan) or bool(plan.ledgers)

    def _carry_out(self, plan: Plan) -> bool:
        """Apply the decisions; True if a task moved, so that there may be more to decide."""
        rows: dict[str, Task] = {}
        leaving: list[Task] = []
        acts = False
        for decision in plan.decisions:
            task = rows.get(decision.task_id) or self.index.tasks[decision.task_id]
            after = task_after(task, decision, plan.decided_at)
            if isinstance(decision, Assign):
                after = self._begin(after)
            elif isinstance(decision, Preempt | Kill):
                leaving.append(after)
            acts = acts or not isinstance(decision, Assign | Hold | Reorder)
            rows[after.id] = after
        for task in leaving:
            rows[task.id] = self._leave(rows[task.id])
        self.index.apply(put=[*plan.ledgers, *rows.values()])
        return acts

    # What happens to jobs.

    def _task(self, job: Job) -> Task:
        expected = job.requested_s if self.options.with_limits else None
        if self.policy in ORACLES:
            expected = job.duration_s
        return Task(
            id=TaskId(f"j{job.number:09d}"),
            owner=job.user,
            team=job.team,
            spec=self._spec(job),
            submitted_at=START + timedelta(seconds=job.submit_s),
            priority=job.priority,
            version=1,
            expected_seconds=expected,
        )

    def _spec(self, job: Job) -> TaskSpec:
        key = (job.group, job.nodes, job.gpus_per_node, job.priority, job.roles)
        found = self._specs.get(key)
        if found is None:
            asked = self.options.checkpoint_interval_s <= 0
            mode = PreemptMode.SDK if asked else PreemptMode.KILL
            roles = tuple(role.role for role in job.roles)
            worker = Role(name="worker", replicas=job.nodes, command=("job",))
            found = self._specs[key] = TaskSpec(
                name="job",
                group=job.group,
                priority=job.priority,
                roles=roles or (worker,),
                gpus_per_node=None if roles else job.gpus_per_node,
                retry=RetryPolicy(max_retries=0),
                preemption=PreemptionPolicy(mode=mode, ack_deadline_seconds=60.0),
                nodes=sum(role.replicas for role in job.roles) or job.nodes,
            )
        return found

    def _job(self, task_id: str) -> Job:
        return self.workload.jobs[int(task_id[1:])]

    def _begin(self, task: Task) -> Task:
        """A run starts: at once, or after the restart cost."""
        job = self._job(task.id)
        done = self._done.get(task.id, 0.0)
        restart = self.options.restart_cost_s if task.attempt > 1 else 0.0
        ends = self.now_s + restart + job.duration_s - done
        self._runs[task.id] = _Run(task.attempt, self.now_s, restart, done, ends)
        self._clock.at(ends, partial(self._finish, task.id, task.attempt), 0)
        if self.options.checkpoint_interval_s > 0:
            self._save_later(task.id, task.attempt, restart)
        if restart:
            self._clock.at(self.now_s + restart, partial(self._start, task.id, task.attempt), 1)
            return task
        return observations.started(task, self.now)

    def _start(self, task_id: str, attempt: int) -> None:
        task = self.index.tasks.get(task_id)
        if task is not None and task.live_attempt == attempt:
            self.index.apply(put=[observations.started(task, self.now)])

    def _save_later(self, task_id: str, attempt: int, restart_s: float) -> None:
        save_s = self.now_s + restart_s + self.options.checkpoint_interval_s
        self._clock.at(save_s, partial(self._save, task_id, attempt), 2)

    def _save(self, task_id: str, attempt: int) -> None:
        task = self.index.tasks.get(task_id)
        if task is None or task.live_attempt != attempt:
            return
        no = task.checkpoint.no + 1 if task.checkpoint else 1
        saved = Checkpoint(no=no, attempt=attempt, step=no, uri="lab", saved_at=self.now)
        run = self._runs[task_id]
        self._done[task_id] = run.done_s + self.now_s - run.began_s - run.restart_s
        self.index.apply(put=[replace(task, checkpoint=saved)])
        self._save_later(task_id, attempt, 0.0)

    def _worked(self, run: _Run) -> float:
        return max(0.0, self.now_s - run.began_s - run.restart_s)

    def _leave(self, task: Task, kind: ExitKind = ExitKind.PREEMPTED) -> Task:
        """A run ends because it is preempted, or because its node failed."""
        run = self._runs.pop(task.id)
        worked = self._worked(run)
        kept = self._done.get(task.id, 0.0)
        if kind is ExitKind.PREEMPTED and self.options.checkpoint_interval_s <= 0:
            kept = run.done_s + worked
        self._done[task.id] = kept
        ending = Ending.PREEMPTED if kind is ExitKind.PREEMPTED else Ending.FAILED
        restart = min(run.restart_s, self.now_s - run.began_s)
        redo = max(0.0, run.done_s + worked - max(kept, run.done_s))
        self.record.stretch(
            int(task.id[1:]), run.began_s, self.now_s, ending, restart_s=restart, redo_s=redo
        )
        return self._exited(task, kind)

    def _exited(self, task: Task, kind: ExitKind) -> Task:
        exit_ = RunExit(attempt=task.attempt, kind=kind, ranks=(), exited_at=self.now, detail="")
        # The cost of a preemption is given here, not measured.
        left_task = replace(task, preempt_requested_at=None)
        return observations.exited(left_task, _Exit(task.attempt, exit_), self.now, self.settings)

    def _finish(self, task_id: str, attempt: int) -> None:
        run = self._runs.get(task_id)
        if run is None or run.attempt != attempt:
            return
        del self._runs[task_id]
        task = self.index.tasks[task_id]
        self.record.stretch(
            int(task_id[1:]), run.began_s, self.now_s, Ending.FINISHED, restart_s=run.restart_s
        )
        after = self._exited(task, ExitKind.OK)
        assert after.state in TERMINAL, "a job that is finished has ended"
        ended = EndedTask(task_id, self.now, self._end_event(after), after.run_seconds)
        self.index.apply(put=[ended], deleted=[(Task, (task_id,))])
        self._done.pop(task_id, None)

    def _end_event(self, task: Task) -> TaskStateChanged:
        # One event for all jobs: only its state is read.
        if not hasattr(self, "_succeeded"):
            self._succeeded = state_changed(task, TaskState.RUNNING, self.now)
        return self._succeeded

    # Nodes that fail.

    def _fail_later(self, node: Node) -> None:
        assert self.options.node_mtbf_s is not None, "called only where nodes fail"
        lasts = self._random.expovariate(1.0 / self.options.node_mtbf_s)
        self._clock.at(self.now_s + lasts, partial(self._fail, node), 3)

    def _fail(self, node: Node) -> None:
        if not self.index.tasks and not self._runs:
            # Between two jobs a failure has no effect; draw the next one.
            self._fail_later(node)
            return
        lost = sorted(self.index.holders.get(node.id, ()))
        rows = [self._leave(self.index.tasks[task_id], ExitKind.LOST) for task_id in lost]
        self.index.apply(put=rows)
        self.index.apply(put=[replace(node, ready=False)])
        self._clock.at(self.now_s + self.options.node_repair_s, partial(self._repair, node), 3)

    def _repair(self, node: Node) -> None:
        self.index.apply(put=[node])
        self._fail_later(node)


def _node(group: LabGroup, node: LabNode) -> Node:
    return Node(
        id=NodeId(f"{group.name}.{node.name}"),
        version=1,
        group=group.name,
        gpus=node.gpus,
        labels=tuple(sorted(node.labels.items())),
    )

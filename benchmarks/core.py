"""The scheduler's core without I/O (rows, index, ``decide``, ``check``), for
``decisions_per_second`` and ``cost_of_change``.

A ``SimulatedCluster`` plays the leader (for each batch of facts it takes over the rows, decides,
checks and commits the changed rows) and everything around it: submissions, runs that start, save,
leave and end, nodes that come and go. All of it is seeded.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from time import process_time
from typing import Self

from libs.contracts.ids import NodeId, TaskId
from libs.contracts.messages import (
    Checkpoint,
    ExitKind,
    PreemptionPolicy,
    Priority,
    RetryPolicy,
    Role,
    RunExit,
    TaskSpec,
    TaskState,
)
from libs.contracts.task_states import TERMINAL
from services.scheduler.domain.check.plan import check
from services.scheduler.domain.decide import decide
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model import observations
from services.scheduler.domain.model.changes import state_changed, task_after
from services.scheduler.domain.model.decisions import Assign, Kill, Plan, Preempt
from services.scheduler.domain.model.group_policy import GroupPolicy, PolicySettings, VirtualCluster
from services.scheduler.domain.model.rows import EndedTask, Inventory, Node, Task

START = datetime(2026, 1, 1, tzinfo=UTC)
GROUP = "default"
GPUS = 8
USERS, CLUSTERS = 300, 12
LEVELS = (Priority.HIGH, Priority.ABOVE_NORMAL, Priority.NORMAL, Priority.LOW)
# Powers of two up to 64 nodes, the small ones more often; the mean is about 9.
SIZES, SIZE_WEIGHTS = (1, 2, 4, 8, 16, 32, 64), (24, 20, 18, 14, 12, 8, 4)
# Without new facts the scheduler decides nothing more after a few rounds.
ROUNDS_MAX = 50


@dataclass(frozen=True)
class Exit:
    """The end of a run as the launcher reports it."""

    attempt: int
    exit: RunExit
    checkpoint: Checkpoint | None = None


@dataclass
class Count:
    """Counters of rounds, decisions and rows."""

    rounds: int = 0
    decisions: int = 0
    starts: int = 0
    # Waiting tasks that rounds evaluated, and rows that changed.
    evaluated: int = 0
    rows: int = 0
    faults: int = 0


def nodes_of(count: int) -> list[Node]:
    """Nodes of eight GPUs in one group."""
    return [
        Node(NodeId(f"n{number:05}"), 1, GROUP, GPUS, cpus=64.0, memory_bytes=2**39)
        for number in range(count)
    ]


def policy_of(nodes: int) -> GroupPolicy:
    """Timeshare, with nine tenths of the nodes guaranteed to twelve virtual clusters."""
    each = round(0.9 * nodes / CLUSTERS, 1)
    clusters = tuple(
        VirtualCluster(f"vc{number}", each, teams=(f"team{number}",)) for number in range(CLUSTERS)
    )
    return GroupPolicy(GROUP, policy="timeshare", virtual_clusters=clusters)


class SimulatedCluster:
    """A leader's working set, and the cluster around it."""

    def __init__(self, nodes: int, seed: int = 1) -> None:
        self.random = random.Random(seed)
        self.now = START
        self.nodes = nodes_of(nodes)
        self.index = Index(PolicySettings(start_deadline_seconds=1e9))
        self.index.apply(
            put=[policy_of(nodes), *self.nodes, Inventory("bench", (), START)],
        )
        self.count = Count()
        self.due_at: datetime | None = None
        # Runs that the last rounds asked to leave; ``leave_all`` ends them.
        self.leaving: list[str] = []
        self.started: list[str] = []
        self._specs: dict[tuple[int, Priority], TaskSpec] = {}
        self._numbers = iter(range(10**9))
        self._last = None

    # People.

    def spec(self, nodes: int, priority: Priority) -> TaskSpec:
        """As submit stores it."""
        found = self._specs.get((nodes, priority))
        if found is None:
            roles = (Role(name="worker", replicas=nodes, command=("train",)),)
            found = TaskSpec(
                name="task",
                group=GROUP,
                priority=priority,
                roles=roles,
                retry=RetryPolicy(max_retries=0),
                preemption=PreemptionPolicy(ack_deadline_seconds=60.0),
                nodes=nodes,
            )
            self._specs[nodes, priority] = found
        return found

    def task(self, nodes: int | None = None, priority: Priority | None = None) -> Task:
        """The next gang, of a random user."""
        user = self.random.randrange(USERS)
        if nodes is None:
            nodes = self.random.choices(SIZES, SIZE_WEIGHTS)[0]
        spec = self.spec(nodes, priority or self.random.choice(LEVELS))
        return Task(
            id=TaskId(f"t{next(self._numbers):08}"),
            owner=f"user{user}",
            team=f"team{user % CLUSTERS}",
            spec=spec,
            submitted_at=self.now,
            priority=spec.priority,
            version=1,
        )

    # The leader.

    def decide(self) -> Plan:
        """One round, checked and committed."""
        snapshot = Snapshot.view(self.index)
        plan = decide(snapshot, self.now)
        self.count.faults += len(check(snapshot, plan))
        self.index.settle(plan)
        self.due_at = plan.due_at
        rows: dict[str, Task] = {}
        for decision in plan.decisions:
            task = rows.get(decision.task_id) or self.index.tasks[decision.task_id]
            rows[task.id] = task_after(task, decision, plan.decided_at)
        if rows or plan.ledgers:
            self.index.apply(put=[*plan.ledgers, *rows.values()])
        self._note(plan, len(rows))
        return plan

    def _note(self, plan: Plan, rows: int) -> None:
        count = self.count
        count.rounds += 1
        count.decisions += len(plan.decisions)
        count.evaluated += len(plan.explanations)
        count.rows += rows
        for decision in plan.decisions:
            if isinstance(decision, Assign):
                self.started.append(decision.task_id)
                count.starts += 1
            elif isinstance(decision, Preempt | Kill):
                self.leaving.append(decision.task_id)

    def settle(self) -> None:
        """Rounds until nothing more is decided; every run that is asked to leave ends."""
        for _ in range(ROUNDS_MAX):
            plan = self.decide()
            self.leave_all()
            if not plan.decisions:
                return
            self.start_all()

    def put(self, *rows: object) -> None:
        """Facts that handlers committed."""
        self.count.rows += len(rows)
        self.index.apply(put=rows)

    # Runs.

    def start(self, task_id: str) -> None:
        """Every rank's process exists."""
        task = self.index.tasks.get(task_id)
        if task is not None and task.state is TaskState.STARTING:
            self.put(observations.started(task, self.now))

    def start_all(self) -> None:
        """Start the runs that were assigned nodes."""
        rows = [self.index.tasks[task_id] for task_id in self.started]
        self.started.clear()
        self.put(
            *(
                observations.started(task, self.now)
                for task in rows
                if task.state is TaskState.STARTING
            )
        )

    def leave_all(self) -> None:
        """End the runs that were asked to leave."""
        rows = [self.gone(task_id) for task_id in self.leaving]
        self.leaving.clear()
        self.put(*rows)

    def gone(self, task_id: str) -> Task:
        """The row of a run that left because it was asked to."""
        return self._exited(self.index.tasks[task_id], ExitKind.PREEMPTED)

    def save(self, task_id: str) -> None:
        """A checkpoint of a run is durable."""
        task = self.index.tasks[task_id]
        number = task.checkpoint.no + 1 if task.checkpoint else 1
        saved = Checkpoint(
            no=number, attempt=task.attempt, step=number, uri="bench", saved_at=self.now
        )
        self.put(replace(task, checkpoint=saved))

    def end(self, *task_ids: str) -> None:
        """Runs ended well."""
        rows: list[EndedTask] = []
        for task_id in task_ids:
            after = self._exited(self.index.tasks[task_id], ExitKind.OK)
            assert after.state in TERMINAL, "a run that succeeded has ended"
            self._last = self._last or state_changed(after, TaskState.RUNNING, self.now)
            rows.append(EndedTask(task_id, self.now, self._last, after.run_seconds))
        self.count.rows += len(rows)
        self.index.apply(put=rows, deleted=[(Task, (row.task_id,)) for row in rows])

    def _exited(self, task: Task, kind: ExitKind) -> Task:
        exit_ = RunExit(attempt=task.attempt, kind=kind, ranks=(), exited_at=self.now, detail="")
        return observations.exited(task, Exit(task.attempt, exit_), self.now, self.index.settings)

    def running(self) -> list[str]:
        """Everything that runs."""
        return [task.id for task in self.index.held.values() if task.state is TaskState.RUNNING]

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self.now += timedelta(seconds=seconds)


def filled(nodes: int, queued: int, seed: int = 1) -> SimulatedCluster:
    """A cluster that is full, with so many gangs waiting."""
    cluster = SimulatedCluster(nodes, seed)
    # About twice what fits, so that what is left over waits.
    cluster.put(*(cluster.task() for _ in range(max(20, nodes // 4))))
    cluster.settle()
    for _ in range(ROUNDS_MAX):
        missing = queued - (len(cluster.index.tasks) - len(cluster.index.held))
        if missing <= 0:
            break
        cluster.advance(1.0)
        cluster.put(*(cluster.task() for _ in range(missing)))
        cluster.settle()
    return cluster


@contextmanager
def quiet_memory() -> Generator[None]:
    """Freeze what was built, so that the garbage collector does not scan it, as after a start."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class Clock:
    """CPU seconds of a block; on a shared machine they vary less than wall time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def __enter__(self) -> Self:
        self._began = process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += process_time() - self._began

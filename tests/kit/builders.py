"""Builders of domain values for tests: a test passes what matters, the rest has usual values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from libs.contracts.ids import NodeId, TaskId
from libs.contracts.messages import (
    Checkpoint,
    ExitKind,
    Goal,
    Placement,
    PreemptionPolicy,
    PreemptMode,
    Priority,
    RankExit,
    RetryPolicy,
    Role,
    RunExit,
    RunExited,
    RunListened,
    RunStarted,
    TaskSpec,
    TaskState,
    TaskSubmitted,
    Unit,
)
from libs.contracts.task_states import TERMINAL
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.changes import applied
from services.scheduler.domain.model.decisions import Plan
from services.scheduler.domain.model.group_policy import GroupPolicy, PolicySettings
from services.scheduler.domain.model.rows import Inventory, Limit, Node, PoolLedger, Task
from tests.kit.clock import START, at


def a_spec(
    *,
    nodes: int = 1,
    gpus: int | None = None,
    group: str = "default",
    priority: Priority = Priority.NORMAL,
    mode: PreemptMode = PreemptMode.SDK,
    ack_seconds: float = 60.0,
    retries: int = 0,
    max_run_seconds: float | None = None,
    cpus: float | None = None,
    memory_bytes: int | None = None,
    roles: tuple[Role, ...] | None = None,
    selector: dict[str, str] | None = None,
    tolerations: tuple[str, ...] = (),
) -> TaskSpec:
    """A complete specification, as submit stores it."""
    return TaskSpec(
        name="a-task",
        group=group,
        priority=priority,
        roles=roles or (Role(name="worker", replicas=nodes, command=("train",)),),
        gpus_per_node=gpus,
        retry=RetryPolicy(max_retries=retries),
        preemption=PreemptionPolicy(mode=mode, ack_deadline_seconds=ack_seconds),
        max_run_seconds=max_run_seconds,
        cpus=cpus,
        memory_bytes=memory_bytes,
        nodes=sum(role.replicas for role in roles) if roles else nodes,
        node_selector=selector or {},
        tolerations=tuple(tolerations),
    )


def a_task(
    task_id: str = "t1",
    *,
    submitted: float = 0.0,
    owner: str = "ann",
    team: str = "vision",
    goal: Goal = Goal.RUN,
    accepted: bool = True,
    spec: TaskSpec | None = None,
    nodes: int = 1,
    gpus: int | None = None,
    priority: Priority = Priority.NORMAL,
    mode: PreemptMode = PreemptMode.SDK,
    group: str = "default",
) -> Task:
    """A queued task."""
    spec = spec or a_spec(nodes=nodes, gpus=gpus, group=group, priority=priority, mode=mode)
    return Task(
        id=TaskId(task_id),
        owner=owner,
        team=team,
        spec=spec,
        submitted_at=at(submitted),
        priority=spec.priority,
        goal=goal,
        revision=1,
        goal_revision=1,
        priority_revision=1,
        version=1,
        accepted=accepted,
    )


def a_checkpoint(no: int = 1, *, attempt: int = 1, saved: float = 0.0) -> Checkpoint:
    return Checkpoint(
        no=no, attempt=attempt, step=no * 100, uri=f"file:///ckpt/{no}", saved_at=at(saved)
    )


def on_nodes(task: Task, where: dict[str, tuple[int, ...]]) -> tuple[Placement, ...]:
    """The placements of a task's gang on these nodes and GPUs."""
    return tuple(
        Placement(rank=rank, role="worker", role_index=rank, node_id=node, gpus=gpus)
        for rank, (node, gpus) in enumerate(where.items())
    )


def starting(task: Task, where: dict[str, tuple[int, ...]], *, now: float = 0.0) -> Task:
    """The task assigned to these nodes and GPUs, its processes not seen yet."""
    level = Priority.NORMAL if task.priority is Priority.AUTO else task.priority
    return replace(
        task,
        state=TaskState.STARTING,
        attempt=task.attempt + 1,
        live_attempt=task.attempt + 1,
        level=level,
        placements=on_nodes(task, where),
        assigned_at=at(now),
        start_deadline_at=at(now + 300),
        began_from_checkpoint=task.checkpoint.no if task.checkpoint else 0,
    )


def running(task: Task, where: dict[str, tuple[int, ...]], *, since: float = -3600.0) -> Task:
    """The task running on these nodes and GPUs, long enough to be preempted."""
    return replace(
        starting(task, where, now=since),
        state=TaskState.RUNNING,
        run_started_at=at(since),
        first_started_at=at(since),
    )


def preempting(task: Task, where: dict[str, tuple[int, ...]], *, deadline: float = 60.0) -> Task:
    """The task asked to hand over."""
    return replace(running(task, where), state=TaskState.PREEMPTING, ack_deadline_at=at(deadline))


def a_node(
    node_id: str = "n0",
    *,
    gpus: int = 8,
    group: str = "default",
    cpus: float = 0.0,
    memory_bytes: int = 0,
    ready: bool = True,
    schedulable: bool = True,
    unusable: tuple[int, ...] = (),
    draining: bool = False,
    removed: bool = False,
    version: int = 1,
    labels: dict[str, str] | None = None,
    taints: tuple[str, ...] = (),
) -> Node:
    return Node(
        id=NodeId(node_id),
        version=version,
        group=group,
        gpus=gpus,
        cpus=cpus,
        memory_bytes=memory_bytes,
        ready=ready,
        schedulable=schedulable,
        unusable_gpus=unusable,
        draining=draining,
        removed=removed,
        labels=tuple(sorted((labels or {}).items())),
        taints=tuple(taints),
    )


def some_nodes(count: int, *, gpus: int = 8, group: str = "default") -> list[Node]:
    return [a_node(f"n{index}", gpus=gpus, group=group) for index in range(count)]


def a_limit(
    limit: int,
    *,
    user: str = "",
    team: str = "",
    group: str = "",
    priority: Priority = Priority.UNSPECIFIED,
    unit: Unit = Unit.GPUS,
    removed: bool = False,
    grant: bool = False,
    unlimited: bool = False,
    level_max: Priority = Priority.UNSPECIFIED,
) -> Limit:
    return Limit(
        group=group,
        user=user,
        team=team,
        priority=priority,
        unit=unit,
        limit=limit,
        version=1,
        removed=removed,
        grant=grant,
        unlimited=unlimited,
        level_max=level_max,
    )


def a_snapshot(
    tasks: Iterable[Task] = (),
    nodes: Iterable[Node] = (),
    *,
    limits: Iterable[Limit] = (),
    policies: Iterable[GroupPolicy] = (),
    ledgers: Iterable[PoolLedger] = (),
    listed: bool = True,
    settings: PolicySettings | None = None,
    version: int = 1,
) -> Snapshot:
    nodes = list(nodes)
    full = Inventory("process", tuple(node.id for node in nodes), START)
    return Snapshot.of(
        version=version,
        tasks=tasks,
        nodes=nodes,
        limits=limits,
        policies=policies,
        ledgers=ledgers,
        inventories=[full] if listed else [],
        settings=settings,
    )


def played(snapshot: Snapshot, plan: Plan, *, now: datetime | None = None) -> Snapshot:
    """The snapshot after the plan is committed."""
    tasks = dict(snapshot.tasks)
    for decision in plan.decisions:
        change = applied(tasks[decision.task_id], decision, now or plan.decided_at)
        tasks[decision.task_id] = change.task
    ledgers = {**snapshot.index.ledgers, **{ledger.group: ledger for ledger in plan.ledgers}}
    return Snapshot.of(
        version=snapshot.version + 1,
        tasks=[task for task in tasks.values() if task.state not in TERMINAL],
        nodes=snapshot.nodes.values(),
        limits=snapshot.limits.values(),
        policies=snapshot.index.policies.values(),
        ledgers=ledgers.values(),
        inventories=[Inventory("process", (), START)] if snapshot.inventory_listed else [],
        settings=snapshot.settings,
    )


def submitted_event(task: Task) -> TaskSubmitted:
    return TaskSubmitted(
        task_id=task.id,
        owner=task.owner,
        team=task.team,
        spec=task.spec,
        submitted_at=task.submitted_at,
        revision=1,
    )


def started_event(task: Task, *, now: float = 0.0) -> RunStarted:
    return RunStarted(
        task_id=task.id,
        attempt=task.live_attempt or 0,
        started_at=at(now),
        placements=task.placements,
    )


def listened_event(task: Task, *, now: float) -> RunListened:
    """What the gateway publishes when the program of a live run polls for the first time."""
    return RunListened(task_id=task.id, attempt=task.attempt, asked_at=at(now))


def exited_event(
    task: Task,
    kind: ExitKind = ExitKind.OK,
    *,
    now: float = 0.0,
    attempt: int | None = None,
    checkpoint: Checkpoint | None = None,
) -> RunExited:
    attempt = attempt if attempt is not None else task.live_attempt or 0
    code = 0 if kind is ExitKind.OK else 1
    ranks = tuple(RankExit(rank=each.rank, code=code) for each in task.placements)
    return RunExited(
        task_id=task.id,
        attempt=attempt,
        exit=RunExit(attempt=attempt, kind=kind, ranks=ranks, exited_at=at(now), detail=kind.value),
        checkpoint=checkpoint,
        placements=task.placements,
    )

"""Hypothesis strategies for the scheduler: what people submit, limit and share, and snapshots.

The rule machines draw ``GANG``, ``LIMIT`` and owners from here, as the snapshots do. A snapshot is
a small consistent cluster in any state: any discipline, virtual clusters, labels and taints,
promises, order keys of this or another discipline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st

from libs.contracts.messages import Goal, PreemptMode, Priority, Role, TaskState, Unit
from services.scheduler.domain.disciplines import DISCIPLINES
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.group_policy import GroupPolicy, PolicySettings, VirtualCluster
from services.scheduler.domain.model.rows import Limit, Node, Task
from services.scheduler.domain.model.values import OrderKey
from services.scheduler.domain.placement.capacity import Capacity
from services.scheduler.domain.placement.slots import placements_of
from tests.kit.builders import a_checkpoint, a_limit, a_node, a_snapshot, a_spec, a_task
from tests.kit.clock import at

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[T]], T]

NOW_SECONDS = 1000.0
NOW = at(NOW_SECONDS)
SETTINGS = PolicySettings(protected_seconds=10.0)
PRIORITIES = [
    Priority.HIGH,
    Priority.ABOVE_NORMAL,
    Priority.NORMAL,
    Priority.NORMAL,
    Priority.LOW,
    Priority.AUTO,
]
# The size of a submitted gang, and its level, as rules and builders name them.
GANG: dict[str, st.SearchStrategy[Any]] = {
    "nodes": st.sampled_from([1, 1, 1, 2, 3]),
    "gpus": st.sampled_from([None, None, 0, 1, 2, 4]),
    "priority": st.sampled_from(PRIORITIES),
}
OWNER = st.sampled_from(["ann", "bob", "cat"])
TEAM = st.sampled_from(["vision", "speech", "text"])
# A quota row, as ``a_limit`` and the rules name its fields.
LIMIT: dict[str, st.SearchStrategy[Any]] = {
    "limit": st.integers(0, 12),
    "user": st.sampled_from(["", "ann"]),
    "team": st.sampled_from(["", "", "vision"]),
    "group": st.sampled_from(["", "", "default"]),
    "priority": st.sampled_from(
        [Priority.UNSPECIFIED, Priority.NORMAL, Priority.BELOW_NORMAL, Priority.HIGH]
    ),
    "unit": st.sampled_from([Unit.GPUS, Unit.NODES, Unit.GPUS_OR_NODES]),
    "grant": st.booleans(),
    "unlimited": st.sampled_from([False, False, True]),
    # Of the site's default alone.
    "level_max": st.sampled_from([Priority.NORMAL, Priority.BELOW_NORMAL, Priority.UNSPECIFIED]),
}


def drawn_limit(*, grant: bool, unlimited: bool, level_max: Priority, **fields: Any) -> Limit:
    """A quota row as quota would store it: a cap has a number, a grant no user and team."""
    if not grant:
        return a_limit(**fields)
    fields["team"] = "" if fields["user"] else fields["team"]
    if not unlimited:
        return a_limit(**fields, grant=True)
    names = {key: fields[key] for key in ("user", "team", "group", "priority")}
    is_site = names["priority"] is Priority.UNSPECIFIED and not any([*names.values()][:3])
    most = level_max if is_site else Priority.UNSPECIFIED
    return a_limit(
        0,
        **names,
        unit=Unit.UNSPECIFIED,
        removed=fields.get("removed", False),
        grant=True,
        unlimited=True,
        level_max=most,
    )


GROUPS = ["default", "default", "default", "dev"]
NAMES = sorted(DISCIPLINES)
CLUSTERS = (
    VirtualCluster("lab", 2.0, teams=("speech",)),
    VirtualCluster("eyes", 1.0, parent="lab", teams=("vision",)),
    VirtualCluster("bob", 0.5, users=("bob",), nodes_max=1.5),
)
TREES = [(), (), CLUSTERS[:1], CLUSTERS]
LABELS = [(), (), (), (("gpu", "a100"),)]
ZONES = [(), (("zone", "east"),), (("zone", "west"),)]
TAINTS = [(), (), (), ("old",)]
HELD = [TaskState.STARTING, TaskState.RUNNING, TaskState.PREEMPTING, TaskState.KILLING]


def _roles(*roles: dict[str, object]) -> tuple[Role, ...]:
    return tuple(
        Role.model_validate({"name": f"r{index}", "command": ["train"], **role})
        for index, role in enumerate(roles)
    )


# Gangs whose ranks differ or share nodes.
MIXED_GANGS = (
    _roles({"replicas": 4, "gpus": 1}),
    _roles({"replicas": 3, "gpus": 2, "memory_bytes": 3}),
    _roles({"replicas": 1, "auxiliary": True}, {"replicas": 2, "gpus": 2}),
    _roles({"replicas": 1, "gpus": 0, "cpus": 1.0}, {"replicas": 1}),
    _roles({"replicas": 3, "gpus": 0, "cpus": 0.4}, {"replicas": 2, "gpus": 1, "spread": True}),
    _roles({"replicas": 1, "gpus": 1}, {"replicas": 1, "gpus": 4}, {"replicas": 1, "gpus": 0}),
)
# Most gangs have ranks of one size.
GANGS = [None] * 2 * len(MIXED_GANGS) + [*MIXED_GANGS]


@st.composite
def nodes(draw: Draw, *, healthy: bool = False) -> list[Node]:
    """One to five nodes of two groups, some of them not offered."""
    found: list[Node] = []
    zoned = draw(st.booleans())
    for index in range(draw(st.integers(1, 5))):
        gpus = draw(st.sampled_from([0, 2, 4, 4, 4]))
        node = a_node(
            f"n{index}",
            gpus=gpus,
            group=draw(st.sampled_from(GROUPS)),
            cpus=draw(st.sampled_from([0.0, 1.0, 3.0])),
            memory_bytes=draw(st.sampled_from([0, 10, 20])),
        )
        zone = draw(st.sampled_from(ZONES)) if zoned else ()
        node = replace(node, labels=zone)
        if not healthy:
            node = replace(
                node,
                ready=draw(st.sampled_from([True, True, True, False])),
                schedulable=draw(st.sampled_from([True, True, True, False])),
                draining=draw(st.sampled_from([False, False, False, True])),
                unusable_gpus=draw(st.sampled_from([(), (), (), (0,)])),
                labels=draw(st.sampled_from(LABELS)) + zone,
                taints=draw(st.sampled_from(TAINTS)),
            )
        found.append(node)
    return found


@st.composite
def queued_tasks(draw: Draw, task_id: str) -> Task:
    """A task that waits, wants something, or is paused."""
    spec = a_spec(
        **{name: draw(each) for name, each in GANG.items()},
        roles=draw(st.sampled_from(GANGS)),
        group=draw(st.sampled_from(GROUPS)),
        mode=draw(st.sampled_from([PreemptMode.SDK, PreemptMode.SDK, PreemptMode.KILL])),
        max_run_seconds=draw(st.sampled_from([None, None, 500.0])),
        cpus=draw(st.sampled_from([None, None, 0.3, 1.5])),
        memory_bytes=draw(st.sampled_from([None, None, 4, 8])),
        retries=1,
    ).model_copy(
        update={
            "node_selector": dict(draw(st.sampled_from(LABELS))),
            "tolerations": draw(st.sampled_from(TAINTS)),
        }
    )
    task = a_task(
        task_id,
        spec=spec,
        owner=draw(OWNER),
        team=draw(TEAM),
        submitted=draw(st.sampled_from([0.0, 1.0, 2.0])),
        accepted=draw(st.booleans()),
        goal=draw(st.sampled_from([Goal.RUN, Goal.RUN, Goal.RUN, Goal.PAUSE, Goal.STOP])),
    )
    attempt = draw(st.sampled_from([0, 0, 2]))
    return replace(
        task,
        attempt=attempt,
        checkpoint=a_checkpoint(3, attempt=attempt) if attempt else None,
        state=draw(st.sampled_from([TaskState.QUEUED] * 3 + [TaskState.PAUSED])),
        not_before_at=draw(st.sampled_from([None, None, at(NOW_SECONDS + 5)])),
        marks=draw(order_keys(waiting=True)),
    )


@st.composite
def order_keys(draw: Draw, *, waiting: bool) -> OrderKey:
    """What some discipline noted at some time; or nothing."""
    name = draw(st.sampled_from(["", *NAMES]))
    if not name:
        return OrderKey()
    rekey = draw(st.sampled_from([None, NOW_SECONDS - 1, NOW_SECONDS + 50]))
    held = draw(st.sampled_from([None, None, NOW_SECONDS + 20]))
    return OrderKey(
        policy=name,
        waiting=waiting,
        key=at(draw(st.sampled_from([0.0, 1.0, 500.0]))).timestamp(),
        scaled=draw(st.sampled_from([0.0, 0.0, 700.0])),
        rekey_at=at(rekey) if rekey is not None and not waiting else None,
        held_until=at(held) if held is not None and not waiting else None,
    )


def _live(draw: Draw, task: Task, snapshot_nodes: dict[str, Node], capacity: Capacity) -> Task:
    """The task with a live run, if there is still capacity for one."""
    slots = capacity.pick(task.shape)
    if slots is None:
        return task
    capacity.take(slots)
    state = draw(st.sampled_from(HELD))
    started = state in (TaskState.RUNNING, TaskState.PREEMPTING)
    since = draw(st.sampled_from([0.0, 400.0, NOW_SECONDS - 1]))
    asked = state in (TaskState.PREEMPTING, TaskState.KILLING)
    auto = task.priority is Priority.AUTO
    return replace(
        task,
        state=state,
        attempt=task.attempt + 1,
        live_attempt=task.attempt + 1,
        level=Priority.NORMAL if auto else task.priority,
        accepted=True,
        not_before_at=None,
        placements=placements_of(slots, task.spec, snapshot_nodes),
        marks=draw(order_keys(waiting=False)),
        assigned_at=at(0),
        start_deadline_at=at(draw(st.sampled_from([900.0, 1300.0]))),
        run_started_at=at(since) if started else None,
        ack_deadline_at=at(draw(st.sampled_from([990.0, 1030.0]))) if asked else None,
        preempted_for=draw(st.sampled_from(["", "t0", "t1"])) if asked else "",
        start_attempts=draw(st.sampled_from([0, 4])),
    )


def _promised(task: Task, snapshot_nodes: dict[str, Node], capacity: Capacity) -> Task:
    """The task with nodes that are kept for it, if there is still capacity."""
    slots = capacity.pick(task.shape)
    if slots is None or task.state is not TaskState.QUEUED or task.goal is not Goal.RUN:
        return task
    capacity.take(slots)
    level = Priority.NORMAL if task.priority is Priority.AUTO else task.priority
    placements = placements_of(slots, task.spec, snapshot_nodes)
    return replace(task, promised=placements, level=level, accepted=True, not_before_at=None)


@st.composite
def policies(draw: Draw) -> list[GroupPolicy]:
    """How the groups are shared; some have no policy of their own."""
    return [
        GroupPolicy(
            group,
            version=1,
            policy=draw(st.sampled_from(NAMES)),
            virtual_clusters=draw(st.sampled_from(TREES)),
        )
        for group in draw(st.sampled_from([["default"], ["default", "dev"], []]))
    ]


@st.composite
def limits(draw: Draw) -> list[Limit]:
    """A few quota rows, at most one for each key."""
    rows = draw(st.lists(st.builds(drawn_limit, **LIMIT), max_size=4))
    return list({row.key: row for row in rows}.values())


@st.composite
def snapshots(draw: Draw, *, healthy: bool = False) -> Snapshot:
    """A consistent snapshot: held capacity fits, everything else may be anything."""
    some = draw(nodes(healthy=healthy))
    by_id: dict[str, Node] = {node.id: node for node in some}
    capacity = Capacity((replace(node, unusable_gpus=()) for node in some), SETTINGS)
    tasks: list[Task] = []
    for index in range(draw(st.integers(0, 9))):
        task = draw(queued_tasks(f"t{index}"))
        kind = draw(st.sampled_from(["queued", "queued", "live", "live", "live", "promised"]))
        if kind == "live":
            task = _live(draw, task, by_id, capacity)
        elif kind == "promised":
            task = _promised(task, by_id, capacity)
        tasks.append(task)
    return a_snapshot(
        tasks,
        some,
        limits=draw(limits()),
        policies=draw(policies()),
        listed=draw(st.sampled_from([True, True, False])),
        settings=SETTINGS,
        version=draw(st.integers(1, 5)),
    )

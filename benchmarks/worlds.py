"""Worlds in which one thing is plentiful and little of it changes, for ``cost_of_change`` and for
tests.

Each builder returns a function that plays one event, with the rounds that follow, and may be called
again. Where little changes the event costs about the same in a small and a large world. Where each
of what is plentiful changes, or is compared, it costs little for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, cycle

from benchmarks.core import GROUP, World
from libs.contracts.ids import NodeId, TaskId
from libs.contracts.messages import PreemptionPolicy, Priority, RetryPolicy, Role, TaskSpec, Unit
from services.scheduler.domain.model.group_policy import GroupPolicy, VirtualCluster
from services.scheduler.domain.model.rows import Limit, Node, PoolLedger, Task

OTHER_GROUP = "other"
CLUSTERS = 12

# Plays the event once more.
Event = Callable[[], None]


@dataclass(frozen=True)
class Kind:
    """One kind of world; ``build`` makes one with so much of what is plentiful."""

    name: str
    plentiful: str
    build: Callable[[int], Event]
    small: int
    large: int
    # The sizes that a test takes, which counts calls and needs no large world.
    small_test: int
    large_test: int
    # Calls for each of what is plentiful, where the cost grows with it; 0: it does not.
    calls_each_max: int = 0


def gang(
    world: World,
    number: int,
    *,
    nodes: int = 1,
    team: str = "team0",
    gpus: int | None = None,
    cpus: float | None = None,
    memory_bytes: int | None = None,
) -> Task:
    """A gang of whole nodes; the number makes its id."""
    return Task(
        id=TaskId(f"t{number:08}"),
        owner=f"{team}-user",
        team=team,
        spec=_spec(nodes, gpus, cpus, memory_bytes),
        submitted_at=world.now,
        priority=Priority.NORMAL,
        version=1,
    )


@lru_cache(maxsize=2_000)
def _spec(nodes: int, gpus: int | None, cpus: float | None, memory_bytes: int | None) -> TaskSpec:
    return TaskSpec(
        name="task",
        group=GROUP,
        priority=Priority.NORMAL,
        roles=(Role(name="worker", replicas=nodes, command=("train",)),),
        retry=RetryPolicy(max_retries=0),
        preemption=PreemptionPolicy(ack_deadline_seconds=60.0),
        nodes=nodes,
        gpus_per_node=gpus,
        cpus=cpus,
        memory_bytes=memory_bytes,
    )


def _plain(nodes: int) -> World:
    """A world without virtual clusters."""
    world = World(nodes)
    world.put(GroupPolicy(GROUP, policy="timeshare"))
    return world


def _run(world: World, tasks: list[Task]) -> None:
    world.put(*tasks)
    world.settle()


def _a_gang_comes_and_ends(world: World) -> Event:
    numbers = count()
    world.settle()

    def event() -> None:
        world.passes(1.0)
        task = gang(world, next(numbers))
        _run(world, [task])
        world.end(task.id)
        world.settle()

    return event


def quota_rows(rows: int) -> Event:
    """A gang comes and starts, and ends, while so many quota rows name other users."""
    world = _plain(16)
    world.put(
        *(Limit(GROUP, f"user{n}", "", Priority.UNSPECIFIED, Unit.NODES, 4) for n in range(rows))
    )
    world.put(Limit("", "", "team0", Priority.UNSPECIFIED, Unit.NODES, 16))
    return _a_gang_comes_and_ends(world)


def quota_row(owners: int) -> Event:
    """The limit of one user changes, while so many users have a limit and a gang that waits."""
    world = _plain(owners // 4)
    rows = [
        Limit(GROUP, f"team{n}-user", "", Priority.UNSPECIFIED, Unit.NODES, 1)
        for n in range(owners)
    ]
    world.put(*rows)
    numbers = count()
    _run(world, [gang(world, next(numbers), team=f"team{n}") for n in range(owners)])
    limits = cycle((2, 1))

    def event() -> None:
        world.passes(1.0)
        row = world.index.limits[rows[-1].key]
        world.put(replace(row, limit=next(limits), version=row.version + 1))
        world.settle()

    return event


def _tree(nodes: int, *, parent: bool) -> GroupPolicy:
    each = nodes / CLUSTERS
    clusters = [
        VirtualCluster(f"vc{n}", each, parent="all" if parent else "", teams=(f"team{n}",))
        for n in range(CLUSTERS)
    ]
    if parent:
        clusters.append(VirtualCluster("all", float(nodes)))
    return GroupPolicy(GROUP, policy="timeshare", virtual_clusters=tuple(clusters))


def reclaimed(runs: int) -> Event:
    """A gang of 16 takes nodes of its guarantee back, which runs of others borrowed, and ends."""
    world = World(runs)
    world.put(_tree(runs, parent=False))
    numbers = count()
    # The guarantee of the last virtual cluster is lent to the others.
    teams = cycle(f"team{n}" for n in range(CLUSTERS - 1))
    _run(world, [gang(world, next(numbers), team=next(teams)) for _ in range(runs)])
    last = f"team{CLUSTERS - 1}"

    def event() -> None:
        world.passes(60.0)
        task = gang(world, next(numbers), nodes=16, team=last)
        _run(world, [task])
        assert world.index.tasks[task.id].holds, "it takes its guarantee back"
        world.end(task.id)
        world.settle()

    return event


def node_figure(nodes: int) -> Event:
    """The CPUs that one node offers change, as where others than the platform's tasks run."""
    world = _plain(nodes)
    numbers = count()
    _run(world, [gang(world, next(numbers), nodes=4) for _ in range(nodes // 8)])
    figures = cycle((32.0, 64.0))

    def event() -> None:
        world.passes(1.0)
        node = world.index.nodes[world.nodes[nodes // 2].id]
        world.put(replace(node, version=node.version + 1, cpus=next(figures)))
        world.settle()

    return event


def load_scale(queued: int) -> Event:
    """The load scale changes while so many tasks wait: each has a new place in the order."""
    world = _plain(8)
    numbers = count()
    _run(world, [gang(world, next(numbers), nodes=4) for _ in range(queued)])
    scales = cycle((1.25, 1.0))

    def event() -> None:
        world.passes(1.0)
        book = world.index.ledgers.get(GROUP, PoolLedger(GROUP))
        world.put(replace(book, scale=next(scales)))
        world.settle()

    return event


def clusters(runs: int, *, parent: bool = True) -> Event:
    """One run ends and another one starts, in a tree of virtual clusters that hold so many."""
    world = World(runs)
    world.put(_tree(runs, parent=parent))
    numbers, teams = count(), cycle(f"team{n}" for n in range(CLUSTERS))
    tasks = [gang(world, next(numbers), team=next(teams)) for _ in range(runs + CLUSTERS)]
    _run(world, tasks)
    running = [task for task in tasks if world.index.tasks[task.id].holds]

    def event() -> None:
        world.passes(1.0)
        ended = running.pop()
        world.end(ended.id)
        _run(world, [gang(world, next(numbers), team=ended.team)])

    return event


def draining(nodes: int) -> Event:
    """A gang comes and ends in one group while so many nodes of another are draining."""
    world = _plain(16)
    world.put(*(Node(NodeId(f"d{n:05}"), 1, OTHER_GROUP, 8, draining=True) for n in range(nodes)))
    return _a_gang_comes_and_ends(world)


def memory_sizes(sizes: int) -> Event:
    """A run ends and the next starts, while 1,000 wait with so many different memory sizes."""
    world = _plain(8)
    numbers = count()
    tasks = [
        gang(world, next(numbers), nodes=1, memory_bytes=2**30 + n % sizes) for n in range(1_000)
    ]
    _run(world, tasks)

    def event() -> None:
        world.passes(1.0)
        world.end(world.running()[0])
        world.settle()

    return event


def scarce_memory(sizes: int) -> Event:
    """The same of single GPUs, with different CPUs, too; a node's memory is enough for one run.

    Most of those that wait fit nowhere, though GPUs are free on every node.
    """
    world = _plain(8)
    numbers = count()
    tasks = [
        gang(
            world,
            next(numbers),
            gpus=1,
            cpus=1.0 + n % sizes / 100,
            memory_bytes=2**38 + 1 + (7 * n) % sizes,
        )
        for n in range(1_000)
    ]
    _run(world, tasks)

    def event() -> None:
        world.passes(1.0)
        world.end(world.running()[0])
        world.settle()

    return event


KINDS = (
    Kind("quota_rows", "quota rows", quota_rows, 100, 10_000, 100, 2_000),
    Kind("quota_row", "users with limits", quota_row, 100, 10_000, 100, 1_000),
    Kind("reclaim", "runs", reclaimed, 200, 5_000, 200, 800),
    Kind("node_figure", "nodes", node_figure, 100, 10_000, 100, 1_000),
    Kind("load_scale", "queued tasks", load_scale, 1_000, 100_000, 200, 1_000, 1),
    Kind("clusters", "runs under one parent", clusters, 200, 5_000, 200, 800),
    Kind("draining", "draining nodes", draining, 0, 1_000, 0, 300),
    Kind("memory_sizes", "memory sizes", memory_sizes, 10, 1_000, 10, 300),
    Kind("scarce_memory", "sizes of CPUs and memory", scarce_memory, 10, 1_000, 10, 300),
)

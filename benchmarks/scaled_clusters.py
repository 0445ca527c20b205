"""Clusters in which one thing is plentiful and little of it changes, for ``cost_of_change`` and for
tests.

Each builder returns a function that plays one event, with the rounds that follow, and may be called
again. Where little changes, the event costs about the same in a small and a large cluster. Where
each of the plentiful things changes, or is compared, it costs little for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, cycle

from benchmarks.core import GROUP, SimulatedCluster
from libs.contracts.ids import NodeId, TaskId
from libs.contracts.messages import PreemptionPolicy, Priority, RetryPolicy, Role, TaskSpec, Unit
from services.scheduler.domain.model.group_policy import GroupPolicy, VirtualCluster
from services.scheduler.domain.model.rows import Limit, Node, PoolLedger, Task

OTHER_GROUP = "other"
CLUSTERS = 12

# A function that plays the event; it may be called again.
Event = Callable[[], None]


@dataclass(frozen=True)
class Kind:
    """One kind of cluster; ``build`` makes one with so many of the plentiful things."""

    name: str
    plentiful: str
    build: Callable[[int], Event]
    small: int
    large: int
    # The sizes that a test takes, which counts calls and needs no large cluster.
    small_test: int
    large_test: int
    # Calls for each of what is plentiful, where the cost grows with it; 0: it does not.
    calls_each_max: int = 0


def gang(
    cluster: SimulatedCluster,
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
        submitted_at=cluster.now,
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


def _plain(nodes: int) -> SimulatedCluster:
    """A cluster without virtual clusters."""
    cluster = SimulatedCluster(nodes)
    cluster.put(GroupPolicy(GROUP, policy="timeshare"))
    return cluster


def _run(cluster: SimulatedCluster, tasks: list[Task]) -> None:
    cluster.put(*tasks)
    cluster.settle()


def _a_gang_comes_and_ends(cluster: SimulatedCluster) -> Event:
    numbers = count()
    cluster.settle()

    def event() -> None:
        cluster.advance(1.0)
        task = gang(cluster, next(numbers))
        _run(cluster, [task])
        cluster.end(task.id)
        cluster.settle()

    return event


def quota_rows(rows: int) -> Event:
    """A gang comes and starts, and ends, while so many quota rows name other users."""
    cluster = _plain(16)
    cluster.put(
        *(Limit(GROUP, f"user{n}", "", Priority.UNSPECIFIED, Unit.NODES, 4) for n in range(rows))
    )
    cluster.put(Limit("", "", "team0", Priority.UNSPECIFIED, Unit.NODES, 16))
    return _a_gang_comes_and_ends(cluster)


def quota_row(owners: int) -> Event:
    """The limit of one user changes, while so many users have a limit and a gang that waits."""
    return _a_row_changes(owners, Limit(GROUP, "", "", Priority.UNSPECIFIED, Unit.NODES, 1))


def grant_rows(rows: int) -> Event:
    """A gang comes and starts, and ends, while so many grants are for other users, and one that is
    less specific decides for its own."""
    cluster = _plain(16)
    grant = Limit(GROUP, "", "", Priority.NORMAL, Unit.NODES, 4, grant=True)
    cluster.put(
        grant,
        Limit("", "", "", Priority.UNSPECIFIED, Unit.NODES, 0, grant=True),
        *(replace(grant, user=f"user{n}") for n in range(rows)),
    )
    return _a_gang_comes_and_ends(cluster)


def grant_row(owners: int) -> Event:
    """The grant of one user changes, while so many users have a grant and a gang that waits."""
    return _a_row_changes(owners, Limit(GROUP, "", "", Priority.NORMAL, Unit.NODES, 1, grant=True))


def _a_row_changes(owners: int, row: Limit) -> Event:
    cluster = _plain(owners // 4)
    rows = [replace(row, user=f"team{n}-user") for n in range(owners)]
    cluster.put(*rows)
    numbers = count()
    _run(cluster, [gang(cluster, next(numbers), team=f"team{n}") for n in range(owners)])
    limits = cycle((2, 1))

    def event() -> None:
        cluster.advance(1.0)
        row = cluster.index.limits[rows[-1].key]
        cluster.put(replace(row, limit=next(limits), version=row.version + 1))
        cluster.settle()

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
    cluster = SimulatedCluster(runs)
    cluster.put(_tree(runs, parent=False))
    numbers = count()
    # The guarantee of the last virtual cluster is lent to the others.
    teams = cycle(f"team{n}" for n in range(CLUSTERS - 1))
    _run(cluster, [gang(cluster, next(numbers), team=next(teams)) for _ in range(runs)])
    last = f"team{CLUSTERS - 1}"

    def event() -> None:
        cluster.advance(60.0)
        task = gang(cluster, next(numbers), nodes=16, team=last)
        _run(cluster, [task])
        assert cluster.index.tasks[task.id].holds, "it takes its guarantee back"
        cluster.end(task.id)
        cluster.settle()

    return event


def node_figure(nodes: int) -> Event:
    """The CPUs that one node offers change, as where others than the platform's tasks run."""
    cluster = _plain(nodes)
    numbers = count()
    _run(cluster, [gang(cluster, next(numbers), nodes=4) for _ in range(nodes // 8)])
    figures = cycle((32.0, 64.0))

    def event() -> None:
        cluster.advance(1.0)
        node = cluster.index.nodes[cluster.nodes[nodes // 2].id]
        cluster.put(replace(node, version=node.version + 1, cpus=next(figures)))
        cluster.settle()

    return event


def load_scale(queued: int) -> Event:
    """The load scale changes while so many tasks wait: each has a new place in the order."""
    cluster = _plain(8)
    numbers = count()
    _run(cluster, [gang(cluster, next(numbers), nodes=4) for _ in range(queued)])
    scales = cycle((1.25, 1.0))

    def event() -> None:
        cluster.advance(1.0)
        ledger = cluster.index.ledgers.get(GROUP, PoolLedger(GROUP))
        cluster.put(replace(ledger, scale=next(scales)))
        cluster.settle()

    return event


def clusters(runs: int, *, parent: bool = True) -> Event:
    """One run ends and another one starts, in a tree of virtual clusters that hold so many."""
    cluster = SimulatedCluster(runs)
    cluster.put(_tree(runs, parent=parent))
    numbers, teams = count(), cycle(f"team{n}" for n in range(CLUSTERS))
    tasks = [gang(cluster, next(numbers), team=next(teams)) for _ in range(runs + CLUSTERS)]
    _run(cluster, tasks)
    running = [task for task in tasks if cluster.index.tasks[task.id].holds]

    def event() -> None:
        cluster.advance(1.0)
        ended = running.pop()
        cluster.end(ended.id)
        _run(cluster, [gang(cluster, next(numbers), team=ended.team)])

    return event


def draining(nodes: int) -> Event:
    """A gang comes and ends in one group while so many nodes of another are draining."""
    cluster = _plain(16)
    cluster.put(*(Node(NodeId(f"d{n:05}"), 1, OTHER_GROUP, 8, draining=True) for n in range(nodes)))
    return _a_gang_comes_and_ends(cluster)


def memory_sizes(sizes: int) -> Event:
    """A run ends and the next starts, while 1,000 wait with so many different memory sizes."""
    cluster = _plain(8)
    numbers = count()
    tasks = [
        gang(cluster, next(numbers), nodes=1, memory_bytes=2**30 + n % sizes) for n in range(1_000)
    ]
    _run(cluster, tasks)

    def event() -> None:
        cluster.advance(1.0)
        cluster.end(cluster.running()[0])
        cluster.settle()

    return event


def scarce_memory(sizes: int) -> Event:
    """The same of single GPUs, with different CPUs, too; a node's memory is enough for one run.

    Most of those that wait fit nowhere, though GPUs are free on every node.
    """
    cluster = _plain(8)
    numbers = count()
    tasks = [
        gang(
            cluster,
            next(numbers),
            gpus=1,
            cpus=1.0 + n % sizes / 100,
            memory_bytes=2**38 + 1 + (7 * n) % sizes,
        )
        for n in range(1_000)
    ]
    _run(cluster, tasks)

    def event() -> None:
        cluster.advance(1.0)
        cluster.end(cluster.running()[0])
        cluster.settle()

    return event


KINDS = (
    Kind("quota_rows", "quota rows", quota_rows, 100, 10_000, 100, 2_000),
    Kind("quota_row", "users with limits", quota_row, 100, 10_000, 100, 1_000),
    Kind("grant_rows", "grants", grant_rows, 100, 10_000, 100, 2_000),
    Kind("grant_row", "users with grants", grant_row, 100, 10_000, 100, 1_000),
    Kind("reclaim", "runs", reclaimed, 200, 5_000, 200, 800),
    Kind("node_figure", "nodes", node_figure, 100, 10_000, 100, 1_000),
    Kind("load_scale", "queued tasks", load_scale, 1_000, 100_000, 200, 1_000, 1),
    Kind("clusters", "runs under one parent", clusters, 200, 5_000, 200, 800),
    Kind("draining", "draining nodes", draining, 0, 1_000, 0, 300),
    Kind("memory_sizes", "memory sizes", memory_sizes, 10, 1_000, 10, 300),
    Kind("scarce_memory", "sizes of CPUs and memory", scarce_memory, 10, 1_000, 10, 300),
)

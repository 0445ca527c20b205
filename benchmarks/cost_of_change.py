"""The scheduler's cost follows what changes, not how large the cluster or the queue is.

    python -m benchmarks.cost_of_change [--events 5000] [--sizes small,middle,large]

One script of events, drawn once, is played at 150 nodes with 1,000 tasks queued, at 1,500 with
10,000 and at 10,000 with 100,000: a gang is submitted, a run ends, a checkpoint is saved, a waiting
task is stopped, a node goes and comes back; after each the leader makes its rounds. Then an hour
with 100,000 tasks queued that no node can take, in which nothing happens, and a restart with the
rows of the largest size. Then the clusters of ``scaled_clusters.py``, each small and large
(``--events 0``: only those). Every figure is CPU time; rows and evaluated tasks are counted, too.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from benchmarks.core import GROUP, SIZES, Clock, SimulatedCluster, filled, policy_of, quiet_memory
from benchmarks.guard import run
from benchmarks.report import Benchmark, Goal, Number, Report
from benchmarks.scaled_clusters import KINDS as SCALED
from benchmarks.scaled_clusters import Kind
from libs.contracts.messages import Goal as TaskGoal
from libs.contracts.messages import Priority, TaskState
from services.scheduler.domain.decide import decide
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.rows import Inventory, Node

BENCHMARK = Benchmark(
    name="cost_of_change",
    alias="p4",
    question="Does an event of the scheduler cost what it changes, however large the cluster is?",
    method=(
        "One script of 5,000 events at three sizes up to 10,000 nodes and 100,000 queued gangs, and"
        " single events in clusters where one thing is plentiful, in processor time."
    ),
    goals=(
        Goal(figure="largest_over_smallest", label="event, largest : smallest size", at_most=1.5),
        Goal(figure="idle_core_percent", label="idle, 100,000 unschedulable queued", at_most=1.0),
        Goal(figure="restart_s", label="restart with 100,000 queued", at_most=2.0),
        *(
            Goal(
                figure=f"{kind.name}_ratio",
                label=f"event with {kind.large:,} : {kind.small:,} {kind.plentiful}",
                at_most=1.5,
            )
            for kind in SCALED
            if not kind.calls_each_max
        ),
    ),
    smoke=("--events", "20", "--sizes", "tiny", "--test-sizes"),
)
SIZES_MEASURED = {
    "tiny": (50, 100),
    "small": (150, 1_000),
    "middle": (1_500, 10_000),
    "large": (10_000, 100_000),
}
# What happens, and how often of a hundred times.
KINDS = {"submit": 36, "end": 36, "save": 20, "give_up": 6, "node": 2}
# Gangs of the script fit each of the clusters.
SCRIPT_SIZES = tuple(size for size in SIZES if size <= 16)
LEVELS = (Priority.HIGH, Priority.ABOVE_NORMAL, Priority.NORMAL, Priority.LOW)
STEP_SECONDS = 2.0
NODE_AWAY_EVENTS = 3
IDLE_SECONDS = 3_600
# Events in each cluster of ``scaled_clusters.py``.
PLAYED = 8


@dataclass(frozen=True)
class Event:
    """One line of the script; ``place`` (0 to 1) selects the run, task or node."""

    kind: str
    place: float
    nodes: int
    priority: Priority


def script(count: int, seed: int = 4) -> list[Event]:
    """The same for every cluster."""
    drawn = random.Random(seed)
    return [
        Event(
            drawn.choices([*KINDS], [*KINDS.values()])[0],
            drawn.random(),
            drawn.choice(SCRIPT_SIZES),
            drawn.choice(LEVELS),
        )
        for _ in range(count)
    ]


class Player:
    """Plays a script on a cluster; the time to select an event's task or node is not measured."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.clock = Clock()
        self.kinds: dict[str, Clock] = {kind: Clock() for kind in KINDS}
        self._away: list[tuple[int, Node]] = []
        # In the order of their ids; the lists are rebuilt now and then.
        self._runs: list[str] = []
        self._waiting: list[str] = []

    def play(self, events: list[Event]) -> None:
        """All of it, one event after the other."""
        for number, event in enumerate(events):
            self.cluster.advance(STEP_SECONDS)
            while self._away and self._away[0][0] <= number:
                self._measured("node", partial(self.cluster.put, self._away.pop(0)[1]))
            happens = self._prepared(event, number)
            self._measured(event.kind, happens)

    def _measured(self, kind: str, happens: Callable[[], None]) -> None:
        with self.clock, self.kinds[kind]:
            happens()
            self.cluster.settle()

    def _prepared(self, event: Event, number: int) -> Callable[[], None]:
        cluster = self.cluster
        if event.kind == "submit":
            task = cluster.task(event.nodes, event.priority)
            return lambda: cluster.put(task)
        if event.kind == "end":
            run = self._some_run(event.place)
            return lambda: cluster.end(run)
        if event.kind == "save":
            run = self._some_run(event.place)
            return lambda: cluster.save(run)
        if event.kind == "give_up":
            waiting = cluster.index.tasks[self._some_waiting(event.place)]
            gone = replace(waiting, goal=TaskGoal.STOP, version=waiting.version + 1)
            return lambda: cluster.put(gone)
        node = cluster.nodes[int(event.place * len(cluster.nodes))]
        if any(each.id == node.id for _, each in self._away):
            return lambda: None
        self._away.append((number + NODE_AWAY_EVENTS, replace(node, version=node.version + 1)))
        return lambda: cluster.put(replace(node, schedulable=False))

    def _some_run(self, place: float) -> str:
        return _some(self.cluster, self._runs, place, TaskState.RUNNING)

    def _some_waiting(self, place: float) -> str:
        return _some(self.cluster, self._waiting, place, TaskState.QUEUED)


def _some(cluster: SimulatedCluster, ids: list[str], place: float, state: TaskState) -> str:
    """One task in this state; the list of them is rebuilt when it runs out."""
    tasks = cluster.index.tasks
    while len(ids) > 1:
        task_id = ids.pop(int(place * len(ids)))
        if task_id in tasks and tasks[task_id].state is state:
            return task_id
    ids[:] = sorted(task.id for task in tasks.values() if task.state is state)
    return ids[int(place * len(ids))]


def played(nodes: int, queued: int, events: list[Event]) -> tuple[Player, dict[str, Number]]:
    """One size: microseconds per event, and what was touched per event."""
    cluster = filled(nodes, queued)
    player = Player(cluster)
    before = replace(cluster.count)
    with quiet_memory():
        player.play(events)
    count, total = cluster.count, len(events)
    found: dict[str, Number] = {
        "us_per_event": round(player.clock.seconds / total * 1e6, 1),
        "rows_per_event": round((count.rows - before.rows) / total, 2),
        "looks_per_event": round((count.evaluated - before.evaluated) / total, 2),
        "rounds_per_event": round((count.rounds - before.rounds) / total, 2),
    }
    numbers = {kind: sum(each.kind == kind for each in events) for kind in KINDS}
    for kind, clock in player.kinds.items():
        found[f"{kind}_us"] = round(clock.seconds / max(1, numbers[kind]) * 1e6, 1)
    assert not count.faults, f"check found {count.faults} faults"
    return player, found


def idle(queued: int, seconds: int) -> float:
    """CPU seconds per second of a leader with so many tasks that no node can take; a round a tick.

    As ``loop.py``: a round is made when something changed, or when one is due.
    """
    cluster = SimulatedCluster(150)
    # Accepted when the cluster was larger; half of it is away now.
    cluster.put(*(cluster.task(150, Priority.NORMAL) for _ in range(queued)))
    cluster.put(*(replace(node, ready=False) for node in cluster.nodes[:75]))
    cluster.settle()
    clock = Clock()
    with quiet_memory(), clock:
        for _ in range(seconds):
            cluster.now += timedelta(seconds=1.0)
            if cluster.due_at is not None and cluster.due_at <= cluster.now:
                cluster.decide()
    return clock.seconds / seconds


def restart(cluster: SimulatedCluster) -> tuple[float, float]:
    """CPU seconds for the index from the rows, and for the first round, over all queues."""
    index = cluster.index
    tasks, ledgers, nodes = (
        [*index.tasks.values()],
        [*index.ledgers.values()],
        [*index.nodes.values()],
    )
    build, first = Clock(), Clock()
    with quiet_memory():
        with build:
            made = Index(PolicySettings(start_deadline_seconds=1e9))
            made.apply(
                put=[policy_of(len(nodes)), *nodes, Inventory("bench", (), cluster.now)],
            )
            made.refresh()
            made.apply(put=[*ledgers, *tasks])
            for pool in made.pools.values():
                pool.skip_known_arrivals()
            snapshot = Snapshot.view(made)
        with first:
            decide(snapshot, cluster.now)
    assert made.pools[GROUP].waiting_count() == index.pools[GROUP].waiting_count()
    return build.seconds, first.seconds


def plentiful(kind: Kind) -> dict[str, Number]:
    """Milliseconds of one event where little is plentiful and where much is; the least of some."""
    least: dict[str, float] = {}
    for variant, size in (("small", kind.small), ("large", kind.large)):
        event = kind.build(size)
        times: list[float] = []
        with quiet_memory():
            for _ in range(PLAYED):
                clock = Clock()
                with clock:
                    event()
                times.append(1e3 * clock.seconds)
        least[variant] = min(times)
    small, large = least["small"], least["large"]
    found: dict[str, Number] = {
        f"{kind.name}_{name}_ms": round(ms, 2) for name, ms in least.items()
    }
    found[f"{kind.name}_ratio"] = round(large / small, 2)
    if kind.calls_each_max:
        found[f"{kind.name}_us_each"] = round(1e3 * (large - small) / (kind.large - kind.small), 2)
    return found


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=5_000)
    parser.add_argument("--sizes", default="small,middle,large")
    parser.add_argument("--test-sizes", action="store_true", help="the sizes that tests use")
    asked = parser.parse_args()
    report = Report(
        BENCHMARK,
        f"{asked.events:,} events, sizes {asked.sizes}",
        () if asked.test_sizes else BENCHMARK.goals,
    )
    for kind in SCALED:
        report.measured |= plentiful(
            replace(kind, small=kind.small_test, large=kind.large_test)
            if asked.test_sizes
            else kind
        )
    if not asked.events:
        report.publish()
        return
    events = script(asked.events)
    cost: dict[str, float] = {}
    for name in asked.sizes.split(","):
        player, found = played(*SIZES_MEASURED[name], events)
        cost[name] = player.clock.seconds
        report.measured |= {f"{name}_{key}": value for key, value in found.items()}
        if name == "large":
            built, first = restart(player.cluster)
            report.measured |= {"restart_s": round(built, 2), "restart_first_s": round(first, 2)}
    if {"small", "large"} <= cost.keys():
        report.measured["largest_over_smallest"] = round(cost["large"] / cost["small"], 2)
    queued = SIZES_MEASURED[asked.sizes.split(",")[-1]][1]
    report.measured["idle_core_percent"] = round(
        100 * idle(queued, 60 if asked.test_sizes else IDLE_SECONDS), 3
    )
    report.publish()


if __name__ == "__main__":
    run(main)

"""The newest sample of each node and rank: what pages, ``/metrics`` and rules read.

It is in memory, and whole again one sample after a new leader began."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from libs.contracts.messages import (
    GpuValues,
    NodeSampled,
    NodeUtilization,
    RankSample,
    TaskUtilization,
)


@dataclass
class NewestNode:
    """What was measured of a node at one moment."""

    sampled_at: datetime
    hostname: str
    sample: NodeSampled
    ranks: dict[tuple[str, int, int], RankSample] = field(
        default_factory=dict[tuple[str, int, int], RankSample]
    )


@dataclass
class Newest:
    """By node. ``seconds``: a sample that is older does not count any more."""

    seconds: float
    nodes: dict[str, NewestNode] = field(default_factory=dict[str, NewestNode])
    # The nodes on which each task was measured.
    nodes_of: dict[str, set[str]] = field(default_factory=dict[str, set[str]])

    def clear(self) -> None:
        """Forget everything."""
        self.nodes.clear()
        self.nodes_of.clear()

    def take(self, sample: NodeSampled) -> None:
        """Enter a sample; further messages of one moment add ranks to the first."""
        before = self.nodes.get(sample.node_id)
        if before is not None and before.sampled_at > sample.sampled_at:
            return
        if before is None or before.sampled_at < sample.sampled_at:
            self._forget(sample.node_id)
            before = self.nodes[sample.node_id] = NewestNode(
                sample.sampled_at, sample.hostname, sample
            )
        for rank in sample.ranks:
            before.ranks[rank.task_id, rank.attempt, rank.rank] = rank
            self.nodes_of.setdefault(rank.task_id, set()).add(sample.node_id)

    def expire(self, now: datetime) -> None:
        """Forget the nodes of which nothing has come for too long."""
        for node_id, found in tuple(self.nodes.items()):
            if not self._is_recent(found, now):
                self._forget(node_id)
                del self.nodes[node_id]

    def recent(self, now: datetime) -> Iterator[tuple[str, NewestNode]]:
        """The nodes with a recent sample."""
        return (item for item in self.nodes.items() if self._is_recent(item[1], now))

    def of_nodes(self, node_ids: Collection[str], now: datetime) -> Iterator[NodeUtilization]:
        """The newest samples of these nodes."""
        for node_id in node_ids:
            found = self.nodes.get(node_id)
            if found is not None and self._is_recent(found, now):
                yield NodeUtilization(
                    node_id=node_id,
                    sampled_at=found.sampled_at,
                    values=found.sample.values,
                    gpus=found.sample.gpus,
                )

    def of_tasks(self, task_ids: Collection[str], now: datetime) -> Iterator[TaskUtilization]:
        """The newest samples of these tasks, summed up over their ranks."""
        for task_id in task_ids:
            found = [
                (self.nodes[node_id], rank)
                for node_id in self.nodes_of.get(task_id, ())
                for key, rank in self.nodes[node_id].ranks.items()
                if key[0] == task_id and self._is_recent(self.nodes[node_id], now)
            ]
            attempt = max((rank.attempt for _, rank in found), default=0)
            live = [(node, rank) for node, rank in found if rank.attempt == attempt]
            if live:
                yield _summed(task_id, attempt, live)

    def _is_recent(self, found: NewestNode, now: datetime) -> bool:
        return (now - found.sampled_at).total_seconds() <= self.seconds

    def _forget(self, node_id: str) -> None:
        found = self.nodes.get(node_id)
        if found is not None:
            for task_id in {key[0] for key in found.ranks}:
                nodes = self.nodes_of.get(task_id, set())
                nodes.discard(node_id)
                if not nodes:
                    self.nodes_of.pop(task_id, None)


def _summed(
    task_id: str, attempt: int, live: list[tuple[NewestNode, RankSample]]
) -> TaskUtilization:
    gpus = [values for node, rank in live for values in held_values(node, rank)]
    return TaskUtilization(
        task_id=task_id,
        attempt=attempt,
        sampled_at=max(node.sampled_at for node, _ in live),
        ranks=len(live),
        gpus=len(gpus),
        cpu_cores=_sum(rank.values.cpu_cores for _, rank in live),
        memory_bytes=_sum(rank.values.memory_bytes for _, rank in live),
        gpu_percent=_mean([each.gpu_percent for each in gpus]),
        gpu_memory_used_bytes=_sum(each.gpu_memory_used_bytes for each in gpus),
    )


def held_values(node: NewestNode, rank: RankSample) -> list[GpuValues]:
    """What was measured of the GPUs that a rank holds."""
    return [gpu.values for gpu in node.sample.gpus if gpu.index in rank.gpus]


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None

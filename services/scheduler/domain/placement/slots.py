"""What the ranks of a gang take of its nodes: slots, and from slots the placements of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from libs.contracts.messages import Placement, TaskSpec
from services.scheduler.domain.model.rows import Node, Task
from services.scheduler.domain.model.values import NO_RESOURCES, NodeResources
from services.scheduler.domain.placement.bitsets import gpus_of, mask_of


class Slot(NamedTuple):
    """What one rank takes of one node: GPUs, CPUs and memory.

    The mask of a CPU-only rank is 0. Several ranks of a gang may lie on one node.
    """

    node_id: str
    mask: int
    resources: NodeResources = NO_RESOURCES


class Share(NamedTuple):
    """What a gang takes of one node: the slots of all its ranks there."""

    node_id: str
    mask: int
    cpu_ranks: int
    resources: NodeResources


def share_of(node_id: str, slots: Iterable[Slot]) -> Share:
    """What these slots of one node take of it together."""
    mask = cpu_ranks = cpus = memory = 0
    for slot in slots:
        mask |= slot.mask
        cpu_ranks += not slot.mask
        cpus += slot.resources.cpus
        memory += slot.resources.memory_bytes
    resources = NodeResources(cpus, memory) if cpus or memory else NO_RESOURCES
    return Share(node_id, mask, cpu_ranks, resources)


def shares_of(slots: Iterable[Slot]) -> list[Share]:
    """The slots by node, in the order in which the nodes come first."""
    by_node: dict[str, list[Slot]] = {}
    for slot in slots:
        by_node.setdefault(slot.node_id, []).append(slot)
    return [share_of(node_id, own) for node_id, own in by_node.items()]


def nodes_of(slots: Iterable[Slot]) -> list[str]:
    """The nodes of these slots, in the order in which they come first."""
    return list(dict.fromkeys(slot.node_id for slot in slots))


def slots_of(task: Task) -> tuple[Slot, ...]:
    """What a task's live run takes, or what is reserved for it while it waits.

    A whole node without GPUs shows no GPU but takes its unit.
    """
    ranks, shape = task.placements or task.promised, task.shape
    if not shape.parts:
        cpu_only, resources = shape.gpus == 0, shape.resources
        return tuple(
            Slot(rank.node_id, 0 if cpu_only else mask_of(rank.gpus) or 1, resources)
            for rank in ranks
        )
    sizes = dict(zip((role.name for role in task.spec.roles), shape.each, strict=True))
    amounts = {name: size.resources for name, size in sizes.items()}
    return tuple(
        Slot(
            rank.node_id,
            0 if sizes[rank.role].gpus == 0 else mask_of(rank.gpus) or 1,
            amounts[rank.role],
        )
        for rank in ranks
    )


PLACEMENTS_KEPT_MAX = 131_072


@lru_cache(maxsize=PLACEMENTS_KEPT_MAX)
def _placement(rank: int, role: str, index: int, node_id: str, mask: int) -> Placement:
    """Equal placements are one object: the same ranks come to the same nodes again and again."""
    return Placement(rank=rank, role=role, role_index=index, node_id=node_id, gpus=gpus_of(mask))


def placements_of(
    slots: tuple[Slot, ...], spec: TaskSpec, nodes: Mapping[str, Node]
) -> tuple[Placement, ...]:
    """Assigns the slots to the ranks, in the order of the roles and of their replicas.

    Which of several replicas of a role comes to which of its slots does not matter.
    """
    replicas = [(role.name, index) for role in spec.roles for index in range(role.replicas)]
    assert len(replicas) == len(slots), "submit makes nodes the sum of the replicas"
    return tuple(
        _placement(rank, role, index, slot.node_id, slot.mask if nodes[slot.node_id].gpus else 0)
        for rank, ((role, index), slot) in enumerate(zip(replicas, slots, strict=True))
    )

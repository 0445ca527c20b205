"""Where gangs fit: filters, then rankers, over nodes kept in buckets by their free GPUs.

A gang goes all or nothing, each rank on a node of its own. Partly used nodes are filled first, so
that whole nodes stay whole for those who need them. CPU-only ranks take no GPU; a node holds as
many as it has CPUs. A node without GPUs counts as one unit: whole, or shared by CPU-only ranks.

``Capacity`` is the one mutable structure of the domain: ``snapshot.py`` keeps one up to date,
``decide`` works on copies. Cost of a pick follows the gang, not the cluster.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from libs.contracts.messages import Placement, TaskSpec
from services.scheduler.domain.model import Node, PolicySettings, Shape, Task

# Groups' nodes of one GPU count.
Pool: TypeAlias = tuple[str, int]
Allowed: TypeAlias = Callable[[str], bool]


class Slot(NamedTuple):
    """What one rank takes of one node: a mask of GPUs, or (mask 0) a CPU-only rank's place."""

    node_id: str
    mask: int


def mask_of(gpus: Iterable[int]) -> int:
    """The bit mask of GPU indices."""
    mask = 0
    for gpu in gpus:
        mask |= 1 << gpu
    return mask


def gpus_of(mask: int) -> tuple[int, ...]:
    """The GPU indices of a bit mask, ascending."""
    return tuple(index for index in range(mask.bit_length()) if mask >> index & 1)


def lowest(mask: int, count: int) -> int:
    """The mask of the ``count`` lowest bits of ``mask``."""
    kept = 0
    for _ in range(count):
        bit = mask & -mask
        kept |= bit
        mask ^= bit
    return kept


def width(node: Node) -> int:
    """Units of a node: its GPUs; a node without GPUs is one unit."""
    return max(1, node.gpus)


def usable_mask(node: Node) -> int:
    """The units of a node that may be used at all."""
    return ((1 << width(node)) - 1) & ~mask_of(node.unusable_gpus if node.gpus else ())


def slots_of(task: Task) -> tuple[Slot, ...]:
    """What a task's live run takes; a whole node without GPUs shows no GPU but takes its unit."""
    cpu_only = task.spec.gpus_per_node == 0
    return tuple(
        Slot(placement.node_id, 0 if cpu_only else mask_of(placement.gpus) or 1)
        for placement in task.placements
    )


def cpu_ranks_max(node: Node, settings: PolicySettings) -> int:
    """How many CPU-only ranks a node holds."""
    return max(1, int(node.cpus)) if node.cpus > 0 else settings.cpu_ranks_per_node


def roomy(node: Node, shape: Shape) -> bool:
    """True if one rank's CPU and memory limits are within the node (unknown counts as enough)."""
    return (node.cpus <= 0 or shape.cpus <= node.cpus) and (
        node.memory_bytes <= 0 or shape.memory_bytes <= node.memory_bytes
    )


class Capacity:
    """What is free on the offered nodes, changed by ``take`` and ``give``."""

    def __init__(self, nodes: Iterable[Node], settings: PolicySettings) -> None:
        self.settings = settings
        self.nodes: Mapping[str, Node] = {str(node.id): node for node in nodes}
        self.free: dict[str, int] = {}
        self.cpu_ranks: dict[str, int] = {}
        # Node ids by free units, each bucket sorted, so that every pick is deterministic.
        self.buckets: dict[Pool, list[list[str]]] = {}
        # GPU counts of each group's nodes, largest first; 0 only where there is nothing else.
        self.sizes: dict[str, list[int]] = {}
        for node_id in sorted(self.nodes):
            node = self.nodes[node_id]
            pool = (node.group, node.gpus)
            if pool not in self.buckets:
                self.buckets[pool] = [[] for _ in range(width(node) + 1)]
                self.sizes.setdefault(node.group, []).append(node.gpus)
            self.free[node_id] = usable_mask(node)
            self.cpu_ranks[node_id] = 0
            self.buckets[pool][self.free[node_id].bit_count()].append(node_id)
        for sizes in self.sizes.values():
            sizes.sort(reverse=True)

    def copy(self) -> Capacity:
        """An independent copy that shares what never changes."""
        twin = Capacity.__new__(Capacity)
        twin.settings, twin.nodes, twin.sizes = self.settings, self.nodes, self.sizes
        twin.free = dict(self.free)
        twin.cpu_ranks = dict(self.cpu_ranks)
        twin.buckets = {
            pool: [list(bucket) for bucket in buckets] for pool, buckets in self.buckets.items()
        }
        return twin

    def take(self, slots: Iterable[Slot]) -> None:
        """Take slots; what is not offered or not free is passed over."""
        for node_id, mask in slots:
            if node_id in self.free:
                if mask:
                    self._set_free(node_id, self.free[node_id] & ~mask)
                else:
                    self.cpu_ranks[node_id] += 1

    def give(self, slots: Iterable[Slot]) -> None:
        """Give slots back; what is not offered or not usable stays so."""
        for node_id, mask in slots:
            node = self.nodes.get(node_id)
            if node is not None:
                if mask:
                    self._set_free(node_id, self.free[node_id] | (mask & usable_mask(node)))
                else:
                    self.cpu_ranks[node_id] -= 1

    def covers(self, slot: Slot) -> bool:
        """True if this slot is free now."""
        node = self.nodes.get(slot.node_id)
        if node is None:
            return False
        if slot.mask:
            return self.free[slot.node_id] & slot.mask == slot.mask
        return self._cpu_places(node) > 0

    def _set_free(self, node_id: str, mask: int) -> None:
        before, after = self.free[node_id].bit_count(), mask.bit_count()
        self.free[node_id] = mask
        if before != after:
            node = self.nodes[node_id]
            buckets = self.buckets[node.group, node.gpus]
            bucket = buckets[before]
            del bucket[bisect_left(bucket, node_id)]
            insort(buckets[after], node_id)

    def _cpu_places(self, node: Node) -> int:
        if not node.gpus and not self.free[node.id]:
            return 0
        return cpu_ranks_max(node, self.settings) - self.cpu_ranks[node.id]

    def pick(self, shape: Shape, allowed: Allowed | None = None) -> tuple[Slot, ...] | None:
        """Slots for a whole gang, by node id, or None; ``allowed`` narrows the nodes."""
        if shape.gpus is None:
            return self._pick_whole(shape, allowed)
        if shape.gpus == 0:
            return self._pick_cpu(shape, allowed)
        found: list[Slot] = []
        for node_id in self._partly_used_first(shape.group, shape.gpus):
            if self._passes(node_id, shape, allowed):
                found.append(Slot(node_id, lowest(self.free[node_id], shape.gpus)))
                if len(found) == shape.nodes:
                    return tuple(sorted(found))
        return None

    def fits(self, shape: Shape) -> bool:
        """True if ``pick`` would find a place; counting rules most cases out at once."""
        return self._enough(shape) and self.pick(shape) is not None

    def _enough(self, shape: Shape) -> bool:
        """False if there are too few nodes with so many free GPUs, whatever else they are."""
        sizes = self.sizes.get(shape.group, ())
        if shape.gpus == 0:
            return True
        counts = [
            sum(map(len, self.buckets[shape.group, size][shape.gpus or max(1, size) :]))
            for size in sizes
            if shape.gpus is None or size >= shape.gpus
        ]
        found = max(counts, default=0) if shape.gpus is None else sum(counts)
        return found >= shape.nodes

    def _passes(self, node_id: str, shape: Shape, allowed: Allowed | None) -> bool:
        return (allowed is None or allowed(node_id)) and roomy(self.nodes[node_id], shape)

    def _partly_used_first(self, group: str, gpus: int) -> Iterator[str]:
        """Nodes with so many free GPUs, those with the least over first, then by id."""
        sizes = [size for size in self.sizes.get(group, ()) if size >= gpus]
        for count in range(gpus, max(sizes, default=0) + 1):
            for size in reversed(sizes):
                if count <= size:
                    yield from self.buckets[group, size][count]

    def _pick_whole(self, shape: Shape, allowed: Allowed | None) -> tuple[Slot, ...] | None:
        """All nodes of one gang have the same number of GPUs; the largest kind is tried first."""
        for size in self.whole_sizes(shape.group):
            found: list[Slot] = []
            for node_id in self.buckets[shape.group, size][max(1, size)]:
                if (size or not self.cpu_ranks[node_id]) and self._passes(node_id, shape, allowed):
                    found.append(Slot(node_id, self.free[node_id]))
                    if len(found) == shape.nodes:
                        return tuple(found)
        return None

    def whole_sizes(self, group: str) -> list[int]:
        """GPU counts a whole-node gang may get; nodes without GPUs only where none has any."""
        sizes = self.sizes.get(group, [])
        return [size for size in sizes if size] or sizes

    def _pick_cpu(self, shape: Shape, allowed: Allowed | None) -> tuple[Slot, ...] | None:
        """Nodes without GPUs first, the fullest of them; then GPU nodes, the emptiest."""
        ranked: list[tuple[int, int, str]] = []
        for size in self.sizes.get(shape.group, ()):
            for bucket in self.buckets[shape.group, size]:
                for node_id in bucket:
                    node, used = self.nodes[node_id], self.cpu_ranks[node_id]
                    if self._cpu_places(node) > 0 and self._passes(node_id, shape, allowed):
                        ranked.append((1, used, node_id) if size else (0, -used, node_id))
        if len(ranked) < shape.nodes:
            return None
        chosen = sorted(ranked)[: shape.nodes]
        return tuple(sorted(Slot(node_id, 0) for _, _, node_id in chosen))

    def eligible(self, shape: Shape) -> frozenset[str]:
        """What this shape competes for: nodes that could hold one rank if they were empty.

        CPU-only ranks and GPU ranks do not compete for a GPU node; the name tells them apart.
        """
        found: set[str] = set()
        for size in self.sizes.get(shape.group, ()):
            if shape.gpus is None and size not in self.whole_sizes(shape.group):
                continue
            if shape.gpus and size < shape.gpus:
                continue
            for bucket in self.buckets[shape.group, size]:
                found.update(
                    contested(node_id, size, shape)
                    for node_id in bucket
                    if roomy(self.nodes[node_id], shape) and self._usable(node_id, shape)
                )
        return frozenset(found)

    def _usable(self, node_id: str, shape: Shape) -> bool:
        node = self.nodes[node_id]
        wanted = width(node) if shape.gpus is None else shape.gpus
        return usable_mask(node).bit_count() >= wanted


def contested(node_id: str, gpus: int, shape: Shape) -> str:
    """The name of what a rank of this shape uses of a node with so many GPUs."""
    return f"{node_id}/cpu" if gpus and shape.gpus == 0 else node_id


def placements_of(
    slots: tuple[Slot, ...], spec: TaskSpec, nodes: Mapping[str, Node]
) -> tuple[Placement, ...]:
    """Give the slots to the ranks: roles in their order, replicas in theirs."""
    replicas = [(role.name, index) for role in spec.roles for index in range(role.replicas)]
    assert len(replicas) == len(slots), "submit makes nodes the sum of the replicas"
    return tuple(
        Placement(
            rank=rank,
            role=role,
            role_index=index,
            node_id=slot.node_id,
            gpus=gpus_of(slot.mask) if nodes[slot.node_id].gpus else (),
        )
        for rank, ((role, index), slot) in enumerate(zip(replicas, slots, strict=True))
    )

"""The free GPUs, CPUs and memory of one group's nodes, in sets of positions.

``capacity.py`` keeps one ``FreeNodes`` for each group. A set holds the nodes of one size with the
same number of free GPUs, so counting rules a gang out and joining sets finds it a place. A copy
costs next to nothing and is independent: sets are integers, and the free GPUs of the nodes lie in
small chunks that are replaced and never changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from services.scheduler.domain.model.values import NodeResources, Shape
from services.scheduler.domain.placement.bitsets import positions
from services.scheduler.domain.placement.node_index import (
    NodeIndex,
    memory_of,
    millicpus_of,
    with_resources,
)
from services.scheduler.domain.placement.node_resources import RemainingResource

_BITS = 6
_LOW = (1 << _BITS) - 1


@dataclass(slots=True)
class FreeNodes:
    """Free GPUs and CPU-only ranks of one group's nodes, by position."""

    index: NodeIndex
    # By position, in chunks that are never changed: the free units, the number of CPU-only ranks.
    masks: list[list[int]]
    ranks: list[list[int]]
    # Positions and their number, by size and number of free units.
    sets: dict[int, list[int]]
    counts: dict[int, list[int]]
    # Positions by number of CPU-only ranks, and those that accept no more of them.
    by_cpu_ranks: dict[int, int]
    cpu_full: int = 0
    # The number of ranks on nodes without GPUs, by how many such a node holds.
    shared: dict[int, int] = field(default_factory=dict[int, int])
    # The last result of ``units`` while it is still right.
    cached_units: float | None = None
    # CPUs and memory that are left; None: no node reports them.
    cpus: RemainingResource | None = None
    memory: RemainingResource | None = None
    # False while another copy shares them: they are copied before a change, as gangs that want
    # neither change nothing.
    owns_resources: bool = True

    @staticmethod
    def of(index: NodeIndex) -> FreeNodes:
        """Everything usable is free."""
        sets = {size: [0] * (max(1, size) + 1) for size in index.sizes}
        for size, own in sets.items():
            for position in positions(index.by_size[size] & index.open):
                own[index.usable[position].bit_count()] |= 1 << position
        return FreeNodes(
            index=index,
            masks=_chunks(index.usable),
            ranks=_chunks([0] * len(index.usable)),
            sets=sets,
            counts={size: [each.bit_count() for each in own] for size, own in sets.items()},
            by_cpu_ranks={0: index.open},
            cpus=index.cpus.copy() if index.cpus else None,
            memory=index.memory.copy() if index.memory else None,
        )

    def close(self, position: int) -> None:
        """Takes no runs on the node from now on, whatever lies on it."""
        size, bit = self.index.nodes[position].gpus, 1 << position
        ranks = self.ranks[position >> _BITS][position & _LOW]
        if ranks:
            self.add_ranks(position, -ranks)
        self.set_free(position, 0)
        self.sets[size][0] ^= bit
        self.counts[size][0] -= 1
        self.by_cpu_ranks[0] ^= bit
        self.cached_units = None

    def open_again(self, position: int) -> None:
        """Takes runs on the node again; what is usable of it is free."""
        size, bit = self.index.nodes[position].gpus, 1 << position
        self.sets[size][0] ^= bit
        self.counts[size][0] += 1
        self.by_cpu_ranks[0] = self.by_cpu_ranks.get(0, 0) | bit
        self.cached_units = None
        self.set_free(position, self.index.usable[position])
        node = self.index.nodes[position]
        self._copy_shared_resources()
        if self.cpus is not None:
            self.cpus.reset(position, millicpus_of(node))
        if self.memory is not None:
            self.memory.reset(position, memory_of(node))

    def copy(self) -> FreeNodes:
        """An independent copy."""
        self.owns_resources = False
        return FreeNodes(
            self.index,
            self.masks.copy(),
            self.ranks.copy(),
            {size: own.copy() for size, own in self.sets.items()},
            {size: own.copy() for size, own in self.counts.items()},
            self.by_cpu_ranks.copy(),
            self.cpu_full,
            self.shared.copy(),
            self.cached_units,
            self.cpus,
            self.memory,
            owns_resources=False,
        )

    def _copy_shared_resources(self) -> None:
        """Prepares for a change of CPUs and memory that no copy sees."""
        if not self.owns_resources:
            self.cpus = self.cpus.copy() if self.cpus else None
            self.memory = self.memory.copy() if self.memory else None
            self.owns_resources = True

    def free(self, position: int) -> int:
        """The free units of a node."""
        return self.masks[position >> _BITS][position & _LOW]

    def set_free(self, position: int, mask: int) -> None:
        """Sets which units of a node are free."""
        chunk_no = position >> _BITS
        chunk = self.masks[chunk_no].copy()
        before = chunk[position & _LOW].bit_count()
        chunk[position & _LOW] = mask
        self.masks[chunk_no] = chunk
        after = mask.bit_count()
        if before != after:
            self.cached_units = None
            size = self.index.nodes[position].gpus
            bit = 1 << position
            sets, counts = self.sets[size], self.counts[size]
            sets[before] ^= bit
            sets[after] ^= bit
            counts[before] -= 1
            counts[after] += 1

    def move(self, units: list[tuple[int, int]], *, give: bool) -> None:
        """Gives units of nodes back, or takes them; ``units`` are positions and masks.

        The result is that of ``set_free`` for each, but each set is changed once.
        """
        masks, index = self.masks, self.index
        # Chunks that were copied; positions by size and free units before and after.
        copied: set[int] = set()
        moved: dict[tuple[int, int, int], int] = {}
        for position, mask in units:
            chunk_no, at = position >> _BITS, position & _LOW
            before = masks[chunk_no][at]
            after = before | mask & index.usable[position] if give else before & ~mask
            if after == before:
                continue
            if chunk_no not in copied:
                copied.add(chunk_no)
                masks[chunk_no] = masks[chunk_no].copy()
            masks[chunk_no][at] = after
            # A call only gives or only takes: no node changes twice in the same way.
            way = index.nodes[position].gpus, before.bit_count(), after.bit_count()
            moved[way] = moved.get(way, 0) | 1 << position
        for (size, before, after), there in moved.items():
            self.cached_units = None
            sets, counts, count = self.sets[size], self.counts[size], there.bit_count()
            sets[before] ^= there
            sets[after] ^= there
            counts[before] -= count
            counts[after] += count

    def add_resources(self, there: list[int], resources: NodeResources, times: int) -> None:
        """Gives back (1) or takes (-1) what ranks take; a position stands once for each rank."""
        self._copy_shared_resources()
        if len(set(there)) == len(there):
            by_count = {1: there}
        else:
            by_count = dict[int, list[int]]()
            for position, count in Counter(there).items():
                by_count.setdefault(count, []).append(position)
        for count, own in by_count.items():
            if self.cpus is not None and resources.cpus:
                self.cpus.add(own, times * count * resources.cpus)
            if self.memory is not None and resources.memory_bytes:
                self.memory.add(own, times * count * resources.memory_bytes)

    def offers(self, position: int, resources: NodeResources) -> bool:
        """True if so much CPU and memory is left on a node."""
        for left, wanted in ((self.cpus, resources.cpus), (self.memory, resources.memory_bytes)):
            there = left.at(position) if left is not None and wanted else None
            if there is not None and there < wanted:
                return False
        return True

    def suitable(self, shape: Shape) -> int | None:
        """The nodes whose labels, taints, CPUs and memory allow one more rank; None: all."""
        there = self.index.admitting(shape)
        if not shape.cpus and not shape.memory_bytes:
            return there
        return with_resources(there, shape, self.cpus, self.memory)

    def add_ranks(self, position: int, more: int) -> None:
        """Counts CPU-only ranks on a node; ``more`` may be negative."""
        chunk_no = position >> _BITS
        chunk = self.ranks[chunk_no].copy()
        before = chunk[position & _LOW]
        after = chunk[position & _LOW] = before + more
        self.ranks[chunk_no] = chunk
        bit = 1 << position
        self.cached_units = None
        self.by_cpu_ranks[before] ^= bit
        if not self.by_cpu_ranks[before]:
            del self.by_cpu_ranks[before]
        self.by_cpu_ranks[after] = self.by_cpu_ranks.get(after, 0) | bit
        most = self.index.cpu_ranks_max[position]
        self.cpu_full = self.cpu_full | bit if after >= most else self.cpu_full & ~bit
        if not self.index.nodes[position].gpus:
            # Reserved ranks that are still held count twice; a node is no more than full.
            self.shared[most] = self.shared.get(most, 0) + min(after, most) - min(before, most)

    def units(self) -> float:
        """Free node equivalents; a node without GPUs is shared by its CPU-only ranks."""
        if self.cached_units is not None:
            return self.cached_units
        free = sum(
            count * number / max(1, size)
            for size, counts in self.counts.items()
            for count, number in enumerate(counts)
        )
        self.cached_units = free - sum(ranks / most for most, ranks in self.shared.items())
        return self.cached_units

    def has_no_cpu_rank(self, position: int) -> bool:
        """True if no CPU-only rank lies on this node."""
        return bool(self.by_cpu_ranks.get(0, 0) >> position & 1)

    def cpu_places(self, position: int) -> int:
        """How many more CPU-only ranks may lie on this node."""
        if not self.cpu_positions() >> position & 1:
            return 0
        there = self.ranks[position >> _BITS][position & _LOW]
        return self.index.cpu_ranks_max[position] - there

    def cpu_positions(self) -> int:
        """The nodes that accept one more CPU-only rank."""
        taken = self.sets[0][0] if 0 in self.sets else 0
        return self.index.open & ~(self.cpu_full | taken)

    def may_fit(self, shape: Shape) -> bool:
        """False if too few nodes have so many free GPUs; nothing else is compared."""
        if shape.parts:
            return self._may_hold_parts(shape)
        if shape.gpus is None:
            return any(self.counts[size][-1] >= shape.nodes for size in self.index.whole_sizes)
        if shape.gpus == 0:
            return self.index.open.bit_count() >= shape.nodes
        found = sum(sum(counts[shape.gpus :]) for size, counts in self.counts.items() if size)
        return found >= shape.nodes

    def _may_hold_parts(self, shape: Shape) -> bool:
        """False if fewer GPUs are free than all ranks need."""
        smallest = min((size for size in self.index.whole_sizes), default=0)
        needed = sum(
            each.nodes * (smallest if each.gpus is None else each.gpus) for each in shape.each
        )
        free = sum(
            count * number
            for size, counts in self.counts.items()
            if size
            for count, number in enumerate(counts)
        )
        return needed <= free

    def ways(self, shape: Shape) -> Iterator[list[int]]:
        """Ways to place a gang, best first: each is the sets from which nodes are taken, in order.

        All nodes of a whole-node gang have the same number of GPUs; the largest kind comes first.
        """
        if shape.gpus is None:
            for size in self.index.whole_sizes:
                whole = self.sets[size][-1]
                yield [whole if size else whole & self.by_cpu_ranks.get(0, 0)]
        else:
            yield list(self._for_gpus(shape.gpus) if shape.gpus else self._for_cpus())

    def _for_gpus(self, gpus: int) -> Iterator[int]:
        """Partly used nodes before whole ones, so that those stay whole; the tightest fit first."""
        sizes = [size for size in reversed(self.index.sizes) if size >= gpus]
        for free in range(gpus, max(sizes, default=0)):
            for size in sizes:
                if free < size and self.counts[size][free]:
                    yield self.sets[size][free]
        for size in sizes:
            yield self.sets[size][size]

    def _for_cpus(self) -> Iterator[int]:
        """Nodes without GPUs first, the fullest of them; then GPU nodes, the emptiest."""
        positions = self.cpu_positions()
        plain = self.index.by_size.get(0, 0)
        for ranks in sorted(self.by_cpu_ranks, reverse=True):
            yield self.by_cpu_ranks[ranks] & positions & plain
        for ranks in sorted(self.by_cpu_ranks):
            yield self.by_cpu_ranks[ranks] & positions & ~plain


def _chunks(values: list[int]) -> list[list[int]]:
    step = 1 << _BITS
    return [values[start : start + step] for start in range(0, len(values), step)]

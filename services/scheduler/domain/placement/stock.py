"""What is free in one group now, in sets of places; ``place.py`` keeps one for each group.

Nodes lie in a set by their size and free GPUs, so a gang is ruled out by counting and found by
joining sets. A copy costs next to nothing and is as independent as it looks: sets are integers,
and the free GPUs of the nodes lie in small chunks that are replaced and never changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from services.scheduler.domain.model.values import NodeResources, Shape
from services.scheduler.domain.placement.amounts import Left
from services.scheduler.domain.placement.fleet import Fleet, cpus_of, memory_of, within
from services.scheduler.domain.placement.masks import places

_BITS = 6
_LOW = (1 << _BITS) - 1


@dataclass(slots=True)
class Stock:
    """Free GPUs and CPU-only ranks of one group's nodes, by place."""

    fleet: Fleet
    # By place, in chunks that are never changed: the free units, the number of CPU-only ranks.
    masks: list[list[int]]
    ranks: list[list[int]]
    # Places and their number by size and number of free units.
    sets: dict[int, list[int]]
    counts: dict[int, list[int]]
    # Places by number of CPU-only ranks, and those that hold no more of them.
    used: dict[int, int]
    cpu_full: int = 0
    # How many ranks lie on nodes without GPUs, by how many such a node holds.
    shared: dict[int, int] = field(default_factory=dict[int, int])
    # What ``units`` said, while it still holds.
    known_units: float | None = None
    # CPUs and memory that nobody has asked for; None: no node reports them.
    cpus: Left | None = None
    memory: Left | None = None
    # False while another stock shares them: they are copied before a change, as gangs that ask for
    # neither change nothing.
    own_amounts: bool = True

    @staticmethod
    def of(fleet: Fleet) -> Stock:
        """Everything usable is free."""
        sets = {size: [0] * (max(1, size) + 1) for size in fleet.sizes}
        for size, own in sets.items():
            for place in places(fleet.of_size[size] & fleet.open):
                own[fleet.usable[place].bit_count()] |= 1 << place
        return Stock(
            fleet=fleet,
            masks=_chunks(fleet.usable),
            ranks=_chunks([0] * len(fleet.usable)),
            sets=sets,
            counts={size: [each.bit_count() for each in own] for size, own in sets.items()},
            used={0: fleet.open},
            cpus=fleet.cpus.copy() if fleet.cpus else None,
            memory=fleet.memory.copy() if fleet.memory else None,
        )

    def shut(self, place: int) -> None:
        """The node takes no runs from now on, whatever lies on it."""
        size, bit = self.fleet.nodes[place].gpus, 1 << place
        ranks = self.ranks[place >> _BITS][place & _LOW]
        if ranks:
            self.add_ranks(place, -ranks)
        self.set_free(place, 0)
        self.sets[size][0] ^= bit
        self.counts[size][0] -= 1
        self.used[0] ^= bit
        self.known_units = None

    def reopen(self, place: int) -> None:
        """The node takes runs again; what is usable of it is free."""
        size, bit = self.fleet.nodes[place].gpus, 1 << place
        self.sets[size][0] ^= bit
        self.counts[size][0] += 1
        self.used[0] = self.used.get(0, 0) | bit
        self.known_units = None
        self.set_free(place, self.fleet.usable[place])
        node = self.fleet.nodes[place]
        self._take_amounts_over()
        if self.cpus is not None:
            self.cpus.reset(place, cpus_of(node))
        if self.memory is not None:
            self.memory.reset(place, memory_of(node))

    def copy(self) -> Stock:
        """An independent copy."""
        self.own_amounts = False
        return Stock(
            self.fleet,
            self.masks.copy(),
            self.ranks.copy(),
            {size: own.copy() for size, own in self.sets.items()},
            {size: own.copy() for size, own in self.counts.items()},
            self.used.copy(),
            self.cpu_full,
            self.shared.copy(),
            self.known_units,
            self.cpus,
            self.memory,
            own_amounts=False,
        )

    def _take_amounts_over(self) -> None:
        """CPUs and memory are about to change here, and only here."""
        if not self.own_amounts:
            self.cpus = self.cpus.copy() if self.cpus else None
            self.memory = self.memory.copy() if self.memory else None
            self.own_amounts = True

    def free(self, place: int) -> int:
        """The free units of a node."""
        return self.masks[place >> _BITS][place & _LOW]

    def set_free(self, place: int, mask: int) -> None:
        """Say which units of a node are free."""
        index = place >> _BITS
        chunk = self.masks[index].copy()
        before = chunk[place & _LOW].bit_count()
        chunk[place & _LOW] = mask
        self.masks[index] = chunk
        after = mask.bit_count()
        if before != after:
            self.known_units = None
            size = self.fleet.nodes[place].gpus
            bit = 1 << place
            sets, counts = self.sets[size], self.counts[size]
            sets[before] ^= bit
            sets[after] ^= bit
            counts[before] -= 1
            counts[after] += 1

    def move(self, units: list[tuple[int, int]], *, give: bool) -> None:
        """Give units of nodes back, or take them: the place and the mask of each.

        As ``set_free`` one after the other, but each set is changed once.
        """
        masks, fleet = self.masks, self.fleet
        # Chunks that were copied; and by size and free units before and after, the places.
        copied: set[int] = set()
        moved: dict[tuple[int, int, int], int] = {}
        for place, mask in units:
            index, at = place >> _BITS, place & _LOW
            before = masks[index][at]
            after = before | mask & fleet.usable[place] if give else before & ~mask
            if after == before:
                continue
            if index not in copied:
                copied.add(index)
                masks[index] = masks[index].copy()
            masks[index][at] = after
            # Units are only given or only taken here: no node goes one way twice.
            way = fleet.nodes[place].gpus, before.bit_count(), after.bit_count()
            moved[way] = moved.get(way, 0) | 1 << place
        for (size, before, after), there in moved.items():
            self.known_units = None
            sets, counts, count = self.sets[size], self.counts[size], there.bit_count()
            sets[before] ^= there
            sets[after] ^= there
            counts[before] -= count
            counts[after] += count

    def add_amounts(self, there: list[int], each: NodeResources, times: int) -> None:
        """Give back (1) or take (-1) what each of a gang's ranks asks for of its node."""
        self._take_amounts_over()
        if self.cpus is not None and each.cpus:
            self.cpus.add(there, times * each.cpus)
        if self.memory is not None and each.memory_bytes:
            self.memory.add(there, times * each.memory_bytes)

    def offers(self, place: int, each: NodeResources) -> bool:
        """True if so much CPU and memory is left on a node."""
        for left, asked in ((self.cpus, each.cpus), (self.memory, each.memory_bytes)):
            there = left.at(place) if left is not None and asked else None
            if there is not None and there < asked:
                return False
        return True

    def suiting(self, shape: Shape) -> int | None:
        """The places whose labels, taints, CPUs and memory allow one more rank; None: all."""
        there = self.fleet.welcoming(shape)
        if not shape.cpus and not shape.memory_bytes:
            return there
        return within(there, shape, self.cpus, self.memory)

    def add_ranks(self, place: int, more: int) -> None:
        """Count CPU-only ranks on a node; ``more`` may be negative."""
        index = place >> _BITS
        chunk = self.ranks[index].copy()
        before = chunk[place & _LOW]
        after = chunk[place & _LOW] = before + more
        self.ranks[index] = chunk
        bit = 1 << place
        self.known_units = None
        self.used[before] ^= bit
        if not self.used[before]:
            del self.used[before]
        self.used[after] = self.used.get(after, 0) | bit
        most = self.fleet.cpu_ranks_max[place]
        self.cpu_full = self.cpu_full | bit if after >= most else self.cpu_full & ~bit
        if not self.fleet.nodes[place].gpus:
            # Promised ones that are still held count twice; a node is no more than full.
            self.shared[most] = self.shared.get(most, 0) + min(after, most) - min(before, most)

    def units(self) -> float:
        """Free node equivalents; a node without GPUs is shared by its CPU-only ranks."""
        if self.known_units is not None:
            return self.known_units
        free = sum(
            count * number / max(1, size)
            for size, counts in self.counts.items()
            for count, number in enumerate(counts)
        )
        self.known_units = free - sum(ranks / most for most, ranks in self.shared.items())
        return self.known_units

    def unshared(self, place: int) -> bool:
        """True if no CPU-only rank lies on this node."""
        return bool(self.used.get(0, 0) >> place & 1)

    def holds_cpu_rank(self, place: int) -> bool:
        """True if one more CPU-only rank may lie on this node."""
        return bool(self._cpu_places() >> place & 1)

    def _cpu_places(self) -> int:
        """Where one more CPU-only rank may lie."""
        taken = self.sets[0][0] if 0 in self.sets else 0
        return self.fleet.open & ~(self.cpu_full | taken)

    def possible(self, shape: Shape) -> bool:
        """False if there are too few nodes with so many free GPUs, whatever else they are."""
        if shape.gpus is None:
            return any(self.counts[size][-1] >= shape.nodes for size in self.fleet.whole_sizes)
        if shape.gpus == 0:
            return self.fleet.open.bit_count() >= shape.nodes
        found = sum(sum(counts[shape.gpus :]) for size, counts in self.counts.items() if size)
        return found >= shape.nodes

    def ways(self, shape: Shape) -> Iterator[list[int]]:
        """Ways to place a gang, best first: each the sets to take its nodes from, in this order.

        All nodes of a whole-node gang have the same number of GPUs; the largest kind comes first.
        """
        if shape.gpus is None:
            for size in self.fleet.whole_sizes:
                whole = self.sets[size][-1]
                yield [whole if size else whole & self.used.get(0, 0)]
        else:
            yield list(self._for_gpus(shape.gpus) if shape.gpus else self._for_cpus())

    def _for_gpus(self, gpus: int) -> Iterator[int]:
        """Partly used nodes before whole ones, so that these stay whole; least to spare first."""
        sizes = [size for size in reversed(self.fleet.sizes) if size >= gpus]
        for free in range(gpus, max(sizes, default=0)):
            for size in sizes:
                if free < size and self.counts[size][free]:
                    yield self.sets[size][free]
        for size in sizes:
            yield self.sets[size][size]

    def _for_cpus(self) -> Iterator[int]:
        """Nodes without GPUs first, the fullest of them; then GPU nodes, the emptiest."""
        places = self._cpu_places()
        plain = self.fleet.of_size.get(0, 0)
        for used in sorted(self.used, reverse=True):
            yield self.used[used] & places & plain
        for used in sorted(self.used):
            yield self.used[used] & places & ~plain


def _chunks(values: list[int]) -> list[list[int]]:
    step = 1 << _BITS
    return [values[start : start + step] for start in range(0, len(values), step)]

"""Places for a gang whose ranks differ or share nodes.

The roles are placed one after the other: whole nodes first, then by GPUs, CPUs and memory, the
largest first; auxiliary ranks last, so that they take what is left over. Each role goes to nodes
that the gang uses already, then to the node that holds all of its remaining ranks most tightly,
else to the one that holds most of them. ``capacity.py`` calls this with the nodes that may be used.

Where only GPUs are requested and each size divides the next larger one, this finds a place if there
is one. Otherwise it may miss one, as finding it is bin packing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from services.scheduler.domain.model.values import NO_RESOURCES, NodeResources, Part, Shape
from services.scheduler.domain.placement.bitsets import lowest_bits, positions
from services.scheduler.domain.placement.free_nodes import FreeNodes

# A position and the mask of the GPUs that a rank takes there; 0: a CPU-only rank.
Spot = tuple[int, int]


@dataclass(slots=True)
class _Used:
    """What the gang takes of one node so far."""

    mask: int = 0
    cpu_ranks: int = 0
    # Those that have a rank here.
    scopes: set[int] = field(default_factory=set[int])
    resources: NodeResources = NO_RESOURCES


@dataclass(slots=True)
class Packing:
    """One try to place a gang."""

    free_nodes: FreeNodes
    # The positions that may be used.
    within: int
    used: dict[int, _Used] = field(default_factory=dict[int, _Used])

    def free(self, position: int) -> int:
        """The units of a node that neither others nor the gang take."""
        own = self.used.get(position)
        return self.free_nodes.free(position) & ~(own.mask if own else 0)

    def take(self, position: int, mask: int, part: Part) -> None:
        """Count one rank of a role on a node."""
        resources = part.shape.resources
        own = self.used.setdefault(position, _Used())
        if part.scope is not None:
            own.scopes.add(part.scope)
        own.mask |= mask
        own.cpu_ranks += not mask
        own.resources = NodeResources(
            own.resources.cpus + resources.cpus,
            own.resources.memory_bytes + resources.memory_bytes,
        )

    def ranks_that_fit(self, position: int, part: Part) -> int:
        """How many ranks of a role, which is not one of whole nodes, a node holds now."""
        shape, index = part.shape, self.free_nodes.index
        own = self.used.get(position, _Used())
        if shape.gpus:
            # The one unit of a node without GPUs is none.
            has_gpus = index.nodes[position].gpus > 0
            count = self.free(position).bit_count() // shape.gpus if has_gpus else 0
        elif not index.nodes[position].gpus and own.mask:
            count = 0
        else:
            count = self.free_nodes.cpu_places(position) - own.cpu_ranks
        wanted = shape.resources
        for left, each, taken in (
            (self.free_nodes.cpus, wanted.cpus, own.resources.cpus),
            (self.free_nodes.memory, wanted.memory_bytes, own.resources.memory_bytes),
        ):
            there = left.at(position) if left is not None and each else None
            if there is not None:
                count = min(count, (there - taken) // each)
        if part.scope is not None:
            count = 0 if part.scope in own.scopes else min(count, 1)
        return max(0, count)


def pack(free_nodes: FreeNodes, shape: Shape, within: int) -> list[list[Spot]] | None:
    """Spots for all ranks, role by role in the shape's order; None if none are found."""
    kinds: list[int | None] = [None]
    if any(each.gpus is None for each in shape.each) and len(free_nodes.index.whole_sizes) > 1:
        # Whole nodes of the largest kind may leave too little for the smaller ranks.
        kinds += free_nodes.index.whole_sizes
    tries = (_pack(Packing(free_nodes, within), shape, kind) for kind in kinds)
    return next((found for found in tries if found is not None), None)


def _pack(packing: Packing, shape: Shape, kind: int | None) -> list[list[Spot]] | None:
    """``kind``: the number of GPUs that whole nodes have; None: any."""
    found: dict[int, list[Spot]] = {}
    for number in sorted(range(len(shape.parts)), key=lambda each: _order(shape.parts[each])):
        part = shape.parts[number]
        if part.shape.gpus is None:
            spots = _whole(packing, part, kind)
        else:
            spots = _below_whole(packing, part)
        if spots is None:
            return None
        found[number] = sorted(spots)
    return [found[number] for number in range(len(shape.parts))]


def _order(part: Part) -> tuple[bool, bool, int, float, int]:
    shape = part.shape
    return (
        part.auxiliary,
        shape.gpus is not None,
        -(shape.gpus or 0),
        -shape.cpus,
        -shape.memory_bytes,
    )


def _whole(packing: Packing, part: Part, kind: int | None) -> list[Spot] | None:
    """Whole nodes, all of one kind, the largest first unless it is given."""
    free_nodes, shape = packing.free_nodes, part.shape
    there = _suitable(packing, part)
    if kind is not None:
        there &= free_nodes.index.by_size[kind]
    for (nodes,) in free_nodes.ways(shape):
        spots: list[Spot] = []
        for position in positions(nodes & there):
            if position not in packing.used:
                spots.append((position, free_nodes.free(position)))
            if len(spots) == shape.nodes:
                for spot in spots:
                    packing.take(*spot, part)
                return spots
    return None


def _below_whole(packing: Packing, part: Part) -> list[Spot] | None:
    """Nodes that the gang uses already, then others."""
    shape = part.shape
    spots: list[Spot] = []
    there = _suitable(packing, part)
    for position in _candidates(packing, part, there, spots):
        for _ in range(min(packing.ranks_that_fit(position, part), shape.nodes - len(spots))):
            mask = lowest_bits(packing.free(position), shape.gpus) if shape.gpus else 0
            packing.take(position, mask, part)
            spots.append((position, mask))
        if len(spots) == shape.nodes:
            return spots
    return None


def _candidates(packing: Packing, part: Part, there: int, spots: list[Spot]) -> Iterator[int]:
    """The nodes for a role in the order in which they are filled; ``spots``: what is filled."""
    for position in list(packing.used):
        if there >> position & 1:
            yield position
    for position in packing.used:
        there &= ~(1 << position)
    shape = part.shape
    (sets,) = packing.free_nodes.ways(shape)
    if part.scope is not None:
        for each in sets:
            yield from positions(each & there)
        return
    # No node holds more of them.
    index = packing.free_nodes.index
    most = max(index.sizes) // shape.gpus if shape.gpus else max(index.cpu_ranks_max)
    # The nodes with the most free units first; those without a GPU in their own order.
    for each in sets[::-1] if shape.gpus else sets:
        for position in positions(each & there):
            wanted = shape.nodes - len(spots)
            tight = None
            if wanted <= most:
                tight = _tightest(packing, part, (one & there for one in sets), wanted)
            if tight is not None:
                yield tight
                return
            there &= ~(1 << position)
            yield position


def _tightest(packing: Packing, part: Part, sets: Iterable[int], wanted: int) -> int | None:
    """The first node that holds so many ranks of a role; the sets are in the order of fit."""
    shape, free_nodes = part.shape, packing.free_nodes
    needed = shape.resources
    for each in sets:
        there = each
        if free_nodes.cpus is not None and needed.cpus:
            there &= free_nodes.cpus.at_least(wanted * needed.cpus)
        if free_nodes.memory is not None and needed.memory_bytes:
            there &= free_nodes.memory.at_least(wanted * needed.memory_bytes)
        for position in positions(there):
            if packing.ranks_that_fit(position, part) >= wanted:
                return position
            if needed is NO_RESOURCES and shape.gpus:
                # All nodes of a set have the same number of free GPUs.
                break
    return None


def _suitable(packing: Packing, part: Part) -> int:
    """The nodes that may be used and that hold one rank of a role as others leave them."""
    suitable = packing.free_nodes.suitable(part.shape)
    return packing.within if suitable is None else packing.within & suitable

"""Where gangs fit: filters, then rankers, over sets of nodes by their free GPUs.

A gang is placed as a whole or not at all, each rank on a node of its own. Partly used nodes are
filled first, so that whole nodes stay whole for gangs that need them. CPU-only ranks take no GPU; a
node holds as many as it has CPUs. A node without GPUs counts as one unit: whole, or shared by
CPU-only ranks. The CPUs and memory of ranks add up; a node that does not report them limits
nothing. A gang of several nodes lies in the smallest domain of the network that holds it.

``Capacity`` is the only mutable structure that decisions change: the index keeps one up to date,
and ``decide`` works on copies. The cost of a pick follows the gang, not the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.rows import Node
from services.scheduler.domain.model.values import NO_RESOURCES, NodeResources, Shape
from services.scheduler.domain.placement.bitsets import (
    bit_range,
    lowest_bits,
    lowest_members,
    mask_of,
    positions,
    union,
)
from services.scheduler.domain.placement.free_nodes import FreeNodes
from services.scheduler.domain.placement.node_index import (
    NodeIndex,
    width,
)
from services.scheduler.domain.placement.packing import pack
from services.scheduler.domain.placement.slots import Share, Slot, shares_of
from services.scheduler.domain.placement.topology import (
    DOMAIN_LABELS,
    Area,
    Topology,
    areas,
    smallest_first,
)

Allowed: TypeAlias = Callable[[str], bool]

# Group and position.
_Location: TypeAlias = tuple[str, int]


class Capacity:
    """The free units of the offered nodes, changed by ``take`` and ``give``.

    ``levels`` names each group's topology: node labels from the largest domain to the smallest.
    Closed nodes are not offered, but may be later (``change``).
    """

    __slots__ = ("_locations", "_own", "groups", "locations", "nodes", "settings")

    def __init__(
        self,
        nodes: Iterable[Node],
        settings: PolicySettings,
        levels: Mapping[str, Sequence[str]] | None = None,
        closed: Container[str] = (),
    ) -> None:
        self.settings = settings
        members: dict[str, list[Node]] = {}
        for node in {str(node.id): node for node in nodes}.values():
            members.setdefault(node.group, []).append(node)
        labels = levels or {}
        self.groups = {
            group: FreeNodes.of(NodeIndex(own, settings, labels.get(group, DOMAIN_LABELS), closed))
            for group, own in members.items()
        }
        self._locations: dict[str, _Location] = {
            node_id: (group, position)
            for group, free_nodes in self.groups.items()
            for position, node_id in enumerate(free_nodes.index.ids)
        }
        # The offered nodes.
        self.nodes: dict[str, Node] = {
            str(node.id): node for own in members.values() for node in own if node.id not in closed
        }
        self.locations = {node_id: self._locations[node_id] for node_id in self.nodes}
        # Groups that no other capacity shares: the others are copied before a change.
        self._own = set(members)

    def copy(self) -> Capacity:
        """An independent copy; a group is copied when it changes first, here or there.

        Both may be changed at any time, and be copied in turn.
        """
        twin = Capacity.__new__(Capacity)
        twin.settings, twin._locations = self.settings, self._locations  # noqa: SLF001 - its own kind
        twin.nodes, twin.locations = self.nodes, self.locations
        twin.groups = self.groups.copy()
        twin._own = set()  # noqa: SLF001 - its own kind
        self._own.clear()
        return twin

    def change(self, node: Node, *twins: Capacity, closed: bool = False) -> None:
        """A node's state or amounts changed: what is usable of it is free now, here and in
        ``twins``.

        All other copies are worthless afterwards.
        """
        group, position = self._locations[node.id]
        copies = [each._owned(group) for each in (self, *twins)]  # noqa: SLF001 - its own kind
        if node.id in self.locations:
            for free_nodes in copies:
                free_nodes.close(position)
            del self.locations[node.id], self.nodes[node.id]
        copies[0].index.change(position, node, closed=closed)
        if not closed:
            for free_nodes in copies:
                free_nodes.open_again(position)
            self.locations[node.id], self.nodes[node.id] = (group, position), node

    def _owned(self, group: str) -> FreeNodes:
        if group not in self._own:
            self.groups[group] = self.groups[group].copy()
            self._own.add(group)
        return self.groups[group]

    @property
    def free(self) -> Mapping[str, int]:
        """The free units of each node, as a mask; a view."""
        return _Free(self.locations, self.groups)

    def take(self, slots: Iterable[Slot]) -> None:
        """Takes slots.

        What is not offered or not free is passed over; CPU and memory may become negative.
        """
        self._move(slots, give=False)

    def give(self, slots: Iterable[Slot]) -> None:
        """Gives back what ``take`` took; what is not offered or not usable stays so."""
        self._move(slots, give=True)

    def take_resources(self, slots: Iterable[Slot]) -> None:
        """Takes the slots' CPU and memory alone."""
        self._move(slots, give=False, units=False)

    def give_resources(self, slots: Iterable[Slot]) -> None:
        """Gives the slots' CPU and memory alone back."""
        self._move(slots, give=True, units=False)

    def _move(self, slots: Iterable[Slot], *, give: bool, units: bool = True) -> None:
        locations, masks = self.locations, dict[str, list[tuple[int, int]]]()
        amounts: dict[tuple[str, NodeResources], list[int]] = {}
        for node_id, mask, resources in slots:
            location = locations.get(node_id)
            if location is None:
                continue
            group, position = location
            if resources is not NO_RESOURCES:
                amounts.setdefault((group, resources), []).append(position)
            if not units:
                continue
            if mask:
                masks.setdefault(group, []).append((position, mask))
            else:
                self._owned(group).add_ranks(position, -1 if give else 1)
        for (group, resources), positions_ in amounts.items():
            self._owned(group).add_resources(positions_, resources, 1 if give else -1)
        for group, own in masks.items():
            self._owned(group).move(own, give=give)

    def offers(self, node_id: str, resources: NodeResources) -> bool:
        """True if so much CPU and memory is left on a node."""
        location = self.locations.get(node_id)
        return location is not None and self.groups[location[0]].offers(location[1], resources)

    def covers(self, slots: Iterable[Slot]) -> bool:
        """True if all of these slots are free now, and their nodes have the resources left."""
        return all(self._covers(share) for share in shares_of(slots))

    def _covers(self, share: Share) -> bool:
        location = self.locations.get(share.node_id)
        if location is None:
            return False
        free_nodes, position = self.groups[location[0]], location[1]
        if not free_nodes.offers(position, share.resources):
            return False
        if share.cpu_ranks > free_nodes.cpu_places(position):
            return False
        if not share.mask:
            return True
        # A whole node without GPUs is shared by no CPU-only rank.
        whole = free_nodes.index.nodes[position].gpus > 0 or free_nodes.has_no_cpu_rank(position)
        return whole and free_nodes.free(position) & share.mask == share.mask

    def units(self, group: str) -> float:
        """Node equivalents of a group that may be used: a node counts by its usable GPUs."""
        free_nodes = self.groups.get(group)
        return free_nodes.index.units if free_nodes else 0.0

    def free_units(self, group: str) -> float:
        """Node equivalents that are free: whole nodes count 1, partly free ones their share."""
        free_nodes = self.groups.get(group)
        return free_nodes.units() if free_nodes else 0.0

    def pick(
        self,
        shape: Shape,
        allowed: Allowed | None = None,
        *,
        topology: Topology | None = None,
    ) -> tuple[Slot, ...] | None:
        """Slots for a whole gang in the order of its ranks, or None.

        ``allowed`` narrows the nodes. With ``topology`` a gang of several nodes lies in the
        smallest domain that holds it. Ranks follow the nodes' domains (largest first), then ids.
        """
        free_nodes = self.groups.get(shape.group)
        if free_nodes is None or not free_nodes.may_fit(shape):
            return None
        if shape.parts:
            return _packed(free_nodes, shape, allowed, topology)
        suitable = free_nodes.suitable(shape)
        for way in free_nodes.ways(shape):
            sets = way if suitable is None else [each & suitable for each in way]
            if allowed is not None:
                sets = [_narrowed(free_nodes, each, allowed) for each in sets]
            found = _found(free_nodes, sets, shape, topology)
            if found is not None:
                resources = shape.resources
                return tuple(
                    _slot(free_nodes, position, shape, resources) for position in sorted(found)
                )
        return None

    def fits(self, shape: Shape, *, topology: Topology | None = None) -> bool:
        """True if ``pick`` would find a place; found by counting."""
        free_nodes = self.groups.get(shape.group)
        if free_nodes is None or not free_nodes.may_fit(shape):
            return False
        if shape.parts or (topology is not None and not topology.cross_zone_allowed):
            return self.pick(shape, topology=topology) is not None
        suitable = free_nodes.suitable(shape)
        if suitable is None and shape.gpus:
            return True
        for way in free_nodes.ways(shape):
            free = union(way)
            if (free if suitable is None else free & suitable).bit_count() >= shape.nodes:
                return True
        return False

    def whole_sizes(self, group: str) -> list[int]:
        """GPU counts that a whole-node gang may get; nodes without GPUs only where none has any."""
        free_nodes = self.groups.get(group)
        return list(free_nodes.index.whole_sizes) if free_nodes else []

    def suitable(self, shape: Shape) -> int | None:
        """The nodes whose labels, taints and amounts allow a rank; None: all."""
        free_nodes = self.groups.get(shape.group)
        if free_nodes is None:
            return None
        found = 0
        for each in shape.each:
            suitable = free_nodes.index.suitable(each)
            if suitable is None:
                return None
            found |= suitable
        return found

    def eligible(self, shape: Shape) -> frozenset[str]:
        """What this shape competes for: the nodes that could hold one rank if they were empty.

        CPU-only ranks and GPU ranks do not compete for a GPU node; the name distinguishes them.
        """
        free_nodes = self.groups.get(shape.group)
        if free_nodes is None:
            return frozenset()
        if shape.parts:
            return frozenset[str]().union(*map(self.eligible, shape.each))
        index = free_nodes.index
        suitable = index.suitable(shape)
        found: set[str] = set()
        for position, node in enumerate(index.nodes):
            if index.ids[position] not in self.locations or not (
                suitable is None or suitable >> position & 1
            ):
                continue
            if shape.gpus is None and node.gpus not in index.whole_sizes:
                continue
            wanted = width(node) if shape.gpus is None else shape.gpus
            if index.usable[position].bit_count() >= wanted and node.gpus >= (shape.gpus or 0):
                found.add(contention_key(index.ids[position], node.gpus, shape))
        return frozenset(found)


class _Free(Mapping[str, int]):
    """Free units by node."""

    def __init__(self, locations: Mapping[str, _Location], groups: Mapping[str, FreeNodes]) -> None:
        self.locations = locations
        self.groups = groups

    def __getitem__(self, node_id: str) -> int:
        group, position = self.locations[node_id]
        return self.groups[group].free(position)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self.locations

    def __iter__(self) -> Iterator[str]:
        return iter(self.locations)

    def __len__(self) -> int:
        return len(self.locations)


def _narrowed(free_nodes: FreeNodes, free: int, allowed: Allowed) -> int:
    return mask_of(
        position for position in positions(free) if allowed(free_nodes.index.ids[position])
    )


def _found(
    free_nodes: FreeNodes, sets: list[int], shape: Shape, topology: Topology | None
) -> list[int] | None:
    """Positions for all ranks of a gang out of these sets, the first ones first."""
    domains = free_nodes.index.domains
    if topology is None or domains is None or shape.nodes == 1:
        return _taken(sets, shape.nodes)
    free = union(sets)
    chosen = areas(domains, free, shape.nodes, cross_zone_allowed=topology.cross_zone_allowed)
    if chosen is None:
        return None
    return [position for area in chosen for position in _from_area(sets, area)]


def _from_area(sets: list[int], area: Area) -> list[int]:
    found = _taken([each & area.positions for each in sets], area.wanted)
    assert found is not None, "an area has what is wanted of it"
    return found


def _taken(sets: Iterable[int], wanted: int) -> list[int] | None:
    found: list[int] = []
    for each in sets:
        found += lowest_members(each, wanted - len(found))
        if len(found) == wanted:
            return found
    return None


def _slot(free_nodes: FreeNodes, position: int, shape: Shape, resources: NodeResources) -> Slot:
    if shape.gpus == 0:
        return Slot(free_nodes.index.ids[position], 0, resources)
    free = free_nodes.free(position)
    return Slot(
        free_nodes.index.ids[position],
        free if shape.gpus is None else lowest_bits(free, shape.gpus),
        resources,
    )


def _could_pack(index: NodeIndex, shape: Shape, there: int) -> bool:
    """True if these nodes, empty, could hold a gang; domains are not compared."""
    return pack(FreeNodes.of(index), shape, there & index.open) is not None


def _packed(
    free_nodes: FreeNodes, shape: Shape, allowed: Allowed | None, topology: Topology | None
) -> tuple[Slot, ...] | None:
    """Slots for a gang whose ranks differ or share nodes, in the smallest domain that holds it."""
    index = free_nodes.index
    within = index.open
    if shape.avoids:
        within &= ~index.avoided(shape, lambda kept: _could_pack(index, shape, kept))
    if allowed is not None:
        within = _narrowed(free_nodes, within, allowed)
    ranges = [(0, len(index.nodes))]
    if topology is not None and index.domains is not None:
        ranges = smallest_first(index.domains, cross_zone_allowed=topology.cross_zone_allowed)
    for start, end in ranges:
        spots = pack(free_nodes, shape, within & bit_range(start, end))
        if spots is not None:
            sizes = [each.resources for each in shape.each]
            return tuple(
                Slot(index.ids[position], mask, resources)
                for own, resources in zip(spots, sizes, strict=True)
                for position, mask in own
            )
    return None


def contention_key(node_id: str, gpus: int, shape: Shape) -> str:
    """What ranks that compete for a node of so many GPUs have in common."""
    return f"{node_id}/cpu" if gpus and shape.gpus == 0 else node_id

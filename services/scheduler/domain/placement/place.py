"""Where gangs fit: filters, then rankers, over sets of nodes by their free GPUs.

A gang goes all or nothing, each rank on a node of its own. Partly used nodes are filled first, so
that whole nodes stay whole for those who need them. CPU-only ranks take no GPU; a node holds as
many as it has CPUs. A node without GPUs counts as one unit: whole, or shared by CPU-only ranks.
What ranks ask of a node's CPUs and memory is added up; a node that does not report them limits
nothing (``amounts.py``).
A gang of several nodes lies in the smallest domain of the network that holds it (``topology.py``).

``Capacity`` is the one mutable structure of the domain: ``snapshot.py`` keeps one up to date,
``decide`` works on copies. Cost of a pick follows the gang, not the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from libs.contracts.messages import Placement, TaskSpec
from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.rows import Node, Task
from services.scheduler.domain.model.values import NO_RESOURCES, NodeResources, Shape
from services.scheduler.domain.placement.fleet import Fleet, cpu_ranks_max, usable_mask, width
from services.scheduler.domain.placement.masks import (
    first,
    gpus_of,
    joined,
    lowest,
    mask_of,
    places,
)
from services.scheduler.domain.placement.stock import Stock
from services.scheduler.domain.placement.topology import LEVELS, Area, Topology, areas

# What others reckon with, too, is to be had here.
__all__ = (
    "Capacity",
    "Slot",
    "Topology",
    "contested",
    "cpu_ranks_max",
    "placements_of",
    "slots_of",
    "usable_mask",
    "width",
)

Allowed: TypeAlias = Callable[[str], bool]

# Group and place.
_Spot: TypeAlias = tuple[str, int]


class Slot(NamedTuple):
    """What one rank takes of one node: a mask of GPUs, or (mask 0) a CPU-only rank's place."""

    node_id: str
    mask: int


def slots_of(task: Task) -> tuple[Slot, ...]:
    """What a task's live run takes, or what is promised to it while it waits.

    A whole node without GPUs shows no GPU but takes its unit.
    """
    cpu_only = task.spec.gpus_per_node == 0
    return tuple(
        Slot(placement.node_id, 0 if cpu_only else mask_of(placement.gpus) or 1)
        for placement in task.placements or task.promised
    )


class Capacity:
    """What is free on the offered nodes, changed by ``take`` and ``give``.

    ``levels`` names each group's topology: node labels from the largest domain to the smallest.
    Nodes that are ``shut`` are not offered, but may be later: ``change``.
    """

    __slots__ = ("_own", "_places", "nodes", "settings", "spots", "stocks")

    def __init__(
        self,
        nodes: Iterable[Node],
        settings: PolicySettings,
        levels: Mapping[str, Sequence[str]] | None = None,
        shut: Container[str] = (),
    ) -> None:
        self.settings = settings
        groups: dict[str, list[Node]] = {}
        for node in {str(node.id): node for node in nodes}.values():
            groups.setdefault(node.group, []).append(node)
        named = levels or {}
        self.stocks = {
            group: Stock.of(Fleet(members, settings, named.get(group, LEVELS), shut))
            for group, members in groups.items()
        }
        self._places: dict[str, _Spot] = {
            node_id: (group, place)
            for group, stock in self.stocks.items()
            for place, node_id in enumerate(stock.fleet.ids)
        }
        # Those that are offered.
        self.nodes: dict[str, Node] = {
            str(node.id): node for own in groups.values() for node in own if node.id not in shut
        }
        self.spots = {node_id: self._places[node_id] for node_id in self.nodes}
        # Groups whose stock no other capacity shares: the others' are copied before a change.
        self._own = set(groups)

    def copy(self) -> Capacity:
        """An independent copy; a group is copied when it changes first, here or there.

        Either may be changed at any time, and be copied in its turn.
        """
        twin = Capacity.__new__(Capacity)
        twin.settings, twin._places = self.settings, self._places  # noqa: SLF001 - its own kind
        twin.nodes, twin.spots = self.nodes, self.spots
        twin.stocks = self.stocks.copy()
        twin._own = set()  # noqa: SLF001 - its own kind
        self._own.clear()
        return twin

    def change(self, node: Node, *twins: Capacity, shut: bool = False) -> None:
        """A node's state or amounts changed: what is usable of it is free now, here and in copies.

        All copies that are not named are worthless afterwards.
        """
        group, place = self._places[node.id]
        stocks = [each._owned(group) for each in (self, *twins)]  # noqa: SLF001 - its own kind
        if node.id in self.spots:
            for stock in stocks:
                stock.shut(place)
            del self.spots[node.id], self.nodes[node.id]
        stocks[0].fleet.change(place, node, shut=shut)
        if not shut:
            for stock in stocks:
                stock.reopen(place)
            self.spots[node.id], self.nodes[node.id] = (group, place), node

    def _owned(self, group: str) -> Stock:
        if group not in self._own:
            self.stocks[group] = self.stocks[group].copy()
            self._own.add(group)
        return self.stocks[group]

    @property
    def free(self) -> Mapping[str, int]:
        """The free units of each node, as a mask; a view."""
        return _Free(self.spots, self.stocks)

    def take(self, slots: Iterable[Slot], each: NodeResources = NO_RESOURCES) -> None:
        """Take slots, and of each one's node what ``resources`` rank asks for.

        What is not offered or not free is passed over; CPU and memory may become less than none.
        """
        if each is not NO_RESOURCES:
            slots = tuple(slots)
            self.take_amounts(slots, each)
        self._move(slots, give=False)

    def give(self, slots: Iterable[Slot], each: NodeResources = NO_RESOURCES) -> None:
        """Give back what ``take`` took; what is not offered or not usable stays so."""
        if each is not NO_RESOURCES:
            slots = tuple(slots)
            self.give_amounts(slots, each)
        self._move(slots, give=True)

    def take_amounts(self, slots: Iterable[Slot], each: NodeResources) -> None:
        """Of each slot's node take the CPU and memory alone; the slots are on different nodes."""
        self._move_amounts(slots, each, -1)

    def give_amounts(self, slots: Iterable[Slot], each: NodeResources) -> None:
        """Give the CPU and memory alone back; the slots are on different nodes."""
        self._move_amounts(slots, each, 1)

    def _move_amounts(self, slots: Iterable[Slot], each: NodeResources, times: int) -> None:
        if each == NO_RESOURCES:
            return
        spots, there = self.spots, dict[str, list[int]]()
        for node_id, _ in slots:
            spot = spots.get(node_id)
            if spot is not None:
                there.setdefault(spot[0], []).append(spot[1])
        for group, own in there.items():
            self._owned(group).add_amounts(own, each, times)

    def _move(self, slots: Iterable[Slot], *, give: bool) -> None:
        spots, masks = self.spots, dict[str, list[tuple[int, int]]]()
        for node_id, mask in slots:
            spot = spots.get(node_id)
            if spot is None:
                continue
            if mask:
                masks.setdefault(spot[0], []).append((spot[1], mask))
            else:
                self._owned(spot[0]).add_ranks(spot[1], -1 if give else 1)
        for group, units in masks.items():
            self._owned(group).move(units, give=give)

    def offers(self, node_id: str, each: NodeResources) -> bool:
        """True if so much CPU and memory is left on a node."""
        spot = self.spots.get(node_id)
        return spot is not None and self.stocks[spot[0]].offers(spot[1], each)

    def covers(self, slot: Slot, each: NodeResources = NO_RESOURCES) -> bool:
        """True if this slot is free now, and on its node what a rank asks for beside."""
        spot = self.spots.get(slot.node_id)
        if spot is None:
            return False
        stock, place = self.stocks[spot[0]], spot[1]
        if not stock.offers(place, each):
            return False
        if not slot.mask:
            return stock.holds_cpu_rank(place)
        # A whole node without GPUs is shared by no CPU-only rank.
        whole = stock.fleet.nodes[place].gpus > 0 or stock.unshared(place)
        return whole and stock.free(place) & slot.mask == slot.mask

    def units(self, group: str) -> float:
        """Node equivalents of a group that may be used: a node counts by its usable GPUs."""
        stock = self.stocks.get(group)
        return stock.fleet.units if stock else 0.0

    def free_units(self, group: str) -> float:
        """Node equivalents that are free: whole nodes count 1, partly free ones their share."""
        stock = self.stocks.get(group)
        return stock.units() if stock else 0.0

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
        stock = self.stocks.get(shape.group)
        if stock is None or not stock.possible(shape):
            return None
        suiting = stock.suiting(shape)
        for way in stock.ways(shape):
            sets = way if suiting is None else [each & suiting for each in way]
            if allowed is not None:
                sets = [_narrowed(stock, each, allowed) for each in sets]
            found = _found(stock, sets, shape, topology)
            if found is not None:
                return tuple(_slot(stock, place, shape) for place in sorted(found))
        return None

    def fits(self, shape: Shape, *, topology: Topology | None = None) -> bool:
        """True if ``pick`` would find a place; found by counting."""
        stock = self.stocks.get(shape.group)
        if stock is None or not stock.possible(shape):
            return False
        if topology is not None and not topology.cross_zone_allowed:
            return self.pick(shape, topology=topology) is not None
        suiting = stock.suiting(shape)
        if suiting is None and shape.gpus:
            return True
        for way in stock.ways(shape):
            free = joined(way)
            if (free if suiting is None else free & suiting).bit_count() >= shape.nodes:
                return True
        return False

    def whole_sizes(self, group: str) -> list[int]:
        """GPU counts a whole-node gang may get; nodes without GPUs only where none has any."""
        stock = self.stocks.get(group)
        return list(stock.fleet.whole_sizes) if stock else []

    def suiting(self, shape: Shape) -> int | None:
        """The set of the nodes whose labels, taints and amounts allow a rank; None: all."""
        stock = self.stocks.get(shape.group)
        return None if stock is None else stock.fleet.suiting(shape)

    def eligible(self, shape: Shape) -> frozenset[str]:
        """What this shape competes for: nodes that could hold one rank if they were empty.

        CPU-only ranks and GPU ranks do not compete for a GPU node; the name tells them apart.
        """
        stock = self.stocks.get(shape.group)
        if stock is None:
            return frozenset()
        fleet = stock.fleet
        suiting = fleet.suiting(shape)
        found: set[str] = set()
        for place, node in enumerate(fleet.nodes):
            if fleet.ids[place] not in self.spots or not (suiting is None or suiting >> place & 1):
                continue
            if shape.gpus is None and node.gpus not in fleet.whole_sizes:
                continue
            wanted = width(node) if shape.gpus is None else shape.gpus
            if fleet.usable[place].bit_count() >= wanted and node.gpus >= (shape.gpus or 0):
                found.add(contested(fleet.ids[place], node.gpus, shape))
        return frozenset(found)


class _Free(Mapping[str, int]):
    """Free units by node."""

    def __init__(self, spots: Mapping[str, _Spot], stocks: Mapping[str, Stock]) -> None:
        self.spots = spots
        self.stocks = stocks

    def __getitem__(self, node_id: str) -> int:
        group, place = self.spots[node_id]
        return self.stocks[group].free(place)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self.spots

    def __iter__(self) -> Iterator[str]:
        return iter(self.spots)

    def __len__(self) -> int:
        return len(self.spots)


def _narrowed(stock: Stock, free: int, allowed: Allowed) -> int:
    return mask_of(place for place in places(free) if allowed(stock.fleet.ids[place]))


def _found(
    stock: Stock, sets: list[int], shape: Shape, topology: Topology | None
) -> list[int] | None:
    """Places for all ranks of a gang out of these sets, the first ones first."""
    domains = stock.fleet.domains
    if topology is None or domains is None or shape.nodes == 1:
        return _taken(sets, shape.nodes)
    free = joined(sets)
    chosen = areas(domains, free, shape.nodes, cross_zone_allowed=topology.cross_zone_allowed)
    if chosen is None:
        return None
    return [place for area in chosen for place in _from_area(sets, area)]


def _from_area(sets: list[int], area: Area) -> list[int]:
    found = _taken([each & area.places for each in sets], area.wanted)
    assert found is not None, "an area has what is wanted of it"
    return found


def _taken(sets: Iterable[int], wanted: int) -> list[int] | None:
    found: list[int] = []
    for each in sets:
        found += first(each, wanted - len(found))
        if len(found) == wanted:
            return found
    return None


def _slot(stock: Stock, place: int, shape: Shape) -> Slot:
    if shape.gpus == 0:
        return Slot(stock.fleet.ids[place], 0)
    free = stock.free(place)
    return Slot(stock.fleet.ids[place], free if shape.gpus is None else lowest(free, shape.gpus))


def contested(node_id: str, gpus: int, shape: Shape) -> str:
    """The name of what a rank of this shape uses of a node with so many GPUs."""
    return f"{node_id}/cpu" if gpus and shape.gpus == 0 else node_id


PLACEMENTS_KEPT_MAX = 131_072


@lru_cache(maxsize=PLACEMENTS_KEPT_MAX)
def _placement(rank: int, role: str, index: int, node_id: str, mask: int) -> Placement:
    """Equal placements are one object: the same ranks come to the same nodes again and again."""
    return Placement(rank=rank, role=role, role_index=index, node_id=node_id, gpus=gpus_of(mask))


def placements_of(
    slots: tuple[Slot, ...], spec: TaskSpec, nodes: Mapping[str, Node]
) -> tuple[Placement, ...]:
    """Give the slots to the ranks in their order: roles in theirs, replicas in theirs."""
    replicas = [(role.name, index) for role in spec.roles for index in range(role.replicas)]
    assert len(replicas) == len(slots), "submit makes nodes the sum of the replicas"
    return tuple(
        _placement(rank, role, index, node_id, mask if nodes[node_id].gpus else 0)
        for rank, ((role, index), (node_id, mask)) in enumerate(zip(replicas, slots, strict=True))
    )

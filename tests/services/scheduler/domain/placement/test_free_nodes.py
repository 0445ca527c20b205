"""Placement against brute force over plain dictionaries, through copies of copies."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.rows import Node
from services.scheduler.domain.model.values import NodeResources, Shape
from services.scheduler.domain.placement.capacity import Capacity
from services.scheduler.domain.placement.node_index import (
    could_hold_rank,
    cpu_ranks_max,
    usable_mask,
    width,
)
from services.scheduler.domain.placement.slots import Slot
from tests.kit.builders import a_node

SETTINGS = PolicySettings(cpu_ranks_per_node=2)


@dataclass
class Slow:
    """The obviously right way: every query evaluates every node."""

    nodes: dict[str, Node]
    free: dict[str, int]
    ranks: dict[str, int]
    # Thousandths of a CPU and bytes that were taken.
    cpus: dict[str, int]
    memory: dict[str, int]

    @staticmethod
    def of(nodes: list[Node]) -> Slow:
        by_id = {str(node.id): node for node in nodes}
        empty = [dict.fromkeys(by_id, 0) for _ in range(3)]
        return Slow(by_id, {n: usable_mask(by_id[n]) for n in by_id}, *empty)

    def copy(self) -> Slow:
        counted = dict(self.ranks), dict(self.cpus), dict(self.memory)
        return Slow(self.nodes, dict(self.free), *counted)

    def move(self, slot: Slot, sign: int, each: NodeResources) -> None:
        self.cpus[slot.node_id] += sign * each.cpus
        self.memory[slot.node_id] += sign * each.memory_bytes
        if not slot.mask:
            self.ranks[slot.node_id] += sign
        elif sign > 0:
            self.free[slot.node_id] &= ~slot.mask
        else:
            self.free[slot.node_id] |= slot.mask & usable_mask(self.nodes[slot.node_id])

    def suits(self, node: Node, shape: Shape, size: int | None) -> bool:
        """True if one rank of the shape may lie here now; a whole-node gang has one size."""
        free, ranks = self.free[node.id], self.ranks[node.id]
        if node.group != shape.group or not could_hold_rank(node, shape):
            return False
        cpus = self.cpus[node.id] / 1000 + shape.cpus
        if node.cpus > 0 and shape.cpus > 0 and cpus > node.cpus + 1e-9:
            return False
        memory = self.memory[node.id] + shape.memory_bytes
        if node.memory_bytes > 0 and shape.memory_bytes > 0 and memory > node.memory_bytes:
            return False
        if shape.gpus is None:
            idle = node.gpus > 0 or ranks == 0
            return node.gpus == size and free.bit_count() == width(node) and idle
        if shape.gpus == 0:
            return ranks < cpu_ranks_max(node, SETTINGS) and (node.gpus > 0 or free == 1)
        return node.gpus >= shape.gpus and free.bit_count() >= shape.gpus

    def fits(self, shape: Shape) -> bool:
        group = [node for node in self.nodes.values() if node.group == shape.group]
        sizes = {node.gpus for node in group}
        tried = (sizes - {0} or sizes) if shape.gpus is None else {None}
        return any(
            sum(self.suits(node, shape, size) for node in group) >= shape.nodes for size in tried
        )

    def units(self, group: str) -> float:
        own = [node for node in self.nodes.values() if node.group == group]
        free = sum(self.free[node.id].bit_count() / width(node) for node in own)
        plain = [node for node in own if not node.gpus]
        return free - sum(self.ranks[n.id] / cpu_ranks_max(n, SETTINGS) for n in plain)


@st.composite
def inventories(draw: st.DrawFn) -> list[Node]:
    nodes: list[Node] = []
    for index in range(draw(st.integers(1, 8))):
        gpus = draw(st.sampled_from([0, 2, 4, 4]))
        node = a_node(
            f"n{index}",
            gpus=gpus,
            group=draw(st.sampled_from(["default", "default", "dev"])),
            cpus=draw(st.sampled_from([0.0, 0.0, 1.0, 4.0])),
            memory_bytes=draw(st.sampled_from([0, 10, 40])),
            unusable=(0,) if gpus and draw(st.integers(0, 4)) == 0 else (),
        )
        labels = tuple(
            (key, draw(st.sampled_from(["a", "b"])))
            for key in ("disk", "zone")
            if draw(st.booleans())
        )
        taints = draw(st.sampled_from([(), (), ("odd",), ("odd", "team=vision")]))
        nodes.append(replace(node, labels=labels, taints=taints))
    return nodes


shapes = st.builds(
    Shape,
    group=st.sampled_from(["default", "default", "dev"]),
    nodes=st.integers(1, 3),
    gpus=st.sampled_from([None, 0, 1, 2, 3, 4]),
    cpus=st.sampled_from([0.0, 0.0, 0.3, 2.0]),
    memory_bytes=st.sampled_from([0, 0, 3, 20]),
    selector=st.sampled_from([(), (), (("disk", "a"),), (("disk", "a"), ("zone", "b"))]),
    tolerations=st.sampled_from([(), ("odd",), ("odd", "team"), ("odd", "team=vision")]),
    avoids=st.just(()),
    parts=st.just(()),
)

# Pick and take; give back what was taken; copy; each on one of the capacities there are.
steps = st.lists(
    st.tuples(st.sampled_from(["pick", "pick", "give", "copy"]), st.integers(0, 99), shapes),
    max_size=20,
)


def same(fast: Capacity, slow: Slow, shape: Shape) -> None:
    assert dict(fast.free) == slow.free
    for group in ("default", "dev"):
        assert fast.free_units(group) == pytest.approx(slow.units(group))
    assert fast.fits(shape) == slow.fits(shape)
    assert (fast.pick(shape) is not None) == slow.fits(shape)


def picked(fast: Capacity, slow: Slow, shape: Shape) -> tuple[Slot, ...]:
    """What the fast way picks, with every constraint evaluated again."""
    slots = fast.pick(shape) or ()
    assert len({slot.node_id for slot in slots}) == len(slots) == (shape.nodes if slots else 0)
    sizes = {slow.nodes[slot.node_id].gpus for slot in slots}
    assert shape.gpus is not None or len(sizes) <= 1
    for slot in slots:
        node = slow.nodes[slot.node_id]
        assert slow.suits(node, shape, node.gpus)
        assert fast.covers([slot])
        assert slot.resources == shape.resources
        assert slot.mask & ~slow.free[slot.node_id] == 0
        wanted = width(node) if shape.gpus is None else shape.gpus
        assert slot.mask.bit_count() == wanted
    return slots


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(inventories(), steps)
def test_placement_is_what_brute_force_finds(
    nodes: list[Node], todo: list[tuple[str, int, Shape]]
) -> None:
    pairs = [(Capacity(nodes, SETTINGS), Slow.of(nodes), list[Slot]())]
    for step, number, shape in todo:
        fast, slow, taken = pairs[number % len(pairs)]
        if step == "copy":
            pairs.append((fast.copy(), slow.copy(), list(taken)))
        elif step == "pick":
            slots = picked(fast, slow, shape)
            fast.take(slots)
            taken += slots
            for slot in slots:
                slow.move(slot, 1, shape.resources)
        elif taken:
            slot = taken.pop(number % len(taken))
            fast.give([slot])
            slow.move(slot, -1, slot.resources)
        for fast, slow, _ in pairs:
            same(fast, slow, shape)


@given(inventories(), shapes)
def test_a_shape_competes_for_the_nodes_that_could_hold_it_alone(
    nodes: list[Node], shape: Shape
) -> None:
    capacity = Capacity(nodes, SETTINGS)
    whole = capacity.whole_sizes(shape.group)
    slow = Slow.of(nodes)
    expected = {
        f"{node.id}/cpu" if node.gpus and shape.gpus == 0 else str(node.id)
        for node in nodes
        if (shape.gpus is not None or node.gpus in whole) and slow.suits(node, shape, node.gpus)
    }
    assert capacity.eligible(shape) == expected
    assert capacity.units(shape.group) == pytest.approx(slow.units(shape.group))


@given(inventories(), shapes)
def test_only_allowed_nodes_are_picked(nodes: list[Node], shape: Shape) -> None:
    odd = [node for node in nodes if int(node.id[1:]) % 2]
    every, alone = Capacity(nodes, SETTINGS), Capacity(odd, SETTINGS)
    narrowed = every.pick(shape, lambda node_id: int(node_id[1:]) % 2 == 1)
    if every.whole_sizes(shape.group) == alone.whole_sizes(shape.group):
        assert (narrowed is not None) == alone.fits(shape)
    assert narrowed is None or all(int(slot.node_id[1:]) % 2 for slot in narrowed)

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.messages import Role
from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.rows import Node
from services.scheduler.domain.model.values import NodeResources, Shape
from services.scheduler.domain.placement.bitsets import gpus_of, mask_of
from services.scheduler.domain.placement.capacity import Capacity
from services.scheduler.domain.placement.node_index import usable_mask
from services.scheduler.domain.placement.slots import Slot, placements_of, slots_of
from tests.kit.builders import a_node, a_spec, a_task, running, some_nodes


def a_shape(nodes: int = 1, gpus: int | None = None, **more: object) -> Shape:
    values: dict[str, object] = {"group": "default", "cpus": 0.0, "memory_bytes": 0, **more}
    return Shape(nodes=nodes, gpus=gpus, **values)  # type: ignore[arg-type]


def a_capacity(*nodes: Node) -> Capacity:
    return Capacity(nodes, PolicySettings())


def test_partly_used_nodes_are_filled_first() -> None:
    capacity = a_capacity(*some_nodes(3))
    capacity.take([Slot("n1", mask_of({0, 1, 2, 3, 4}))])
    assert capacity.pick(a_shape(gpus=2)) == (Slot("n1", mask_of({5, 6})),)
    assert capacity.pick(a_shape(gpus=4)) == (Slot("n0", mask_of({0, 1, 2, 3})),)


def test_each_rank_has_a_node_of_its_own() -> None:
    capacity = a_capacity(*some_nodes(2))
    assert capacity.pick(a_shape(nodes=3, gpus=1)) is None
    slots = capacity.pick(a_shape(nodes=2, gpus=1))
    assert slots is not None
    assert [slot.node_id for slot in slots] == ["n0", "n1"]


def test_a_gang_gets_all_or_nothing() -> None:
    capacity = a_capacity(*some_nodes(3))
    capacity.take([Slot("n2", 1)])
    assert capacity.pick(a_shape(nodes=3)) is None
    assert capacity.pick(a_shape(nodes=2)) == (Slot("n0", 255), Slot("n1", 255))


def test_whole_nodes_have_all_their_gpus_and_one_size() -> None:
    mixed = a_capacity(
        a_node("a", gpus=4), a_node("b", gpus=8), a_node("c", gpus=4), a_node("d", gpus=0)
    )
    assert mixed.pick(a_shape()) == (Slot("b", 255),)
    assert mixed.pick(a_shape(nodes=2)) == (Slot("a", 15), Slot("c", 15))
    assert mixed.pick(a_shape(nodes=3)) is None
    sick = a_capacity(a_node("a", gpus=4, unusable=(1,)))
    assert sick.pick(a_shape()) is None
    assert sick.pick(a_shape(gpus=3)) == (Slot("a", mask_of({0, 2, 3})),)


def test_a_node_without_gpus_is_whole_or_shared() -> None:
    capacity = a_capacity(a_node("a", gpus=0, cpus=2.0))
    assert capacity.pick(a_shape()) == (Slot("a", 1),)
    capacity.take([Slot("a", 0)])
    assert capacity.pick(a_shape()) is None
    capacity.take([Slot("a", 0)])
    assert capacity.pick(a_shape(gpus=0)) is None, "two CPUs hold two ranks"
    capacity.give([Slot("a", 0), Slot("a", 0)])
    capacity.take([Slot("a", 1)])
    assert capacity.pick(a_shape(gpus=0)) is None


def test_cpu_only_ranks_take_no_gpu() -> None:
    capacity = a_capacity(a_node("a", gpus=2, cpus=4.0))
    capacity.take([Slot("a", 0)])
    assert capacity.pick(a_shape()) == (Slot("a", 3),)


def test_groups_and_limits_of_nodes_are_filters() -> None:
    capacity = a_capacity(
        a_node("a", group="dev"), a_node("b", cpus=4, memory_bytes=10), a_node("c", cpus=16)
    )
    assert capacity.pick(a_shape(group="dev")) == (Slot("a", 255),)
    assert capacity.pick(a_shape(cpus=8.0)) == (Slot("c", 255, NodeResources(cpus=8000)),)
    assert capacity.pick(a_shape(memory_bytes=11)) == (
        Slot("c", 255, NodeResources(memory_bytes=11)),
    )
    assert capacity.pick(a_shape(group="nowhere")) is None


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d"]), st.integers(0, 15)), max_size=6),
    st.integers(1, 4),
    st.sampled_from([None, 0, 1, 2, 4]),
)
def test_fits_returns_whether_there_is_a_pick(
    taken: list[tuple[str, int]], nodes: int, gpus: int | None
) -> None:
    capacity = a_capacity(
        a_node("a", gpus=4), a_node("b", gpus=2), a_node("c", gpus=4, cpus=1), a_node("d", gpus=0)
    )
    capacity.take(Slot(node_id, mask) for node_id, mask in taken)
    shape = a_shape(nodes=nodes, gpus=gpus)
    assert capacity.fits(shape) == (capacity.pick(shape) is not None)


@given(st.lists(st.tuples(st.sampled_from(["n0", "n1", "n2"]), st.integers(1, 255)), max_size=12))
def test_taking_and_giving_back_leaves_no_trace(moves: list[tuple[str, int]]) -> None:
    nodes = [a_node("n0"), a_node("n1", unusable=(3,)), a_node("n2")]
    capacity, fresh = a_capacity(*nodes), a_capacity(*nodes)
    taken: list[Slot] = []
    for node_id, mask in moves:
        slot = Slot(node_id, mask & capacity.free[node_id])
        if slot.mask:
            capacity.take([slot])
            taken.append(slot)
    twin = capacity.copy()
    for node in nodes:
        held = mask_of(g for slot in taken if slot.node_id == node.id for g in gpus_of(slot.mask))
        assert capacity.free[node.id] == usable_mask(node) & ~held
    capacity.give(taken)
    assert capacity.free == fresh.free
    assert capacity.free_units("default") == fresh.free_units("default")
    if taken:
        assert twin.free != fresh.free, "a copy is independent"


def test_a_whole_small_node_stays_whole_while_a_partly_used_large_one_fits() -> None:
    capacity = a_capacity(a_node("a", gpus=2), a_node("b", gpus=8))
    capacity.take([Slot("b", mask_of({0}))])
    assert capacity.pick(a_shape(gpus=2)) == (Slot("b", mask_of({1, 2})),)


@given(st.lists(st.integers(0, 255), min_size=1, max_size=6), st.integers(1, 3), st.integers(1, 8))
def test_whole_nodes_stay_whole_while_partly_used_ones_fit(
    taken: list[int], nodes: int, gpus: int
) -> None:
    capacity = a_capacity(*some_nodes(len(taken)))
    capacity.take(Slot(f"n{index}", mask) for index, mask in enumerate(taken))
    slots = capacity.pick(a_shape(nodes=nodes, gpus=gpus))
    counts = [8 - mask.bit_count() for mask in taken]
    partly = sum(gpus <= count < 8 for count in counts)
    if slots is None:
        assert sum(count >= gpus for count in counts) < nodes
        return
    whole = [slot for slot in slots if capacity.free[slot.node_id] == 255]
    assert len(whole) == max(0, nodes - partly)
    spared = sorted(count for count in counts if gpus <= count < 8)
    used = sorted(capacity.free[s.node_id].bit_count() for s in slots if s not in whole)
    assert used == spared[: len(used)], "those with the least to spare"


def test_units_are_node_equivalents() -> None:
    capacity = a_capacity(
        a_node("a"), a_node("b", unusable=(0, 1)), a_node("c", gpus=0, cpus=4), a_node("d", gpus=2)
    )
    assert capacity.units("default") == capacity.free_units("default") == 3.75
    assert capacity.units("nowhere") == capacity.free_units("nowhere") == 0
    capacity.take([Slot("a", 15), Slot("b", mask_of({2})), Slot("c", 0), Slot("d", 3)])
    assert capacity.free_units("default") == 0.5 + 5 / 8 + 0.75
    assert capacity.units("default") == 3.75


def test_selected_labels_and_tolerated_taints() -> None:
    labelled = replace(a_node("a"), labels=(("disk", "nvme"), ("gen", "h100")))
    tainted = replace(a_node("b"), taints=("reserved=vision", "flaky"))
    capacity = a_capacity(labelled, tainted)
    assert capacity.pick(a_shape()) == (Slot("a", 255),)
    assert capacity.pick(a_shape(nodes=2)) is None
    assert not capacity.fits(a_shape(nodes=2))
    assert capacity.fits(a_shape(nodes=2, tolerations=("reserved", "flaky")))
    assert capacity.fits(a_shape(nodes=2, tolerations=("reserved=vision", "flaky")))
    assert not capacity.fits(a_shape(nodes=2, tolerations=("reserved=nlp", "flaky")))
    assert capacity.fits(a_shape(selector=(("disk", "nvme"),)))
    assert capacity.fits(a_shape(selector=(("disk", "nvme"), ("gen", "h100"))))
    assert not capacity.fits(a_shape(selector=(("disk", "hdd"),)))
    assert capacity.eligible(a_shape()) == {"a"}
    assert capacity.eligible(a_shape(tolerations=("reserved", "flaky"))) == {"a", "b"}


def test_copies_are_independent_in_every_direction() -> None:
    base = a_capacity(*some_nodes(3))
    copy = base.copy()
    base.take([Slot("n0", 255)])
    copy.take([Slot("n1", 255)])
    grandchild = copy.copy()
    copy.take([Slot("n2", 1)])
    grandchild.take([Slot("n2", 2)])
    assert dict(base.free) == {"n0": 0, "n1": 255, "n2": 255}
    assert dict(copy.free) == {"n0": 255, "n1": 0, "n2": 254}
    assert dict(grandchild.free) == {"n0": 255, "n1": 0, "n2": 253}


def test_ranks_follow_the_roles() -> None:
    roles = (Role(name="chief", replicas=1), Role(name="worker", replicas=2))
    nodes = {str(node.id): node for node in some_nodes(3)}
    slots = tuple(Slot(f"n{index}", 3) for index in range(3))
    placements = placements_of(slots, a_spec(roles=roles, gpus=2), nodes)
    assert [(p.rank, p.role, p.role_index, p.node_id, p.gpus) for p in placements] == [
        (0, "chief", 0, "n0", (0, 1)),
        (1, "worker", 0, "n1", (0, 1)),
        (2, "worker", 1, "n2", (0, 1)),
    ]


@pytest.mark.parametrize(
    ("gpus", "where", "mask"), [(2, (0, 3), 9), (0, (), 0), (None, (), 1), (None, (0, 1), 3)]
)
def test_a_run_holds_its_gpus_or_the_whole_node(
    gpus: int | None, where: tuple[int, ...], mask: int
) -> None:
    assert slots_of(running(a_task(gpus=gpus), {"n0": where})) == (Slot("n0", mask),)

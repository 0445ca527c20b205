"""Gangs whose ranks differ or share nodes: what is found is right, and found where it exists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from libs.contracts.messages import Role
from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.rows import Node
from services.scheduler.domain.model.values import Shape, shape_of
from services.scheduler.domain.placement.capacity import Capacity
from services.scheduler.domain.placement.slots import Slot, placements_of, shares_of
from services.scheduler.domain.placement.topology import Topology
from tests.kit.builders import a_node, a_spec

SETTINGS = PolicySettings(cpu_ranks_per_node=4)


def a_role(name: str = "worker", replicas: int = 1, **fields: object) -> Role:
    return Role.model_validate({"name": name, "replicas": replicas, "command": ("true",), **fields})


def a_shape(*roles: Role, gpus: int | None = None) -> Shape:
    return shape_of(a_spec(roles=roles, gpus=gpus))


def nodes_of(slots: Sequence[Slot] | None) -> list[str]:
    assert slots is not None
    return [slot.node_id for slot in slots]


def test_four_ranks_of_one_gpu_share_a_node_of_four() -> None:
    capacity = Capacity([a_node("a", gpus=4), a_node("b", gpus=4)], SETTINGS)
    slots = capacity.pick(a_shape(a_role(replicas=4, gpus=1)))
    assert slots is not None
    assert nodes_of(slots) == ["a"] * 4
    assert sorted(slot.mask for slot in slots) == [1, 2, 4, 8]


def test_ranks_that_are_spread_lie_on_different_nodes() -> None:
    capacity = Capacity([a_node(each, gpus=4) for each in "abc"], SETTINGS)
    shape = a_shape(a_role(replicas=2, gpus=1, spread=True), a_role("ps", 2, gpus=1))
    slots = capacity.pick(shape)
    assert slots is not None
    assert len({slot.node_id for slot in slots[:2]}) == 2
    assert {slot.node_id for slot in slots[2:]} <= {slot.node_id for slot in slots[:2]}
    assert capacity.pick(a_shape(a_role(replicas=4, gpus=1, spread=True), a_role("ps"))) is None


def test_a_task_with_amounts_of_nodes_keeps_a_node_for_each_replica() -> None:
    one = shape_of(a_spec(nodes=2, gpus=1))
    assert one.parts == ()
    assert shape_of(a_spec(roles=(a_role(replicas=2, gpus=1, spread=True),))) == one


def test_ranks_go_to_the_node_that_holds_all_of_them_most_tightly() -> None:
    capacity = Capacity([a_node("a", gpus=8), a_node("b", gpus=4), a_node("c", gpus=8)], SETTINGS)
    assert nodes_of(capacity.pick(a_shape(a_role(replicas=4, gpus=1)))) == ["b"] * 4
    assert nodes_of(capacity.pick(a_shape(a_role(replicas=3, gpus=2)))) == ["a"] * 3
    found = nodes_of(capacity.pick(a_shape(a_role(replicas=6, gpus=2))))
    assert Counter(found) == {"a": 4, "b": 2}


def test_an_auxiliary_rank_lies_beside_the_gang() -> None:
    capacity = Capacity([a_node("a", gpus=0), a_node("b", gpus=4), a_node("c", gpus=4)], SETTINGS)
    shape = a_shape(a_role("launcher", auxiliary=True), a_role(replicas=2))
    assert nodes_of(capacity.pick(shape)) == ["b", "b", "c"]
    assert shape.counted == 2


def test_cpus_and_memory_of_ranks_on_one_node_add_up() -> None:
    nodes = [a_node(each, gpus=4, cpus=8.0, memory_bytes=100) for each in "ab"]
    capacity = Capacity(nodes, SETTINGS)
    shape = a_shape(a_role(replicas=4, gpus=1, cpus=3.0, memory_bytes=10))
    slots = capacity.pick(shape)
    assert Counter(nodes_of(slots)) == {"a": 2, "b": 2}
    capacity.take(slots or ())
    assert capacity.pick(a_shape(a_role(replicas=2, gpus=1, cpus=2.0))) == tuple(
        Slot(node, 4, shape_of(a_spec(cpus=2.0)).resources) for node in "ab"
    )
    capacity.give(slots or ())
    assert capacity.pick(shape) == slots
    assert capacity.pick(a_shape(a_role(replicas=2, gpus=0, memory_bytes=60))) is not None
    assert capacity.pick(a_shape(a_role(replicas=3, gpus=0, memory_bytes=60))) is None


def test_whole_nodes_and_smaller_ranks_lie_apart() -> None:
    capacity = Capacity([a_node(each, gpus=4) for each in "abc"], SETTINGS)
    shape = a_shape(a_role(replicas=2), a_role("evaluator", 2, gpus=2))
    found = nodes_of(capacity.pick(shape))
    assert Counter(found) == {"a": 1, "b": 1, "c": 2}
    assert capacity.pick(a_shape(a_role(replicas=3), a_role("evaluator", gpus=1))) is None


def test_a_gang_lies_in_the_smallest_domain_that_holds_it() -> None:
    nodes = [
        a_node(f"n{number}", gpus=4, labels={"zone": zone})
        for number, zone in enumerate(["east", "west", "west"])
    ]
    capacity = Capacity(nodes, SETTINGS)
    shape = a_shape(a_role(replicas=8, gpus=1))
    found = capacity.pick(shape, topology=Topology(cross_zone_allowed=False))
    assert set(nodes_of(found)) == {"n1", "n2"}
    large = a_shape(a_role(replicas=12, gpus=1))
    assert capacity.pick(large, topology=Topology(cross_zone_allowed=False)) is None
    assert capacity.pick(large, topology=Topology(cross_zone_allowed=True)) is not None


def test_slots_become_placements_in_the_order_of_roles() -> None:
    by_id = {each: a_node(each, gpus=4) for each in "ab"}
    spec = a_spec(roles=(a_role("ps", 2, gpus=0), a_role("worker", 4, gpus=1)))
    slots = Capacity(by_id.values(), SETTINGS).pick(shape_of(spec))
    placements = placements_of(slots or (), spec, by_id)
    assert [(each.role, each.role_index, each.gpus) for each in placements] == [
        ("ps", 0, ()),
        ("ps", 1, ()),
        ("worker", 0, (0,)),
        ("worker", 1, (1,)),
        ("worker", 2, (2,)),
        ("worker", 3, (3,)),
    ]


roles = st.lists(
    st.builds(
        dict,
        replicas=st.integers(1, 3),
        gpus=st.sampled_from([0, 1, 2, 4]),
        spread=st.sampled_from([None, None, True]),
    ),
    min_size=1,
    max_size=3,
)


def exists(free: dict[str, int], ranks: list[tuple[int, int, bool]], chosen: list[str]) -> bool:
    """Brute force: a node for every rank."""
    if not ranks:
        return True
    (role, gpus, spread), *rest = ranks
    for node_id, left in list(free.items()):
        if spread and (role, node_id) in chosen_of(chosen):
            continue
        if left >= gpus:
            free[node_id] -= gpus
            chosen.append(f"{role}@{node_id}")
            if exists(free, rest, chosen):
                return True
            chosen.pop()
            free[node_id] += gpus
    return False


def chosen_of(chosen: list[str]) -> set[tuple[int, str]]:
    return {(int(role), node_id) for role, _, node_id in (each.partition("@") for each in chosen)}


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sizes=st.lists(st.sampled_from([2, 4, 4]), min_size=1, max_size=3), wanted=roles)
def test_a_place_is_found_if_there_is_one_and_holds_the_gang(
    sizes: list[int], wanted: list[dict[str, object]]
) -> None:
    nodes: list[Node] = [a_node(f"n{index}", gpus=gpus) for index, gpus in enumerate(sizes)]
    own = tuple(
        a_role(f"r{index}", **fields)  # type: ignore[arg-type]  # drawn above
        for index, fields in enumerate(wanted)
    )
    shape = shape_of(a_spec(roles=own))
    capacity = Capacity(nodes, PolicySettings(cpu_ranks_per_node=64))
    slots = capacity.pick(shape)
    ranks = [
        (index, role.gpus or 0, bool(role.spread))
        for index, role in enumerate(own)
        for _ in range(role.replicas)
    ]
    ranks.sort(key=lambda rank: -rank[1])
    free = {str(node.id): node.gpus for node in nodes}
    if not any(rank[2] for rank in ranks):
        assert (slots is not None) == exists(free, ranks, [])
    if slots is None:
        return
    assert len(slots) == shape.nodes
    used = [(slot.node_id, bit) for slot in slots for bit in range(8) if slot.mask >> bit & 1]
    assert len(used) == len(set(used))
    assert capacity.covers(slots)
    before = {node_id: capacity.free[node_id] for node_id in capacity.free}
    capacity.take(slots)
    for share in shares_of(slots):
        assert capacity.free[share.node_id] == before[share.node_id] & ~share.mask
    capacity.give(slots)
    assert {node_id: capacity.free[node_id] for node_id in capacity.free} == before
    place = 0
    for role in own:
        mine = slots[place : place + role.replicas]
        place += role.replicas
        assert all(slot.mask.bit_count() == role.gpus for slot in mine)
        if role.spread:
            assert len({slot.node_id for slot in mine}) == len(mine)


@pytest.mark.parametrize(("free", "ranks"), [(1, 2), (1, 4), (3, 2), (3, 4)])
def test_leftovers_of_used_nodes_are_used_first(free: int, ranks: int) -> None:
    capacity = Capacity([a_node("a", gpus=8), a_node("b", gpus=8)], SETTINGS)
    capacity.take([Slot("b", (1 << (8 - free)) - 1)])
    found = nodes_of(capacity.pick(a_shape(a_role(replicas=ranks, gpus=1))))
    assert set(found) == ({"b"} if ranks <= free else {"a"})


def test_roles_without_a_size_keep_a_node_for_each_replica_of_all_of_them() -> None:
    capacity = Capacity([a_node(each, gpus=8) for each in "ab"], SETTINGS)
    shape = a_shape(a_role("chief"), a_role("worker"), a_role("board", auxiliary=True), gpus=4)
    assert nodes_of(capacity.pick(shape)) == ["a", "b", "a"]


def test_whole_nodes_leave_the_large_ones_if_smaller_ranks_need_them() -> None:
    capacity = Capacity([a_node("a", gpus=8), a_node("b", gpus=4)], SETTINGS)
    found = nodes_of(capacity.pick(a_shape(a_role(), a_role("worker", 8, gpus=1))))
    assert found == ["b"] + ["a"] * 8

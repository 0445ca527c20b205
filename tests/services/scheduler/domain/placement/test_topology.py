from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.rows import Node
from services.scheduler.domain.model.values import Shape
from services.scheduler.domain.placement.capacity import Capacity
from services.scheduler.domain.placement.slots import Slot, placements_of
from services.scheduler.domain.placement.topology import Topology, address, crosses_zone
from tests.kit.builders import a_node, a_spec

ANYWHERE = Topology()
ONE_ZONE = Topology(cross_zone_allowed=False)


def a_labelled(node_id: str, zone: str = "", spine: str = "", leaf: str = "") -> Node:
    named = {"zone": zone, "spine": spine, "leaf": leaf}
    labels = tuple((key, value) for key, value in named.items() if value)
    return replace(a_node(node_id), labels=labels)


def a_gang(nodes: int, gpus: int | None = None) -> Shape:
    return Shape("default", nodes, gpus, 0.0, 0)


def two_zones() -> list[Node]:
    """Zone A: leaves of 2, 3 and 2 nodes under two spines; zone B: one leaf of 4."""
    where = [("A", "s1", "l1")] * 2 + [("A", "s1", "l2")] * 3 + [("A", "s2", "l3")] * 2
    where += [("B", "s3", "l4")] * 4
    # Ids against the order of the domains, so that neither stands in for the other.
    return [a_labelled(f"n{20 - index}", *at) for index, at in enumerate(where)]


def new_places(nodes: list[Node], slots: tuple[Slot, ...] | None, level: int) -> list[str]:
    assert slots is not None
    by_id = {node.id: node for node in nodes}
    return [
        address(by_id[slot.node_id], ("zone", "spine", "leaf"))[level]  # type: ignore[index]
        for slot in slots
    ]


def test_a_gang_goes_to_the_leaf_where_it_fits_best() -> None:
    nodes = two_zones()
    capacity = Capacity(nodes, PolicySettings())
    for wanted, leaf in ((2, "l1"), (3, "l2"), (4, "l4")):
        slots = capacity.pick(a_gang(wanted), topology=ANYWHERE)
        assert new_places(nodes, slots, 2) == [leaf] * wanted
    assert new_places(nodes, capacity.pick(a_gang(4)), 2) == ["l1", "l1", "l2", "l2"], "not asked"


def test_a_gang_that_fits_no_leaf_goes_to_one_spine_else_to_one_zone() -> None:
    nodes = two_zones()
    capacity = Capacity(nodes, PolicySettings())
    assert new_places(nodes, capacity.pick(a_gang(5), topology=ONE_ZONE), 1) == ["s1"] * 5
    six = capacity.pick(a_gang(6), topology=ONE_ZONE)
    assert new_places(nodes, six, 0) == ["A"] * 6
    assert new_places(nodes, six, 1) == ["s1"] * 5 + ["s2"]


def test_only_a_gang_that_may_crosses_zones() -> None:
    nodes = two_zones()
    by_id = {str(node.id): node for node in nodes}
    capacity = Capacity(nodes, PolicySettings())
    assert capacity.pick(a_gang(8), topology=ONE_ZONE) is None
    assert not capacity.fits(a_gang(8), topology=ONE_ZONE)
    assert capacity.fits(a_gang(8), topology=ANYWHERE)
    slots = capacity.pick(a_gang(8), topology=ANYWHERE)
    assert new_places(nodes, slots, 0) == ["A"] * 7 + ["B"], "as few zones split as can be"
    assert slots is not None
    assert crosses_zone(slots, by_id)
    assert not crosses_zone(slots[:7], by_id)
    placements = placements_of(slots, a_spec(nodes=8), by_id)
    assert [each.node_id for each in placements] == [each.node_id for each in slots]
    assert crosses_zone(placements, by_id)


def test_nodes_without_labels_are_one_domain() -> None:
    plain = [a_labelled(f"n{index}") for index in range(3)]
    capacity = Capacity(plain, PolicySettings())
    assert capacity.pick(a_gang(3), topology=ONE_ZONE) is not None
    mixed = Capacity([*plain, a_labelled("z", zone="A")], PolicySettings())
    assert mixed.pick(a_gang(4), topology=ONE_ZONE) is None
    assert mixed.pick(a_gang(3), topology=ONE_ZONE) is not None


def test_other_levels_may_be_named() -> None:
    racks = [
        replace(a_node(f"n{index}"), labels=(("rack", "even" if index % 2 == 0 else "odd"),))
        for index in range(4)
    ]
    capacity = Capacity(racks, PolicySettings(), {"default": ("rack",)})
    slots = capacity.pick(a_gang(2), topology=ONE_ZONE)
    assert slots is not None
    assert [slot.node_id for slot in slots] == ["n0", "n2"]
    by_id = {str(node.id): node for node in racks}
    assert not crosses_zone(slots, by_id, ("rack",))
    assert capacity.pick(a_gang(3), topology=ONE_ZONE) is None


def test_parts_of_nodes_keep_together_too() -> None:
    nodes = two_zones()
    capacity = Capacity(nodes, PolicySettings())
    capacity.take([Slot("n20", 1), Slot("n10", 1), Slot("n11", 1)])
    slots = capacity.pick(a_gang(2, gpus=4), topology=ANYWHERE)
    assert new_places(nodes, slots, 2) == ["l1", "l1"]


labelled_nodes = st.lists(
    st.tuples(
        st.sampled_from(["", "A", "B", "C"]),
        st.sampled_from(["s", "t"]),
        st.sampled_from(["", "k", "l"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=14,
)


@given(labelled_nodes, st.integers(2, 8), st.booleans())
def test_the_chosen_domain_is_the_smallest_that_fits(
    where: list[tuple[str, str, str, bool]], wanted: int, allowed: bool
) -> None:
    """Against trying every domain of every level, from the smallest."""
    nodes = [a_labelled(f"n{index}", *each[:3]) for index, each in enumerate(where)]
    by_id = {str(node.id): node for node in nodes}
    capacity = Capacity(nodes, PolicySettings())
    capacity.take(Slot(f"n{index}", 1) for index, each in enumerate(where) if each[3])
    free = [each[:3] for each in where if not each[3]]
    slots = capacity.pick(a_gang(wanted), topology=Topology(cross_zone_allowed=allowed))
    assert capacity.fits(a_gang(wanted), topology=Topology(allowed)) == (slots is not None)
    for depth in (3, 2, 1):
        sizes = {each[:depth]: sum(f[:depth] == each[:depth] for f in free) for each in free}
        enough = [size for size in sizes.values() if size >= wanted]
        if enough:
            assert slots is not None
            got = {
                address(by_id[slot.node_id], ("zone", "spine", "leaf"))[:depth] for slot in slots
            }
            assert len(got) == 1
            assert sizes[got.pop()] == min(enough)  # type: ignore[index]
            return
    if len(free) < wanted or not allowed:
        assert slots is None
        return
    zones = sorted((sum(f[0] == zone for f in free) for zone in {f[0] for f in free}), reverse=True)
    least = next(n for n in range(1, len(zones) + 1) if sum(zones[:n]) >= wanted)
    assert slots is not None
    got = [address(by_id[slot.node_id], ("zone",))[0] for slot in slots]
    assert len(set(got)) == least, "as few zones as can be"
    assert sum(one != other for one, other in pairwise(got)) == least - 1, "neighbours together"

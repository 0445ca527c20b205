from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from libs.contracts import start_order
from libs.contracts.messages import Role, StartCondition, StartsAfter


def roles(after: dict[str, list[str]], *, ready: bool = False) -> tuple[Role, ...]:
    condition = StartCondition.READY if ready else StartCondition.RUNNING
    return tuple(
        Role(
            name=name,
            starts_after=tuple(StartsAfter(role=each, condition=condition) for each in others),
        )
        for name, others in after.items()
    )


def test_roles_without_conditions_are_one_stage() -> None:
    plain = roles({"ps": [], "worker": []})
    assert not start_order.is_ordered(plain)
    assert start_order.stages(plain) == (("ps", "worker"),)
    assert start_order.first_roles(plain) == {"ps", "worker"}
    assert not start_order.starts_more(plain)


def test_stages_follow_the_conditions() -> None:
    ordered = roles({"worker": ["ps", "init"], "ps": ["init"], "init": [], "board": []})
    assert start_order.is_ordered(ordered)
    assert start_order.stages(ordered) == (("init", "board"), ("ps",), ("worker",))
    assert start_order.first_roles(ordered) == {"init", "board"}
    assert start_order.starts_more(ordered)


def test_a_role_is_awaited_where_another_one_waits_until_it_is_ready() -> None:
    after = {"ps": [], "worker": ["ps"]}
    assert start_order.awaited_ready(roles(after)) == frozenset()
    assert start_order.awaited_ready(roles(after, ready=True)) == {"ps"}


def test_unknown_names_hold_up_nothing() -> None:
    odd = roles({"worker": ["nobody"]})
    assert start_order.stages(odd) == (("worker",),)
    assert start_order.first_roles(odd) == {"worker"}
    assert start_order.find_cycle(odd) == ()


@given(st.lists(st.lists(st.integers(0, 7), max_size=4), max_size=8))
def test_a_cycle_is_found_exactly_where_no_order_exists(links: list[list[int]]) -> None:
    names = [str(number) for number in range(len(links))]
    given_roles = roles(
        {name: [str(each) for each in links[place]] for place, name in enumerate(names)}
    )
    cycle = start_order.find_cycle(given_roles)
    staged = start_order.stages(given_roles)
    assert sorted(name for stage in staged for name in stage) == names
    place = {name: number for number, stage in enumerate(staged) for name in stage}
    after = {
        role.name: {each.role for each in role.starts_after} & set(names) for role in given_roles
    }
    in_order = all(place[other] < place[name] for name in names for other in after[name])
    assert bool(cycle) is not in_order
    assert all(later in after[earlier] for earlier, later in pairwise(cycle))
    assert not cycle or cycle[0] == cycle[-1]
    assert not links or start_order.first_roles(given_roles)

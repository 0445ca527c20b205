"""What a rank of a role takes: the role's own size over the task's."""

from __future__ import annotations

import pytest

from libs.contracts.messages import Role
from libs.contracts.rank_sizes import (
    RankSize,
    effective,
    given_at,
    has_own_size,
    limits_of,
    role_given_at,
    role_specs,
    size_of,
    sizes_differ,
)
from tests.kit.builders import a_spec

GIB = 1 << 30


@pytest.mark.parametrize(
    ("role", "task", "size"),
    [
        # As the task says: a node for each replica.
        ({}, {}, (None, 0.0, 0, True, False)),
        ({}, {"gpus": 2, "cpus": 3.0}, (2, 3.0, 0, True, False)),
        # A size of its own: replicas share nodes.
        ({"gpus": 1}, {"gpus": 2, "cpus": 3.0}, (1, 3.0, 0, False, False)),
        ({"gpus": 0, "memory_bytes": GIB}, {}, (0, 0.0, GIB, False, False)),
        ({"gpus": 1, "spread": True}, {}, (1, 0.0, 0, True, False)),
        ({"spread": False}, {"gpus": 1}, (1, 0.0, 0, False, False)),
        ({"auxiliary": True}, {"gpus": 4}, (0, 0.0, 0, False, True)),
        ({"auxiliary": True, "cpus": 0.5}, {"cpus": 8.0}, (0, 0.5, 0, False, True)),
    ],
)
def test_the_size_of_a_rank(
    role: dict[str, object], task: dict[str, object], size: tuple[object, ...]
) -> None:
    own = Role.model_validate({"name": "worker", "replicas": 2, **role})
    assert size_of(a_spec(roles=(own,), **task), own) == RankSize(*size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("roles", "differ"),
    [
        ([{}], False),
        ([{}, {}], False),
        ([{"gpus": 1, "spread": True}], False),
        ([{"gpus": 1, "replicas": 1}], False),
        ([{"spread": True}], False),
        ([{"gpus": 1}], True),
        ([{}, {"gpus": 0}], True),
        ([{"auxiliary": True}, {}], True),
        ([{"cpus": 1.0}], False),
    ],
)
def test_which_gangs_have_ranks_that_differ_or_share_nodes(
    roles: list[dict[str, object]], differ: bool
) -> None:
    own = tuple(
        Role.model_validate({"name": f"r{index}", "replicas": 2, **role})
        for index, role in enumerate(roles)
    )
    assert sizes_differ(a_spec(roles=own)) is differ


def test_each_role_by_itself_is_a_task_of_equal_ranks() -> None:
    chief = Role(name="chief", replicas=1, gpus=0, cpus=2.0)
    worker = Role(name="worker", replicas=3, gpus=2, memory_bytes=GIB)
    alone = role_specs(a_spec(roles=(chief, worker), gpus=8))
    assert [(each.nodes, each.gpus_per_node, each.cpus, each.memory_bytes) for each in alone] == [
        (1, 0, 2.0, None),
        (3, 2, None, GIB),
    ]
    assert not any(map(sizes_differ, alone))


def test_the_common_size_of_all_ranks_stands_for_the_amounts_of_the_task() -> None:
    one = Role(name="a", replicas=1, gpus=2, cpus=3.0)
    spec = a_spec(roles=(one,), nodes=1, gpus=8, cpus=1.0, memory_bytes=GIB)
    found = effective(spec)
    assert (found.gpus_per_node, found.cpus, found.memory_bytes) == (2, 3.0, GIB)
    assert effective(found) is found
    assert given_at(spec, "gpus_per_node") == "roles[0].gpus"
    assert given_at(spec, "cpus") == "roles[0].cpus"
    assert given_at(spec, "memory_bytes") == "memory_bytes"


@pytest.mark.parametrize("own", [{}, {"gpus": 1}, {"spread": True}], ids=str)
def test_a_specification_whose_amounts_already_hold_stays_the_same(own: dict[str, object]) -> None:
    # Nothing of its own; ranks that share nodes; nothing but spread.
    role = Role.model_validate({"name": "a", "replicas": 2, **own})
    spec = a_spec(roles=(role,), nodes=2, gpus=8)
    assert effective(spec) is spec


@pytest.mark.parametrize(
    ("role", "task", "counted", "limits"),
    [
        # Without a request, the limit is counted.
        ({}, {"cpus": 4.0}, (4.0, 0), (4.0, None)),
        # A request alone: nothing is enforced.
        ({}, {"cpus_request": 2.0}, (2.0, 0), (None, None)),
        ({}, {"cpus": 4.0, "cpus_request": 2.0}, (2.0, 0), (4.0, None)),
        # Each field of a role is over that of the task.
        ({"cpus": 3.0}, {"cpus": 4.0, "cpus_request": 2.0}, (2.0, 0), (3.0, None)),
        ({"cpus_request": 1.0}, {"cpus": 4.0, "cpus_request": 2.0}, (1.0, 0), (4.0, None)),
        ({"memory_request_bytes": 7}, {"memory_bytes": 9}, (0.0, 7), (None, 9)),
        ({"memory_bytes": 9}, {"memory_request_bytes": 7}, (0.0, 7), (None, 9)),
    ],
    ids=str,
)
def test_a_request_is_counted_and_a_limit_enforced(
    role: dict[str, object],
    task: dict[str, object],
    counted: tuple[object, ...],
    limits: tuple[object, ...],
) -> None:
    own = Role.model_validate({"name": "worker", "replicas": 2, **role})
    spec = a_spec(roles=(own,)).model_copy(update=task)
    assert size_of(spec, own)[1:3] == counted
    assert limits_of(spec, own) == limits
    assert has_own_size(own) is bool(role)
    (alone,) = role_specs(spec)
    assert (alone.cpus or 0.0, alone.memory_bytes or 0) == counted
    assert (alone.cpus_request, alone.memory_request_bytes) == (None, None)


def test_a_request_of_the_task_stands_for_its_amount() -> None:
    spec = a_spec(nodes=2, gpus=1, cpus=4.0).model_copy(update={"cpus_request": 2.0})
    assert effective(spec).cpus == 2.0
    assert effective(spec).cpus_request is None
    assert effective(effective(spec)) == effective(spec)
    assert given_at(spec, "cpus") == "cpus_request"
    assert given_at(spec, "memory_bytes") == "memory_bytes"


def test_limits_that_differ_do_not_make_sizes_differ() -> None:
    roles = (
        Role(name="a", replicas=1, gpus=1, cpus_request=1.0, cpus=2.0, spread=True),
        Role(name="b", replicas=1, gpus=1, cpus_request=1.0, cpus=4.0, spread=True),
    )
    assert not sizes_differ(a_spec(roles=roles))


def test_where_a_counted_amount_was_given() -> None:
    role = Role(name="a", replicas=1, cpus=3.0)
    spec = a_spec(roles=(role,)).model_copy(update={"cpus_request": 2.0})
    assert role_given_at(spec, 0, "cpus") == given_at(spec, "cpus") == "cpus_request"
    spec = a_spec(roles=(role.model_copy(update={"cpus_request": 1.0}),))
    assert role_given_at(spec, 0, "cpus") == given_at(spec, "cpus") == "roles[0].cpus_request"

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from libs.contracts.messages import Priority, Quota, Refusal, Role, TaskSpec, Unit
from services.submit.domain.facts import Defaults, Facts, Limits, Shape
from services.submit.domain.fill import fill_in
from services.submit.domain.fit import check_quota, demand
from services.submit.domain.validate import validate
from tests.kit.specs import TASK_ID, asked

GIB = 1 << 30
SHAPES = (
    Shape("default", gpus=8, cpus=64.0, memory_bytes=512 * GIB, nodes=2),
    Shape("default", gpus=4, cpus=32.0, memory_bytes=256 * GIB, nodes=3),
    Shape("cpu", gpus=0, cpus=16.0, memory_bytes=64 * GIB, nodes=4),
)
KNOWN = Facts(shapes=SHAPES, inventory_known=True)
TO_COME = "with wait_for_nodes it waits for nodes that are to come"


def refused_fields(spec: TaskSpec, facts: Facts, owner: str = "ann", team: str = "") -> list[str]:
    filled = fill_in(spec, task_id=TASK_ID, defaults=Defaults())
    found = validate(filled, owner=owner, team=team, facts=facts, limits=Limits())
    return [error.field for error in found.errors] if isinstance(found, Refusal) else []


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        # Whole nodes all have one number of GPUs, and there are three of the smaller kind.
        ({"nodes": 3}, []),
        ({"nodes": 4}, ["nodes"]),
        ({"nodes": 5, "gpus_per_node": 4}, []),
        ({"nodes": 6, "gpus_per_node": 4}, ["nodes"]),
        ({"nodes": 2, "gpus_per_node": 8}, []),
        ({"nodes": 3, "gpus_per_node": 8}, ["nodes"]),
        ({"nodes": 1, "gpus_per_node": 9}, ["gpus_per_node"]),
        ({"nodes": 5, "gpus_per_node": 0}, []),
        ({"nodes": 4, "group": "cpu"}, []),
        ({"nodes": 5, "group": "cpu"}, ["nodes"]),
        ({"nodes": 1, "group": "cpu", "gpus_per_node": 1}, ["gpus_per_node"]),
        ({"cpus": 65.0}, ["cpus"]),
        ({"nodes": 3, "cpus": 64.0}, ["nodes"]),
        ({"memory_bytes": 513 * GIB}, ["memory_bytes"]),
        ({"cpus": 65.0, "memory_bytes": 513 * GIB}, ["cpus", "memory_bytes"]),
        ({"group": "elsewhere"}, ["group"]),
    ],
)
def test_only_what_can_never_fit_is_refused(changes: dict[str, Any], fields: list[str]) -> None:
    assert refused_fields(asked(**changes), KNOWN) == fields
    assert refused_fields(asked(**changes), Facts(shapes=SHAPES)) == []


@pytest.mark.parametrize(
    ("roles", "fields"),
    [
        # 2 nodes of 8 GPUs and 3 of 4 hold 28 ranks of one, 14 of two, 2 of eight.
        ([{"replicas": 28, "gpus": 1}], []),
        ([{"replicas": 29, "gpus": 1}], ["roles[0].replicas"]),
        ([{"replicas": 6, "gpus": 1, "spread": True}, {"gpus": 1}], ["roles[0].replicas"]),
        ([{"replicas": 5, "gpus": 1, "spread": True}, {"gpus": 1}], []),
        ([{"gpus": 0, "cpus": 1.0}, {"replicas": 3, "gpus": 8}], ["roles[1].replicas"]),
        ([{"gpus": 9}, {"gpus": 1}], ["roles[0].gpus"]),
        ([{"gpus": 1, "cpus": 65.0}, {"gpus": 1}], ["roles[0].cpus"]),
        ([{"gpus": 0, "replicas": 6, "cpus": 40.0}], ["roles[0].replicas"]),
        # 2 nodes of 64 CPUs and 3 of 32 hold 224 ranks without GPUs.
        ([{"gpus": 0, "replicas": 224}, {"gpus": 1}], []),
        ([{"gpus": 0, "replicas": 225}, {"gpus": 1}], ["roles[0].replicas"]),
        ([{"gpus": 0, "replicas": 225}], ["roles[0].replicas"]),
        ([{"auxiliary": True, "gpus": 1}, {"gpus": 1}], ["roles[0].gpus"]),
        ([{"auxiliary": True}], ["roles[0].auxiliary"]),
        ([{"gpus": 1025}, {"gpus": 1}], ["roles[0].gpus"]),
    ],
)
def test_roles_that_no_nodes_hold_are_refused_by_name(
    roles: list[dict[str, Any]], fields: list[str]
) -> None:
    own = tuple(
        Role.model_validate(
            {"name": f"r{index}", "replicas": 1, "command": ("python", "train.py"), **role}
        )
        for index, role in enumerate(roles)
    )
    assert refused_fields(asked(roles=own, nodes=0), KNOWN) == fields


ONE_SIZE = [{"replicas": 1}, {"replicas": 2, "spread": True}]


@pytest.mark.parametrize("gang", ONE_SIZE, ids=["one replica", "spread"])
@pytest.mark.parametrize(
    ("size", "too_large", "gpus"),
    [
        ({"gpus": 5}, {"gpus": 9}, 5),
        # Whole nodes: those of 8 GPUs alone are large enough.
        ({"cpus": 64.0}, {"cpus": 65.0}, 8),
        ({"memory_bytes": 512 * GIB}, {"memory_bytes": 513 * GIB}, 8),
        # The role's amount counts, and not the task's.
        ({"gpus": 0, "cpus": 64.0}, {"gpus": 0, "cpus": 65.0}, 0),
    ],
    ids=str,
)
def test_the_size_of_a_role_counts_where_it_is_that_of_all_ranks(
    size: dict[str, Any], too_large: dict[str, Any], gpus: int, gang: dict[str, Any]
) -> None:
    def task(own: dict[str, Any]) -> TaskSpec:
        role = {"name": "worker", "command": ("a",), **gang, **own}
        # Amounts of the task that fit, and that every quota admits.
        common = {} if "gpus" not in own else {"gpus_per_node": 1}
        return asked(roles=(Role.model_validate(role),), cpus=1.0, memory_bytes=GIB, **common)

    last = list(too_large)[-1]
    assert refused_fields(task(too_large), KNOWN) == [f"roles[0].{last}"]
    assert refused_fields(task(size), KNOWN) == []
    needed = gpus * gang["replicas"]
    spec = fill_in(task(size), task_id=TASK_ID, defaults=Defaults())
    assert demand(spec, Unit.GPUS, KNOWN) == needed
    enough = Quota(unit=Unit.GPUS, limit=needed)
    assert refused_fields(task(size), replace(KNOWN, quotas=(enough,))) == []
    if needed:
        too_few = Quota(unit=Unit.GPUS, limit=needed - 1)
        (field,) = refused_fields(task(size), replace(KNOWN, quotas=(too_few,)))
        assert field == ("roles[0].gpus" if "gpus" in size else "roles[0].replicas")


@pytest.mark.parametrize(
    ("roles", "field", "value", "way"),
    [
        (
            [{"replicas": 2}, {"replicas": 4}],
            "roles[1].replicas",
            "4",
            "give the roles gpus, so that replicas share nodes, ask for at most 3 replicas in all",
        ),
        (
            [{"replicas": 4, "name": "trainer"}],
            "roles[0].replicas",
            "4",
            "give the roles gpus, so that replicas share nodes, ask for at most 3 replicas in all",
        ),
        (
            [{"replicas": 6, "gpus": 2, "spread": True}],
            "roles[0].replicas",
            "6",
            "leave spread out, so that replicas share nodes, ask for at most 5 replicas in all",
        ),
        (
            [{"replicas": 2, "gpus": 4, "cpus": 40.0}, {"replicas": 3, "gpus": 9}],
            "roles[1].gpus",
            "9",
            "ask for at most 8 on each of more nodes",
        ),
    ],
)
def test_too_many_replicas_are_named_by_their_role(
    roles: list[dict[str, Any]], field: str, value: str, way: str
) -> None:
    own = tuple(
        Role.model_validate({"name": f"r{index}", "command": ("a",), **role})
        for index, role in enumerate(roles)
    )
    spec = fill_in(asked(roles=own), task_id=TASK_ID, defaults=Defaults())
    found = validate(spec, owner="ann", team="", facts=KNOWN, limits=Limits())
    assert isinstance(found, Refusal)
    (error,) = found.errors
    assert (error.field, error.value) == (field, value)
    assert error.fix == f"{way}, or use another group; {TO_COME}"


def test_replicas_that_no_node_holds_are_not_advised_to_be_none() -> None:
    shapes = (Shape("default", 8, 4.0, 0, nodes=1), Shape("default", 0, 64.0, 0, nodes=1))
    roles = (
        Role(name="a", replicas=2, gpus=8, cpus=5.0, command=("a",)),
        Role(name="b", replicas=1, gpus=0, command=("a",)),
    )
    spec = fill_in(asked(roles=roles), task_id=TASK_ID, defaults=Defaults())
    facts = Facts(shapes=shapes, inventory_known=True)
    found = validate(spec, owner="ann", team="", facts=facts, limits=Limits())
    assert isinstance(found, Refusal)
    assert [error.field for error in found.errors] == ["roles[0].replicas"]
    assert found.errors[0].fix.startswith("ask for less in each, or use another group")


@pytest.mark.parametrize(
    ("quota", "field", "value"),
    [
        (Quota(unit=Unit.GPUS, limit=8), "roles[1].gpus", "2"),
        (Quota(unit=Unit.NODES, limit=5), "roles[1].replicas", "4"),
    ],
)
def test_a_quota_that_roles_exceed_names_the_role_that_needs_most(
    quota: Quota, field: str, value: str
) -> None:
    roles = (
        Role(name="chief", replicas=1, gpus=1, command=("a",)),
        Role(name="worker", replicas=4, gpus=2, command=("b",)),
        Role(name="ps", replicas=1, gpus=0, command=("c",)),
        Role(name="launcher", replicas=9, auxiliary=True, command=("d",)),
    )
    spec = fill_in(asked(roles=roles), task_id=TASK_ID, defaults=Defaults())
    facts = replace(KNOWN, quotas=(quota,))
    found = validate(spec, owner="ann", team="", facts=facts, limits=Limits())
    assert isinstance(found, Refusal)
    assert [(error.field, error.value) for error in found.errors] == [(field, value)]


def test_a_quota_counts_the_gpus_of_all_ranks_and_the_nodes_of_all_but_auxiliary_ones() -> None:
    roles = (
        Role(name="launcher", replicas=1, auxiliary=True, command=("a",)),
        Role(name="worker", replicas=4, gpus=2, command=("b",)),
        Role(name="ps", replicas=1, gpus=0, command=("c",)),
    )
    spec = fill_in(asked(roles=roles, nodes=0), task_id=TASK_ID, defaults=Defaults())
    assert demand(spec, Unit.GPUS, KNOWN) == 8
    assert demand(spec, Unit.NODES, KNOWN) == 5


PARTLY_TAINTED = (
    Shape("default", gpus=1, cpus=0.0, memory_bytes=0, nodes=3),
    Shape("default", gpus=1, cpus=0.0, memory_bytes=0, nodes=1, taints=("reserved=vision",)),
)


@pytest.mark.parametrize(
    ("tolerations", "fix"),
    [
        (
            ("reserved=visin",),
            "did you mean reserved=vision? tolerate reserved=vision to use it, too",
        ),
        ((), "tolerate reserved=vision to use it, too"),
    ],
)
def test_taints_that_keep_nodes_from_a_gang_are_named(
    tolerations: tuple[str, ...], fix: str
) -> None:
    facts = Facts(shapes=PARTLY_TAINTED, inventory_known=True)
    spec = fill_in(
        asked(nodes=4, gpus_per_node=1, tolerations=tolerations),
        task_id=TASK_ID,
        defaults=Defaults(),
    )
    found = validate(spec, owner="ann", team="", facts=facts, limits=Limits())
    assert isinstance(found, Refusal)
    taint, nodes = found.errors
    assert (taint.field, taint.value) == ("tolerations", ", ".join(tolerations))
    message = "1 node of group default is kept from the task by the taint reserved=vision"
    assert (taint.message, taint.fix) == (message, fix)
    assert (nodes.field, nodes.value) == ("nodes", "4")
    for right in ("reserved=vision", "reserved"):
        assert refused_fields(asked(nodes=4, gpus_per_node=1, tolerations=(right,)), facts) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"group": "elsewhere"},
        {"nodes": 40},
        {"gpus_per_node": 80},
        {"cpus": 650.0},
        {"memory_bytes": 5130 * GIB},
        {"node_selector": {"disk": "nvme"}},
    ],
    ids=str,
)
def test_a_task_that_only_lacks_nodes_may_wait_for_them(changes: dict[str, Any]) -> None:
    facts = Facts(
        shapes=SHAPES, inventory_known=True, selected=() if changes.get("node_selector") else None
    )
    spec = fill_in(asked(**changes), task_id=TASK_ID, defaults=Defaults())
    found = validate(spec, owner="ann", team="", facts=facts, limits=Limits())
    assert isinstance(found, Refusal)
    assert all(error.fix.endswith(TO_COME) for error in found.errors), found.errors
    assert refused_fields(asked(**changes, wait_for_nodes=True), facts) == []


def test_unknown_sizes_of_nodes_refuse_nothing() -> None:
    shape = Shape("default", gpus=1, cpus=0.0, memory_bytes=0, nodes=1)
    facts = Facts(shapes=(shape,), inventory_known=True)
    assert refused_fields(asked(cpus=1000.0, memory_bytes=1 << 49), facts) == []


def test_the_unknown_group_error_names_the_known_ones() -> None:
    filled = fill_in(asked(group="gpu"), task_id=TASK_ID, defaults=Defaults())
    found = validate(filled, owner="ann", team="", facts=KNOWN, limits=Limits())
    assert isinstance(found, Refusal)
    assert found.errors[0].value == "gpu"
    assert found.errors[0].fix == f"did you mean cpu? use one of: cpu, default; {TO_COME}"


def grant(amount: int, **changes: Any) -> Quota:
    return limit(amount, **changes, grant=True)


def limit(number: int, *, unit: Unit = Unit.GPUS, **changes: Any) -> Quota:
    return Quota(unit=unit, limit=number, **changes)


@pytest.mark.parametrize(
    ("quota", "changes", "fields"),
    [
        (limit(8), {"gpus_per_node": 8}, []),
        (limit(7), {"gpus_per_node": 8}, ["gpus_per_node"]),
        (limit(7, group="cpu"), {"gpus_per_node": 8}, []),
        (limit(7, user="bob"), {"gpus_per_node": 8}, []),
        (limit(7, user="ann"), {"gpus_per_node": 8}, ["gpus_per_node"]),
        (limit(7, team="red"), {"gpus_per_node": 8}, ["gpus_per_node"]),
        (limit(7, team="blue"), {"gpus_per_node": 8}, []),
        (limit(1, unit=Unit.NODES), {"nodes": 2}, ["nodes"]),
        (limit(0, priority=Priority.HIGH), {"gpus_per_node": 1}, []),
        (limit(0, priority=Priority.NORMAL), {"gpus_per_node": 1}, ["gpus_per_node"]),
        (limit(0), {"gpus_per_node": 0}, []),
        # Whole nodes: the smallest ones have 4 GPUs.
        (limit(4), {"nodes": 1}, []),
        (limit(3), {"nodes": 1}, ["gpus_per_node"]),
        # A group without GPUs takes nothing of a quota of GPUs.
        (limit(2), {"nodes": 3, "group": "cpu"}, []),
        (limit(2, unit=Unit.NODES), {"nodes": 3, "group": "cpu"}, ["nodes"]),
        # Every level but one has quota left.
        (limit(0, priority=Priority.NORMAL), {"priority": Priority.AUTO}, []),
        (limit(0), {"priority": Priority.AUTO}, ["gpus_per_node"]),
    ],
)
def test_a_task_that_a_quota_can_never_admit_is_refused(
    quota: Quota, changes: dict[str, Any], fields: list[str]
) -> None:
    facts = Facts(shapes=SHAPES, inventory_known=True, quotas=(quota,))
    assert refused_fields(asked(**changes), facts, team="red") == fields


def test_nodes_that_are_not_known_yet_may_be_small_enough_for_a_quota() -> None:
    facts = Facts(shapes=SHAPES[:1], quotas=(limit(4),))
    assert refused_fields(asked(nodes=1), facts) == []
    assert refused_fields(asked(gpus_per_node=8), facts) == ["gpus_per_node"]


def test_the_quota_error_has_the_numbers_of_the_tightest_row() -> None:
    rows = (limit(6), limit(4, user="ann", group="default", priority=Priority.NORMAL))
    facts = Facts(shapes=SHAPES, inventory_known=True, quotas=rows)
    filled = fill_in(asked(gpus_per_node=8), task_id=TASK_ID, defaults=Defaults())
    found = validate(filled, owner="ann", team="", facts=facts, limits=Limits())
    assert isinstance(found, Refusal)
    assert found.errors[0].message == (
        "the task needs 8 GPUs, and the quota of user ann at priority normal in group default is 4"
    )


@pytest.mark.parametrize(
    ("most", "changes", "field", "value", "message", "fix"),
    [
        (2, {"nodes": 1}, "gpus_per_node", "", "4 GPUs (1 whole node)", "2 GPUs, "),
        (3, {"nodes": 2}, "gpus_per_node", "", "8 GPUs (2 whole nodes)", "3 GPUs in all, "),
        (4, {"nodes": 2}, "nodes", "2", "8 GPUs (2 whole nodes)", "4 GPUs in all, "),
        (4, {"nodes": 3, "gpus_per_node": 2}, "nodes", "3", "6 GPUs", "4 GPUs in all, "),
        (4, {"nodes": 2, "gpus_per_node": 5}, "gpus_per_node", "5", "10 GPUs", "4 GPUs in all, "),
    ],
)
def test_a_quota_error_has_the_value_that_its_field_has_in_the_task(  # noqa: PLR0917
    most: int, changes: dict[str, Any], field: str, value: str, message: str, fix: str
) -> None:
    facts = Facts(shapes=SHAPES, inventory_known=True, quotas=(limit(most, user="ann"),))
    filled = fill_in(asked(**changes), task_id=TASK_ID, defaults=Defaults())
    (error,) = check_quota(filled, "ann", "", facts)
    assert (error.field, error.value) == (field, value)
    assert error.message.startswith(f"the task needs {message}, and the quota of user ann")
    assert error.fix.startswith(f"ask for at most {fix}")


def test_whole_nodes_count_with_the_smallest_kind_of_which_there_are_enough() -> None:
    filled = fill_in(asked(nodes=2), task_id=TASK_ID, defaults=Defaults())
    assert demand(filled, Unit.GPUS, KNOWN) == 2 * 4
    assert demand(filled, Unit.GPUS, Facts(shapes=SHAPES[:1], inventory_known=True)) == 2 * 8
    assert demand(filled, Unit.NODES, KNOWN) == 2
    assert demand(filled, Unit.GPUS, Facts()) == 0


NVME = Facts(
    shapes=SHAPES,
    inventory_known=True,
    selected=(Shape("default", gpus=4, cpus=32.0, memory_bytes=256 * GIB, nodes=2),),
)
NO_SUCH = Facts(shapes=SHAPES, inventory_known=True, selected=(), labels=("disk=hdd", "zone=a"))
TAINTED = Facts(
    shapes=(Shape("default", 4, 32.0, 256 * GIB, nodes=2, taints=("reserved=vision",)),),
    inventory_known=True,
)
SELECTS = {"node_selector": {"disk": "nvme"}}


@pytest.mark.parametrize(
    ("facts", "changes", "fields"),
    [
        (NVME, {**SELECTS, "nodes": 2}, []),
        (NVME, {**SELECTS, "nodes": 3}, ["nodes"]),
        (NVME, {**SELECTS, "gpus_per_node": 8}, ["gpus_per_node"]),
        (NO_SUCH, SELECTS, ["node_selector"]),
        (NO_SUCH, {**SELECTS, "nodes": 99}, ["node_selector"]),
        (TAINTED, {}, ["tolerations"]),
        (TAINTED, {"tolerations": ("reserved=audio",)}, ["tolerations"]),
        (TAINTED, {"tolerations": ("reserved=vision",), "nodes": 2}, []),
        (TAINTED, {"tolerations": ("reserved",), "nodes": 3}, ["nodes"]),
    ],
)
def test_labels_that_no_node_has_and_taints_that_all_have_are_refused(
    facts: Facts, changes: dict[str, Any], fields: list[str]
) -> None:
    assert refused_fields(asked(**changes), facts) == fields
    assert refused_fields(asked(**changes, wait_for_nodes=True), facts) == []


def test_the_error_names_the_existing_labels() -> None:
    filled = fill_in(asked(**SELECTS), task_id=TASK_ID, defaults=Defaults())
    found = validate(filled, owner="ann", team="", facts=NO_SUCH, limits=Limits())
    assert isinstance(found, Refusal)
    (error,) = found.errors
    assert error.message == "no node of group default has disk=nvme"
    assert error.fix.startswith("labels there are: disk=hdd, zone=a; ")


def test_a_task_that_waits_for_nodes_to_come_is_held_to_no_size_of_those_there() -> None:
    changes = {"group": "elsewhere", "nodes": 9, "gpus_per_node": 16, "wait_for_nodes": True}
    assert refused_fields(asked(**changes), KNOWN) == []


@pytest.mark.parametrize(
    ("task", "roles", "fields"),
    [
        # A limit above every node is fine while the request fits.
        ({"memory_bytes": 2000 * GIB, "memory_request_bytes": GIB}, [{}], []),
        ({"cpus": 100.0, "cpus_request": 65.0}, [{}], ["cpus_request"]),
        ({"cpus_request": 65.0}, [{}], ["cpus_request"]),
        ({"cpus_request": 65.0}, [{"gpus": 1}, {"gpus": 2}], ["cpus_request"]),
        ({"cpus": 65.0}, [{"gpus": 1}, {"gpus": 2}], ["cpus"]),
        ({}, [{"gpus": 1, "cpus_request": 65.0}, {"gpus": 2}], ["roles[0].cpus_request"]),
        ({}, [{"gpus": 1, "cpus_request": 65.0}], ["roles[0].cpus_request"]),
        # A request above its limit.
        ({"cpus": 1.0, "cpus_request": 2.0}, [{}], ["cpus_request"]),
        ({"cpus": 1.0}, [{"cpus_request": 2.0}], ["roles[0].cpus_request"]),
        ({"cpus_request": 2.0}, [{"cpus": 1.0}], ["cpus_request"]),
        (
            {},
            [{"memory_bytes": GIB, "memory_request_bytes": 2 * GIB}],
            ["roles[0].memory_request_bytes"],
        ),
        ({"cpus_request": 0.0}, [{}], ["cpus_request"]),
        ({}, [{"memory_request_bytes": 1 << 51}], ["roles[0].memory_request_bytes"]),
    ],
    ids=str,
)
def test_requests_are_compared_with_nodes_and_limits(
    task: dict[str, Any], roles: list[dict[str, Any]], fields: list[str]
) -> None:
    own = tuple(
        Role.model_validate({"name": f"r{index}", "replicas": 1, "command": ("a",), **role})
        for index, role in enumerate(roles)
    )
    assert refused_fields(asked(roles=own, nodes=0, **task), KNOWN) == fields


def test_a_request_above_a_limit_names_both_fields() -> None:
    role = Role(name="a", command=("a",), cpus_request=2.0)
    spec = fill_in(asked(roles=(role,), cpus=1.0), task_id=TASK_ID, defaults=Defaults())
    found = validate(spec, owner="ann", team="", facts=KNOWN, limits=Limits())
    assert isinstance(found, Refusal)
    (error,) = found.errors
    assert (error.field, error.value) == ("roles[0].cpus_request", "2.0")
    assert error.message == "is more than the limit cpus, 1.0"


PROCESSES = replace(KNOWN, runtimes=frozenset({"process"}))
PODS = replace(KNOWN, runtimes=frozenset({"kubernetes"}))


@pytest.mark.parametrize(
    ("role", "facts", "fields"),
    [
        ({"args": ("--epochs", "3")}, PODS, []),
        ({"args": ("--epochs", "3")}, KNOWN, []),
        ({"args": ("--epochs", "3")}, PROCESSES, ["roles[0].command"]),
        ({"command": ("train",), "args": ("--epochs", "3")}, PROCESSES, []),
        ({}, PODS, ["roles[0].command"]),
        ({"args": ("a\0",)}, PODS, ["roles[0].args[0]"]),
        ({"args": ("x",) * 1025}, PODS, ["roles[0].args"]),
        ({"command": ("x",), "args": ("x",) * 1024}, PODS, ["roles[0].command"]),
    ],
    ids=[
        "args in pods",
        "args where nodes are not known",
        "args of processes",
        "both",
        "neither",
        "a NUL",
        "too many args",
        "too many words",
    ],
)
def test_the_command_may_be_left_to_the_image_of_a_pod(
    role: dict[str, Any], facts: Facts, fields: list[str]
) -> None:
    own = Role.model_validate({"name": "worker", **role})
    assert refused_fields(asked(roles=(own,)), facts) == fields


@pytest.mark.parametrize(
    ("roles", "fields"),
    [
        # Two nodes of 8 GPUs and three of 4: 28 GPUs, 224 CPUs.
        ([{"replicas": 14, "gpus": 1}, {"replicas": 14, "gpus": 1}], []),
        ([{"replicas": 14, "gpus": 1}, {"replicas": 15, "gpus": 1}], ["roles[1].replicas"]),
        ([{"replicas": 2, "gpus": 8}, {"replicas": 13, "gpus": 1}], ["roles[0].replicas"]),
        ([{"gpus": 0, "cpus": 32.0, "replicas": 4}, {"gpus": 1, "cpus": 32.0, "replicas": 3}], []),
        (
            [{"gpus": 0, "cpus": 32.0, "replicas": 4}, {"gpus": 1, "cpus": 32.0, "replicas": 4}],
            ["roles[0].replicas"],
        ),
        ([{"gpus": 0, "replicas": 200}, {"gpus": 0, "replicas": 24}], []),
        ([{"gpus": 0, "replicas": 25}, {"gpus": 0, "replicas": 200}], ["roles[1].replicas"]),
        # Whole nodes leave the others.
        ([{"replicas": 2}, {"replicas": 20, "gpus": 1}], []),
        ([{"replicas": 2}, {"replicas": 21, "gpus": 1}], ["roles[1].replicas"]),
        ([{"replicas": 3}, {"replicas": 3}, {"gpus": 0}], ["roles[0].replicas"]),
        ([{"replicas": 3}, {"replicas": 1}, {"auxiliary": True}], []),
    ],
    ids=str,
)
def test_roles_that_fit_by_themselves_and_not_together_are_refused(
    roles: list[dict[str, Any]], fields: list[str]
) -> None:
    own = tuple(
        Role.model_validate({"name": f"r{index}", "replicas": 1, "command": ("a",), **role})
        for index, role in enumerate(roles)
    )
    assert refused_fields(asked(roles=own, nodes=0), KNOWN) == fields
    assert refused_fields(asked(roles=own, nodes=0, wait_for_nodes=True), KNOWN) == []


def test_replicas_beyond_the_cpus_of_all_nodes_are_refused_with_the_rule() -> None:
    role = Role(name="a", replicas=225, gpus=0, command=("a",))
    spec = fill_in(asked(roles=(role,)), task_id=TASK_ID, defaults=Defaults())
    found = validate(spec, owner="ann", team="", facts=KNOWN, limits=Limits())
    assert isinstance(found, Refusal)
    (error,) = found.errors
    assert (error.field, error.value) == ("roles[0].replicas", "225")
    assert "one replica without GPUs for each of its CPUs" in error.message
    assert error.fix.startswith("ask for at most 224")
    # Where the CPUs are not known, the scheduler decides.
    unknown = tuple(replace(shape, cpus=0.0) for shape in SHAPES)
    facts = replace(KNOWN, shapes=unknown)
    assert not isinstance(
        validate(spec, owner="ann", team="", facts=facts, limits=Limits()), Refusal
    )


@pytest.mark.parametrize(
    ("rows", "priority", "message"),
    [
        ((grant(8), grant(16, user="ann")), Priority.NORMAL, ""),
        (
            (grant(16), grant(4, user="ann")),
            Priority.NORMAL,
            "the task needs 8 GPUs, more than ann's grant of 4 GPUs in each group permits",
        ),
        (
            (grant(0, unit=Unit.UNSPECIFIED, unlimited=True, level_max=Priority.NORMAL),),
            Priority.HIGH,
            (
                "the site's default (any amount, nothing above normal) permits nothing at high in"
                " group default"
            ),
        ),
        (
            (grant(8, level_max=Priority.NORMAL),),
            Priority.HIGH,
            (
                "the site's default (8 GPUs, nothing above normal) permits nothing at high in"
                " group default"
            ),
        ),
        ((grant(8, level_max=Priority.NORMAL),), Priority.NORMAL, ""),
        ((grant(0), grant(8, team="red", priority=Priority.LOW)), Priority.AUTO, ""),
        (
            (grant(1, unit=Unit.GPUS_OR_NODES),),
            Priority.NORMAL,
            "the task needs 8 GPUs, more than the site's default (1 GPU) permits",
        ),
    ],
)
def test_the_grant_that_decides_refuses_what_it_never_permits(
    rows: tuple[Quota, ...], priority: Priority, message: str
) -> None:
    facts = Facts(shapes=SHAPES, inventory_known=True, quotas=rows)
    spec = asked(gpus_per_node=8, priority=priority)
    filled = fill_in(spec, task_id=TASK_ID, defaults=Defaults())
    found = validate(filled, owner="ann", team="red", facts=facts, limits=Limits())
    assert (found.errors[0].message if isinstance(found, Refusal) else "") == message

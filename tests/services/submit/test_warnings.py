"""Each rule of what a submission warns of, and the bounds of warnings."""

from __future__ import annotations

from typing import Any

import pytest

from libs.contracts.messages import (
    Contract,
    EnvSource,
    PodRequest,
    Port,
    PreemptionPolicy,
    PreemptMode,
    Role,
    TaskWarning,
)
from services.submit.domain.facts import Defaults, Facts, Shape
from services.submit.domain.fill import fill_in
from services.submit.domain.warnings import RULES, WARNINGS_MAX, find_warnings, render_markdown
from tests.kit.specs import TASK_ID, asked

GIB = 1 << 30
SHAPES = (Shape("default", gpus=4, cpus=8.0, memory_bytes=8 * GIB, nodes=2, taints=("slow=yes",)),)
PROCESSES = Facts(shapes=SHAPES, inventory_known=True, runtimes=frozenset({"process"}))
PODS = Facts(shapes=SHAPES, inventory_known=True, runtimes=frozenset({"kubernetes"}))
LAX = Facts(runtimes=frozenset({"process"}), limits_not_enforced=True)
BOTH = Facts(runtimes=frozenset({"process", "kubernetes"}))


def warned(facts: Facts, **changes: Any) -> tuple[TaskWarning, ...]:
    spec = asked(**changes)
    return find_warnings(fill_in(spec, task_id=TASK_ID, defaults=Defaults()), spec, facts)


def role(name: str = "worker", **changes: Any) -> Role:
    return Role(**{"name": name, "replicas": 2, "command": ("train",), **changes})


def roles(*given: Role) -> dict[str, Any]:
    return {"roles": given}


def kill(**changes: Any) -> dict[str, Any]:
    return {"preemption": PreemptionPolicy(mode=PreemptMode.KILL, **changes)}


PORTS = (Port(name="http-a", port=8080), Port(name="b"))
REQUEST = PodRequest(
    image="x:1", env_from=(EnvSource(name="A", secret="s", key="k"),), template="{}"
)
FROM_SECRET = PodRequest(
    env_from=(
        EnvSource(name="B", config_map="c", key="k"),
        EnvSource(name="A", secret="s", key="k"),
    )
)
CASES: list[tuple[str, Facts, dict[str, Any], list[tuple[str, str]]]] = [
    (
        "waits-for-nodes",
        PROCESSES,
        {"nodes": 4096, "tolerations": ("slow",), "wait_for_nodes": True},
        [("nodes", "4096")],
    ),
    (
        "pods-only",
        PROCESSES,
        {**roles(role(image="y:1", pod=PodRequest(shm_bytes=5))), "pod": REQUEST},
        [
            ("roles[0].image", "y:1"),
            ("pod.image", "x:1"),
            ("pod.env_from", ""),
            ("pod.template", ""),
            ("roles[0].pod.shm_bytes", "5"),
        ],
    ),
    (
        "secrets-not-masked",
        PODS,
        {
            **roles(role(pod=FROM_SECRET)),
            "pod": FROM_SECRET,
            "env": {"DSN": "postgres://x"},
            "secret_env": ("DSN",),
        },
        [("pod.env_from[1]", "A"), ("roles[0].pod.env_from[1]", "A")],
    ),
    (
        "limits-not-enforced",
        LAX,
        {**roles(role(memory_bytes=GIB)), "cpus": 2.0},
        [("cpus", "2.0"), ("roles[0].memory_bytes", str(GIB))],
    ),
    (
        "limit-above-nodes",
        PODS,
        {**roles(role(), role("b", cpus=9.0, cpus_request=1.0)), "memory_bytes": 9 * GIB},
        [("roles[1].cpus", "9.0"), ("memory_bytes", str(9 * GIB))],
    ),
    ("port-leased", PROCESSES, roles(role(ports=PORTS)), [("roles[0].ports[0].port", "8080")]),
    (
        "role-unknown-to-contract",
        PODS,
        {
            **roles(role("launcher", replicas=1), role(), role("monitor")),
            "contract": Contract.MPI,
        },
        [("roles[2].name", "monitor")],
    ),
    ("not-rank-0", PODS, roles(role(), role("chief")), [("roles[1].name", "chief")]),
    (
        "fence-needs-sdk",
        PODS,
        {**kill(), "fence_after_seconds": 30.0},
        [("fence_after_seconds", "30.0")],
    ),
    (
        "deadline-unused",
        PODS,
        kill(ack_deadline_seconds=30.0),
        [("preemption.ack_deadline_seconds", "30.0")],
    ),
    (
        "deadline-beyond-run",
        PODS,
        {"preemption": PreemptionPolicy(ack_deadline_seconds=30.0), "max_run_seconds": 20.0},
        [("preemption.ack_deadline_seconds", "30.0")],
    ),
    (
        "spread-unused",
        PODS,
        roles(role(spread=True), role("b", replicas=1, gpus=1, spread=True)),
        [("roles[0].spread", "true"), ("roles[1].spread", "true")],
    ),
    (
        "shm-above-request",
        PODS,
        {
            **roles(role(memory_request_bytes=7), role("b", pod=PodRequest(shm_bytes=9))),
            "pod": PodRequest(shm_bytes=8),
            "memory_request_bytes": 8,
        },
        [("pod.shm_bytes", "8")],
    ),
    (
        "unknown-taint",
        PODS,
        {"tolerations": ("slow", "slow=yes", "fast")},
        [("tolerations[2]", "fast")],
    ),
    ("nodes-are-replicas", PODS, {**roles(role(gpus=1)), "nodes": 2}, [("nodes", "2")]),
]


@pytest.mark.parametrize(("code", "facts", "task", "places"), CASES, ids=[c[0] for c in CASES])
def test_what_is_accepted_without_effect_is_warned_of(
    code: str, facts: Facts, task: dict[str, Any], places: list[tuple[str, str]]
) -> None:
    found = [each for each in warned(facts, **task) if each.code == code]
    assert [(each.field, each.value) for each in found] == places
    assert all(each.message and "{" not in each.message for each in found)


def test_every_rule_has_a_test() -> None:
    assert [case[0] for case in CASES] == [rule.code for rule in RULES]


@pytest.mark.parametrize(
    "facts",
    [Facts(), PROCESSES, PODS, LAX, BOTH],
    ids=["unknown", "processes", "pods", "without limits", "both"],
)
def test_a_plain_task_has_no_warning(facts: Facts) -> None:
    assert warned(facts) == ()
    assert warned(facts, nodes=2, gpus_per_node=1) == ()
    assert warned(facts, **roles(role(gpus=1), role("b", gpus=1, spread=True))) == ()
    # One replica shares its node with none of its own.
    assert warned(facts, **roles(role(gpus=1)), nodes=1) == ()


@pytest.mark.parametrize("facts", [Facts(), BOTH], ids=["unknown", "both"])
def test_nothing_is_said_about_nodes_that_are_not_known(facts: Facts) -> None:
    task = {**roles(role(image="y:1", ports=PORTS)), "cpus": 1e4, "tolerations": ("gone",)}
    assert warned(facts, **task) == ()


def test_warnings_are_few_short_and_without_secrets() -> None:
    many = tuple(
        role(f"r{index}", image="i" * 500, pod=PodRequest(template="secret", image="i" * 500))
        for index in range(WARNINGS_MAX)
    )
    found = warned(PROCESSES, roles=many, group="g" * 400)
    assert len(found) == WARNINGS_MAX
    assert all(len(each.message) <= 300 and len(each.value) <= 80 for each in found)
    assert "secret" not in "".join(each.to_json().decode() for each in found)


def test_the_documentation_names_every_rule() -> None:
    page = render_markdown()
    assert all(f"`{rule.code}`" in page for rule in RULES)

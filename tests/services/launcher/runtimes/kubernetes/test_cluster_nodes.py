from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from services.launcher.runtimes.kubernetes.cluster_nodes import (
    NodeRules,
    Nodes,
    Use,
    quantity,
    use_of,
)

GPU = "nvidia.com/gpu"


def a_node(
    name: str = "n1", *, gpus: int = 4, ready: str = "True", version: int = 1, **spec: Any
) -> dict[str, Any]:
    labels: Mapping[str, str] = spec.pop("labels", {})
    allocatable = spec.pop("allocatable", {})
    has = {"cpu": "8", "memory": "16Gi", **({GPU: str(gpus)} if gpus else {})}
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "labels": dict(labels),
        },
        "spec": spec,
        "status": {
            "capacity": has,
            "allocatable": {**has, **allocatable},
            "conditions": [{"type": "Ready", "status": ready, "message": "so it is"}],
        },
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2.0),
        ("1500m", 1.5),
        ("2Gi", 2.0 * 1024**3),
        ("1e3", 1000.0),
        ("3k", 3000.0),
        (None, 0.0),
        ("100n", 1e-7),
    ],
)
def test_quantities(text: str | None, value: float) -> None:
    assert quantity(text) == pytest.approx(value)


def test_what_a_pod_requests() -> None:
    pod = {
        "spec": {
            "containers": [
                {"resources": {"requests": {"cpu": "500m"}, "limits": {GPU: "2", "cpu": "1"}}},
                {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}},
                {},
            ],
            "initContainers": [{"resources": {"requests": {"memory": "2Gi"}}}],
        }
    }
    assert use_of(pod, GPU) == Use(gpus=2, cpus=1.5, memory_bytes=2 << 30)


def test_a_node_becomes_inventory() -> None:
    nodes = Nodes(NodeRules())
    nodes.put(
        a_node(
            labels={"shiftwork.dev/group": "vision", "nvidia.com/gpu.product": "H100"},
            taints=[
                {"key": "reserved", "value": "vision", "effect": "NoSchedule"},
                {"key": "nvidia.com/gpu", "effect": "NoSchedule"},
                {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
                {"key": "soft", "effect": "PreferNoSchedule"},
            ],
        )
    )
    [observed] = nodes.listing().values()
    node = observed.node
    assert (node.id, node.group, node.gpus, node.gpu_model) == ("n1", "vision", 4, "H100")
    assert (node.cpus, node.memory_bytes) == (8.0, 16 << 30)
    assert node.taints == ("reserved=vision",)
    assert node.ready
    assert node.schedulable
    assert node.unusable_gpus == ()


def test_a_node_that_is_not_ready_reports_why() -> None:
    nodes = Nodes(NodeRules())
    assert nodes.put(a_node(ready="Unknown"))
    [observed] = nodes.listing().values()
    assert not observed.node.ready
    assert observed.problem == "Ready is Unknown: so it is"
    # True only when it begins or ceases to answer.
    assert nodes.put(a_node(version=2))
    assert not nodes.put(a_node(version=3, unschedulable=True))
    assert not nodes.listing()["n1"].node.schedulable


def test_a_node_whose_label_names_no_group_takes_no_new_runs() -> None:
    nodes = Nodes(NodeRules(group_default="all"))
    nodes.put(a_node(labels={"shiftwork.dev/group": "No_Group"}))
    observed = nodes.listing()["n1"]
    assert (observed.node.ready, observed.node.schedulable) == (True, False)
    assert observed.problem == (
        "its label shiftwork.dev/group is 'No_Group', which names no group: "
        "use 1 to 63 of a-z, 0-9, - and _, a letter or digit at both ends"
    )
    # The label is mended.
    nodes.put(a_node(version=2, labels={"shiftwork.dev/group": "jupyter_cpu"}))
    node = nodes.listing()["n1"].node
    assert (node.group, node.schedulable) == ("jupyter_cpu", True)
    nodes.put(a_node(version=3, labels={}))
    assert nodes.listing()["n1"].node.group == "all"


def unusable(nodes: Nodes) -> tuple[int, ...]:
    return nodes.listing()["n1"].node.unusable_gpus


def test_others_have_the_highest_gpus_that_we_do_not() -> None:
    nodes = Nodes(NodeRules())
    nodes.put(a_node())
    nodes.use_by_us("n1", "ours", (3,))
    assert nodes.use_by_other("n1", "a", Use(gpus=2, cpus=2, memory_bytes=1 << 30))
    assert not nodes.use_by_other("n1", "a", Use(gpus=2, cpus=2, memory_bytes=1 << 30))
    assert unusable(nodes) == (1, 2)
    node = nodes.listing()["n1"].node
    assert (node.cpus, node.memory_bytes) == (6.0, 15 << 30)
    # They stay when ours is removed.
    nodes.use_by_us("n1", "ours", None)
    assert unusable(nodes) == (1, 2)
    nodes.use_by_other("n1", "b", Use(gpus=1))
    assert unusable(nodes) == (1, 2, 3)
    nodes.use_by_other("n1", "a", None)
    nodes.use_by_other("n1", "b", None)
    assert unusable(nodes) == ()
    assert nodes.listing()["n1"].node.cpus == 8.0


def test_usage_above_the_capacity_leaves_nothing() -> None:
    nodes = Nodes(NodeRules())
    nodes.put(a_node(gpus=2))
    nodes.use_by_us("n1", "ours", (0,))
    nodes.use_by_other("n1", "a", Use(gpus=7, cpus=100, memory_bytes=1 << 50))
    node = nodes.listing()["n1"].node
    # Not 0, which would mean that nobody knows.
    assert (node.unusable_gpus, node.cpus, node.memory_bytes) == ((1,), 0.001, 1)


def test_gpus_that_the_node_withholds() -> None:
    nodes = Nodes(NodeRules())
    nodes.put(a_node(allocatable={GPU: "3"}))
    node = nodes.listing()["n1"].node
    assert (node.gpus, node.unusable_gpus) == (4, (3,))


def test_gpus_of_a_lost_run_are_taken_until_its_pod_is_gone() -> None:
    nodes = Nodes(NodeRules())
    nodes.put(a_node())
    nodes.use_by_us("n1", "ours", (0, 1))
    assert unusable(nodes) == ()
    nodes.use_by_us("n1", "ours", (0, 1), lost=True)
    assert unusable(nodes) == (0, 1)
    nodes.use_by_us("n1", "ours", None)
    assert unusable(nodes) == ()


def test_a_node_that_is_deleted_stays_as_long_as_pods_of_ours_do() -> None:
    nodes = Nodes(NodeRules())
    nodes.put(a_node())
    nodes.use_by_us("n1", "ours", (0,))
    nodes.listing()
    assert nodes.drop("n1")
    assert not nodes.drop("n1")
    observed = nodes.listing()["n1"]
    assert observed.retired
    assert not observed.node.ready
    nodes.use_by_us("n1", "ours", None)
    assert nodes.listing() == {}


def test_a_listing_evaluates_only_changed_runs() -> None:
    nodes = Nodes(NodeRules())
    for number in range(5):
        nodes.put(a_node(f"n{number}"))
    before = nodes.listing()
    nodes.put(a_node("n3", version=9, unschedulable=True))
    after = nodes.listing()
    assert [name for name in after if after[name] is not before[name]] == ["n3"]
    # Its heartbeats contain nothing new.
    nodes.put(a_node("n3", version=10, unschedulable=True))
    assert nodes.listing()["n3"] == after["n3"]

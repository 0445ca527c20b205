"""Nodes of kwok: as many as a test wants, with GPUs and the status that a test gives them.

kwok keeps the leases of the nodes that carry its label and plays kubelet for their pods. A
node that falls silent loses the label: from then on nothing updates it, as when its machine is
cut off, and its pods stay as they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tools.cluster.api import STRATEGIC, Api, wait_until

LABEL = "kwok.x-k8s.io/node"
NODES = "/api/v1/nodes"


def node(
    name: str,
    *,
    gpus: int = 8,
    gpu_resource: str = "nvidia.com/gpu",
    cpus: int = 64,
    memory_gib: int = 512,
    labels: Mapping[str, str] | None = None,
    taints: Iterable[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """The manifest of a simulated node."""
    capacity = {"cpu": str(cpus), "memory": f"{memory_gib}Gi", "pods": "250"}
    if gpus:
        capacity[gpu_resource] = str(gpus)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {LABEL: "fake", "kubernetes.io/hostname": name, **(labels or {})},
        },
        "spec": {"taints": [dict(taint) for taint in taints]},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def add_nodes(api: Api, names: Iterable[str], *, seconds: float = 120, **kind: Any) -> None:  # noqa: ANN401 - see node()
    """Create nodes like ``node(**kind)`` and wait until all of them are Ready."""
    wanted = set(names)
    api.each(lambda name: api.create(NODES, node(name, **kind)), sorted(wanted))
    wait_until(
        lambda: wanted <= ready_nodes(api), f"{len(wanted)} simulated nodes", seconds=seconds
    )


def ready_nodes(api: Api) -> set[str]:
    """The names of the nodes that are Ready now."""
    return {
        one["metadata"]["name"]
        for one in api.items(NODES, resourceVersion="0")
        if any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in one["status"].get("conditions", ())
        )
    }


def silence(api: Api, name: str, *, noticed: bool = True) -> None:
    """Cut the node's machine off: its lease is not renewed, and its pods do not change any more.

    Args:
        api: The administrator's client.
        name: The node.
        noticed: Set at once the status that the node controller sets after its grace period.
    """
    api.patch(f"{NODES}/{name}", {"metadata": {"labels": {LABEL: None}}})
    if noticed:
        _set_ready(
            api, name, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."
        )


def revive(api: Api, name: str) -> None:
    """The node's machine is back: kwok speaks for it again."""
    api.patch(f"{NODES}/{name}", {"metadata": {"labels": {LABEL: "fake"}}})
    wait_until(lambda: name in ready_nodes(api), f"node {name} Ready again")


def _set_ready(api: Api, name: str, status: str, reason: str, message: str) -> None:
    condition = {"type": "Ready", "status": status, "reason": reason, "message": message}
    api.patch(f"{NODES}/{name}/status", {"status": {"conditions": [condition]}}, STRATEGIC)

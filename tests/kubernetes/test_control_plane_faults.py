"""What a cluster can do to runs: nodes that fall silent or go, pods deleted by hand, quotas, images
that are not there, names that others have, capacity that others take.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from libs.contracts.messages import (
    ExitKind,
    NodeChanged,
    PodRequest,
    RunDelayed,
    RunExited,
    RunStarted,
)
from services.launcher.domain.model import NodeRow
from tests.kit.launcher_builders import a_kill
from tests.kubernetes.cluster_harness import container, eventually, play_end, play_status
from tests.kubernetes.launcher_on_cluster import LauncherOnCluster, a_launcher
from tools.cluster.api import STRATEGIC
from tools.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.kubernetes


@pytest_asyncio.fixture
async def harness(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[LauncherOnCluster]:
    async with a_launcher(control_plane, tmp_path) as made:
        yield made


async def a_while(harness: LauncherOnCluster, seconds: float = 1.0) -> None:
    for _ in range(int(seconds / 0.05)):
        await harness.run_loops()
        await asyncio.sleep(0.05)


async def node(harness: LauncherOnCluster, node_id: str) -> NodeRow:
    async with harness.store.transaction(epoch=harness.epoch) as tx:
        row = await tx.get(NodeRow, node_id)
    assert row is not None
    return row


# Nodes


async def test_a_node_that_falls_silent_and_comes_back(harness: LauncherOnCluster) -> None:
    """Its run is lost after the fence; its GPU stays taken until the pod is seen gone."""
    cluster = harness.cluster_harness
    await harness.handle(harness.assignment(2))
    await harness.until_started()
    cluster.silence("local-1")
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.LOST
    assert "local-1" in exited.exit.detail
    row = await node(harness, "local-1")
    assert not row.node.ready
    assert row.node.unusable_gpus == (0,)
    # The pod is being deleted, but no kubelet is there to end it.
    assert cluster.pod("task-1-1")["metadata"]["deletionTimestamp"]
    # The same task goes on elsewhere meanwhile.
    await harness.handle(harness.assignment(attempt=2, nodes=["local-0"]))
    await harness.until_started(attempt=2)
    cluster.revive("local-1")
    await harness.until(lambda: "task-1-1" not in cluster.names("pods"))
    await a_while(harness)
    row = await node(harness, "local-1")
    assert row.node.ready
    assert row.node.unusable_gpus == ()
    assert len(await harness.published(RunExited)) == 1
    await harness.handle(a_kill(attempt=2))
    await harness.until_exited(attempt=2)
    await harness.until(lambda: not cluster.left())


async def test_a_short_silence_costs_nothing(harness: LauncherOnCluster) -> None:
    await harness.handle(harness.assignment(2))
    await harness.until_started()
    harness.cluster_harness.silence("local-1")
    await a_while(harness, 0.5)
    harness.cluster_harness.revive("local-1")
    await a_while(harness, 2.0)
    assert await harness.published(RunExited) == []


async def test_a_new_leader_gives_up_what_is_on_a_silent_node(harness: LauncherOnCluster) -> None:
    await harness.handle(harness.assignment(2))
    await harness.until_started()
    harness.cluster_harness.silence("local-1")
    await harness.run_loops(2)
    await harness.restart()
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.LOST
    await harness.restart()
    await a_while(harness)
    harness.cluster_harness.revive("local-1")
    await harness.until(lambda: not harness.cluster_harness.left())
    assert len(await harness.published(RunExited)) == 1


async def test_a_node_that_is_deleted(harness: LauncherOnCluster) -> None:
    await harness.handle(harness.assignment(2))
    await harness.until_started()
    harness.cluster_harness.api.delete("/api/v1/nodes/local-1")
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.LOST
    removed = await harness.published(NodeChanged, node_id="local-1", removed=True)
    assert removed
    # The controllers collect the pod of a node that is gone; nothing else is to be left.
    await harness.until(lambda: not harness.cluster_harness.left(), seconds=120)


async def test_nodes_become_inventory(harness: LauncherOnCluster) -> None:
    api = harness.cluster_harness.api
    api.patch(
        "/api/v1/nodes/local-0",
        {
            "metadata": {"labels": {"shiftwork.dev/group": "vision", "zone": "a"}},
            "spec": {
                "unschedulable": True,
                "taints": [
                    {"key": "reserved", "value": "vision", "effect": "NoSchedule"},
                    {"key": "nvidia.com/gpu", "effect": "NoSchedule"},
                    {"key": "soft", "effect": "PreferNoSchedule"},
                ],
            },
        },
    )
    await a_while(harness)
    found = (await node(harness, "local-0")).node
    assert (found.group, found.schedulable, found.gpus) == ("vision", False, 8)
    assert found.taints == ("reserved=vision",)
    assert found.labels["zone"] == "a"
    api.patch("/api/v1/nodes/local-0", {"spec": {"unschedulable": None}})
    await a_while(harness)
    assert (await node(harness, "local-0")).node.schedulable


async def test_an_eviction_is_the_sites_fault(harness: LauncherOnCluster) -> None:
    await harness.handle(harness.assignment())
    await harness.until_started()
    cluster = harness.cluster_harness
    play_status(
        cluster.api,
        cluster.path("pods", "task-1-0"),
        {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "The node was low on resource: memory.",
            "containerStatuses": [container({"terminated": {"exitCode": 137}})],
        },
    )
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.LOST
    assert "evicted from its node: The node was low on resource: memory." in exited.exit.detail


# Pods


async def test_a_pod_deleted_by_hand(harness: LauncherOnCluster) -> None:
    await harness.handle(harness.assignment(2))
    await harness.until_started()
    cluster = harness.cluster_harness
    cluster.api.delete(cluster.path("pods", "task-1-1"))
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.LOST
    assert "its pod was deleted by somebody" in exited.exit.detail
    await harness.until(lambda: not cluster.left())
    assert sorted(cluster.pods_created()) == ["task-1-0", "task-1-1"]


async def test_a_pod_deleted_by_hand_while_no_launcher_lived(harness: LauncherOnCluster) -> None:
    await harness.handle(harness.assignment(2))
    await harness.until_started()
    cluster = harness.cluster_harness
    await cluster.stop()
    cluster.api.delete(cluster.path("pods", "task-1-1"))
    await eventually(lambda: cluster.names("pods") == ["task-1-0"])
    await harness.restart()
    assert (await harness.until_exited()).exit.kind is ExitKind.LOST
    await harness.until(lambda: not cluster.left())


async def test_the_run_object_deleted_by_hand(harness: LauncherOnCluster) -> None:
    """It owns the pods: they go with it, and the run is lost."""
    await harness.handle(harness.assignment(2))
    await harness.until_started()
    cluster = harness.cluster_harness
    cluster.api.delete(cluster.path("configmaps", "task-1"))
    assert (await harness.until_exited()).exit.kind is ExitKind.LOST
    await harness.until(lambda: not cluster.left())


async def test_an_exit_that_no_launcher_saw(harness: LauncherOnCluster) -> None:
    await harness.handle(harness.assignment())
    await harness.until_started()
    cluster = harness.cluster_harness
    await cluster.stop()
    play_end(cluster.api, cluster.path("pods", "task-1-0"), code=7)
    await harness.restart()
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.FAILED
    assert [rank.code for rank in exited.exit.ranks] == [7]


async def test_the_reason_of_a_pod_that_does_not_start_is_read_from_its_events(
    harness: LauncherOnCluster,
) -> None:
    """As when a volume cannot be mounted: the pod's own status only shows ContainerCreating."""
    await harness.handle(harness.assignment(image="simulated/hangs"))
    cluster = harness.cluster_harness
    await harness.until(lambda: "task-1-0" in cluster.names("pods"))
    pod = await eventually(lambda: _bound(cluster.pod("task-1-0")))
    cluster.api.create(
        cluster.path("events"),
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "task-1-0.1"},
            "type": "Warning",
            "reason": "FailedMount",
            "message": 'MountVolume.SetUp failed for volume "data": configmap "data" not found',
            "involvedObject": {
                "kind": "Pod",
                "name": "task-1-0",
                "namespace": cluster.namespace,
                "uid": pod["metadata"]["uid"],
            },
        },
    )
    runtime = cluster.handles[-1]
    runtime._policy = replace(runtime._policy, events_after=timedelta(seconds=1))
    await a_while(harness, 4.0)
    delayed = await harness.published(RunDelayed)
    assert 'FailedMount: MountVolume.SetUp failed for volume "data"' in delayed[-1].detail


def _bound(pod: dict[str, Any]) -> dict[str, Any] | None:
    return pod if pod["spec"].get("nodeName") else None


# Launches that are refused


def a_quota(harness: LauncherOnCluster, pods: int) -> None:
    cluster = harness.cluster_harness
    cluster.api.create(
        cluster.path("resourcequotas"),
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "some"},
            "spec": {"hard": {"pods": str(pods)}},
        },
    )


async def test_a_quota_that_refuses_the_seventh_pod(harness: LauncherOnCluster) -> None:
    cluster = harness.cluster_harness
    a_quota(harness, 6)
    path = cluster.path("resourcequotas", "some")
    await eventually(lambda: cluster.api.get(path).get("status", {}).get("hard"))
    await harness.handle(harness.assignment(8))
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.LOST
    assert "the namespace's quota is used up" in exited.exit.detail
    assert "exceeded quota: some" in exited.exit.detail
    assert await harness.published(RunStarted) == []
    await harness.until(lambda: not cluster.left())
    # Without the quota, the next attempt runs.
    cluster.api.delete(path)
    await harness.handle(harness.assignment(8, attempt=2))
    await harness.until_started(attempt=2)


async def test_an_image_that_is_not_there(harness: LauncherOnCluster) -> None:
    await harness.handle(harness.assignment(2, image="simulated/missing"))
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.FAILED
    assert "the image cannot be pulled: image" in exited.exit.detail
    assert "simulated/missing" in exited.exit.detail
    delayed = await harness.published(RunDelayed)
    assert "simulated/missing" in delayed[-1].detail
    assert delayed[-1].ranks == 2
    await harness.until(lambda: not harness.cluster_harness.left())


async def test_a_pod_that_the_cluster_does_not_admit(harness: LauncherOnCluster) -> None:
    """The cluster's own admission rejects it, not our pod policy."""
    spec = harness.spec().model_copy(
        update={
            "pod": PodRequest(
                image="simulated/runs",
                template='{"spec": {"schedulerName": "default-scheduler", "priorityClassName":'
                ' "there-is-none"}}',
            )
        }
    )
    await harness.handle(harness.assignment(spec=spec))
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.FAILED
    assert exited.exit.detail
    await harness.until(lambda: not harness.cluster_harness.left())
    assert harness.cluster_harness.pods_created() == []


async def test_an_override_against_the_policy(harness: LauncherOnCluster) -> None:
    spec = harness.spec().model_copy(
        update={
            "pod": PodRequest(image="simulated/runs", template='{"spec": {"hostNetwork": true}}')
        }
    )
    await harness.handle(harness.assignment(spec=spec))
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.FAILED
    assert "the site's pod policy does not allow it" in exited.exit.detail
    assert "hostNetwork" in exited.exit.detail
    await harness.until(lambda: not harness.cluster_harness.left())


def an_object(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **more}


@pytest.mark.parametrize(
    ("path", "thing"),
    [
        ("configmaps", an_object("ConfigMap", "task-1")),
        ("secrets", an_object("Secret", "task-1")),
        ("services", an_object("Service", "task-1", spec={"clusterIP": "None"})),
        (
            "pods",
            an_object(
                "Pod",
                "task-1-1",
                spec={
                    "containers": [
                        {
                            "name": "main",
                            "image": "simulated/runs",
                            "securityContext": {
                                "allowPrivilegeEscalation": False,
                                "capabilities": {"drop": ["ALL"]},
                                "runAsNonRoot": True,
                                "seccompProfile": {"type": "RuntimeDefault"},
                            },
                        }
                    ]
                },
            ),
        ),
    ],
)
async def test_somebody_elses_object_has_the_name(
    harness: LauncherOnCluster, path: str, thing: dict[str, Any]
) -> None:
    cluster = harness.cluster_harness
    cluster.api.create(cluster.path(path), thing)
    await harness.handle(harness.assignment(2))
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.LOST
    assert "another object has the name" in exited.exit.detail
    name = thing["metadata"]["name"]
    if path not in {"secrets", "configmaps"}:
        await harness.until(lambda: cluster.left() == {path: [name]})
    # The next attempt has another name.
    await harness.handle(harness.assignment(2, attempt=2))
    await harness.until_started(attempt=2)
    assert name in cluster.names(path)


# Capacity that others take


async def test_gpus_that_other_peoples_pods_use(harness: LauncherOnCluster) -> None:
    cluster = harness.cluster_harness
    await harness.handle(harness.assignment())
    await harness.until_started()
    pod = an_object(
        "Pod",
        "theirs",
        spec={
            "nodeName": "local-0",
            "containers": [
                {
                    "name": "main",
                    "image": "simulated/runs",
                    "resources": {
                        "limits": {"nvidia.com/gpu": "3", "cpu": "2", "memory": "1Gi"},
                    },
                }
            ],
        },
    )
    cluster.api.create("/api/v1/namespaces/default/pods", pod)
    try:
        await a_while(harness)
        found = (await node(harness, "local-0")).node
        # The highest, and not the one that our run has.
        assert found.unusable_gpus == (5, 6, 7)
        assert found.cpus == 62.0
        assert found.memory_bytes == 511 << 30
    finally:
        cluster.api.delete("/api/v1/namespaces/default/pods/theirs", grace_seconds=0)
    await a_while(harness)
    assert (await node(harness, "local-0")).node.unusable_gpus == ()


async def test_gpus_that_a_node_withholds(harness: LauncherOnCluster) -> None:
    cluster = harness.cluster_harness
    cluster.api.patch(
        "/api/v1/nodes/local-0/status",
        {"status": {"allocatable": {"nvidia.com/gpu": "6"}}},
        STRATEGIC,
    )
    await a_while(harness)
    found = (await node(harness, "local-0")).node
    assert (found.gpus, found.unusable_gpus) == (8, (6, 7))


async def test_a_pod_that_does_not_fit_waits_and_reports_why(harness: LauncherOnCluster) -> None:
    """The plan and the cluster disagree: the pod is pending until its run is taken back."""
    await harness.handle(harness.assignment(gpus=8))
    await harness.until_started()
    await harness.handle(harness.assignment(gpus=8, task="other"))
    await a_while(harness, 2.0)
    delayed = await harness.published(RunDelayed, task_id="other")
    assert "the cluster's scheduler does not bind it" in delayed[-1].detail
    assert "Insufficient nvidia.com/gpu" in delayed[-1].detail
    await harness.handle(a_kill(task="other"))
    exited = await harness.until_exited(task="other")
    assert exited.exit.kind is ExitKind.KILLED
    await harness.until(lambda: harness.cluster_harness.names("pods") == ["task-1-0"])

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
async def world(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[LauncherOnCluster]:
    async with a_launcher(control_plane, tmp_path) as made:
        yield made


async def a_while(world: LauncherOnCluster, seconds: float = 1.0) -> None:
    for _ in range(int(seconds / 0.05)):
        await world.run_loops()
        await asyncio.sleep(0.05)


async def node(world: LauncherOnCluster, node_id: str) -> NodeRow:
    async with world.store.transaction(epoch=world.epoch) as tx:
        row = await tx.get(NodeRow, node_id)
    assert row is not None
    return row


# Nodes


async def test_a_node_that_falls_silent_and_comes_back(world: LauncherOnCluster) -> None:
    """Its run is lost after the fence; its GPU stays taken until the pod is seen gone."""
    cluster = world.cluster_harness
    await world.handle(world.assignment(2))
    await world.until_started()
    cluster.silence("local-1")
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.LOST
    assert "local-1" in exited.exit.detail
    row = await node(world, "local-1")
    assert not row.node.ready
    assert row.node.unusable_gpus == (0,)
    # The pod is told to go, and nobody is there to do it.
    assert cluster.pod("task-1-1")["metadata"]["deletionTimestamp"]
    # The same task goes on elsewhere meanwhile.
    await world.handle(world.assignment(attempt=2, nodes=["local-0"]))
    await world.until_started(attempt=2)
    cluster.revive("local-1")
    await world.until(lambda: "task-1-1" not in cluster.names("pods"))
    await a_while(world)
    row = await node(world, "local-1")
    assert row.node.ready
    assert row.node.unusable_gpus == ()
    assert len(await world.published(RunExited)) == 1
    await world.handle(a_kill(attempt=2))
    await world.until_exited(attempt=2)
    await world.until(lambda: not cluster.left())


async def test_a_short_silence_costs_nothing(world: LauncherOnCluster) -> None:
    await world.handle(world.assignment(2))
    await world.until_started()
    world.cluster_harness.silence("local-1")
    await a_while(world, 0.5)
    world.cluster_harness.revive("local-1")
    await a_while(world, 2.0)
    assert await world.published(RunExited) == []


async def test_a_new_leader_gives_up_what_is_on_a_silent_node(world: LauncherOnCluster) -> None:
    await world.handle(world.assignment(2))
    await world.until_started()
    world.cluster_harness.silence("local-1")
    await world.run_loops(2)
    await world.restart()
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.LOST
    await world.restart()
    await a_while(world)
    world.cluster_harness.revive("local-1")
    await world.until(lambda: not world.cluster_harness.left())
    assert len(await world.published(RunExited)) == 1


async def test_a_node_that_is_deleted(world: LauncherOnCluster) -> None:
    await world.handle(world.assignment(2))
    await world.until_started()
    world.cluster_harness.api.delete("/api/v1/nodes/local-1")
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.LOST
    removed = await world.published(NodeChanged, node_id="local-1", removed=True)
    assert removed
    # The controllers collect the pod of a node that is gone; nothing else is to be left.
    await world.until(lambda: not world.cluster_harness.left(), seconds=120)


async def test_nodes_become_inventory(world: LauncherOnCluster) -> None:
    api = world.cluster_harness.api
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
    await a_while(world)
    found = (await node(world, "local-0")).node
    assert (found.group, found.schedulable, found.gpus) == ("vision", False, 8)
    assert found.taints == ("reserved=vision",)
    assert found.labels["zone"] == "a"
    api.patch("/api/v1/nodes/local-0", {"spec": {"unschedulable": None}})
    await a_while(world)
    assert (await node(world, "local-0")).node.schedulable


async def test_an_eviction_is_the_sites_fault(world: LauncherOnCluster) -> None:
    await world.handle(world.assignment())
    await world.until_started()
    cluster = world.cluster_harness
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
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.LOST
    assert "evicted from its node: The node was low on resource: memory." in exited.exit.detail


# Pods


async def test_a_pod_deleted_by_hand(world: LauncherOnCluster) -> None:
    await world.handle(world.assignment(2))
    await world.until_started()
    cluster = world.cluster_harness
    cluster.api.delete(cluster.path("pods", "task-1-1"))
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.LOST
    assert "its pod was deleted by somebody" in exited.exit.detail
    await world.until(lambda: not cluster.left())
    assert sorted(cluster.pods_created()) == ["task-1-0", "task-1-1"]


async def test_a_pod_deleted_by_hand_while_no_launcher_lived(world: LauncherOnCluster) -> None:
    await world.handle(world.assignment(2))
    await world.until_started()
    cluster = world.cluster_harness
    await cluster.stop()
    cluster.api.delete(cluster.path("pods", "task-1-1"))
    await eventually(lambda: cluster.names("pods") == ["task-1-0"])
    await world.restart()
    assert (await world.until_exited()).exit.kind is ExitKind.LOST
    await world.until(lambda: not cluster.left())


async def test_the_run_object_deleted_by_hand(world: LauncherOnCluster) -> None:
    """It owns the pods: they go with it, and the run is lost."""
    await world.handle(world.assignment(2))
    await world.until_started()
    cluster = world.cluster_harness
    cluster.api.delete(cluster.path("configmaps", "task-1"))
    assert (await world.until_exited()).exit.kind is ExitKind.LOST
    await world.until(lambda: not cluster.left())


async def test_an_exit_that_no_launcher_saw(world: LauncherOnCluster) -> None:
    await world.handle(world.assignment())
    await world.until_started()
    cluster = world.cluster_harness
    await cluster.stop()
    play_end(cluster.api, cluster.path("pods", "task-1-0"), code=7)
    await world.restart()
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.FAILED
    assert [rank.code for rank in exited.exit.ranks] == [7]


async def test_why_a_pod_is_not_made_is_asked_of_the_events(world: LauncherOnCluster) -> None:
    """As when a volume cannot be mounted: the pod itself only says that it is being made."""
    await world.handle(world.assignment(image="simulated/hangs"))
    cluster = world.cluster_harness
    await world.until(lambda: "task-1-0" in cluster.names("pods"))
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
    await a_while(world, 4.0)
    delayed = await world.published(RunDelayed)
    assert 'FailedMount: MountVolume.SetUp failed for volume "data"' in delayed[-1].detail


def _bound(pod: dict[str, Any]) -> dict[str, Any] | None:
    return pod if pod["spec"].get("nodeName") else None


# Launches that are refused


def a_quota(world: LauncherOnCluster, pods: int) -> None:
    cluster = world.cluster_harness
    cluster.api.create(
        cluster.path("resourcequotas"),
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "some"},
            "spec": {"hard": {"pods": str(pods)}},
        },
    )


async def test_a_quota_that_refuses_the_seventh_pod(world: LauncherOnCluster) -> None:
    cluster = world.cluster_harness
    a_quota(world, 6)
    path = cluster.path("resourcequotas", "some")
    await eventually(lambda: cluster.api.get(path).get("status", {}).get("hard"))
    await world.handle(world.assignment(8))
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.LOST
    assert "the namespace's quota is used up" in exited.exit.detail
    assert "exceeded quota: some" in exited.exit.detail
    assert await world.published(RunStarted) == []
    await world.until(lambda: not cluster.left())
    # With room for it, the next attempt runs.
    cluster.api.delete(path)
    await world.handle(world.assignment(8, attempt=2))
    await world.until_started(attempt=2)


async def test_an_image_that_is_not_there(world: LauncherOnCluster) -> None:
    await world.handle(world.assignment(2, image="simulated/missing"))
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.FAILED
    assert "the image cannot be pulled: image" in exited.exit.detail
    assert "simulated/missing" in exited.exit.detail
    delayed = await world.published(RunDelayed)
    assert "simulated/missing" in delayed[-1].detail
    assert delayed[-1].ranks == 2
    await world.until(lambda: not world.cluster_harness.left())


async def test_a_pod_that_the_cluster_does_not_admit(world: LauncherOnCluster) -> None:
    """No policy of ours says so; the namespace's own does."""
    spec = world.spec().model_copy(
        update={
            "pod": PodRequest(
                image="simulated/runs",
                template='{"spec": {"schedulerName": "default-scheduler", "priorityClassName":'
                ' "there-is-none"}}',
            )
        }
    )
    await world.handle(world.assignment(spec=spec))
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.FAILED
    assert exited.exit.detail
    await world.until(lambda: not world.cluster_harness.left())
    assert world.cluster_harness.pods_created() == []


async def test_an_override_against_the_policy(world: LauncherOnCluster) -> None:
    spec = world.spec().model_copy(
        update={
            "pod": PodRequest(image="simulated/runs", template='{"spec": {"hostNetwork": true}}')
        }
    )
    await world.handle(world.assignment(spec=spec))
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.FAILED
    assert "the site's pod policy does not allow it" in exited.exit.detail
    assert "hostNetwork" in exited.exit.detail
    await world.until(lambda: not world.cluster_harness.left())


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
    world: LauncherOnCluster, path: str, thing: dict[str, Any]
) -> None:
    cluster = world.cluster_harness
    cluster.api.create(cluster.path(path), thing)
    await world.handle(world.assignment(2))
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.LOST
    assert "another object has the name" in exited.exit.detail
    name = thing["metadata"]["name"]
    if path not in {"secrets", "configmaps"}:
        await world.until(lambda: cluster.left() == {path: [name]})
    # The next attempt has another name.
    await world.handle(world.assignment(2, attempt=2))
    await world.until_started(attempt=2)
    assert name in cluster.names(path)


# Capacity that others take


async def test_gpus_that_other_peoples_pods_use(world: LauncherOnCluster) -> None:
    cluster = world.cluster_harness
    await world.handle(world.assignment())
    await world.until_started()
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
        await a_while(world)
        found = (await node(world, "local-0")).node
        # The highest, and not the one that our run has.
        assert found.unusable_gpus == (5, 6, 7)
        assert found.cpus == 62.0
        assert found.memory_bytes == 511 << 30
    finally:
        cluster.api.delete("/api/v1/namespaces/default/pods/theirs", grace_seconds=0)
    await a_while(world)
    assert (await node(world, "local-0")).node.unusable_gpus == ()


async def test_gpus_that_a_node_withholds(world: LauncherOnCluster) -> None:
    cluster = world.cluster_harness
    cluster.api.patch(
        "/api/v1/nodes/local-0/status",
        {"status": {"allocatable": {"nvidia.com/gpu": "6"}}},
        STRATEGIC,
    )
    await a_while(world)
    found = (await node(world, "local-0")).node
    assert (found.gpus, found.unusable_gpus) == (8, (6, 7))


async def test_a_pod_that_does_not_fit_waits_and_says_so(world: LauncherOnCluster) -> None:
    """The plan and the cluster disagree: the pod is pending until its run is taken back."""
    await world.handle(world.assignment(gpus=8))
    await world.until_started()
    await world.handle(world.assignment(gpus=8, task="other"))
    await a_while(world, 2.0)
    delayed = await world.published(RunDelayed, task_id="other")
    assert "the cluster's scheduler does not bind it" in delayed[-1].detail
    assert "Insufficient nvidia.com/gpu" in delayed[-1].detail
    await world.handle(a_kill(task="other"))
    exited = await world.until_exited(task="other")
    assert exited.exit.kind is ExitKind.KILLED
    await world.until(lambda: world.cluster_harness.names("pods") == ["task-1-0"])

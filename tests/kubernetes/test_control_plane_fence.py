"""One leader, by an object of a real cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from libs.kube.client import CallLimits, KubeClient
from libs.kube.transport import Transport
from libs.pods.kubernetes_names import EPOCH_MAP
from services.launcher.runtimes.kubernetes.connect import connect_client
from services.launcher.runtimes.kubernetes.epoch_fence import EpochFence
from services.launcher.runtimes.port import RuntimeDeniedError
from tests.kubernetes.cluster_harness import ClusterHarness, Crash, PlayedTransport
from tools.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.kubernetes


class Leaders:
    """Several processes, each with its own belief about which of them leads."""

    def __init__(self, cluster: ClusterHarness) -> None:
        self.cluster = cluster
        self.clients: list[KubeClient] = []
        self.calls: list[Crash] = []

    def leader(self, epoch: int) -> EpochFence:
        transport = PlayedTransport(Transport(self.cluster.plane.kubeconfig, 8), self.cluster.api)
        # Never dies; counts.
        transport.crash = Crash(10_000)
        self.calls.append(transport.crash)
        self.clients.append(connect_client(None, CallLimits(), transport))
        fence = EpochFence(self.clients[-1], self.cluster.namespace)
        fence.lead(epoch)
        return fence

    def epoch(self) -> str:
        return self.cluster.api.get(self.cluster.path("configmaps", EPOCH_MAP))["data"]["epoch"]


@pytest_asyncio.fixture
async def leaders(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Leaders]:
    cluster = ClusterHarness(control_plane, tmp_path, node_names=())
    made = Leaders(cluster)
    yield made
    for client in made.clients:
        await client.close()
    await cluster.close()


async def test_the_highest_epoch_wins(leaders: Leaders) -> None:
    old, new = leaders.leader(3), leaders.leader(4)
    await old.check()
    assert leaders.epoch() == "3"
    await new.check()
    assert leaders.epoch() == "4"
    for _ in range(2):
        with pytest.raises(RuntimeDeniedError, match=r"epoch 4\).*raise_epoch 4$"):
            await old.check()
    late = leaders.leader(2)
    with pytest.raises(RuntimeDeniedError):
        await late.check()
    await new.check()
    assert leaders.epoch() == "4"


async def test_many_at_once_end_with_the_highest(leaders: Leaders) -> None:
    fences = [leaders.leader(epoch) for epoch in (5, 9, 7, 2, 8)]
    outcomes = await asyncio.gather(*(f.check() for f in fences), return_exceptions=True)
    assert leaders.epoch() == "9"
    assert outcomes[1] is None
    assert all(isinstance(found, RuntimeDeniedError | None) for found in outcomes)
    with pytest.raises(RuntimeDeniedError):
        await fences[0].check()


async def test_a_hundred_orders_cost_a_few_reads(leaders: Leaders) -> None:
    fence = leaders.leader(1)
    await fence.check()
    before = len(leaders.calls[0].calls)
    await asyncio.gather(*(fence.check() for _ in range(100)))
    assert 1 <= len(leaders.calls[0].calls) - before <= 2
    # One that comes later is not answered by an earlier read.
    before = len(leaders.calls[0].calls)
    await fence.check()
    assert len(leaders.calls[0].calls) == before + 1


async def test_the_object_deleted_by_hand_is_created_again(leaders: Leaders) -> None:
    fence = leaders.leader(6)
    await fence.check()
    leaders.cluster.api.delete(leaders.cluster.path("configmaps", EPOCH_MAP))
    await fence.check()
    assert leaders.epoch() == "6"

"""The API server goes away, forgets, hangs and comes back; rights and tokens are wrong.

A control plane of its own, which the tests of others must not lose.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import pytest_asyncio

from libs.contracts.messages import ExitKind, NodeChanged, RunDelayed, RunExited, RunStarted
from libs.kube.client import CallLimits
from services.launcher.domain.model import RankState
from services.launcher.runtimes.kubernetes.cluster_check import RIGHTS, check
from services.launcher.runtimes.kubernetes.connect import connect_client
from services.launcher.runtimes.kubernetes.reflector import LISTS, Reflector, WatchPolicy
from services.launcher.runtimes.kubernetes.sweep import sweep
from services.launcher.runtimes.port import RuntimeUnavailableError
from tests.kit.kubernetes import StartControlPlane
from tests.kit.launcher_builders import a_kill, run_id
from tests.kubernetes.cluster_harness import ClusterHarness, all_in, eventually, until
from tests.kubernetes.launcher_on_cluster import LauncherOnCluster, a_launcher
from tools.cluster.control_plane import API_SERVER, ControlPlane

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300, func_only=True)]


@pytest.fixture(scope="module")
def plane(control_plane_start: StartControlPlane) -> ControlPlane:
    return control_plane_start(audit=True)


@pytest_asyncio.fixture
async def harness(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[LauncherOnCluster]:
    async with a_launcher(plane, tmp_path) as made:
        yield made


@pytest_asyncio.fixture
async def cluster(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[ClusterHarness]:
    made = ClusterHarness(plane, tmp_path)
    yield made
    await made.close()


async def a_while(harness: LauncherOnCluster, seconds: float = 1.0) -> None:
    for _ in range(int(seconds / 0.05)):
        await harness.run_loops()
        await asyncio.sleep(0.05)


def lists(why: str) -> float:
    return sum(
        sample.value
        for metric in LISTS.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels["why"] == why
    )


async def test_the_api_server_is_restarted_under_a_running_gang(harness: LauncherOnCluster) -> None:
    await harness.handle(harness.assignment(4))
    await harness.until_started()
    plane = harness.cluster_harness.plane
    plane.processes.stop(API_SERVER, kill=True)
    await a_while(harness, 1.0)
    # What is not seen proves nothing.
    assert await harness.published(RunExited) == []
    assert [event for event in await harness.published(NodeChanged) if not event.node.ready] == []
    plane.start_program(API_SERVER)
    await a_while(harness, 1.0)
    await harness.handle(a_kill())
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.KILLED
    assert len(await harness.published(RunStarted)) == 1
    await harness.until(lambda: not harness.cluster_harness.left())


async def test_a_launch_while_the_api_server_is_away(harness: LauncherOnCluster) -> None:
    plane = harness.cluster_harness.plane
    plane.processes.stop(API_SERVER, kill=True)
    await harness.handle(harness.assignment(2))
    await a_while(harness, 3.0)
    delayed = await harness.published(RunDelayed)
    assert "does not answer" in delayed[-1].detail
    assert delayed[-1].ranks == 2
    plane.start_program(API_SERVER)
    await harness.until_started()
    assert sorted(harness.cluster_harness.pods_created()) == ["task-1-0", "task-1-1"]


async def test_a_deletion_while_the_api_server_is_away(harness: LauncherOnCluster) -> None:
    await harness.handle(harness.assignment(2))
    await harness.until_started()
    plane = harness.cluster_harness.plane
    plane.processes.stop(API_SERVER, kill=True)
    await harness.handle(a_kill())
    await a_while(harness, 1.0)
    assert await harness.published(RunExited) == []
    plane.start_program(API_SERVER)
    assert (await harness.until_exited()).exit.kind is ExitKind.KILLED
    await harness.until(lambda: not harness.cluster_harness.left(), seconds=120)


async def test_an_api_server_that_hangs(plane: ControlPlane, tmp_path: Path) -> None:
    """Connections stay open and nothing is answered: calls end in time, watches are given up."""
    made = ClusterHarness(
        plane, tmp_path, settings={"kube_idle_seconds": 5, "kube_call_seconds": 1}
    )
    try:
        runtime = made.handle(kube_tries_max=2)
        await runtime.lead(1)
        await runtime.launch(made.order(ranks=2))
        await until(runtime, lambda observed: all_in(observed, RankState.RUNNING, ranks=2))
        loop = asyncio.get_running_loop()
        with plane.paused(API_SERVER):
            began = loop.time()
            with pytest.raises(RuntimeUnavailableError):
                await runtime.end(run_id(), frozenset(), grace_seconds=1)
            assert loop.time() - began < 5
            # Longer than a watch may be silent.
            await asyncio.sleep(6)
            assert all_in(await runtime.list(), RankState.RUNNING, ranks=2)
        await runtime.end(run_id(), frozenset(), grace_seconds=1)
        await until(runtime, lambda observed: all_in(observed, RankState.EXITED, ranks=2))
    finally:
        await made.close()


class Seen:
    """Only counts."""

    def __init__(self) -> None:
        self.lists = 0
        self.named: set[str] = set()

    def begin(self) -> None:
        self.named = set()

    def put(self, thing: dict[str, Any]) -> None:
        self.named.add(thing["metadata"]["name"])

    def gone(self, thing: dict[str, Any]) -> None:
        self.named.discard(thing["metadata"]["name"])

    def end(self, version: int) -> None:
        assert version > 0
        self.lists += 1


def a_reflector(cluster: ClusterHarness, sink: Seen, **policy: float) -> Reflector:
    client = connect_client(cluster.plane.kubeconfig, CallLimits(page_objects=10))
    return Reflector(
        "test",
        cluster.path("configmaps"),
        {},
        client=client,
        sink=sink,
        policy=WatchPolicy(**{"pause_first_seconds": 0.1, "pause_most_seconds": 1.0, **policy}),
        rng=Random(1),
    )


def a_map(cluster: ClusterHarness, name: str) -> None:
    thing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    cluster.api.create(cluster.path("configmaps"), thing)


async def test_lists_come_in_pages_and_watches_have_a_life(cluster: ClusterHarness) -> None:
    for number in range(25):
        a_map(cluster, f"m{number}")
    sink = Seen()
    reflector = a_reflector(cluster, sink, life_seconds=1.0)
    running = asyncio.ensure_future(reflector.run())
    try:
        await asyncio.wait_for(reflector.fresh(), 10)
        assert len(sink.named) == 26
        a_map(cluster, "late")
        await eventually(lambda: "late" in sink.named)
        cluster.api.delete(cluster.path("configmaps", "m3"))
        await eventually(lambda: "m3" not in sink.named)
        await eventually(lambda: sink.lists >= 3)
        assert len(sink.named) == 26
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await reflector._client.close()


async def test_a_version_that_is_forgotten_is_listed_again(cluster: ClusterHarness) -> None:
    """As after a long break of the connection, with the history compacted: 410, and a full list."""
    sink = Seen()
    reflector = a_reflector(cluster, sink)
    honest = reflector._list

    async def list_long_ago(why: str) -> int:
        version = await honest(why)
        return 1 if sink.lists == 1 else version

    reflector._list = list_long_ago  # type: ignore[method-assign]
    # The server itself remembers for a while, too.
    cluster.plane.restart(API_SERVER, kill=True)
    cluster.plane.compact()
    forgotten = lists("forgotten")
    running = asyncio.ensure_future(reflector.run())
    try:
        await eventually(lambda: sink.lists == 2)
        assert lists("forgotten") == forgotten + 1
        a_map(cluster, "late")
        await eventually(lambda: "late" in sink.named)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await reflector._client.close()


# The launcher's identity


def rules(but: str = "") -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """RBAC rules with exactly the rights of the table, but one."""
    within, across = list[dict[str, Any]](), list[dict[str, Any]]()
    for right in RIGHTS:
        if right.resource != but:
            rule = {"apiGroups": [""], "resources": [right.resource], "verbs": list(right.verbs)}
            (within if right.within else across).append(rule)
    return within, across


async def test_the_rights_of_the_table_are_enough(plane: ControlPlane, tmp_path: Path) -> None:
    async with a_launcher(plane, tmp_path) as harness:
        within, across = rules()
        cluster = harness.cluster_harness
        cluster.settings = {
            "kube_config": plane.service_account(
                cluster.namespace, "launcher", within, cluster_rules=across
            )
        }
        await harness.restart()
        findings = await check(cluster.launcher_settings(), cluster.handles[-1]._client)
        assert [f for f in findings if f.level == "bad"] == []
        await harness.handle(harness.assignment(2))
        await harness.until_started()
        await harness.handle(a_kill())
        await harness.until_exited()
        await harness.until(lambda: not cluster.left())


async def findings_of(cluster: ClusterHarness, kubeconfig: Path, **more: Any) -> dict[str, str]:
    settings = cluster.launcher_settings(kube_config=kubeconfig, **more)
    client = connect_client(kubeconfig, CallLimits(tries_max=1))
    try:
        return {
            finding.what: finding.fix
            for finding in await check(settings, client)
            if finding.level != "ok"
        }
    finally:
        await client.close()


async def test_a_launcher_that_may_not_make_pods(cluster: ClusterHarness) -> None:
    within, across = rules(but="pods")
    kubeconfig = cluster.plane.service_account(
        cluster.namespace, "poor", within, cluster_rules=across
    )
    found = await findings_of(cluster, kubeconfig)
    what = "the launcher may not get, list, watch, create, delete pods in namespace"
    assert "Role" in found[f"{what} {cluster.namespace}"]
    assert "ClusterRole" in found["the launcher may not list, watch pods in the cluster"]
    runtime = cluster.handle(kube_config=kubeconfig, kube_first_look_seconds=2)
    await runtime.lead(1)
    with pytest.raises(RuntimeUnavailableError, match="pods is forbidden"):
        await runtime.list()


async def test_a_namespace_that_is_not_there(cluster: ClusterHarness) -> None:
    found = await findings_of(cluster, cluster.plane.kubeconfig, kube_namespace="nowhere")
    assert "kubectl create namespace nowhere" in found["there is no namespace nowhere"]
    runtime = cluster.handle(kube_namespace="nowhere")
    await runtime.lead(1)
    with pytest.raises(RuntimeUnavailableError, match="is there a namespace nowhere"):
        await runtime.list()


async def test_a_token_that_is_not_good(cluster: ClusterHarness) -> None:
    path = cluster.folder / "wrong"
    path.write_text(cluster.plane.kubeconfig_of_token("nonsense"))
    [(what, fix)] = (await findings_of(cluster, path)).items()
    assert "does not accept our credentials" in what
    assert f"renew the token in {path}" in fix
    runtime = cluster.handle(kube_config=path)
    await runtime.lead(1)
    with pytest.raises(RuntimeUnavailableError, match="the token is expired or unknown"):
        await runtime.list()


async def test_a_token_is_read_again_when_it_is_refused(cluster: ClusterHarness) -> None:
    """As when it is rotated under a launcher that holds the old one."""
    path = cluster.folder / "rotated"
    path.write_text(cluster.plane.kubeconfig.read_text())
    runtime = cluster.handle(kube_config=path)
    await runtime.lead(1)
    await runtime.list()
    transport = cluster.transports[-1]._inner
    assert transport._configuration is not None
    transport._configuration.api_key["BearerToken"] = "Bearer old"
    await runtime.launch(cluster.order())
    await until(runtime, lambda observed: all_in(observed, RankState.RUNNING))


async def test_a_kubeconfig_that_is_not_there(cluster: ClusterHarness) -> None:
    path = cluster.folder / "none"
    [(what, fix)] = (await findings_of(cluster, path)).items()
    assert f"kubeconfig {path} cannot be used" in what
    assert "SHIFTWORK_LAUNCHER_KUBE_CONFIG" in fix


async def test_a_resource_that_nobody_offers(cluster: ClusterHarness) -> None:
    found = await findings_of(
        cluster, cluster.plane.kubeconfig, kube_gpu_resource="example.com/gpu"
    )
    assert "device plugin" in found["none of 2 nodes offers example.com/gpu"]
    found = await findings_of(cluster, cluster.plane.kubeconfig, kube_node_selector="a=b")
    assert "no node is selected by 'a=b'" in found


async def test_sweeping_leaves_nothing(cluster: ClusterHarness) -> None:
    runtime = cluster.handle()
    await runtime.lead(1)
    for name in ("taska", "taskb"):
        await runtime.launch(cluster.order(run_id(name), 2))
    await cluster.stop()
    client = connect_client(cluster.plane.kubeconfig, CallLimits())
    try:
        assert await sweep(client, cluster.namespace, 30) == []
        await eventually(lambda: not cluster.left())
        assert await sweep(client, "nowhere", 1) == []
    finally:
        await client.close()

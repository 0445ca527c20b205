"""Many pods at once: a gang of 64, and how much each pod costs the API server and us."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from libs.contracts.messages import ExitKind
from tests.kit.launcher_builders import a_kill
from tests.kubernetes.cluster_harness import ClusterHarness
from tests.kubernetes.launcher_on_cluster import LauncherOnCluster, a_launcher
from tools.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.kubernetes

GANG = 64


@pytest_asyncio.fixture
async def harness(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[LauncherOnCluster]:
    async with a_launcher(control_plane, tmp_path, nodes=8) as made:
        yield made


def writes(cluster: ClusterHarness) -> Counter[tuple[str, str]]:
    """The launcher's writes into the namespace from the server's audit log: (verb, kind)."""
    found = Counter[tuple[str, str]]()
    for line in cluster.plane.audit_log.read_text().splitlines():
        entry = json.loads(line)
        about: dict[str, str] = entry.get("objectRef") or {}
        # Without a name where the server gave up on a request before it authenticated it.
        username: str = entry["user"].get("username", "system:")
        if about.get("namespace") == cluster.namespace and not username.startswith("system:"):
            agent: str = entry.get("userAgent", "")
            # A busy server may reject a request, which is then sent again: that wrote nothing.
            answer = entry.get("responseStatus", {}).get("code", 0)
            if answer < 300 and "aiohttp" in agent and not about.get("subresource"):
                found[entry["verb"], about["resource"]] += 1
    return found


async def test_a_gang_of_64(harness: LauncherOnCluster) -> None:
    cluster = harness.cluster_harness
    await harness.run_loops(2)
    before = writes(cluster)
    await harness.handle(harness.assignment(GANG))
    await harness.until_started()
    pods = [cluster.pod(f"task-1-{rank}") for rank in range(GANG)]
    assert [pod["spec"]["nodeName"] for pod in pods] == [f"local-{n % 8}" for n in range(GANG)]
    launch = writes(cluster) - before
    assert launch == Counter(
        {
            ("create", "configmaps"): 1,
            ("create", "secrets"): 1,
            ("create", "services"): 1,
            ("create", "pods"): GANG,
        }
    )
    await harness.handle(a_kill())
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.KILLED
    assert len(exited.exit.ranks) == GANG
    await harness.until(lambda: not cluster.left())
    whole = writes(cluster) - before
    # Also with its end: at most three writes for a pod.
    assert whole["create", "pods"] + whole["delete", "pods"] == 2 * GANG
    assert whole.total() <= 3 * GANG


async def test_many_runs_at_once(harness: LauncherOnCluster) -> None:
    letters = "abcdefghijklmnopqrst"
    await harness.handle(*(harness.assignment(task=f"t{letter}", gpus=0) for letter in letters))
    for letter in letters:
        await harness.until_started(task=f"t{letter}")
    assert len(harness.cluster_harness.names("pods")) == len(letters)
    await harness.handle(*(a_kill(task=f"t{letter}") for letter in letters))
    for letter in letters:
        await harness.until_exited(task=f"t{letter}")
    await harness.until(lambda: not harness.cluster_harness.left())

"""Installs the platform with its charts on real nodes, once for all tests of this folder."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import subprocess
import sys
import tempfile
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
import yaml

from tests.kit.kubernetes import NodesCluster
from tools.kubernetes_demo.__main__ import (
    GRANT,
    MOUNT,
    NAMESPACE,
    TASKS_NAMESPACE,
    VOLUME,
    storage,
    values,
)
from tools.kubernetes_demo.kube import Kube
from tools.kubernetes_demo.platform import Platform

REPOSITORY = Path(__file__).resolve().parents[3]
REGISTRY, TAG = "localhost", "dev"
IMAGES = ("platform", "task", "nats", "postgres")
# Short times, so that tests need not wait long for programs that ignore requests to leave, or for
# the deletion of ended pods.
SHORT_TIMES = {"launcher": {"settings": {"patience_seconds": 5, "kube_pods_keep_seconds": 10}}}
# If this variable is set, the platform stays installed for the next session.
KEEP = "SHIFTWORK_TEST_KEEP_PLATFORM"


def k8s(config: str, *command: str) -> None:
    """Run a ``shiftwork k8s`` command as an operator would."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("shiftwork")), "k8s", *command],
        env={**os.environ, "KUBECONFIG": config},
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.fixture(scope="session")
def cluster_lock(nodes_cluster: NodesCluster) -> Iterator[None]:
    """Hold a lock: only one session at a time uses the platform of a cluster."""
    name = zlib.crc32(str(nodes_cluster.kubeconfig).encode())
    with (Path(tempfile.gettempdir()) / f"shiftwork-nodes-{name:08x}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def installed(nodes_cluster: NodesCluster, cluster_lock: None) -> Iterator[NodesCluster]:
    """Install the platform on the cluster and remove it after the session."""
    del cluster_lock
    config = str(nodes_cluster.kubeconfig)
    nodes_cluster.load([f"{REGISTRY}/shiftwork/{name}:{TAG}" for name in IMAGES])
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values(REGISTRY, TAG) | SHORT_TIMES, file)
        file.flush()
        images = ("--registry", REGISTRY, "--tag", TAG)
        k8s(config, "up", "--values", file.name, "--no-persistence", *images)
    for manifest in storage(str(nodes_cluster.shared_folder), None):
        asyncio.run(Kube(str(nodes_cluster.kubectl), config).apply(manifest))
    yield nodes_cluster
    if os.environ.get(KEEP):
        return
    k8s(config, "down", "--now", "--purge")
    asyncio.run(Kube(str(nodes_cluster.kubectl), config).run("delete", "pv", VOLUME))


@pytest_asyncio.fixture
async def platform(installed: NodesCluster) -> AsyncIterator[Platform]:
    """Connect to the installed platform and record its events and pods in a diary."""
    kube = Kube(str(installed.kubectl), str(installed.kubeconfig))
    token = await kube.run(
        *("get", "secret", "shiftwork-keys", "-n", NAMESPACE),
        *("-o", 'go-template={{index .data "admin-token" | base64decode}}'),
    )
    headers = {"authorization": f"Bearer {token.strip()}"}
    async with (
        kube.tunnel(NAMESPACE, "shiftwork-gateway", 8642) as url,
        httpx.AsyncClient(base_url=url, headers=headers, timeout=15, trust_env=False) as client,
    ):
        connected = Platform(
            kube=kube,
            client=client,
            namespace=NAMESPACE,
            tasks_namespace=TASKS_NAMESPACE,
            image=f"{REGISTRY}/shiftwork/task:{TAG}",
            storage=GRANT,
            mount=MOUNT,
            run=secrets.token_hex(3),
        )
        recording = asyncio.ensure_future(connected.keep_diary())
        yield connected
        for task_id in connected.names:
            with contextlib.suppress(Exception):
                await connected.request("PUT", f"/v1/tasks/{task_id}/goal", json={"goal": "stop"})
        recording.cancel()
        await asyncio.gather(recording, return_exceptions=True)

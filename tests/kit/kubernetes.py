"""Clusters for tests: a control plane with simulated nodes, and real nodes that run containers.

``control_plane`` and ``control_plane_start`` take kube-apiserver and etcd from KUBEBUILDER_ASSETS,
else build them. ``nodes_cluster`` is, in this order: the cluster of KUBECONFIG, the one that
``make cluster`` has left running, or one that is started here and ended with the session.

Where a machine cannot have one, tests that want it are skipped with the reason; where
SHIFTWORK_KUBERNETES=required is set (the make targets do) they fail with it instead.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import pytest

from tools.cluster.api import Api
from tools.cluster.cluster import Cluster
from tools.cluster.control_plane import ControlPlane, Options
from tools.cluster.layout import Layout, default_folder
from tools.cluster.prerequisites import CannotRunError
from tools.cluster.programs import BuildError, program

REQUIRED = "SHIFTWORK_KUBERNETES"
PLANES = {"control_plane", "control_plane_start"}
NODES = {"nodes_cluster"}
# The limit of a test's own body: the builds and starts for the first test may take minutes.
TEST_SECONDS = 180


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        used = (PLANES | NODES) & set(getattr(item, "fixturenames", ()))
        if not used:
            continue
        if item.get_closest_marker("kubernetes") is None:
            raise pytest.UsageError(
                f"{item.nodeid} uses {', '.join(sorted(used))}: "
                "mark it with @pytest.mark.kubernetes"
            )
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))
        if used & NODES and item.get_closest_marker("allow_hosts") is None:
            item.add_marker(pytest.mark.allow_hosts(hosts_of_nodes()))


def hosts_of_nodes() -> list[str]:
    """The addresses that tests with nodes may connect to: this machine and the cluster's own."""
    layout = Layout()
    subnets = (layout.node_subnet, layout.pod_subnet, layout.service_subnet)
    hosts = ["127.0.0.1", "::1", *(str(subnet) for subnet in subnets)]
    given = given_kubeconfig()
    if given is not None:
        with Api(given) as api:
            hosts.append(urlsplit(api.url).hostname or "")
    return hosts


def given_kubeconfig() -> Path | None:
    """A cluster of the user's own, by KUBECONFIG; None where there is none or it is ours."""
    given = os.environ.get("KUBECONFIG")
    if not given or Path(given) == Layout(folder=default_folder()).kubeconfig:
        return None
    return Path(given)


def cannot(why: Exception) -> NoReturn:
    """Skip with the reason, or fail with it where Kubernetes is required."""
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(f"{REQUIRED}=required, but: {why}", pytrace=False)
    pytest.skip(str(why))


StartControlPlane = Callable[..., ControlPlane]


@pytest.fixture(scope="session")
def control_plane_start() -> Iterator[StartControlPlane]:
    """Start a control plane of the caller's own, with ``Options`` by keyword."""
    started: list[ControlPlane] = []

    def start(**options: object) -> ControlPlane:
        plane = ControlPlane(Path(tempfile.mkdtemp(prefix="swk-")), Options(**options))
        started.append(plane)
        try:
            plane.start()
        except BuildError as problem:
            cannot(problem)
        plane.end_with(os.getpid(), remove=True)
        return plane

    yield start
    for plane in started:
        plane.stop()
        shutil.rmtree(plane.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def control_plane(control_plane_start: StartControlPlane) -> ControlPlane:
    """The session's API server, etcd, controllers, scheduler and kwok.

    Shared: a test uses a name space and nodes of its own, and leaves every program running.
    """
    return control_plane_start(audit=True)


@dataclass(frozen=True)
class NodesCluster:
    """A cluster whose nodes run containers."""

    kubeconfig: Path
    api: Api
    # None: a cluster of the user's, whose machines are not ours to touch.
    own: Cluster | None

    @property
    def kubectl(self) -> Path:
        """kubectl of the version that is tested."""
        return program("kubectl")

    @property
    def node_names(self) -> list[str]:
        """Every node that takes pods."""
        return sorted(
            node["metadata"]["name"]
            for node in self.api.items("/api/v1/nodes")
            if not node["spec"].get("unschedulable")
        )

    @property
    def shared_folder(self) -> Path:
        """A folder that all nodes see under this path."""
        return self._ours("a folder that all nodes share").layout.shared

    def load(self, images: Iterable[str]) -> None:
        """Bring images from podman to the nodes; a given cluster pulls them by itself."""
        if self.own is not None:
            self.own.load(list(images))

    def stop_kubelet(self, name: str, *, kill: bool = False) -> None:
        """The node stops reporting; its containers continue."""
        self._ours("stopping a kubelet").stop_kubelet(name, kill=kill)

    def start_kubelet(self, name: str) -> None:
        """The kubelet is back, the node Ready, its GPUs offered."""
        self._ours("starting a kubelet").start_kubelet(name)

    def _ours(self, what: str) -> Cluster:
        if self.own is None:
            pytest.skip(f"{what}: not on the cluster of KUBECONFIG, which is not ours")
        return self.own


@pytest.fixture(scope="session")
def nodes_cluster() -> Iterator[NodesCluster]:
    """Real nodes. What is on them is shared: a test uses name spaces of its own."""
    given = given_kubeconfig()
    if given is not None:
        with Api(given) as api:
            yield NodesCluster(given, api, None)
        return
    own = Cluster()
    running = own.is_up()
    try:
        if not running:
            own.up()
        with Api(own.layout.kubeconfig) as api:
            yield NodesCluster(own.layout.kubeconfig, api, own)
    except (BuildError, CannotRunError) as problem:
        cannot(problem)
    finally:
        own.close()
        if not running:
            assert own.down() == []

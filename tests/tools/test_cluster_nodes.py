"""Real nodes do what tests and the demo rely on, seen from inside pods that run there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.kubernetes import NodesCluster
from tools.cluster import network
from tools.cluster.api import wait_until
from tools.cluster.images import load_program
from tools.cluster.simulated import ready_nodes
from tools.cluster.system import SystemFailure, run

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

IMAGE = "localhost/shiftwork/probe:test"
SPACE = "probes"
PODS = f"/api/v1/namespaces/{SPACE}/pods"
SERVICES = f"/api/v1/namespaces/{SPACE}/services"
GPU = "nvidia.com/gpu"


def pod(name: str, node: str, *arguments: str, **limits: str) -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    main = {"name": "main", "image": IMAGE, "args": list(arguments)}
    main["resources"] = {"limits": limits}
    return {
        "metadata": {"name": name, "labels": {"probe": name.partition("-")[0]}},
        "spec": {
            "restartPolicy": "Never",
            "hostname": name,
            "subdomain": "ranks",
            "containers": [main],
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
            },
        },
    }


class Probes:
    """A name space with pods of the probe in it."""

    def __init__(self, cluster: NodesCluster) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.nodes = cluster.node_names

    def start(self, *pods: dict[str, Any]) -> None:
        for one in pods:
            self.api.create(PODS, one)

    def status(self, name: str) -> dict[str, Any]:
        return self.api.get(f"{PODS}/{name}")["status"]

    def until(self, name: str, phase: str) -> dict[str, Any]:
        wait_until(lambda: self.status(name).get("phase") == phase, f"{name} {phase}", seconds=60)
        return self.status(name)

    def kubectl(self, *arguments: str) -> str:
        config = f"--kubeconfig={self.cluster.kubeconfig}"
        return run(self.cluster.kubectl, config, "-n", SPACE, *arguments)

    def knows(self, name: str, of: str) -> bool:
        try:
            return bool(self.ask(name, "lookup", of))
        except SystemFailure:
            return False

    def ask(self, name: str, *arguments: str) -> str:
        return self.kubectl("exec", name, "--", "/probe", *arguments).strip()


@pytest.fixture(scope="module")
def probes(nodes_cluster: NodesCluster) -> Iterator[Probes]:
    if nodes_cluster.own is None:
        pytest.skip("these are tests of our own nodes")
    for node in nodes_cluster.own.nodes:
        load_program(node, "probe", IMAGE)
    nodes_cluster.own.plane.ensure_namespace(SPACE)
    made = Probes(nodes_cluster)
    yield made
    made.api.delete(f"/api/v1/namespaces/{SPACE}")
    wait_until(
        lambda: (
            not any(
                one["metadata"]["name"] == SPACE for one in made.api.items("/api/v1/namespaces")
            )
        ),
        "the name space gone",
        seconds=90,
    )


@pytest.fixture(autouse=True)
def _clean(probes: Probes) -> Iterator[None]:
    yield
    for one in probes.api.items(PODS):
        probes.api.delete(f"{PODS}/{one['metadata']['name']}", grace_seconds=1)
    for one in probes.api.items(SERVICES):
        probes.api.delete(f"{SERVICES}/{one['metadata']['name']}")
    wait_until(lambda: not probes.api.items(PODS), "no pods", seconds=60)


def test_ranks_reach_one_another_by_name_and_by_service(probes: Probes) -> None:
    first, second = probes.nodes[:2]
    names = {"rank-0": first, "rank-1": second}
    selector = {"selector": {"probe": "rank"}}
    headless = {"clusterIP": "None", "publishNotReadyAddresses": True, **selector}
    probes.api.create(SERVICES, {"metadata": {"name": "ranks"}, "spec": headless})
    ports = {"ports": [{"port": 80, "targetPort": 8000}], **selector}
    probes.api.create(SERVICES, {"metadata": {"name": "web"}, "spec": ports})
    probes.start(*(pod(name, node, "serve", "8000") for name, node in names.items()))
    for name, node in names.items():
        probes.until(name, "Running")
        assert probes.api.get(f"{PODS}/{name}")["spec"]["nodeName"] == node

    for client in names:
        for other in names:
            # A name resolves once the pod's endpoint has reached the DNS server.
            wait_until(lambda a=client, o=other: probes.knows(a, f"{o}.ranks"), f"{other}'s name")
            assert probes.ask(client, "get", f"http://{other}.ranks:8000") == other
        answers = {probes.ask(client, "get", "http://web") for _ in range(12)}
        assert answers == set(names)
        assert probes.ask(client, "lookup", "kubernetes.default") == "10.96.0.1"


def test_names_outside_the_cluster_are_unknown_at_once(probes: Probes) -> None:
    probes.start(pod("lonely", probes.nodes[0], "serve", "8000"))
    probes.until("lonely", "Running")
    began = time.monotonic()
    assert not probes.knows("lonely", "example.com")
    assert time.monotonic() - began < 3


def test_ends_are_reported_as_they_were(probes: Probes) -> None:
    node = probes.nodes[0]
    probes.start(
        pod("zero", node, "exit", "0", "all is well"),
        pod("seven", node, "exit", "7"),
        pod("eater", node, "eat", memory="48Mi"),
    )
    for name, phase, code, reason in (
        ("zero", "Succeeded", 0, "Completed"),
        ("seven", "Failed", 7, "Error"),
        ("eater", "Failed", 137, "OOMKilled"),
    ):
        ended = probes.until(name, phase)["containerStatuses"][0]["state"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (code, reason)
    assert probes.kubectl("logs", "zero") == "all is well\n"


def test_an_image_that_is_not_here_is_not_found_at_once(probes: Probes) -> None:
    absent = pod("absent", probes.nodes[1], "exit", "0")
    absent["spec"]["containers"][0]["image"] = "localhost/shiftwork/nowhere:never"
    probes.start(absent)

    def waits() -> bool:
        states = probes.status("absent").get("containerStatuses") or [{"state": {}}]
        reason = states[0]["state"].get("waiting", {}).get("reason")
        return reason in ("ErrImagePull", "ImagePullBackOff")

    wait_until(waits, "ErrImagePull", seconds=15)


@pytest.mark.parametrize(("stays", "grace", "least", "most"), [(3, 20, 3, 12), (60, 3, 3, 12)])
def test_deletion_waits_for_the_program_and_no_longer_than_its_grace(
    probes: Probes, stays: int, grace: int, least: float, most: float
) -> None:
    name = f"stays-{stays}"
    probes.start(pod(name, probes.nodes[1], "stay", str(stays)))
    probes.until(name, "Running")
    wait_until(lambda: "here" in probes.kubectl("logs", name), "its first word", seconds=10)
    began = time.monotonic()
    probes.api.delete(f"{PODS}/{name}", grace_seconds=grace)
    wait_until(lambda: not probes.api.items(PODS), f"{name} gone", seconds=30, every=0.05)
    assert least <= time.monotonic() - began < most


def test_twenty_pods_a_node_at_once(probes: Probes) -> None:
    many = [f"many-{index}" for index in range(20 * len(probes.nodes))]
    probes.start(
        *(
            pod(name, probes.nodes[index % len(probes.nodes)], "stay", "0")
            for index, name in enumerate(many)
        )
    )
    for name in many:
        probes.until(name, "Running")


def test_gpus_are_given_by_the_plugin_and_outlive_the_kubelet(probes: Probes) -> None:
    """Its containers go on while a kubelet is stopped, and keep what they were given."""
    node = probes.nodes[1]
    probes.start(pod("holder", node, "serve", "8000", **{GPU: "2"}))
    probes.until("holder", "Running")
    began = probes.status("holder")["containerStatuses"][0]["containerID"]
    probes.cluster.stop_kubelet(node)
    try:

        def silent() -> bool:
            conditions = probes.api.get(f"/api/v1/nodes/{node}")["status"]["conditions"]
            return any(c["type"] == "Ready" and c["status"] == "Unknown" for c in conditions)

        wait_until(silent, f"{node} not ready", seconds=40)
        address = probes.status("holder")["podIP"]
        assert run("curl", "-s", "--max-time", "5", f"http://{address}:8000") == "holder\n"
    finally:
        probes.cluster.start_kubelet(node)
    allocatable = probes.api.get(f"/api/v1/nodes/{node}")["status"]["allocatable"]
    assert allocatable[GPU] == "2"
    time.sleep(3)
    status = probes.status("holder")
    assert status["phase"] == "Running"
    assert status["containerStatuses"][0]["containerID"] == began
    probes.start(pod("late", node, "exit", "0", **{GPU: "1"}))
    time.sleep(2)
    assert probes.status("late")["conditions"][0]["reason"] == "Unschedulable"


def test_every_node_has_logs_of_its_own_pods_only(probes: Probes) -> None:
    own = probes.cluster.own
    assert own is not None
    for node in probes.nodes:
        probes.start(pod(f"on-{node}", node, "exit", "0", node))
    for node in probes.nodes:
        probes.until(f"on-{node}", "Succeeded")
        there = own.node(node).run("ls", "/var/log/pods").split()
        mine = [name for name in there if name.startswith(f"{SPACE}_on-")]
        assert [name.split("_")[1] for name in mine] == [f"on-{node}"]


def test_a_node_that_is_cut_off_is_noticed_and_comes_back(probes: Probes) -> None:
    own = probes.cluster.own
    assert own is not None
    plan = own.node(probes.nodes[1]).plan
    network.cut(plan)
    try:
        wait_until(lambda: plan.name not in ready_nodes(probes.api), "noticed", seconds=40)
    finally:
        network.cut(plan, off=False)
    wait_until(lambda: plan.name in ready_nodes(probes.api), "back", seconds=40)

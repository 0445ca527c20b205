"""Which pods can connect to which ports once the charts' NetworkPolicies are enforced."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.kit.kubernetes import NodesCluster
from tools.kubernetes_demo.kube import KubeError
from tools.kubernetes_demo.platform import DemoError, Platform

pytestmark = pytest.mark.kubernetes

# Tries all ports repeatedly, because a new pod's rules are applied a little after its start.
TRY = """
import concurrent.futures, json, socket, sys, time
def reaches(where):
    host, _, port = where.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 2).close()
    except OSError:
        return False
    return True
places = dict(one.split("=") for one in sys.argv[1:])
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    for _ in range(300):
        print(json.dumps(dict(zip(places, pool.map(reaches, places.values())))), flush=True)
        time.sleep(0.5)
"""


@pytest.fixture(autouse=True)
def enforced(installed: NodesCluster) -> None:
    if installed.own is None:
        pytest.skip("whether a cluster of yours enforces NetworkPolicies is its own affair")


@pytest_asyncio.fixture
async def places(platform: Platform) -> dict[str, str]:
    """What the platform listens on, by short names."""
    inside = f"{platform.namespace}.svc.cluster.local"
    found = {
        "gateway": f"shiftwork-gateway.{inside}:8642",
        "nats": f"shiftwork-nats.{inside}:4222",
        "postgres": f"shiftwork-postgres.{inside}:5432",
        "api": "kubernetes.default.svc.cluster.local:443",
    }
    for name in ("scheduler", "log-agent"):
        label = f"app.kubernetes.io/component={name}"
        listed = await platform.kube.run(
            "get", "pods", "-n", platform.namespace, "-l", label, "-o", "json"
        )
        pod = json.loads(listed)["items"][0]
        ports = pod["spec"]["containers"][0]["ports"]
        number = next(each["containerPort"] for each in ports if each["name"] == "http")
        found[name] = f"{pod['status']['podIP']}:{number}"
    return found


def arguments(places: dict[str, str]) -> list[str]:
    return ["python3", "-u", "-c", TRY, *(f"{name}={where}" for name, where in places.items())]


def expected(places: dict[str, str], *reached: str) -> str:
    return json.dumps({name: name in reached for name in places})


@pytest_asyncio.fixture
async def bystanders(platform: Platform) -> AsyncIterator[None]:
    yield
    for space in ("bystanders", "monitoring"):
        await platform.kube.run("delete", "namespace", space, "--ignore-not-found", "--wait=false")
    await platform.kube.run(
        *("delete", "pod", "bystander", "-n", platform.namespace),
        *("--ignore-not-found", "--grace-period=0", "--force"),
    )


async def begin(platform: Platform, namespace: str, places: dict[str, str]) -> None:
    """Somebody else's pod, without a label of ours."""
    if namespace != platform.namespace:
        await platform.kube.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        )
    container = {
        "name": "main",
        "image": platform.image,
        "command": arguments(places),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "bystander", "namespace": namespace},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "containers": [container],
        },
    }

    async def made() -> bool:
        try:
            await platform.kube.apply(pod)
        except KubeError:  # the namespace's ServiceAccount does not exist yet
            return False
        return True

    await platform.wait(made, bool, f"a pod in {namespace}")


async def until_found(platform: Platform, namespace: str, wanted: str) -> None:
    """Wait until the pod's last try is as wanted."""

    async def look() -> str:
        try:
            output = await platform.kube.run("logs", "bystander", "-n", namespace, "--tail", "1")
        except KubeError as problem:
            return str(problem)
        return output.strip()

    await platform.wait(
        look, lambda last: last == wanted, f"{namespace} finds {wanted}", seconds=60
    )


async def test_tasks_reach_the_gateway_alone(platform: Platform, places: dict[str, str]) -> None:
    # It is asked to save first, which it does not know how to do.
    asked = {"ack_deadline_seconds": 1}
    task_id = await platform.submit("prober", arguments(places), gpus_per_node=0, preemption=asked)

    async def look() -> str:
        query = {"rank": 0, "tail": 1}
        try:
            output = await platform.request("GET", f"/v1/tasks/{task_id}/logs", params=query)
        except DemoError as problem:  # no attempt has begun yet
            return str(problem)
        return str(output).strip()

    wanted = expected(places, "gateway")
    await platform.wait(look, lambda last: last == wanted, f"a task finds {wanted}", seconds=60)
    await platform.request("PUT", f"/v1/tasks/{task_id}/goal", json={"goal": "stop"})
    await platform.until_nothing_left(task_id)


@pytest.mark.usefixtures("bystanders")
async def test_other_pods_reach_only_what_the_policies_allow(
    platform: Platform, places: dict[str, str]
) -> None:
    """All pods reach the gateway, Prometheus the metrics, only the platform its servers."""
    reached = {
        "bystanders": ("gateway", "api"),
        "monitoring": ("gateway", "api", "scheduler", "log-agent"),
        platform.namespace: ("gateway", "api"),
    }
    for namespace in reached:
        await begin(platform, namespace, places)
    for namespace, names in reached.items():
        await until_found(platform, namespace, expected(places, *names))

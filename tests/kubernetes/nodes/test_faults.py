"""Faults in a cluster shared with others: quotas, evictions, others' pods, crashes of our pods."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.kit.kubernetes import NodesCluster
from tools.kubernetes_demo.kube import KubeError
from tools.kubernetes_demo.platform import Platform

pytestmark = pytest.mark.kubernetes
UP = "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done"


def of_task(platform: Platform, task_id: str, fact: str) -> list[dict[str, Any]]:
    """The events of one type about a task, in order."""
    return [e.data for e in platform.diary if (e.task_id, e.fact) == (task_id, fact)]


async def test_a_quota_that_refuses_one_pod_of_a_gang(platform: Platform) -> None:
    """No half gang is left; the reason is reported; it runs as soon as the quota allows it."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "test", "namespace": platform.tasks_namespace},
        "spec": {"hard": {"pods": "1"}},
    }
    await platform.kube.apply(quota)
    try:
        task_id = await platform.submit("toomany", ["true"], nodes=2)

        async def look() -> str:
            return str(await platform.request("GET", f"/v1/tasks/{task_id}/explain"))

        await platform.until_recorded("run.exited", task_id)
        assert of_task(platform, task_id, "run.exited")[0]["exit"]["kind"] == "lost"
        await platform.wait(look, lambda text: "quota" in text, "the quota is named")
        assert not of_task(platform, task_id, "run.started")
    finally:
        await platform.kube.run("delete", "quota", "test", "-n", platform.tasks_namespace)
    await platform.until_state(task_id, "succeeded")


async def test_launchers_that_die_while_a_gang_is_launched(platform: Platform) -> None:
    task_id = await platform.submit("launched", ["sleep", "1"], nodes=2)
    await platform.until_recorded("run.assigned", task_id)
    await platform.kube.kill_pods(platform.namespace, "app.kubernetes.io/component=launcher")
    await platform.until_state(task_id, "succeeded")
    await platform.until_recorded("run.exited", task_id)
    assert [data["attempt"] for data in of_task(platform, task_id, "run.exited")] == [1]
    observed = {e.data["pod"] for e in platform.diary if e.task_id == task_id and "pod" in e.data}
    assert observed == {f"{task_id}-1-{rank}" for rank in range(2)}


async def test_gpus_that_somebody_elses_pod_takes(
    platform: Platform, installed: NodesCluster
) -> None:
    node_id = installed.node_names[0]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "somebody-elses", "namespace": "default"},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node_id},
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "main",
                    "image": platform.image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "3600"],
                    "resources": {"limits": {"nvidia.com/gpu": 1}},
                }
            ],
        },
    }

    async def look() -> dict[str, Any]:
        node: dict[str, Any] = await platform.request("GET", f"/v1/nodes/{node_id}")
        return node

    await platform.wait(look, lambda node: not node["unusable_gpus"], "every GPU is ours")
    await platform.kube.apply(pod)
    try:
        node = await platform.wait(look, lambda node: bool(node["unusable_gpus"]), "one is theirs")
        assert len(node["unusable_gpus"]) == 1
        assert node["free_gpus"] == node["gpus"] - 1
    finally:
        await platform.kube.run("delete", "pod", "somebody-elses", "-n", "default")
    await platform.wait(look, lambda node: not node["unusable_gpus"], "it is given back")


async def test_the_run_token_is_in_a_secret_only(platform: Platform) -> None:
    script = (
        "import os, time\n"
        "token, line = os.environ['SHIFTWORK_RUN_TOKEN'], open('/proc/1/cmdline').read()\n"
        "print('arguments', line.count(token), flush=True)\n"
        "time.sleep(3600)\n"
    )
    task_id = await platform.submit("secretive", ["python3", "-c", script], gpus_per_node=0)
    await platform.until_logged(task_id, "arguments 0")
    selector, of = f"shiftwork.dev/task={task_id}", ("-n", platform.tasks_namespace)
    found = await platform.kube.run("get", "secrets", *of, "-l", selector, "-o", "json")
    [secret] = json.loads(found)["items"]
    token = base64.b64decode(secret["data"]["run-token"]).decode()
    assert len(token) > 20
    kinds = "pods,configmaps,services,events"
    objects = await platform.kube.run("get", kinds, *of, "-o", "yaml", "--show-managed-fields")
    assert task_id in objects
    assert token not in objects
    asked = str(await platform.request("GET", f"/v1/tasks/{task_id}"))
    assert token not in asked
    for component in ("launcher", "gateway", "scheduler", "submit"):
        logs = ("-l", f"app.kubernetes.io/component={component}", "--tail", "-1")
        assert token not in await platform.kube.run("logs", "-n", platform.namespace, *logs)


@pytest.mark.parametrize("verb", ["get", "list", "watch", "delete", "update", "patch"])
async def test_the_launcher_reads_no_secrets(platform: Platform, verb: str) -> None:
    account = f"system:serviceaccount:{platform.namespace}:shiftwork-launcher"
    may = ("auth", "can-i", "--as", account, "-n", platform.tasks_namespace)
    assert (await platform.kube.run(*may, "create", "secrets")).strip() == "yes"
    with pytest.raises(KubeError):  # no is an exit status of 1
        await platform.kube.run(*may, verb, "secrets")


async def test_a_drained_pod_is_lost_and_runs_again(platform: Platform) -> None:
    """What ``kubectl drain`` does: the node is closed, its pods are evicted."""
    task_id = await platform.submit("evicted", ["sh", "-c", UP], nodes=1, gpus_per_node=1)
    await platform.until_logged(task_id, "up")
    [place] = (await platform.until_recorded("run.started", task_id)).data["placements"]
    node_id = str(place["node_id"])
    only = ("--pod-selector", f"shiftwork.dev/task={task_id}")
    drain = ("drain", node_id, *only, "--force", "--delete-emptydir-data", "--timeout", "60s")
    try:
        await platform.kube.run(*drain)
        resumed = await platform.until_recorded("run.resumed", task_id)
        [exited] = of_task(platform, task_id, "run.exited")
        assert exited["exit"]["kind"] == "lost"
        assert resumed.data["placements"][0]["node_id"] != node_id
    finally:
        await platform.kube.run("uncordon", node_id)
    await platform.until_logged(task_id, "up", attempt=2)

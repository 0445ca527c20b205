"""The part of ``preempt_to_newcomer_pods`` on nodes that run containers (``make
cluster``, or one's own).

    python -m benchmarks.preempt_to_newcomer_pods --nodes KUBECONFIG --host ADDRESS

The platform runs outside the cluster and its gateway listens on ``--host``, which pods reach.
Victims, one on each node and holding all its GPUs, are Python programs with the SDK, which an init
container puts into them: steps of a millisecond, checkpoints that cost nothing. They leave by
themselves once they have acknowledged. Floor: the bare client deletes the same pods, whose program
leaves as soon as it is asked to, and creates as many in their place; kubelets and containers take
the same for both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bare_pods import Bare, named, run_objects
from benchmarks.harness import Http, ready_nodes
from benchmarks.kube_harness import CLUSTER_RULES, LAUNCHER, RULES, Cluster, platform_on
from benchmarks.pod_watch import PodWatch, pods_of
from benchmarks.preempt_rounds import SETTLE_SECONDS, WAIT_SECONDS, Preemptions
from benchmarks.report import Report, spread
from tools.cluster import rights
from tools.cluster.api import Api

NAMESPACE = "shiftwork-bench"
GPU = "nvidia.com/gpu"
# The SDK's first answer, after the container runs.
LISTENS_SECONDS = 3.0
VICTIM = """
import time, shiftwork
saved = shiftwork.resume_from()
step = saved.step if saved else 0
while not shiftwork.should_preempt():
    time.sleep(0.001)
    step += 1
shiftwork.checkpoint_saved(step, f"none:{step}")
shiftwork.exit_preempted()
"""
# Process 1 leaves at a signal only if it handles it.
LEAVES = ("/bin/sh", "-c", "trap 'exit 0' TERM; sleep 86400 & wait")


@contextmanager
def nodes_of(kubeconfig: Path, host: str, registry: str) -> Generator[tuple[Cluster, Api, int]]:
    """The cluster with a name space and a launcher's rights of our own; with the GPUs of a node."""
    with tempfile.TemporaryDirectory() as folder, Api(kubeconfig) as api:
        rights.ensure_namespace(
            api, NAMESPACE, {"pod-security.kubernetes.io/enforce": "restricted"}
        )
        try:
            token = rights.grant(
                api, NAMESPACE, LAUNCHER, RULES, cluster_rules=CLUSTER_RULES, seconds=3_600
            )
            policy, launcher = Path(folder) / "pod-policy.json", Path(folder) / "launcher"
            images = {
                "default_image": f"{registry}/shiftwork/task:dev",
                "sdk_image": f"{registry}/shiftwork/platform:dev",
                "image_pull_policy": "IfNotPresent",
            }
            policy.write_text(json.dumps(images))
            launcher.write_text(json.dumps(_with_token(kubeconfig, token)))
            launcher.chmod(0o600)
            nodes = [node for node in api.items("/api/v1/nodes") if _gpus(node)]
            cluster = Cluster(
                kubeconfig=kubeconfig,
                launcher=launcher,
                policy=policy,
                node_ids=tuple(sorted(node["metadata"]["name"] for node in nodes)),
                namespace=NAMESPACE,
                host=host,
            )
            yield cluster, api, min(map(_gpus, nodes))
        finally:
            api.delete(f"/api/v1/namespaces/{NAMESPACE}")
            for kind in ("clusterroles", "clusterrolebindings"):
                api.delete(f"/apis/rbac.authorization.k8s.io/v1/{kind}/{NAMESPACE}-{LAUNCHER}")


def _gpus(node: dict[str, Any]) -> int:
    return int(node["status"]["allocatable"].get(GPU, 0))


def _with_token(kubeconfig: Path, token: str) -> dict[str, Any]:
    """The same cluster with another account."""
    import yaml  # noqa: PLC0415 - here alone

    config: dict[str, Any] = yaml.safe_load(kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    return config


async def bare(cluster: Cluster, api: Api, client: Bare, pods: PodWatch, count: int) -> list[float]:
    """From the order to delete a pod on each node until another runs in its place."""
    size = len(cluster.node_ids)
    names = [named("v") for _ in range(count + 2)]
    gangs: list[list[dict[str, Any]]] = []
    path = f"/api/v1/namespaces/{NAMESPACE}"
    for name in names:
        made = run_objects(cluster, name, size, 0, command=LEAVES)
        # Made beforehand: the launcher's are, too, and the pods need them.
        for secret in made.secrets:
            await asyncio.to_thread(api.create, f"{path}/secrets", secret)
        gangs.append(list(made.pods))
    found: list[float] = []
    await client.do("create", gangs[0])
    await pods.until_running(size, seconds=WAIT_SECONDS)
    for there, name, newcomers in zip(gangs, names[1:], gangs[1:], strict=False):
        await asyncio.sleep(SETTLE_SECONDS)
        began = await client.do("delete", there)
        await pods.until_gone(seconds=WAIT_SECONDS)
        await client.do("create", newcomers)
        await pods.until_running(size, {name}, seconds=WAIT_SECONDS)
        running = [life.running for life in pods.lives.values() if life.gang[0] == name]
        found.append(max(running) - began)
        pods.clear()
    await client.do("delete", gangs[-1])
    await pods.until_gone(seconds=WAIT_SECONDS)
    pods.clear()
    return found[1:]


async def measure(asked: argparse.Namespace, report: Report) -> None:
    """Bare, then ours."""
    with nodes_of(asked.nodes, asked.host, asked.registry) as (cluster, api, gpus):
        size = len(cluster.node_ids)
        async with pods_of(cluster.kubeconfig, NAMESPACE) as pods:
            with Bare(cluster) as client:
                floor = await bare(cluster, api, client, pods, asked.node_rounds)
            with platform_on(cluster) as up:
                up.start()
                http = Http(up.url, up.token)
                await ready_nodes(http, size)
                victim = ("python3", "-c", VICTIM)
                preemptions = Preemptions(http, pods, victim, newcomer=LEAVES, gpus=gpus)
                async with preemptions.victims(size) as tasks:
                    found = await preemptions.rounds(
                        tasks, asked.node_rounds, lambda: asyncio.sleep(LISTENS_SECONDS)
                    )
                http.close()
    report.floor |= spread(floor, "nodes_running")
    report.measured |= found.figures("nodes_")

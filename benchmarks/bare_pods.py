"""The floor of the Kubernetes benchmarks: a bare client that creates and deletes pods, nothing
else. A process of its own, as the launcher is; driven by ``Bare`` over its standard input.

    python -m benchmarks.bare_pods KUBECONFIG NAMESPACE

It has the launcher's rights, and is kubernetes_asyncio with 32 requests in flight, without the
models of the answers: a client that only creates pods needs none, and they would cost more than the
requests.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import uvloop
from kubernetes_asyncio import client

from benchmarks.harness import BenchmarkError, now_s
from benchmarks.kube_harness import Cluster, cpu_seconds_of
from benchmarks.pod_watch import client_of
from libs.contracts.ids import RunId
from libs.contracts.messages import (
    Placement,
    PreemptionPolicy,
    Priority,
    RetryPolicy,
    Role,
    TaskSpec,
)
from libs.pods.pod_policy import read_policy
from services.launcher.domain.master_ports import MASTER_PORTS
from services.launcher.domain.model import Run, RunState
from services.launcher.hosts import pod_hosts
from services.launcher.manifests import PodSite, RunManifests, build_manifests
from services.launcher.run_orders import Site, build_order

IN_FLIGHT = 32
Command = tuple[str, ...]
COMMAND: Command = ("/bin/sleep", "86400")
KEY = b"the key of nobody's runs, as long as a real one is: 0123456789"
_names = itertools.count()


def named(prefix: str) -> str:
    """A task's id for the bare client's pods: as long as ours."""
    number = str(next(_names)).translate(str.maketrans("0123456789", "abcdefghij"))
    return f"t{prefix}{number:a>{20 - len(prefix)}}"


def run_objects(
    cluster: Cluster,
    name: str,
    size: int,
    first_node: int,
    *,
    gpu: int = 0,
    command: Command = COMMAND,
) -> RunManifests:
    """A gang exactly as the launcher makes it, on nodes from ``first_node`` on."""
    nodes = cluster.node_ids
    spec = TaskSpec(
        name=name,
        group="default",
        priority=Priority.NORMAL,
        roles=(Role(name="main", replicas=size, command=command),),
        gpus_per_node=1,
        retry=RetryPolicy(),
        preemption=PreemptionPolicy(),
        nodes=size,
    )
    placements = tuple(
        Placement(
            rank=rank,
            role="main",
            role_index=rank,
            node_id=nodes[(first_node + rank) % len(nodes)],
            gpus=(gpu,),
        )
        for rank in range(size)
    )
    run = Run(
        task_id=RunId.parse(f"{name}.1").task_id,
        attempt=1,
        state=RunState.ASSIGNED,
        owner="admin",
        spec=spec,
        placements=placements,
    )
    site = Site("http://127.0.0.1:8642", KEY, path="", lang="", master_addr="")
    where = PodSite(cluster.namespace)
    order = build_order(run, pod_hosts(run, MASTER_PORTS), site)
    return build_manifests(order, read_policy(cluster.policy), where)


def gang(
    cluster: Cluster, name: str, size: int, first_node: int, gpu: int = 0
) -> list[dict[str, Any]]:
    """The pods of ``run_objects``."""
    return list(run_objects(cluster, name, size, first_node, gpu=gpu).pods)


class Bare:
    """The bare client as a process, for as long as the context is open."""

    def __init__(self, cluster: Cluster) -> None:
        command = [sys.executable, "-m", "benchmarks.bare_pods"]
        self._process = subprocess.Popen(
            [*command, str(cluster.launcher), cluster.namespace],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)

    def cpu_seconds(self) -> dict[str, float]:
        """Its processor time, by the name under which it is reported."""
        return {"client": cpu_seconds_of(self._process.pid)}

    async def do(self, verb: str, pods: Sequence[dict[str, Any]]) -> float:
        """``create`` or ``delete`` these; when it began, by the clock of all."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(list(pods), file)
            file.flush()
            return await asyncio.to_thread(self._ask, verb, file.name)

    def _ask(self, verb: str, file: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{verb} {file}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise BenchmarkError("the bare client died")
        return float(answer)


async def _all(api: client.CoreV1Api, namespace: str, verb: str, pods: list[Any]) -> None:
    left = iter(pods)

    async def worker() -> None:
        for pod in left:
            # Without the models, the method returns the client's raw response.
            answer: Any
            if verb == "create":
                answer = await api.create_namespaced_pod(namespace, pod, _preload_content=False)
            else:
                name = pod["metadata"]["name"]
                answer = await api.delete_namespaced_pod(name, namespace, _preload_content=False)
            await answer.read()

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(worker())


async def _serve(kubeconfig: Path, namespace: str) -> None:
    async with client_of(kubeconfig) as api:
        while line := await asyncio.to_thread(sys.stdin.readline):
            verb, file = line.split()
            pods = json.loads(await asyncio.to_thread(Path(file).read_text))
            began = now_s()
            await _all(api, namespace, verb, pods)
            print(began, flush=True)


if __name__ == "__main__":
    uvloop.run(_serve(Path(sys.argv[1]), sys.argv[2]))

"""What the launcher's view of a cluster costs by itself: its own reflectors and cache, alone in a
process, on a cluster that is full.

    python -m benchmarks.kube_probe KUBECONFIG NAMESPACE

Prints one JSON object: the full list of nodes, pods and run objects (seconds by the clock and of
processor time; MiB of memory that it keeps), and the processor time of one event with the look that
follows it.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import uvloop

from libs.kube.client import (
    CallLimits,
    KubeClient,
    namespaced,
)
from services.launcher.runtimes.kubernetes.cache import Cache, node_sink, object_sink, pod_sink
from services.launcher.runtimes.kubernetes.cluster_nodes import NodeRules
from services.launcher.runtimes.kubernetes.connect import connect_client
from services.launcher.runtimes.kubernetes.pods import MANAGED_BY, MANAGER
from services.launcher.runtimes.kubernetes.reflector import Reflector, WatchPolicy

EVENTS = 2_000
LIST_SECONDS_MAX = 300.0


def resident_mib() -> float:
    """Memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


async def listed(client: KubeClient, cache: Cache, namespace: str) -> dict[str, float]:
    """List everything once, as a new leader does; returns what it took."""
    ours = {"labelSelector": f"{MANAGED_BY}={MANAGER}"}
    kinds = (
        ("nodes", "/api/v1/nodes", dict[str, str](), node_sink(cache)),
        ("pods", namespaced(namespace, "pods"), dict[str, str](), pod_sink(cache)),
        ("run objects", namespaced(namespace, "configmaps"), ours, object_sink(cache)),
    )
    reflectors = [
        Reflector(kind, path, query, client=client, sink=sink, policy=WatchPolicy(), rng=Random(1))
        for kind, path, query, sink in kinds
    ]
    gc.collect()
    before, began, used = resident_mib(), time.monotonic(), time.process_time()
    running = [asyncio.ensure_future(each.run()) for each in reflectors]
    async with asyncio.timeout(LIST_SECONDS_MAX):
        for each in reflectors:
            await each.fresh()
    found = {
        "relist_s": time.monotonic() - began,
        "relist_cpu_s": time.process_time() - used,
        "relist_kept_mib": resident_mib() - before,
    }
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return found


async def samples(client: KubeClient, namespace: str) -> list[dict[str, Any]]:
    """Some pods that run."""
    async for items, _ in client.pages(namespaced(namespace, "pods")):
        return [item for item in items if item["status"]["phase"] == "Running"]
    return []


def event_us(cache: Cache, pods: list[dict[str, Any]]) -> float:
    """One event of a pod and a scan of the view: processor time of both, in microseconds."""
    events: list[dict[str, Any]] = []
    for number in range(EVENTS):
        pod = copy.deepcopy(pods[number % len(pods)])
        pod["metadata"]["resourceVersion"] = str(1 << 60 | number)
        started = datetime.fromtimestamp(number, UTC).isoformat()
        for status in pod["status"]["containerStatuses"]:
            status["state"] = {"running": {"startedAt": started}}
        events.append(pod)
    sink = pod_sink(cache)
    used = time.process_time()
    for pod in events:
        sink.put(pod)
        cache.listing()
    return (time.process_time() - used) * 1e6 / EVENTS


async def probe(kubeconfig: Path, namespace: str) -> dict[str, float]:
    """Measure."""
    client = connect_client(kubeconfig, CallLimits())
    try:
        # The first call loads what every later one uses.
        pods = await samples(client, namespace)
        cache = Cache(NodeRules(), lambda: datetime.now(UTC), lambda: None)
        found = await listed(client, cache, namespace)
    finally:
        await client.close()
    listing = cache.listing()
    found |= {"nodes": len(listing.nodes), "runs": len(listing.runs)}
    found["pods"] = sum(len(run.ranks) for run in listing.runs.values())
    found["event_us"] = event_us(cache, pods)
    return found


if __name__ == "__main__":
    print(json.dumps(uvloop.run(probe(Path(sys.argv[1]), sys.argv[2]))))

"""Delete everything of runs in a namespace, once no launcher is left.

The chart runs ``python -m services.launcher.runtimes.kubernetes.sweep --namespace N`` when the
platform is removed. It deletes run objects first, together with what they own. Pods end with their
own grace period, and the program waits for them for ``--seconds``.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from libs.kube.client import (
    NOT_FOUND,
    ApiError,
    CallLimits,
    KubeClient,
    namespaced,
)
from libs.pods.kubernetes_names import EPOCH_MAP, MANAGED_BY, MANAGER
from libs.service.loop import pause
from services.launcher.runtimes.kubernetes.connect import connect_client
from services.launcher.runtimes.kubernetes.pods import TASK
from services.launcher.runtimes.kubernetes.run_objects import run_all
from services.launcher.runtimes.port import RuntimeUnavailableError

Json = dict[str, Any]
LOOK_SECONDS = 1.0


async def sweep(client: KubeClient, namespace: str, seconds_max: float) -> list[str]:
    """Delete and wait. Returns the names of pods that still exist after the time."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + seconds_max
    ours = f"{MANAGED_BY}={MANAGER}"
    runs = await _names(client, namespace, "configmaps", f"{ours},{TASK}")
    await run_all(_delete(client, namespace, "configmaps", name) for name in runs)
    # The rest that the garbage collector has not reached, and pods without an owner.
    left = await _names(client, namespace, "pods", f"{ours},{TASK}")
    await run_all(_delete(client, namespace, "pods", name) for name in left)
    while left and loop.time() < ends_s:
        await pause(LOOK_SECONDS)
        left = await _names(client, namespace, "pods", f"{ours},{TASK}")
    await _delete(client, namespace, "configmaps", EPOCH_MAP)
    return left


async def _names(client: KubeClient, namespace: str, kind: str, selector: str) -> list[str]:
    found = list[str]()
    try:
        async for items, _ in client.pages(namespaced(namespace, kind), labelSelector=selector):
            found += [thing["metadata"]["name"] for thing in items]
    except ApiError as problem:
        if problem.status != NOT_FOUND:
            raise
    return found


async def _delete(client: KubeClient, namespace: str, kind: str, name: str) -> None:
    await client.delete(namespaced(namespace, kind, name), {"propagationPolicy": "Background"})


async def _main(arguments: argparse.Namespace) -> int:
    client = connect_client(arguments.kubeconfig, CallLimits())
    try:
        left = await sweep(client, arguments.namespace, arguments.seconds)
    except (ApiError, RuntimeUnavailableError) as problem:
        sys.stderr.write(f"not swept: {problem}\n")
        return 1
    finally:
        await client.close()
    if left:
        shown = ", ".join(left[:5]) + (" …" if len(left) > 5 else "")  # noqa: PLR2004 - as shown
        sys.stderr.write(
            f"{len(left)} pods are still being ended: {shown}. They are gone once their nodes"
            " answer; nothing else is left\n"
        )
        return 1
    sys.stdout.write(f"nothing of any run is left in namespace {arguments.namespace}\n")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Delete everything of runs in a namespace.")
    parser.add_argument("--namespace", required=True, help="the namespace of the tasks")
    parser.add_argument("--kubeconfig", type=Path, help="default: as kubectl, or the pod's own")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to wait for pods")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(asyncio.run(_main(_arguments())))

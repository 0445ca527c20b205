"""The runtime as the settings say. Called by ``main.py``, ``check.py`` and ``sweep.py``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

from libs.service import observability
from services.launcher.manifests import PodSite, RunObjects, objects_of
from services.launcher.runtimes.kubernetes.cache import Cache
from services.launcher.runtimes.kubernetes.check import check
from services.launcher.runtimes.kubernetes.client import CallLimits, KubeClient
from services.launcher.runtimes.kubernetes.nodes import NodeRules
from services.launcher.runtimes.kubernetes.reflector import WatchPolicy
from services.launcher.runtimes.kubernetes.runtime import KubePolicy, KubernetesRuntime
from services.launcher.runtimes.kubernetes.transport import HttpTransport, Transport
from services.launcher.runtimes.port import RunOrder
from services.launcher.settings import LauncherSettings

# Beside the calls: four watches and commands in containers.
MORE_CONNECTIONS = 16


def client_of(
    kubeconfig: Path | None, limits: CallLimits, transport: Transport | None = None
) -> KubeClient:
    """A client of the cluster that the file, or the place we run in, names."""
    transport = transport or HttpTransport(kubeconfig, limits.parallel_max + MORE_CONNECTIONS)
    # Only spreads retries and lists apart; nothing is decided by it.
    return KubeClient(transport, limits, Random())  # noqa: S311


def runtime_of(
    settings: LauncherSettings,
    *,
    now: Callable[[], datetime],
    transport: Transport | None = None,
) -> KubernetesRuntime:
    """The runtime. ``transport`` takes the place of the network."""
    policy = settings.pod_policy()
    site = PodSite(
        namespace=settings.kube_namespace,
        master_port_first=settings.master_port_first,
        master_port_last=settings.master_port_last,
    )

    def build(order: RunOrder, cache: Cache) -> RunObjects:
        labels = {rank.node_id: cache.nodes.labels(rank.node_id) for rank in order.ranks}
        return objects_of(order, policy, site, labels)

    limits = CallLimits(
        parallel_max=settings.kube_parallel_max,
        seconds=settings.kube_call_seconds,
        tries_max=settings.kube_tries_max,
        page_objects=settings.kube_page_objects,
    )
    client = client_of(settings.kube_config, limits, transport)

    async def examine() -> None:
        for finding in await check(settings, client):
            if finding.level != "ok":
                observability.log("launcher").warning(
                    "cluster", found=finding.what, fix=finding.fix
                )

    return KubernetesRuntime(
        client,
        KubePolicy(
            namespace=settings.kube_namespace,
            node_selector=settings.kube_node_selector,
            rules=NodeRules(
                gpu_resource=policy.gpu_resource,
                group_label=settings.kube_group_label,
                group_default=settings.node_group,
                tolerated=policy.tolerate,
            ),
            watch=WatchPolicy(
                life_seconds=settings.kube_watch_seconds, idle_seconds=settings.kube_idle_seconds
            ),
            first_look_seconds=settings.kube_first_look_seconds,
            pods_keep=timedelta(seconds=settings.kube_pods_keep_seconds),
            sweep_tick_seconds=settings.kube_sweep_tick_seconds,
            lost_grace_seconds=settings.patience_seconds,
        ),
        build,
        at_start=examine,
        now=now,
        rng=Random(),  # noqa: S311 - as above
    )

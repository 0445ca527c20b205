"""The kubernetes runtime: a rank is a pod. Used by ``loop.py`` through ``port.Runtime``.

Orders go to the API server, each checked against the leader's epoch. Observations come from the
reflectors and from the answers to the launcher's own orders, so a scan is never older than those.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

from libs.contracts.ids import RunId
from libs.contracts.messages import NodeSampled
from libs.contracts.runtimes import KUBERNETES
from libs.kube.client import CallLimits, KubeClient
from libs.kube.transport import Transport
from libs.pods.field_errors import PodRefusedError
from libs.pods.kubernetes_names import MAIN, MANAGED_BY, MANAGER, TASKS_NAMESPACE
from libs.service import observability
from libs.service.loop import pause
from services.launcher.domain.model import Fault, Listing, RankState
from services.launcher.domain.rank_faults import describe
from services.launcher.manifests import PodSite, RunManifests, build_manifests, run_name
from services.launcher.runtimes.exec_port import ExecOrder, ExecRefusedError
from services.launcher.runtimes.kubernetes.cache import (
    Cache,
    node_sink,
    object_sink,
    other_pod_sink,
    pod_sink,
)
from services.launcher.runtimes.kubernetes.cluster_check import check
from services.launcher.runtimes.kubernetes.cluster_nodes import CONTROL_PLANE_LABEL, NodeRules
from services.launcher.runtimes.kubernetes.connect import connect_client
from services.launcher.runtimes.kubernetes.epoch_fence import EpochFence
from services.launcher.runtimes.kubernetes.pod_exec import PodExec, open_pod_exec
from services.launcher.runtimes.kubernetes.pod_sampler import (
    AgentPolicy,
    NodeToSample,
    PodSampler,
)
from services.launcher.runtimes.kubernetes.pods import (
    FORGOTTEN,
    Pod,
)
from services.launcher.runtimes.kubernetes.reflector import Reflector, WatchPolicy
from services.launcher.runtimes.kubernetes.run_objects import RunObjectWriter, run_all
from services.launcher.runtimes.port import (
    LaunchRefusedError,
    RunOrder,
    RuntimeDeniedError,
    RuntimeUnavailableError,
)
from services.launcher.runtimes.sample_port import HeldGpus
from services.launcher.settings import LauncherSettings

Json = dict[str, Any]
SIGNAL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class KubePolicy:
    """The numbers and names of this runtime."""

    namespace: str = TASKS_NAMESPACE
    # Which nodes are ours, as kubectl's -l takes it; empty: all but those of the control plane.
    node_selector: str = ""
    rules: NodeRules = field(default_factory=NodeRules)
    watch: WatchPolicy = field(default_factory=WatchPolicy)
    # How long a scan waits for the first lists.
    first_scan_seconds: float = 30.0
    # How long the pods of a forgotten run, with their logs, are kept.
    pods_keep: timedelta = timedelta(seconds=60)
    sweep_tick_seconds: float = 5.0
    # The events of a pod are read if its node has not created it after this time, for so many pods
    # at once.
    events_after: timedelta = timedelta(seconds=8)
    events_max: int = 8
    # The grace period of pods on a lost node.
    lost_grace_seconds: float = 35.0


class KubernetesRuntime:
    """``port.Runtime`` on a cluster, in one namespace."""

    name = KUBERNETES
    shares_ports = False
    probes = True

    def __init__(
        self,
        client: KubeClient,
        policy: KubePolicy,
        build: Callable[[RunOrder, Cache], RunManifests],
        *,
        at_start: Callable[[], Coroutine[Any, Any, None]],
        now: Callable[[], datetime],
        rng: Random,
        sampler: PodSampler | None = None,
    ) -> None:
        self._client, self._policy, self._build, self._now = client, policy, build, now
        self._at_start, self._sampler = at_start, sampler
        self._strays = set[str]()
        # When the events of a run's pods were last read, in the event loop's seconds.
        self._events_read_at = dict[RunId, float]()
        # Runs whose pods are being deleted now, and runs that end rank by rank.
        self._ending, self._partly_ended = set[RunId](), set[RunId]()
        # The pods of each run that have got its signal, while others are still to start. A later
        # leader may send it once more.
        self._signalled = dict[RunId, set[str]]()
        self._hint: Callable[[], None] = lambda: None
        self.cache = Cache(policy.rules, now, self._changed)
        self._fence = EpochFence(client, policy.namespace)
        self._objects = RunObjectWriter(client, self.cache, policy.namespace)
        self._led = asyncio.Event()
        self._log = observability.log("launcher")
        selector = policy.node_selector or f"!{CONTROL_PLANE_LABEL}"
        ours = f"{MANAGED_BY}={MANAGER}"
        live = "status.phase!=Succeeded,status.phase!=Failed,spec.nodeName!="
        others = f"metadata.namespace!={policy.namespace},{live}"
        kinds = (
            ("nodes", "/api/v1/nodes", {"labelSelector": selector}, node_sink),
            ("pods", self._objects.path("pods"), dict[str, str](), pod_sink),
            ("others' pods", "/api/v1/pods", {"fieldSelector": others}, other_pod_sink),
            ("run objects", self._objects.path("configmaps"), {"labelSelector": ours}, object_sink),
        )
        self._reflectors = [
            Reflector(
                kind,
                path,
                query,
                client=client,
                sink=sink(self.cache),
                policy=policy.watch,
                rng=rng,
            )
            for kind, path, query, sink in kinds
        ]

    def _changed(self) -> None:
        self._hint()

    # port.Runtime

    async def lead(self, epoch: int) -> None:
        """See ``port.Runtime``. Everything is listed again, because an earlier leader may have
        done more than was observed."""
        self._fence.lead(epoch)
        self._partly_ended.clear()
        self._signalled.clear()
        for reflector in self._reflectors:
            reflector.renew()
        self._led.set()

    async def run(self) -> None:
        """See ``port.Runtime``."""
        await self._led.wait()
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run(), name=f"kubernetes:{reflector.kind}")
            group.create_task(self._sweep(), name="kubernetes:sweep")
            group.create_task(self._at_start(), name="kubernetes:check")

    def on_change(self, hint: Callable[[], None]) -> None:
        """See ``port.Runtime``."""
        self._hint = hint

    async def close(self) -> None:
        """See ``port.Runtime``."""
        if self._sampler is not None:
            await self._sampler.close()
        await self._client.close()

    async def sample(self, now: datetime, held: HeldGpus) -> Sequence[NodeSampled]:
        """See ``sample_port.SampledRuntime``. Nothing without agents."""
        if self._sampler is None:
            return ()
        nodes = [
            NodeToSample(node_id, self.cache.nodes.gpus(node_id), self.cache.runs.pods_on(node_id))
            for node_id in self.cache.nodes.names()
        ]
        return await self._sampler.sample(nodes, held, now)

    async def list(self) -> Listing:
        """See ``port.Runtime``."""
        if not self._fence.taken:
            await self._fence.check()
        await self._wait_for_lists()
        return self.cache.listing()

    async def _wait_for_lists(self) -> None:
        """Wait for full lists that began after this launcher became the leader."""
        try:
            async with asyncio.timeout(self._policy.first_scan_seconds):
                for reflector in self._reflectors:
                    await reflector.fresh()
        except TimeoutError:
            problems = [each.problem for each in self._reflectors if each.problem]
            raise RuntimeUnavailableError("; ".join(problems) or "not listed yet") from None

    async def launch(self, order: RunOrder) -> None:
        """See ``port.Runtime``. The run object comes first, and the Secret before the pods that
        refer to it. The launcher never reads a Secret."""
        await self._wait_for_lists()
        try:
            objects = self._build(order, self.cache)
        except PodRefusedError as problem:
            text = describe(Fault.AGAINST_POLICY, str(problem))
            raise LaunchRefusedError(Fault.AGAINST_POLICY, text) from problem
        await self._fence.check()
        await self._objects.make(order.run_id, objects, self._fence)
        silent = {rank.node_id for rank in order.ranks if not self.cache.nodes.ready(rank.node_id)}
        if silent:
            raise RuntimeUnavailableError(f"{', '.join(sorted(silent))} does not answer")

    async def signal(self, run_id: RunId, node_ids: frozenset[str], signal: int) -> None:
        """See ``port.Runtime``. Sent from inside the container to process 1. Pods that are still
        to start get it when they run: the caller tries again until then."""
        await self._fence.check()
        pods = [pod for pod in self.cache.runs.pods_of(run_id) if pod.observed.node_id in node_ids]
        done = self._signalled.setdefault(run_id, set())
        running = (pod for pod in pods if pod.observed.state is RankState.RUNNING)
        await run_all(self._signal(pod, signal, done) for pod in running if pod.uid not in done)
        later = [pod.name for pod in pods if _is_to_start(pod)]
        if later:
            raise RuntimeUnavailableError(f"pod {later[0]} gets the signal once it has started")

    async def end(
        self,
        run_id: RunId,
        node_ids: frozenset[str],
        *,
        grace_seconds: float,
        ranks: frozenset[int] | None = None,
        asks: bool = False,
    ) -> None:
        """See ``port.Runtime``. If an outdated leader creates a pod after this, the watch finds it
        and it is ended as a stray."""
        del node_ids, asks
        await self._wait_for_lists()
        await self._fence.check()
        if ranks is None:
            self._partly_ended.discard(run_id)
        else:
            self._partly_ended.add(run_id)
        await self._objects.mark_ended(run_id, self._now())
        grace = max(1, math.ceil(grace_seconds))
        # Listed now instead of taken from the cache: an earlier leader may have created more.
        await self._objects.refresh_pods(run_id)
        alive = [pod for pod in self._pods_of(run_id, ranks) if not pod.over]
        self._ending.add(run_id)
        try:
            await run_all(self._objects.delete_pod(pod, grace) for pod in alive)
        finally:
            self._ending.discard(run_id)
        silent = {
            pod.observed.node_id
            for pod in self._pods_of(run_id, ranks)
            if not (pod.over or pod.lost or self._answers(pod))
        }
        if silent:
            raise RuntimeUnavailableError(f"{', '.join(sorted(silent))} does not answer")

    @asynccontextmanager
    async def open_exec(self, order: ExecOrder) -> AsyncGenerator[PodExec]:
        """See ``exec_port.ExecRuntime``."""
        await self._fence.check()
        rank = order.place.rank
        pods = [
            pod
            for pod in self.cache.runs.pods_of(order.run_id)
            if pod.observed.rank == rank and pod.observed.state is RankState.RUNNING
        ]
        if not pods or pods[0].deleting is not None:
            raise ExecRefusedError(f"rank {rank} of run {order.run_id} is over, or not started yet")
        path = self._objects.path("pods", pods[0].name)
        async with open_pod_exec(self._client, path, order) as process:
            yield process

    def _pods_of(self, run_id: RunId, ranks: frozenset[int] | None) -> list[Pod]:
        pods = self.cache.runs.pods_of(run_id)
        return [pod for pod in pods if ranks is None or pod.observed.rank in ranks]

    async def forget(self, run_id: RunId, node_ids: frozenset[str], *, keep: bool) -> None:
        """See ``port.Runtime``. Kept pods stay for a while, for people who describe them. The run
        object stays in any case, so that no late launch creates the pods again."""
        del node_ids
        await self._wait_for_lists()
        await self._fence.check()
        if any(not (pod.over or pod.lost) for pod in self.cache.runs.pods_of(run_id)):
            raise RuntimeUnavailableError(f"run {run_id} is not over")
        known = self.cache.runs.objects.get(run_id)
        if known is not None and known.forgotten_at is None:
            forgotten_at = self._now().isoformat(timespec="seconds")
            if await self._objects.annotate(run_id, {FORGOTTEN: forgotten_at}) is None:
                self.cache.gone_object(known.uid, known.version)
                known = None
        if known is None or not keep:
            # Without the run object, the garbage collector removes the rest.
            await run_all(
                self._objects.delete_pod(pod, 1) for pod in self.cache.runs.pods_of(run_id)
            )
        self.cache.runs.forget(run_id)
        self._partly_ended.discard(run_id)
        self._signalled.pop(run_id, None)
        self._hint()

    async def fence(self, node_id: str) -> None:
        """See ``port.Runtime``. The pods stay until their node or its deletion ends them, and hold
        their GPUs. The platform accepts no calls of their runs any more."""
        await self._wait_for_lists()
        await self._fence.check()
        if self.cache.nodes.ready(node_id):
            raise RuntimeUnavailableError(f"node {node_id} answers again")
        pods = [pod for pod in self.cache.runs.pods_on(node_id) if not pod.over]
        grace = max(1, math.ceil(self._policy.lost_grace_seconds))
        await run_all(self._objects.delete_pod(pod, grace) for pod in pods if pod.deleting is None)
        for pod in pods:
            self.cache.runs.give_up(pod)
        if pods:
            self._hint()

    def _answers(self, pod: Pod) -> bool:
        return not pod.bound or self.cache.nodes.ready(pod.observed.node_id)

    async def _signal(self, pod: Pod, signal: int, done: set[str]) -> None:
        problem = await self._client.run_in(
            self._objects.path("pods", pod.name),
            MAIN,
            ["sh", "-c", f"kill -{signal} 1"],
            SIGNAL_SECONDS,
        )
        if problem:
            # Another try would not help with an image that has no shell.
            self._log.warning("signal not delivered", pod=pod.name, problem=problem)
        done.add(pod.uid)

    # Clean-up

    async def _sweep(self) -> None:
        """Delete forgotten runs after their time, while this launcher leads."""
        while True:
            await pause(self._policy.sweep_tick_seconds)
            try:
                await self.sweep()
                await self._read_pod_events()
            except (RuntimeUnavailableError, RuntimeDeniedError) as problem:
                self._log.warning("clean-up failed, trying again", problem=str(problem))

    async def sweep(self) -> None:
        """One round."""
        before = self._now() - self._policy.pods_keep
        old = [each for each in self.cache.runs.forgotten() if each[2] <= before]
        left = list(self.cache.runs.left_with_others())
        # Pods that are being ended now are no strays: a stray was there in the last round, too.
        # Neither are those that end in a later stage.
        ending = self._ending | self._partly_ended
        strays = [pod for pod in self.cache.runs.strays() if pod.run_id not in ending]
        known = self._strays
        self._strays = {pod.uid for pod in strays}
        left += [pod for pod in strays if pod.uid in known]
        if not (old or left):
            return
        await self._fence.check()
        grace = max(1, math.ceil(self._policy.lost_grace_seconds))
        await run_all(self._objects.delete_pod(pod, grace) for pod in left)
        await run_all(self._clear(run_id, thing.uid) for run_id, thing, _ in old)

    async def _read_pod_events(self) -> None:
        """Read the events of pods that are not created yet: one pod per run, of a few runs."""
        waiting = self.cache.runs.waiting(self._now() - self._policy.events_after)
        first = {pod.run_id: pod for pod in waiting}
        # The pods whose events were read longest ago come first.
        order = sorted(first.values(), key=lambda pod: self._events_read_at.get(pod.run_id, 0.0))
        self._events_read_at = {
            run_id: when for run_id, when in self._events_read_at.items() if run_id in first
        }
        for pod in order[: self._policy.events_max]:
            self._events_read_at[pod.run_id] = asyncio.get_running_loop().time()
            if self.cache.runs.explain(pod, await self._objects.warning_about(pod)):
                self._hint()

    async def _clear(self, run_id: RunId, uid: str) -> None:
        """Delete a run's ended pods, and the object that owns the rest unless a pod may still
        run."""
        pods = self.cache.runs.pods_of(run_id)
        await run_all(self._objects.delete_pod(pod, 1) for pod in pods if pod.over)
        if all(pod.over for pod in pods):
            options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
            await self._objects.delete("configmaps", run_name(run_id), options)


def build_runtime(
    settings: LauncherSettings,
    *,
    now: Callable[[], datetime],
    transport: Transport | None = None,
) -> KubernetesRuntime:
    """The runtime. ``transport`` takes the place of the network."""
    policy = settings.pod_policy()
    site = PodSite(namespace=settings.kube_namespace)

    def build(order: RunOrder, cache: Cache) -> RunManifests:
        labels = {rank.node_id: cache.nodes.labels(rank.node_id) for rank in order.ranks}
        return build_manifests(order, policy, site, labels)

    limits = CallLimits(
        parallel_max=settings.kube_parallel_max,
        seconds=settings.kube_call_seconds,
        tries_max=settings.kube_tries_max,
        page_objects=settings.kube_page_objects,
    )
    client = connect_client(settings.kube_config, limits, transport)

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
            first_scan_seconds=settings.kube_first_look_seconds,
            pods_keep=timedelta(seconds=settings.kube_pods_keep_seconds),
            sweep_tick_seconds=settings.kube_sweep_tick_seconds,
            lost_grace_seconds=settings.patience_seconds,
        ),
        build,
        at_start=examine,
        now=now,
        rng=Random(),  # noqa: S311 - as above
        sampler=_sampler(settings, client),
    )


def _sampler(settings: LauncherSettings, client: KubeClient) -> PodSampler | None:
    if settings.kube_agent_token_file is None:
        return None
    policy = AgentPolicy(
        token_file=settings.kube_agent_token_file,
        namespace=settings.kube_agent_namespace,
        label=settings.kube_agent_label,
        port=settings.kube_agent_port,
        seconds=settings.kube_agent_seconds,
        round_seconds=max(settings.kube_agent_seconds, settings.sample_seconds),
        refresh_seconds=settings.kube_agent_refresh_seconds,
        parallel_max=settings.kube_agent_parallel_max,
    )
    return PodSampler(client, policy, time.monotonic)


def _is_to_start(pod: Pod) -> bool:
    waits = pod.observed.state is RankState.PENDING and pod.deleting is None
    return waits and not (pod.over or pod.lost)

"""Measures nodes and pods by their node agents, for ``runtime.py``.

The launcher asks the agent of each node about the pods that it placed there; it takes the node's
name from the API server, and from the answer only those pods. An agent that is silent, slow or
wrong costs its own node's sample: requests and the whole round are bounded in time, and agents that
failed in the round before come last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import aiohttp

from libs.contracts.messages import NodeSampled, RankSample
from libs.kube.agents import AgentPod, LongAnswerError, by_node, headers, list_agents, read_answer
from libs.kube.client import HTTP_OK, ApiError, KubeClient
from libs.kube.transport import BROKEN
from libs.service import observability
from libs.service.metrics import Metrics
from libs.signals import agent_protocol
from libs.signals.agent_protocol import (
    PODS_MAX,
    AgentProtocolError,
    NodeMeasured,
    SampledPod,
    SampleQuery,
)
from services.launcher.domain.model import RankState
from services.launcher.runtimes.kubernetes.pods import Pod
from services.launcher.runtimes.port import RuntimeDeniedError, RuntimeUnavailableError
from services.launcher.runtimes.sample_port import HeldGpus

DETAIL_BYTES_MAX = 400
# From here on no measured GPU is numbered.
UNMEASURED = agent_protocol.GPU_INDEX_END
declare = Metrics("launcher in Kubernetes")
FAILED = declare.counter(
    "shiftwork_launcher_node_agent_failures_total",
    "Nodes that were not sampled in a round because their agent failed",
)


class AgentFailedError(Exception):
    """A node's agent gave no sample; the text has the reason."""


@dataclass(frozen=True, slots=True)
class AgentPolicy:
    """Where the agents are, what they are shown, and the limits of a round."""

    token_file: Path
    namespace: str
    label: str
    port: int
    # Of one request, of a round, and of the list of agents.
    seconds: float
    round_seconds: float
    refresh_seconds: float
    parallel_max: int


@dataclass(frozen=True, slots=True)
class NodeToSample:
    """A node of ours. ``gpus``: how many the cluster counts there."""

    node_id: str
    gpus: int
    pods: Sequence[Pod]


@dataclass
class PodSampler:
    """The rounds of one leader."""

    client: KubeClient
    policy: AgentPolicy
    monotonic: Callable[[], float]
    _agents: Mapping[str, AgentPod] = field(default_factory=dict[str, AgentPod])
    _listed_at: float = float("-inf")
    _session: aiohttp.ClientSession | None = None
    # Why the agent of a node failed in the last round.
    _problems: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self._gate = asyncio.Semaphore(self.policy.parallel_max)
        self._log = observability.log("launcher")

    async def sample(
        self, nodes: Sequence[NodeToSample], held: HeldGpus, now: datetime
    ) -> list[NodeSampled]:
        """The samples of all nodes that answer within the round. Raises nothing because of an agent
        or the API server."""
        await self._refresh()
        here = [node for node in nodes if node.node_id in self._agents]
        here.sort(key=lambda node: node.node_id in self._problems)
        asking = {
            asyncio.ensure_future(self._ask(self._agents[node.node_id], node, held)): node
            for node in here
        }
        found: list[NodeSampled] = []
        problems: dict[str, str] = {}
        try:
            if asking:
                await asyncio.wait(asking, timeout=self.policy.round_seconds)
        finally:
            for task in asking:
                task.cancel()
        for (task, node), result in zip(
            asking.items(), await asyncio.gather(*asking, return_exceptions=True), strict=True
        ):
            if isinstance(result, NodeMeasured):
                found.append(sample_of(node, result, held, now))
            elif task.cancelled():
                problems[node.node_id] = "it was not reached before the round ended"
            else:
                problems[node.node_id] = str(result) or type(result).__name__
        self._note(problems)
        return found

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _refresh(self) -> None:
        """List the agents from time to time, and at once when one failed: it may be elsewhere."""
        since = self.monotonic() - self._listed_at
        if since < self.policy.refresh_seconds and not self._problems:
            return
        self._listed_at = self.monotonic()
        try:
            async with asyncio.timeout(self.policy.round_seconds):
                listed = await list_agents(self.client, self.policy.namespace, self.policy.label)
        except (ApiError, RuntimeUnavailableError, RuntimeDeniedError, TimeoutError) as problem:
            self._log.warning("node agents cannot be listed", problem=str(problem))
        else:
            self._agents = by_node(listed)

    async def _ask(self, agent: AgentPod, node: NodeToSample, held: HeldGpus) -> NodeMeasured:
        """Raises ``AgentFailedError``."""
        pods = [
            SampledPod(pod=pod.name, uid=pod.uid)
            for pod in node.pods
            if pod.observed.state is RankState.RUNNING and key_of(pod) in held
        ][:PODS_MAX]
        body = agent_protocol.encode(SampleQuery(pods=tuple(pods)))
        url = agent.url(self.policy.port) + agent_protocol.PATH
        try:
            async with self._gate:
                status, answer = await self._send(url, body)
            if status != HTTP_OK:
                detail = answer[:DETAIL_BYTES_MAX].decode(errors="replace").strip()
                raise AgentFailedError(f"it answers {status}: {detail}")
            return agent_protocol.decode_answer(answer, pods)
        except (AgentProtocolError, LongAnswerError) as error:
            raise AgentFailedError(f"its answer cannot be read: {error}") from error
        except OSError as error:
            raise AgentFailedError(str(error) or type(error).__name__) from error
        except BROKEN as error:
            raise AgentFailedError(str(error) or type(error).__name__) from error

    async def _send(self, url: str, body: bytes) -> tuple[int, bytes]:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self.policy.seconds)
            connector = aiohttp.TCPConnector(limit=self.policy.parallel_max, force_close=True)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        shown = headers(self.policy.token_file)
        # No agent may send this process to another address.
        async with self._session.post(
            url, data=body, headers=shown, allow_redirects=False
        ) as answer:
            return answer.status, await read_answer(answer, agent_protocol.ANSWER_BYTES_MAX)

    def _note(self, problems: dict[str, str]) -> None:
        FAILED.inc(len(problems))
        for node_id, problem in problems.items():
            if node_id not in self._problems:
                self._log.warning("a node is not sampled", node=node_id, problem=problem)
        for node_id in self._problems.keys() - problems.keys():
            self._log.info("a node is sampled again", node=node_id)
        self._problems = problems


def key_of(pod: Pod) -> tuple[str, int, int]:
    """The rank that a pod is."""
    return str(pod.run_id.task_id), pod.run_id.attempt, pod.observed.rank


def sample_of(
    node: NodeToSample, measured: NodeMeasured, held: HeldGpus, now: datetime
) -> NodeSampled:
    """The message for a node. Only pods of runs that the launcher placed count."""
    pods = {pod.name: pod for pod in node.pods}
    ranks: list[RankSample] = []
    for each in measured.pods:
        pod = pods.get(each.pod)
        if pod is None or key_of(pod) not in held:
            continue
        task_id, attempt, rank = key_of(pod)
        ranks.append(
            RankSample(
                task_id=task_id,
                attempt=attempt,
                rank=rank,
                gpus=_gpus(each.gpus, len(held[key_of(pod)]), node, measured),
                values=each.values,
            )
        )
    return NodeSampled(
        node_id=node.node_id,
        sampled_at=now,
        hostname=node.node_id,
        values=measured.values,
        gpus=measured.gpus,
        ranks=tuple(ranks),
    )


def _gpus(
    reported: Sequence[int] | None, count: int, node: NodeToSample, measured: NodeMeasured
) -> tuple[int, ...]:
    """The GPUs that a pod has, by the driver's numbers, which are not the plan's. Where the kubelet
    does not say which, only a pod that has all of its node is certain; others have numbers that no
    measured GPU has, so that their runs do not seem to have none."""
    if reported and len(reported) <= count:
        return tuple(reported)
    if reported is None and 0 < count == node.gpus == len(measured.gpus):
        return tuple(gpu.index for gpu in measured.gpus)
    return tuple(range(UNMEASURED, UNMEASURED + count))

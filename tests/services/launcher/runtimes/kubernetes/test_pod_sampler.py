"""What the launcher takes from the nodes' agents: real HTTP, and agents that err or lie."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
from aiohttp import web

from libs.contracts.messages import (
    GpuSample,
    GpuValues,
    NodeSampled,
    NodeValues,
    RankSample,
    RankValues,
)
from libs.kube.client import KubeClient
from libs.signals import agent_protocol
from libs.signals.agent_protocol import NodeMeasured, PodMeasured
from services.launcher.domain.model import ObservedRank, RankState
from services.launcher.runtimes.kubernetes.pod_sampler import (
    UNMEASURED,
    AgentPolicy,
    NodeToSample,
    PodSampler,
    sample_of,
)
from services.launcher.runtimes.kubernetes.pods import Pod
from services.launcher.runtimes.port import RuntimeUnavailableError
from tests.kit.launcher_builders import run_id
from tests.services.log_collector.fake_agents import TOKEN, Agent
from tests.services.log_collector.fake_kubelet import Kubelet

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUN = run_id()
TASK = str(RUN.task_id)
UID = "0f0f0f0f-1111-2222-3333-abcdefabcde"
HELD = {(TASK, 1, 0): (5,), (TASK, 1, 1): (0, 1)}


def a_pod(rank: int, node_id: str, state: RankState = RankState.RUNNING) -> Pod:
    return Pod(
        name=f"{TASK}-1-{rank}",
        uid=f"{UID}{rank}",
        version=1,
        run_id=RUN,
        owner_uid="",
        bound=True,
        gpus=(),
        observed=ObservedRank(rank, node_id, state),
        over=False,
        only_others=False,
        deleting=None,
    )


def measured(pods: Sequence[Pod], *, gpus: int = 0, held: Any = None) -> NodeMeasured:
    return NodeMeasured(
        values=NodeValues(cpu_percent=12.0),
        gpus=tuple(
            GpuSample(index=each, uuid=f"GPU-{each}", values=GpuValues(gpu_percent=1.0))
            for each in range(gpus)
        ),
        pods=tuple(
            PodMeasured(pod=pod.name, values=RankValues(cpu_cores=0.5), gpus=held) for pod in pods
        ),
    )


@dataclass
class FakeAgent:
    """An agent that answers what the test sets."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    silent: bool = False
    requests: list[Any] = field(default_factory=list[Any])
    shown: list[str] = field(default_factory=list[str])
    port: int = 0

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/sample", self._sample)
        app.router.add_get("/elsewhere", self._elsewhere)
        self.runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.port = self.runner.addresses[0][1]

    async def _sample(self, request: web.Request) -> web.Response:
        self.requests.append(json.loads(await request.read()))
        self.shown.append(request.headers.get("authorization", ""))
        if self.silent:
            await asyncio.sleep(60)
        return web.Response(body=self.body, status=self.status, headers=self.headers)

    async def _elsewhere(self, _: web.Request) -> web.Response:
        self.requests.append("elsewhere")
        return web.Response(body=self.body)


@dataclass
class Cluster:
    """The API server's list of agents, and the launcher's sampler."""

    folder: Path
    agents: dict[str, FakeAgent] = field(default_factory=dict[str, FakeAgent])
    away: bool = False
    lists: int = 0
    clock_s: float = 0.0

    def __post_init__(self) -> None:
        token = self.folder / "token"
        token.write_text(TOKEN + "\n")
        self.sampler = PodSampler(
            cast("KubeClient", self),
            AgentPolicy(token, "shiftwork", "a=b", 1, 0.3, 2.0, 60.0, 4),
            lambda: self.clock_s,
        )

    async def pages(
        self, path: str, **query: str
    ) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
        self.lists += 1
        assert (path, query) == ("/api/v1/namespaces/shiftwork/pods", {"labelSelector": "a=b"})
        if self.away:
            raise RuntimeUnavailableError("the API server does not answer")
        yield (
            [
                {
                    "metadata": {},
                    "spec": {
                        "nodeName": node_id,
                        "containers": [{"ports": [{"name": "agent", "containerPort": agent.port}]}],
                    },
                    "status": {"phase": "Running", "podIP": "127.0.0.1"},
                }
                for node_id, agent in self.agents.items()
            ],
            "1",
        )

    async def add(self, node_id: str, answer: NodeMeasured | bytes, **more: Any) -> FakeAgent:
        body = answer if isinstance(answer, bytes) else agent_protocol.encode(answer)
        self.agents[node_id] = agent = FakeAgent(body, **more)
        await agent.start()
        return agent

    async def sample(self, *nodes: NodeToSample) -> list[NodeSampled]:
        return await self.sampler.sample(nodes, HELD, NOW)


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    await made.sampler.close()
    for agent in made.agents.values():
        await agent.runner.cleanup()


async def test_each_node_is_asked_for_its_running_pods_and_no_others(cluster: Cluster) -> None:
    pod, waiting = a_pod(0, "n1"), a_pod(1, "n1", RankState.PENDING)
    stranger = replace(a_pod(7, "n1"), run_id=replace(RUN, attempt=9))
    agent = await cluster.add("n1", measured([pod]))
    (found,) = await cluster.sample(NodeToSample("n1", 0, [pod, waiting, stranger]))
    assert agent.requests == [{"pods": [{"pod": pod.name, "uid": pod.uid}]}]
    assert agent.shown == [f"Bearer {TOKEN}"]
    assert found == NodeSampled(
        node_id="n1",
        sampled_at=NOW,
        hostname="n1",
        values=NodeValues(cpu_percent=12.0),
        ranks=(
            RankSample(
                task_id=TASK,
                attempt=1,
                rank=0,
                gpus=(UNMEASURED,),
                values=RankValues(cpu_cores=0.5),
            ),
        ),
    )


async def test_an_agent_cannot_speak_for_pods_of_another_node(cluster: Cluster) -> None:
    mine, theirs = a_pod(0, "n1"), a_pod(1, "n2")
    await cluster.add("n1", measured([mine, theirs]))
    await cluster.add("n2", measured([theirs]))
    first, second = await cluster.sample(
        NodeToSample("n1", 0, [mine]), NodeToSample("n2", 0, [theirs])
    )
    assert [(each.node_id, [rank.rank for rank in each.ranks]) for each in (first, second)] == [
        ("n1", [0]),
        ("n2", [1]),
    ]


@pytest.mark.parametrize(
    "bad",
    [
        {"answer": b"nonsense"},
        {"answer": b"{" + b" " * agent_protocol.ANSWER_BYTES_MAX + b"}"},
        {"answer": b"busy", "status": 503},
        {"answer": b"", "status": 302, "headers": {"location": "/elsewhere"}},
        {"answer": b"", "silent": True},
    ],
)
async def test_a_bad_agent_costs_its_own_node_alone(cluster: Cluster, bad: dict[str, Any]) -> None:
    pod = a_pod(0, "n2")
    worse = await cluster.add("n1", **bad)
    await cluster.add("n2", measured([pod]))
    nodes = (NodeToSample("n1", 0, []), NodeToSample("n2", 0, [pod]), NodeToSample("n3", 0, []))
    async with asyncio.timeout(2):
        (found,) = await cluster.sample(*nodes)
    assert found.node_id == "n2"
    assert "elsewhere" not in worse.requests
    worse.body, worse.status, worse.silent = agent_protocol.encode(measured([])), 200, False
    assert len(await cluster.sample(*nodes)) == 2, "it is asked again in the next round"


async def test_agents_are_listed_again_only_after_a_while_or_a_failure(cluster: Cluster) -> None:
    agent = await cluster.add("n1", measured([]))
    node = NodeToSample("n1", 0, [])
    for _ in range(3):
        await cluster.sample(node)
    assert cluster.lists == 1
    cluster.clock_s = 61.0
    cluster.away = True
    assert len(await cluster.sample(node)) == 1, "the agents of the last list are asked"
    assert cluster.lists == 2
    agent.status = 500
    await cluster.sample(node)
    await cluster.sample(node)
    assert cluster.lists == 3


def test_the_gpus_of_a_pod_are_those_that_the_kubelet_assigned() -> None:
    pod, whole = a_pod(0, "n1"), a_pod(1, "n1")

    def gpus(of: Pod, answer: NodeMeasured, count: int) -> tuple[int, ...]:
        (rank,) = sample_of(NodeToSample("n1", count, [of]), answer, HELD, NOW).ranks
        return rank.gpus

    assert gpus(pod, measured([pod], gpus=8, held=(3,)), 8) == (3,), "not the plan's number 5"
    unknown = tuple(range(UNMEASURED, UNMEASURED + 2))
    assert gpus(pod, measured([pod], gpus=8), 8) == unknown[:1], "which one it is, is not known"
    assert gpus(whole, measured([whole], gpus=2), 2) == (0, 1), "it has all of them"
    assert gpus(whole, measured([whole], gpus=2), 8) == unknown, "the agent sees some of the GPUs"
    assert gpus(pod, measured([pod], gpus=8, held=(3, 4)), 8) == unknown[:1], (
        "more than it was given"
    )
    assert gpus(pod, measured([pod], held=()), 8) == unknown[:1], "the agent sees no GPU"


async def test_a_real_agent_measures_for_the_launcher(cluster: Cluster, tmp_path: Path) -> None:
    pod = a_pod(0, "n1")
    group = tmp_path / "cgroup" / "kubepods" / "burstable" / f"pod{pod.uid}"
    group.mkdir(parents=True)
    (tmp_path / "cgroup" / "cgroup.controllers").write_text("cpu memory\n")
    (group / "cpu.stat").write_text("usage_usec 0\n")
    (group / "cgroup.procs").write_text("0\n")
    agent = Agent(Kubelet(tmp_path / "log"), cgroup_dir=tmp_path / "cgroup")
    await agent.start()
    try:
        cluster.agents["n1"] = cast("FakeAgent", agent)
        await cluster.sample(NodeToSample("n1", 0, [pod]))
        (group / "cpu.stat").write_text("usage_usec 500000\n")
        (found,) = await cluster.sample(NodeToSample("n1", 0, [pod]))
    finally:
        del cluster.agents["n1"]
        await agent.stop()
    assert found.values.memory_total_bytes
    (rank,) = found.ranks
    assert (rank.values.cpu_cores or 0) > 0
    assert rank.values.processes == 1

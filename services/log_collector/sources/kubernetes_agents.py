"""Finds the log agents of the nodes, and sends requests to many of them in parallel.

A node whose agent fails is left alone until the next refresh finds it well again, so that one dead
node does not slow the others down. Used by ``kubernetes.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import aiohttp

from libs.kube.agents import AgentPod, LongAnswerError, by_node, headers, read_answer
from libs.kube.client import HTTP_OK
from libs.kube.transport import BROKEN
from libs.service.observability import log
from services.log_collector.agent import protocol
from services.log_collector.agent.protocol import PodAnswer, PodRead, PodStored
from services.log_collector.sources.kubernetes_api import ClusterError, KubeApi
from services.log_collector.sources.kubernetes_options import KubernetesOptions
from services.log_collector.state import SERVICE

HEAD_BYTES_MAX = 4 * 1_048_576
DETAIL_BYTES_MAX = 4096
T = TypeVar("T")


class AgentError(Exception):
    """A node's agent does not answer, or answers wrongly; the text has the reason."""


@dataclass(slots=True)
class Node:
    """One node's agent, as this process knows it."""

    node_id: str
    url: str = ""
    # Since when it does not answer, and why; None while it does.
    silent_since: float | None = None
    problem: str = "no log agent is there"
    # Another one after each start of the agent, and the pods of which it was seen that its bytes
    # are where the collector counts them.
    agent: str = ""
    agreed: set[str] = field(default_factory=set[str])
    # The time of the next request, and the interval while it has nothing.
    due_at: float = 0.0
    gap_seconds: float = 0.0


@dataclass
class Agents:
    """The agents of all nodes."""

    api: KubeApi
    session: aiohttp.ClientSession
    options: KubernetesOptions
    monotonic: Callable[[], float]
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    problem: str = ""

    def __post_init__(self) -> None:
        self._requests = asyncio.Semaphore(self.options.agent_requests_max)
        self._log = log(SERVICE)

    def node(self, node_id: str) -> Node:
        """The record of a node; a new one is silent from now on."""
        found = self.nodes.get(node_id)
        if found is None:
            found = self.nodes[node_id] = Node(node_id, silent_since=self.monotonic())
        return found

    async def refresh(self) -> None:
        """Find the agents, and check whether silent ones answer again. Never raises."""
        try:
            pods = await self.api.agents(self.options.agent_namespace, self.options.agent_label)
        except ClusterError as error:
            if str(error) != self.problem:
                self._log.warning("log agents cannot be listed", problem=str(error))
            self.problem = str(error)
        else:
            self.problem = ""
            self._note(pods)
        silent = [node for node in self.nodes.values() if node.silent_since is not None]
        await asyncio.gather(*(self._probe(node) for node in silent if node.url))

    def _note(self, pods: Sequence[AgentPod]) -> None:
        best = by_node(pods)
        for pod in best.values():
            url = pod.url(self.options.agent_port)
            node = self.node(pod.node_id)
            if node.url != url:
                node.url = url
                if node.silent_since is None:
                    node.silent_since = self.monotonic()
        for node in self.nodes.values():
            if node.node_id not in best and node.url:
                node.url = ""
                self._fail(node, "no log agent is there")

    async def _probe(self, node: Node) -> None:
        try:
            await self.read(node, (), 0)
        except AgentError:
            return
        self._log.info("log agent answers", node=node.node_id)

    async def read(
        self, node: Node, requests: Sequence[PodRead], bytes_max: int
    ) -> Sequence[PodAnswer | None]:
        """Read from one node. Raises ``AgentError``."""
        # Pods whose offsets were proved to this agent need no further proof.
        sent = [
            request
            if request.pod not in node.agreed
            else PodRead(request.pod, request.offset, request.bytes_max, b"", request.ended)
            for request in requests
        ]
        body = protocol.encode_reads(sent, bytes_max)
        agent, answers = await self._post(
            node, "/read", body, bytes_max + HEAD_BYTES_MAX, protocol.decode_answers
        )
        if len(answers) != len(requests):
            raise self._fail(node, f"{len(answers)} answers came to {len(requests)} requests")
        if agent != node.agent:
            # It was restarted: answers to requests without proof do not count.
            trusted = [request.pod not in node.agreed for request in requests]
            node.agent, node.agreed = agent, set()
            answers = [
                answer if known else PodAnswer(unsure=True)
                for answer, known in zip(answers, trusted, strict=True)
            ]
        node.agreed |= {
            request.pod
            for request, answer in zip(requests, answers, strict=True)
            if answer is not None and not (answer.absent or answer.unsure or answer.problem)
        }
        return answers

    async def done(self, node: Node, stored: Sequence[PodStored]) -> None:
        """Report stored output to one node. Raises ``AgentError``."""
        body = protocol.encode_stored(stored)
        await self._post(node, "/done", body, DETAIL_BYTES_MAX, lambda found: found)
        node.agreed -= {each.pod for each in stored if each.done}

    async def _post(
        self, node: Node, path: str, body: bytes, answer_max: int, read: Callable[[bytes], T]
    ) -> T:
        url = node.url
        if not url:
            raise AgentError(node.problem)
        try:
            try:
                status, found = await self._send(url + path, body, answer_max)
            except aiohttp.ServerDisconnectedError:
                # It has just closed an idle connection; repeating the request does no harm.
                status, found = await self._send(url + path, body, answer_max)
            if status != HTTP_OK:
                detail = found[:DETAIL_BYTES_MAX].decode(errors="replace").strip()
                raise self._fail(node, f"it answers {status}: {detail}")
            answer = read(found)
        except (protocol.WireError, LongAnswerError) as error:
            raise self._fail(node, f"its answer cannot be read: {error}") from error
        except BROKEN as error:
            raise self._fail(node, str(error) or type(error).__name__) from error
        if node.url == url:
            node.silent_since, node.problem = None, ""
        return answer

    async def _send(self, url: str, body: bytes, answer_max: int) -> tuple[int, bytes]:
        assert self.options.agent_token_file is not None
        shown = headers(self.options.agent_token_file)
        async with (
            self._requests,
            # No agent may send this process to another address.
            self.session.post(url, data=body, headers=shown, allow_redirects=False) as result,
        ):
            return result.status, await read_answer(result, answer_max)

    def _fail(self, node: Node, why: str) -> AgentError:
        if node.silent_since is None:
            node.silent_since = self.monotonic()
        if node.problem != why:
            node.problem = why
            self._log.warning("log agent does not answer", node=node.node_id, problem=why)
        return AgentError(f"the log agent of node {node.node_id}: {why}")

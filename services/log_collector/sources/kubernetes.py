"""Output of ranks that run in pods: by the log agent of each node, else by the API server.

Both give the same bytes at the same offsets. ``read`` asks each node at most once, all of them side
by side; ``run`` is the part in the background: it finds the agents, passes on what is kept, and
owns the streams. Made by ``main.py``; its siblings ``kubernetes_*`` are parts of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import aiohttp

from libs.service.loop import Wake
from libs.service.observability import log
from services.log_collector.agent.protocol import PodAnswer, PodAsk, PodKept
from services.log_collector.domain import OutputKey, Timestamp, moment_of
from services.log_collector.sources.kubernetes_agents import AgentError, Agents, Node
from services.log_collector.sources.kubernetes_api import (
    CONNECT_SECONDS,
    ClusterError,
    KubeApi,
    configuration_of,
)
from services.log_collector.sources.kubernetes_options import Cluster, pod_name
from services.log_collector.sources.kubernetes_streams import Streams
from services.log_collector.sources.port import Ask, Got, Kept
from services.log_collector.state import SERVICE

# One node gives at least so much at a time, however many there are.
SHARE_BYTES_MIN = 65_536
# A node that has nothing is asked again after so long, doubling; at least, and at most.
GAP_SECONDS_MIN, GAP_SECONDS_MAX = 0.05, 0.4
# What is kept is passed on so often; of more outputs than this the oldest news are dropped.
TELL_SECONDS = 1.0
UNTOLD_MAX = 100_000
TELL_AT_ONCE = 1000
# Without a question for so long this process does not lead, and does not look for agents.
IDLE_SECONDS = 60.0
# Below what the agents keep a quiet connection open for.
KEEP_ALIVE_SECONDS = 4.0
UNSURE = Got(unsure=True)


class KubernetesSource:
    """The outputs of pods."""

    def __init__(
        self, cluster: Cluster, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster, self._monotonic = cluster, monotonic
        self._wake, self._missing = Wake(), False
        self._asked_at = float("-inf")
        self._agents: Agents | None = None
        self._streams: Streams | None = None
        # By output: the newest that is kept and not passed on.
        self._untold: dict[OutputKey, Kept] = {}
        # Outputs that an agent counts otherwise than the collector: the API server has the word.
        self._strays: set[OutputKey] = set()
        self._log = log(SERVICE)

    def tasks(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """The part in the background."""
        return (self.run,)

    async def run(self) -> None:
        """Run until cancelled. ClusterError if nothing says which cluster it is."""
        try:
            described = await configuration_of(self._cluster.kube_config)
        except ClusterError as error:
            self._log.error("no cluster to collect from", problem=str(error))
            raise
        seconds = self._cluster.timeout_seconds
        api = KubeApi(described, timeout_seconds=seconds)
        patience = aiohttp.ClientTimeout(total=seconds, sock_connect=min(CONNECT_SECONDS, seconds))
        connector = aiohttp.TCPConnector(
            limit=self._cluster.requests_max, keepalive_timeout=KEEP_ALIVE_SECONDS
        )
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=patience) as session,
                asyncio.TaskGroup() as group,
            ):
                self._agents = Agents(api, session, self._cluster, self._monotonic)
                self._streams = Streams(api, self._cluster, self._monotonic, group)
                try:
                    await self._keep_up(self._agents)
                finally:
                    self._streams.close()
        finally:
            self._agents = self._streams = None
            await api.close()

    async def _keep_up(self, agents: Agents) -> None:
        refreshed_at = float("-inf")
        while True:
            now = self._monotonic()
            due = refreshed_at + (TELL_SECONDS if self._missing else self._cluster.refresh_seconds)
            if now >= due and now - self._asked_at < IDLE_SECONDS:
                self._missing, refreshed_at = False, now
                await agents.refresh()
            await self._tell(agents)
            await self._wake.wait(TELL_SECONDS)

    def _miss(self) -> None:
        """Have the agents looked for soon."""
        self._missing = True
        self._wake.set()

    # -- reading

    async def read(self, asks: Sequence[Ask], bytes_max: int) -> Sequence[Got | None]:
        """Answer the asks in their order; None for those left when ``bytes_max`` was reached."""
        first, self._asked_at = self._asked_at, self._monotonic()
        if self._asked_at - first >= IDLE_SECONDS:
            self._miss()
        agents, streams = self._agents, self._streams
        if agents is None or streams is None:
            return [UNSURE] * len(asks)
        by_node: dict[str, list[int]] = {}
        for number, ask in enumerate(asks):
            by_node.setdefault(ask.address.node_id, []).append(number)
        share = min(bytes_max, max(SHARE_BYTES_MIN, bytes_max // max(1, len(by_node))))
        pace = max(GAP_SECONDS_MIN, len(by_node) / self._cluster.requests_per_second)
        reading: list[tuple[list[int], asyncio.Task[list[Got | None]]]] = []
        answers: list[Got | None] = [UNSURE] * len(asks)
        async with asyncio.TaskGroup() as group:
            for node_id, numbers in by_node.items():
                node, part = agents.node(node_id), [asks[number] for number in numbers]
                if self._is_due(node, part):
                    work = self._read_node(agents, streams, node, part, bytes_max=share, pace=pace)
                    reading.append((numbers, group.create_task(work)))
        for numbers, task in reading:
            for number, got in zip(numbers, task.result(), strict=True):
                answers[number] = got
        return within(answers, bytes_max)

    def _is_due(self, node: Node, asks: Sequence[Ask]) -> bool:
        """Is it this node's turn? For what decides something it always is."""
        now = self._monotonic()
        if node.silent_since is not None:
            # It may be back in a moment, and nothing is lost meanwhile.
            return now - node.silent_since >= self._cluster.fallback_seconds
        return now >= node.due_at or any(ask.sure for ask in asks)

    async def _read_node(
        self,
        agents: Agents,
        streams: Streams,
        node: Node,
        asks: Sequence[Ask],
        *,
        bytes_max: int,
        pace: float,
    ) -> list[Got | None]:
        answers: list[Got | None] = [UNSURE] * len(asks)
        silent = node.silent_since is not None
        strays = [silent or ask.address.key in self._strays for ask in asks]
        by_agent = [number for number, stray in enumerate(strays) if not stray]
        by_api = [number for number, stray in enumerate(strays) if stray]
        if by_agent:
            try:
                said = await agents.read(node, [_ask(asks[each]) for each in by_agent], bytes_max)
            except AgentError:
                self._miss()
                return answers
            self._pace(node, [asks[each] for each in by_agent], said, pace)
            for number, answer in zip(by_agent, said, strict=True):
                answers[number] = self._got(asks[number], answer)
                if answer is not None and answer.absent and not answer.complete:
                    # It never saw a file; at an end the API server is asked too.
                    by_api += [number] if asks[number].sure else []
        got = await asyncio.gather(*(_by_api(streams, asks[each], bytes_max) for each in by_api))
        for number, one in zip(by_api, got, strict=True):
            answers[number] = one
        return answers

    def _got(self, ask: Ask, answer: PodAnswer | None) -> Got | None:
        if answer is None:
            return None
        if answer.moved:
            key = ask.address.key
            self._strays.add(key)
            self._log.warning(
                "a log agent counts otherwise; the API server is asked",
                pod=pod_name(key),
                node=ask.address.node_id,
                problem=answer.problem,
            )
            return UNSURE
        stamps = tuple(Timestamp(offset, moment_of(micros)) for offset, micros in answer.stamps)
        return Got(answer.data, answer.absent, answer.unsure, answer.problem, timestamps=stamps)

    def _pace(
        self, node: Node, asks: Sequence[Ask], said: Sequence[PodAnswer | None], pace: float
    ) -> None:
        """When to ask it again: soon while it has something, at once if it has more."""
        found = [
            (len(answer.data) if answer else ask.bytes_max, ask.bytes_max)
            for ask, answer in zip(asks, said, strict=True)
        ]
        longest = max(GAP_SECONDS_MAX, pace)
        quiet = not any(size for size, _ in found)
        node.gap_seconds = min(longest, max(pace, node.gap_seconds * 2)) if quiet else pace
        more = any(size >= wanted for size, wanted in found)
        node.due_at = 0.0 if more else self._monotonic() + node.gap_seconds

    # -- what is kept

    async def kept(self, kept: Sequence[Kept]) -> None:
        """Note what is kept; the nodes hear it soon."""
        for each in kept:
            key = each.address.key
            self._untold.pop(key, None)
            self._untold[key] = each
            if each.done:
                self._strays.discard(key)
                if self._streams is not None:
                    self._streams.forget(key)
        while len(self._untold) > UNTOLD_MAX:
            self._untold.pop(next(iter(self._untold)))

    async def _tell(self, agents: Agents) -> None:
        by_node: dict[str, list[Kept]] = {}
        for each in self._untold.values():
            told = by_node.setdefault(each.address.node_id, [])
            if len(told) < TELL_AT_ONCE:
                told.append(each)
        answering = {
            node_id: told
            for node_id, told in by_node.items()
            if (node := agents.nodes.get(node_id)) is not None and node.silent_since is None
        }
        await asyncio.gather(
            *(self._tell_one(agents, agents.node(each), told) for each, told in answering.items())
        )

    async def _tell_one(self, agents: Agents, node: Node, told: Sequence[Kept]) -> None:
        said = [PodKept(pod_name(each.address.key), each.offset, each.done) for each in told]
        try:
            await agents.done(node, said)
        except AgentError:
            return  # said again when it answers again
        for each in told:
            if self._untold.get(each.address.key) is each:
                del self._untold[each.address.key]


async def _by_api(streams: Streams, ask: Ask, bytes_max: int) -> Got:
    part = min(ask.bytes_max, bytes_max)
    return await streams.fetch(ask, part) if ask.sure else streams.read(ask, part)


def _ask(ask: Ask) -> PodAsk:
    return PodAsk(
        pod_name(ask.address.key), ask.offset, ask.bytes_max, before=ask.before, ended=ask.sure
    )


def within(answers: Sequence[Got | None], bytes_max: int) -> list[Got | None]:
    """The answers with at most so many bytes in all: what is beyond is asked for again."""
    left = bytes_max
    cut: list[Got | None] = []
    for got in answers:
        if got is not None and got.data:
            got = None if left <= 0 else replace(got, data=got.data[:left])  # noqa: PLW2901
            left -= len(got.data) if got else 0
        cut.append(got)
    return cut

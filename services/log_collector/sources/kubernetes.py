"""Output of ranks that run in pods: by the log agent of each node, else by the API server.

Both give the same bytes at the same offsets. ``read`` sends at most one request to each node, all
concurrently. ``run`` works in the background: it finds the agents, reports to them what is kept,
and owns the streams. Made by ``main.py``; its siblings ``kubernetes_*`` are parts of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import aiohttp

from libs.service.loop import Wake
from libs.service.observability import log
from services.log_collector.agent.protocol import PodAnswer, PodRead, PodStored
from services.log_collector.domain import OutputKey, Timestamp, datetime_of
from services.log_collector.sources.kubernetes_agents import AgentError, Agents, Node
from services.log_collector.sources.kubernetes_api import ClusterError, KubeApi, connect
from services.log_collector.sources.kubernetes_options import KubernetesOptions, pod_name
from services.log_collector.sources.kubernetes_streams import Streams
from services.log_collector.sources.port import ReadRequest, ReadResult, Stored
from services.log_collector.state import SERVICE

# One node gives at least so much at a time, however many there are.
SHARE_BYTES_MIN = 65_536
# The interval of requests to a node that has nothing: it doubles from the least to the most.
GAP_SECONDS_MIN, GAP_SECONDS_MAX = 0.05, 0.4
# What is kept is passed on so often; of more outputs than this the oldest news are dropped.
SEND_SECONDS = 1.0
UNSENT_MAX = 100_000
SEND_BATCH_MAX = 1000
# Without a read for this time this process does not lead, and does not search for agents.
IDLE_SECONDS = 60.0
# To a node's agent.
CONNECT_SECONDS = 5.0
# Below what the agents keep a quiet connection open for.
KEEP_ALIVE_SECONDS = 4.0
UNSURE = ReadResult(unsure=True)


class KubernetesSource:
    """The outputs of pods."""

    def __init__(
        self, options: KubernetesOptions, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._options, self._monotonic = options, monotonic
        self._wake, self._refresh_wanted = Wake(), False
        self._last_read_at = float("-inf")
        self._agents: Agents | None = None
        self._streams: Streams | None = None
        # By output: the newest that is kept and not passed on.
        self._unsent: dict[OutputKey, Stored] = {}
        # Outputs whose offsets differ between agent and collector: the API server is read instead.
        self._strays: set[OutputKey] = set()
        self._log = log(SERVICE)

    def tasks(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """The part in the background."""
        return (self.run,)

    async def run(self) -> None:
        """Run until cancelled. Raises ``ClusterError`` if no cluster is configured."""
        try:
            transport = await connect(self._options.kube_config)
        except ClusterError as error:
            self._log.error("no cluster to collect from", problem=str(error))
            raise
        seconds = self._options.agent_timeout_seconds
        api = KubeApi(transport, timeout_seconds=seconds)
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=min(CONNECT_SECONDS, seconds))
        connector = aiohttp.TCPConnector(
            limit=self._options.agent_requests_max, keepalive_timeout=KEEP_ALIVE_SECONDS
        )
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                asyncio.TaskGroup() as group,
            ):
                self._agents = Agents(api, session, self._options, self._monotonic)
                self._streams = Streams(api, self._options, self._monotonic, group)
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
            due = refreshed_at + (
                SEND_SECONDS if self._refresh_wanted else self._options.agent_refresh_seconds
            )
            if now >= due and now - self._last_read_at < IDLE_SECONDS:
                self._refresh_wanted, refreshed_at = False, now
                await agents.refresh()
            await self._send_stored(agents)
            await self._wake.wait(SEND_SECONDS)

    def _refresh_soon(self) -> None:
        """Request a search for agents soon."""
        self._refresh_wanted = True
        self._wake.set()

    # -- reading

    async def read(
        self, requests: Sequence[ReadRequest], bytes_max: int
    ) -> Sequence[ReadResult | None]:
        """Answer the requests in order; None for those left when ``bytes_max`` was reached."""
        first, self._last_read_at = self._last_read_at, self._monotonic()
        if self._last_read_at - first >= IDLE_SECONDS:
            self._refresh_soon()
        agents, streams = self._agents, self._streams
        if agents is None or streams is None:
            return [UNSURE] * len(requests)
        by_node: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            by_node.setdefault(request.address.node_id, []).append(number)
        share = min(bytes_max, max(SHARE_BYTES_MIN, bytes_max // max(1, len(by_node))))
        pace = max(GAP_SECONDS_MIN, len(by_node) / self._options.agent_requests_per_second)
        reading: list[tuple[list[int], asyncio.Task[list[ReadResult | None]]]] = []
        answers: list[ReadResult | None] = [UNSURE] * len(requests)
        async with asyncio.TaskGroup() as group:
            for node_id, numbers in by_node.items():
                node, part = agents.node(node_id), [requests[number] for number in numbers]
                if self._is_due(node, part):
                    work = self._read_node(agents, streams, node, part, bytes_max=share, pace=pace)
                    reading.append((numbers, group.create_task(work)))
        for numbers, task in reading:
            for number, result in zip(numbers, task.result(), strict=True):
                answers[number] = result
        return within(answers, bytes_max)

    def _is_due(self, node: Node, requests: Sequence[ReadRequest]) -> bool:
        """Whether to send a request to this node now; always if an answer has to be certain."""
        now = self._monotonic()
        if node.silent_since is not None:
            # It may come back soon, and nothing is lost meanwhile.
            return now - node.silent_since >= self._options.fallback_seconds
        return now >= node.due_at or any(request.sure for request in requests)

    async def _read_node(
        self,
        agents: Agents,
        streams: Streams,
        node: Node,
        requests: Sequence[ReadRequest],
        *,
        bytes_max: int,
        pace: float,
    ) -> list[ReadResult | None]:
        answers: list[ReadResult | None] = [UNSURE] * len(requests)
        silent = node.silent_since is not None
        strays = [silent or request.address.key in self._strays for request in requests]
        by_agent = [number for number, stray in enumerate(strays) if not stray]
        by_api = [number for number, stray in enumerate(strays) if stray]
        if by_agent:
            try:
                found = await agents.read(
                    node, [_pod_read(requests[each]) for each in by_agent], bytes_max
                )
            except AgentError:
                self._refresh_soon()
                return answers
            self._pace(node, [requests[each] for each in by_agent], found, pace)
            for number, answer in zip(by_agent, found, strict=True):
                answers[number] = self._result(requests[number], answer)
                if answer is not None and answer.absent and not answer.complete:
                    # It never had a file; at the end the API server is read, too.
                    by_api += [number] if requests[number].sure else []
        result = await asyncio.gather(
            *(_by_api(streams, requests[each], bytes_max) for each in by_api)
        )
        for number, one in zip(by_api, result, strict=True):
            answers[number] = one
        return answers

    def _result(self, request: ReadRequest, answer: PodAnswer | None) -> ReadResult | None:
        if answer is None:
            return None
        if answer.moved:
            key = request.address.key
            self._strays.add(key)
            self._log.warning(
                "a log agent has other offsets; the API server is read instead",
                pod=pod_name(key),
                node=request.address.node_id,
                problem=answer.problem,
            )
            return UNSURE
        stamps = tuple(Timestamp(offset, datetime_of(micros)) for offset, micros in answer.stamps)
        return ReadResult(
            answer.data, answer.absent, answer.unsure, answer.problem, timestamps=stamps
        )

    def _pace(
        self,
        node: Node,
        requests: Sequence[ReadRequest],
        found: Sequence[PodAnswer | None],
        pace: float,
    ) -> None:
        """Set the time of the next request: soon while it has output, at once if it has more."""
        sizes = [
            (len(answer.data) if answer else request.bytes_max, request.bytes_max)
            for request, answer in zip(requests, found, strict=True)
        ]
        longest = max(GAP_SECONDS_MAX, pace)
        quiet = not any(size for size, _ in sizes)
        node.gap_seconds = min(longest, max(pace, node.gap_seconds * 2)) if quiet else pace
        more = any(size >= wanted for size, wanted in sizes)
        node.due_at = 0.0 if more else self._monotonic() + node.gap_seconds

    # -- what is kept

    async def stored(self, stored: Sequence[Stored]) -> None:
        """Note stored output, which is soon reported to the nodes."""
        for each in stored:
            key = each.address.key
            self._unsent.pop(key, None)
            self._unsent[key] = each
            if each.done:
                self._strays.discard(key)
                if self._streams is not None:
                    self._streams.forget(key)
        while len(self._unsent) > UNSENT_MAX:
            self._unsent.pop(next(iter(self._unsent)))

    async def _send_stored(self, agents: Agents) -> None:
        by_node: dict[str, list[Stored]] = {}
        for each in self._unsent.values():
            batch = by_node.setdefault(each.address.node_id, [])
            if len(batch) < SEND_BATCH_MAX:
                batch.append(each)
        answering = {
            node_id: batch
            for node_id, batch in by_node.items()
            if (node := agents.nodes.get(node_id)) is not None and node.silent_since is None
        }
        await asyncio.gather(
            *(
                self._send_stored_to(agents, agents.node(each), batch)
                for each, batch in answering.items()
            )
        )

    async def _send_stored_to(self, agents: Agents, node: Node, batch: Sequence[Stored]) -> None:
        stored = [PodStored(pod_name(each.address.key), each.offset, each.done) for each in batch]
        try:
            await agents.done(node, stored)
        except AgentError:
            return  # repeated when it answers again
        for each in batch:
            if self._unsent.get(each.address.key) is each:
                del self._unsent[each.address.key]


async def _by_api(streams: Streams, request: ReadRequest, bytes_max: int) -> ReadResult:
    part = min(request.bytes_max, bytes_max)
    return await streams.fetch(request, part) if request.sure else streams.read(request, part)


def _pod_read(request: ReadRequest) -> PodRead:
    return PodRead(
        pod_name(request.address.key),
        request.offset,
        request.bytes_max,
        before=request.before,
        ended=request.sure,
    )


def within(answers: Sequence[ReadResult | None], bytes_max: int) -> list[ReadResult | None]:
    """Cut the answers to so many bytes in all; the rest is requested again."""
    left = bytes_max
    cut: list[ReadResult | None] = []
    for result in answers:
        if result is not None and result.data:
            result = None if left <= 0 else replace(result, data=result.data[:left])  # noqa: PLW2901
            left -= len(result.data) if result else 0
        cut.append(result)
    return cut

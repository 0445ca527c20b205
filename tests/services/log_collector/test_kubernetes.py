"""The Kubernetes source when things go wrong: agents away, a refusing API server, rotated logs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from services.log_collector.archives.files import FileArchive
from services.log_collector.domain import Address, OutputKey
from services.log_collector.sources.kubernetes import KubernetesSource
from services.log_collector.sources.kubernetes_api import NO_LOG, ClusterError, connect
from services.log_collector.sources.kubernetes_streams import GAP, Finder, Place
from services.log_collector.sources.port import ReadRequest, ReadResult, Stored
from services.log_collector.store import OutputRow, RunRow
from tests.services.log_collector.collector_harness import (
    collecting,
    exited,
    key_of,
    settings_with,
    started,
)
from tests.services.log_collector.fake_agents import (
    Agent,
    ApiServer,
    cluster_of,
    kubeconfig,
    running,
)
from tests.services.log_collector.fake_kubelet import Container, Kubelet


def address(rank: int = 0, node: str = "n0") -> Address:
    return Address(OutputKey("t1", 1, rank), node)


@dataclass
class Site:
    folder: Path
    stack: AsyncExitStack
    api: ApiServer = field(default_factory=ApiServer)

    def node(self, name: str) -> Kubelet:
        kubelet = self.api.kubelets[name] = Kubelet(self.folder / name / "log")
        self.stack.callback(kubelet.close)
        return kubelet

    async def agent(self, name: str) -> Agent:
        agent = self.api.agents[name] = Agent(self.api.kubelets[name])
        await agent.start()
        self.stack.push_async_callback(agent.stop)
        return agent

    async def source(self, **changes: Any) -> KubernetesSource:
        made = KubernetesSource(cluster_of(self.folder, self.api.port, **changes))
        return await self.stack.enter_async_context(running(made))


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        made = Site(tmp_path, stack)
        await made.api.start()
        stack.push_async_callback(made.api.stop)
        yield made


async def until(done: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + 10
    while not await done():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


@dataclass
class Reading:
    """One output as the collector reads it."""

    source: KubernetesSource
    where: Address = field(default_factory=address)
    data: bytes = b""
    last: ReadResult = field(default_factory=ReadResult)

    async def once(self, *, sure: bool = False) -> ReadResult:
        request = ReadRequest(self.where, len(self.data), 1 << 20, self.data[-64:], sure=sure)
        (result,) = await self.source.read([request], 1 << 24)
        assert result is not None
        self.data += result.data
        self.last = result
        return result

    async def until(self, wanted: bytes) -> None:
        async def done() -> bool:
            result = await self.once()
            assert not result.problem
            return len(self.data) >= len(wanted)

        await until(done)
        assert self.data == wanted

    async def end(self) -> ReadResult:
        async def done() -> bool:
            result = await self.once(sure=True)
            return not (result.data or result.unsure or result.problem)

        await until(done)
        return self.last


async def test_without_an_agent_the_api_server_is_read_with_the_same_bytes(site: Site) -> None:
    container = site.node("n0").create("t1-1-0")
    reading = Reading(await site.source())
    container.write(b"by the API\n")
    await reading.until(b"by the API\n")
    agent = await site.agent("n0")
    # From now on the agent is found and asked.
    await until(lambda: _is_read_by_agent(site, reading))
    container.write(b"by the agent\n")
    await reading.until(b"by the API\nby the agent\n")
    await agent.stop()
    container.write(b"by the API again\n")
    container.end()
    assert await reading.end() == ReadResult()
    assert reading.data == bytes(container.output)


async def _is_read_by_agent(site: Site, reading: Reading) -> bool:
    before = len(site.api.requests)
    result = await reading.once(sure=True)
    logs = [each for each in site.api.requests[before:] if "/log" in each]
    return not (logs or result.unsure or result.data)


async def test_an_agent_that_is_briefly_unreachable_is_waited_for(site: Site) -> None:
    container = site.node("n0").create("t1-1-0")
    agent = await site.agent("n0")
    reading = Reading(await site.source(fallback_seconds=60.0))
    container.write(b"one\n")
    await reading.until(b"one\n")
    await agent.stop()
    container.write(b"two\n")
    container.end()
    for _ in range(20):
        result = await reading.once(sure=True)
        assert result == ReadResult(unsure=True)
    assert not any("/log" in each for each in site.api.requests)
    await agent.start()
    assert await reading.end() == ReadResult()
    assert reading.data == b"one\ntwo\n"


async def test_a_silent_node_does_not_delay_the_others(site: Site) -> None:
    site.node("n0")

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the other side has enough
        writer.close()

    hung = await asyncio.start_server(hang, "127.0.0.1", 0)
    silent = Agent(site.api.kubelets["n0"])
    silent.port = hung.sockets[0].getsockname()[1]
    site.api.agents["n0"] = silent
    container = site.node("n1").create("t1-1-1")
    await site.agent("n1")
    source = await site.source(agent_timeout_seconds=0.3, fallback_seconds=60.0)
    reading = Reading(source, address(1, "n1"))
    slow = 0
    for number in range(40):
        container.write(b"%d\n" % number)
        begin = time.monotonic()
        dead = ReadRequest(address(0, "n0"), 0, 100)
        live = ReadRequest(reading.where, len(reading.data), 100)
        answers = await source.read([dead, live], 1000)
        slow += time.monotonic() - begin > 0.25
        assert answers[0] == ReadResult(unsure=True)
        assert answers[1] is not None
        reading.data += answers[1].data
        await asyncio.sleep(0.01)
    assert slow <= 2
    await reading.until(bytes(container.output))
    hung.close()
    await asyncio.sleep(0.35)  # the last question has ended


async def test_a_refusing_api_server_is_a_problem_and_then_none(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    container = site.node("n0").create("t1-1-0")
    container.write(b"x\n")
    container.end()
    site.api.refuses = 403
    reading = Reading(await site.source())

    async def refused() -> bool:
        return bool((await reading.once(sure=True)).problem)

    await until(refused)
    assert reading.last.problem == (
        "the log of pod t1-1-0 cannot be read: 403 Forbidden: said by the API server (403)"
    )
    printed = ""

    async def output() -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        what = "pods labelled app.kubernetes.io/component=log-agent in namespace shiftwork"
        return what in printed and "403 Forbidden" in printed

    # The list of agents is asked for beside the logs.
    await until(output)
    site.api.refuses = 0
    assert await reading.end() == ReadResult()
    assert reading.data == b"x\n"


async def test_a_wrong_token_is_reported(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.node("n0").create("t1-1-0").write(b"x\n")
    agent = await site.agent("n0")
    reading = Reading(await site.source(fallback_seconds=60.0))
    agent.token_file.write_text("another")

    async def output() -> bool:
        await reading.once()
        return "it answers 401" in capsys.readouterr().out

    await until(output)
    assert reading.data == b""


async def test_a_pod_without_a_log_file_is_read_from_the_api_server_too(site: Site) -> None:
    """The agent reads a folder that is not the node's: everything is absent there."""
    container = site.node("n0").create("t1-1-0")
    container.write(b"x\n")
    container.end()
    other = Kubelet(site.folder / "wrong" / "log")
    site.stack.callback(other.close)
    agent = site.api.agents["n0"] = Agent(other)
    await agent.start()
    site.stack.push_async_callback(agent.stop)
    source = await site.source(fallback_seconds=60.0)
    reading = Reading(source)
    assert await reading.end() == ReadResult(absent=True) or reading.data == b"x\n"
    assert reading.data == b"x\n"
    assert (await Reading(source, address(5)).end()).absent


# -- streams of the API server


async def test_a_broken_stream_continues_where_it_was(site: Site) -> None:
    container = site.node("n0").create("t1-1-0")
    site.api.cuts = [9, 9, 14]
    reading = Reading(await site.source())
    for number in range(6):
        container.write(b"line %d\n" % number)

    async def done() -> bool:
        await reading.once()  # the interruption is reported as a problem, which then clears
        return len(reading.data) == 42

    await until(done)
    container.end()
    assert await reading.end() == ReadResult()
    assert reading.data == bytes(container.output)


async def test_a_followed_log_may_be_rotated(site: Site) -> None:
    container = site.node("n0").create("t1-1-0")
    reading = Reading(await site.source())
    for number in range(5):
        container.write(b"line %d\n" % number)
        await reading.until(bytes(container.output))
        container.rotate()
    container.end()
    assert reading.data == bytes(container.output)


@pytest.mark.parametrize("seen", [True, False])
async def test_a_missed_rotation_is_noted(site: Site, seen: bool) -> None:
    """A new collector finds only the newest file: it finds the place by its bytes, or it
    reports that something may be missing."""
    container = site.node("n0").create("t1-1-0")
    container.write(b"in a file that is rotated away\n" * 3)
    first = bytes(container.output)
    container.rotate()
    container.write(b"in the newest file, and read before; some more text to know it by\n")
    read = len(container.output) if seen else len(first) - 5
    container.write(b"not read yet\n")
    reading = Reading(await site.source(), data=bytes(container.output)[:read])
    container.end()
    await reading.end()
    if seen:
        assert reading.data == bytes(container.output)
    else:
        newest = bytes(container.output)[len(first) :]
        assert reading.data == bytes(container.output)[:read] + GAP + newest


async def test_an_agent_with_other_offsets_is_not_trusted(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """The agent came when the first files were gone; the collector had read them."""
    container = site.node("n0").create("t1-1-0")
    for number in range(6):
        container.write(b"file %d, with a text of its own that is long enough\n" % number)
        container.rotate()
    container.write(b"the newest file\n")
    output = bytes(container.output)
    await site.agent("n0")
    reading = Reading(await site.source(fallback_seconds=60.0), data=output)
    container.write(b"new\n")
    container.end()
    await reading.end()
    assert reading.data == output + GAP + b"the newest file\nnew\n"
    assert "has other offsets" in capsys.readouterr().out


async def test_the_number_of_streams_is_bounded_and_all_get_their_turn(site: Site) -> None:
    kubelet = site.node("n0")
    source = await site.source(stream_count_max=2, stream_turn_seconds=0.02)
    containers: list[Container] = []
    for rank in range(6):
        containers.append(kubelet.create(f"t1-1-{rank}"))
        containers[-1].write(b"rank %d\n" % rank)
    readings = [Reading(source, address(rank)) for rank in range(6)]

    async def done() -> bool:
        for reading in readings:
            await reading.once()
        assert len(source._streams.open if source._streams else {}) <= 2
        return all(reading.data for reading in readings)

    await until(done)
    assert [reading.data for reading in readings] == [b"rank %d\n" % rank for rank in range(6)]


@given(st.binary(max_size=60), st.data())
def test_a_place_is_found_by_the_bytes_before_it(log: bytes, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(log)))
    size = data.draw(st.integers(0, 8))
    before = log[max(0, offset - size) : offset]
    finder, left = Finder(offset, before), log
    while left:
        cut = data.draw(st.integers(1, len(left)))
        finder.feed(left[:cut])
        left = left[cut:]
    assert finder.place() == Place(offset, before)
    # The same bytes further back in the file, and nowhere.
    moved = Finder(offset + 1000, before)
    moved.feed(log)
    place = moved.place()
    if before:
        at = log.rfind(before) + len(before)
        assert place == Place(at, before)
    else:
        assert place == Place(0, notice=GAP)


# -- what is kept, and settings


async def test_stored_output_is_reported_even_if_the_agent_was_away(site: Site) -> None:
    container = site.node("n0").create("t1-1-0")
    agent = await site.agent("n0")
    source = await site.source(fallback_seconds=60.0)
    reading = Reading(source)
    container.write(b"x\n")
    await reading.until(b"x\n")
    container.end()
    await reading.end()
    await agent.stop()
    await source.stored([Stored(address(), 2, done=False), Stored(address(), 2, done=True)])
    await asyncio.sleep(0.05)
    await agent.start()

    async def published() -> bool:
        await reading.once()
        return not list(site.api.kubelets["n0"].log_dir.rglob("shiftwork/*/*/*.log"))

    await until(published)


async def test_a_cluster_that_is_not_described_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ClusterError, match="no cluster is described by /nowhere/at-all"):
        await connect(Path("/nowhere/at-all"))
    path = tmp_path / "kubeconfig"
    path.write_text("{}")
    with pytest.raises(ClusterError, match="set SHIFTWORK_LOG_COLLECTOR_KUBE_CONFIG"):
        await connect(path)
    made = await connect(kubeconfig(tmp_path, 1234))
    assert await made.connect() == "http://127.0.0.1:1234"
    await made.close()


async def test_a_source_that_does_not_run_knows_nothing_for_certain(tmp_path: Path) -> None:
    source = KubernetesSource(cluster_of(tmp_path, 1))
    assert await source.read([ReadRequest(address(), 0, 10, sure=True)], 10) == [
        ReadResult(unsure=True)
    ]


async def test_restarts_of_collector_and_agent_lose_and_double_nothing(site: Site) -> None:
    """The whole way: pods that write, agents, this source, the collector; everything dies."""
    rng, archive = Random(11), FileArchive(site.folder / "logs")
    containers = {}
    for rank in range(2):
        containers[rank] = site.node(f"n{rank}").create(f"t1-1-{rank}")
        await site.agent(f"n{rank}")
    source = await site.source(fallback_seconds=60.0)
    settings = settings_with(record_bytes=50_000, record_seconds=1.0)
    harness = await collecting(source, archive, settings)
    await harness.handle(started(2))
    for _ in range(60):
        for container in containers.values():
            container.write(rng.randbytes(rng.choice([0, 5, 3000, 40_000])).replace(b"\r", b"."))
        await harness.copy_and_record()
        harness.clock.advance(0.2)
        await asyncio.sleep(0.002)
        what = rng.random()
        if what < 0.1:
            await harness.restart()
        elif what < 0.2:
            containers[rng.randrange(2)].rotate()
            await asyncio.sleep(0.05)
        elif what < 0.25:
            agent = site.api.agents[f"n{rng.randrange(2)}"]
            await agent.stop()
            await agent.start()
    for container in containers.values():
        container.end()
    await harness.handle(exited(2))

    async def collected() -> bool:
        harness.clock.advance(0.2)
        await harness.copy_and_record()
        return (await harness.rows(RunRow))[0].collected

    await until(collected)
    for rank, container in containers.items():
        assert archive.path(key_of(rank)).read_bytes() == bytes(container.output)
    rows = await harness.rows(OutputRow)
    assert [(row.size, row.complete) for row in rows] == [
        (len(container.output), True) for container in containers.values()
    ]


@pytest.mark.parametrize(
    ("answer", "is_none"),
    [
        (b"unable to retrieve container logs for containerd://0a1b2c", True),
        (b'failed to try resolving symlinks in path "/var/log/pods/a": no such file', True),
        # What a program may print.
        (b"unable to retrieve container logs for ", False),
        (b"unable to retrieve container logs for me, said the boss\n", False),
        (b"failed to try resolving symlinks in path \n", False),
        (b"unable to retrieve container logs for containerd://0a\nstep 1\n", False),
    ],
)
def test_only_the_kubelets_whole_answer_means_that_there_is_no_log(
    answer: bytes, is_none: bool
) -> None:
    assert bool(NO_LOG.fullmatch(answer)) is is_none

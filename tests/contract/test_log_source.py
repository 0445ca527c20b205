"""What every source of output promises the collector, held against real files and real HTTP.

The log agent reads a folder that is written to as a kubelet does it; the API server is a real HTTP
server that speaks the log endpoint. Both with rotations and restarts.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.log_collector.domain import Address, OutputKey
from services.log_collector.sources.files import FileSource, output_path
from services.log_collector.sources.kubernetes import KubernetesSource
from services.log_collector.sources.kubernetes_options import pod_name
from services.log_collector.sources.memory import MemorySource
from services.log_collector.sources.port import LogSource, ReadRequest, ReadResult, Stored
from tests.services.log_collector.fake_agents import Agent, ApiServer, cluster_of, running
from tests.services.log_collector.fake_kubelet import Container, Kubelet

LAST_BYTES = 64


def address(rank: int = 0) -> Address:
    return Address(OutputKey("t1", 1, rank), f"n{rank % 2}")


class Backend(Protocol):
    """What surrounds a source: ranks that write, and what happens to their files."""

    source: LogSource

    def begin(self, rank: int) -> None:
        """The rank exists and has written nothing."""
        ...

    def write(self, rank: int, data: bytes) -> None: ...

    async def rotate(self, rank: int) -> None: ...

    async def restart(self) -> None:
        """The programs between the files and the source die and come back."""
        ...

    def end(self, rank: int) -> None: ...


@dataclass
class Memory:
    source: MemorySource = field(default_factory=MemorySource)

    def begin(self, rank: int) -> None:
        self.source.append(address(rank).key, b"")

    def write(self, rank: int, data: bytes) -> None:
        self.source.append(address(rank).key, data)

    async def rotate(self, rank: int) -> None: ...

    async def restart(self) -> None: ...

    def end(self, rank: int) -> None: ...


@dataclass
class Files:
    runs: Path

    def __post_init__(self) -> None:
        self.source = FileSource(self.runs)

    def begin(self, rank: int) -> None:
        self.write(rank, b"")

    def write(self, rank: int, data: bytes) -> None:
        path = output_path(self.runs, address(rank))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)

    async def rotate(self, rank: int) -> None: ...

    async def restart(self) -> None:
        self.source = FileSource(self.runs)

    def end(self, rank: int) -> None: ...


@dataclass
class Pods:
    """Pods on two nodes; ``agents`` only where the log agents are part of it."""

    api: ApiServer
    source: KubernetesSource
    unseen: dict[int, int] = field(default_factory=dict[int, int])

    def container(self, rank: int) -> Container:
        kubelet = self.api.kubelets[f"n{rank % 2}"]
        pod = pod_name(address(rank).key)
        return kubelet.containers.get(pod) or kubelet.create(pod)

    def begin(self, rank: int) -> None:
        self.container(rank)

    def write(self, rank: int, data: bytes) -> None:
        self.container(rank).write(data)

    async def rotate(self, rank: int) -> None:
        if not self.api.agents:
            return  # the endpoint alone cannot follow what it did not see
        container = self.container(rank)
        container.rotate()
        # The kubelet takes ten seconds for each rotation, so an agent that scans reads three files.
        self.unseen[rank] = self.unseen.get(rank, 0) + 1
        spool = self.api.kubelets[f"n{rank % 2}"].log_dir / "shiftwork"
        while self.unseen[rank] >= container.files_max - 2:
            inodes = {path.stat().st_ino for path in spool.rglob("*_*_*.log")}
            if container.path.stat().st_ino in inodes:
                self.unseen[rank] = 0
            await asyncio.sleep(0.005)

    async def restart(self) -> None:
        for agent in self.api.agents.values():
            await agent.stop()
            await agent.start()

    def end(self, rank: int) -> None:
        self.container(rank).end()


@asynccontextmanager
async def pods(folder: Path, *, agents: bool) -> AsyncIterator[Pods]:
    async with AsyncExitStack() as stack:
        kubelets = {node: Kubelet(folder / node / "log") for node in ("n0", "n1")}
        api = ApiServer(kubelets)
        for node, kubelet in kubelets.items():
            stack.callback(kubelet.close)
            if agents:
                agent = api.agents[node] = Agent(kubelet)
                await agent.start()
                stack.push_async_callback(agent.stop)
        await api.start()
        stack.push_async_callback(api.stop)
        source = KubernetesSource(
            cluster_of(folder, api.port, fallback_seconds=60.0 if agents else 0.0)
        )
        await stack.enter_async_context(running(source))
        yield Pods(api, source)


@asynccontextmanager
async def backend_of(kind: str, folder: Path) -> AsyncIterator[Backend]:
    if kind == "memory":
        yield Memory()
    elif kind == "files":
        yield Files(folder)
    else:
        async with pods(folder, agents=kind == "agent") as backend:
            yield backend


@pytest_asyncio.fixture(params=["memory", "files", "agent", "api"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    async with backend_of(request.param, tmp_path) as made:
        yield made


async def until_sure(
    source: LogSource, *requests: ReadRequest, bytes_max: int = 1 << 24
) -> list[ReadResult | None]:
    """Read as the collector does: again, as long as the source is unsure."""
    deadline = time.monotonic() + 10
    while True:
        answers = list(await source.read(requests, bytes_max))
        if not any(result is not None and result.unsure and not result.data for result in answers):
            return answers
        assert time.monotonic() < deadline, answers
        await asyncio.sleep(0.005)


@dataclass
class Reader:
    """One output, read on and on as the collector does it."""

    backend: Backend
    rank: int = 0
    data: bytes = b""

    def request(
        self, offset: int | None = None, bytes_max: int = 1 << 20, *, sure: bool
    ) -> ReadRequest:
        at = len(self.data) if offset is None else offset
        before = self.data[max(0, at - LAST_BYTES) : at]
        return ReadRequest(address(self.rank), at, bytes_max, before, sure=sure)

    async def query(self, bytes_max: int = 1 << 20) -> None:
        (result,) = await self.backend.source.read(
            [self.request(bytes_max=bytes_max, sure=False)], 1 << 24
        )
        assert result is not None
        assert not result.problem
        self.data += result.data

    async def until(self, size: int) -> None:
        deadline = time.monotonic() + 10
        while len(self.data) < size:
            await self.query()
            assert time.monotonic() < deadline, (len(self.data), size)
            await asyncio.sleep(0.005)

    async def to_the_end(self) -> ReadResult:
        while True:
            (result,) = await until_sure(self.backend.source, self.request(sure=True))
            assert result is not None
            if not result.data:
                return result
            self.data += result.data


async def test_output_is_read_as_it_is_written(backend: Backend) -> None:
    reader = Reader(backend)
    await reader.query()
    assert reader.data == b""
    backend.write(0, b"one\n")
    await reader.until(4)
    backend.write(0, b"two\nthree\n")
    await reader.until(14)
    backend.write(0, b"no end")
    backend.end(0)
    assert await reader.to_the_end() == ReadResult()
    assert reader.data == b"one\ntwo\nthree\nno end"


async def test_time_stamps_refer_to_returned_bytes(backend: Backend) -> None:
    """Where a source knows when its bytes were written, in their order; whatever was asked for."""
    for number in range(20):
        backend.write(0, b"line %d\n" % number)
    backend.end(0)
    reader = Reader(backend)
    await reader.to_the_end()
    for offset, size in ((0, 1 << 20), (3, 20), (100, 1 << 20)):
        (result,) = await until_sure(backend.source, reader.request(offset, size, sure=True))
        assert result is not None
        offsets = [each.offset for each in result.timestamps]
        assert offsets == sorted(set(offsets))
        assert all(0 <= each < len(result.data) for each in offsets)
        knows = isinstance(backend, Files) or (
            isinstance(backend, Pods) and bool(backend.api.agents)
        )
        assert bool(offsets) == knows


async def test_an_output_that_never_existed_is_reported_as_absent(backend: Backend) -> None:
    result = await until_sure(backend.source, ReadRequest(address(), 0, 10, sure=True))
    assert result == [ReadResult(absent=True)]


async def test_an_empty_output_exists(backend: Backend) -> None:
    backend.begin(0)
    backend.end(0)
    assert await Reader(backend).to_the_end() == ReadResult()


async def test_any_byte_can_be_asked_for_again(backend: Backend) -> None:
    written = b"".join(b"line %d\n" % number for number in range(2000))
    backend.write(0, written)
    backend.end(0)
    reader = Reader(backend)
    await reader.to_the_end()
    assert reader.data == written
    for offset in (0, 1, 4096, 7, len(written) - 1, 9000):
        asked = reader.request(offset, 50, sure=True)
        assert await until_sure(backend.source, asked) == [
            ReadResult(written[offset : offset + 50])
        ]
    assert await until_sure(backend.source, reader.request(len(written), sure=True)) == [
        ReadResult()
    ]


async def test_bytes_that_were_not_stored_are_returned_again(backend: Backend) -> None:
    """The collector's disk was full: it reads again from the same offset."""
    reader = Reader(backend)
    backend.write(0, b"first\n")
    await reader.until(6)
    backend.write(0, b"second\n")
    stored = reader.data
    await reader.until(13)
    reader.data = stored
    backend.write(0, b"third\n")
    await reader.until(19)
    assert reader.data == b"first\nsecond\nthird\n"


async def test_a_read_stops_at_its_limit_of_bytes(backend: Backend) -> None:
    for rank in range(0, 6, 2):
        backend.write(rank, b"123456789\n")
        backend.end(rank)
    requests = [ReadRequest(address(rank), 0, 10, sure=True) for rank in range(0, 6, 2)]
    await until_sure(backend.source, *requests)
    answers = await until_sure(backend.source, *requests, bytes_max=15)
    assert answers == [ReadResult(b"123456789\n"), ReadResult(b"12345"), None]
    assert await backend.source.read([], 100) == []


async def test_several_nodes_at_once(backend: Backend) -> None:
    readers = [Reader(backend, rank) for rank in range(4)]
    for turn in range(3):
        for reader in readers:
            backend.write(reader.rank, b"%d of rank %d\n" % (turn, reader.rank))
            await backend.rotate(reader.rank)
        for reader in readers:
            await reader.until(12 * (turn + 1))
    for reader in readers:
        backend.end(reader.rank)
        await reader.to_the_end()
        assert reader.data == b"".join(
            b"%d of rank %d\n" % (turn, reader.rank) for turn in range(3)
        )


AWKWARD = [
    b"",
    b"\n",
    b"\n\n\n",
    b"\x00\xff\xfe no text at all \x80\n",
    "schräg ✓ 🙂\n".encode()[:-3] + b"\n",
    b"x" * 16_384 + b"\n",
    b"x" * 16_385,
    b"y" * 200_000 + b"\n" + b"z" * 40_000,
    b"2026-01-01T00:00:00.1Z stdout F looks like an entry\n",
    b" P \n F \nstdout P x\n",
]


@pytest.mark.parametrize("number", range(len(AWKWARD)))
async def test_every_byte_comes_through(backend: Backend, number: int) -> None:
    backend.begin(0)
    for part in (AWKWARD[number], b"|", AWKWARD[number]):
        backend.write(0, part)
        await backend.rotate(0)
    backend.end(0)
    reader = Reader(backend)
    await reader.to_the_end()
    assert reader.data == AWKWARD[number] + b"|" + AWKWARD[number]


async def test_a_restart_neither_loses_nor_repeats_bytes(backend: Backend) -> None:
    reader, written = Reader(backend), b""
    for turn in range(4):
        data = b"".join(b"%d.%d\n" % (turn, number) for number in range(300))
        backend.write(0, data)
        written += data
        await reader.until(len(written) - 7)
        await backend.restart()
        if turn % 2:
            await backend.rotate(0)
    backend.end(0)
    await reader.to_the_end()
    assert reader.data == written


async def test_stored_output_may_be_deleted_and_the_rest_stays(backend: Backend) -> None:
    reader = Reader(backend)
    backend.write(0, b"old\n")
    await reader.until(4)
    await backend.rotate(0)
    backend.write(0, b"new\n")
    await reader.until(8)
    await backend.source.stored([Stored(address(), 4, done=False)])
    backend.write(0, b"newest\n")
    backend.end(0)
    reader.data = reader.data[:4]
    await reader.to_the_end()
    assert reader.data == b"old\nnew\nnewest\n"
    await backend.source.stored([Stored(address(), 15, done=True)])


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.binary(max_size=400).map(lambda b: b.replace(b"\r", b"\n"))),
        st.tuples(st.just("write"), st.integers(0, 40_000).map(lambda size: b"w" * size)),
        st.tuples(st.just("look"), st.integers(1, 50_000)),
        st.tuples(st.just("rotate"), st.none()),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=14,
)


@pytest.mark.parametrize("kind", ["files", "agent", "api"])
@given(todo=steps)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_exactly_what_was_written_is_read(
    kind: str, todo: list[tuple[str, bytes | int | None]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with backend_of(kind, Path(folder)) as backend:
            backend.begin(0)
            reader, written = Reader(backend), b""
            for what, value in todo:
                if isinstance(value, bytes):
                    backend.write(0, value)
                    written += value
                elif isinstance(value, int):
                    await reader.query(value)
                elif what == "rotate":
                    await backend.rotate(0)
                else:
                    await backend.restart()
            backend.end(0)
            await reader.to_the_end()
            assert reader.data == written

"""The launcher's end of sessions, with real commands in a rank of the process runtime."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from libs.bus.sessions import Session, SessionTimes, open_session
from libs.contracts import messages as m
from libs.service.clock import SystemClock
from services.launcher.domain.model import RankState, Run, RunState
from services.launcher.exec_sessions import ExecLimits, ExecSessions
from services.launcher.runtimes.port import Runtime
from services.launcher.tables import TABLES
from tests.kit.launcher_builders import a_run
from tests.kit.memory import MemoryPlatform
from tests.services.launcher.launcher_harness import LauncherHarness
from tests.services.launcher.runtimes.test_node_exec import no_process_has
from tests.services.launcher.runtimes.test_process import RUN, Box

QUICK = SessionTimes(heartbeat_seconds=0.1, silence_seconds=0.6)
CLOCK = SystemClock()


class Site:
    """A launcher's sessions, and the gateway's side of them."""

    def __init__(self, runtime: Runtime, sessions_max: int = 8) -> None:
        self.platform = MemoryPlatform(CLOCK)
        self.store = self.platform.store(TABLES)
        self.sessions = ExecSessions(
            self.platform.bus("launcher"),
            self.store,
            runtime,
            ExecLimits(sessions_max=sessions_max, times=QUICK),
            CLOCK.now,
        )
        self.gateway = self.platform.bus("gateway")

    async def put(self, *runs: Run) -> None:
        async with self.store.transaction() as tx:
            for run in runs:
                tx.put(run)

    @contextlib.asynccontextmanager
    async def opened(
        self, name: str, *command: str
    ) -> AsyncIterator[tuple[m.OpenExecReply, Session, asyncio.Future[None]]]:
        async with open_session(self.gateway, name, m.ExecInput, CLOCK.now, QUICK) as session:
            request = m.OpenExec(session=name, task_id=RUN.task_id, command=command)
            async with self.platform.bus("launcher").serve({m.OpenExec: self.sessions.open}):  # type: ignore[dict-item]
                reply = await self.gateway.request(request, timeout_s=5)
            assert isinstance(reply, m.OpenExecReply)
            running = asyncio.ensure_future(session.run())
            try:
                yield reply, session, running
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


@pytest_asyncio.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    made = Box(tmp_path / "machine")
    await made.lead()
    await made.sh("echo ready; exec sleep 600")
    await made.started()
    yield made
    await made.clear()


async def ended(session: Session) -> tuple[bytes, m.ExecEnd]:
    out = b""
    async with asyncio.timeout(5):
        while (frame := await session.receive()).end is None:
            out += frame.data
        return out, frame.end


def refused(reply: m.OpenExecReply) -> str:
    assert reply.refusal is not None
    return reply.refusal.detail


async def test_a_command_runs_and_its_end_is_reported(box: Box) -> None:
    site = Site(box.runtime)
    await site.put(a_run(RunState.RUNNING))
    async with site.opened("one", "sh", "-c", "read line; echo $line; exit 7") as found:
        reply, session, _ = found
        assert (reply.attempt, reply.rank, reply.node_id) == (1, 0, "local-0")
        await session.send(m.ExecStream.STDIN, b"typed\n")
        assert await ended(session) == (b"typed\n", m.ExecEnd(code=7))


async def test_a_gateway_that_leaves_or_falls_silent_ends_the_command(box: Box) -> None:
    site = Site(box.runtime)
    await site.put(a_run(RunState.RUNNING))
    async with site.opened("left", "sleep", "600") as (_, session, _):
        await session.leave()
        await no_process_has("left")
    async with site.opened("silent", "sleep", "600") as (_, session, running):
        running.cancel()
        await no_process_has("silent")
    assert (await box.runtime.list()).runs[RUN].ranks[0].state is RankState.RUNNING


async def test_a_launcher_that_leads_no_longer_ends_its_sessions_and_says_so(box: Box) -> None:
    site = Site(box.runtime)
    await site.put(a_run(RunState.RUNNING))
    async with site.opened("one", "sleep", "600") as (_, session, _):
        site.sessions.end_all()
        _, end = await ended(session)
        assert "leads no longer" in end.problem
        await no_process_has("one")


async def test_refusals_have_their_reasons(box: Box) -> None:
    site = Site(box.runtime, sessions_max=1)
    async with site.opened("one", "true") as (reply, *_):
        assert "does not run" in refused(reply)
    await site.put(a_run(RunState.RUNNING))
    async with site.opened("two", "sleep", "600") as first:
        assert first[0].refusal is None
        async with site.opened("three", "true") as second:
            assert "1 sessions are open on this platform" in refused(second[0])
    site.sessions.end_all()
    none = Site(box.runtime, sessions_max=0)
    async with none.opened("four", "true") as (reply, *_):
        assert "runs no sessions" in refused(reply)


async def test_two_openings_at_once_get_one_place(box: Box) -> None:
    site = Site(box.runtime, sessions_max=1)
    await site.put(a_run(RunState.RUNNING))

    async def opened(name: str) -> str:
        request = m.OpenExec(session=name, task_id=RUN.task_id, command=("sleep", "600"))
        reply = await site.sessions.open(request)
        return reply.refusal.detail if reply.refusal else ""

    replies = await asyncio.gather(opened("one"), opened("two"))
    assert sorted(replies) == ["", "1 sessions are open on this platform; close one"]
    site.sessions.end_all()
    await no_process_has("one")


async def test_a_place_is_free_again_after_an_opening_that_fails(box: Box) -> None:
    site = Site(box.runtime, sessions_max=1)
    for name in ("one", "two"):
        request = m.OpenExec(session=name, task_id="nothing", command=("true",))
        reply = await site.sessions.open(request)
        assert "sessions are open" not in refused(reply)


async def test_a_runtime_without_sessions_refuses_them() -> None:
    harness = LauncherHarness()
    await harness.start()
    async with Site(harness.launcher.runtime).opened("one", "true") as (reply, *_):
        assert "runs no commands in ranks" in refused(reply)


async def test_a_rank_that_ended_unnoticed_is_refused(box: Box) -> None:
    """The row still says that it runs; the node knows better."""
    site = Site(box.runtime)
    await site.put(a_run(RunState.RUNNING))
    await box.runtime.end(RUN, frozenset({"local-0"}), grace_seconds=0)
    await box.over()
    async with site.opened("one", "true") as (reply, *_):
        assert "is over" in refused(reply)


@pytest.mark.parametrize("state", [RunState.ASSIGNED, RunState.ENDING])
async def test_only_a_running_run_has_sessions(box: Box, state: RunState) -> None:
    site = Site(box.runtime)
    await site.put(a_run(state))
    async with site.opened("one", "true") as (reply, *_):
        assert reply.refusal is not None

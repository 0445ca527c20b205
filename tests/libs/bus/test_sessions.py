"""Sessions over the memory bus: order, back-pressure, loss and silence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from random import Random

import pytest

from libs.bus.memory import MemoryBus
from libs.bus.memory_broker import Faults, MemoryBroker
from libs.bus.sessions import WINDOW, Session, SessionLostError, SessionTimes, open_session
from libs.contracts import messages as m
from libs.service.clock import SystemClock

NAME = "session-1"


@contextlib.asynccontextmanager
async def both(times: SessionTimes) -> AsyncGenerator[tuple[MemoryBroker, Session, Session]]:
    broker = MemoryBroker(Random(1))
    gateway, launcher = MemoryBus(broker, "gateway"), MemoryBus(broker, "launcher")
    now = SystemClock().now
    async with (
        open_session(gateway, NAME, m.ExecInput, now, times) as near,
        open_session(launcher, NAME, m.ExecOutput, now, times) as far,
    ):
        yield broker, near, far


QUICK = SessionTimes(heartbeat_seconds=0.05, silence_seconds=0.3)


async def test_data_arrives_whole_and_in_order_with_back_pressure() -> None:
    data = bytes(range(256)) * 8 * 1024
    async with both(QUICK) as (_, near, far):
        running = [asyncio.ensure_future(each.run()) for each in (near, far)]
        writing = asyncio.ensure_future(far.send(m.ExecStream.STDOUT, data))
        await asyncio.sleep(0.2)
        assert not writing.done()
        received = b""
        while len(received) < len(data):
            received += (await near.receive()).data
        assert received == data
        await writing
        assert not any(each.done() for each in running)
        for each in running:
            each.cancel()


async def test_tiny_frames_take_a_share_of_the_window() -> None:
    async with both(QUICK) as (_, near, far):
        running = [asyncio.ensure_future(each.run()) for each in (near, far)]

        async def write() -> int:
            sent = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    while True:
                        await near.send(m.ExecStream.STDIN, b"x")
                        sent += 1
            return sent

        assert await write() == WINDOW // 512
        for each in running:
            each.cancel()


async def test_a_lost_frame_ends_the_session() -> None:
    async with both(QUICK) as (broker, near, far):
        running = asyncio.ensure_future(near.run())
        await far.send(m.ExecStream.STDOUT, b"one")
        broker.faults = Faults(lose_telemetry=1.0)
        await far.send(m.ExecStream.STDOUT, b"two")
        broker.faults = Faults()
        await far.send(m.ExecStream.STDOUT, b"three")
        with pytest.raises(SessionLostError, match="lost on the way"):
            await running


async def test_silence_ends_the_session_and_heartbeats_prevent_that() -> None:
    async with both(QUICK) as (_, near, far):
        ours, theirs = asyncio.ensure_future(near.run()), asyncio.ensure_future(far.run())
        await asyncio.sleep(0.6)
        assert not ours.done()
        theirs.cancel()
        with pytest.raises(SessionLostError, match="nothing came"):
            await ours

"""The memory broker's faults, on virtual time: each one happens, none loses anything."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from libs.bus.memory import MemoryBus
from libs.bus.memory_broker import Faults, MemoryBroker
from libs.bus.port import Bus, BusUnavailableError
from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.contracts.envelope import Envelope
from tests.kit.virtual_time import virtually

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
EVERYTHING = Faults(
    lose_delivery=0.2,
    duplicate_delivery=0.2,
    delay_delivery=0.2,
    reorder=0.3,
    lose_ack=0.2,
    fail_publish=0.3,
    lose_request=0.2,
    lose_reply=0.2,
    lose_telemetry=0.5,
    latency_s_max=0.2,
)


def on_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        virtually(test(**arguments))

    # pytest-asyncio would unwrap the function and open a loop of its own.
    run.__signature__ = inspect.signature(test)
    del run.__wrapped__
    return run


def goal(number: int) -> Envelope:
    message = m.GoalChanged(task_id="t", goal=m.Goal.PAUSE, revision=number, changed_at=NOW)
    return Envelope(id=f"g-{number}", source="submit", time=NOW, message=message)


def two(seed: int = 1, faults: Faults | None = None) -> tuple[MemoryBroker, Bus, Bus]:
    broker = MemoryBroker(random.Random(seed), faults)
    return broker, MemoryBus(broker, "submit"), MemoryBus(broker, "quota", [m.GoalChanged])


async def publish_all(bus: Bus, count: int) -> None:
    """Publish as a relay does: again, with the same ids, until the bus confirms the storage."""
    for first in range(0, count, 10):
        batch = [goal(number) for number in range(first, min(first + 10, count))]
        while True:
            try:
                await bus.publish(batch)
                break
            except BusUnavailableError:
                await asyncio.sleep(0.5)


async def consume(bus: Bus, count: int, quiet_s: float = 120.0) -> list[tuple[str, int]]:
    """Acknowledge everything until ``count`` ids were seen and nothing came for a while."""
    got: list[tuple[str, int]] = []
    while True:
        try:
            batch = await bus.consumer().fetch(7, quiet_s)
        except BusUnavailableError:
            await asyncio.sleep(0.5)
            continue
        if not batch and len({each for each, _ in got}) >= count:
            return got
        for each in batch:
            assert each.envelope
            got.append((each.envelope.id, each.deliveries))
            with contextlib.suppress(BusUnavailableError):
                await each.ack()


async def exchange(bus: Bus, other: Bus, count: int) -> list[tuple[str, int]]:
    async with asyncio.TaskGroup() as group:
        group.create_task(publish_all(bus, count))
        got = group.create_task(consume(other, count))
    return got.result()


@on_virtual_time
async def test_nothing_is_lost_under_all_faults_and_a_seed_is_a_history() -> None:
    async def run(seed: int) -> list[tuple[str, int]]:
        _, submit, quota = two(seed, EVERYTHING)
        return await exchange(submit, quota, 100)

    one, same, other = await run(1), await run(1), await run(2)
    everything = {f"g-{number}" for number in range(100)}
    assert {each for each, _ in one} == everything == {each for each, _ in other}
    assert one == same != other
    assert len(one) > 100


@pytest.mark.parametrize(
    ("fault", "comes_again", "in_order"),
    [
        ("", False, True),
        ("lose_delivery", False, False),
        ("duplicate_delivery", True, False),
        ("delay_delivery", False, False),
        ("reorder", False, False),
        ("lose_ack", True, False),
        ("fail_publish", False, False),
    ],
)
@on_virtual_time
async def test_each_fault_of_events_shows(fault: str, comes_again: bool, in_order: bool) -> None:
    faults = replace(Faults(), **{fault: 0.3}) if fault else Faults()
    _, submit, quota = two(3, faults)
    got = [each for each, _ in await exchange(submit, quota, 60)]
    assert set(got) == {f"g-{number}" for number in range(60)}
    assert (len(got) > 60) == comes_again
    assert (got == [f"g-{number}" for number in range(60)]) == in_order


def test_every_fault_is_switched_off_by_default() -> None:
    assert {each.name: getattr(Faults(), each.name) for each in fields(Faults)} == {
        each.name: 5.0 if each.name == "delay_s_max" else 0.0 for each in fields(Faults)
    }


async def answered(work: Awaitable[object]) -> bool:
    try:
        await work
    except BusUnavailableError:
        return False
    return True


@on_virtual_time
async def test_commands_and_replies_get_lost_and_a_lost_reply_was_carried_out() -> None:
    async def run(faults: Faults) -> tuple[int, int]:
        broker, submit, _ = two(5, faults)
        gateway, carried_out = MemoryBus(broker, "gateway"), 0

        async def handle(_: Message) -> Message:
            nonlocal carried_out
            carried_out += 1
            return m.SetGoalReply()

        async with submit.serve({m.SetGoal: handle}):
            outcomes = [
                await answered(gateway.request(m.SetGoal(task_id="t"), timeout_s=1.0))
                for _ in range(50)
            ]
        return carried_out, sum(outcomes)

    assert await run(Faults()) == (50, 50)
    carried_out, confirmed = await run(Faults(lose_request=0.3))
    assert carried_out == confirmed < 50
    carried_out, confirmed = await run(Faults(lose_reply=0.3))
    assert confirmed < carried_out == 50


@on_virtual_time
async def test_a_partitioned_service_is_alone_until_healed() -> None:
    broker, submit, quota = two()
    waiting = asyncio.ensure_future(quota.consumer().fetch(1, 1000.0))
    await asyncio.sleep(1)
    broker.partition("quota")
    with pytest.raises(BusUnavailableError):
        await waiting
    assert not quota.connected
    assert submit.connected
    await submit.publish([goal(1)])
    with pytest.raises(BusUnavailableError):
        await quota.consumer().fetch(1, 1.0)
    broker.heal()
    (one,) = await quota.consumer().fetch(1, 1.0)
    assert one.envelope == goal(1)
    broker.partition("quota")
    with pytest.raises(BusUnavailableError):
        await one.ack()
    broker.heal("quota")
    (again,) = await quota.consumer().fetch(1, 60.0)
    assert again.deliveries == 2


@on_virtual_time
async def test_a_restart_may_forget_the_last_seconds_and_shows_as_another_server() -> None:
    broker, submit, quota = two()
    await submit.publish([goal(1), goal(2)])
    one, _ = await quota.consumer().fetch(10, 1.0)
    await asyncio.sleep(20)
    await one.ack()
    await submit.publish([goal(3)])
    (late,) = await quota.consumer().fetch(10, 1.0)
    before = submit.server_id
    broker.restart(forget_s=10.0)
    assert submit.server_id != before
    # The message is stored again in another position: the old delivery must not settle it.
    await submit.publish([goal(4), goal(3)])
    await quota.consumer().fetch(10, 1.0)
    await late.ack()
    got = [each for each, _ in await consume(quota, 4)]
    # The acknowledgement of 1 was forgotten as well.
    assert sorted(got) == ["g-1", "g-2", "g-3", "g-4"]
    assert [each.id for each in broker.history] == ["g-1", "g-2", "g-3", "g-4", "g-3"]


@on_virtual_time
async def test_a_restart_that_forgets_nothing_keeps_everything() -> None:
    broker, submit, quota = two()
    await submit.publish([goal(1), goal(2)])
    one, _ = await quota.consumer().fetch(10, 1.0)
    await one.ack()
    broker.restart()
    assert [each for each, _ in await consume(quota, 1)] == ["g-2"]


@on_virtual_time
async def test_the_duplicate_window_ends() -> None:
    broker, submit, quota = two()
    await submit.publish([goal(1)])
    await asyncio.sleep(119)
    await submit.publish([goal(1)])
    assert len(broker.history) == 1
    await asyncio.sleep(2)
    await submit.publish([goal(1)])
    assert len(await consume(quota, 1)) == 2


@on_virtual_time
async def test_virtual_time_only_moves_for_reasons() -> None:
    _, submit, quota = two()
    start = asyncio.get_running_loop().time()
    await submit.publish([goal(1)])
    (one,) = await quota.consumer().fetch(1, 60.0)
    assert asyncio.get_running_loop().time() == start
    await one.nak(12.0)
    (one,) = await quota.consumer().fetch(1, 60.0)
    await one.ack()
    assert asyncio.get_running_loop().time() - start == pytest.approx(12.0, abs=0.01)

"""Events that cannot be handled or cannot be published are set apart, and can be replayed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
import structlog.testing

from libs.contracts import messages as m
from libs.contracts.envelope import EVENT_BYTES_MAX, Envelope
from libs.service import dead_letters
from libs.service.settings import BaseServiceSettings
from libs.store.dead_letters import DeadLetterRow, Direction
from libs.store.port import DatabaseFaultError, EventTooLargeError, Tx
from tests.harness.virtual_time import EPOCH, virtually
from tests.libs.service.service_world import TABLES, Count, World, until

LARGE = 5_000


@pytest.fixture(autouse=True)
def without_tracebacks() -> Iterator[None]:
    """Rendering hundreds of them for a terminal takes longer than the tests."""
    with structlog.testing.capture_logs():
        yield


def letters(world: World) -> list[DeadLetterRow]:
    rows = world.database.rows(TABLES, DeadLetterRow).values()
    return sorted(rows, key=lambda row: row.id)


async def stopped(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def emit(world: World, *owners: str) -> None:
    """Commit events of the service, as one of its handlers would."""
    async with world.store().transaction() as tx:
        for owner in owners:
            tx.emit(usage(owner))


def usage(owner: str) -> m.UsageRecorded:
    return m.UsageRecorded(
        task_id="t", attempt=1, started_at=EPOCH, ended_at=EPOCH, group="g", owner=owner
    )


async def emit_too_large(world: World, *, swallow: bool) -> None:
    async with world.store().transaction() as tx:
        tx.put(Count("a", 1))
        with contextlib.suppress(*[EventTooLargeError] if swallow else []):
            tx.emit(usage("x" * EVENT_BYTES_MAX))


@pytest.mark.parametrize("swallow", [False, True])
def test_a_transaction_that_emits_what_the_bus_never_takes_does_not_commit(swallow: bool) -> None:
    async def main() -> None:
        world = World()
        with pytest.raises(EventTooLargeError, match=f"at most {EVENT_BYTES_MAX}"):
            await emit_too_large(world, swallow=swallow)
        assert world.counts() == {}

    virtually(main())


def test_an_event_that_the_bus_refuses_does_not_stop_the_others_and_is_set_apart() -> None:
    async def main() -> None:
        world = World()
        world.broker.payload_bytes_max = LARGE
        runner = world.runner()
        task = asyncio.ensure_future(runner.run())
        await until(lambda: runner.epoch is not None)
        await emit(world, "a", "x" * LARGE, "b")
        await until(lambda: len(world.said()) == 2, seconds_max=30)
        assert runner.ready[0]
        assert letters(world) == []
        await asyncio.sleep(world.settings.relay_refused_seconds + 30)
        (letter,) = letters(world)
        assert letter.direction is Direction.SENT
        assert "over the bus's limit" in letter.reason
        assert not runner.relay.refused
        await emit(world, "c")
        await until(lambda: len(world.said()) == 3, seconds_max=30)
        await stopped(task)

    virtually(main())


def test_a_refused_event_goes_once_the_bus_takes_it() -> None:
    async def main() -> None:
        world = World()
        world.broker.payload_bytes_max = LARGE
        task = asyncio.ensure_future(world.runner().run())
        await emit(world, "x" * LARGE)
        await asyncio.sleep(60)
        assert world.said() == []
        world.broker.payload_bytes_max = LARGE * 2
        await until(lambda: len(world.said()) == 1, seconds_max=30)
        assert letters(world) == []
        await stopped(task)

    virtually(main())


def test_a_letter_that_was_sent_is_published_by_a_replay() -> None:
    async def main() -> None:
        world = World()
        world.broker.payload_bytes_max = LARGE
        world.settings = replace_settings(world, relay_refused_seconds=0)
        runner = world.runner()
        task = asyncio.ensure_future(runner.run())
        await emit(world, "x" * LARGE)
        await until(lambda: len(letters(world)) == 1, seconds_max=30)
        world.broker.payload_bytes_max = LARGE * 2
        (letter,) = letters(world)
        reply = await world.gateway.request(m.ReplayDeadLetters(service="quota"), timeout_s=5)
        assert reply == m.ReplayDeadLettersReply(ids=(letter.id,))
        await until(lambda: len(world.said()) == 1, seconds_max=5)
        assert letters(world) == []
        await stopped(task)

    virtually(main())


def replace_settings(world: World, **changes: float) -> BaseServiceSettings:
    return world.settings.model_copy(update=changes)


def test_an_event_that_could_not_be_handled_is_listed_and_handled_by_a_replay() -> None:
    async def main() -> None:
        mended = False

        async def broken(event: m.RunStarted) -> None:
            assert mended or event.task_id != "bad", "this one is bad"

        world = World(broken=broken)
        task = asyncio.ensure_future(world.runner().run())
        await world.say("a", "bad")
        await until(lambda: len(letters(world)) == 1, seconds_max=30)
        listed = await world.gateway.request(m.ListDeadLetters(service="quota"), timeout_s=5)
        assert isinstance(listed, m.ListDeadLettersReply)
        (letter,) = listed.letters
        assert letter.direction is m.LetterDirection.RECEIVED
        assert letter.type == "shiftwork.run.v1.RunStarted"
        assert "this one is bad" in letter.reason
        assert letter.size > 0

        wanted = m.ReplayDeadLetters(service="quota", ids=(letter.id,))
        await world.gateway.request(wanted, timeout_s=5)
        await until(lambda: letters(world)[0].replays == 1, seconds_max=5)
        assert letters(world)[0].replay_at is None
        assert world.counts() == {"a": 1}

        mended = True
        await world.gateway.request(wanted, timeout_s=5)
        await until(lambda: not letters(world), seconds_max=5)
        assert world.counts() == {"a": 1, "bad": 1}

        gone = await world.gateway.request(wanted, timeout_s=5)
        assert isinstance(gone, m.ReplayDeadLettersReply)
        assert gone.refusal
        assert gone.refusal.code is m.RefusalCode.NOT_FOUND
        await stopped(task)

    virtually(main())


def test_a_fault_of_the_database_pauses_consumption_and_sets_nothing_apart() -> None:
    async def main() -> None:
        broken = True

        async def missing_table(_: m.RunStarted) -> None:
            if broken:
                raise DatabaseFaultError("UndefinedTableError (42P01): no such table")

        world = World(broken=missing_table)
        runner = world.runner()
        task = asyncio.ensure_future(runner.run())
        await world.say(*(f"t{number}" for number in range(300)))
        await asyncio.sleep(3600)
        assert letters(world) == []
        assert world.broker.dead_letters == []
        ready, why = runner.ready
        assert not ready
        assert "no such table" in why
        broken = False
        await until(lambda: len(world.counts()) == 300, seconds_max=300)
        assert runner.ready[0]
        assert letters(world) == []
        await stopped(task)

    virtually(main())


def test_an_event_for_which_alone_the_database_fails_is_set_apart_while_others_are_handled() -> (
    None
):
    async def main() -> None:
        async def broken(event: m.RunStarted) -> None:
            if event.task_id == "bad":
                raise DatabaseFaultError("ProgramLimitExceeded (54000): too large")

        world = World(broken=broken)
        runner = world.runner()
        task = asyncio.ensure_future(runner.run())
        await world.say("bad")
        for number in range(60):
            await world.say(f"t{number}", prefix=f"p{number}")
            await asyncio.sleep(2)
        await until(lambda: len(letters(world)) == 1, seconds_max=120)
        assert len(world.counts()) == 60
        assert runner.ready[0]
        await stopped(task)

    virtually(main())


def test_events_that_fail_in_a_row_are_not_all_set_apart() -> None:
    async def main() -> None:
        broken = True

        async def always(_: m.RunStarted) -> None:
            if broken:
                raise AttributeError("a defect of every event")

        world = World(broken=always)
        runner = world.runner()
        task = asyncio.ensure_future(runner.run())
        await world.say(*(f"t{number}" for number in range(300)))
        await asyncio.sleep(120)
        burst, each = world.settings.dead_letter_burst, world.settings.dead_letter_seconds
        assert burst <= len(letters(world)) <= burst + 1 + 120 / each
        assert not runner.ready[0]
        broken = False
        await until(lambda: len(world.counts()) + len(letters(world)) == 300, seconds_max=300)
        await world.gateway.request(m.ReplayDeadLetters(service="quota"), timeout_s=5)
        await until(lambda: len(world.counts()) == 300 and not letters(world), seconds_max=300)
        await stopped(task)

    virtually(main())


def test_dead_letters_are_bounded_by_number_and_age() -> None:
    async def main() -> None:
        world = World()
        world.settings = replace_settings(world, dead_letters_max=10, dead_letters_keep_seconds=900)
        store = world.store()
        for number in range(200):
            async with store.transaction() as tx:
                await keep(tx, f"e{number:03}")
            await asyncio.sleep(1)
        task = asyncio.ensure_future(world.runner().run())
        await until(lambda: len(letters(world)) == 10, seconds_max=300)
        assert [row.event_id for row in letters(world)] == [f"e{n}" for n in range(190, 200)]
        await asyncio.sleep(world.settings.dead_letters_keep_seconds + 120)
        assert letters(world) == []
        await stopped(task)

    virtually(main())


async def keep(tx: Tx, event_id: str) -> None:
    envelope = Envelope(event_id, "quota", EPOCH, usage("g"))
    await dead_letters.keep(tx, Direction.SENT, dead_letters.raw_of(envelope), "no\0 reason")

"""Events that cannot be handled or cannot be published are set apart, and can be replayed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator

import pytest
import structlog.testing

from libs.bus.port import RawMessage
from libs.contracts import messages as m
from libs.contracts.envelope import EVENT_BYTES_MAX, Envelope
from libs.service import dead_letters
from libs.service.settings import BaseServiceSettings
from libs.store.dead_letters import DeadLetterBody, DeadLetterRow, Direction
from libs.store.memory import MemoryStore, Point, no_fault
from libs.store.port import DatabaseFaultError, EventTooLargeError, StoreUnavailableError, Tx
from tests.kit.clock import START
from tests.kit.virtual_time import virtually
from tests.libs.service.service_harness import TABLES, Count, World, until

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
        task_id="t", attempt=1, started_at=START, ended_at=START, group="g", owner=owner
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


def test_a_failed_replay_does_not_bring_a_discarded_letter_back() -> None:
    async def main() -> None:
        world = World()
        store = world.store()
        raw = RawMessage("evt.usage.t.recorded", {"ce-id": "e"}, b"unreadable")
        async with store.transaction() as tx:
            await dead_letters.keep(tx, Direction.RECEIVED, raw, "why")
        (row,) = letters(world)
        async with store.transaction() as tx:
            command = m.DiscardDeadLetters(service="quota", ids=(row.id,))
            assert (await dead_letters.discard_letters(tx, command)).ids == (row.id,)
        runner = world.runner()
        loop = dead_letters.DeadLetters(runner.service, runner.settings, runner.turn, never)
        # The replay had read the row before it was discarded.
        await loop._replay(0, row)
        assert letters(world) == []
        assert not world.database.rows(TABLES, DeadLetterBody)

    virtually(main())


async def never(*_: object) -> None:
    """An event that cannot be read reaches no handler."""
    raise AssertionError


def test_all_letters_are_replayed_a_page_at_a_time() -> None:
    async def main() -> None:
        world = World()
        store = world.store()
        ids = [f"sent-e{number:03}" for number in range(230)]
        async with store.transaction() as tx:
            for letter_id in ids:
                await keep(tx, letter_id.removeprefix("sent-"), Direction.SENT)
        async with store.transaction() as tx:
            first = await dead_letters.replay_letters(tx, m.ReplayDeadLetters(service="quota"))
            assert list(first.ids) == ids[:200]
            assert first.more_after == ids[199]
        # What a crash between two pages leaves is marked by the same request again.
        async with store.transaction() as tx:
            again = await dead_letters.replay_letters(tx, m.ReplayDeadLetters(service="quota"))
            assert (again.ids, again.more_after) == ((), ids[199])
            rest = m.ReplayDeadLetters(service="quota", after=again.more_after)
            last = await dead_letters.replay_letters(tx, rest)
        assert (list(last.ids), last.more_after) == (ids[200:], "")
        assert all(row.replay_at for row in letters(world))

    virtually(main())


def test_dead_letters_are_bounded_by_number_and_age() -> None:
    async def main() -> None:
        world = World()
        world.settings = replace_settings(world, dead_letters_max=10, dead_letters_keep_seconds=900)
        store = world.store()
        for number in range(200):
            async with store.transaction() as tx:
                await keep(tx, f"e{number:03}", Direction.RECEIVED)
            await asyncio.sleep(1)
        task = asyncio.ensure_future(world.runner().run())
        await until(lambda: len(letters(world)) == 10, seconds_max=300)
        assert [row.event_id for row in letters(world)] == [f"e{n}" for n in range(190, 200)]
        await asyncio.sleep(world.settings.dead_letters_keep_seconds + 120)
        assert letters(world) == []
        await stopped(task)

    virtually(main())


async def keep(tx: Tx, event_id: str, direction: Direction) -> None:
    envelope = Envelope(event_id, "quota", START, usage("g"))
    await dead_letters.keep(tx, direction, dead_letters.raw_of(envelope), "no\0 reason")


def test_a_letter_that_was_sent_is_not_dropped_because_of_their_number() -> None:
    async def main() -> None:
        world = World()
        world.settings = replace_settings(world, dead_letters_max=10)
        async with world.store().transaction() as tx:
            for number in range(60):
                await keep(tx, f"e{number:03}", Direction.SENT)
        task = asyncio.ensure_future(world.runner().run())
        await asyncio.sleep(300)
        assert len(letters(world)) == 60
        await stopped(task)

    virtually(main())


@pytest.mark.parametrize("too_large", [True, False])
def test_events_that_are_refused_for_hours_are_all_published_in_the_end(too_large: bool) -> None:
    async def main() -> None:
        world = World()
        if too_large:
            world.broker.payload_bytes_max = 50
        else:
            world.broker.denied = ("evt.quota.>", "evt.usage.>")
        runner = world.runner()
        task = asyncio.ensure_future(runner.run())
        await until(lambda: runner.epoch is not None)
        owners = [f"o{number}" for number in range(1_500)]
        for first in range(0, len(owners), 100):
            await emit(world, *owners[first : first + 100])
        await asyncio.sleep(2 * 3600)
        # Too large may be for ever, so some are shown to an operator; a denial is a setting.
        settings = world.settings
        limit = settings.dead_letter_burst + 2 * 3600 / settings.dead_letter_seconds + 1
        assert len(letters(world)) <= (limit if too_large else 0)
        assert runner.relay.refused == len(owners) - len(letters(world))
        ready, why = runner.ready
        assert ready
        assert f"refuses {runner.relay.refused} events" in why
        # The operator mends the server.
        world.broker.payload_bytes_max, world.broker.denied = 1 << 23, ()
        reply = await world.gateway.request(m.ReplayDeadLetters(service="quota"), timeout_s=5)
        assert isinstance(reply, m.ReplayDeadLettersReply)
        await until(lambda: {each.owner for each in world.said()} == set(owners))
        assert not runner.relay.refused
        assert letters(world) == []
        assert runner.ready == (True, "ready")
        await stopped(task)

    virtually(main())


def test_refused_events_survive_a_new_leader() -> None:
    async def main() -> None:
        world = World()
        world.broker.payload_bytes_max = LARGE
        first = asyncio.ensure_future(world.runner().run())
        await emit(world, *("x" * LARGE + str(number) for number in range(300)), "small")
        await until(lambda: len(world.said()) == 1, seconds_max=30)
        await stopped(first)
        runner = world.runner()
        second = asyncio.ensure_future(runner.run())
        await until(lambda: runner.relay.refused == 300, seconds_max=60)
        world.broker.payload_bytes_max = LARGE * 2
        await until(lambda: len(world.said()) == 301, seconds_max=60)
        await stopped(second)

    virtually(main())


def test_a_refused_event_is_not_lost_wherever_the_relay_dies() -> None:
    async def dies_at(number: int) -> bool:
        """The process dies at this step of the database; False if all was done before."""
        world = World()
        world.broker.payload_bytes_max = LARGE
        world.settings = replace_settings(world, relay_refused_seconds=0)
        schema = world.database.schema("quota")
        await emit(world, "x" * LARGE)
        runner, steps, died = world.runner(), itertools.count(1), asyncio.Event()
        store = runner.service.ports.store
        assert isinstance(store, MemoryStore)

        async def die(point: Point, name: str) -> None:
            if next(steps) == number:
                died.set()
                store.crash()
                raise StoreUnavailableError(f"{name} dies at {point.value}")

        world.database.fault = die
        task = asyncio.ensure_future(runner.run())
        await until(lambda: died.is_set() or not schema.unpublished)
        await stopped(task)
        world.database.fault = no_fault
        second = asyncio.ensure_future(world.runner().run())
        await until(lambda: not schema.unpublished)
        await asyncio.sleep(5)
        await stopped(second)
        assert [letter.direction for letter in letters(world)] == [Direction.SENT]
        return died.is_set()

    async def main() -> None:
        number = 1
        while await dies_at(number):
            number += 1
        # Leading, the outbox, the refusal's mark, the letter and its commit, the outbox's mark.
        assert number > 8

    virtually(main())


@pytest.mark.parametrize("count", [300, 2_500])
def test_events_of_a_broken_type_do_not_delay_those_of_another(count: int) -> None:
    async def main() -> None:
        async def broken(_: m.RunStarted) -> None:
            raise AttributeError("a defect of this handler")

        world = World(broken=broken)
        runner = world.runner(checkpoints=True)
        task = asyncio.ensure_future(runner.run())
        await until(lambda: runner.epoch is not None)
        await world.say(*(f"bad{number}" for number in range(count)))
        await world.say_saved("good")
        await until(lambda: world.counts() == {"good": 1}, seconds_max=10)
        await asyncio.sleep(1)
        await world.say_saved("later")
        await until(lambda: "later" in world.counts(), seconds_max=5)
        # Others are handled while these fail, so the fault is known to be theirs.
        await until(lambda: len(letters(world)) == count, seconds_max=120)
        assert runner.ready[0]
        await stopped(task)

    virtually(main())


@pytest.mark.parametrize("count", [40, 300, 2_500])
def test_a_good_event_is_handled_soon_behind_bad_ones_of_its_type(count: int) -> None:
    async def main() -> None:
        async def broken(event: m.RunStarted) -> None:
            if event.task_id.startswith("bad"):
                raise AttributeError("these are bad")

        world = World(broken=broken)
        task = asyncio.ensure_future(world.runner().run())
        await world.say(*(f"bad{number}" for number in range(count)))
        await world.say("good", prefix="g")
        await until(lambda: world.counts() == {"good": 1}, seconds_max=30)
        await asyncio.sleep(1)
        await world.say("later", prefix="l")
        await until(lambda: "later" in world.counts(), seconds_max=5)
        await until(lambda: len(letters(world)) == count, seconds_max=120)
        await stopped(task)

    virtually(main())


def test_a_fault_of_the_database_for_one_type_does_not_stop_the_others() -> None:
    async def main() -> None:
        async def missing_table(_: m.RunStarted) -> None:
            raise DatabaseFaultError("UndefinedTableError (42P01): no such table")

        world = World(broken=missing_table)
        runner = world.runner(checkpoints=True)
        task = asyncio.ensure_future(runner.run())
        await until(lambda: runner.epoch is not None)
        await world.say(*(f"bad{number}" for number in range(300)))
        for number in range(100):
            await world.say_saved(f"good{number}")
            await until(lambda each=f"good{number}": each in world.counts(), seconds_max=10)
            await asyncio.sleep(1)
        # It is theirs: the others were handled all the time.
        await until(lambda: len(letters(world)) == 300, seconds_max=120)
        assert runner.ready[0]
        await stopped(task)

    virtually(main())


def test_events_that_cannot_be_read_do_not_stop_the_others() -> None:
    async def main() -> None:
        world = World()
        task = asyncio.ensure_future(world.runner().run())
        for number in range(2_500):
            world.broker.append(
                "evt.run.t.started", {"ce-id": f"u{number}", "ce-type": "unknown"}, b"{}"
            )
        await world.say("good")
        await until(lambda: world.counts() == {"good": 1}, seconds_max=60)
        await asyncio.sleep(1)
        await world.say("later", prefix="l")
        await until(lambda: len(letters(world)) == 2_500, seconds_max=120)
        await stopped(task)

    virtually(main())

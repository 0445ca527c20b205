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
from tests.libs.service.service_harness import TABLES, Count, CountingService, until

LARGE = 5_000


@pytest.fixture(autouse=True)
def without_tracebacks() -> Iterator[None]:
    """Rendering hundreds of them for a terminal takes longer than the tests."""
    with structlog.testing.capture_logs():
        yield


def letters(platform: CountingService) -> list[DeadLetterRow]:
    rows = platform.database.rows(TABLES, DeadLetterRow).values()
    return sorted(rows, key=lambda row: row.id)


async def stopped(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def emit(platform: CountingService, *owners: str) -> None:
    """Commit events of the service, as one of its handlers would."""
    async with platform.store(TABLES).transaction() as tx:
        for owner in owners:
            tx.emit(usage(owner))


def usage(owner: str) -> m.UsageRecorded:
    return m.UsageRecorded(
        task_id="t", attempt=1, started_at=START, ended_at=START, group="g", owner=owner
    )


async def emit_too_large(platform: CountingService, *, swallow: bool) -> None:
    async with platform.store(TABLES).transaction() as tx:
        tx.put(Count("a", 1))
        with contextlib.suppress(*[EventTooLargeError] if swallow else []):
            tx.emit(usage("x" * EVENT_BYTES_MAX))


@pytest.mark.parametrize("swallow", [False, True])
def test_a_transaction_that_emits_what_the_bus_never_takes_does_not_commit(swallow: bool) -> None:
    async def main() -> None:
        platform = CountingService()
        with pytest.raises(EventTooLargeError, match=f"at most {EVENT_BYTES_MAX}"):
            await emit_too_large(platform, swallow=swallow)
        assert platform.counts() == {}

    virtually(main())


def test_an_event_that_the_bus_refuses_does_not_stop_the_others_and_is_set_apart() -> None:
    async def main() -> None:
        platform = CountingService()
        platform.broker.payload_bytes_max = LARGE
        runner = platform.runner()
        task = asyncio.ensure_future(runner.run())
        await until(lambda: runner.epoch is not None)
        await emit(platform, "a", "x" * LARGE, "b")
        await until(lambda: len(platform.usages()) == 2, seconds_max=30)
        assert runner.ready[0]
        assert letters(platform) == []
        await asyncio.sleep(platform.settings.relay_refused_seconds + 30)
        (letter,) = letters(platform)
        assert letter.direction is Direction.SENT
        assert "over the bus's limit" in letter.reason
        assert not runner.relay.refused
        await emit(platform, "c")
        await until(lambda: len(platform.usages()) == 3, seconds_max=30)
        await stopped(task)

    virtually(main())


def test_a_refused_event_goes_once_the_bus_takes_it() -> None:
    async def main() -> None:
        platform = CountingService()
        platform.broker.payload_bytes_max = LARGE
        task = asyncio.ensure_future(platform.runner().run())
        await emit(platform, "x" * LARGE)
        await asyncio.sleep(60)
        assert platform.usages() == []
        platform.broker.payload_bytes_max = LARGE * 2
        await until(lambda: len(platform.usages()) == 1, seconds_max=30)
        assert letters(platform) == []
        await stopped(task)

    virtually(main())


def test_a_letter_that_was_sent_is_published_by_a_replay() -> None:
    async def main() -> None:
        platform = CountingService()
        platform.broker.payload_bytes_max = LARGE
        platform.settings = replace_settings(platform, relay_refused_seconds=0)
        runner = platform.runner()
        task = asyncio.ensure_future(runner.run())
        await emit(platform, "x" * LARGE)
        await until(lambda: len(letters(platform)) == 1, seconds_max=30)
        platform.broker.payload_bytes_max = LARGE * 2
        (letter,) = letters(platform)
        reply = await platform.gateway.request(m.ReplayDeadLetters(service="quota"), timeout_s=5)
        assert reply == m.ReplayDeadLettersReply(ids=(letter.id,))
        await until(lambda: len(platform.usages()) == 1, seconds_max=5)
        assert letters(platform) == []
        await stopped(task)

    virtually(main())


def replace_settings(platform: CountingService, **changes: float) -> BaseServiceSettings:
    return platform.settings.model_copy(update=changes)


def test_an_event_that_could_not_be_handled_is_listed_and_handled_by_a_replay() -> None:
    async def main() -> None:
        mended = False

        async def broken(event: m.RunStarted) -> None:
            assert mended or event.task_id != "bad", "this one is bad"

        platform = CountingService(broken=broken)
        task = asyncio.ensure_future(platform.runner().run())
        await platform.start_runs("a", "bad")
        await until(lambda: len(letters(platform)) == 1, seconds_max=30)
        listed = await platform.gateway.request(m.ListDeadLetters(service="quota"), timeout_s=5)
        assert isinstance(listed, m.ListDeadLettersReply)
        (letter,) = listed.letters
        assert letter.direction is m.LetterDirection.RECEIVED
        assert letter.type == "shiftwork.run.v1.RunStarted"
        assert "this one is bad" in letter.reason
        assert letter.size > 0

        wanted = m.ReplayDeadLetters(service="quota", ids=(letter.id,))
        await platform.gateway.request(wanted, timeout_s=5)
        await until(lambda: letters(platform)[0].replays == 1, seconds_max=5)
        assert letters(platform)[0].replay_at is None
        assert platform.counts() == {"a": 1}

        mended = True
        await platform.gateway.request(wanted, timeout_s=5)
        await until(lambda: not letters(platform), seconds_max=5)
        assert platform.counts() == {"a": 1, "bad": 1}

        gone = await platform.gateway.request(wanted, timeout_s=5)
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

        platform = CountingService(broken=missing_table)
        runner = platform.runner()
        task = asyncio.ensure_future(runner.run())
        await platform.start_runs(*(f"t{number}" for number in range(300)))
        await asyncio.sleep(3600)
        assert letters(platform) == []
        assert platform.broker.dead_letters == []
        ready, why = runner.ready
        assert not ready
        assert "no such table" in why
        broken = False
        await until(lambda: len(platform.counts()) == 300, seconds_max=300)
        assert runner.ready[0]
        assert letters(platform) == []
        await stopped(task)

    virtually(main())


def test_an_event_for_which_alone_the_database_fails_is_set_apart_while_others_are_handled() -> (
    None
):
    async def main() -> None:
        async def broken(event: m.RunStarted) -> None:
            if event.task_id == "bad":
                raise DatabaseFaultError("ProgramLimitExceeded (54000): too large")

        platform = CountingService(broken=broken)
        runner = platform.runner()
        task = asyncio.ensure_future(runner.run())
        await platform.start_runs("bad")
        for number in range(60):
            await platform.start_runs(f"t{number}", prefix=f"p{number}")
            await asyncio.sleep(2)
        await until(lambda: len(letters(platform)) == 1, seconds_max=120)
        assert len(platform.counts()) == 60
        assert runner.ready[0]
        await stopped(task)

    virtually(main())


def test_events_that_fail_in_a_row_are_not_all_set_apart() -> None:
    async def main() -> None:
        broken = True

        async def always(_: m.RunStarted) -> None:
            if broken:
                raise AttributeError("a defect of every event")

        platform = CountingService(broken=always)
        runner = platform.runner()
        task = asyncio.ensure_future(runner.run())
        await platform.start_runs(*(f"t{number}" for number in range(300)))
        await asyncio.sleep(120)
        burst, each = platform.settings.dead_letter_burst, platform.settings.dead_letter_seconds
        assert burst <= len(letters(platform)) <= burst + 1 + 120 / each
        assert not runner.ready[0]
        broken = False
        await until(lambda: len(platform.counts()) + len(letters(platform)) == 300, seconds_max=300)
        await platform.gateway.request(m.ReplayDeadLetters(service="quota"), timeout_s=5)
        await until(
            lambda: len(platform.counts()) == 300 and not letters(platform), seconds_max=300
        )
        await stopped(task)

    virtually(main())


def test_a_failed_replay_does_not_bring_a_discarded_letter_back() -> None:
    async def main() -> None:
        platform = CountingService()
        store = platform.store(TABLES)
        raw = RawMessage("evt.usage.t.recorded", {"ce-id": "e"}, b"unreadable")
        async with store.transaction() as tx:
            await dead_letters.keep(tx, Direction.RECEIVED, raw, "why")
        (row,) = letters(platform)
        async with store.transaction() as tx:
            command = m.DiscardDeadLetters(service="quota", ids=(row.id,))
            assert (await dead_letters.discard_letters(tx, command)).ids == (row.id,)
        runner = platform.runner()
        loop = dead_letters.DeadLetters(runner.service, runner.settings, runner.turn, never)
        # The replay had read the row before it was discarded.
        await loop._replay(0, row)
        assert letters(platform) == []
        assert not platform.database.rows(TABLES, DeadLetterBody)

    virtually(main())


async def never(*_: object) -> None:
    """An event that cannot be read reaches no handler."""
    raise AssertionError


def test_all_letters_are_replayed_a_page_at_a_time() -> None:
    async def main() -> None:
        platform = CountingService()
        store = platform.store(TABLES)
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
        assert all(row.replay_at for row in letters(platform))

    virtually(main())


def test_dead_letters_are_bounded_by_number_and_age() -> None:
    async def main() -> None:
        platform = CountingService()
        platform.settings = replace_settings(
            platform, dead_letters_max=10, dead_letters_keep_seconds=900
        )
        store = platform.store(TABLES)
        for number in range(200):
            async with store.transaction() as tx:
                await keep(tx, f"e{number:03}", Direction.RECEIVED)
            await asyncio.sleep(1)
        task = asyncio.ensure_future(platform.runner().run())
        await until(lambda: len(letters(platform)) == 10, seconds_max=300)
        assert [row.event_id for row in letters(platform)] == [f"e{n}" for n in range(190, 200)]
        await asyncio.sleep(platform.settings.dead_letters_keep_seconds + 120)
        assert letters(platform) == []
        await stopped(task)

    virtually(main())


async def keep(tx: Tx, event_id: str, direction: Direction) -> None:
    envelope = Envelope(event_id, "quota", START, usage("g"))
    await dead_letters.keep(tx, direction, dead_letters.raw_of(envelope), "no\0 reason")


def test_a_letter_that_was_sent_is_not_dropped_because_of_their_number() -> None:
    async def main() -> None:
        platform = CountingService()
        platform.settings = replace_settings(platform, dead_letters_max=10)
        async with platform.store(TABLES).transaction() as tx:
            for number in range(60):
                await keep(tx, f"e{number:03}", Direction.SENT)
        task = asyncio.ensure_future(platform.runner().run())
        await asyncio.sleep(300)
        assert len(letters(platform)) == 60
        await stopped(task)

    virtually(main())


@pytest.mark.parametrize("too_large", [True, False])
def test_events_that_are_refused_for_hours_are_all_published_in_the_end(too_large: bool) -> None:
    async def main() -> None:
        platform = CountingService()
        if too_large:
            platform.broker.payload_bytes_max = 50
        else:
            platform.broker.denied = ("evt.quota.>", "evt.usage.>")
        runner = platform.runner()
        task = asyncio.ensure_future(runner.run())
        await until(lambda: runner.epoch is not None)
        owners = [f"o{number}" for number in range(1_500)]
        for first in range(0, len(owners), 100):
            await emit(platform, *owners[first : first + 100])
        await asyncio.sleep(2 * 3600)
        # Too large may be for ever, so some are shown to an operator; a denial is a setting.
        settings = platform.settings
        limit = settings.dead_letter_burst + 2 * 3600 / settings.dead_letter_seconds + 1
        assert len(letters(platform)) <= (limit if too_large else 0)
        assert runner.relay.refused == len(owners) - len(letters(platform))
        ready, why = runner.ready
        assert ready
        assert f"refuses {runner.relay.refused} events" in why
        # The operator repairs the server.
        platform.broker.payload_bytes_max, platform.broker.denied = 1 << 23, ()
        reply = await platform.gateway.request(m.ReplayDeadLetters(service="quota"), timeout_s=5)
        assert isinstance(reply, m.ReplayDeadLettersReply)
        await until(lambda: {each.owner for each in platform.usages()} == set(owners))
        assert not runner.relay.refused
        assert letters(platform) == []
        assert runner.ready == (True, "ready")
        await stopped(task)

    virtually(main())


def test_refused_events_survive_a_new_leader() -> None:
    async def main() -> None:
        platform = CountingService()
        platform.broker.payload_bytes_max = LARGE
        first = asyncio.ensure_future(platform.runner().run())
        await emit(platform, *("x" * LARGE + str(number) for number in range(300)), "small")
        await until(lambda: len(platform.usages()) == 1, seconds_max=30)
        await stopped(first)
        runner = platform.runner()
        second = asyncio.ensure_future(runner.run())
        await until(lambda: runner.relay.refused == 300, seconds_max=60)
        platform.broker.payload_bytes_max = LARGE * 2
        await until(lambda: len(platform.usages()) == 301, seconds_max=60)
        await stopped(second)

    virtually(main())


def test_a_refused_event_is_not_lost_wherever_the_relay_dies() -> None:
    async def dies_at(number: int) -> bool:
        """The process dies at this step of the database; False if all was done before."""
        platform = CountingService()
        platform.broker.payload_bytes_max = LARGE
        platform.settings = replace_settings(platform, relay_refused_seconds=0)
        schema = platform.database.schema("quota")
        await emit(platform, "x" * LARGE)
        runner, steps, died = platform.runner(), itertools.count(1), asyncio.Event()
        store = runner.service.ports.store
        assert isinstance(store, MemoryStore)

        async def die(point: Point, name: str) -> None:
            if next(steps) == number:
                died.set()
                store.crash()
                raise StoreUnavailableError(f"{name} dies at {point.value}")

        platform.database.fault = die
        task = asyncio.ensure_future(runner.run())
        await until(lambda: died.is_set() or not schema.unpublished)
        await stopped(task)
        platform.database.fault = no_fault
        second = asyncio.ensure_future(platform.runner().run())
        await until(lambda: not schema.unpublished)
        await asyncio.sleep(5)
        await stopped(second)
        assert [letter.direction for letter in letters(platform)] == [Direction.SENT]
        return died.is_set()

    async def main() -> None:
        number = 1
        while await dies_at(number):
            number += 1
        # Taking the lead, the outbox, recording the refusal, the letter and its commit, marking the
        # outbox row as sent.
        assert number > 8

    virtually(main())


@pytest.mark.parametrize("count", [300, 2_500])
def test_events_of_a_broken_type_do_not_delay_those_of_another(count: int) -> None:
    async def main() -> None:
        async def broken(_: m.RunStarted) -> None:
            raise AttributeError("a defect of this handler")

        platform = CountingService(broken=broken)
        runner = platform.runner(checkpoints=True)
        task = asyncio.ensure_future(runner.run())
        await until(lambda: runner.epoch is not None)
        await platform.start_runs(*(f"bad{number}" for number in range(count)))
        await platform.publish_saved("good")
        await until(lambda: platform.counts() == {"good": 1}, seconds_max=10)
        await asyncio.sleep(1)
        await platform.publish_saved("later")
        await until(lambda: "later" in platform.counts(), seconds_max=5)
        # Others are handled while these fail, so the fault is known to be theirs.
        await until(lambda: len(letters(platform)) == count, seconds_max=120)
        assert runner.ready[0]
        await stopped(task)

    virtually(main())


@pytest.mark.parametrize("count", [40, 300, 2_500])
def test_a_good_event_is_handled_soon_behind_bad_ones_of_its_type(count: int) -> None:
    async def main() -> None:
        async def broken(event: m.RunStarted) -> None:
            if event.task_id.startswith("bad"):
                raise AttributeError("these are bad")

        platform = CountingService(broken=broken)
        task = asyncio.ensure_future(platform.runner().run())
        await platform.start_runs(*(f"bad{number}" for number in range(count)))
        await platform.start_runs("good", prefix="g")
        await until(lambda: platform.counts() == {"good": 1}, seconds_max=30)
        await asyncio.sleep(1)
        await platform.start_runs("later", prefix="l")
        await until(lambda: "later" in platform.counts(), seconds_max=5)
        await until(lambda: len(letters(platform)) == count, seconds_max=120)
        await stopped(task)

    virtually(main())


def test_a_fault_of_the_database_for_one_type_does_not_stop_the_others() -> None:
    async def main() -> None:
        async def missing_table(_: m.RunStarted) -> None:
            raise DatabaseFaultError("UndefinedTableError (42P01): no such table")

        platform = CountingService(broken=missing_table)
        runner = platform.runner(checkpoints=True)
        task = asyncio.ensure_future(runner.run())
        await until(lambda: runner.epoch is not None)
        await platform.start_runs(*(f"bad{number}" for number in range(300)))
        for number in range(100):
            await platform.publish_saved(f"good{number}")
            await until(lambda each=f"good{number}": each in platform.counts(), seconds_max=10)
            await asyncio.sleep(1)
        # It is theirs: the others were handled all the time.
        await until(lambda: len(letters(platform)) == 300, seconds_max=120)
        assert runner.ready[0]
        await stopped(task)

    virtually(main())


def test_events_that_cannot_be_read_do_not_stop_the_others() -> None:
    async def main() -> None:
        platform = CountingService()
        task = asyncio.ensure_future(platform.runner().run())
        for number in range(2_500):
            platform.broker.append(
                "evt.run.t.started", {"ce-id": f"u{number}", "ce-type": "unknown"}, b"{}"
            )
        await platform.start_runs("good")
        await until(lambda: platform.counts() == {"good": 1}, seconds_max=60)
        await asyncio.sleep(1)
        await platform.start_runs("later", prefix="l")
        await until(lambda: len(letters(platform)) == 2_500, seconds_max=120)
        await stopped(task)

    virtually(main())

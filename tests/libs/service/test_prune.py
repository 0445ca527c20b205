"""Forgetting by age: in small transactions, and no faster than a wrong clock may cost."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest

from libs.service import observability, prune
from libs.service.loop import pause
from libs.service.prune import PruneCutoff, PruneRule, Pruning, nth_newest, prune_loop
from libs.service.settings import BaseServiceSettings
from libs.store.port import StoreUnavailableError, Tx
from tests.kit.clock import START
from tests.kit.memory import running
from tests.kit.virtual_time import virtually
from tests.libs.service.service_harness import TABLES, Count, CountingService

DAY = timedelta(days=1)


@dataclass
class History:
    """Rows of one kind, by their times."""

    times: list[datetime]
    calls: list[int] = field(default_factory=list[int])
    problem: Exception | None = None
    counts: int = 0

    async def oldest(self, _tx: Tx) -> datetime | None:
        return min(self.times, default=None)

    async def drop(self, _tx: Tx, before: datetime, limit: int) -> int:
        if self.problem is not None:
            raise self.problem
        old = sorted(each for each in self.times if each < before)[:limit]
        self.calls.append(len(old))
        self.times = [each for each in self.times if each not in old]
        return len(old)

    async def nth(self, _tx: Tx, newer: int) -> datetime | None:
        self.counts += 1
        return next(iter(sorted(self.times, reverse=True)[newer : newer + 1]), None)

    def counted(self) -> PruneRule:
        return PruneRule("rows", 90 * DAY, self.oldest, self.drop, self.nth)

    def as_old(self, what: str = "rows", keep: timedelta = 90 * DAY) -> PruneRule:
        return PruneRule(what, keep, self.oldest, self.drop)


async def pruning(
    *old: PruneRule, days_per_hour: float, kept_rows_max: int = 5_000_000
) -> tuple[Pruning, int]:
    platform = CountingService()
    settings = BaseServiceSettings(
        database_url="-",
        nats_url="-",
        prune_rows_max=10,
        prune_days_per_hour=days_per_hour,
        kept_rows_max=kept_rows_max,
    )
    store = platform.store(TABLES)
    leadership = await store.lead()
    return Pruning("quota", store, settings, old), leadership.epoch


def test_old_rows_go_in_small_transactions_until_none_is_left() -> None:
    async def main() -> None:
        history = History([START - 100 * DAY + timedelta(seconds=n) for n in range(25)])
        made, epoch = await pruning(history.as_old(), days_per_hour=0)
        assert [await made.step(epoch) for _ in range(3)] == [0.0, 0.0, None]
        assert (history.calls, history.times) == ([10, 10, 5], [])

    virtually(main())


def test_more_rows_than_are_kept_go_before_they_are_old() -> None:
    async def main() -> None:
        history = History([START - timedelta(seconds=n) for n in range(1_050)])
        made, epoch = await pruning(history.counted(), days_per_hour=1.0, kept_rows_max=1000)
        while await prepared(made, epoch) is not None:
            pass
        assert (len(history.times), min(history.times)) == (1000, START - timedelta(seconds=999))
        # Counted again an hour later, not at each tick.
        history.times += [START - timedelta(seconds=n, milliseconds=1) for n in range(10)]
        await prepared(made, epoch)
        assert (len(history.times), history.counts) == (1010, 1)
        await pause(3600)
        await prepared(made, epoch)
        assert (len(history.times), history.counts) == (1000, 2)

    virtually(main())


def test_a_row_whose_time_is_in_the_future_is_not_deleted_for_the_number_of_rows() -> None:
    async def main() -> None:
        history = History([START + timedelta(days=n + 1) for n in range(1_010)])
        made, epoch = await pruning(history.counted(), days_per_hour=0, kept_rows_max=1000)
        assert await prepared(made, epoch) is None
        assert len(history.times) == 1010

    virtually(main())


def test_rows_are_counted_outside_the_turn_of_the_handlers() -> None:
    """Two million rows take seconds to count, in which the projector would stand still."""

    async def main() -> None:
        platform = CountingService()
        settings = BaseServiceSettings(database_url="-", nats_url="-", kept_rows_max=1000)
        history = History([START - timedelta(seconds=n) for n in range(1_050)])
        turns: list[bool] = []

        async def nth(tx: Tx, newer: int) -> datetime | None:
            turns.append(runner.turn.locked())
            return await history.nth(tx, newer)

        rule = replace(history.counted(), nth=nth)
        loop = prune_loop("quota", platform.store(TABLES), settings, rule)
        runner = platform.runner(loops=(loop,))
        async with running(runner):
            await pause(settings.prune_tick_seconds * 3)
        assert (len(history.times), turns) == (1000, [False])

    virtually(main())


def test_rows_are_counted_in_statements_that_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "COUNTED_MAX", 7)

    async def main() -> None:
        store = CountingService().store(TABLES)
        async with store.transaction() as tx:
            tx.put(*(Count(f"{number:03}", number) for number in range(100)))
        async with store.transaction() as tx:
            for newer in (0, 6, 7, 8, 50, 99, 100, 500):
                found = await nth_newest(tx, Count, "seen", newer)
                assert found == (99 - newer if newer < 100 else None)

    virtually(main())


async def prepared(made: Pruning, epoch: int) -> float | None:
    await made.prepare()
    return await made.step(epoch)


def test_a_clock_that_jumps_ahead_costs_at_most_a_day_of_history_in_an_hour() -> None:
    async def main() -> None:
        # One row an hour for 80 days; by the clock all of them are years old.
        history = History([START - 2000 * DAY + timedelta(hours=n) for n in range(80 * 24)])
        made, epoch = await pruning(history.as_old(), days_per_hour=1.0)
        for _ in range(3 * 60):
            while await made.step(epoch) is not None:
                pass
            await pause(60)
        assert 65 <= 80 * 24 - len(history.times) <= 72
        held = observability.PRUNE_HELD.labels("quota", "rows")._value.get()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        assert held > 80 * 86_400

    virtually(main())


def test_a_process_that_restarts_again_and_again_deletes_nothing() -> None:
    async def main() -> None:
        history = History([START - 2000 * DAY])
        for _ in range(100):
            made, epoch = await pruning(history.as_old(), days_per_hour=1.0)
            await made.step(epoch)
            await pause(60)
        assert len(history.times) == 1

    virtually(main())


def test_rows_that_become_too_old_meanwhile_are_pruned_at_the_next_tick() -> None:
    async def main() -> None:
        cutoff = PruneCutoff("quota", "rows", 1.0)
        assert cutoff.before(START, START) is None
        await pause(60)
        wanted = START + timedelta(seconds=60)
        assert cutoff.before(START, wanted) == wanted

    virtually(main())


@pytest.mark.parametrize("rows_before", [True, False])
def test_a_jump_of_hours_costs_nothing_that_is_kept_for_longer(rows_before: bool) -> None:
    """Rows are kept for three days; the clock is ten years ahead for an hour, then right again."""

    async def main() -> None:
        cutoff, keep, now = PruneCutoff("quota", "rows", 1.0), 3 * DAY, START
        newest = START - timedelta(hours=1)
        for _ in range(48):
            cutoff.before(now - keep if rows_before else None, now - keep)
            await pause(600)
            now += timedelta(minutes=10)
        newest = now
        for _ in range(6):
            limit = cutoff.before(newest, now + 3650 * DAY - keep)
            assert limit is not None
            assert limit < newest
            await pause(600)
            now += timedelta(minutes=10)
        assert cutoff.before(newest, now - keep) is None
        # The guard is as it was, should the clock jump once more.
        limit = cutoff.before(newest, now + 3650 * DAY - keep)
        assert limit is not None
        assert limit < newest

    virtually(main())


def test_a_long_time_without_rows_is_not_waited_for() -> None:
    async def main() -> None:
        cutoff = PruneCutoff("quota", "rows", 1.0)
        assert cutoff.before(START, START + 300 * DAY) == START
        await pause(3600)
        later = START + 200 * DAY
        assert cutoff.before(later, START + 300 * DAY) == later - DAY
        await pause(3600)
        assert cutoff.before(later, START + 300 * DAY) == later

    virtually(main())


def test_a_long_time_without_old_rows_earns_no_more_than_a_day() -> None:
    async def main() -> None:
        cutoff = PruneCutoff("quota", "rows", 1.0)
        cutoff.before(START, START)
        await pause(100 * 86_400)
        assert cutoff.before(START, START + 300 * DAY) == START + DAY

    virtually(main())


def test_an_inbox_that_cannot_be_pruned_is_counted() -> None:
    async def main() -> None:
        platform = CountingService()
        runner = platform.runner()
        store = runner.service.ports.store

        async def refuse() -> datetime | None:
            raise StoreUnavailableError("too slow")

        store.oldest_seen = refuse  # type: ignore[method-assign]
        failures = observability.PRUNE_FAILED.labels("quota", "inbox and outbox")
        before = failures._value.get()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        task = asyncio.ensure_future(runner.run())
        await pause(3 * runner.settings.outbox_period_seconds)
        assert failures._value.get() > before  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    virtually(main())


def test_a_failed_prune_is_counted_and_stops_no_other() -> None:
    async def main() -> None:
        broken = History([START - 100 * DAY], problem=StoreUnavailableError("too slow"))
        sound = History([START - 100 * DAY])
        made, epoch = await pruning(broken.as_old("broken"), sound.as_old("sound"), days_per_hour=0)
        failures = observability.PRUNE_FAILED.labels("quota", "broken")
        before = failures._value.get()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        assert await made.step(epoch) is None
        assert failures._value.get() == before + 1  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        assert sound.times == []

    virtually(main())

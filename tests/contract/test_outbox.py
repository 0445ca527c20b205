"""What every store promises of its inbox and outbox, tested with memory and PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from libs.contracts.envelope import BATCH_BYTES_MAX, Envelope
from libs.store.port import (
    Store,
    is_full,
)
from tests.contract.store_harness import StoreHarness, put
from tests.kit.clock import START
from tests.libs.store.example import (
    Slot,
    an_event,
)

# Inbox and outbox


async def test_own_commits_are_outgoing_without_a_query(
    harness: StoreHarness, store: Store
) -> None:
    async def emit(by: Store, *versions: int) -> None:
        async with by.transaction() as tx:
            for version in versions:
                tx.emit(an_event("ada", version))

    def versions(rows: Sequence[tuple[int, Envelope]]) -> list[int]:
        return [envelope.message.version for _, envelope in rows]  # type: ignore[attr-defined]

    await emit(store, 1)
    # The first call queries whatever is requested: nothing is kept before it.
    assert versions(await store.outgoing(10, query=False)) == [1]
    await emit(harness.store(), 2)
    await emit(store, 3, 4)
    fresh = await store.outgoing(10, query=False)
    assert versions(fresh) == [3, 4]
    assert versions(await store.outgoing(1, query=False)) == [3]
    seen = await store.outgoing(10)
    assert versions(seen) == [1, 2, 3, 4]
    assert seen[2:] == fresh
    await store.published([row_id for row_id, _ in seen])
    assert await store.outgoing(10, query=False) == []
    assert await store.outgoing(10) == []


async def test_the_inbox_knows_what_it_has_seen(store: Store) -> None:
    async with store.transaction() as tx:
        assert await tx.unseen([]) == set()
        assert await tx.unseen(["e1", "e2", "e1"]) == {"e1", "e2"}
        assert await tx.unseen(["e2", "e3"]) == {"e3"}
    async with store.transaction() as tx:
        assert await tx.unseen(["e1", "e4"]) == {"e4"}


async def test_the_outbox_keeps_order_and_envelopes(harness: StoreHarness, store: Store) -> None:
    for turn in range(3):
        async with store.transaction() as tx:
            tx.put(Slot("a", turn, None))
            tx.emit(an_event("ada", 10 * turn))
            tx.emit(an_event("bob", 10 * turn + 1))
        harness.clock.advance(1)
    found = await store.outgoing(10)
    assert [each.message.version for _, each in found] == [0, 1, 10, 11, 20, 21]
    row_ids = [row_id for row_id, _ in found]
    assert row_ids == sorted(set(row_ids))
    envelope = found[2][1]
    assert envelope.message == an_event("ada", 10)
    assert envelope.source == "thing"
    assert envelope.time == START + timedelta(seconds=1)
    assert envelope.subject == "evt.quota.training.changed"
    assert len({each.id for _, each in found}) == 6
    assert [row_id for row_id, _ in await store.outgoing(2)] == row_ids[:2]


@pytest.mark.parametrize("query", [True, False])
async def test_a_page_of_the_outbox_is_bounded_by_bytes(store: Store, query: bool) -> None:
    """A page holds what reaches the bound, and one event at least, however large each is."""
    assert await store.outgoing(10) == []
    large = "x" * (BATCH_BYTES_MAX * 2 // 5)
    for version in range(5):
        async with store.transaction() as tx:
            tx.emit(an_event(large if version < 4 else "small", version))
    found = await store.outgoing(10, query=query)
    assert [each.message.version for _, each in found] == [0, 1, 2]  # type: ignore[attr-defined]
    assert is_full(found, 10)
    await store.published([row_id for row_id, _ in found])
    rest = await store.outgoing(10, query=query)
    assert [each.message.version for _, each in rest] == [3, 4]  # type: ignore[attr-defined]
    assert not is_full(rest, 10)


async def test_refused_rows_of_the_outbox_wait_apart(harness: StoreHarness, store: Store) -> None:
    assert await store.outgoing(10) == []
    async with store.transaction() as tx:
        for version in range(4):
            tx.emit(an_event("ada", version))
    rows = await store.outgoing(10)
    ids = [row_id for row_id, _ in rows]
    await store.refuse(ids[:3])
    harness.clock.advance(5)
    # Refused once is refused, and what is published is not.
    await store.published(ids[:1])
    await store.refuse(ids[:2])
    for query in (True, False):
        assert await store.outgoing(10, query=query) == rows[3:]
    assert await harness.store().outgoing(10) == rows[3:]
    assert await store.count_refused() == 2
    found = await store.refused(0, 10)
    assert [each.row_id for each in found] == ids[1:3]
    assert [each.envelope() for each in found] == [envelope for _, envelope in rows[1:3]]
    assert [each.subject for each in found] == [envelope.subject for _, envelope in rows[1:3]]
    assert {each.refused_at for each in found} == {START}
    assert await store.refused(0, 1) == found[:1]
    assert await store.refused(ids[1], 10) == found[1:]
    await store.published(ids[1:])
    assert (await store.count_refused(), await store.refused(0, 10)) == (0, [])
    # A server that lost them is given them as any other.
    await store.lead()
    await store.meet_bus_server("one", 1)
    assert [row_id for row_id, _ in await store.outgoing(10)] == ids


async def test_unpublished_events_are_counted_up_to_a_bound(store: Store) -> None:
    assert await store.count_outgoing(10) == 0
    async with store.transaction() as tx:
        for version in range(5):
            tx.emit(an_event("ada", version))
    assert (await store.count_outgoing(10), await store.count_outgoing(3)) == (5, 3)
    ids = [row_id for row_id, _ in await store.outgoing(10)]
    await store.published(ids[:1])
    # Refused ones are counted apart.
    await store.refuse(ids[1:2])
    assert await store.count_outgoing(10) == 3


async def test_a_page_of_refused_events_is_bounded_by_bytes(store: Store) -> None:
    large = "x" * (BATCH_BYTES_MAX * 2 // 5)
    for version in range(4):
        async with store.transaction() as tx:
            tx.emit(an_event(large, version))
    await store.refuse([row_id for _ in range(2) for row_id, _ in await store.outgoing(2)][:2])
    await store.refuse([row_id for row_id, _ in await store.outgoing(2)])
    assert await store.count_refused() == 4
    assert len(await store.refused(0, 10)) == 3


async def test_a_crash_between_publishing_and_marking_sends_the_same_again(
    harness: StoreHarness, store: Store
) -> None:
    async with store.transaction() as tx:
        tx.emit(an_event())
        tx.emit(an_event("bob", 2))
    before = await store.outgoing(10)
    after = await harness.store().outgoing(10)
    assert after == before
    await store.published([before[0][0]])
    assert await harness.store().outgoing(10) == before[1:]


async def test_only_events_are_emitted(store: Store) -> None:
    from libs.contracts.messages import SetGoal

    async with store.transaction() as tx:
        with pytest.raises(ValueError, match="SetGoal is no event"):
            tx.emit(SetGoal(task_id="t"))


async def test_the_relay_is_woken_by_a_commit_that_emitted(store: Store) -> None:
    await put(store, Slot("a", 0, None))
    assert not store.outbox_changed.is_set()
    async with store.transaction() as tx:
        tx.emit(an_event())
        assert not store.outbox_changed.is_set()
    assert store.outbox_changed.is_set()


async def test_what_was_published_lately_can_be_unpublished(store: Store) -> None:
    await store.lead()
    rows = await published_in_periods(store, 3)
    # The first server is met, then another one.
    assert await store.meet_bus_server("", 10) == 0
    assert await store.meet_bus_server("one", -1) == 0
    assert await store.meet_bus_server("one", 10) == 0
    assert await store.outgoing(10) == []
    assert await store.meet_bus_server("two", 1) == 2
    assert [row_id for row_id, _ in await store.outgoing(10)] == rows[1:]
    assert await store.meet_bus_server("two", 10) == 0


async def published_in_periods(store: Store, count: int) -> list[int]:
    """One event published in each of so many periods; the rows' ids."""
    found: list[int] = []
    for version in range(count):
        if version:
            await store.next_period()
        async with store.transaction() as tx:
            tx.emit(an_event(version=version))
        found += [row_id for row_id, _ in await store.outgoing(10)]
        await store.published(found[-1:])
    return found


@pytest.mark.parametrize("days", [4000, -4000])
async def test_no_clock_decides_what_is_published_again_or_dropped(
    harness: StoreHarness, store: Store, days: int
) -> None:
    await store.lead()
    assert await store.meet_bus_server("one", 10) == 0
    first = await published_in_periods(store, 1)
    harness.clock.advance(days * 86_400)
    second = await published_in_periods(store, 1)
    harness.clock.advance(-days * 86_400)
    third = await published_in_periods(store, 1)
    assert await store.prune_outbox(1) == 0
    assert await store.meet_bus_server("two", 0) == 3
    assert [row_id for row_id, _ in await store.outgoing(10)] == first + second + third


async def test_pruning_the_outbox_drops_old_periods_and_only_what_was_published(
    store: Store,
) -> None:
    await store.lead()
    rows = await published_in_periods(store, 4)
    async with store.transaction() as tx:
        tx.emit(an_event(version=9))
    unpublished = [row_id for row_id, _ in await store.outgoing(10)]
    assert await store.prune_outbox(3) == 0
    assert await store.prune_outbox(1) == 2
    assert await store.prune_outbox(1) == 0
    for _ in range(5):
        await store.next_period()
    # Never what is unpublished, however old.
    assert await store.prune_outbox(5) == 1
    assert [row_id for row_id, _ in await store.outgoing(10)] == unpublished
    assert await store.meet_bus_server("one", 10) == 1
    assert [row_id for row_id, _ in await store.outgoing(10)] == [rows[-1], *unpublished]


async def test_pruning_the_inbox_drops_the_old_and_only_that(
    harness: StoreHarness, store: Store
) -> None:
    assert await store.oldest_seen() is None
    async with store.transaction() as tx:
        await tx.unseen(["old"])
    harness.clock.advance(100)
    async with store.transaction() as tx:
        await tx.unseen(["new"])
    assert await store.oldest_seen() == START
    assert await store.prune_inbox(START + timedelta(seconds=50)) == 1
    assert await store.prune_inbox(START + timedelta(seconds=50)) == 0
    async with store.transaction() as tx:
        assert await tx.unseen(["old", "new"]) == {"old"}

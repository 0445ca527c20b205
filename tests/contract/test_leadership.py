"""What every store promises to leaders: fenced transactions, and their rows in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from libs.store import core
from libs.store.port import (
    ConflictError,
    Delta,
    NotLeaderError,
    ObserverError,
    Op,
    Order,
    Store,
    StoreUnavailableError,
    Where,
)
from tests.contract.store_harness import SLOTS, StoreHarness, all_of, put
from tests.libs.store.example import (
    Job,
    Slot,
    a_job,
)

# Leadership


async def test_a_leaders_transactions_are_counted_and_fenced(harness: StoreHarness) -> None:
    first, second = harness.store(), harness.store()
    leading = await first.lead()
    async with first.transaction(epoch=leading.epoch) as tx:
        assert tx.version == 1
        tx.put(Slot("a", 0, "first"))
    async with first.transaction(epoch=leading.epoch) as tx:
        assert tx.version == 2
        tx.put(Slot("a", 1, "first"))
    async with first.transaction() as tx:
        assert tx.version == 0
    await leading.release()
    await asyncio.wait_for(leading.lost(), 2)
    following = await asyncio.wait_for(second.lead(), 2)
    assert following.epoch > leading.epoch
    with pytest.raises(NotLeaderError):
        await put(first, Slot("a", 2, "stale"), epoch=leading.epoch)
    async with second.transaction(epoch=following.epoch) as tx:
        assert tx.version == 3
        tx.put(Slot("a", 0, "second"))
    assert [slot.owner for slot in await all_of(second, Slot)] == ["second", "first"]


async def test_a_version_is_spent_only_by_a_commit_that_wrote(store: Store) -> None:
    epoch = (await store.lead()).epoch
    for _ in range(2):
        async with store.transaction(epoch=epoch) as tx:
            assert tx.version == 1
            await tx.select(Slot)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - it is raised on leaving
        async with store.transaction(epoch=epoch) as tx:
            tx.put(Slot("a", 0, None))
            raise ZeroDivisionError
    async with store.transaction(epoch=epoch) as tx:
        assert tx.version == 1


async def test_an_unknown_epoch_is_refused(store: Store) -> None:
    with pytest.raises(NotLeaderError):
        async with store.transaction(epoch=1):
            raise AssertionError
    epoch = (await store.lead()).epoch
    with pytest.raises(NotLeaderError):
        await put(store, Slot("a", 0, None), epoch=epoch + 1)


async def test_only_one_leads_at_a_time(harness: StoreHarness) -> None:
    first, second = harness.store(), harness.store()
    leading = await first.lead()
    waiting = asyncio.ensure_future(second.lead())
    await asyncio.wait([waiting], timeout=0.2)
    assert not waiting.done()
    await leading.release()
    assert (await asyncio.wait_for(waiting, 2)).epoch > leading.epoch


async def test_waiting_for_the_leadership_can_be_cancelled(harness: StoreHarness) -> None:
    first, second, third = harness.store(), harness.store(), harness.store()
    leading = await first.lead()
    waiting = asyncio.ensure_future(second.lead())
    await asyncio.wait([waiting], timeout=0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await leading.release()
    assert (await asyncio.wait_for(third.lead(), 2)).epoch > leading.epoch


@pytest.mark.parametrize("lands", [True, False])
async def test_the_outcome_of_a_commit_that_was_cancelled_midway_is_determined(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    """A waiter is cancelled and the leader goes on, as for a command whose bus connection was
    lost. The leader's memory must not lack a row that was committed."""
    store, seen = harness.store(), list[Delta]()
    epoch = (await store.lead()).epoch
    await store.make_resident(Job)
    store.observe(seen.append)
    honest = store._begin

    async def begin(epoch_: int | None) -> object:
        session = await honest(epoch_)
        commit = session.commit

        async def cancelled() -> None:
            await (commit() if lands else session.rollback())
            raise asyncio.CancelledError

        monkeypatch.setattr(type(session), "commit", lambda _self: cancelled())
        return session

    monkeypatch.setattr(store, "_begin", begin)
    with pytest.raises(asyncio.CancelledError):
        await put(store, a_job("j1"), epoch=epoch)
    monkeypatch.undo()
    assert store.in_doubt
    assert not seen
    if lands:
        with pytest.raises(StoreUnavailableError):
            await put(store, a_job("j2"), epoch=epoch)
    await put(store, a_job("j2", client_key="2"), epoch=epoch)
    names = ["j1", "j2"] if lands else ["j2"]
    assert sorted(store.resident(Job)) == names
    assert [row.job_id for delta in seen for row in delta.put] == names
    assert not store.in_doubt


async def test_a_cut_connection_is_noticed_and_another_leads(harness: StoreHarness) -> None:
    first, second = harness.store(), harness.store()
    leading = await first.lead()
    waiting = asyncio.ensure_future(second.lead())
    lost = asyncio.ensure_future(leading.lost())
    await asyncio.wait([waiting, lost], timeout=0.2)
    assert not lost.done()
    await harness.cut_leader()
    await asyncio.wait_for(lost, 2)
    following = await asyncio.wait_for(waiting, 2)
    # The old handle's ordinary connections still work: only the fence stops it.
    with pytest.raises(NotLeaderError):
        await put(first, Slot("a", 0, None), epoch=leading.epoch)
    await put(second, Slot("a", 0, None), epoch=following.epoch)


async def test_closing_a_store_frees_its_leadership(harness: StoreHarness) -> None:
    first, second = harness.store(), harness.store()
    leading = await first.lead()
    await first.close()
    assert (await asyncio.wait_for(second.lead(), 2)).epoch > leading.epoch
    with pytest.raises(StoreUnavailableError):
        await put(first, Slot("a", 0, None))


async def test_leaders_transactions_of_one_process_take_turns(store: Store) -> None:
    epoch = (await store.lead()).epoch
    await put(store, Slot("a", 0, ""), epoch=epoch)

    async def add(letter: str) -> None:
        async with store.transaction(epoch=epoch) as tx:
            slot = await tx.get(Slot, "a", 0)
            assert slot is not None
            await asyncio.sleep(0)
            tx.put(replace(slot, owner=(slot.owner or "") + letter))

    await asyncio.gather(*(add(letter) for letter in "abcdefgh"))
    [slot] = await all_of(store, Slot)
    assert sorted(slot.owner) == list("abcdefgh")


# Resident tables and observers


async def test_resident_tables_answer_from_memory_with_the_overlay(harness: StoreHarness) -> None:
    store = harness.store()
    await put(store, *SLOTS)
    epoch = (await store.lead()).epoch
    await store.make_resident(Slot)
    resident = store.resident(Slot)
    assert resident["a", 0] == Slot("a", 0, "x")
    async with store.transaction(epoch=epoch) as tx:
        assert await tx.get(Slot, "a", 0) is resident["a", 0]
        tx.put(Slot("a", 0, "mine"), Slot("c", 0, "new"), a_job())
        tx.delete(Slot, "b", 0)
        assert await tx.get(Slot, "a", 0) == Slot("a", 0, "mine")
        assert await tx.get(Slot, "b", 0) is None
        found = await tx.select(Slot, Where("index", Op.EQ, 0), order_by=[Order("owner")])
        assert [slot.owner for slot in found] == ["mine", "new"]
        assert (
            await tx.select(
                Slot,
                Where("node", Op.EQ, "a"),
                Where("index", Op.EQ, 0),
                Where("owner", Op.EQ, "x"),
            )
            == []
        )
        assert resident["a", 0].owner == "x"
    assert resident["a", 0].owner == "mine"
    assert ("b", 0) not in resident
    assert list(resident.values()) != await all_of(store, Job)
    by_key = sorted(resident.values(), key=lambda slot: (slot.node, slot.index))
    assert by_key == await all_of(harness.store(), Slot)
    with pytest.raises(KeyError, match="Job is not resident"):
        store.resident(Job)


async def test_a_single_key_is_not_a_tuple(store: Store) -> None:
    await put(store, a_job("j1"))
    await store.lead()
    await store.make_resident(Job)
    assert list(store.resident(Job)) == ["j1"]


async def test_a_transaction_that_fails_leaves_memory_alone(store: Store) -> None:
    epoch = (await store.lead()).epoch
    seen: list[Delta] = []
    store.observe(seen.append)
    await put(store, a_job("j1", client_key="k"), epoch=epoch)
    await store.make_resident(Job)
    before = dict(store.resident(Job))
    with pytest.raises(ConflictError):
        await put(store, Slot("a", 0, None), a_job("j2", client_key="k"), epoch=epoch)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - it is raised on leaving
        async with store.transaction(epoch=epoch) as tx:
            tx.delete(Job, "j1")
            raise ZeroDivisionError
    assert store.resident(Job) == before
    assert len(seen) == 1


async def test_what_the_leader_wrote_last_is_read_from_memory(harness: StoreHarness) -> None:
    store = harness.store()
    epoch = (await store.lead()).epoch
    mine = a_job("j1")
    await put(store, mine, epoch=epoch)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - it is raised on leaving
        async with store.transaction(epoch=epoch) as tx:
            tx.put(replace(mine, client_key="never"))
            raise ZeroDivisionError
    async with store.transaction(epoch=epoch) as tx:
        assert await tx.get(Job, "j1") is mine
        await tx.load(Job, ("j1",), ("j2",))
        assert await tx.get(Job, "j1") is mine
        tx.delete(Job, "j1")
        assert await tx.get(Job, "j1") is None
    async with store.transaction(epoch=epoch) as tx:
        assert await tx.get(Job, "j1") is None
    assert await all_of(harness.store(), Job) == []


async def test_what_the_leader_only_read_is_not_remembered(harness: StoreHarness) -> None:
    store = harness.store()
    epoch = (await store.lead()).epoch
    async with store.transaction(epoch=epoch) as tx:
        assert await tx.get(Job, "j1") is None
    await put(harness.store(), a_job("j1"))
    async with store.transaction(epoch=epoch) as tx:
        assert await tx.get(Job, "j1") == a_job("j1")


async def test_leading_again_forgets_what_was_written_last(harness: StoreHarness) -> None:
    first, second = harness.store(), harness.store()
    leading = await first.lead()
    await put(first, a_job("j1", client_key="first"), epoch=leading.epoch)
    await leading.release()
    following = await second.lead()
    await put(second, a_job("j1", client_key="second"), epoch=following.epoch)
    await following.release()
    again = await asyncio.wait_for(first.lead(), 2)
    async with first.transaction(epoch=again.epoch) as tx:
        found = await tx.get(Job, "j1")
    assert found is not None
    assert found.client_key == "second"


async def test_leading_again_forgets_what_was_resident(harness: StoreHarness) -> None:
    first, second = harness.store(), harness.store()
    leading = await first.lead()
    await first.make_resident(Slot)
    await leading.release()
    following = await second.lead()
    await put(second, Slot("a", 0, "second"), epoch=following.epoch)
    await following.release()
    again = await asyncio.wait_for(first.lead(), 2)
    async with first.transaction(epoch=again.epoch) as tx:
        assert await tx.get(Slot, "a", 0) == Slot("a", 0, "second")


async def test_observers_see_each_commit_in_order(store: Store) -> None:
    epoch = (await store.lead()).epoch
    await store.make_resident(Slot)
    seen: list[Delta] = []
    in_memory: list[int] = []
    store.observe(seen.append)
    store.observe(lambda _: in_memory.append(len(store.resident(Slot))))
    async with store.transaction(epoch=epoch) as tx:
        tx.put(Slot("a", 0, "x"), a_job())
        tx.put(Slot("a", 0, "y"))
    async with store.transaction(epoch=epoch) as tx:
        tx.delete(Slot, "a", 0)
        tx.delete(Job, "j1")
        tx.put(Slot("a", 1, None))
    async with store.transaction(epoch=epoch) as tx:
        await tx.get(Slot, "a", 1)
    assert seen == [
        Delta((Slot("a", 0, "y"), a_job()), ()),
        Delta((Slot("a", 1, None),), ((Slot, ("a", 0)), (Job, ("j1",)))),
    ]
    assert in_memory == [1, 1]


async def test_a_nested_leaders_transaction_is_a_mistake_and_not_a_deadlock(store: Store) -> None:
    epoch = (await store.lead()).epoch
    async with store.transaction(epoch=epoch):
        with pytest.raises(RuntimeError, match="inside a leader's transaction"):
            async with store.transaction(epoch=epoch):
                raise AssertionError


async def test_an_observer_that_fails_ends_the_term_and_leading_again_begins_a_new_one(
    store: Store,
) -> None:
    leadership = await store.lead()
    seen: list[Delta] = []

    def fails_once(delta: Delta) -> None:
        seen.append(delta)
        if len(seen) == 1:
            raise KeyError("n1")

    followed: list[Delta] = []
    store.observe(fails_once)
    store.observe(followed.append)
    with pytest.raises(ObserverError, match="KeyError"):
        await put(store, Slot("a", 0, "x"), epoch=leadership.epoch)
    assert len(followed) == 1, "the other observers hear of the commit"
    with pytest.raises(ObserverError, match="KeyError"):
        await asyncio.wait_for(leadership.lost(), 5)
    with pytest.raises(ObserverError):
        await put(store, Slot("a", 1, "y"), epoch=leadership.epoch)
    assert await all_of(store, Slot) == [Slot("a", 0, "x")], "it was committed, and nothing since"
    await leadership.release()
    again = await asyncio.wait_for(store.lead(), 5)
    await put(store, Slot("a", 1, "y"), epoch=again.epoch)
    assert len(seen) == len(followed) == 2


async def test_a_resident_table_is_read_in_pages(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One statement for a whole large table would meet the time limit of a statement."""
    monkeypatch.setattr(core, "RESIDENT_PAGE_ROWS", 3)
    epoch = (await store.lead()).epoch
    slots = [Slot(name, n, f"{name}{n}") for name in ("a", "b", "B") for n in range(4)]
    await put(store, *slots, *(a_job(f"j{n}", client_key=f"{n}") for n in range(3)), epoch=epoch)
    await store.make_resident(Slot, Job)
    assert store.resident(Slot) == {(each.node, each.index): each for each in slots}
    assert len(store.resident(Job)) == 3

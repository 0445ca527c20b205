"""What every store promises, tested with memory and PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from libs.contracts.messages import Placement, Reason, ReasonCode, TaskState
from libs.store import core
from libs.store.port import (
    ConflictError,
    Op,
    Order,
    Store,
    UnreadableRow,
    UnreadableRowError,
    Where,
)
from tests.contract.store_harness import SLOTS, StoreHarness, all_of, put, some_jobs
from tests.kit.clock import START
from tests.libs.store.example import (
    Job,
    Pair,
    Slot,
    a_job,
    a_spec,
    an_event,
)

# Rows


async def test_every_kind_of_value_comes_back_equal(store: Store) -> None:
    full = a_job(
        "j1",
        state=TaskState.PREEMPTING,
        previous=TaskState.RUNNING,
        client_key="näme ☃",
        deadline_at=START + timedelta(days=1),
        reason=Reason(code=ReasonCode.PLACED, numbers={"n": 0.1}, names={"x": "y"}),
        placements=(Placement(rank=1, node_id="n1", gpus=(2, 3)), Placement(node_id="a.b")),
        rank=2**40,
        gpus=(),
    )
    empty = a_job("j2", labels={}, placements=(), secret=b"")
    await put(store, full, empty)
    async with store.transaction() as tx:
        assert await tx.get(Job, "j1") == full
        assert await tx.get(Job, "j2") == empty
        found = await tx.get(Job, "j1")
    assert found is not None
    assert isinstance(found.state, TaskState)
    assert isinstance(found.gpus, tuple)
    assert found.created_at.utcoffset() == timedelta(0)


async def test_a_time_of_another_zone_is_stored_in_utc(store: Store) -> None:
    created_at = datetime(2026, 1, 1, 5, tzinfo=timezone(timedelta(hours=3)))
    await put(store, a_job(created_at=created_at))
    async with store.transaction() as tx:
        found = await tx.get(Job, "j1")
    assert found is not None
    assert found.created_at == datetime(2026, 1, 1, 2, tzinfo=UTC)


async def test_put_replaces_and_delete_removes(store: Store) -> None:
    await put(store, a_job("j1"), Slot("a", 0, None), Slot("a", 1, None), Pair("l", 1))
    await put(store, a_job("j1", share=2.0), Slot("a", 1, "x"), Pair("l", 1))
    async with store.transaction() as tx:
        tx.delete(Slot, "a", 0)
        tx.delete(Slot, "nobody", 7)
    assert [job.share for job in await all_of(store, Job)] == [2.0]
    assert await all_of(store, Slot) == [Slot("a", 1, "x")]
    assert await all_of(store, Pair) == [Pair("l", 1)]


async def test_reads_see_the_transactions_own_writes(store: Store) -> None:
    await put(store, Slot("a", 0, None), Slot("a", 1, None))
    async with store.transaction() as tx:
        tx.put(Slot("a", 2, "new"), Slot("a", 0, "changed"))
        tx.delete(Slot, "a", 1)
        assert await tx.get(Slot, "a", 0) == Slot("a", 0, "changed")
        assert await tx.get(Slot, "a", 1) is None
        assert await tx.select(Slot) == [Slot("a", 0, "changed"), Slot("a", 2, "new")]
        tx.put(Slot("a", 1, "again"))
        tx.delete(Slot, "a", 2)
        assert await tx.get(Slot, "a", 1) == Slot("a", 1, "again")
    assert await all_of(store, Slot) == [Slot("a", 0, "changed"), Slot("a", 1, "again")]


async def test_an_exception_rolls_everything_back(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - it is raised on leaving
        async with store.transaction() as tx:
            tx.put(a_job())
            await tx.select(Job)
            tx.emit(an_event())
            assert await tx.unseen(["e1"]) == {"e1"}
            raise ZeroDivisionError
    assert await all_of(store, Job) == []
    assert await store.outgoing(10) == []
    async with store.transaction() as tx:
        assert await tx.unseen(["e1"]) == {"e1"}


async def test_a_row_that_does_not_fit_is_refused_by_name(store: Store) -> None:
    async with store.transaction() as tx:
        with pytest.raises(TypeError, match="rank is 'x'"):
            tx.put(a_job(rank="x"))
        with pytest.raises(TypeError, match="rank is True"):
            tx.put(a_job(rank=True))
        with pytest.raises(TypeError, match="without a zone"):
            tx.put(a_job(created_at=datetime(2026, 1, 1)))  # noqa: DTZ001
        with pytest.raises(TypeError, match="not nullable"):
            tx.put(a_job(share=None))
        with pytest.raises(TypeError, match="no table"):
            tx.put(object())
        with pytest.raises(TypeError, match="has the key"):
            await tx.get(Slot, "a")


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (Where("owner", Op.EQ, "x"), [0]),
        (Where("owner", Op.NE, "x"), [2, 3, 4]),
        (Where("index", Op.LT, 1), [0, 2]),
        (Where("index", Op.LE, 1), [0, 1, 2, 3]),
        (Where("index", Op.GT, 0), [1, 3, 4]),
        (Where("index", Op.GE, 5), [4]),
        (Where("owner", Op.IN, ("x", "y", "z")), [0, 2]),
        (Where("owner", Op.IN, ()), []),
        (Where("owner", Op.IS_NULL), [1]),
        (Where("owner", Op.NOT_NULL), [0, 2, 3, 4]),
        (Where("owner", Op.PREFIX, "x"), [0, 3]),
        (Where("owner", Op.PREFIX, "x%"), [3]),
        (Where("node", Op.PREFIX, ""), [0, 1, 2, 3, 4]),
        (Where("owner", Op.SUFFIX, "x"), [0]),
        (Where("owner", Op.SUFFIX, "%"), [3]),
        (Where("node", Op.SUFFIX, ""), [0, 1, 2, 3, 4]),
    ],
)
async def test_conditions(store: Store, where: Where, expected: list[int]) -> None:
    await put(store, *SLOTS)
    async with store.transaction() as tx:
        found = await tx.select(Slot, where)
    assert sorted(SLOTS.index(slot) for slot in found) == expected


async def test_conditions_are_joined_by_and(store: Store) -> None:
    await put(store, *SLOTS)
    async with store.transaction() as tx:
        found = await tx.select(Slot, Where("node", Op.EQ, "b"), Where("index", Op.EQ, 1))
    assert found == [Slot("b", 1, "x%")]


async def test_conditions_on_enums_times_and_json(store: Store) -> None:
    first = a_job("j1", labels={"team": "a", "x": "1"}, spec=a_spec("one"))
    second = a_job(
        "j2", state=TaskState.RUNNING, labels={"team": "b"}, created_at=START + timedelta(hours=1)
    )
    await put(store, first, second)
    async with store.transaction() as tx:
        for where, expected in [
            (Where("state", Op.EQ, TaskState.RUNNING), ["j2"]),
            (Where("state", Op.IN, (TaskState.QUEUED, TaskState.RUNNING)), ["j1", "j2"]),
            (Where("created_at", Op.GT, START + timedelta(minutes=1)), ["j2"]),
            (Where("labels", Op.CONTAINS, {"team": "a"}), ["j1"]),
            (Where("labels", Op.CONTAINS, {"team": "a", "x": "2"}), []),
            (Where("labels", Op.CONTAINS, {}), ["j1", "j2"]),
            (Where("labels", Op.LACKS, {"team": "a"}), ["j2"]),
            (Where("labels", Op.LACKS, {"nowhere": "a"}), ["j1", "j2"]),
            (Where("labels", Op.HAS_KEY, "team"), ["j1", "j2"]),
            (Where("labels", Op.HAS_KEY, "nowhere"), []),
            (Where("labels", Op.HAS_KEY, "a"), []),
            (Where("spec", Op.CONTAINS, {"name": "one", "retry": {"max_retries": 2}}), ["j1"]),
            (Where("placements", Op.CONTAINS, [{"gpus": [1]}]), ["j1", "j2"]),
            (Where("gpus", Op.EQ, (3, 1, 2)), ["j1", "j2"]),
            (Where("ended", Op.EQ, value=False), ["j1", "j2"]),
        ]:
            found = await tx.select(Job, where)
            assert [job.job_id for job in found] == expected, where


async def test_order_limit_and_offset(store: Store) -> None:
    await put(store, *SLOTS)

    async def owners(*order: Order, limit: int | None = None, offset: int = 0) -> list[str | None]:
        async with store.transaction() as tx:
            found = await tx.select(Slot, order_by=order, limit=limit, offset=offset)
        return [slot.owner for slot in found]

    # By primary key, and by code points: "B" comes before "a".
    assert await owners() == ["", "x", None, "y", "x%"]
    assert await owners(Order("owner")) == ["", "x", "x%", "y", None]
    assert await owners(Order("owner", descending=True)) == [None, "y", "x%", "x", ""]
    # Ties by primary key, also when descending.
    assert await owners(Order("index", descending=True)) == ["", None, "x%", "x", "y"]
    assert await owners(Order("index"), Order("node", descending=True)) == [
        "y", "x", "x%", None, ""
    ]  # fmt: skip
    assert await owners(limit=2, offset=1) == ["x", None]
    assert await owners(limit=0) == []
    assert await owners(offset=4) == ["x%"]


async def test_a_question_without_meaning_is_an_error(store: Store) -> None:
    async with store.transaction() as tx:
        with pytest.raises(ValueError, match="no column 'colour'"):
            await tx.select(Slot, Where("colour", Op.EQ, "red"))
        with pytest.raises(ValueError, match="no column"):
            await tx.select(Slot, order_by=[Order("colour; DROP TABLE slot")])
        with pytest.raises(ValueError, match="IS_NULL"):
            await tx.select(Slot, Where("owner", Op.EQ, None))


# Constraints


async def test_a_unique_constraint_refuses_and_nothing_is_stored(store: Store) -> None:
    await put(store, a_job("j1", client_key="k"))
    with pytest.raises(ConflictError, match="job_client_key_key"):  # noqa: PT012 - it is raised on leaving
        async with store.transaction() as tx:
            tx.put(Slot("a", 0, None), a_job("j2", client_key="k"))
            tx.emit(an_event())
    assert [job.job_id for job in await all_of(store, Job)] == ["j1"]
    assert await all_of(store, Slot) == []
    assert await store.outgoing(10) == []
    # Null is not equal to null, and the row may keep its own value.
    await put(store, a_job("j2"), a_job("j3"), a_job("j1", client_key="k", share=3.0))


async def test_a_partial_unique_index_covers_its_rows_only(store: Store) -> None:
    await put(store, a_job("j1", rank=7), a_job("j2", rank=7, ended=True))
    with pytest.raises(ConflictError, match="job_one_live_per_rank"):
        await put(store, a_job("j3", rank=7))
    # Handing over in one transaction: what is freed first is free.
    await put(store, a_job("j1", rank=7, ended=True), a_job("j3", rank=7))
    async with store.transaction() as tx:
        tx.put(a_job("j4", rank=7))
        tx.delete(Job, "j3")
    with pytest.raises(ConflictError, match="job_one_live_per_rank"):
        await put(store, a_job("j5", rank=7), a_job("j4", rank=7, ended=True))


async def test_a_check_refuses(store: Store) -> None:
    with pytest.raises(ConflictError, match="job_share_positive"):
        await put(store, a_job(share=-1.0))


async def test_a_conflict_that_the_body_swallows_still_fails(store: Store) -> None:
    await put(store, a_job("j1", client_key="k"))
    with pytest.raises(ConflictError):  # noqa: PT012 - it is raised on leaving
        async with store.transaction() as tx:
            tx.put(Slot("a", 0, None), a_job("j2", client_key="k"))
            with pytest.raises(ConflictError):
                await tx.select(Job)
    assert await all_of(store, Slot) == []


async def test_loaded_rows_are_read_from_memory_below_own_writes(
    store: Store,
) -> None:
    async with store.transaction() as tx:
        tx.put(Slot("a", 1, "t1"), Slot("a", 2, "t2"), Slot("b", 1, "t3"))
    async with store.transaction() as tx:
        tx.put(Slot("a", 2, "mine"))
        await tx.load(Slot, ("a", 1), ("a", 2), ("b", 7), ("a", 1))
        await tx.load(Slot)
        assert await tx.get(Slot, "a", 1) == Slot("a", 1, "t1")
        assert await tx.get(Slot, "a", 2) == Slot("a", 2, "mine")
        assert await tx.get(Slot, "b", 7) is None
        assert await tx.get(Slot, "b", 1) == Slot("b", 1, "t3")
        with pytest.raises(TypeError):
            await tx.load(Slot, ("a",))


async def test_a_list_survives_rows_that_cannot_be_decoded(harness: StoreHarness) -> None:
    store, met = harness.store(), list[UnreadableRow]()
    store.on_unreadable(met.append)
    await some_jobs(harness, store, "j1", "j4")
    async with store.transaction() as tx:
        assert [row.job_id for row in await tx.select(Job)] == ["j0", "j2", "j3", "j5"]
        assert [(row.kind, row.id) for row in tx.unreadable] == [(Job, "j1"), (Job, "j4")]
        assert [row.problem.split(" (")[0] for row in tx.unreadable] == [
            "column spec cannot be decoded",
            "column state cannot be decoded",
        ]
        assert met == list(tx.unreadable)
        # The transaction goes on.
        tx.put(Slot("a", 0, "x"))
    assert await all_of(store, Slot) == [Slot("a", 0, "x")]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
async def test_a_limit_counts_the_rows_that_can_be_read(harness: StoreHarness, limit: int) -> None:
    """Fewer rows than the limit mean that there are no more."""
    store = harness.store()
    await some_jobs(harness, store, "j0", "j1", "j2", "j4")
    async with store.transaction() as tx:
        order = [Order("share")]
        found = [row.job_id for row in await tx.select(Job, order_by=order, limit=limit)]
        assert found == ["j3", "j5"][:limit]
        assert [row.id for row in tx.unreadable][:3] == ["j0", "j1", "j2"]
        assert len(tx.unreadable) == (3 if limit == 1 else 4)


async def test_a_row_that_cannot_be_decoded_is_not_taken_for_one_that_is_not_there(
    harness: StoreHarness,
) -> None:
    store = harness.store()
    await some_jobs(harness, store, "j1")
    store = harness.store()
    async with store.transaction() as tx:
        for _ in range(2):
            with pytest.raises(UnreadableRowError, match="Job j1: column spec"):
                await tx.get(Job, "j1")
    async with store.transaction() as tx:
        await tx.load(Job, ("j0",), ("j1",), ("j9",))
        assert await tx.get(Job, "j0") is not None
        assert await tx.get(Job, "j9") is None
        with pytest.raises(UnreadableRowError):
            await tx.get(Job, "j1")
        # Once it is written again it is whole, and it can be deleted.
        tx.put(a_job("j1", client_key="1"))
        assert await tx.get(Job, "j1") == a_job("j1", client_key="1")
    await harness.break_row(Job, "spec", "j2")
    async with store.transaction() as tx:
        tx.delete(Job, "j2")
        assert [row.job_id for row in await tx.select(Job)] == ["j0", "j1", "j3", "j4", "j5"]
        assert tx.unreadable == []


async def test_a_resident_table_is_loaded_without_rows_that_cannot_be_decoded(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "RESIDENT_PAGE_ROWS", 2)
    store, met = harness.store(), list[str]()
    store.on_unreadable(lambda row: met.append(row.id))
    epoch = (await store.lead()).epoch
    await some_jobs(harness, store, "j1", "j5", epoch=epoch)
    await store.make_resident(Job)
    assert set(store.resident(Job)) == {"j0", "j2", "j3", "j4"}
    assert [row.id for row in store.unreadable(Job)] == met == ["j1", "j5"]
    async with store.transaction(epoch=epoch) as tx:
        with pytest.raises(UnreadableRowError):
            await tx.get(Job, "j1")
        assert [row.job_id for row in await tx.select(Job, Where("share", Op.GT, 3))] == ["j4"]
        assert [row.id for row in tx.unreadable] == ["j1", "j5"]
        tx.put(a_job("j1", client_key="1"))
        tx.delete(Job, "j5")
    assert list(store.unreadable(Job)) == []
    async with store.transaction(epoch=epoch) as tx:
        assert await tx.get(Job, "j1") == a_job("j1", client_key="1")
        assert await tx.get(Job, "j5") is None

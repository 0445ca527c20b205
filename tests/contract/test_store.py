"""What every store promises, held against memory and PostgreSQL alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from libs.contracts.envelope import Envelope
from libs.contracts.messages import Placement, Reason, ReasonCode, TaskState
from libs.store import core
from libs.store.connections import Address, connect
from libs.store.memory import MemoryDatabase, MemoryStore
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
from libs.store.sql import SqlStore
from tests.libs.store.example import (
    START,
    TABLES,
    Hands,
    Job,
    Pair,
    Slot,
    a_job,
    a_spec,
    an_event,
    create_statements,
    next_id,
)

if TYPE_CHECKING:
    from tests.harness.postgres import PostgresServer, Role


@dataclass
class World:
    """One database, and handles as of several processes."""

    clock: Hands
    new_store: Callable[[], Store]
    # Breaks the connection that holds the leadership.
    cut_leader: Callable[[], Awaitable[None]]
    stores: list[Store] = field(default_factory=list)

    def store(self) -> Store:
        made = self.new_store()
        self.stores.append(made)
        return made


async def memory_world() -> AsyncIterator[World]:
    clock, database = Hands(), MemoryDatabase()

    def new_store() -> Store:
        return MemoryStore(database, TABLES, clock=clock, source="thing", new_id=next_id)

    async def cut() -> None:
        database.cut_leader("thing")

    yield World(clock, new_store, cut)


async def sql_world(role: Role) -> AsyncIterator[World]:
    clock = Hands()
    address = Address(role.url, role.password, statement_timeout_s=5)
    connection = await connect(address)
    await connection.execute("TRUNCATE thing.job, thing.slot, thing.pair, thing.inbox")
    await connection.execute("TRUNCATE thing.outbox, thing.leader")

    def new_store() -> Store:
        return SqlStore(
            address,
            TABLES,
            clock=clock,
            source="thing",
            new_id=next_id,
            leader_poll_s=0.05,
            leader_probe_s=0.1,
        )

    async def cut() -> None:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
        )

    world = World(clock, new_store, cut)
    yield world
    await connection.close()


@pytest.fixture(scope="module")
def role(postgres_server: PostgresServer) -> Role:
    """One schema for all tests of this module; each empties it first."""

    async def prepare() -> Role:
        made = await (await postgres_server.database()).role("thing")
        connection = await connect(Address(made.url, made.password))
        for statement in create_statements():
            await connection.execute(statement)
        await connection.close()
        return made

    with ThreadPoolExecutor(1) as apart:
        return apart.submit(asyncio.run, prepare()).result()


@pytest.fixture(params=["memory", pytest.param("sql", marks=pytest.mark.server)], name="source")
def one_source(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "memory":
        return memory_world()
    return sql_world(request.getfixturevalue("role"))


@pytest_asyncio.fixture(name="world")
async def one_world(source: AsyncIterator[World]) -> AsyncIterator[World]:
    async for world in source:
        yield world
        for store in world.stores:
            await store.close()


@pytest.fixture(name="store")
def one_store(world: World) -> Store:
    return world.store()


async def put(store: Store, *rows: object, epoch: int | None = None) -> None:
    async with store.transaction(epoch=epoch) as tx:
        tx.put(*rows)


async def all_of(store: Store, kind: type[Any]) -> list[Any]:
    async with store.transaction() as tx:
        return await tx.select(kind)


# Rows


async def test_every_kind_of_value_comes_back_equal(store: Store) -> None:
    full = a_job(
        "j1",
        state=TaskState.PREEMPTING,
        previous=TaskState.RUNNING,
        client_key="näme ☃",
        deadline_at=START + timedelta(days=1),
        reason=Reason(code=ReasonCode.PLACED, numbers={"n": 0.1}, names={"x": "y"}),
        placements=(Placement(rank=1, gpus=(2, 3)), Placement(node_id="a.b")),
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


async def test_a_time_of_another_zone_is_the_same_moment(store: Store) -> None:
    moment = datetime(2026, 1, 1, 5, tzinfo=timezone(timedelta(hours=3)))
    await put(store, a_job(created_at=moment))
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


# Select

SLOTS = [
    Slot("a", 0, "x"),
    Slot("a", 1, None),
    Slot("b", 0, "y"),
    Slot("b", 1, "x%"),
    Slot("B", 5, ""),
]


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


async def test_a_partial_unique_index_looks_at_its_rows_only(store: Store) -> None:
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


async def test_what_was_loaded_is_got_without_asking_and_under_the_own_writes(
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


# Inbox and outbox


async def test_own_commits_are_outgoing_without_a_look(world: World, store: Store) -> None:
    async def emit(by: Store, *versions: int) -> None:
        async with by.transaction() as tx:
            for version in versions:
                tx.emit(an_event("ada", version))

    def versions(rows: Sequence[tuple[int, Envelope]]) -> list[int]:
        return [envelope.message.version for _, envelope in rows]  # type: ignore[attr-defined]

    await emit(store, 1)
    # The first time is a look, whatever was asked for: before it nothing is kept.
    assert versions(await store.outgoing(10, look=False)) == [1]
    await emit(world.store(), 2)
    await emit(store, 3, 4)
    fresh = await store.outgoing(10, look=False)
    assert versions(fresh) == [3, 4]
    assert versions(await store.outgoing(1, look=False)) == [3]
    seen = await store.outgoing(10)
    assert versions(seen) == [1, 2, 3, 4]
    assert seen[2:] == fresh
    await store.published([row_id for row_id, _ in seen])
    assert await store.outgoing(10, look=False) == []
    assert await store.outgoing(10) == []


async def test_the_inbox_knows_what_it_has_seen(store: Store) -> None:
    async with store.transaction() as tx:
        assert await tx.unseen([]) == set()
        assert await tx.unseen(["e1", "e2", "e1"]) == {"e1", "e2"}
        assert await tx.unseen(["e2", "e3"]) == {"e3"}
    async with store.transaction() as tx:
        assert await tx.unseen(["e1", "e4"]) == {"e4"}


async def test_the_outbox_keeps_order_and_envelopes(world: World, store: Store) -> None:
    for turn in range(3):
        async with store.transaction() as tx:
            tx.put(Slot("a", turn, None))
            tx.emit(an_event("ada", 10 * turn))
            tx.emit(an_event("bob", 10 * turn + 1))
        world.clock.advance(1)
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


async def test_a_crash_between_publishing_and_marking_sends_the_same_again(
    world: World, store: Store
) -> None:
    async with store.transaction() as tx:
        tx.emit(an_event())
        tx.emit(an_event("bob", 2))
    before = await store.outgoing(10)
    after = await world.store().outgoing(10)
    assert after == before
    await store.published([before[0][0]])
    assert await world.store().outgoing(10) == before[1:]


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


async def test_what_was_published_lately_can_be_unpublished(world: World, store: Store) -> None:
    async with store.transaction() as tx:
        for version in range(3):
            tx.emit(an_event(version=version))
    rows = [row_id for row_id, _ in await store.outgoing(10)]
    for row_id in rows:
        await store.published([row_id])
        world.clock.advance(10)
    assert await store.outgoing(10) == []
    # Published 0, 10 and 20 seconds after the start; the first server is met, then another one.
    await store.lead()
    assert await store.meet_bus_server("", timedelta(hours=1)) == 0
    assert await store.meet_bus_server("one", timedelta(seconds=-1)) == 0
    assert await store.meet_bus_server("one", timedelta(hours=1)) == 0
    assert await store.meet_bus_server("two", timedelta(seconds=10)) == 2
    assert [row_id for row_id, _ in await store.outgoing(10)] == rows[1:]
    assert await store.meet_bus_server("two", timedelta(hours=1)) == 0


async def test_prune_drops_the_old_and_only_that(world: World, store: Store) -> None:
    async with store.transaction() as tx:
        await tx.unseen(["old"])
        tx.emit(an_event(version=1))
        tx.emit(an_event(version=2))
    rows = [row_id for row_id, _ in await store.outgoing(10)]
    await store.published(rows[:1])
    world.clock.advance(100)
    async with store.transaction() as tx:
        await tx.unseen(["new"])
        tx.emit(an_event(version=3))
    last = [row_id for row_id, _ in await store.outgoing(10)][-1]
    await store.published([last])
    limit = START + timedelta(seconds=50)
    assert await store.prune(published_before=limit, seen_before=limit) == 2
    assert await store.prune(published_before=limit, seen_before=limit) == 0
    # Never what is unpublished, however old.
    assert [row_id for row_id, _ in await store.outgoing(10)] == rows[1:]
    await store.lead()
    assert await store.meet_bus_server("one", timedelta(hours=1)) == 1
    async with store.transaction() as tx:
        assert await tx.unseen(["old", "new"]) == {"old"}


# Leadership


async def test_a_leaders_transactions_are_counted_and_fenced(world: World) -> None:
    first, second = world.store(), world.store()
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


async def test_an_epoch_that_never_was_is_refused(store: Store) -> None:
    with pytest.raises(NotLeaderError):
        async with store.transaction(epoch=1):
            raise AssertionError
    epoch = (await store.lead()).epoch
    with pytest.raises(NotLeaderError):
        await put(store, Slot("a", 0, None), epoch=epoch + 1)


async def test_only_one_leads_at_a_time(world: World) -> None:
    first, second = world.store(), world.store()
    leading = await first.lead()
    waiting = asyncio.ensure_future(second.lead())
    await asyncio.wait([waiting], timeout=0.2)
    assert not waiting.done()
    await leading.release()
    assert (await asyncio.wait_for(waiting, 2)).epoch > leading.epoch


async def test_waiting_for_the_leadership_can_be_cancelled(world: World) -> None:
    first, second, third = world.store(), world.store(), world.store()
    leading = await first.lead()
    waiting = asyncio.ensure_future(second.lead())
    await asyncio.wait([waiting], timeout=0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await leading.release()
    assert (await asyncio.wait_for(third.lead(), 2)).epoch > leading.epoch


async def test_a_cut_connection_is_noticed_and_another_leads(world: World) -> None:
    first, second = world.store(), world.store()
    leading = await first.lead()
    waiting = asyncio.ensure_future(second.lead())
    lost = asyncio.ensure_future(leading.lost())
    await asyncio.wait([waiting, lost], timeout=0.2)
    assert not lost.done()
    await world.cut_leader()
    await asyncio.wait_for(lost, 2)
    following = await asyncio.wait_for(waiting, 2)
    # The old handle's ordinary connections still work: only the fence stops it.
    with pytest.raises(NotLeaderError):
        await put(first, Slot("a", 0, None), epoch=leading.epoch)
    await put(second, Slot("a", 0, None), epoch=following.epoch)


async def test_closing_a_store_frees_its_leadership(world: World) -> None:
    first, second = world.store(), world.store()
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


async def test_resident_tables_answer_from_memory_with_the_overlay(world: World) -> None:
    store = world.store()
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
    assert by_key == await all_of(world.store(), Slot)
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


async def test_what_the_leader_wrote_last_is_read_from_memory(world: World) -> None:
    store = world.store()
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
    assert await all_of(world.store(), Job) == []


async def test_what_the_leader_only_read_is_not_remembered(world: World) -> None:
    store = world.store()
    epoch = (await store.lead()).epoch
    async with store.transaction(epoch=epoch) as tx:
        assert await tx.get(Job, "j1") is None
    await put(world.store(), a_job("j1"))
    async with store.transaction(epoch=epoch) as tx:
        assert await tx.get(Job, "j1") == a_job("j1")


async def test_leading_again_forgets_what_was_written_last(world: World) -> None:
    first, second = world.store(), world.store()
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


async def test_leading_again_forgets_what_was_resident(world: World) -> None:
    first, second = world.store(), world.store()
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

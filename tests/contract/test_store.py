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

from libs.contracts.envelope import BATCH_BYTES_MAX, Envelope
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
    UnreadableRow,
    UnreadableRowError,
    Where,
    is_full,
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
    from tests.kit.postgres import PostgresServer, Role


@dataclass
class World:
    """One database, and handles as of several processes."""

    clock: Hands
    new_store: Callable[[], Store]
    # Breaks the connection that holds the leadership.
    cut_leader: Callable[[], Awaitable[None]]
    # Changes a column of a row by hand: break_row(kind, column, *key).
    break_row: Callable[..., Awaitable[None]]
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

    async def break_row(kind: type[Any], column: str, *key: object) -> None:
        database.break_row(TABLES, kind, *key, column=column)

    yield World(clock, new_store, cut, break_row)


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

    async def break_row(kind: type[Any], column: str, *key: object) -> None:
        shape = TABLES.shape(kind)
        broken = {"jsonb": """'{"broken": 1}'""", "text": "'broken'"}
        same = " AND ".join(f'"{name}" = ${place}' for place, name in enumerate(shape.key, 1))
        await connection.execute(
            f"UPDATE thing.{shape.table} SET {column} = {broken[shape.column(column).sql_type]}"
            f" WHERE {same}",
            *key,
        )

    world = World(clock, new_store, cut, break_row)
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


@pytest.mark.parametrize("look", [True, False])
async def test_a_page_of_the_outbox_is_bounded_by_bytes(store: Store, look: bool) -> None:
    """A page holds what reaches the bound, and one event at least, however large each is."""
    assert await store.outgoing(10) == []
    large = "x" * (BATCH_BYTES_MAX * 2 // 5)
    for version in range(5):
        async with store.transaction() as tx:
            tx.emit(an_event(large if version < 4 else "small", version))
    found = await store.outgoing(10, look=look)
    assert [each.message.version for _, each in found] == [0, 1, 2]  # type: ignore[attr-defined]
    assert is_full(found, 10)
    await store.published([row_id for row_id, _ in found])
    rest = await store.outgoing(10, look=look)
    assert [each.message.version for _, each in rest] == [3, 4]  # type: ignore[attr-defined]
    assert not is_full(rest, 10)


async def test_refused_rows_of_the_outbox_wait_apart(world: World, store: Store) -> None:
    assert await store.outgoing(10) == []
    async with store.transaction() as tx:
        for version in range(4):
            tx.emit(an_event("ada", version))
    rows = await store.outgoing(10)
    ids = [row_id for row_id, _ in rows]
    await store.refuse(ids[:3])
    world.clock.advance(5)
    # Refused once is refused, and what is published is not.
    await store.published(ids[:1])
    await store.refuse(ids[:2])
    for look in (True, False):
        assert await store.outgoing(10, look=look) == rows[3:]
    assert await world.store().outgoing(10) == rows[3:]
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
    world: World, store: Store, days: int
) -> None:
    await store.lead()
    assert await store.meet_bus_server("one", 10) == 0
    first = await published_in_periods(store, 1)
    world.clock.advance(days * 86_400)
    second = await published_in_periods(store, 1)
    world.clock.advance(-days * 86_400)
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


async def test_pruning_the_inbox_drops_the_old_and_only_that(world: World, store: Store) -> None:
    assert await store.oldest_seen() is None
    async with store.transaction() as tx:
        await tx.unseen(["old"])
    world.clock.advance(100)
    async with store.transaction() as tx:
        await tx.unseen(["new"])
    assert await store.oldest_seen() == START
    assert await store.prune_inbox(START + timedelta(seconds=50)) == 1
    assert await store.prune_inbox(START + timedelta(seconds=50)) == 0
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


@pytest.mark.parametrize("lands", [True, False])
async def test_what_became_of_a_commit_that_was_cancelled_midway_is_found_out(
    world: World, monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    """Somebody who waits for it goes away, and the leader leads on: a command whose bus connection
    was lost. Memory must not go on without a row that is there."""
    store, seen = world.store(), list[Delta]()
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


# Rows that cannot be decoded


async def some_jobs(world: World, store: Store, *broken: str, epoch: int | None = None) -> None:
    """Six jobs, j0 to j5; those that are named are broken by hand."""
    jobs = (a_job(f"j{n}", client_key=f"{n}", share=float(n)) for n in range(6))
    await put(store, *jobs, epoch=epoch)
    for number, job_id in enumerate(broken):
        await world.break_row(Job, ("spec", "state")[number % 2], job_id)


async def test_a_list_survives_rows_that_cannot_be_decoded(world: World) -> None:
    store, met = world.store(), list[UnreadableRow]()
    store.on_unreadable(met.append)
    await some_jobs(world, store, "j1", "j4")
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
async def test_a_limit_counts_the_rows_that_can_be_read(world: World, limit: int) -> None:
    """Fewer rows than the limit mean that there are no more."""
    store = world.store()
    await some_jobs(world, store, "j0", "j1", "j2", "j4")
    async with store.transaction() as tx:
        order = [Order("share")]
        found = [row.job_id for row in await tx.select(Job, order_by=order, limit=limit)]
        assert found == ["j3", "j5"][:limit]
        assert [row.id for row in tx.unreadable][:3] == ["j0", "j1", "j2"]
        assert len(tx.unreadable) == (3 if limit == 1 else 4)


async def test_a_row_that_cannot_be_decoded_is_not_taken_for_one_that_is_not_there(
    world: World,
) -> None:
    store = world.store()
    await some_jobs(world, store, "j1")
    store = world.store()
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
        # Written anew it is whole again, and it can be deleted.
        tx.put(a_job("j1", client_key="1"))
        assert await tx.get(Job, "j1") == a_job("j1", client_key="1")
    await world.break_row(Job, "spec", "j2")
    async with store.transaction() as tx:
        tx.delete(Job, "j2")
        assert [row.job_id for row in await tx.select(Job)] == ["j0", "j1", "j3", "j4", "j5"]
        assert tx.unreadable == []


async def test_a_resident_table_is_loaded_without_rows_that_cannot_be_decoded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "RESIDENT_PAGE_ROWS", 2)
    store, met = world.store(), list[str]()
    store.on_unreadable(lambda row: met.append(row.id))
    epoch = (await store.lead()).epoch
    await some_jobs(world, store, "j1", "j5", epoch=epoch)
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

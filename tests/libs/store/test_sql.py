"""What only a real server can do wrong: slow transactions, lost answers, being away."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from libs.store.connections import Address, connect
from libs.store.leader import raise_epoch
from libs.store.port import (
    ConflictError,
    Delta,
    NotLeaderError,
    Op,
    StoreUnavailableError,
    UnfitValueError,
    Where,
)
from libs.store.sql import SqlStore
from tests.kit.clock import FakeClock
from tests.libs.store.example import TABLES, Job, Slot, a_job, an_event, create_statements, next_id

if TYPE_CHECKING:
    from tests.kit.postgres import Database, PostgresServer, Role

pytestmark = pytest.mark.server


async def prepared(role: Role) -> Role:
    connection = await connect(Address(role.url, role.password))
    for statement in create_statements():
        await connection.execute(statement)
    await connection.close()
    return role


def store_at(url: str, password: str, **changes: Any) -> SqlStore:
    address = Address(url, password, connect_timeout_s=2, **changes)
    return SqlStore(
        address,
        TABLES,
        clock=FakeClock(),
        source="thing",
        new_id=next_id,
        leader_poll_s=0.05,
        leader_probe_s=0.1,
    )


@pytest_asyncio.fixture
async def role(database: Database) -> Role:
    return await prepared(await database.role("thing"))


@pytest_asyncio.fixture
async def store(role: Role) -> AsyncIterator[SqlStore]:
    made = store_at(role.url, role.password)
    yield made
    await made.close()


@pytest.mark.parametrize("value", ["a\0b", "\ud800", 2**63, "x"])
async def test_a_value_that_the_database_cannot_hold_is_no_outage_and_no_defect(
    store: SqlStore, value: Any
) -> None:
    """Whoever sent it has to send something else; trying again does not help."""
    column = "job_id" if isinstance(value, str) and value != "x" else "rank"
    with pytest.raises(UnfitValueError):
        async with store.transaction() as tx:
            await tx.select(Job, Where(column, Op.EQ, value))
    async with store.transaction() as tx:
        assert await tx.select(Job) == []


async def test_a_slower_transaction_with_a_lower_id_is_not_skipped(
    store: SqlStore, role: Role
) -> None:
    slow = await connect(Address(role.url, role.password))
    await slow.execute("BEGIN")
    await slow.execute(
        "INSERT INTO thing.outbox (event_id, type, source, subject, time, traceparent, body,"
        " created_at) SELECT 'slow', 'shiftwork.quota.v1.QuotaChanged', 'thing', 's', now(), '',"
        " $1, now()",
        an_event(version=1).to_json().decode(),
    )
    async with store.transaction() as tx:
        tx.emit(an_event(version=2))
    [(fast_id, envelope)] = await store.outgoing(10)
    assert envelope.message.version == 2
    await store.published([fast_id])
    await slow.execute("COMMIT")
    await slow.close()
    [(slow_id, envelope)] = await store.outgoing(10)
    assert slow_id < fast_id
    assert envelope.id == "slow"


async def test_two_processes_changing_one_row_do_not_overwrite_each_other(
    store: SqlStore, role: Role
) -> None:
    other = store_at(role.url, role.password)
    async with store.transaction() as tx:
        tx.put(Slot("a", 0, ""))
    with pytest.raises(ConflictError, match="try again"):  # noqa: PT012 - raised on leaving
        async with store.transaction() as tx:
            assert await tx.get(Slot, "a", 0) == Slot("a", 0, "")
            async with other.transaction() as faster:
                faster.put(Slot("a", 0, "faster"))
            tx.put(Slot("a", 0, "slower"))
    with pytest.raises(ConflictError, match="try again"):  # noqa: PT012 - raised on leaving
        async with store.transaction() as tx:
            assert await tx.get(Slot, "b", 0) is None
            async with other.transaction() as faster:
                faster.put(Slot("b", 0, "faster"))
            tx.put(Slot("b", 0, "slower"))
    await other.close()


async def test_the_next_leader_waits_for_the_last_ones_open_transaction(
    store: SqlStore, role: Role
) -> None:
    other = store_at(role.url, role.password)
    old = await store.lead()
    async with store.transaction(epoch=old.epoch) as tx:
        tx.put(Slot("a", 0, "in time"))
        await old.release()
        campaign = asyncio.ensure_future(other.lead())
        await asyncio.wait([campaign], timeout=0.3)
        assert not campaign.done()
    new = await asyncio.wait_for(campaign, 2)
    async with other.transaction(epoch=new.epoch) as tx:
        assert await tx.get(Slot, "a", 0) == Slot("a", 0, "in time")
    with pytest.raises(NotLeaderError):
        async with store.transaction(epoch=old.epoch):
            raise AssertionError
    await other.close()


async def test_a_wait_for_a_lock_has_an_end(role: Role) -> None:
    store = store_at(role.url, role.password, statement_timeout_s=0.3)
    holder = await connect(Address(role.url, role.password))
    await holder.execute("BEGIN; LOCK TABLE thing.slot")
    with pytest.raises(StoreUnavailableError):
        async with store.transaction() as tx:
            tx.put(Slot("a", 0, None))
    await holder.execute("ROLLBACK")
    await holder.close()
    async with store.transaction() as tx:
        tx.put(Slot("a", 0, None))
    await store.close()


async def test_all_connections_busy_is_unavailable_and_not_for_ever(role: Role) -> None:
    store = store_at(role.url, role.password, statement_timeout_s=0.2, connections_max=1)
    async with store.transaction():
        with pytest.raises(StoreUnavailableError, match="busy"):
            await store.outgoing(1)
    assert await store.outgoing(1) == []
    await store.close()


async def test_a_cancelled_transaction_is_rolled_back_and_costs_no_connection(
    role: Role,
) -> None:
    store = store_at(role.url, role.password, connections_max=1)
    holder = await connect(Address(role.url, role.password))
    await holder.execute("BEGIN; LOCK TABLE thing.pair")

    async def stuck() -> None:
        async with store.transaction() as tx:
            tx.put(Slot("a", 0, None))
            await tx.select(Slot)
            tx.put(a_job())
            await asyncio.Event().wait()

    for _ in range(3):
        task = asyncio.ensure_future(stuck())
        await asyncio.wait([task], timeout=0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await holder.close()
    async with store.transaction() as tx:
        assert await tx.select(Slot) == []
    await store.close()


async def test_a_wrong_password_is_reported_and_not_shown(role: Role) -> None:
    store = store_at(role.url, "hunter2")
    with pytest.raises(StoreUnavailableError, match="password authentication failed") as caught:
        async with store.transaction():
            raise AssertionError
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(Address(role.url, "hunter2"))
    await store.close()


async def test_a_missing_table_is_our_mistake_and_not_weather(database: Database) -> None:
    role = await database.role("thing")
    store = store_at(role.url, role.password)
    with pytest.raises(Exception, match="does not exist") as caught:
        await store.outgoing(1)
    assert not isinstance(caught.value, StoreUnavailableError)
    await store.close()


async def test_a_server_that_was_away_is_found_again(
    postgres_start: Callable[..., Awaitable[PostgresServer]],
) -> None:
    server = await postgres_start(durable=True)
    role = await prepared(await (await server.database()).role("thing"))
    store, other = store_at(role.url, role.password), store_at(role.url, role.password)
    leading = await store.lead()
    async with store.transaction(epoch=leading.epoch) as tx:
        tx.put(Slot("a", 0, "before"))
        tx.emit(an_event())
    server.kill()
    await asyncio.wait_for(leading.lost(), 5)
    campaign = asyncio.ensure_future(other.lead())
    # Its helpers still answer shortly after the first process was killed.
    async with asyncio.timeout(10):
        with pytest.raises(StoreUnavailableError):  # noqa: PT012 - sooner or later
            while True:
                await store.outgoing(1)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            async with store.transaction() as tx:
                tx.put(Slot("a", 1, "meanwhile"))
    with pytest.raises(StoreUnavailableError):
        await store.outgoing(1)
    assert not campaign.done()
    await server.start()
    new = await asyncio.wait_for(campaign, 10)
    assert new.epoch > leading.epoch
    async with other.transaction(epoch=new.epoch) as tx:
        assert await tx.select(Slot) == [Slot("a", 0, "before")]
    assert len(await store.outgoing(10)) == 1
    await store.close()
    await other.close()


class Wire:
    """A socket between store and server that can lose the answer to a COMMIT, or the COMMIT."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = Path(tempfile.mkdtemp(prefix="swt-"))
        self.lose_answer = self.lose_commit = False
        self.server: asyncio.Server | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        path = self.folder / ".s.PGSQL.5432"
        self.server = await asyncio.start_unix_server(self.carry, str(path))

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_unix_connection(str(self.target))
        back = asyncio.ensure_future(self.copy(from_server, writer))
        self.tasks.add(back)
        while data := await reader.read(65536):
            if b"COMMIT" in data and (self.lose_answer or self.lose_commit):
                back.cancel()
                if self.lose_answer:
                    to_server.write(data)
                    await asyncio.wait([back])
                    await from_server.read(1)
                self.lose_answer = self.lose_commit = False
                break
            to_server.write(data)
        to_server.close()
        writer.close()

    async def copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def stop(self) -> None:
        assert self.server is not None
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        shutil.rmtree(self.folder)


@pytest_asyncio.fixture
async def wire(role: Role) -> AsyncIterator[Wire]:
    socket = Path(role.url.partition("host=")[2]) / ".s.PGSQL.5432"
    if not socket.is_socket():
        pytest.skip("needs a server on a unix socket")
    made = Wire(socket)
    await made.start()
    yield made
    await made.stop()


async def test_a_commit_whose_answer_was_lost_is_found_out(role: Role, wire: Wire) -> None:
    before = role.url.partition("host=")[0]
    store = store_at(f"{before}host={wire.folder}", role.password)
    epoch = (await store.lead()).epoch
    await store.make_resident(Slot)
    seen: list[Delta] = []
    store.observe(seen.append)

    async def put(index: int) -> int:
        async with store.transaction(epoch=epoch) as tx:
            tx.put(Slot("a", index, None))
            return tx.version

    assert await put(0) == 1
    # Lost on the way there: it did not happen, and the next transaction goes through.
    wire.lose_commit = True
    with pytest.raises(StoreUnavailableError):
        await put(1)
    assert await put(2) == 2
    assert sorted(store.resident(Slot)) == [("a", 0), ("a", 2)]
    # Lost on the way back: it did happen; the next transaction is refused once, then all is known.
    wire.lose_answer = True
    with pytest.raises(StoreUnavailableError):
        await put(3)
    assert ("a", 3) not in store.resident(Slot)
    with pytest.raises(StoreUnavailableError, match="did commit"):
        await put(4)
    assert sorted(store.resident(Slot)) == [("a", 0), ("a", 2), ("a", 3)]
    assert await put(5) == 4
    async with store.transaction() as tx:
        stored = await tx.select(Slot)
    assert {(slot.node, slot.index) for slot in stored} == set(store.resident(Slot))
    assert [delta.put[0].index for delta in seen] == [0, 2, 3, 5]
    await store.close()


async def test_each_leaders_transaction_has_the_next_version_whatever_came_between(
    store: SqlStore, role: Role
) -> None:
    leadership = await store.lead()
    seen: list[int] = []
    for number in range(3):
        async with store.transaction(epoch=leadership.epoch) as tx:
            seen.append(tx.version)
            tx.put(a_job(f"j{number}"))
    with pytest.raises(ConflictError):  # noqa: PT012 - it is raised on leaving
        async with store.transaction(epoch=leadership.epoch) as tx:
            seen.append(tx.version)
            tx.put(a_job("j8", client_key="k"), a_job("j9", client_key="k"))
    # A write of another process to the row makes the copy in this process wrong.
    connection = await connect(Address(role.url, role.password))
    await connection.execute("UPDATE thing.leader SET version = version + 10")
    async with store.transaction(epoch=leadership.epoch) as tx:
        seen.append(tx.version)
        tx.put(a_job("j4"))
    await connection.execute("UPDATE thing.leader SET epoch = epoch + 1")
    await connection.close()
    with pytest.raises(NotLeaderError):
        async with store.transaction(epoch=leadership.epoch) as tx:
            tx.put(a_job("j5"))
    assert seen == [1, 2, 3, 4, 14]


async def test_what_a_deleted_row_had_is_free_for_another_in_the_same_transaction(
    store: SqlStore,
) -> None:
    leadership = await store.lead()
    async with store.transaction(epoch=leadership.epoch) as tx:
        tx.put(a_job("old", client_key="k"))
    async with store.transaction(epoch=leadership.epoch) as tx:
        tx.put(a_job("new", client_key="k"), Slot("n1", 0, "new"))
        tx.delete(Job, "old")
        tx.emit(an_event())
    async with store.transaction() as tx:
        assert [job.job_id for job in await tx.select(Job)] == ["new"]
        assert await tx.get(Slot, "n1", 0) == Slot("n1", 0, "new")
    assert len(await store.outgoing(10)) == 1


async def test_only_marking_an_event_as_published_does_not_wait_for_the_disk(role: Role) -> None:
    store = store_at(role.url, role.password, connections_max=1)
    async with store._pool.use() as connection:
        await connection.execute("SET synchronous_commit = on")
    async with store.transaction() as tx:
        tx.emit(an_event())
    rows = await store.outgoing(10)
    await store.published([row_id for row_id, _ in rows])
    assert await store.outgoing(10) == []
    async with store._pool.use() as connection:
        assert await connection.fetchval("SHOW synchronous_commit") == "on"
    await store.close()


async def test_a_raised_epoch_ends_the_term_and_the_next_leader_goes_past_it(
    store: SqlStore, role: Role
) -> None:
    leading = await store.lead()
    address = Address(role.url, role.password)
    assert await raise_epoch(address, TABLES, 57) == 57
    with pytest.raises(NotLeaderError):
        async with store.transaction(epoch=leading.epoch):
            pass
    await leading.release()
    again = await store.lead()
    assert again.epoch == 58
    async with store.transaction(epoch=again.epoch) as tx:
        # A consumer that has read events from before the backup drops no new ones as old.
        assert tx.version > 10**12
    # Again, or with a number that is long past: nothing goes back.
    assert await raise_epoch(address, TABLES, 57) == 58
    assert await raise_epoch(address, TABLES, 3) == 58


async def test_the_epoch_can_be_raised_before_anybody_led(store: SqlStore, role: Role) -> None:
    await raise_epoch(Address(role.url, role.password), TABLES, 57)
    assert (await store.lead()).epoch == 58


async def test_pruning_the_inbox_reads_only_what_it_deletes(role: Role) -> None:
    """This holds when old and new rows share blocks, as they do once space is reused."""
    connection = await connect(Address(role.url, role.password))
    await connection.execute(
        "INSERT INTO thing.inbox SELECT 'e' || n, timestamptz '2026-01-01'"
        " + (n * 7919 % 50000) * interval '1 second' FROM generate_series(1, 50000) n"
    )
    await connection.execute("ANALYZE thing.inbox")
    old = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    before = await connection.fetchval(_ROWS_READ)
    store = store_at(role.url, role.password)
    assert await store.prune_inbox(old) == 60
    # The server counts what a session has read when the session ends.
    await store.close()
    read = before
    while read == before:
        read = await connection.fetchval(_ROWS_READ)
    await connection.close()
    assert read - before <= 1000


_ROWS_READ = (
    "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_all_tables"
    " WHERE schemaname = 'thing' AND relname = 'inbox'"
)


async def test_a_table_is_loaded_after_a_column_has_got_another_type(
    store: SqlStore, role: Role
) -> None:
    """FETCH has the same text for every form of the table; the driver keeps it prepared."""
    await store.lead()
    async with store.transaction() as tx:
        tx.put(a_job())
    await store.make_resident(Job)
    connection = await connect(Address(role.url, role.password))
    await connection.execute("ALTER TABLE thing.job ALTER COLUMN share TYPE real")
    await connection.close()
    await store.make_resident(Job)
    assert list(store.resident(Job)) == [a_job().job_id]

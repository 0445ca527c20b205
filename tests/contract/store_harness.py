"""One database and handles on it as of several processes, in memory and on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from libs.store.connections import Address, connect
from libs.store.memory import MemoryDatabase, MemoryStore
from libs.store.port import (
    Store,
)
from libs.store.sql import SqlStore
from tests.kit.clock import FakeClock
from tests.libs.store.example import (
    TABLES,
    Job,
    Slot,
    a_job,
    create_statements,
    next_id,
)

if TYPE_CHECKING:
    from tests.kit.postgres import PostgresServer, Role


@dataclass
class StoreHarness:
    """One database, and handles as of several processes."""

    clock: FakeClock
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


async def memory_harness() -> AsyncIterator[StoreHarness]:
    clock, database = FakeClock(), MemoryDatabase()

    def new_store() -> Store:
        return MemoryStore(database, TABLES, clock=clock, source="thing", new_id=next_id)

    async def cut() -> None:
        database.cut_leader("thing")

    async def break_row(kind: type[Any], column: str, *key: object) -> None:
        database.break_row(TABLES, kind, *key, column=column)

    yield StoreHarness(clock, new_store, cut, break_row)


async def sql_harness(role: Role) -> AsyncIterator[StoreHarness]:
    clock = FakeClock()
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

    harness = StoreHarness(clock, new_store, cut, break_row)
    yield harness
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
def one_source(request: pytest.FixtureRequest) -> AsyncIterator[StoreHarness]:
    if request.param == "memory":
        return memory_harness()
    return sql_harness(request.getfixturevalue("role"))


@pytest_asyncio.fixture(name="harness")
async def one_harness(source: AsyncIterator[StoreHarness]) -> AsyncIterator[StoreHarness]:
    async for harness in source:
        yield harness
        for store in harness.stores:
            await store.close()


@pytest.fixture(name="store")
def one_store(harness: StoreHarness) -> Store:
    return harness.store()


async def put(store: Store, *rows: object, epoch: int | None = None) -> None:
    async with store.transaction(epoch=epoch) as tx:
        tx.put(*rows)


async def all_of(store: Store, kind: type[Any]) -> list[Any]:
    async with store.transaction() as tx:
        return await tx.select(kind)


# Rows that cannot be decoded


async def some_jobs(
    harness: StoreHarness, store: Store, *broken: str, epoch: int | None = None
) -> None:
    """Six jobs, j0 to j5; those that are named are broken by hand."""
    jobs = (a_job(f"j{n}", client_key=f"{n}", share=float(n)) for n in range(6))
    await put(store, *jobs, epoch=epoch)
    for number, job_id in enumerate(broken):
        await harness.break_row(Job, ("spec", "state")[number % 2], job_id)


# Select

SLOTS = [
    Slot("a", 0, "x"),
    Slot("a", 1, None),
    Slot("b", 0, "y"),
    Slot("b", 1, "x%"),
    Slot("B", 5, ""),
]

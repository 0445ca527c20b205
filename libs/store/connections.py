"""Connections to PostgreSQL with every wait bounded, a small pool of them, and what errors mean.

Called by ``sql``, ``leader`` and ``migrate``. A pool of our own because asyncpg's wraps every call
and releases in a task of its own: a third more for a statement, even without its reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import asyncpg

from libs.store.terms import (
    ConflictError,
    DatabaseFaultError,
    StoreUnavailableError,
    UnfitValueError,
)


class Connection(Protocol):
    """The part of asyncpg's connection that we use (it has no types of its own)."""

    async def execute(self, query: str, *args: object) -> str:
        """Run statements; the last one's status."""
        ...

    async def fetch(self, query: str, *args: object) -> Sequence[Any]:
        """Run a prepared statement; its rows."""
        ...

    async def fetchval(self, query: str, *args: object) -> Any:  # noqa: ANN401 - a value
        """Run a prepared statement; its first row's first value."""
        ...

    async def reload_schema_state(self) -> None:
        """Forget prepared statements: their results may have other types now."""
        ...

    async def close(self) -> None:
        """Say good-bye."""
        ...

    def terminate(self) -> None:
        """Drop it without waiting."""
        ...

    def is_closed(self) -> bool:
        """True once it is of no more use."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[object]:
        """Begin; commit or roll back at the end of the context."""
        ...

    def is_in_transaction(self) -> bool:
        """True after BEGIN."""
        ...

    def add_termination_listener(self, callback: Callable[[Any], None]) -> None:
        """Call back when it is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Address:
    """The database's address, user and timeouts. The password is never printed."""

    url: str
    password: str | None = None
    connections_max: int = 5
    connect_timeout_s: float = 5.0
    statement_timeout_s: float = 10.0
    application: str = "shiftwork"

    def __repr__(self) -> str:
        return f"Address(application={self.application!r})"

    @property
    def dsn(self) -> str:
        """The URL as asyncpg takes it; SQLAlchemy's spelling is welcome too."""
        return self.url.replace("postgresql+asyncpg://", "postgresql://", 1)


async def connect(address: Address) -> Connection:
    """One connection; asyncpg's errors."""
    limit_ms = str(int(address.statement_timeout_s * 1000))
    untyped: Any = asyncpg
    made = await untyped.connect(
        address.dsn,
        password=address.password,
        timeout=address.connect_timeout_s,
        # The client's own limit is for a server that is gone; the server's comes first.
        command_timeout=address.statement_timeout_s + 1.0,
        statement_cache_size=256,
        max_cached_statement_lifetime=0,
        server_settings={
            "application_name": address.application,
            "statement_timeout": limit_ms,
            "lock_timeout": limit_ms,
            # A client that went silent inside a transaction must not hold the leader's row.
            "idle_in_transaction_session_timeout": limit_ms,
            "tcp_keepalives_idle": "5",
            "tcp_keepalives_interval": "2",
            "tcp_keepalives_count": "3",
            # Keepalives are not sent while an answer waits for its receipt: without this a leader
            # whose machine vanished with an answer on the way would hold its lock for a quarter of
            # an hour.
            "tcp_user_timeout": "10000",
            "timezone": "UTC",
            # Every statement names its schema; nothing is found by accident.
            "search_path": "pg_catalog",
            "jit": "off",
        },
    )
    return cast("Connection", made)


# All that an operation on a connection may raise when the connection is no good any more.
BROKEN = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)

# Server errors by the first two letters of SQLSTATE that say "not now": connection, resources,
# operator, system. 25 is a standby's refusal to write.
_NOT_NOW = frozenset({"08", "25", "28", "3D", "53", "55", "57", "58", "XX"})
# Another transaction was faster: serialisation failure, deadlock.
_OVERTAKEN = frozenset({"40"})
# A value that no column of this type holds.
_UNFIT = frozenset({"22"})


def meaning(error: BaseException, *, closed: bool) -> Exception | None:
    """The port's error for one of the driver; None if it is a mistake of ours."""
    fields: Any = error  # asyncpg sets the server's fields as attributes
    if isinstance(error, asyncpg.IntegrityConstraintViolationError):
        return ConflictError(str(fields.constraint_name or fields.column_name or error))
    if isinstance(error, asyncpg.PostgresError):
        return _by_state(str(fields.sqlstate or ""), f"{type(error).__name__}: {error}")
    if isinstance(error, OSError | TimeoutError | EOFError):
        return StoreUnavailableError(f"{type(error).__name__}: {error}".rstrip(": "))
    if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
        # Refused by the driver itself, before anything was sent.
        return UnfitValueError(str(error))
    # The driver says "internal" when the server's farewell reaches an idle connection just before
    # the end of its stream.
    if isinstance(error, asyncpg.InternalClientError) or (
        closed and isinstance(error, asyncpg.InterfaceError)
    ):
        return StoreUnavailableError(str(error))
    return None


@contextmanager
def translated(connection: Connection | None = None) -> Generator[None]:
    """The driver's errors become the port's."""
    try:
        yield
    except Exception as error:
        known = meaning(error, closed=connection is None or connection.is_closed())
        if known is None:
            raise
        raise known from error


def _by_state(state: str, text: str) -> Exception:
    """The port's error for one of the server, by the first two letters of its SQLSTATE."""
    group = state[:2]
    if group in _UNFIT:
        return UnfitValueError(text)
    if group in _OVERTAKEN:
        return ConflictError(f"overtaken by another transaction, try again: {text}")
    if group in _NOT_NOW:
        return StoreUnavailableError(text)
    return DatabaseFaultError(f"{text} (SQLSTATE {state})")


class Pool:
    """At most ``connections_max`` connections, opened when needed and kept."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(address.connections_max)
        self._closed = False

    async def acquire(self) -> Connection:
        """A connection that seems alive. StoreUnavailableError if there is none in time."""
        try:
            async with asyncio.timeout(self._address.statement_timeout_s):
                await self._free.acquire()
        except TimeoutError:
            raise StoreUnavailableError("every connection is busy") from None
        try:
            return await self._open()
        except BaseException:
            self._free.release()
            raise

    async def _open(self) -> Connection:
        if self._closed:
            raise StoreUnavailableError("the store is closed")
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        with translated():
            return await connect(self._address)

    def release(self, connection: Connection, *, sound: bool) -> None:
        """Give it back; dropped unless sound and idle."""
        if sound and not self._closed and not connection.is_in_transaction():
            self._idle.append(connection)
        else:
            connection.terminate()
        self._free.release()

    @asynccontextmanager
    async def use(self) -> AsyncGenerator[Connection]:
        """One connection for single statements; the driver's errors become the port's."""
        connection = await self.acquire()
        sound = False
        try:
            with translated(connection):
                yield connection
            sound = True
        finally:
            self.release(connection, sound=sound)

    async def close(self) -> None:
        """Close what is idle; what is in use goes when it is released."""
        self._closed = True
        while self._idle:
            connection = self._idle.pop()
            try:
                async with asyncio.timeout(1.0):
                    await connection.close()
            except BROKEN:
                connection.terminate()

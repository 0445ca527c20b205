"""Connections to PostgreSQL with timeouts, a small pool, and the translation of errors.

Called by ``sql``, ``leader`` and ``migrate``. It does not use asyncpg's pool, because that wraps
every call and releases connections in a separate task: a statement takes a third longer, even
without the reset.
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
    """The part of asyncpg's connection that the store uses; asyncpg itself has no types."""

    async def execute(self, query: str, *args: object) -> str:
        """Run statements; return the status of the last one."""
        ...

    async def fetch(self, query: str, *args: object) -> Sequence[Any]:
        """Run a prepared statement; return its rows."""
        ...

    async def fetchval(self, query: str, *args: object) -> Any:  # noqa: ANN401 - a value
        """Run a prepared statement; return the first value of its first row."""
        ...

    async def reload_schema_state(self) -> None:
        """Drop prepared statements, because the types of their results may have changed."""
        ...

    async def close(self) -> None:
        """Close the connection in an orderly way."""
        ...

    def terminate(self) -> None:
        """Close the connection without waiting for the server."""
        ...

    def is_closed(self) -> bool:
        """True once the connection is closed."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[object]:
        """Begin a transaction that commits or rolls back at the end of the context."""
        ...

    def is_in_transaction(self) -> bool:
        """True between BEGIN and the end of the transaction."""
        ...

    def add_termination_listener(self, callback: Callable[[Any], None]) -> None:
        """Call ``callback`` when the connection has ended."""
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
        """The URL as asyncpg accepts it; SQLAlchemy's form is converted."""
        return self.url.replace("postgresql+asyncpg://", "postgresql://", 1)


async def connect(address: Address) -> Connection:
    """Open one connection. Raises asyncpg's errors."""
    limit_ms = str(int(address.statement_timeout_s * 1000))
    untyped: Any = asyncpg
    made = await untyped.connect(
        address.dsn,
        password=address.password,
        timeout=address.connect_timeout_s,
        # The client's timeout covers a server that is gone; a live server's timeout comes first.
        command_timeout=address.statement_timeout_s + 1.0,
        statement_cache_size=256,
        max_cached_statement_lifetime=0,
        server_settings={
            "application_name": address.application,
            "statement_timeout": limit_ms,
            "lock_timeout": limit_ms,
            # A client that stops inside a transaction must not keep the leader's row locked.
            "idle_in_transaction_session_timeout": limit_ms,
            "tcp_keepalives_idle": "5",
            "tcp_keepalives_interval": "2",
            "tcp_keepalives_count": "3",
            # TCP sends no keepalives while sent data is unacknowledged. Without this timeout, a
            # leader whose machine vanished in that state would hold its lock for 15 minutes.
            "tcp_user_timeout": "10000",
            "timezone": "UTC",
            # Every statement names its schema, so no other search path is needed.
            "search_path": "pg_catalog",
            "jit": "off",
        },
    )
    return cast("Connection", made)


# The errors that an operation may raise when the connection no longer works.
BROKEN = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)

# SQLSTATE classes (the first two characters) of temporary errors: connection, resources, operator,
# system. Class 25 is the error of a standby that rejects a write.
_TEMPORARY = frozenset({"08", "25", "28", "3D", "53", "55", "57", "58", "XX"})
# SQLSTATE classes of conflicts with another transaction: serialisation failure, deadlock.
_SERIALISATION = frozenset({"40"})
# SQLSTATE class of values that a column of this type cannot hold.
_UNFIT = frozenset({"22"})


def meaning(error: BaseException, *, closed: bool) -> Exception | None:
    """Return the port's error for a driver's error; None if the error is a bug of the caller."""
    fields: Any = error  # asyncpg sets the server's fields as attributes
    if isinstance(error, asyncpg.IntegrityConstraintViolationError):
        return ConflictError(str(fields.constraint_name or fields.column_name or error))
    if isinstance(error, asyncpg.PostgresError):
        return _by_state(str(fields.sqlstate or ""), f"{type(error).__name__}: {error}")
    if isinstance(error, OSError | TimeoutError | EOFError):
        return StoreUnavailableError(f"{type(error).__name__}: {error}".rstrip(": "))
    if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
        # The driver itself rejected the value before it sent anything.
        return UnfitValueError(str(error))
    # The driver raises InternalClientError when the server's goodbye message reaches an idle
    # connection just before the end of the stream.
    if isinstance(error, asyncpg.InternalClientError) or (
        closed and isinstance(error, asyncpg.InterfaceError)
    ):
        return StoreUnavailableError(str(error))
    return None


@contextmanager
def translated(connection: Connection | None = None) -> Generator[None]:
    """Translate the driver's errors into the port's."""
    try:
        yield
    except Exception as error:
        known = meaning(error, closed=connection is None or connection.is_closed())
        if known is None:
            raise
        raise known from error


def _by_state(state: str, text: str) -> Exception:
    """Return the port's error for a server's error, by the class of its SQLSTATE."""
    group = state[:2]
    if group in _UNFIT:
        return UnfitValueError(text)
    if group in _SERIALISATION:
        return ConflictError(f"overtaken by another transaction, try again: {text}")
    if group in _TEMPORARY:
        return StoreUnavailableError(text)
    return DatabaseFaultError(f"{text} (SQLSTATE {state})")


class Pool:
    """A pool of at most ``connections_max`` connections, opened when needed and kept."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(address.connections_max)
        self._closed = False

    async def acquire(self) -> Connection:
        """Return an open connection. Raises StoreUnavailableError if none is free in time."""
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
        """Return a connection to the pool; drop it unless it works and has no transaction."""
        if sound and not self._closed and not connection.is_in_transaction():
            self._idle.append(connection)
        else:
            connection.terminate()
        self._free.release()

    @asynccontextmanager
    async def use(self) -> AsyncGenerator[Connection]:
        """Give a connection for single statements; translate the driver's errors."""
        connection = await self.acquire()
        sound = False
        try:
            with translated(connection):
                yield connection
            sound = True
        finally:
            self.release(connection, sound=sound)

    async def close(self) -> None:
        """Close idle connections now, and those in use when they are released."""
        self._closed = True
        while self._idle:
            connection = self._idle.pop()
            try:
                async with asyncio.timeout(1.0):
                    await connection.close()
            except BROKEN:
                connection.terminate()

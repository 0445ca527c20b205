"""Prepares a PostgreSQL server for the platform: one database, one role and schema per service.

``shiftwork up`` at every start, the test fixtures, and the provisioner (for a database server that
the site runs itself) call it with an administrator's rights. A service's role may connect to the
database and owns its schema; it has no other rights.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from typing import Any, Literal, cast

import asyncpg

from libs.store.connections import BROKEN, Connection, translated

_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SCRAM_ITERATIONS = 4096
_VERIFIER = re.compile(rf"SCRAM-SHA-256\${_SCRAM_ITERATIONS}:([A-Za-z0-9+/=]+)\$")
# Arbitrary numbers; all processes that prepare the same server must use the same ones.
_PREPARE_LOCK = 0x5157_0001
_ALONE_LOCK = 0x5157_0002
_CONNECT_TIMEOUT_S = 10.0
# SQLSTATEs of permanent errors: credentials, permissions, missing objects.
_DENIED_CLASSES = frozenset({"28", "42"})
_DENIED_STATES = frozenset({"3D000"})

# The change to a role.
Change = Literal["made", "password set", "unchanged"]


class AccessDeniedError(Exception):
    """The server denies the connection or the operation; trying again does not help."""


def scram_verifier(password: str, salt: bytes | None = None) -> str:
    """Return what PostgreSQL stores of a password. Sending this keeps the password out of the
    server's log."""
    salt = salt or secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _SCRAM_ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    parts = [base64.b64encode(part).decode() for part in (salt, stored_key, server_key)]
    return f"SCRAM-SHA-256${_SCRAM_ITERATIONS}:{parts[0]}${parts[1]}:{parts[2]}"


async def _connect(url: str, password: str | None, database: str | None = None) -> Connection:
    untyped: Any = asyncpg
    connection = await untyped.connect(
        url, password=password, database=database, timeout=_CONNECT_TIMEOUT_S
    )
    return cast("Connection", connection)


@contextlib.contextmanager
def translated_errors() -> Generator[None]:
    """Translate the driver's errors into AccessDeniedError, or into the store's errors.

    For programs that set up a server which they do not manage, and have to report what is wrong.
    """
    try:
        yield
    except Exception as error:
        state = str(getattr(error, "sqlstate", "") or "")
        if state in _DENIED_STATES or state[:2] in _DENIED_CLASSES:
            raise AccessDeniedError(str(error)) from error
        with translated():
            raise


async def enter(url: str, password: str | None) -> None:
    """Check that this role can connect; ``translated_errors`` describes the errors."""
    with translated_errors():
        await (await _connect(url, password)).close()


@contextlib.asynccontextmanager
async def alone(
    url: str, password: str | None, wait: Callable[[], Awaitable[None]]
) -> AsyncGenerator[None]:
    """Hold the lock of a server's only provisioner; call ``wait`` while another holds it."""
    with translated_errors():
        connection = await _connect(url, password)
    try:
        with translated_errors():
            taken = "SELECT pg_try_advisory_lock($1)"
            while not await connection.fetchval(taken, _ALONE_LOCK):
                await wait()
        yield
    finally:
        with contextlib.suppress(*BROKEN):
            await connection.close()


def _name(text: str) -> str:
    if not _IDENTIFIER.fullmatch(text):
        raise ValueError(f"{text!r} is not a lower-case SQL name (letters, digits, _)")
    return f'"{text}"'


async def prepare_server(
    admin_url: str,
    admin_password: str | None,
    *,
    database: str,
    passwords: Mapping[str, str],
    template: str | None = None,
) -> Mapping[str, Change]:
    """Make the database, and for each entry of ``passwords`` a role with a schema of the same name.

    ``admin_url`` names any database that the administrator can connect to. The call can be
    repeated, and two processes can run it at once. A password that differs, or cannot be read, is
    set again. With ``template``, the new database is a copy of that one. Returns the change to each
    role.
    """
    changes: dict[str, Change] = {}
    outside = await _connect(admin_url, admin_password)
    try:
        await outside.execute("SELECT pg_advisory_lock($1)", _PREPARE_LOCK)
        for role, password in passwords.items():
            changes[role] = await _role(outside, role, password)
        if not await outside.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", database):
            source = f" TEMPLATE {_name(template)}" if template else ""
            await outside.execute(f"CREATE DATABASE {_name(database)}{source}")
        inside = await _connect(admin_url, admin_password, database)
        try:
            async with inside.transaction():
                await _close(inside, database)
                for role in passwords:
                    await _schema(inside, database, role)
        finally:
            await inside.close()
    finally:
        await outside.close()
    return changes


async def _role(connection: Connection, role: str, password: str) -> Change:
    name = _name(role)
    exists = await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", role)
    same = bool(exists) and await _knows(connection, role, password)
    if not exists:
        await connection.execute(
            f"CREATE ROLE {name} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE "
            f"PASSWORD '{scram_verifier(password)}'"
        )
    elif not same:
        # Only a superuser may name the other attributes of a role, even without changing them.
        await connection.execute(f"ALTER ROLE {name} LOGIN PASSWORD '{scram_verifier(password)}'")
    if not await connection.fetchval(
        "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
    ) and not await connection.fetchval("SELECT pg_has_role(current_user, $1, 'SET')", role):
        # An administrator without superuser rights must be a member to transfer the schema.
        await connection.execute(f"GRANT {name} TO CURRENT_USER")
    return "unchanged" if same else "password set" if exists else "made"


async def _knows(connection: Connection, role: str, password: str) -> bool:
    """Return True if this is already the role's password; False if not, or if it cannot be read."""
    if not await connection.fetchval("SELECT has_table_privilege('pg_authid', 'SELECT')"):
        return False
    kept = str(
        await connection.fetchval("SELECT rolpassword FROM pg_authid WHERE rolname = $1", role)
    )
    found = _VERIFIER.match(kept)
    if found is None:
        return False
    return hmac.compare_digest(kept, scram_verifier(password, base64.b64decode(found[1])))


async def _close(connection: Connection, database: str) -> None:
    """Revoke the rights that PostgreSQL grants to every role by default."""
    await connection.execute(f"REVOKE ALL ON DATABASE {_name(database)} FROM PUBLIC")
    await connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")


async def _schema(connection: Connection, database: str, role: str) -> None:
    name = _name(role)
    await connection.execute(f"GRANT CONNECT ON DATABASE {_name(database)} TO {name}")
    await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name} AUTHORIZATION {name}")
    await connection.execute(
        f"ALTER ROLE {name} IN DATABASE {_name(database)} SET search_path = {name}"
    )


async def close_server(admin_url: str, admin_password: str | None) -> None:
    """Keep services out of the databases that every server has. Only for a server that the platform
    does not share."""
    connection = await _connect(admin_url, admin_password)
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", _PREPARE_LOCK)
        for database in ("postgres", "template1"):
            await connection.execute(f"REVOKE ALL ON DATABASE {database} FROM PUBLIC")
    finally:
        await connection.close()


async def drop_database(admin_url: str, admin_password: str | None, database: str) -> None:
    """Drop a database, even if clients are connected to it."""
    connection = await _connect(admin_url, admin_password)
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {_name(database)} WITH (FORCE)")
    finally:
        await connection.close()

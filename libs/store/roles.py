"""Prepares a PostgreSQL server for the platform: one database, one role and schema per service.

Called with an administrator's rights by ``shiftwork up`` at every start, by the test fixtures, and
once by whoever installs the platform on a database server of their own. A service's role may enter
the database and own its schema, nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol, cast

import asyncpg

_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SCRAM_ITERATIONS = 4096
# Any number will do, as long as two that prepare the same server use the same one.
_PREPARE_LOCK = 0x5157_0001


def scram_verifier(password: str, salt: bytes | None = None) -> str:
    """What PostgreSQL stores of a password: sent instead of it, no server log can hold it."""
    salt = salt or secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _SCRAM_ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    parts = [base64.b64encode(part).decode() for part in (salt, stored_key, server_key)]
    return f"SCRAM-SHA-256${_SCRAM_ITERATIONS}:{parts[0]}${parts[1]}:{parts[2]}"


class Connection(Protocol):
    """The part of asyncpg's connection that is used here."""

    async def execute(self, query: str, *values: object) -> str:
        """Run a statement."""
        ...

    async def fetchval(self, query: str, *values: object) -> object:
        """The first column of the first row, or None."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[object]:
        """Begin; commit or roll back at the end of the context."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...


async def _connect(url: str, password: str | None, database: str | None = None) -> Connection:
    connection = await asyncpg.connect(url, password=password, database=database)  # pyright: ignore[reportUnknownVariableType] - asyncpg leaves its type parameter open
    return cast("Connection", connection)


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
) -> None:
    """Make the database, and per entry of ``passwords`` a role with a schema of the same name.

    ``admin_url`` names any database the administrator can enter. Safe to repeat and to run twice at
    once; sets the passwords anew. ``template``: copy that database instead of an empty one.
    """
    outside = await _connect(admin_url, admin_password)
    try:
        await outside.execute("SELECT pg_advisory_lock($1)", _PREPARE_LOCK)
        for role, password in passwords.items():
            await _role(outside, role, password)
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


async def _role(connection: Connection, role: str, password: str) -> None:
    name = _name(role)
    exists = await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", role)
    verb = "ALTER" if exists else "CREATE"
    await connection.execute(
        f"{verb} ROLE {name} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE "
        f"PASSWORD '{scram_verifier(password)}'"
    )
    if not await connection.fetchval(
        "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
    ) and not await connection.fetchval("SELECT pg_has_role(current_user, $1, 'SET')", role):
        # An administrator that is no superuser must be a member to give the schema away.
        await connection.execute(f"GRANT {name} TO CURRENT_USER")


async def _close(connection: Connection, database: str) -> None:
    """Take from everybody what PostgreSQL gives to everybody."""
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
    """Keep services out of the databases that every server has; for a server that is ours alone."""
    connection = await _connect(admin_url, admin_password)
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", _PREPARE_LOCK)
        for database in ("postgres", "template1"):
            await connection.execute(f"REVOKE ALL ON DATABASE {database} FROM PUBLIC")
    finally:
        await connection.close()


async def drop_database(admin_url: str, admin_password: str | None, database: str) -> None:
    """Drop a database, whoever is connected to it."""
    connection = await _connect(admin_url, admin_password)
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {_name(database)} WITH (FORCE)")
    finally:
        await connection.close()

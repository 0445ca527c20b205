"""A PostgreSQL server for tests: one per session, with an empty database of its own per test."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

from libs.store import roles
from services.allinone.embedded.credentials import SERVICES, ensure_credentials
from services.allinone.embedded.postgres import Postgres, PostgresOptions
from tests.kit.infra import (
    POSTGRES_URL,
    Infra,
    external_url,
    image,
    need_containers,
    skip_without_control,
)

# Where no image of our own is.
PUBLIC_IMAGE = "postgres:18"
# Roles belong to the whole server: with one password each, tests beside another agree on it.
ROLE_PASSWORD = "only-for-tests"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Role:
    """How one service's role enters one database."""

    name: str
    url: str
    password: str
    password_file: Path


@dataclass
class Database:
    """One test's own database."""

    name: str
    server: PostgresServer
    known: dict[str, Role] = field(default_factory=dict)

    @property
    def admin_url(self) -> str:
        return self.server.url_of(self.server.admin_user, self.name)

    @property
    def admin_password(self) -> str:
        return self.server.admin_password

    async def role(self, service: str = "thing") -> Role:
        """A role with a schema of the same name in this database; made when first asked for."""
        if service not in self.known:
            await roles.prepare_server(
                self.server.admin_url,
                self.admin_password,
                database=self.name,
                passwords={service: ROLE_PASSWORD},
            )
            url = self.server.url_of(service, self.name)
            self.known[service] = Role(service, url, ROLE_PASSWORD, self.server.password_file)
        return self.known[service]

    async def drop(self) -> None:
        await roles.drop_database(self.server.admin_url, self.admin_password, self.name)


class PostgresServer:
    """One server; ``durable``: writes are forced to the disk as in production."""

    def __init__(self, data: Path, infra: Infra, *, durable: bool = False) -> None:
        self.data = data
        self.infra = infra
        self._secrets = ensure_credentials(data, SERVICES)
        self.password_file = data / "role-password"
        self.password_file.write_text(ROLE_PASSWORD)
        self.options = PostgresOptions(
            durable=durable, connections_max=100, stop_seconds_max=5, start_seconds_max=50
        )
        self.embedded = Postgres(data, self._secrets, self.options)
        self._container: object = None
        self._given = ""

    @property
    def admin_user(self) -> str:
        return "postgres" if self.infra is Infra.EMBEDDED else urlsplit(self._given).username or ""

    @property
    def admin_password(self) -> str:
        if self.infra is Infra.EMBEDDED:
            return self.embedded.admin_password
        return urlsplit(self._given).password or ""

    @property
    def admin_url(self) -> str:
        if self.infra is Infra.EMBEDDED:
            return self.embedded.admin_url
        return self.url_of(self.admin_user, urlsplit(self._given).path.lstrip("/") or "postgres")

    def url_of(self, role: str, database: str) -> str:
        """A URL without a password."""
        if self.infra is Infra.EMBEDDED:
            return self.embedded.url(role, database)
        given = urlsplit(self._given)
        host = f"{role}@{given.hostname}:{given.port or 5432}"
        return urlunsplit(("postgresql", host, f"/{database}", "", ""))

    async def start(self) -> None:
        if self.infra is Infra.EMBEDDED:
            await self.embedded.start()
        elif self.infra is Infra.CONTAINERS:
            self._given = self._start_container()
        else:
            self._given = external_url(POSTGRES_URL)

    async def stop(self) -> None:
        if self._container is not None:
            self._container.stop()
            self._container = None
        await self.embedded.stop()
        self.embedded.remove_temporary()

    def kill(self) -> None:
        """SIGKILL to the first process; its helpers notice by themselves."""
        skip_without_control(self.infra)
        assert self.embedded.child is not None
        self.embedded.child.kill_now()

    async def database(self) -> Database:
        """A new, empty database."""
        database = Database(f"test_{os.getpid()}_{next(_numbers)}", self)
        await roles.prepare_server(
            self.admin_url, self.admin_password, database=database.name, passwords={}
        )
        return database

    def _start_container(self) -> str:
        need_containers()
        # Only where containers are, and once the container engine is known.
        from testcontainers.community.postgres import PostgresContainer

        chosen = image("postgres", PUBLIC_IMAGE)
        container = PostgresContainer(chosen, username="postgres", dbname="postgres", driver=None)
        self._container = container.start()
        return container.get_connection_url()


def copy_of_pristine(pristine: Path, data: Path) -> None:
    """A data folder whose cluster needs no ``initdb`` (rights and owners kept)."""
    shutil.rmtree(data, ignore_errors=True)
    subprocess.run(["cp", "-a", str(pristine), str(data)], check=True)


class StartPostgres(Protocol):
    """What the fixture ``postgres_start`` is."""

    async def __call__(self, *, durable: bool = False) -> PostgresServer: ...

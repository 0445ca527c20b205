"""The embedded servers of one data folder, brought up together and kept up.

PostgreSQL and NATS start side by side; the schemas and streams are made or brought up to date
before any service starts. A server that dies is started again with growing pauses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from libs.bus.connection import Credentials as BusCredentials
from libs.bus.provision import provision
from libs.service import observe
from libs.service.loop import Backoff, pause
from libs.service.wiring import Wiring, topology
from libs.store.connections import Address
from libs.store.migrate import upgrade
from services.allinone.embedded.credentials import NATS_ADMIN, Credentials
from services.allinone.embedded.nats import Nats, NatsOptions
from services.allinone.embedded.postgres import Postgres, PostgresOptions
from services.allinone.embedded.processes import ServerError
from services.allinone.place import Options, Place

CHECK_SECONDS = 0.5
# So many checks in a row must fail before a living server is taken for hung.
HUNG_CHECKS = 4
_log = observe.log("allinone")


class Servers:
    """NATS and PostgreSQL of one data folder."""

    def __init__(self, place: Place, options: Options, *, durable: bool = True) -> None:
        credentials: Credentials = place.credentials
        self._credentials = credentials
        self.postgres = Postgres(
            place.data,
            credentials,
            PostgresOptions(service_user=options.service_user, durable=durable),
        )
        self._place = place
        self._nats: Nats | None = None
        self._wirings: Sequence[Wiring] = ()

    @property
    def nats(self) -> Nats:
        """The NATS server; known once ``start_nats`` was called."""
        assert self._nats is not None, "start_nats() first"
        return self._nats

    async def start_postgres(self) -> None:
        """Start it and make roles and schemas; ServerError says why not."""
        await self.postgres.start()
        await self.postgres.prepare()

    async def start_nats(self, wirings: Sequence[Wiring]) -> None:
        """Start it with one user for each service, and make streams and durables."""
        self._wirings = wirings
        users = {wiring.name: wiring.permissions for wiring in wirings}
        self._nats = Nats(self._place.data, self._credentials, users, NatsOptions())
        await self._nats.start()
        await self._provision()

    async def migrate(self) -> None:
        """Bring every service's schema up to date."""
        async with asyncio.TaskGroup() as group:
            for wiring in self._wirings:
                address = Address(
                    url=self.postgres.url(wiring.name),
                    password=self._credentials.postgres_password(wiring.name),
                )
                group.create_task(upgrade(address, wiring.tables, wiring.migrations))

    def database_urls(self) -> dict[str, str]:
        """Each service's URL of the database."""
        return {wiring.name: self.postgres.url(wiring.name) for wiring in self._wirings}

    async def keep(self) -> None:
        """Restart what dies or hangs, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_one(self.postgres, self.postgres.start))
            group.create_task(self._keep_one(self.nats, self._restart_nats))

    async def stop(self) -> None:
        """End both, NATS first; what is stored is complete on the disk."""
        if self._nats is not None:
            await self._nats.stop()
        await self.postgres.stop()

    async def _restart_nats(self) -> None:
        await self.nats.start()
        # A server that lost its data has no streams either.
        await self._provision()

    async def _provision(self) -> None:
        credentials = BusCredentials(NATS_ADMIN, self._credentials.nats_password(NATS_ADMIN))
        await provision([self.nats.url], credentials, topology(self._wirings))

    async def _keep_one(self, server: Postgres | Nats, start: object) -> None:
        assert callable(start)
        backoff, failed = Backoff(0.2, 30.0), 0
        while True:
            await pause(CHECK_SECONDS)
            problem = await server.healthy()
            if not problem:
                failed = 0
                backoff.reset()
                continue
            failed += 1
            alive = server.child is not None and server.child.alive
            if alive and failed < HUNG_CHECKS:
                continue
            _log.warning("server restarts", server=server.name, problem=problem)
            try:
                await server.stop()
                await start()
                _log.info("server is back", server=server.name)
            except (ServerError, OSError) as error:
                _log.error("server does not start", server=server.name, problem=str(error))  # noqa: TRY400 - the text says it all
                await backoff.wait()

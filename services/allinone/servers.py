"""The embedded servers of one data folder, brought up together and kept up.

PostgreSQL and NATS start side by side; the schemas and streams are made or brought up to date
before any service starts. ``supervision.py`` starts a server again when it dies or hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from libs.bus.connection import Credentials as BusCredentials
from libs.bus.port import BusDeniedError, BusUnavailableError
from libs.bus.provision import enter, provision
from libs.bus.topology import Permissions
from libs.service import observability
from libs.service.loop import pause
from libs.service.wiring import Wiring, topology
from libs.store.connections import Address
from libs.store.leader import raise_epoch
from libs.store.migrate import upgrade
from services.allinone.data_folder import DataFolder, Options
from services.allinone.embedded.credentials import NATS_ADMIN, Credentials
from services.allinone.embedded.nats import Nats, NatsOptions
from services.allinone.embedded.postgres import Postgres, PostgresOptions
from services.allinone.monitoring_users import MonitoringUsers
from services.allinone.supervision import PartStatuses, supervise_server
from services.launcher.runtimes.node.journal import commanding_epoch

# How soon a monitoring user that was made or removed is known to the server.
FOLLOW_SECONDS = 0.5
_log = observability.log("servers")


class Servers:
    """NATS and PostgreSQL of one data folder."""

    def __init__(self, data_folder: DataFolder, options: Options, *, durable: bool = True) -> None:
        credentials: Credentials = data_folder.credentials
        self._credentials = credentials
        self.postgres = Postgres(
            data_folder.data,
            credentials,
            PostgresOptions(service_user=options.service_user, durable=durable),
        )
        self._data_folder = data_folder
        self._service_user = options.service_user
        self._nats: Nats | None = None
        self._monitoring = MonitoringUsers(data_folder.data)
        self._monitoring_version = self._monitoring.version()
        self._wirings: Sequence[Wiring] = ()

    @property
    def nats(self) -> Nats:
        """The NATS server; known once ``start_nats`` was called."""
        assert self._nats is not None, "start_nats() first"
        return self._nats

    async def start_postgres(self) -> None:
        """Start PostgreSQL and make roles and schemas. Raises ServerError with the reason."""
        await self.postgres.start()
        await self.postgres.prepare()

    async def start_nats(self, wirings: Sequence[Wiring]) -> None:
        """Start it with one user for each service, and make streams and durables."""
        self._wirings = wirings
        self._nats = Nats(
            self._data_folder.data,
            self._credentials,
            self._users(),
            NatsOptions(service_user=self._service_user),
        )
        await self._nats.start()
        await self._provision()

    async def migrate(self) -> None:
        """Migrate every schema, one at a time, because Alembic's state is global."""
        for wiring in self._wirings:
            await upgrade(self._address(wiring), wiring.tables, wiring.migrations)

    async def outlive_epochs(self) -> None:
        """Make the launcher's next epoch greater than those that this folder's nodes obey.

        It is greater unless PostgreSQL was restored from a backup, and then every node would refuse
        the launcher. No other launcher commands these nodes, because this process holds the folder
        (``DataFolder.take``).
        """
        journals = sorted(self._data_folder.runs.glob("*/journal"))
        past = max([commanding_epoch(str(journal)) for journal in journals], default=0)
        launcher = next((each for each in self._wirings if each.name == "launcher"), None)
        if launcher is not None and past:
            await raise_epoch(self._address(launcher), launcher.tables, past)

    def _address(self, wiring: Wiring) -> Address:
        return Address(
            url=self.postgres.url(wiring.name),
            password=self._credentials.postgres_password(wiring.name),
        )

    def database_urls(self) -> dict[str, str]:
        """Each service's URL of the database."""
        return {wiring.name: self.postgres.url(wiring.name) for wiring in self._wirings}

    async def keep(self, statuses: PartStatuses) -> None:
        """Restart what dies or hangs, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(supervise_server(self.postgres, statuses))
            # A NATS that lost its data has no streams either.
            group.create_task(supervise_server(self.nats, statuses, repaired=self._provision))
            group.create_task(self._follow_monitoring_users())

    async def stop(self) -> None:
        """End both, NATS first; what is stored is complete on the disk."""
        if self._nats is not None:
            await self._nats.stop()
        await self.postgres.stop()

    def _users(self) -> dict[str, Permissions]:
        users = {wiring.name: wiring.permissions for wiring in self._wirings}
        return users | self._monitoring.permissions()

    async def _follow_monitoring_users(self) -> None:
        """Give NATS the monitoring users of the folder after each change (another process makes
        them), until cancelled."""
        known = self._monitoring_version
        while True:
            await pause(FOLLOW_SECONDS)
            if self._monitoring.version() == known:
                continue
            try:
                version = self._monitoring.version()
                self.nats.set_users(self._users())
                await self._provision()
                # The server may need a second reload before a new account reaches the streams.
                for name in self._monitoring.permissions():
                    await self._enters(name)
            except (OSError, BusUnavailableError, BusDeniedError) as problem:
                # The server is down, or has not read its configuration yet.
                _log.warning("monitoring users cannot be changed yet", problem=str(problem))
            else:
                known = version

    async def _enters(self, user: str) -> None:
        """Check that a monitoring user can read. BusUnavailableError or BusDeniedError if not."""
        credentials = BusCredentials(user, self._credentials.nats_password(user))
        await enter([self.nats.url], credentials, reads=True, connect_timeout_s=2.0)

    async def _provision(self) -> None:
        credentials = BusCredentials(NATS_ADMIN, self._credentials.nats_password(NATS_ADMIN))
        monitoring = list(self._monitoring.permissions())
        await provision(
            [self.nats.url], credentials, topology(self._wirings, monitoring=monitoring)
        )

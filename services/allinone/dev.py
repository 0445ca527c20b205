"""``make dev``: embedded servers, and every service as a process of its own.

The output of services comes to the terminal under their names. Kill any of them: it is started
again and the others go on. Ctrl-C lets running tasks save, then ends everything, like ``up``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from services.allinone.composition import WIRINGS
from services.allinone.data_folder import DataFolder, Holder, Options, url_at
from services.allinone.embedded.credentials import ensure_credentials
from services.allinone.machine import Machine
from services.allinone.servers import Servers
from services.allinone.service_processes import Report, ServiceProcesses, free_port
from services.allinone.supervision import PartStatuses

NAME_COLUMNS = max(len(wiring.name) for wiring in WIRINGS) + 2


def show(name: str, line: str) -> None:
    """One line of a service, for the person at the terminal."""
    sys.stdout.write(f"{name:{NAME_COLUMNS}}| {line}\n")
    sys.stdout.flush()


@dataclass
class Dev:
    """One machine's platform, each part a process. ``run`` until cancelled."""

    data_folder: DataFolder
    options: Options
    pid: int
    report: Report = show
    durable: bool = True
    # More settings for the services, as environment variables.
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    def __post_init__(self) -> None:
        self.servers = Servers(self.data_folder, self.options, durable=self.durable)
        self._processes: ServiceProcesses | None = None

    @property
    def processes(self) -> ServiceProcesses:
        """The services' processes; known once it is ready."""
        assert self._processes is not None, "run() first"
        return self._processes

    async def run(self) -> None:
        """Start everything and keep it up. Raises ServerError or OSError if it cannot start.

        The folder must be taken (``Place.take``); ends services and servers when cancelled.
        """
        ensure_credentials(self.data_folder.data)
        try:
            await self._start()
        finally:
            await self.servers.stop()

    async def _start(self) -> None:
        self.data_folder.report_step("PostgreSQL and NATS")
        await self.servers.start_postgres()
        await self.servers.start_nats(WIRINGS)
        self.data_folder.report_step("the database's schemas")
        await self.servers.migrate()
        options = replace(self.options, port=self.data_folder.port_for(self.options) or free_port())
        self.url = url_at(options.host, options.port)
        machine = Machine(
            data_folder=self.data_folder,
            options=options,
            nats_url=self.servers.nats.url,
            database_urls=self.servers.database_urls(),
            url=self.url,
        )
        statuses = PartStatuses(self.data_folder.status)
        self._processes = ServiceProcesses(machine, statuses, self.report, self.settings)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.servers.keep(statuses), name="servers")
            group.create_task(self._processes.keep(), name="services")
            self.data_folder.report(Holder(self.pid, self.url))
            # The first step of the tasks above adds the processes.
            await asyncio.sleep(0)
            await self._processes.until_ready()
            for name, index in self._processes.instances():
                port = self._processes.port(name, index)
                self.report("dev", f"{name}: http://127.0.0.1:{port}/metrics")
            self.data_folder.report(Holder(self.pid, self.url, ready=True))
            self.ready.set()

"""The whole platform in one process: servers as children, every service in one TaskGroup.

Called by ``up`` and by the demo. A service that dies is started again with growing pauses while the
others go on; a stop first lets running tasks save (``stopping.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from libs.service.http import Receive, Scope, Send, serve_http
from libs.service.loop import pause
from libs.service.runner import Runner
from libs.service.wiring import Wiring, connect
from services.allinone.data_folder import DataFolder, Holder, Options, url_at
from services.allinone.embedded.credentials import ensure_credentials
from services.allinone.machine import Machine
from services.allinone.servers import Servers
from services.allinone.supervision import PartStatuses, supervise

READY_POLL_SECONDS = 0.005


@dataclass
class Platform:
    """One machine's platform. ``run`` until cancelled; ``ready`` is set once it serves."""

    data_folder: DataFolder
    options: Options
    pid: int
    # False only for throw-away data: no write is forced to the disk.
    durable: bool = True
    # Instead of the platform's own services (a benchmark's machines that are not there).
    wirings: Callable[[], Sequence[Wiring]] | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    def __post_init__(self) -> None:
        self._runners: dict[str, Runner] = {}
        self._bound = asyncio.Event()

    async def run(self) -> None:
        """Start everything and keep it up. Raises ServerError or OSError if it cannot start.

        The folder must be taken (``Place.take``); ends servers and services when cancelled.
        """
        ensure_credentials(self.data_folder.data)
        servers = Servers(self.data_folder, self.options, durable=self.durable)
        try:
            await self._start(servers)
        finally:
            await servers.stop()

    async def _start(self, servers: Servers) -> None:
        self.data_folder.report_step("PostgreSQL and NATS")
        starting = asyncio.create_task(servers.start_postgres())
        try:
            # Importing the services takes as long as starting PostgreSQL: side by side.
            wirings = await asyncio.to_thread(self.wirings or _wirings)
            await servers.start_nats(wirings)
        except BaseException:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            raise
        await starting
        self.data_folder.report_step("the database's schemas")
        await servers.migrate()
        await servers.outlive_epochs()
        async with asyncio.TaskGroup() as group:
            statuses = PartStatuses(self.data_folder.status)
            group.create_task(servers.keep(statuses), name="servers")
            gateway = next(each for each in wirings if each.name == "gateway")
            machine = Machine(
                data_folder=self.data_folder,
                options=self.options,
                nats_url=servers.nats.url,
                database_urls=servers.database_urls(),
                # Known once the port is bound.
                url="",
            )
            group.create_task(self._serve(gateway, machine), name="http")
            await self._bound.wait()
            machine = replace(machine, url=self.url)
            names = ", ".join(wiring.name for wiring in wirings)
            self.data_folder.report(Holder(self.pid, self.url, step=f"services and nodes: {names}"))
            for wiring in wirings:
                run = partial(self._run_service, wiring, machine)
                group.create_task(supervise(wiring.name, run, statuses), name=wiring.name)
            await self._wait_until_ready(len(wirings))
            self.data_folder.report(Holder(self.pid, self.url, ready=True))
            self.ready.set()

    async def _wait_until_ready(self, services: int) -> None:
        """Every service leads; the services' own wakes have no common event, so look."""
        while len(self._runners) < services or not all(
            runner.epoch is not None and runner.ready[0] for runner in self._runners.values()
        ):
            await pause(READY_POLL_SECONDS)

    async def _serve(self, gateway: Wiring, machine: Machine) -> None:
        """The gateway's HTTP, owned here, so that a port stays bound while a service restarts."""
        from services.allinone.composition import settings_of  # noqa: PLC0415 - already imported

        settings = settings_of(gateway, machine)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            runner = self._runners.get(gateway.name)
            if runner is None or runner.service.app is None:
                await _unavailable(send)
            else:
                await runner.service.app(scope, receive, send)

        def bound(port: int) -> None:
            self.url = url_at(self.options.host, port)
            self.data_folder.report(Holder(self.pid, self.url))
            self._bound.set()

        await serve_http(
            app,
            host=self.options.host,
            port=self.data_folder.port_for(self.options),
            ready=self._readiness,
            on_bound=bound,
            limits=settings.http_limits(),
            metrics_token=settings.metrics_token(),
            trusted_proxies=settings.http_trusted_proxies,
        )

    def _readiness(self) -> tuple[bool, str]:
        if not self.ready.is_set():
            return False, "starting"
        warnings: list[str] = []
        for name, runner in self._runners.items():
            yes, why = runner.ready
            if not yes or runner.epoch is None:
                return False, f"{name}: {why if not yes else 'does not lead yet'}"
            if runner.warning:
                warnings.append(f"{name}: {runner.warning}")
        return True, f"ready, but {'; '.join(warnings)}" if warnings else "ready"

    async def _run_service(self, wiring: Wiring, machine: Machine) -> None:
        """Build one service and run it until it dies."""
        from services.allinone.composition import settings_of  # noqa: PLC0415 - already imported

        settings = settings_of(wiring, machine)
        try:
            async with connect(wiring, settings) as ports:
                runner = Runner(wiring.build(settings, ports), settings)
                self._runners[wiring.name] = runner
                await runner.run()
        finally:
            self._runners.pop(wiring.name, None)


def _wirings() -> Sequence[Wiring]:
    from services.allinone.composition import WIRINGS  # noqa: PLC0415 - slow to import: in a thread

    return WIRINGS


async def _unavailable(send: Send) -> None:
    headers = [(b"content-type", b"application/problem+json"), (b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    body = b'{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"starting"}'
    await send({"type": "http.response.body", "body": body})

"""The whole platform in one process: servers as children, every service in one TaskGroup.

Called by ``up`` and by the demo. A service that dies is built anew with growing pauses while the
others go on; a stop first asks running tasks to save (``stopping.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from libs.service import observe
from libs.service.http import serve_http
from libs.service.loop import Backoff
from libs.service.runner import Runner
from libs.service.wiring import Wiring, connect
from services.allinone.embedded.credentials import ensure_credentials
from services.allinone.nodes import Nodes, nodes_of
from services.allinone.place import Keeper, Options, Place
from services.allinone.servers import Servers

if TYPE_CHECKING:
    from services.allinone.composition import Machine

# A service that lived so long has recovered: its next death is answered at once.
RECOVERED_SECONDS = 60.0
_log = observe.log("allinone")


@dataclass
class Platform:
    """One machine's platform. ``run`` until cancelled; ``ready`` is set once it serves."""

    place: Place
    options: Options
    pid: int
    # False only for throw-away data: no write is forced to the disk.
    durable: bool = True
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    restarts: dict[str, int] = field(default_factory=dict)
    nodes: Nodes | None = None
    url: str = ""

    def __post_init__(self) -> None:
        self._runners: dict[str, Runner] = {}
        self._bound = asyncio.Event()
        self._port = self.options.port

    async def run(self) -> None:
        """Start everything and keep it up. Raises ServerError or OSError if it cannot start.

        The folder must be taken (``Place.take``); ends servers and services when cancelled.
        """
        ensure_credentials(self.place.data)
        self.nodes = nodes_of(self.options)
        servers = Servers(self.place, self.options, durable=self.durable)
        try:
            await self._start(servers)
        finally:
            await servers.stop()

    async def _start(self, servers: Servers) -> None:
        starting = asyncio.create_task(servers.start_postgres())  # noqa: TID251 - awaited below, and on failure
        try:
            # Importing the services takes as long as starting PostgreSQL: side by side.
            composition = await asyncio.to_thread(_composition)
            await servers.start_nats(composition.WIRINGS)
        except BaseException:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            raise
        await starting
        await servers.migrate()
        async with asyncio.TaskGroup() as group:
            group.create_task(servers.keep(), name="servers")
            gateway = next(each for each in composition.WIRINGS if each.name == "gateway")
            group.create_task(self._serve(gateway), name="http")
            await self._bound.wait()
            assert self.nodes is not None
            machine = composition.Machine(
                place=self.place,
                options=self.options,
                nodes_json=self.nodes.json,
                nats_url=servers.nats.url,
                database_urls=servers.database_urls(),
                url=self.url,
            )
            for wiring in composition.WIRINGS:
                group.create_task(self._keep_service(wiring, machine), name=wiring.name)
            await self._wait_until_ready(len(composition.WIRINGS))
            self.place.tell(Keeper(self.pid, self.url, ready=True))
            self.ready.set()

    async def _wait_until_ready(self, services: int) -> None:
        """Every service leads; the services' own wakes have no common event, so look."""
        from libs.service.loop import pause  # noqa: PLC0415 - only at the start

        while len(self._runners) < services or not all(
            runner.epoch is not None and runner.ready[0] for runner in self._runners.values()
        ):
            await pause(0.005)

    async def _serve(self, gateway: Wiring) -> None:
        """The gateway's HTTP, owned here, so that a port stays bound while a service restarts."""

        async def app(scope: object, receive: object, send: object) -> None:
            runner = self._runners.get(gateway.name)
            if runner is None or runner.service.app is None:
                await _unavailable(scope, send)
            else:
                await runner.service.app(scope, receive, send)

        def bound(port: int) -> None:
            self.url = f"http://{self.options.host}:{port}"
            self.place.tell(Keeper(self.pid, self.url))
            self._bound.set()

        await serve_http(
            app,
            host=self.options.host,
            port=self.options.port,
            ready=self._readiness,
            on_bound=bound,
        )

    def _readiness(self) -> tuple[bool, str]:
        if not self.ready.is_set():
            return False, "starting"
        for name, runner in self._runners.items():
            yes, why = runner.ready
            if not yes or runner.epoch is None:
                return False, f"{name}: {why if not yes else 'does not lead yet'}"
        return True, "ready"

    async def _keep_service(self, wiring: Wiring, machine: Machine) -> None:
        """Run a service; build it anew when it dies."""
        from services.allinone.composition import settings_of  # noqa: PLC0415 - already imported

        backoff, now = Backoff(0.1, 30.0), asyncio.get_running_loop().time
        while True:
            began = now()
            try:
                settings = settings_of(wiring, machine)
                async with connect(wiring, settings) as ports:
                    runner = Runner(wiring.build(settings, ports), settings)
                    self._runners[wiring.name] = runner
                    await runner.run()
            except Exception:  # noqa: BLE001 - whatever it was, the others go on and it comes back
                _log.exception("service restarts", restarted=wiring.name)
            finally:
                self._runners.pop(wiring.name, None)
            self.restarts[wiring.name] = self.restarts.get(wiring.name, 0) + 1
            if now() - began > RECOVERED_SECONDS:
                backoff.reset()
            await backoff.wait()


def _composition() -> Composition:
    from services.allinone import composition  # noqa: PLC0415 - slow to import: in a thread

    return composition


if TYPE_CHECKING:
    from types import ModuleType as Composition


async def _unavailable(scope: object, send: object) -> None:
    del scope
    assert isinstance(send, Callable)
    headers = [(b"content-type", b"application/problem+json"), (b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    body = b'{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"starting"}'
    await send({"type": "http.response.body", "body": body})

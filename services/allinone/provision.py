"""``python -m services.allinone.provision``: makes servers of one's own ready for the platform.

Run by a deployment's job before the services start, with administrators' rights: a role and a
schema for each service, every service's migrations, streams and durables. Waits for servers that do
not answer yet, does only what is missing, and may run twice, also at once. Exit status 0 done, 1
refused, 2 wrong settings, 3 a server did not answer in time.

``python -m services.allinone.provision restored`` does the same for a database that was filled
from a backup beside an empty NATS: it refuses one of a newer version, and lets the services publish
again what their outboxes have. Run it while no service runs.

``python -m services.allinone.provision nats-config`` prints the configuration that a NATS server
needs, with a user for each service.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from libs.bus import provision as bus
from libs.bus.connection import Credentials
from libs.bus.port import BusDeniedError, BusUnavailableError
from libs.bus.topology import Limits
from libs.bus.trust import authority
from libs.service import observability
from libs.service.loop import pause
from libs.service.wiring import Wiring, topology
from libs.store import roles
from libs.store.connections import Address
from libs.store.migrate import current, newest, upgrade
from libs.store.port import StoreUnavailableError
from libs.store.snapshot import publish_again
from services.allinone import nats_config
from services.allinone.embedded.credentials import NATS_ADMIN

T = TypeVar("T")
Report = Callable[[str], None]

# Before any event.
FOREVER = datetime.min.replace(tzinfo=UTC)
DONE, REFUSED, USAGE, UNREACHABLE = 0, 1, 2, 3
PREFIX = "SHIFTWORK_PROVISION_"
# Between two tries of a server that does not answer: doubling.
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.2, 5.0
CONNECT_SECONDS_MAX = 10.0
_KEPT = Limits()


def _postgres_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("postgresql", "postgres") or not parts.username:
        raise ValueError("write postgresql://USER@HOST:PORT/DATABASE")
    if parts.password:
        raise ValueError(f"a password does not belong here: use {PREFIX}DATABASE_PASSWORD_FILE")
    return text


def _odd(replicas: int) -> int:
    if replicas not in (1, 3, 5):
        raise ValueError("write 1, 3 or 5: a majority of the servers must agree")
    return replicas


def _readers(text: str) -> str:
    nats_config.monitoring_users(text.split())
    return text


class ProvisionSettings(BaseSettings):
    """The settings of the provisioner."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    # An administrator's, of any database it may enter; the services' differ in user and database.
    database_url: Annotated[str, AfterValidator(_postgres_url)]
    database_password_file: Path | None = None
    # The platform's own database.
    database: str = "shiftwork"
    # A folder with a file for each service, named like the service: the password of its role.
    database_passwords: Path
    # False: somebody else made database, roles and schemas; only migrations are run.
    roles: bool = True
    # nats://HOST:PORT, or tls://HOST:PORT, several separated by commas
    nats_url: str = Field(min_length=1)
    # The authority (PEM) that vouches for the servers behind tls://; without: the machine's own.
    nats_ca_file: Annotated[Path | None, AfterValidator(authority)] = None
    nats_user: str = NATS_ADMIN
    nats_password_file: Path
    # A folder as for the database: each service's password is tried at the server.
    nats_passwords: Path | None = None
    # What the server's store may hold (its max_file_store): all streams together stay below it.
    store_bytes: int = Field(default=_KEPT.store_bytes, gt=0)
    stream_replicas: Annotated[int, AfterValidator(_odd)] = 1
    # Users of NATS that read events and do nothing else, separated by spaces. The server's
    # configuration has them, too (nats-config --monitoring).
    monitoring_users: Annotated[str, AfterValidator(_readers)] = ""
    event_age_seconds: float = Field(default=_KEPT.event_age_s, gt=0)
    log_age_seconds: float = Field(default=_KEPT.log_age_s, gt=0)
    log_bytes: int = Field(default=_KEPT.log_bytes, gt=0)
    dead_letter_age_seconds: float = Field(default=_KEPT.dead_letter_age_s, gt=0)
    # How long servers may take to answer, and another provisioner to end.
    wait_seconds: float = Field(default=300.0, gt=0)


class RefusedError(Exception):
    """A server refuses, and waiting does not help. The text has the problem and the fix."""


class NotInTimeError(Exception):
    """A server did not answer in time."""


@dataclass
class StartDeadline:
    """Bounded waiting for servers that are still starting; each reason is reported once."""

    seconds_max: float
    report: Report

    def __post_init__(self) -> None:
        self._ends_at = monotonic() + self.seconds_max

    @property
    def left_seconds(self) -> float:
        """How long there still is."""
        return max(0.0, self._ends_at - monotonic())

    async def until(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """What ``work`` gives once the server is there; NotInTimeError if that takes too long."""
        seconds, reported = FIRST_PAUSE_SECONDS, ""
        while True:
            try:
                return await work()
            except (StoreUnavailableError, BusUnavailableError) as problem:
                text = f"{what}: {problem}"
            if self.left_seconds == 0:
                raise NotInTimeError(text)
            if text != reported:
                self.report(f"waiting for {text}")
                reported = text
            await pause(min(seconds, self.left_seconds))
            seconds = min(MOST_PAUSE_SECONDS, seconds * 2)

    async def turn(self) -> None:
        """Wait briefly for another provisioner. Raises NotInTimeError after the deadline."""
        if self.left_seconds == 0:
            raise NotInTimeError("another provisioner is still at work")
        await pause(min(1.0, self.left_seconds))


def url_of(admin_url: str, role: str, database: str) -> str:
    """The URL with which a role enters the platform's database, on the administrator's server."""
    parts = urlsplit(admin_url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(
        ("postgresql", f"{quote(role)}@{host}", f"/{database}", parts.query, parts.fragment)
    )


async def provision(
    settings: ProvisionSettings,
    wirings: Sequence[Wiring],
    report: Report,
    *,
    restored: bool = False,
) -> None:
    """Make both servers ready; ``restored``: with a database that was filled from a backup.
    RefusedError or NotInTimeError; what was done until then stays."""
    deadline = StartDeadline(settings.wait_seconds, report)
    if restored:
        await deadline.until("PostgreSQL", lambda: _refuse_newer(settings, wirings))
    where = urlsplit(settings.database_url).netloc.rpartition("@")[2] or "its socket"
    await deadline.until(
        f"PostgreSQL at {where}", lambda: _database(settings, wirings, deadline, report)
    )
    if restored:
        await deadline.until(
            f"PostgreSQL at {where}", lambda: _publish_again(settings, wirings, report)
        )
    await deadline.until(
        f"NATS at {settings.nats_url}", lambda: _streams(settings, wirings, deadline, report)
    )


async def _database(
    settings: ProvisionSettings, wirings: Sequence[Wiring], deadline: StartDeadline, report: Report
) -> None:
    names = [wiring.name for wiring in wirings]
    passwords = {name: secret(settings.database_passwords / name) for name in names}
    admin = settings.database_password_file
    first = names[0]
    # Whoever may only migrate is kept apart from others by what the first service's role may do.
    url, password = (
        (settings.database_url, secret(admin) if admin else None)
        if settings.roles
        else (url_of(settings.database_url, first, settings.database), passwords[first])
    )
    try:
        async with roles.alone(url, password, deadline.turn):
            if settings.roles:
                with roles.translated_errors():
                    changes = await roles.prepare_server(
                        url, password, database=settings.database, passwords=passwords
                    )
                for name, change in changes.items():
                    report(f"role {name}: {change}")
            for wiring in wirings:
                await _migrate(settings, wiring, passwords[wiring.name], report)
    except roles.AccessDeniedError as problem:
        raise RefusedError(_denied(settings, str(problem).splitlines()[0])) from problem


def _denied(settings: ProvisionSettings, problem: str) -> str:
    where = f"PostgreSQL ({settings.database_url}) refuses: {problem}. "
    if settings.roles:
        return where + (
            f"The password in {PREFIX}DATABASE_PASSWORD_FILE must be that of an administrator who "
            f"may create roles and databases; or make them by hand and set {PREFIX}ROLES=false."
        )
    return where + (
        f"With {PREFIX}ROLES=false the database {settings.database}, and for each service a role "
        f"with the password in {PREFIX}DATABASE_PASSWORDS and a schema of its name, must be there."
    )


def _own(settings: ProvisionSettings, wiring: Wiring) -> Address:
    """The database as a service enters it."""
    url = url_of(settings.database_url, wiring.name, settings.database)
    return Address(url=url, password=secret(settings.database_passwords / wiring.name))


async def _refuse_newer(settings: ProvisionSettings, wirings: Sequence[Wiring]) -> None:
    """RefusedError if a schema is of a later version, which this one must not write to."""
    for wiring in wirings:
        there = await current(_own(settings, wiring), wiring.tables)
        known = newest(wiring.migrations)
        if there > known:
            raise RefusedError(
                f"The backup is of a newer version: schema {wiring.tables.schema} is at {there},"
                f" and this version knows {known}. Restore it with the version that made it, or"
                " a newer one."
            )


async def _publish_again(
    settings: ProvisionSettings, wirings: Sequence[Wiring], report: Report
) -> None:
    """Mark what the outboxes have as unpublished: NATS is empty, and what was on its way at the
    time of the backup is nowhere else. The inboxes recognise what was handled."""
    for wiring in wirings:
        schema = wiring.tables.schema
        count = await publish_again(_own(settings, wiring), [schema], FOREVER)
        report(f"schema {schema}: {count} events will be published again")


async def _migrate(
    settings: ProvisionSettings, wiring: Wiring, password: str, report: Report
) -> None:
    """One service's schema, as its own role; one at a time, because Alembic's state is global."""
    url = url_of(settings.database_url, wiring.name, settings.database)
    await roles.enter(url, password)
    address = Address(url=url, password=password)
    before = await current(address, wiring.tables)
    await upgrade(address, wiring.tables, wiring.migrations)
    after = max(newest(wiring.migrations), before)
    changed = f"{before or 'empty'} -> {after}" if after != before else f"{after}, unchanged"
    report(f"schema {wiring.tables.schema}: {changed}")


async def _streams(
    settings: ProvisionSettings, wirings: Sequence[Wiring], deadline: StartDeadline, report: Report
) -> None:
    urls = settings.nats_url.split(",")
    timeout = min(CONNECT_SECONDS_MAX, max(1.0, deadline.left_seconds))
    admin = Credentials(settings.nats_user, secret(settings.nats_password_file))
    readers = nats_config.monitoring_users(settings.monitoring_users.split())
    try:
        done = await bus.provision(
            urls,
            admin,
            topology(wirings, _limits(settings), readers),
            ca_file=settings.nats_ca_file,
            connect_timeout_s=timeout,
        )
    except BusDeniedError as problem:
        raise RefusedError(
            f"NATS ({settings.nats_url}) refuses: {problem}. Compare user and password in "
            f"{PREFIX}NATS_PASSWORD_FILE with the server's configuration (`python -m "
            f"services.allinone.provision nats-config`), and {PREFIX}STREAM_REPLICAS with the "
            "number of its servers."
        ) from problem
    for text in done or ["streams and durables: unchanged"]:
        report(text)
    if settings.nats_passwords is None:
        return
    for wiring in wirings:
        file = settings.nats_passwords / wiring.name
        try:
            await bus.enter(
                urls,
                Credentials(wiring.name, secret(file)),
                ca_file=settings.nats_ca_file,
                connect_timeout_s=timeout,
            )
        except BusDeniedError as problem:
            raise RefusedError(
                f"NATS ({settings.nats_url}) refuses: {problem}. Its "
                f"${nats_config.variable(wiring.name)} and {file} must be the same; restart the "
                "server after a change."
            ) from problem
    report("every service's user enters NATS")
    for reader in readers:
        await _enter_reader(settings, urls, reader, settings.nats_passwords / reader)
        report(f"{reader} reads events")


async def _enter_reader(
    settings: ProvisionSettings, urls: Sequence[str], user: str, file: Path
) -> None:
    """Check that a monitoring user can read. A server that does not know it yet is waited for:
    nothing of the platform depends on that user."""
    try:
        await bus.enter(
            urls,
            Credentials(user, secret(file)),
            ca_file=settings.nats_ca_file,
            connect_timeout_s=CONNECT_SECONDS_MAX,
            reads=True,
        )
    except BusDeniedError as problem:
        raise BusUnavailableError(
            f"{problem}; its configuration must have {user}, and {file} the password in"
            f" ${nats_config.variable(user)}"
        ) from problem


def _limits(settings: ProvisionSettings) -> Limits:
    return Limits(
        store_bytes=settings.store_bytes,
        event_age_s=settings.event_age_seconds,
        log_age_s=settings.log_age_seconds,
        log_bytes=settings.log_bytes,
        dead_letter_age_s=settings.dead_letter_age_seconds,
        replicas=settings.stream_replicas,
    )


def secret(file: Path) -> str:
    """A password from its file; RefusedError, naming the file, if there is none."""
    try:
        found = file.read_text().strip()
    except OSError as problem:
        raise RefusedError(
            f"{file} cannot be read: {problem.strerror}. Mount the secret there."
        ) from problem
    if not found:
        raise RefusedError(f"{file} is empty: it must hold the password, alone.")
    return found


def write_line(text: str) -> None:
    """Write a line of the job's log."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m services.allinone.provision",
        description="Make PostgreSQL and NATS ready. Settings: SHIFTWORK_PROVISION_… variables.",
    )
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("restored", help="after the database was filled from a backup")
    config = commands.add_parser(
        "nats-config", help="print the configuration of a NATS server, without secrets"
    )
    config.add_argument("--cluster", action="store_true", help="for one of several servers")
    config.add_argument("--users", action="store_true", help="only the users and what they may do")
    config.add_argument(
        "--monitoring",
        nargs="+",
        default=[],
        metavar="NAME",
        help="users that read events and do nothing else",
    )
    config.add_argument("--store", default=nats_config.STORE, help="folder of JetStream")
    given = parser.parse_args(arguments)

    from services.allinone.composition import WIRINGS  # noqa: PLC0415 - imports every service

    if given.command == "nats-config":
        try:
            readers = nats_config.monitoring_users(given.monitoring)
        except ValueError as problem:
            config.error(f"--monitoring: {problem}")
        sys.stdout.write(
            nats_config.accounts_block(WIRINGS, readers)
            if given.users
            else nats_config.server(
                WIRINGS, cluster=given.cluster, store=given.store, monitoring=readers
            )
        )
        return DONE
    settings = load()
    if settings is None:
        return USAGE
    observability.set_up_logs("console", "error", sys.stderr)
    return _run(settings, WIRINGS, restored=given.command == "restored")


def load(values: Mapping[str, Any] | None = None) -> ProvisionSettings | None:
    """The settings from the environment; None, and a line for each problem, if they are wrong."""
    try:
        return ProvisionSettings(**(values or {}))
    except ValidationError as error:
        for problem in error.errors():
            name = PREFIX + "_".join(str(part) for part in problem["loc"]).upper()
            sys.stderr.write(f"{name}: {problem['msg']}. Set it in the environment.\n")
        return None


def _run(settings: ProvisionSettings, wirings: Sequence[Wiring], *, restored: bool) -> int:
    try:
        asyncio.run(provision(settings, wirings, write_line, restored=restored))
    except RefusedError as problem:
        sys.stderr.write(f"error: {problem}\n")
        return REFUSED
    except NotInTimeError as problem:
        sys.stderr.write(
            f"error: no answer within {settings.wait_seconds:g} s. {problem}. Is the server up, "
            f"and may this pod reach it? To wait longer: {PREFIX}WAIT_SECONDS.\n"
        )
        return UNREACHABLE
    write_line("ready")
    return DONE


if __name__ == "__main__":
    raise SystemExit(main())

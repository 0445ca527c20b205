"""Provisioning of external servers: blank, again, twice at once; and the errors when it fails."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import pytest_asyncio

from libs.bus.connection import Credentials
from libs.store import migrate, roles
from libs.store.connections import Address
from services.allinone import nats_config
from services.allinone.composition import WIRINGS
from services.allinone.embedded import wire
from services.allinone.embedded.nats import program
from services.allinone.provision import (
    NotInTimeError,
    ProvisionSettings,
    RefusedError,
    provision,
    url_of,
)
from services.allinone.service_processes import free_port
from tests.kit.monitoring import check_readers
from tests.kit.nats_server import NatsServer, StartNats
from tests.kit.postgres import PostgresServer, StartPostgres

NAMES = [wiring.name for wiring in WIRINGS]


@dataclass
class Blank:
    """Two servers that nobody has prepared, and folders of passwords for them."""

    folder: Path
    postgres: PostgresServer
    nats: NatsServer

    def values(self, **changed: Any) -> dict[str, Any]:
        return {
            "database_url": self.postgres.admin_url,
            "database_password_file": self.folder / "database-admin",
            "database_passwords": self.folder / "database",
            "nats_url": self.nats.url,
            "nats_password_file": self.nats.password_file("admin"),
            "nats_passwords": self.folder / "nats",
            "wait_seconds": 30,
            **changed,
        }

    def settings(self, **changed: Any) -> ProvisionSettings:
        return ProvisionSettings(**self.values(**changed))

    async def run(self, **changed: Any) -> list[str]:
        messages: list[str] = []
        await provision(self.settings(**changed), WIRINGS, messages.append)
        return messages

    def process(self, **changed: Any) -> subprocess.Popen[str]:
        environment = {
            f"SHIFTWORK_PROVISION_{name.upper()}": str(value)
            for name, value in self.values(**changed).items()
        }
        return subprocess.Popen(
            [sys.executable, "-m", "services.allinone.provision"],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def url(self, service: str) -> str:
        return url_of(self.postgres.admin_url, service, "shiftwork")

    def password(self, service: str) -> str:
        return (self.folder / "database" / service).read_text().strip()


@pytest_asyncio.fixture
async def blank(
    tmp_path: Path, postgres_start: StartPostgres, nats_start: StartNats
) -> AsyncIterator[Blank]:
    postgres = await postgres_start()
    nats = await nats_start({wiring.name: wiring.permissions for wiring in WIRINGS})
    (tmp_path / "database-admin").write_text(postgres.admin_password + "\n")
    for kind in ("database", "nats"):
        (tmp_path / kind).mkdir()
    for name in NAMES:
        (tmp_path / "database" / name).write_text(f"database-{name}\n")
        (tmp_path / "nats" / name).write_text(nats.password_file(name).read_text())
    yield Blank(tmp_path, postgres, nats)


@pytest.mark.server
@pytest.mark.slow
async def test_two_at_once_on_blank_servers_then_a_service_starts(blank: Blank) -> None:
    both = [blank.process(), blank.process()]
    messages = [await asyncio.to_thread(each.communicate, timeout=50) for each in both]
    assert [each.returncode for each in both] == [0, 0], messages
    lines = [out.splitlines() for out, _ in messages]
    assert all(each[-1] == "ready" for each in lines)
    # Each thing was made by one of them.
    together = [*lines[0], *lines[1]]
    assert [together.count(f"role {name}: made") for name in NAMES] == [1] * len(NAMES)
    assert [together.count(f"stream {name} made") for name in ("EVT", "LOG", "DLQ")] == [1, 1, 1]
    for wiring in WIRINGS:
        address = Address(url=blank.url(wiring.name), password=blank.password(wiring.name))
        assert await migrate.check(address, wiring.tables) == []
    await _service_becomes_ready(blank)
    # And once more, on servers in use: nothing is left to do.
    again = await blank.run()
    assert {text.partition(": ")[2].rpartition(", ")[2] for text in again[:-1]} == {"unchanged"}


def start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def check(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


async def _service_becomes_ready(blank: Blank) -> None:
    port = free_port()
    process = start(
        [sys.executable, "-m", "services.quota"],
        {
            **os.environ,
            "SHIFTWORK_QUOTA_DATABASE_URL": blank.url("quota"),
            "SHIFTWORK_QUOTA_DATABASE_PASSWORD_FILE": str(blank.folder / "database" / "quota"),
            "SHIFTWORK_QUOTA_NATS_URL": blank.nats.url,
            "SHIFTWORK_QUOTA_NATS_PASSWORD_FILE": str(blank.folder / "nats" / "quota"),
            "SHIFTWORK_QUOTA_HTTP_PORT": str(port),
        },
    )
    try:
        async with asyncio.timeout(20):
            while not await asyncio.to_thread(_ready, port):
                assert process.poll() is None
                await asyncio.sleep(0.05)
    finally:
        process.terminate()
        assert process.wait(20) == 0


def _ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return answer.status == 200
    except (URLError, OSError):
        return False


@pytest.mark.server
async def test_a_changed_password_is_set_and_the_old_one_is_refused(blank: Blank) -> None:
    await blank.run()
    (blank.folder / "database" / "quota").write_text("another\n")
    messages = await blank.run()
    assert "role quota: password set" in messages
    assert "role submit: unchanged" in messages
    await roles.enter(blank.url("quota"), "another")
    with pytest.raises(roles.AccessDeniedError, match="password authentication failed"):
        await roles.enter(blank.url("quota"), "database-quota")


@pytest.mark.server
async def test_a_service_sees_no_other_services_schema(blank: Blank) -> None:
    await blank.run()
    address = Address(url=blank.url("quota"), password=blank.password("quota"))
    submit = next(wiring for wiring in WIRINGS if wiring.name == "submit")
    with pytest.raises(Exception, match="permission denied for schema submit"):
        await migrate.current(address, submit.tables)


@pytest.mark.server
@pytest.mark.parametrize(
    ("file", "error"),
    [
        ("database-admin", "PostgreSQL .* refuses: password .*DATABASE_PASSWORD_FILE"),
        ("nats/quota", "NATS .* refuses.*'quota'.*NATS_PASSWORD_QUOTA"),
    ],
)
async def test_a_wrong_password_is_reported_at_once(blank: Blank, file: str, error: str) -> None:
    (blank.folder / file).write_text("wrong\n")
    with pytest.raises(RefusedError, match=error):
        await blank.run()


@pytest.mark.server
async def test_a_service_is_no_administrator(blank: Blank) -> None:
    await blank.run()
    (blank.folder / "database" / "submit").write_text("another\n")
    with pytest.raises(RefusedError, match=r"PostgreSQL .* permission denied.*ROLES=false"):
        await blank.run(
            database_url=blank.url("quota"),
            database_password_file=blank.folder / "database" / "quota",
        )


@pytest.mark.server
async def test_an_administrator_need_not_be_a_superuser(blank: Blank) -> None:
    """On managed servers it may create roles and databases, but not read passwords."""
    server = blank.postgres
    await _execute(server, "CREATE ROLE boss LOGIN CREATEROLE CREATEDB PASSWORD 'boss'")
    (blank.folder / "database-admin").write_text("boss")
    boss = {"database_url": server.url_of("boss", "postgres")}
    messages = await blank.run(**boss)
    assert "role quota: made" in messages
    (blank.folder / "database" / "quota").write_text("another\n")
    again = await blank.run(**boss)
    assert "role quota: password set" in again
    await roles.enter(blank.url("quota"), "another")


async def _execute(server: PostgresServer, statement: str) -> str:
    connection = await roles._connect(server.admin_url, server.admin_password)
    try:
        return await connection.execute(statement)
    finally:
        await connection.close()


@pytest.mark.server
async def test_roles_made_by_somebody_else_are_only_migrated(blank: Blank) -> None:
    by_hand = {"roles": False, "database_password_file": None}
    with pytest.raises(RefusedError, match="ROLES=false the database shiftwork"):
        await blank.run(**by_hand)
    await roles.prepare_server(
        blank.postgres.admin_url,
        blank.postgres.admin_password,
        database="shiftwork",
        passwords={name: blank.password(name) for name in NAMES},
    )
    messages = await blank.run(**by_hand)
    assert [text for text in messages if text.startswith("role")] == []
    assert sum(text.startswith("schema") for text in messages) == len(NAMES)


@pytest.mark.slow
@pytest.mark.server
async def test_a_server_that_comes_late_is_waited_for_and_one_that_never_does_is_named(
    blank: Blank,
) -> None:
    url = blank.nats.url
    await blank.nats.stop()
    with pytest.raises(NotInTimeError, match=f"NATS at {url}: no bus server"):
        await blank.run(wait_seconds=1)
    messages: list[str] = []
    running = asyncio.ensure_future(
        provision(blank.settings(nats_url=url), WIRINGS, messages.append)
    )
    await asyncio.sleep(0.3)
    await blank.nats.start()
    assert blank.nats.url == url
    await running
    assert "stream EVT made" in messages
    with pytest.raises(NotInTimeError, match=r"PostgreSQL at 127.0.0.1:1: .*Refused"):
        await blank.run(database_url="postgresql://postgres@127.0.0.1:1/x", wait_seconds=0.5)


@pytest.mark.server
async def test_more_replicas_than_servers_are_refused_in_words(blank: Blank) -> None:
    with pytest.raises(RefusedError, match=r"replicas.*STREAM_REPLICAS"):
        await blank.run(stream_replicas=3)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("DATABASE_URL", "postgresql://admin:secret@host/x", "a password does not belong here"),
        ("DATABASE_URL", "mysql://admin@host/x", "write postgresql://"),
        ("STREAM_REPLICAS", "2", "write 1, 3 or 5"),
        ("WAIT_SECONDS", "0", "greater than 0"),
    ],
)
def test_wrong_settings_are_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: str,
    error: str,
) -> None:
    from services.allinone.provision import main

    for key, good in {
        "DATABASE_URL": "postgresql://admin@host/x",
        "DATABASE_PASSWORDS": "/nowhere",
        "NATS_URL": "nats://host",
        "NATS_PASSWORD_FILE": "/nowhere/admin",
    }.items():
        monkeypatch.setenv(f"SHIFTWORK_PROVISION_{key}", good)
    monkeypatch.setenv(f"SHIFTWORK_PROVISION_{name}", value)
    assert main([]) == 2
    messages = capsys.readouterr().err
    assert messages.startswith(f"SHIFTWORK_PROVISION_{name}: ")
    assert error in messages
    assert "secret" not in messages


def test_a_missing_password_file_is_named(tmp_path: Path) -> None:
    settings = ProvisionSettings(
        database_url="postgresql://admin@127.0.0.1:1/x",
        database_passwords=tmp_path / "none",
        nats_url="nats://127.0.0.1:1",
        nats_password_file=tmp_path / "none",
    )
    with pytest.raises(RefusedError, match=r"none/submit cannot be read: No such file"):
        asyncio.run(provision(settings, WIRINGS, print))


async def test_a_server_runs_on_the_printed_configuration(tmp_path: Path) -> None:
    """The chart does the same: the unchanged file, passwords in the server's environment."""
    passwords = {name: f"7{name.replace('_', '')}Zz0123456789" for name in ("admin", *NAMES)}
    config = tmp_path / "nats.conf"
    config.write_text(nats_config.server(WIRINGS, cluster=False, store=str(tmp_path / "js")))
    port = free_port()
    process = start(
        [str(program()), "-c", str(config), "-a", "127.0.0.1", "-p", str(port), "-m", "0"],
        {nats_config.variable(name): password for name, password in passwords.items()},
    )
    try:
        async with asyncio.timeout(10):
            while await wire.nats_answers(port, "admin", passwords["admin"], 5):
                assert process.poll() is None
                await asyncio.sleep(0.02)
        for name, password in passwords.items():
            assert await wire.nats_answers(port, name, password, 5) == ""
            assert "Authorization Violation" in await wire.nats_answers(port, name, "wrong", 5)
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.server
@pytest.mark.slow
async def test_monitoring_users_of_a_printed_configuration_read_events(
    blank: Blank, tmp_path: Path
) -> None:
    """As ``docker/compose.yaml`` and servers of one's own have them."""
    names = ["grafana", "audit"]
    command = [sys.executable, "-m", "services.allinone.provision", "nats-config"]
    done = check([*command, "--store", str(tmp_path / "js"), "--monitoring", *names], {})
    config = tmp_path / "nats.conf"
    config.write_text(done.stdout)
    readers = nats_config.monitoring_users(names)
    passwords = {name: f"7{name.replace('_', '')}Zz0123456789" for name in ("admin", *NAMES)}
    passwords |= {name: f"8{name.replace('_', '')}Zz0123456789" for name in readers}
    folder = tmp_path / "passwords"
    folder.mkdir()
    for name, password in passwords.items():
        (folder / name).write_text(password)
    port = free_port()
    process = start(
        [str(program()), "-c", str(config), "-a", "127.0.0.1", "-p", str(port), "-m", "0"],
        {nats_config.variable(name): password for name, password in passwords.items()},
    )
    url = f"nats://127.0.0.1:{port}"
    settings = blank.settings(
        nats_url=url,
        nats_password_file=folder / "admin",
        nats_passwords=folder,
        monitoring_users=" ".join(names),
    )
    try:
        reported: list[str] = []
        await provision(settings, WIRINGS, reported.append)
        assert "monitoring_grafana reads events" in reported
        await check_readers(
            url,
            Credentials("submit", passwords["submit"]),
            Credentials("monitor", passwords["monitor"]),
            [Credentials(name, passwords[name]) for name in readers],
        )
        # One that is named no longer loses its durable.
        fewer = settings.model_copy(update={"monitoring_users": "audit"})
        await provision(fewer, WIRINGS, reported.append)
        assert "durable HISTORY/monitoring_grafana removed" in reported
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize("names", [["Grafana"], ["a b"], ["a", "a"], ["x" * 40]])
def test_a_name_of_a_monitoring_user_that_is_none_is_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match=r"no name of a monitoring user|named twice"):
        nats_config.monitoring_users(names)


def test_a_cluster_takes_its_name_and_routes_from_the_environment(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text(nats_config.server(WIRINGS, cluster=True, store=str(tmp_path / "js")))
    names = {nats_config.variable(name): "x1" for name in ("admin", "route", *NAMES)}
    cluster = {
        "NATS_SERVER_NAME": "nats-0",
        "NATS_ROUTES": "[nats-route://route:x1@nats-0.nats:6222, nats-route://route:x1@nats-1:6222]",
    }
    command = [str(program()), "-c", str(config), "-t"]
    checked = check(command, {**names, **cluster})
    assert checked.returncode == 0, checked.stderr
    lacking = check(command, names)
    assert lacking.returncode != 0
    assert "NATS_SERVER_NAME" in lacking.stderr

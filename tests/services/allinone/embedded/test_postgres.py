"""The embedded PostgreSQL: logins, what it survives, and the user that it runs as."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import asyncpg
import psutil
import pytest

from libs.store import roles
from services.allinone.embedded import postgres
from services.allinone.embedded.accounts import Account, can_run
from services.allinone.embedded.credentials import ensure_credentials
from services.allinone.embedded.postgres import (
    DATABASE,
    Postgres,
    PostgresOptions,
    programs_folder,
)
from services.allinone.embedded.processes import ServerError
from tests.kit.freezing import freeze
from tests.kit.postgres import Database, PostgresServer, StartPostgres, copy_of_pristine

pytestmark = pytest.mark.server

QUICK = PostgresOptions(durable=False, stop_seconds_max=5, start_seconds_max=30)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="about running as root")


async def query(server: Postgres, role: str, statement: str, password: str) -> object:
    connection = await asyncpg.connect(server.url(role), password=password)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def admin(server: Postgres, statement: str) -> object:
    connection = await asyncpg.connect(server.admin_url, password=server.admin_password)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def test_only_the_right_password_opens_the_door(postgres_start: StartPostgres) -> None:
    server = (await postgres_start()).embedded
    await server.prepare()
    for password in (None, "", "wrong"):
        with pytest.raises((asyncpg.InvalidPasswordError, asyncpg.PostgresError)):
            await asyncpg.connect(
                server.url("quota"), password=password, passfile="/nonexistent/passfile"
            )
    with pytest.raises(asyncpg.PostgresError):
        await asyncpg.connect(server.admin_url, password="wrong")
    quota = server._credentials.postgres_password("quota")
    assert await query(server, "quota", "SELECT current_user::text", quota) == "quota"
    # Not even the rules for local users that other installations begin with.
    rules = await admin(server, "SELECT string_agg(auth_method, ',') FROM pg_hba_file_rules")
    assert rules == "scram-sha-256"
    assert await admin(server, "SHOW listen_addresses") == ""


async def test_a_service_sees_its_own_schema_only(database: Database) -> None:
    one, two = await database.role("one"), await database.role("two")
    first = await asyncpg.connect(one.url, password=one.password)
    second = await asyncpg.connect(two.url, password=two.password)
    try:
        await first.execute("CREATE TABLE secret (a int); INSERT INTO secret VALUES (1)")
        assert await first.fetchval("SELECT a FROM one.secret") == 1
        for refused in (
            "SELECT a FROM one.secret",
            "CREATE TABLE one.mine (a int)",
            "CREATE TABLE public.mine (a int)",
            "CREATE SCHEMA mine",
            "CREATE ROLE mine",
            "CREATE DATABASE mine",
            "COPY (SELECT 1) TO '/tmp/mine'",
            "SELECT pg_read_file('postgresql.conf')",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await second.execute(refused)
    finally:
        await first.close()
        await second.close()


async def test_a_service_enters_no_other_database(postgres_start: StartPostgres) -> None:
    server = (await postgres_start()).embedded
    await server.prepare()
    password = server._credentials.postgres_password("submit")
    for name in ("postgres", "template1"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await asyncpg.connect(server.url("submit", name), password=password)


async def test_preparing_again_changes_nothing_but_is_allowed(
    postgres_start: StartPostgres,
) -> None:
    server = (await postgres_start()).embedded
    await asyncio.gather(server.prepare(), server.prepare())
    password = server._credentials.postgres_password("submit")
    await query(server, "submit", "CREATE TABLE kept (a int)", password)
    await server.prepare()
    assert await query(server, "submit", "SELECT count(*) FROM kept", password) == 0


async def test_names_that_are_no_names_are_refused(database: Database) -> None:
    with pytest.raises(ValueError, match="SQL name"):
        await database.role('x"; DROP DATABASE postgres; --')


async def test_restart_keeps_data_and_address(postgres_start: StartPostgres) -> None:
    server = (await postgres_start()).embedded
    await server.prepare()
    url, password = server.url("quota"), server._credentials.postgres_password("quota")
    await query(server, "quota", "CREATE TABLE kept AS SELECT 7 AS a", password)
    assert await server.healthy() == ""
    await server.stop()
    assert "not started" in await server.healthy()
    await server.start()
    assert server.url("quota") == url
    assert await query(server, "quota", "SELECT a FROM kept", password) == 7


async def test_kill_9_of_the_server_loses_nothing_committed(postgres_start: StartPostgres) -> None:
    test_server: PostgresServer = await postgres_start(durable=True)
    server = test_server.embedded
    await server.prepare()
    password = server._credentials.postgres_password("quota")
    await query(server, "quota", "CREATE TABLE kept AS SELECT 7 AS a", password)
    busy = await asyncpg.connect(server.url("quota"), password=password)
    sleeping = asyncio.ensure_future(busy.execute("SELECT pg_sleep(60)"))
    await asyncio.sleep(0.1)
    test_server.kill()
    assert "SIGKILL" in await server.healthy()
    await server.start()
    assert await server.healthy() == ""
    assert await query(server, "quota", "SELECT a FROM kept", password) == 7
    with pytest.raises((asyncpg.PostgresError, OSError)):
        await sleeping


async def test_a_server_left_by_a_killed_owner_is_replaced(
    pristine_postgres: Path, postgres_start: StartPostgres
) -> None:
    """The owner dies by SIGKILL; the next one ends the orphan and starts its own."""
    test_server = await postgres_start()
    await test_server.embedded.stop()
    with start_owner(test_server.data) as owner:
        try:
            orphan = int(owner.stdout.readline())
        finally:
            owner.kill()
    assert psutil.pid_exists(orphan)
    await test_server.embedded.start()
    assert not psutil.pid_exists(orphan) or psutil.Process(orphan).status() == "zombie"
    assert test_server.embedded.child.pid != orphan
    assert await test_server.embedded.healthy() == ""


async def test_a_server_of_a_living_owner_is_left_alone(postgres_start: StartPostgres) -> None:
    test_server = await postgres_start()
    await test_server.embedded.stop()
    with start_owner(test_server.data) as owner:
        try:
            pid = int(owner.stdout.readline())
            with pytest.raises(ServerError, match=f"kept by process {owner.pid}"):
                await test_server.embedded.start()
            assert psutil.Process(pid).status() != "zombie"
            owner.communicate(b"stop\n", timeout=10)
            assert owner.returncode == 0
            assert not psutil.pid_exists(pid)
        finally:
            owner.kill()
    await test_server.embedded.start()


OWNER = """
import asyncio, sys
from pathlib import Path
from services.allinone.embedded.credentials import ensure_credentials
from services.allinone.embedded.postgres import Postgres, PostgresOptions
async def main(data):
    server = Postgres(data, ensure_credentials(data), PostgresOptions(durable=False))
    await server.start()
    print(server.child.pid, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await server.stop()
asyncio.run(main(Path(sys.argv[1])))
"""


def start_owner(data: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", OWNER, str(data)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def test_a_stale_lock_file_of_a_reused_process_id_does_not_matter(
    postgres_start: StartPostgres,
) -> None:
    test_server = await postgres_start()
    test_server.kill()
    lock = test_server.data / "postgres" / "data" / "postmaster.pid"
    lines = lock.read_text().splitlines()
    # A process that lives and is not ours to signal.
    lock.write_text("\n".join(["1", *lines[1:]]))
    await test_server.embedded.start()
    assert await test_server.embedded.healthy() == ""


async def test_ctrl_c_in_the_terminal_does_not_reach_the_server(
    postgres_start: StartPostgres,
) -> None:
    server = (await postgres_start()).embedded
    assert os.getsid(server.child.pid) == server.child.pid != os.getsid(0)


async def test_a_frozen_server_is_not_healthy_and_is_ended(postgres_start: StartPostgres) -> None:
    test_server = await postgres_start()
    hasty = PostgresOptions(durable=False, answer_seconds_max=0.2, stop_seconds_max=0.3)
    await test_server.embedded.stop()
    server = Postgres(test_server.data, ensure_credentials(test_server.data), hasty)
    await server.start()
    freeze(server.child.pid)
    assert "no answer" in await server.healthy()
    await server.stop()
    assert "not started" in await server.healthy()
    await server.start()
    assert await server.healthy() == ""
    await server.stop()


async def test_files_are_private(postgres_start: StartPostgres) -> None:
    test_server = await postgres_start()
    data = test_server.data
    for folder in ("postgres", "postgres/data", "secrets", "run"):
        assert stat.S_IMODE((data / folder).stat().st_mode) == 0o700, folder
    for file in (
        *(data / "secrets").iterdir(),
        data / "admin-token",
        data / "postgres/postgres.log",
    ):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert not [path for path in data.rglob("*token*") if path.name != "admin-token"]
    # No password remains from making the cluster, and none is in the list of processes.
    assert not list(data.rglob("*superuser-password*"))
    line = " ".join(psutil.Process(test_server.embedded.child.pid).cmdline())
    assert test_server.admin_password not in line


async def test_a_deep_folder_gets_a_socket_elsewhere(
    pristine_postgres: Path, tmp_path: Path
) -> None:
    data = tmp_path / ("deep" * 20) / "sw"
    data.parent.mkdir()
    copy_of_pristine(pristine_postgres, data)
    server = Postgres(data, ensure_credentials(data), QUICK)
    await server.start()
    try:
        first = server.socket_folder
        assert not first.is_relative_to(data)
        assert await server.healthy() == ""
        await server.stop()
        # The record survives, the folder does not, as after a restart of the machine.
        shutil.rmtree(first.parent)
        await server.start()
        assert server.socket_folder == first
        assert await server.healthy() == ""
    finally:
        await server.stop()
        server.remove_temporary()
    assert not first.parent.exists()


async def test_a_program_that_is_missing_is_named(
    pristine_postgres: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "services.allinone.embedded.postgres.programs_folder", lambda: tmp_path / "nothing"
    )
    server = Postgres(tmp_path / "sw", ensure_credentials(tmp_path / "sw"), QUICK)
    with pytest.raises(ServerError, match="nothing"):
        await server.start()


async def test_a_half_initialized_cluster_is_initialized_again(tmp_path: Path) -> None:
    half = tmp_path / "sw" / "postgres" / "data.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18")
    server = Postgres(tmp_path / "sw", ensure_credentials(tmp_path / "sw"), QUICK)
    try:
        await server.start()
        await server.prepare()
        assert await server.healthy() == ""
    finally:
        await server.stop()
        server.remove_temporary()
    assert not half.exists()


@needs_root
async def test_root_under_a_closed_home_changes_no_rights(
    pristine_postgres: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    data = home / "sw"
    home.mkdir(mode=0o700)
    copy_of_pristine(pristine_postgres, data)
    # The programs, too, lie where only root can go.
    programs = copy_of_wheel(home)
    server = Postgres(data, ensure_credentials(data), QUICK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("services.allinone.embedded.postgres.programs_folder", lambda: programs)
        await server.start()
    try:
        await server.prepare()
        assert psutil.Process(server.child.pid).uids().real != 0
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        assert home.stat().st_uid == 0
        password = server._credentials.postgres_password("quota")
        await query(server, "quota", "CREATE TABLE kept AS SELECT 7 AS a", password)
        await admin(server, "CHECKPOINT")
        assert await admin(server, "SELECT pg_reload_conf()") is True
        assert await server.healthy() == ""
    finally:
        await server.stop()
        server.remove_temporary()


@needs_root
async def test_root_makes_a_cluster_with_programs_that_only_root_can_reach(tmp_path: Path) -> None:
    """From nothing: ``initdb``, unlike the server, needs libraries beside its package."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    programs = copy_of_wheel(home)
    server = Postgres(home / "sw", ensure_credentials(home / "sw"), QUICK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("services.allinone.embedded.postgres.programs_folder", lambda: programs)
        await server.start()
        used = Path(psutil.Process(server.child.pid).exe()).parent
        try:
            await server.prepare()
            assert not used.is_relative_to(home)
            assert used.parent.name == programs.name
            assert (used / "initdb").stat().st_mode & 0o777 == 0o755
            # The copy is made once.
            made_at = (used / "initdb").stat().st_ctime_ns
            await server.stop()
            await server.start()
            assert Path(psutil.Process(server.child.pid).exe()).parent == used
            assert (used / "initdb").stat().st_ctime_ns == made_at
            assert await server.healthy() == ""
        finally:
            await server.stop()
            server.remove_temporary()
    assert not used.exists()
    assert (home / "sw" / "postgres" / "data" / "PG_VERSION").read_text() == "18\n"


def copy_of_wheel(data_folder: Path) -> Path:
    """PostgreSQL's programs below a folder, with their libraries where they expect them."""
    programs = programs_folder()
    package = programs.parent
    (data_folder / package.name).mkdir()
    copy_of_pristine(programs, data_folder / package.name / programs.name)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        copy_of_pristine(libraries, data_folder / libraries.name)
    return data_folder / package.name / programs.name


@needs_root
async def test_root_cannot_be_the_service_user(tmp_path: Path) -> None:
    for name in ("root", "no-such-user"):
        options = PostgresOptions(durable=False, service_user=name)
        server = Postgres(tmp_path / name, ensure_credentials(tmp_path / name), options)
        with pytest.raises(ServerError, match=name):
            await server.start()


@needs_root
def test_an_ordinary_user_runs_its_own() -> None:
    """Made from nothing by a user without any rights, in a home that only it can enter."""
    with tempfile.TemporaryDirectory(prefix="swt-") as folder:
        Path(folder).chmod(0o711)
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        os.chown(home, 65534, 65534)
        programs = programs_folder()
        nobody = Account(65534, 65534, "nobody")
        if not can_run(nobody, [programs / "bin" / "initdb", "--version"]):
            # This environment is closed to others: an ordinary user has one of its own.
            Path(folder, "wheels").mkdir()
            programs = copy_of_wheel(Path(folder, "wheels"))
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            as_ordinary_user(home / "sw", programs, writer)
        os.close(writer)
        with os.fdopen(reader) as words:
            output = words.read()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, output
        assert output == "65534 healthy"
        assert (home / "sw" / "postgres" / "data").stat().st_uid == 65534


def as_ordinary_user(data: Path, programs: Path, writer: int) -> None:
    """In a child process: become nobody, start, check, stop, report; never returns."""
    status = 1
    postgres.programs_folder = lambda: programs
    try:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

        async def work() -> str:
            server = Postgres(data, ensure_credentials(data), QUICK)
            await server.start()
            await server.prepare()
            user = psutil.Process(server.child.pid).uids().real
            healthy = await server.healthy() or "healthy"
            await server.stop()
            return f"{user} {healthy}"

        os.write(writer, asyncio.run(work()).encode())
        status = 0
    except BaseException as problem:  # noqa: BLE001 - reported to the parent
        os.write(writer, repr(problem).encode())
    finally:
        os._exit(status)


def test_the_verifier_is_the_one_that_the_server_makes() -> None:
    """RFC 7677's example, whose salt, user and password are known."""
    import base64

    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    assert roles.scram_verifier("pencil", salt) == (
        "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ=="
        "$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    )


def test_the_database_has_the_platforms_name() -> None:
    assert DATABASE == "shiftwork"

"""The images of PostgreSQL and NATS, as charts, compose files and testcontainers rely on them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.images.conftest import Containers

pytestmark = pytest.mark.containers

PASSWORD = "only-for-tests"
CONFINED = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--network=none")


def sql(containers: Containers, server: str, text: str, *options: str, database: str) -> str:
    done = containers.exec(
        server,
        "env",
        f"PGPASSWORD={PASSWORD}",
        "psql",
        "--host=127.0.0.1",
        "--no-psqlrc",
        "--tuples-only",
        "--no-align",
        *options,
        f"--dbname={database}",
        f"--command={text}",
    )
    return (done.stdout + done.stderr).strip()


def answers(containers: Containers, server: str) -> bool:
    """Over TCP: the first start's own server has none."""
    return containers.exec(server, "pg_isready", "--host=127.0.0.1").returncode == 0


def test_postgres_makes_its_cluster_once_from_a_password_file(
    containers: Containers, image: Callable[[str], str], tmp_path: Path
) -> None:
    password, scripts = tmp_path / "password", tmp_path / "scripts"
    password.write_text(PASSWORD + "\n")
    scripts.mkdir()
    (scripts / "1.sql").write_text("CREATE TABLE kept (x int); INSERT INTO kept VALUES (7);")
    (scripts / "2.sh").write_text('psql -c "INSERT INTO kept VALUES (8)"\n')
    for path in (tmp_path, scripts):
        path.chmod(0o755)
    for path in (password, *scripts.iterdir()):
        path.chmod(0o444)
    server = containers.start(
        *CONFINED,
        "--env=POSTGRES_PASSWORD_FILE=/run/password",
        "--env=POSTGRES_USER=owner",
        "--env=POSTGRES_DB=shift-work",
        f"--volume={password}:/run/password:ro",
        f"--volume={scripts}:/docker-entrypoint-initdb.d:ro",
        image("postgres"),
        "-c",
        "max_connections=33",
    )
    containers.wait_for(lambda: answers(containers, server), server)
    ask = "--username=owner"
    assert sql(containers, server, "TABLE kept", ask, database="shift-work") == "7\n8"
    assert sql(containers, server, "SHOW max_connections", ask, database="shift-work") == "33"
    assert sql(containers, server, "SHOW server_encoding", ask, database="shift-work") == "UTF8"
    wrong = containers.exec(
        server, "psql", "--host=127.0.0.1", "--no-password", ask, "--command=SELECT 1"
    )
    assert "no password supplied" in wrong.stderr
    # No list of processes and no environment of the server shows it.
    shown = containers.exec(server, "sh", "-c", "cat /proc/1/environ /proc/1/cmdline")
    assert shown.returncode == 0
    assert PASSWORD not in shown.stdout

    began = time.monotonic()
    assert containers.call("stop", "--time=30", server).returncode == 0
    assert time.monotonic() - began < 10
    assert "database system is shut down" in containers.logs(server)

    assert containers.call("start", server).returncode == 0
    containers.wait_for(lambda: answers(containers, server), server)
    assert sql(containers, server, "SELECT sum(x) FROM kept", ask, database="shift-work") == "15"


def test_postgres_that_was_interrupted_creates_its_cluster_again(
    containers: Containers, image: Callable[[str], str]
) -> None:
    """A start that died half way leaves nothing that a later start takes for a cluster."""
    server = containers.start(
        *CONFINED,
        f"--env=POSTGRES_PASSWORD={PASSWORD}",
        "--entrypoint=bash",
        image("postgres"),
        "-c",
        "mkdir -p $PGDATA/.making/base && echo 15 > $PGDATA/.making/PG_VERSION"
        " && exec postgres-entrypoint postgres",
    )
    containers.wait_for(lambda: answers(containers, server), server)
    ask = "--username=postgres"
    assert sql(containers, server, "SELECT 1", ask, database="postgres") == "1"
    left = containers.exec(server, "ls", "-A", "/var/lib/postgresql/data").stdout.split()
    assert "PG_VERSION" in left
    assert ".making" not in left


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "the first start needs a password: set POSTGRES_PASSWORD_FILE or POSTGRES_PASSWORD"),
        (
            ("--env=POSTGRES_PASSWORD=a", "--env=POSTGRES_PASSWORD_FILE=/b"),
            "POSTGRES_PASSWORD and POSTGRES_PASSWORD_FILE are both set; give one",
        ),
        (
            ("--env=POSTGRES_PASSWORD_FILE=/nowhere",),
            "POSTGRES_PASSWORD_FILE=/nowhere cannot be read by uid 999",
        ),
        (
            ("--env=POSTGRES_PASSWORD=a", "--user=4242:4242"),
            "PGDATA=/var/lib/postgresql/data cannot be written by uid 4242; give the volume to 999",
        ),
    ],
)
def test_postgres_reports_what_is_missing(
    containers: Containers, image: Callable[[str], str], options: tuple[str, ...], message: str
) -> None:
    done = containers.run(*CONFINED, *options, image("postgres"))
    assert done.returncode == 1
    assert message in done.stderr


def test_postgres_image_runs_its_other_programs(
    containers: Containers, image: Callable[[str], str]
) -> None:
    done = containers.run(*CONFINED, image("postgres"), "pg_dump", "--version")
    assert "pg_dump (PostgreSQL) 15" in done.stdout


def test_nats_serves_jetstream_and_stops(
    containers: Containers, image: Callable[[str], str]
) -> None:
    server = containers.start(*CONFINED, image("nats"))
    look = ("healthcheck", "http://127.0.0.1:8222/healthz?js-enabled-only=true")
    containers.wait_for(lambda: containers.exec(server, *look).returncode == 0, server)
    assert 'Store Directory: "/data/jetstream"' in containers.logs(server)
    nobody = containers.exec(server, "healthcheck", "http://127.0.0.1:1/")
    assert nobody.returncode == 1
    assert "http://127.0.0.1:1/: " in nobody.stderr
    assert containers.call("stop", "--time=20", server).returncode == 0
    state = containers.call("inspect", "--format={{.State.ExitCode}}", server).stdout.strip()
    assert state in {"0", "1"}  # nats-server's own way of saying: by a signal
    assert "Server Exiting.." in containers.logs(server)


def test_nats_takes_its_own_arguments(
    containers: Containers, image: Callable[[str], str], tmp_path: Path
) -> None:
    config = tmp_path / "nats.conf"
    config.write_text("port: 4333\n")
    config.chmod(0o444)
    tmp_path.chmod(0o755)
    done = containers.run(
        *CONFINED, f"--volume={config}:/nats.conf:ro", image("nats"), "--config", "/nats.conf", "-t"
    )
    assert done.returncode == 0, done.stderr
    assert "configuration file /nats.conf is valid" in done.stdout + done.stderr

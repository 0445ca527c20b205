"""Fixtures for real servers on demand; tests that use them need the ``server`` marker.

``--infra=embedded`` (default) runs the servers from wheels; ``containers`` runs them where Docker
or Podman is; ``external`` takes the URLs in SHIFTWORK_TEST_NATS_URL and SHIFTWORK_TEST_POSTGRES_URL
(each with an administrator's user and password; tests empty the servers, so they must be servers
for tests only).
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import pytest_asyncio

from tests.kit.infra import Infra

if TYPE_CHECKING:
    from libs.bus.topology import Permissions
    from tests.kit.nats_server import NatsServer, StartNats
    from tests.kit.postgres import Database, PostgresServer, StartPostgres

T = TypeVar("T")


def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """Run in an event loop of a thread of its own, so that no test's loop is touched."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(work))
        except BaseException as problem:  # noqa: BLE001 - raised again in the caller's thread
            failure.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


@pytest.fixture(scope="session")
def infra(pytestconfig: pytest.Config) -> Infra:
    return Infra(pytestconfig.getoption("--infra"))


@pytest.fixture(scope="session")
def session_folder() -> Iterator[Path]:
    """Short, because a socket's path has a limit."""
    folder = Path(tempfile.mkdtemp(prefix="swt-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config, session_folder: Path) -> Iterator[PostgresServer]:
    """The session's PostgreSQL, shared by all tests: never stop it (see ``postgres_start``)."""
    from tests.kit.postgres import PostgresServer

    server = PostgresServer(session_folder / "pg", Infra(pytestconfig.getoption("--infra")))
    run_apart(server.start())
    yield server
    run_apart(server.stop())


@pytest_asyncio.fixture
async def database(postgres_server: PostgresServer) -> AsyncIterator[Database]:
    """A fresh database; ``await database.role("scheduler")`` gives a role with its schema."""
    made = await postgres_server.database()
    yield made
    await made.drop()


@pytest.fixture(scope="session")
def pristine_postgres(session_folder: Path) -> Path:
    """A cluster that nobody has used, to be copied."""
    from tests.kit.postgres import PostgresServer

    async def make() -> None:
        server = PostgresServer(session_folder / "pristine", Infra.EMBEDDED)
        await server.start()
        await server.stop()

    run_apart(make())
    return session_folder / "pristine"


@pytest_asyncio.fixture
async def postgres_start(
    pristine_postgres: Path, session_folder: Path
) -> AsyncIterator[StartPostgres]:
    """Start a PostgreSQL of the test's own, which it may stop and kill (always from wheels)."""
    from tests.kit.postgres import PostgresServer, copy_of_pristine

    started: list[PostgresServer] = []

    async def start(*, durable: bool = False) -> PostgresServer:
        data = Path(tempfile.mkdtemp(dir=session_folder, prefix="pg-"))
        copy_of_pristine(pristine_postgres, data)
        server = PostgresServer(data, Infra.EMBEDDED, durable=durable)
        started.append(server)
        await server.start()
        return server

    yield start
    for server in started:
        await server.stop()
        shutil.rmtree(server.data, ignore_errors=True)


@pytest_asyncio.fixture
async def nats_start(infra: Infra, session_folder: Path) -> AsyncIterator[StartNats]:
    """Start a NATS server with these users (and the administrator)."""
    from tests.kit.nats_server import NatsServer

    started: list[NatsServer] = []

    async def start(users: Mapping[str, Permissions]) -> NatsServer:
        data = Path(tempfile.mkdtemp(dir=session_folder, prefix="nats-"))
        server = NatsServer(data, users, infra)
        started.append(server)
        await server.start()
        return server

    yield start
    for server in started:
        await server.stop()
        shutil.rmtree(server.data, ignore_errors=True)


@pytest_asyncio.fixture
async def nats(
    nats_start: StartNats,
) -> NatsServer:
    """A fresh NATS server whose only user is the administrator."""
    return await nats_start({})

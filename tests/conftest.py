"""What all tests share: real servers on demand, and no way to the outside world.

``--infra=embedded`` (default) runs the servers from wheels; ``containers`` runs them where Docker
or Podman is; ``external`` takes the URLs in SHIFTWORK_TEST_NATS_URL and SHIFTWORK_TEST_POSTGRES_URL
(each with an administrator's user and password; tests empty what they are given, so give servers
for tests only). Fixtures of servers need the ``server`` marker.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import signal
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import pytest_asyncio
import structlog

from tests.kit.infra import Infra

if TYPE_CHECKING:
    from libs.bus.topology import Permissions
    from tests.kit.nats_server import NatsServer, StartNats
    from tests.kit.postgres import Database, PostgresServer, StartPostgres

T = TypeVar("T")

pytest_plugins = ("tests.kit.kubernetes",)

SERVER_FIXTURES = {"nats", "nats_start", "postgres_server", "postgres_start", "database"}
# Pure code and virtual time: not even a socket on this machine.
WITHOUT_SOCKETS = ("tests/sim/", "tests/scenarios/", "/domain")

# Files with a few tests that take half a minute each begin first.
LONGEST = (
    "tests/sim/",
    "tests/integration/",
    "tests/services/allinone/",
    "tests/contract/test_bus",
    "tests/kubernetes/test_large",
    "tests/e2e/test_every_route",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--infra",
        choices=[kind.value for kind in Infra],
        default=Infra.EMBEDDED.value,
        help="where tests get NATS and PostgreSQL from",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Before pytest-socket reads its options: this machine only, and unix sockets."""
    # Started in the background of a script, we inherit an ignored SIGINT, and so would the programs
    # whose Ctrl-C is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Asked for the current loop where there is none, asyncio makes one that nobody closes.
    asyncio.set_event_loop(None)
    config.option.allow_unix_socket = True
    if config.option.infra == Infra.EMBEDDED.value and not config.option.allow_hosts:
        config.option.allow_hosts = "127.0.0.1,::1"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Whatever collection makes lives until the end: the garbage collector need not search it again
    and again while it grows, nor afterwards (8 s of a processor here, and more in the tests)."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # A file stays on one worker: what takes longest must not begin when the others have ended.
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
    for item in items:
        where = item.nodeid.partition("::")[0]
        if any(part in where for part in WITHOUT_SOCKETS):
            item.add_marker(pytest.mark.disable_socket)
        used = SERVER_FIXTURES & set(getattr(item, "fixturenames", ()))
        if used and item.get_closest_marker("server") is None:
            raise pytest.UsageError(
                f"{item.nodeid} uses {', '.join(sorted(used))}: mark it with @pytest.mark.server"
            )


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


@pytest.fixture(autouse=True)
def _logs_end_with_their_test() -> Iterator[None]:
    """What a test sets up for logs writes to that test's captured output, which is then closed."""
    yield
    structlog.reset_defaults()

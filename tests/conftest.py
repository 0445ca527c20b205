"""What all tests share: the test kit's fixtures, and no connections to other machines."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Generator, Iterator

import pytest
import structlog

from tests.kit.infra import Infra

pytest_plugins = (
    "tests.kit.kubernetes",
    "tests.kit.object_storage",
    "tests.kit.servers",
    "tests.kit.stores",
)

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


@pytest.fixture(autouse=True)
def _logs_end_with_their_test() -> Iterator[None]:
    """What a test sets up for logs writes to that test's captured output, which is then closed."""
    yield
    structlog.reset_defaults()
